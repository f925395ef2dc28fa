"""Hashing: the paper's tables and figures, what is left at record level, and the races."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Row, race
from benchmarks.hashing import paper
from benchmarks.hashing.codebooks import codebook_rows, deep_rows, lists_rows, words_rows
from benchmarks.hashing.index import search_rows
from benchmarks.hashing.records import record_rows
from benchmarks.hashing.sets import collections, small_collection
from benchmarks.hashing.tables import BASES, tables
from blindsight.core import codes
from blindsight.evaluation import retrieval

__all__ = ["rows"]

Progress = Callable[[int, int], None]


def rows(
    *, quick: bool, seed: int = 0, out: Path, progress: Progress | None = None
) -> Iterator[Row]:
    """Every row; quick stays on MNIST 5,000 and within a minute."""
    out.mkdir(parents=True, exist_ok=True)
    stages = 5

    def tell(done: int) -> None:
        if progress is not None:
            progress(done, stages)

    yield from codebook_rows(quick=quick, seed=seed)
    yield from words_rows(seed=seed)
    tell(1)
    yield from deep_rows(seed=seed)
    yield from lists_rows(quick=quick, seed=seed)
    tell(2)
    yield _map_vs_argsort(1_000 if quick else 10_000, seed)
    yield from search_rows(quick=quick, seed=seed)
    tell(3)
    if quick:
        small = small_collection()
        yield from tables(small, out, bases=("ITQ", "SDH", "HashNet"), bits=(12, 48))
        tell(4)
        yield from record_rows(small, out, epsilons=(2.0, 8.0), n_queries=200, main=True)
        tell(5)
        return
    measured = []
    for found in collections():
        if isinstance(found, Row):
            yield found
        else:
            measured.append(found)
            main = found.name == "cifar10"
            yield from record_rows(
                found, out, epsilons=(1.0, 2.0, 4.0, 8.0, 16.0), n_queries=400, main=main
            )
    tell(4)
    for found in measured:
        if found.name != "mnist5k":
            # Where the paper has no columns, its shortest and longest codes say enough.
            bits = (paper.BITS[0], paper.BITS[-1]) if found.paper is None else paper.BITS
            yield from tables(found, out, bases=BASES, bits=bits)
    tell(5)


def _map_vs_argsort(n_queries: int, seed: int) -> Row:
    """Tie-aware mAP by counting, against the usual few lines of numpy with an argsort per query."""
    rng = np.random.default_rng(seed)
    query, stored = (codes.pack(rng.integers(0, 2, (n, 48))) for n in (n_queries, 50_000))
    y, z = rng.integers(0, 10, n_queries), rng.integers(0, 10, 50_000)
    found = race(
        lambda: retrieval.mean_average_precision(query, stored, y, z),
        lambda: _by_argsort(query, stored, y, z),
        repeats=1 if n_queries > 1000 else 3,
        clock=time.process_time,
    )
    return Row(
        id="hashing.map_vs_argsort",
        value=found.ratio,
        unit="times as fast (CPU)",
        peer="numpy, one argsort per query",
        seed=seed,
        seconds=found.ours_seconds,
        note=f"{n_queries:,} queries x 50,000 codes of 48 bits; numpy {found.peer_seconds:.1f} s",
    )


def _by_argsort(
    query: NDArray[np.uint8], stored: NDArray[np.uint8], y: NDArray[np.int64], z: NDArray[np.int64]
) -> float:
    left, right = (codes.to_signs(part, 48).astype(np.float32) for part in (query, stored))
    total = 0.0
    for row in range(len(query)):
        distance = 0.5 * (48 - right @ left[row])
        relevant = (z == y[row])[np.argsort(distance)]
        places = np.flatnonzero(relevant) + 1
        total += float((np.arange(1, len(places) + 1) / places).mean())
    return total / len(query)
