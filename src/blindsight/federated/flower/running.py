"""An aggregator from start to end, and what there is to see of a run while it goes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from blindsight.core.errors import ProtocolError
from blindsight.federated.flower.homes import Home
from blindsight.federated.flower.processes import register_and_start, start_aggregator, start_node, wait_for_port

__all__ = ["keep_node", "read_status", "run_aggregator", "watch"]

Status = dict[str, Any]


def read_status(home: Home) -> Status | None:
    """The latest status that the aggregator wrote, or None before the first."""
    try:
        return json.loads((home.path / "status.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def finished(status: Status | None) -> bool:
    """Whether every planned round is done."""
    return status is not None and len(status["rounds"]) >= status["planned"]


def watch(home: Home, *, every: float = 0.5, pause: Callable[[float], None] = time.sleep) -> Iterator[Status | None]:
    """The status again and again, until the run is over."""
    while True:
        status = read_status(home)
        yield status
        if finished(status):
            return
        pause(every)


def keep_node(home: Home, *, data: str | Path | None = None, port: int | None = None, wait: float = 5.0) -> NoReturn:
    """Keep a SuperNode running until this process is stopped.

    The SuperLink turns away a node whose key it does not know, and the node gives up: it may only be early, so it is
    started again after `wait` seconds.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        process = start_node(home, data=data, port=port)
        try:
            process.wait()
        finally:
            _end(process)
        time.sleep(wait)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run_aggregator(
    home: Home, *, test: str | Path | None = None, bind: str | None = None, log: str | Path | None = None
) -> Iterator[Status | None]:
    """Start the SuperLink and the run; yield the status until the last round is done; stop the SuperLink.

    Started again after a kill, it goes on with the round it was in.
    """
    with Path(log or home.path / "superlink.log").open("ab") as output:
        process = start_aggregator(home, bind=bind, stdout=output, stderr=subprocess.STDOUT)
        try:
            # From here the SuperLink is reached where it listens; every interface includes loopback.
            port = home.about["address"].rpartition(":")[2]
            address = home.about["address"] if bind is None else f"{'127.0.0.1' if bind == '0.0.0.0' else bind}:{port}"  # noqa: S104
            wait_for_port(address)
            register_and_start(home, test=test, address=address)
            for status in watch(home):
                if process.poll() is not None:
                    raise ProtocolError(f"the SuperLink stopped; its log is {output.name}.")
                yield status
            time.sleep(1.0)  # the server app reports its own end
        finally:
            _end(process)
