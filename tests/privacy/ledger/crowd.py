"""A program that the tests run: many processes at one ledger. Forking here keeps the test's own
process single.

crowd.py charge WHERE DATASET PROCESSES TIMES    each process charges 0.1 per record so many times
crowd.py kill   WHERE DATASET KILLS FILE         each child charges and releases until it is killed
crowd.py open   WHERE DATASET PROCESSES          all open a new ledger at the same moment
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import sys
import time

from blindsight.core.errors import BudgetExceeded
from blindsight.privacy.guarantee import Cost
from blindsight.privacy.ledger import Ledger

COST = Cost(epsilon=0.1, delta=1e-9, unit="record")
# Seconds. Whose turn comes last among many processes on a busy machine may wait for more than the
# usual minute: the locks are tested here, not patience.
PATIENCE = 900.0


def in_child(work) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
        os._exit(0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def failures(pids: list[int]) -> int:
    return sum(os.waitpid(pid, 0)[1] != 0 for pid in pids)


def charge(where: str, dataset: str, processes: int, times: int) -> dict[str, int]:
    ledger = Ledger(where, dataset=dataset, timeout=PATIENCE)
    ledger.head()  # a connection is open when we fork, as it would be in an application
    reader, writer = os.pipe()
    waiting, started = os.pipe()

    def work() -> None:
        os.close(started)
        os.read(waiting, 1)  # until the last process was forked
        done = refused = 0
        for _ in range(times):
            try:
                ledger.charge(COST, what=f"process {os.getpid()}")
                done += 1
            except BudgetExceeded:
                refused += 1
        os.write(writer, f"{done} {refused}\n".encode())

    pids = [in_child(work) for _ in range(processes)]
    os.close(started)
    failed = failures(pids)
    os.close(writer)
    with os.fdopen(reader) as lines:
        counts = [tuple(map(int, line.split())) for line in lines]
    return {
        "failed": failed,
        "charged": sum(c[0] for c in counts),
        "refused": sum(c[1] for c in counts),
    }


def kill(where: str, dataset: str, kills: int, file: str) -> dict[str, int]:
    ledger = Ledger(where, dataset=dataset, timeout=PATIENCE)
    rng = random.Random(7)

    def work() -> None:
        released = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        while True:
            entry = ledger.charge(COST, what="release")
            os.write(released, f"{entry.hash}\n".encode())
            os.fsync(released)
            os.write(writer, b".")

    killed = 0
    for turn in range(kills):
        reader, writer = os.pipe()
        pid = in_child(work)
        if turn % 8:
            os.read(
                reader, 1
            )  # the child is at full speed; the rest are killed while they open the ledger
        time.sleep(rng.uniform(0.0, 0.01))
        os.kill(pid, signal.SIGKILL)
        killed += os.WIFSIGNALED(os.waitpid(pid, 0)[1])
        os.close(reader)
        os.close(writer)
    return {"killed": killed}


def open_at_once(where: str, dataset: str, processes: int) -> dict[str, int]:
    importlib.import_module(
        "blindsight.privacy.ledger.store"
    )  # the children meet at the file, not in imports
    start = time.time() + 0.3

    def work() -> None:
        time.sleep(max(0.0, start - time.time()))
        Ledger(where, dataset=dataset, timeout=PATIENCE).grant(Cost(epsilon=1, unit="record"))

    return {"failed": failures([in_child(work) for _ in range(processes)])}


if __name__ == "__main__":
    verb, where, dataset, count, *rest = sys.argv[1:]
    if verb == "charge":
        result = charge(where, dataset, int(count), int(rest[0]))
    elif verb == "kill":
        result = kill(where, dataset, int(count), rest[0])
    else:
        result = open_at_once(where, dataset, int(count))
    print(json.dumps(result))
