"""The inner loops of retrieval evaluation, compiled: histograms of popcounts, runs of tied scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

__all__ = ["count_by_distance", "tied_runs"]

_ROWS = 512


@intrinsic
def _popcount(context: Any, word: Any) -> Any:
    """The number of ones in a 64-bit word, as one machine instruction."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), build


@numba.njit(cache=True, nogil=True)
def _histogram(query: Any, database: Any, width: int, into: Any) -> None:  # pragma: no cover
    # Four histograms in turn: two increments of one counter in a row would wait for each other.
    lanes = np.zeros((4, width), np.int64)
    n = len(database)
    whole = n - n % 4
    for j in range(0, whole, 4):
        lanes[0, _popcount(query ^ database[j])] += 1
        lanes[1, _popcount(query ^ database[j + 1])] += 1
        lanes[2, _popcount(query ^ database[j + 2])] += 1
        lanes[3, _popcount(query ^ database[j + 3])] += 1
    for j in range(whole, n):
        lanes[0, _popcount(query ^ database[j])] += 1
    for d in range(width):
        into[d] += lanes[0, d] + lanes[1, d] + lanes[2, d] + lanes[3, d]


@numba.njit(cache=True, nogil=True)
def _one_word(queries: Any, database: Any, starts: Any, classes: Any, counts: Any) -> None:  # pragma: no cover
    """Codes of one word, one label each: the database sorted by class, class g in rows starts[g]:starts[g+1]."""
    width = counts.shape[2]
    for i in range(len(queries)):
        low, high = starts[classes[i]], starts[classes[i] + 1]
        _histogram(queries[i], database[low:high], width, counts[i, 1])
        counts[i, 0, :] = counts[i, 1, :]
        _histogram(queries[i], database[:low], width, counts[i, 0])
        _histogram(queries[i], database[high:], width, counts[i, 0])


@numba.njit(cache=True, nogil=True)
def _general(queries: Any, database: Any, labels: Any, others: Any, counts: Any) -> None:  # pragma: no cover
    """Codes and label sets of any number of words."""
    for i in range(len(queries)):
        for j in range(len(database)):
            distance = np.uint64(0)
            for w in range(queries.shape[1]):
                distance += _popcount(queries[i, w] ^ database[j, w])
            counts[i, 0, distance] += 1
            for w in range(labels.shape[1]):
                if labels[i, w] & others[j, w]:
                    counts[i, 1, distance] += 1
                    break


def count_by_distance(
    queries: NDArray[np.uint64],
    database: NDArray[np.uint64],
    labels: NDArray[np.uint64],
    others: NDArray[np.uint64],
    width: int,
    progress: Callable[[int, int], None] | None = None,
) -> NDArray[np.int64]:
    """Counts (m, 2, width) of items and of relevant items at each distance."""
    counts = np.zeros((len(queries), 2, width), np.int64)
    single = queries.shape[1] == 1 and _single(labels) and _single(others)
    if single:
        names, group = np.unique(np.concatenate([labels, others]), axis=0, return_inverse=True)
        group = group.ravel()
        mine, theirs = group[: len(labels)], group[len(labels) :]
        database = database[np.argsort(theirs, kind="stable"), 0]
        starts = np.concatenate([[0], np.cumsum(np.bincount(theirs, minlength=len(names)))])
    for start in range(0, len(queries), _ROWS):
        rows = slice(start, start + _ROWS)
        if single:
            _one_word(queries[rows, 0].copy(), database, starts, mine[rows], counts[rows])
        else:
            _general(queries[rows], database, labels[rows], others, counts[rows])
        if progress is not None:
            progress(min(start + _ROWS, len(queries)), len(queries))
    return counts


def _single(labels: NDArray[np.uint64]) -> bool:
    return bool((np.bitwise_count(labels).sum(axis=1) == 1).all())


@numba.njit(cache=True, nogil=True)
def tied_runs(keys: Any, harmonic: Any) -> float:  # pragma: no cover
    """Expected average precision of sorted keys (order << 1 | relevant): tied items share the upper bits."""
    total, before, relevant, at = 0.0, 0, 0, 0
    n = len(keys)
    while at < n:
        order, r, start = keys[at] >> 1, 0, at
        while at < n and keys[at] >> 1 == order:
            r += keys[at] & 1
            at += 1
        size = at - start
        if r:
            a = (r - 1) / (size - 1) if size > 1 else 0.0
            span = harmonic[before + size] - harmonic[before]
            total += r / size * (a * size + (relevant + 1 - a - a * before) * span)
        before += size
        relevant += r
    return total / relevant if relevant else np.nan
