"""An aggregator from start to end over either carrier, and what there is to see of a run while it
goes.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from blindsight.federated.flower.coordinator import Coordinator, Link
from blindsight.federated.flower.homes import Home
from blindsight.federated.flower.parties import alone
from blindsight.federated.flower.plan import read_rows
from blindsight.federated.flower.processes import prepare

__all__ = ["read_status", "run_aggregator", "watch"]

_log = logging.getLogger(__name__)
Status = dict[str, Any]


def read_status(home: Home) -> Status | None:
    """The latest status that the aggregator wrote, or None before the first."""
    try:
        found: Status = json.loads((home.path / "status.json").read_text(encoding="utf-8"))
        return found
    except FileNotFoundError:
        return None


def finished(status: Status | None) -> bool:
    """Whether every planned round is done."""
    return status is not None and len(status["rounds"]) >= status["planned"]


def watch(
    home: Home, *, every: float = 0.5, pause: Callable[[float], None] = time.sleep
) -> Iterator[Status | None]:
    """The status again and again, until the run is over."""
    while True:
        status = read_status(home)
        yield status
        if finished(status):
            return
        pause(every)


def _carrier(
    home: Home, largest: int, bind: str | None, say: Callable[[str], None]
) -> AbstractContextManager[Link]:
    if home.about["carrier"] == "flower":
        prepare(home)
        from blindsight.federated.flower.superlink import superlink

        return superlink(home, bind=bind, say=say)
    from blindsight.federated.mailbox.server import boxes

    return boxes(home, largest=largest, bind=bind)


def _status(home: Home, link: Link, coordinator: Coordinator) -> Status | None:
    status = read_status(home)
    return (
        None
        if status is None
        else {**status, "seen": sorted(link.seen), "late": coordinator.late(link)}
    )


def run_aggregator(
    home: Home,
    *,
    test: str | Path | None = None,
    bind: str | None = None,
    linger: float = 3.0,
    say: Callable[[str], None] = _log.warning,
) -> Iterator[Status | None]:
    """Run the rounds that are left; yield the status until the last one is done.

    `seen` in it are the addresses of the parties that have been there since the start, `late` those
    of users who have not fetched the last result; they are waited for, `linger` seconds at most.
    Started again after a kill, it goes on with the round it was in.
    """
    with alone(home):
        coordinator = Coordinator(home, test=None if test is None else read_rows(test))
        failed: list[BaseException] = []
        with _carrier(home, coordinator.role.largest_message + 65_536, bind, say) as link:

            def work() -> None:
                try:
                    coordinator.run(link, linger)
                except BaseException as error:
                    failed.append(error)

            thread = threading.Thread(target=work, name="rounds", daemon=True)
            thread.start()
            while thread.is_alive():
                yield _status(home, link, coordinator)
                thread.join(0.2)
            if failed:
                raise failed[0]
            yield _status(home, link, coordinator)
