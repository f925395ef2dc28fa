"""Whether the time of arithmetic on secrets depends on the secrets: Welch's t between two classes.

Each routine runs on one fixed secret (all zeros, or the smallest that it takes) and on fresh random
ones, in random order. CPU time of the thread is compared after the slowest tenth was cut off, as
Reparaz, Balasch and Verbauwhede (2017, "dude, is my code constant time?") propose; |t| above 4.5 is
their sign of a leak. A small |t| proves nothing beyond these inputs on this machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Row
from blindsight.federated.sums import Settings, field
from blindsight.federated.sums.pad import cipher, ring, sampler

__all__ = ["THRESHOLD", "timing_rows", "welch"]

THRESHOLD = 4.5
_DIMENSION = 4096
Routine = Callable[[bool], Callable[[], object]]


def welch(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Welch's t of two samples, each without its slowest tenth."""
    limit = np.quantile(np.concatenate([first, second]), 0.9)
    a, b = first[first <= limit], second[second <= limit]
    spread = np.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
    return float((a.mean() - b.mean()) / spread) if spread > 0 else 0.0


def _routines(rng: np.random.Generator) -> dict[str, Routine]:
    """Each gives, for the fixed or the random class, a call that is then timed.

    Inputs of both classes are made in the same way and then multiplied by zero or one: an array of
    zeros from the allocator is in another state of the caches than one that was just written.
    """
    settings = Settings(dimension=_DIMENSION, users=100, holders=5)
    size, layout = settings.pad(_DIMENSION), settings.sharing(_DIMENSION)
    prime = size.primes[0]
    domain, table = ring.field(prime, size.degree), sampler._table()
    top = 1 << settings.bits

    def secret(fixed: bool) -> NDArray[np.int8]:
        return sampler.secret(size.degree) * np.int8(not fixed)

    def values(fixed: bool) -> NDArray[np.uint64]:
        return rng.integers(0, top, _DIMENSION, dtype=np.uint64) * np.uint64(not fixed)

    def sample(fixed: bool) -> Callable[[], object]:
        words = rng.integers(0, 1 << 64, 2 * size.degree, dtype=np.uint64) * np.uint64(not fixed)
        out = np.empty(size.degree, np.int8)
        return lambda: sampler._scan(words, table, out)

    def transform(fixed: bool) -> Callable[[], object]:
        x = rng.integers(0, prime, size.degree, dtype=np.uint32) * np.uint32(not fixed)
        return lambda: ring.forward(x, domain)

    def pad(fixed: bool) -> Callable[[], object]:
        own, plain = secret(fixed), values(fixed)
        return lambda: cipher.pad(size, b"timing", plain, own)

    def tag(fixed: bool) -> Callable[[], object]:
        plain = values(fixed)
        return lambda: field.tag(bytes(32), b"timing", plain)

    def product(fixed: bool) -> Callable[[], object]:
        plain = values(fixed)
        keys = np.random.default_rng(1).integers(0, field.P, _DIMENSION, dtype=np.uint64)
        return lambda: field._dot(keys, plain, np.zeros(4, dtype=np.uint64))

    def share(fixed: bool) -> Callable[[], object]:
        key = layout.pack(secret(fixed), int(rng.integers(0, field.P)) * (not fixed))
        return lambda: layout.share(key)

    return {
        "sampler": sample,
        "transform": transform,
        "pad": pad,
        "tag": tag,
        "tag_product": product,
        "share": share,
    }


def _measured(routine: Routine, times: int, rng: np.random.Generator) -> float:
    spent: dict[bool, list[int]] = {True: [], False: []}
    for fixed in rng.permutation(np.arange(2 * times) % 2 == 0).tolist():
        work = routine(fixed)
        start = time.thread_time_ns()
        work()
        spent[fixed].append(time.thread_time_ns() - start)
    warm = times // 10
    first, second = (np.array(spent[fixed][warm:], dtype=np.float64) for fixed in (True, False))
    return welch(first, second)


def timing_rows(
    *, quick: bool, seed: int = 0, out: Path, progress: Callable[[int, int], None] | None = None
) -> Iterator[Row]:
    """One row for each routine."""
    rng, times = np.random.default_rng(seed), 200 if quick else 3000
    routines = _routines(rng)
    for done, (name, routine) in enumerate(routines.items(), start=1):
        yield Row(
            id=f"federated.timing_t_{name}",
            value=_measured(routine, times, rng),
            unit="Welch's t",
            seed=seed,
            note=f"{times:,} timings of a fixed and of random secrets; |t| above {THRESHOLD} would "
            "be a sign of a leak",
        )
        if progress is not None:
            progress(done, len(routines))
