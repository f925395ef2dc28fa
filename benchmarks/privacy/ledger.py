"""The ledger's pace: durable charges per second, against SQLite's own commits on the same disk."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.harness import Row, race
from blindsight.privacy.guarantee import Cost
from blindsight.privacy.ledger import Ledger

__all__ = ["ledger_rows"]

COST = Cost(epsilon=0.001, delta=1e-12, unit="record")


def ledger_rows(*, quick: bool, seed: int = 0) -> Iterator[Row]:
    """One process in a race with bare SQLite, 8 processes at one budget, and a crowd with repeated
    keys.
    """
    charges = 100 if quick else 500
    with tempfile.TemporaryDirectory(prefix="blindsight-ledger-") as folder:
        with Ledger(Path(folder, "ledger.db"), dataset="bench") as ledger:
            ledger.grant(Cost(epsilon=10**6, delta=0.5, unit="record"))
            yield _alone(ledger, _bare(Path(folder, "bare.db")), charges, repeats=3 if quick else 7)
            yield _together(ledger, processes=8, charges=charges)
            start = time.perf_counter()
            count = ledger.verify().sequence
            seconds = time.perf_counter() - start
        yield Row(
            id="privacy.ledger_verified_per_second",
            value=count / seconds,
            unit="entries/s",
            seconds=seconds,
        )
    yield _crowd("sqlite", [], quick=quick)
    if server := os.environ.get("BLINDSIGHT_POSTGRESQL"):
        yield _crowd("postgresql", ["--ledger", server], quick=quick)


def _crowd(name: str, place: list[str], *, quick: bool) -> Row:
    """Repeated keys from many processes, in a process that has no threads to fork."""
    size = ["8", "30"] if quick else ["64", "500"]
    command = [sys.executable, "-m", "benchmarks.privacy.crowd", *size, *place]
    found = json.loads(
        subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    )
    return Row(
        id=f"privacy.ledger_crowd_{name}",
        value=float(found["charges"]),
        unit="charges under repeated keys, 0 overspent, 0 double",
        seconds=found["seconds"],
        note=f"{found['processes']} processes, {found['keys']:,} keys, {found['failed']} failed, "
        f"{found['doubled']} doubled, both accounts and the chain exact",
    )


def _alone(ledger: Ledger, bare: Callable[[], None], charges: int, *, repeats: int) -> Row:
    def ours() -> None:
        for _ in range(charges):
            ledger.charge(COST, what="bench")

    def peer() -> None:
        for _ in range(charges):
            bare()

    outcome = race(ours, peer, repeats=repeats)
    return Row(
        id="privacy.ledger_charges_per_second",
        value=charges / outcome.ours_seconds,
        unit="charges/s, each on disk",
        peer="bare SQLite insert, WAL, synchronous=FULL",
        seconds=outcome.ours_seconds,
        note=f"{outcome.ratio:.2f} of bare SQLite ({charges / outcome.peer_seconds:,.0f} rows/s on "
        "this disk)",
    )


def _together(ledger: Ledger, *, processes: int, charges: int) -> Row:
    def work() -> None:
        for _ in range(charges):
            ledger.charge(COST, what="bench")

    start = time.perf_counter()
    pids = []
    for _ in range(processes):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                work()
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    failed = sum(os.waitpid(pid, 0)[1] != 0 for pid in pids)
    seconds = time.perf_counter() - start
    return Row(
        id="privacy.ledger_charges_per_second_8_processes",
        value=(processes - failed) * charges / seconds,
        unit="charges/s, each on disk",
        seconds=seconds,
        note=f"{processes} processes at one budget, {failed} failed",
    )


def _bare(path: Path) -> Callable[[], None]:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE entries (number INTEGER PRIMARY KEY, text TEXT)")

    def insert() -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO entries (text) VALUES (?)", ("x" * 400,))
        connection.execute("COMMIT")

    return insert
