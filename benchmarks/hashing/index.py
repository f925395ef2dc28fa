"""The index against raw faiss: the same codes, the same queries, the same machine, in turns."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Row, race
from blindsight.core.checks import optional_module
from blindsight.index import IVF, HammingIndex

__all__ = ["search_rows"]

_BITS, _K = 64, 10


def search_rows(
    *, quick: bool, seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> Iterator[Row]:
    """`hashing.index_vs_faiss` at 1 million 64-bit codes (quick: 200,000), and how time grows with
    their number.

    Both sides use one thread: what is compared is the work, not who gets the cores.
    """
    faiss: Any = importlib.import_module("faiss")
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        rows = _rows(faiss, quick=quick, seed=seed)
        for done, row in enumerate(rows, start=1):
            yield row
            if progress is not None:
                progress(done, 9)
    finally:
        faiss.omp_set_num_threads(before)


def _rows(faiss: Any, *, quick: bool, seed: int) -> Iterator[Row]:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (200_000 if quick else 1_000_000, _BITS // 8), dtype=np.uint8)
    queries = rng.integers(0, 256, (32 if quick else 64, _BITS // 8), dtype=np.uint8)
    with TemporaryDirectory() as folder:
        yield from _against_faiss(faiss, codes, queries, Path(folder), quick=quick, seed=seed)
        yield from _against_usearch(codes, queries, seed=seed)
        yield from _durable(codes, Path(folder), seed=seed)
    yield from _growth(codes, queries, seed=seed)
    if not quick:
        yield from _structures(codes, queries, seed=seed)


def _against_faiss(
    faiss: Any,
    codes: NDArray[np.uint8],
    queries: NDArray[np.uint8],
    folder: Path,
    *,
    quick: bool,
    seed: int,
) -> Iterator[Row]:
    """A durable index with its ids, hits and probabilities, against nothing but faiss' own flat
    index.
    """
    raw = faiss.IndexBinaryFlat(_BITS)
    raw.add(codes)
    with HammingIndex.create(folder / "race.index", _BITS) as index:
        index.add(codes)
        # Short rounds, many of them: the median then outlasts what else the machine is doing.
        repeats = 9 if quick else 25
        outcome = race(
            lambda: index.search(queries, _K), lambda: raw.search(queries, _K), repeats=repeats
        )
        work = race(
            lambda: index.search(queries, _K),
            lambda: raw.search(queries, _K),
            repeats=5,
            clock=time.process_time,
        )
        agree = bool((_distances(index, queries) == raw.search(queries, _K)[0]).all())
    yield Row(
        id="hashing.index_vs_faiss",
        value=outcome.ratio,
        unit="x of raw faiss' throughput",
        peer=f"faiss {faiss.__version__} IndexBinaryFlat",
        seed=seed,
        seconds=outcome.ours_seconds,
        note=f"{len(codes):,} codes of {_BITS} bits, k = {_K}, {len(queries)} queries, one thread; "
        f"{len(queries) / outcome.ours_seconds:.0f} against "
        f"{len(queries) / outcome.peer_seconds:.0f} queries/s; "
        f"by CPU time {work.ratio:.2f}x; distances {'equal' if agree else 'DIFFER'}",
    )


def _against_usearch(
    codes: NDArray[np.uint8], queries: NDArray[np.uint8], *, seed: int
) -> Iterator[Row]:
    """The exact scan of usearch, one thread; both find the same distances."""
    usearch: Any = optional_module("usearch.index", extra="bench")
    index = HammingIndex(_BITS)
    index.add(codes)

    def peer() -> Any:
        return usearch.search(codes, queries, _K, usearch.MetricKind.Hamming, exact=True, threads=1)

    outcome = race(lambda: index.search(queries, _K), peer, repeats=3)
    mine = _distances(index, queries)
    agree = bool((mine == np.asarray(peer().distances).astype(np.int64)).all())
    yield Row(
        id="hashing.index_vs_usearch",
        value=outcome.ratio,
        unit="x of usearch's throughput",
        peer="usearch, exact search",
        seed=seed,
        seconds=outcome.ours_seconds,
        note=f"{len(codes):,} codes of {_BITS} bits, k = {_K}, {len(queries)} queries, one thread; "
        f"distances {'equal' if agree else 'DIFFER'}",
    )


def _distances(index: HammingIndex, queries: NDArray[np.uint8]) -> NDArray[np.int64]:
    return np.asarray(index.search(queries, _K).distances).reshape(-1, _K)


def _durable(codes: NDArray[np.uint8], folder: Path, *, seed: int) -> Iterator[Row]:
    """What crash safety costs: adding with fsync, and opening again with every checksum
    verified.
    """
    path = folder / "durable.index"
    batch = 10_000
    start = time.perf_counter()
    with HammingIndex.create(path, _BITS) as index:
        for first in range(0, len(codes), batch):
            index.add(codes[first : first + batch])
    added = time.perf_counter() - start
    start = time.perf_counter()
    HammingIndex.load(path)
    opened = time.perf_counter() - start
    yield Row(
        id="hashing.index_durable_adds",
        value=len(codes) / added,
        unit="codes/s",
        seed=seed,
        seconds=added,
        note=f"batches of {batch:,}, each on the disk before it is acknowledged",
    )
    yield Row(
        id="hashing.index_checked_load",
        value=len(codes) / opened,
        unit="codes/s",
        seed=seed,
        seconds=opened,
        note="every checksum verified",
    )


def _growth(codes: NDArray[np.uint8], queries: NDArray[np.uint8], *, seed: int) -> Iterator[Row]:
    """Time of a search against the number of codes: the slope in log-log is 1 where growth is
    linear.
    """
    sizes = [len(codes) // part for part in (8, 4, 2, 1)]
    times: dict[int, list[float]] = {size: [] for size in sizes}
    indexes = {size: HammingIndex(_BITS) for size in sizes}
    for size, index in indexes.items():
        index.add(codes[:size])
        index.search(queries, _K)
    for _ in range(7):  # in turns, so that a busy moment of the machine is not one size's alone
        for size, index in indexes.items():
            start = time.process_time()
            index.search(queries, _K)
            times[size].append(time.process_time() - start)
    seconds = [min(times[size]) for size in sizes]
    slope = float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
    yield Row(
        id="hashing.index_growth",
        value=slope,
        unit="exponent of search time by number of codes",
        seed=seed,
        seconds=sum(seconds),
        note=f"{sizes[0]:,} to {sizes[-1]:,} codes, CPU time",
    )


def _structures(
    codes: NDArray[np.uint8], queries: NDArray[np.uint8], *, seed: int
) -> Iterator[Row]:
    """IVF on clustered codes (random ones have no neighbourhoods): speed and recall against the
    exact scan.
    """
    rng = np.random.default_rng(seed + 1)
    centres = rng.integers(0, 256, (2000, _BITS // 8), dtype=np.uint8)
    noise = np.packbits(rng.random((len(codes), _BITS)) < 0.12, axis=1)
    clustered = centres[rng.integers(0, len(centres), len(codes))] ^ noise
    probes = clustered[: len(queries)] ^ np.packbits(
        rng.random((len(queries), _BITS)) < 0.05, axis=1
    )
    exact, fast = HammingIndex(_BITS), HammingIndex(_BITS, structure=IVF(cells=1024, probes=32))
    exact.add(clustered)
    fast.add(clustered)
    outcome = race(lambda: fast.search(probes, _K), lambda: exact.search(probes, _K), repeats=3)
    worst = _distances(exact, probes)[:, -1]
    found = fast.search(probes, _K)
    hits = sum(hit.distance <= worst[row] for row, listed in enumerate(found) for hit in listed)
    yield Row(
        id="hashing.index_ivf_speed",
        value=outcome.ratio,
        unit="x the exact scan",
        seed=seed,
        seconds=outcome.ours_seconds,
        note=f"IVF(cells=1024, probes=32), 1,000,000 clustered codes, recall at {_K} "
        f"{hits / (_K * len(probes)):.3f}",
    )
