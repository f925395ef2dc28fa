"""The inner loops of retrieval evaluation, compiled: histograms of popcounts, runs of tied
scores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import optional_module
from blindsight.core.compiled import njit

__all__ = ["count_by_distance", "expected_precisions", "tied_runs"]

_ROWS = 512


def _ctpop(context: Any, word: Any) -> Any:
    """The number of ones in a 64-bit word, as one machine instruction."""
    types: Any = optional_module("numba.core.types", extra="compiled")

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), build


_popcount: Any = optional_module("numba.extending", extra="compiled").intrinsic(_ctpop)


@njit(cache=True, nogil=True)
def _tally(
    query: Any, database: Any, shift: Any, table: Any, buffer: Any, into: Any
) -> None:  # pragma: no cover
    """Count distances two at a time: the pair of them is one index into `table`, so counters are
    touched half as often.

    The indices are computed into a small buffer first, a loop that compiles to vector popcounts.
    """
    half = len(database) // 2
    for low in range(0, half, len(buffer)):
        m = min(len(buffer), half - low)
        first, second = database[low : low + m], database[half + low : half + low + m]
        for j in range(m):
            buffer[j] = np.uint16(
                (_popcount(query ^ first[j]) << shift) | _popcount(query ^ second[j])
            )
        for j in range(m):
            table[buffer[j]] += 1
    if len(database) % 2:
        into[_popcount(query ^ database[len(database) - 1])] += 1


@njit(cache=True, nogil=True)
def _unfold(table: Any, shift: Any, into: Any) -> None:  # pragma: no cover
    """Add the pairs' counts to their two distances and clear the table."""
    width = len(into)
    for a in range(width):
        row = table[a << shift : (a << shift) + width]
        total = 0
        for b in range(width):
            total += row[b]
            into[b] += row[b]
            row[b] = 0
        into[a] += total


@njit(cache=True, nogil=True)
def _one_word(
    queries: Any, database: Any, starts: Any, classes: Any, counts: Any
) -> None:  # pragma: no cover
    """Codes of one word, one label each: the database sorted by class, class g in rows
    starts[g]:starts[g+1].
    """
    shift = np.uint64(6) if counts.shape[2] <= 64 else np.uint64(7)
    table = np.zeros(1 << (2 * shift), np.int32)
    buffer = np.empty(2048, np.uint16)
    for i in range(len(queries)):
        low, high = starts[classes[i]], starts[classes[i] + 1]
        _tally(queries[i], database[low:high], shift, table, buffer, counts[i, 1])
        _unfold(table, shift, counts[i, 1])
        counts[i, 0, :] = counts[i, 1, :]
        _tally(queries[i], database[:low], shift, table, buffer, counts[i, 0])
        _tally(queries[i], database[high:], shift, table, buffer, counts[i, 0])
        _unfold(table, shift, counts[i, 0])


@njit(cache=True, nogil=True)
def _general(
    queries: Any, database: Any, labels: Any, others: Any, counts: Any
) -> None:  # pragma: no cover
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
        mine, theirs = _bit_index(labels), _bit_index(others)
        # numpy sorts 16-bit numbers by radix, in linear time.
        order = np.argsort(
            theirs.astype(np.uint16) if labels.shape[1] <= 1024 else theirs, kind="stable"
        )
        database = database[order, 0]
        starts = np.concatenate(
            [[0], np.cumsum(np.bincount(theirs, minlength=64 * labels.shape[1]))]
        )
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


def _bit_index(labels: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The position of the one bit that is set in each row."""
    word = np.argmax(labels != 0, axis=1)
    lower = labels[np.arange(len(labels)), word] - np.uint64(1)
    return np.asarray(64 * word + np.bitwise_count(lower))


@njit(cache=True, nogil=True)
def expected_precisions(counts: Any, harmonic: Any, result: Any) -> None:  # pragma: no cover
    """Average precision from counts (m, 2, D) into result (3, m): expected, least and most over tie
    orders.
    """
    for i in range(len(counts)):
        expected, least, most, before, found = 0.0, 0.0, 0.0, 0, 0
        for d in range(counts.shape[2]):
            n, r = counts[i, 0, d], counts[i, 1, d]
            if r:
                a = (r - 1) / (n - 1) if n > 1 else 0.0
                span = harmonic[before + n] - harmonic[before]
                expected += r / n * (a * n + (found + 1 - a - a * before) * span)
                # Relevant first: the sum of (R+i)/(N+i), i = 1..r. Relevant last: the same after
                # the n - r others.
                most += r + (found - before) * (harmonic[before + r] - harmonic[before])
                late = before + n - r
                least += r + (found - late) * (harmonic[late + r] - harmonic[late])
            before += n
            found += r
        scale = 1 / found if found else np.nan
        result[0, i], result[1, i], result[2, i] = expected * scale, least * scale, most * scale


@njit(cache=True, nogil=True)
def tied_runs(keys: Any, harmonic: Any) -> float:  # pragma: no cover
    """Expected average precision of sorted keys (order << 1 | relevant): tied items share the upper
    bits.
    """
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
