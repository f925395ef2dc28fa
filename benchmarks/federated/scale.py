"""Many users and long vectors, really run: every user distinct, every message real, one process,
bounded memory.

`python -m benchmarks.federated.scale USERS WEIGHTS` prints one run as JSON; the rows start it as a
process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Row
from blindsight.federated.agreement import agree
from blindsight.federated.sums import (
    Aggregator,
    KeyHolder,
    Role,
    Settings,
    Simulation,
    User,
    enrol,
    field,
)
from blindsight.federated.sums.pad import PadSum, new_secret, pad
from blindsight.federated.sums.store import FileStore

__all__ = ["measure", "memory_per_user", "scale_rows", "work_lost"]

_RUNS = ((10_000, 206_848), (100, 10_000_000))
_GROWTH = (100_000, 1_000_000, 10_000_000)


class _Cpu:
    """CPU seconds by what was done."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    def __call__(self, what: str, work: Callable[[], Any]) -> Any:
        start = time.process_time()
        found = work()
        self.spent[what] = self.spent.get(what, 0.0) + time.process_time() - start
        return found


def _warm(settings: Settings, weights: int) -> None:
    """Load compiled code and make the transforms' tables, once for all users."""
    parameters = settings.pad(weights)
    values, secret = np.zeros(1, dtype=np.uint64), new_secret(parameters)
    total = PadSum(parameters, 1)
    total.add(pad(parameters, b"", values, secret))
    total.open(b"", secret.astype(np.int64))
    field.tag(bytes(32), b"", values)


def measure(users: int, weights: int, *, seed: int = 0) -> dict[str, float]:
    """One whole round with key holders, the aggregator's contributions in files.

    Every user is another, every message is real and goes through the role that it is for; the sum
    is checked against the plain one, and three users check it for themselves.
    """
    settings = Settings(dimension=weights, users=users, least_users=users, holders=5)
    setup, cpu = enrol(settings), _Cpu()
    expected, size = np.zeros(weights, dtype=np.int64), 0
    _warm(settings, weights)
    with tempfile.TemporaryDirectory() as folder:
        store = FileStore(Path(folder), users)
        aggregator = Aggregator(setup[Role.AGGREGATOR][0], store=store)
        [opening, *_] = aggregator.open_round(1, bytes(32))
        for number, enrolment in enumerate(setup[Role.USER], start=1):
            update = np.random.default_rng([seed, number]).uniform(-1, 1, weights)
            expected += settings.code.encode(update)
            user = User(enrolment)
            user.receive(opening.data)
            [sent] = cpu("user", partial(user.contribute, update))
            size = len(sent.data)
            cpu("add", partial(aggregator.receive, sent.data))
            del user, sent, update
        holders = [KeyHolder(enrolment) for enrolment in setup[Role.HOLDER]]
        _open(aggregator, {role.number: role for role in holders}, cpu)
        found = aggregator.result
        if found is None or not np.array_equal(found.values, expected):
            raise AssertionError("the sum is not exact")
        [result, *_] = aggregator.results(1)
    checking = [User(enrolment) for enrolment in setup[Role.USER][:3]]
    for user in checking:
        cpu("check", partial(user.receive, result.data))
        if user.ended != 1:
            raise AssertionError("a user refused the sum")
    return {
        "user": cpu.spent["user"] / users,
        "add": cpu.spent["add"] / users,
        "holder": cpu.spent["holder"] / len(holders),
        "open": cpu.spent["open"],
        "check": cpu.spent["check"] / len(checking),
        "bytes": size / weights,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _open(aggregator: Aggregator, holders: dict[int, KeyHolder], cpu: _Cpu) -> None:
    """Close, and one holder at a time: its question holds a share of every user."""
    aggregator.seal()
    for address in aggregator.awaited():
        if aggregator.phase != "closed":
            break
        for asked in aggregator.ask(address):
            for answer in cpu("holder", partial(holders[address].receive, asked.data)):
                cpu("open", partial(aggregator.receive, answer.data))


def memory_per_user(users: int, *, first: int) -> tuple[float, float]:
    """Bytes by which this process's memory grows with each of `users` simulated users, before and
    after the sum is opened.

    All users are enrolled beforehand; one after the other makes its role, contributes for real and
    is forgotten, and the aggregator, whose contributions are in files, adds what came. Then the
    holders are asked one by one and the sum is opened. Memory is compared with that after the
    `first` users; opening takes some memory that does not depend on the number of users.
    """
    settings = Settings(dimension=100, users=users, holders=5)
    setup = enrol(settings)
    with tempfile.TemporaryDirectory() as folder:
        aggregator = Aggregator(
            setup[Role.AGGREGATOR][0], store=FileStore(Path(folder), settings.users)
        )
        holders = [KeyHolder(enrolment) for enrolment in setup[Role.HOLDER]]
        [opening, *_] = aggregator.open_round(1, bytes(32))
        before = 0
        for number, enrolment in enumerate(setup[Role.USER], start=1):
            user = User(enrolment)
            user.receive(opening.data)
            [sent] = user.contribute(np.full(100, 0.5))
            aggregator.receive(sent.data)
            del user, sent
            if number == first:
                gc.collect()
                tracemalloc.start()
                before = tracemalloc.get_traced_memory()[0]
        gc.collect()  # cycles of the last users are no growth
        added = tracemalloc.get_traced_memory()[0] - before
        _open(aggregator, {role.number: role for role in holders}, _Cpu())
        result = aggregator.result
        opened = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        if result is None or len(result.contributors) != users:
            raise AssertionError("the sum does not hold every user")
    return added / (users - first), opened / (users - first)


def work_lost(rounds: int, *, noise: bool, seed: int = 0) -> list[float]:
    """The share of present users' work that is not in the sum, 90 of 100 users present."""
    rng = np.random.default_rng(seed)
    epsilon = 8.0 if noise else None
    settings = agree(dimension=10, users=100, rounds=rounds, epsilon=epsilon).settings
    simulation = Simulation(settings, encrypt=False)  # type: ignore[arg-type]
    lost = []
    for number in range(rounds):
        absent = set((rng.permutation(100)[:10] + 1).tolist())
        result = simulation.round(
            [np.zeros(10)] * 100, model=number.to_bytes(4, "little"), dropouts=absent
        )
        lost.append(1 - len(result.contributors) / 90)
    return lost


def _apart(users: int, weights: int, seed: int) -> dict[str, float]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.federated.scale",
        str(users),
        str(weights),
        "--seed",
        str(seed),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def scale_rows(
    *, quick: bool, seed: int = 0, out: Path, progress: Callable[[int, int], None] | None = None
) -> Iterator[Row]:
    """Growth from 1e5 to 1e7 weights, and unless quick the two large runs."""
    grown = {weights: _apart(3, weights, seed) for weights in _GROWTH[: 2 if quick else 3]}
    first, last = min(grown), max(grown)
    for what in ("user", "add", "open", "check"):
        exponent = math.log(grown[last][what] / grown[first][what]) / math.log(last / first)
        yield Row(
            id=f"federated.growth_{what}",
            value=exponent,
            unit="exponent",
            seed=seed,
            seconds=grown[last][what],
            note=f"CPU, 3 users, {first:,} to {last:,} weights: {grown[first][what]:.4f} to "
            f"{grown[last][what]:.3f} s",
        )
    users = 300 if quick else 10_000
    added, opened = memory_per_user(users, first=users // 10)
    yield Row(
        id="federated.bytes_per_simulated_user",
        value=added,
        unit="bytes",
        seed=seed,
        note=f"growth of the process's memory from the {users // 10:,}th to the {users:,}th "
        f"simulated user of a round, contributions in files; with the opened sum {opened:.0f}",
    )
    for name, noise in (("", True), ("_no_noise", False)):
        lost = work_lost(10, noise=noise, seed=seed)
        yield Row(
            id=f"federated.dropout_work_lost{name}",
            value=100 * float(np.mean(lost)),
            unit="% of present users' work",
            seed=seed,
            note="90 of 100 users present in each of 10 rounds; by round "
            + ", ".join(f"{100 * x:.0f}" for x in lost),
        )
    for users, weights in () if quick else _RUNS:
        run = _apart(users, weights, seed)
        name = f"n{users}_d{weights}"
        yield Row(
            id=f"federated.scale_user_cpu_{name}",
            value=run["user"],
            unit="seconds",
            seed=seed,
            seconds=run["user"],
            note=f"exact; {run['add'] * 1e3:.2f} ms per user to add, {run['holder']:.2f} s for "
            "each of five holders, "
            f"{run['open']:.2f} s to open, {run['check']:.2f} s for a user to check the sum",
        )
        yield Row(
            id=f"federated.scale_bytes_per_weight_{name}",
            value=run["bytes"],
            unit="bytes",
            seed=seed,
        )
        yield Row(
            id=f"federated.scale_megabytes_{name}", value=run["megabytes"], unit="MB", seed=seed
        )
    if progress is not None:
        progress(1, 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("users", type=int)
    parser.add_argument("weights", type=int)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    measure(
        3, 1000
    )  # what is compiled is compiled once, and not by the first user that is measured
    print(json.dumps(measure(given.users, given.weights, seed=given.seed)))
