"""Hashing: the paper's tables and figures, what is left at record level, and the races.

`python -m benchmarks.hashing.rows voc2012-subset --bases DSH` measures Tables 1 and 2 of one set
for some of the bases only, and puts their rows into docs/results/hashing.json; with `--dsh-rate
0.003` it measures DSH by that learning rate, without noise, instead.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Row, put_row, race, read_report
from benchmarks.hashing import paper
from benchmarks.hashing.codebooks import codebook_rows, deep_rows, lists_rows, words_rows
from benchmarks.hashing.index import search_rows
from benchmarks.hashing.records import record_rows
from benchmarks.hashing.sets import SETS, collections, small_collection
from benchmarks.hashing.tables import BASES, dsh_rows, figure_3, tables
from blindsight.core import codes
from blindsight.evaluation import retrieval

__all__ = ["main", "rows"]

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
            yield from tables(found, out, bases=BASES, bits=paper.BITS)
    tell(5)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the tables of one set again, and put their rows and figures beside the others."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hashing.rows")
    parser.add_argument("collection", choices=SETS)
    parser.add_argument("--bases", nargs="*", choices=BASES, default=BASES)
    parser.add_argument("--bits", nargs="+", type=int, default=paper.BITS)
    parser.add_argument("--dsh-rate", type=float)
    parser.add_argument("--json", type=Path, default=Path("docs/results/hashing.json"))
    parser.add_argument("--out", type=Path, default=Path("out/bench/hashing"))
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    for found in collections((given.collection,)):
        measured: Iterator[Row]
        if isinstance(found, Row):
            measured = iter((found,))
        elif given.dsh_rate is not None:
            measured = dsh_rows(found, rate=given.dsh_rate, bits=tuple(given.bits))
        else:
            measured = tables(found, given.out, bases=tuple(given.bases), bits=tuple(given.bits))
        for row in measured:
            print(f"{row.id}  {row.value:.4g} {row.unit}\n    {row.note}", flush=True)
            put_row(given.json, row)
    whole = read_report(given.json)["rows"]
    figure_3(given.collection, ((r["id"], r["value"], r["note"] or "") for r in whole), given.out)


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


if __name__ == "__main__":
    main()
