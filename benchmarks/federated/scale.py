"""Many users and long vectors, really run: every user distinct, every message real, one process,
bounded memory.

`python -m benchmarks.federated.scale USERS WEIGHTS` prints one run as JSON; the rows start it as a
process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Row
from blindsight.federated.enrolment import enrol
from blindsight.federated.messages import holder
from blindsight.federated.pad import PadSum, new_secret, pad, tag
from blindsight.federated.protocol import Aggregator, KeyHolder, Settings, User
from blindsight.federated.protocol.kept import InFiles

__all__ = ["measure", "scale_rows"]

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
    tag.tag(bytes(32), b"", values)


def measure(users: int, weights: int, *, seed: int = 0) -> dict[str, float]:
    """One whole round with key holders, the aggregator's contributions in files.

    Every user is another, every message is real and goes through the role that it is for; the sum
    is checked against the plain one, and three users check it for themselves.
    """
    settings = Settings(dimension=weights, users=users, least_users=users, holders=(3, 5))
    setup, cpu = enrol(settings, None), _Cpu()
    expected, size = np.zeros(weights, dtype=np.int64), 0
    _warm(settings, weights)
    with tempfile.TemporaryDirectory() as folder:
        aggregator = Aggregator(setup.aggregator, kept=InFiles(Path(folder)))
        [opening, *_] = aggregator.open_round(1, bytes(32))
        for enrolment in setup.users:
            update = np.random.default_rng([seed, enrolment.number]).uniform(-1, 1, weights)
            expected += settings.code.encode(update)
            user = User(enrolment)
            user.receive(opening.data)
            [sent] = cpu("user", partial(user.contribute, update))
            size = len(sent.data)
            cpu("add", partial(aggregator.receive, sent.data))
            del user, sent, update
        _open(aggregator, {holder(e.index): KeyHolder(e) for e in setup.holders}, cpu)
        found = aggregator.result
        if found is None or not np.array_equal(found.values, expected):
            raise AssertionError("the sum is not exact")
        [result, *_] = aggregator.results(1)
    checking = [User(enrolment) for enrolment in setup.users[:3]]
    for user in checking:
        cpu("check", partial(user.receive, result.data))
        if user.ended != 1:
            raise AssertionError("a user refused the sum")
    return {
        "user": cpu.spent["user"] / users,
        "add": cpu.spent["add"] / users,
        "holder": cpu.spent["holder"] / len(setup.holders),
        "open": cpu.spent["open"],
        "check": cpu.spent["check"] / len(checking),
        "bytes": size / weights,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _open(aggregator: Aggregator, holders: dict[int, KeyHolder], cpu: _Cpu) -> None:
    """Close, and one holder at a time: its question holds a share of every user."""
    aggregator.seal()
    while aggregator.phase == "closed":
        for address in aggregator.awaited():
            for asked in aggregator.ask(address):
                answers = cpu("holder", partial(holders[address].receive, asked.data))
                for answer in answers:
                    for last in cpu("open", partial(aggregator.receive, answer.data)):
                        for part in cpu("holder", partial(holders[last.to].receive, last.data)):
                            cpu("open", partial(aggregator.receive, part.data))


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
