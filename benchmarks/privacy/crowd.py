"""Many processes at one ledger, under keys that are drawn at random and so repeat: each key is
charged once.

    python -m benchmarks.privacy.crowd 64 500                                    # SQLite, in memory
    where possible python -m benchmarks.privacy.crowd 64 500 --ledger postgresql://user@host/name

Prints one line of JSON; the exit code is 1 where a process failed, a key was charged twice, an
account is not what the keys cost, or the chain does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blindsight.privacy import Cost, Ledger

__all__ = ["crowd"]

MEMORY = "/dev/shm"  # noqa: S108  (many commits try the locks, not the patience of a slow disk)
COSTS = (Cost(epsilon=0.1, delta=1e-9, unit="record"), Cost(epsilon=0.7, delta=1e-8, unit="pixel"))


def crowd(where: str | Path, processes: int, times: int) -> dict[str, Any]:
    """Every process charges keys drawn at random, each twice on average, and tells which entry it
    got for which.
    """
    # Whose turn comes last may wait long: the locks are tried here, not patience.
    ledger = Ledger(where, dataset=f"crowd {secrets.token_hex(4)}", timeout=900)
    for unit in ("record", "pixel"):
        ledger.grant(Cost(epsilon=10**6, delta=0.1, unit=unit))
    folder = Path(tempfile.mkdtemp(prefix="blindsight-crowd-"))

    def work() -> None:
        rng = random.Random(os.getpid())
        with open(folder / str(os.getpid()), "w", encoding="ascii") as file:
            for _ in range(times):
                number = rng.randrange(processes * times // 2)
                entry = ledger.charge(COSTS, what="release", key=f"release {number}")
                file.write(f"{number} {entry.sequence}\n")

    start = time.perf_counter()
    children = [_in_child(work) for _ in range(processes)]
    failed = sum(os.waitpid(child, 0)[1] != 0 for child in children)
    seconds = time.perf_counter() - start
    found: dict[int, set[int]] = {}
    for path in folder.iterdir():
        for number, sequence in (map(int, line.split()) for line in path.read_text().splitlines()):
            found.setdefault(number, set()).add(sequence)
    shutil.rmtree(folder)
    spent = [ledger.balance(cost.unit).spent.micro_epsilon for cost in COSTS]
    entries = ledger.verify().sequence
    ledger.close()
    doubled = sum(len(entries) > 1 for entries in found.values())
    exact = spent == [
        round(cost.epsilon * 10**6) * len(found) for cost in COSTS
    ] and entries == 2 + 2 * len(found)
    return {
        "processes": processes,
        "charges": processes * times,
        "keys": len(found),
        "failed": failed,
        "doubled": doubled,
        "exact": exact and not failed and not doubled,
        "seconds": round(seconds, 1),
    }


def _in_child(work: Callable[[], None]) -> int:
    """Do the work in a child; its number."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def main() -> None:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("processes", type=int)
    parser.add_argument("times", type=int)
    parser.add_argument("--ledger")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
        found = crowd(given.ledger or Path(folder, "ledger.db"), given.processes, given.times)
    print(json.dumps(found))
    sys.exit(not found["exact"])


if __name__ == "__main__":
    main()
