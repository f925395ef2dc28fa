"""An aggregator from start to end over HTTPS."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

from blindsight.federated.flower.coordinator import Coordinator
from blindsight.federated.flower.homes import Home
from blindsight.federated.flower.parties import alone
from blindsight.federated.flower.plan import read_rows
from blindsight.federated.flower.running import Status, read_status
from blindsight.federated.mailbox.server import MailboxLink, read_tokens, serve

__all__ = ["run_aggregator"]


def run_aggregator(home: Home, *, test: str | Path | None = None, bind: str | None = None) -> Iterator[Status | None]:
    """Open the boxes and run the rounds that are left; yield the status until the last one is done.

    `seen` in it are the addresses of the parties that have asked for their messages since the start.
    Started again after a kill, it goes on with the round it was in.
    """
    with alone(home):
        coordinator = Coordinator(home, test=None if test is None else read_rows(test))
        link = MailboxLink(read_tokens(home).values())
        failed: list[BaseException] = []

        def work() -> None:
            try:
                coordinator.run(link)
            except BaseException as error:
                failed.append(error)

        with serve(home, link, largest=coordinator.role.largest_message + 65_536, bind=bind):
            thread = threading.Thread(target=work, name="rounds", daemon=True)
            thread.start()
            while thread.is_alive():
                yield _status(home, link)
                thread.join(0.2)
            if failed:
                raise failed[0]
            yield _status(home, link)
            _empty(link)  # the last result should reach those who are there


def _status(home: Home, link: MailboxLink) -> Status | None:
    status = read_status(home)
    return None if status is None else {**status, "seen": sorted(link.seen)}


def _empty(link: MailboxLink, seconds: float = 3.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(link._boxes[number] for number in link.seen):
        time.sleep(0.05)
