"""Mean average precision of a ranking.

Short codes have many equal distances, so that a query has many rankings. Every measure here is the
exact expectation over all orders of tied items; `average_precisions` also gives the best and the
worst order. For Hamming distances only the number of items at each distance matters, so that
nothing is sorted: one pass of popcounts per query, then a closed form with harmonic numbers.

An item is relevant to a query if they share at least one label. Queries without a relevant item are
left out of means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks, codes
from blindsight.core.arrays import Array, Bools, Floats, Floats32, Ints
from blindsight.core.checks import njit, optional_module
from blindsight.core.errors import InvalidData

__all__ = [
    "Precision",
    "average_precisions",
    "distance_counts",
    "label_words",
    "mean_average_precision",
    "ranked_precisions",
    "score_precisions",
]

Progress = Callable[[int, int], None]
Words = NDArray[np.uint64]
_QUERIES_PER_STEP = 512  # between two calls of `progress`


@dataclass(frozen=True)
class Precision:
    """The average precision of each query. Queries without a relevant item are NaN.

    Parameters:
        expected: the expectation over all orders of tied items (m,).
        least: the value of the worst order (m,).
        most: the value of the best order (m,).
    """

    expected: Floats
    least: Floats
    most: Floats

    @property
    def mean(self) -> float:
        """Mean average precision, in expectation over the orders of tied items."""
        return _mean(self.expected)

    @property
    def bounds(self) -> tuple[float, float]:
        """Mean average precision with the worst and with the best order of tied items."""
        return _mean(self.least), _mean(self.most)


def mean_average_precision(
    queries: ArrayLike,
    database: ArrayLike,
    query_labels: ArrayLike,
    database_labels: ArrayLike,
    *,
    progress: Progress | None = None,
) -> float:
    """Mean average precision of the whole ranking by Hamming distance, in expectation over ties.

    Parameters:
        queries: packed codes, uint8 (m, bytes).
        database: packed codes of the items that are ranked, uint8 (n, bytes).
        query_labels: one label per query (m,), or indicators of several (m, C).
        database_labels: the same for the items.
        progress: called with the number of queries done and their total.

    Returns:
        The mean over queries with a relevant item; NaN if there is none.

    Raises:
        InvalidData: codes and labels do not fit each other.

    Examples:
        >>> from blindsight.core.codes import pack
        >>> codes = pack([[0, 0, 0], [0, 0, 1], [1, 1, 1]])
        >>> mean_average_precision(codes[:1], codes[1:], ["cat"], ["cat", "dog"])
        1.0
    """
    return average_precisions(
        distance_counts(queries, database, query_labels, database_labels, progress=progress)
    ).mean


def label_words(labels: ArrayLike, other: ArrayLike) -> tuple[Words, Words]:
    """Turn labels into bit words (n, w).

    Two items share a label if the bitwise `and` of their words is not 0. Labels (n,) of
    any kind become one bit per class, indicators (n, C) one bit per column.
    """
    a, b = np.asarray(labels), np.asarray(other)
    if a.ndim != b.ndim or a.ndim not in (1, 2) or a.shape[1:] != b.shape[1:]:
        raise InvalidData(f"labels must both be (n,) or both (n, C), got {a.shape} and {b.shape}.")
    if a.ndim == 1:
        index = _class_index(np.concatenate([a, b]))
        words = np.zeros((len(index), int(index.max(initial=0)) // 64 + 1), dtype=np.uint64)
        words[np.arange(len(index)), index // 64] = np.uint64(1) << (index % 64).astype(np.uint64)
        return words[: len(a)], words[len(a) :]
    if a.shape[1] == 0 or not all(((part == 0) | (part == 1)).all() for part in (a, b)):
        raise InvalidData("multi-label targets must be an indicator matrix of 0 and 1.")
    return codes.to_words(codes.pack(a)), codes.to_words(codes.pack(b))


def distance_counts(
    queries: ArrayLike,
    database: ArrayLike,
    query_labels: ArrayLike,
    database_labels: ArrayLike,
    *,
    progress: Progress | None = None,
) -> Ints:
    """Count, for each query, the items and the relevant items at each Hamming distance.

    Parameters are those of `mean_average_precision`.

    Returns:
        Ints (m, 2, 8 bytes + 1): all items first, then relevant ones.

    Raises:
        InvalidData: codes and labels do not fit each other.
    """
    query_codes, database_codes = (
        codes.check_codes(queries, name="queries"),
        codes.check_codes(database, name="database"),
    )
    if query_codes.shape[1] != database_codes.shape[1]:
        raise InvalidData(
            f"queries and database must be equally wide, got {query_codes.shape[1]} and "
            f"{database_codes.shape[1]} bytes."
        )
    a, b = label_words(query_labels, database_labels)
    if (len(a), len(b)) != (len(query_codes), len(database_codes)):
        raise InvalidData(
            f"need a label for each code, got {len(a)} and {len(b)} for {len(query_codes)} and "
            f"{len(database_codes)}."
        )
    return _count_by_distance(
        codes.to_words(query_codes),
        codes.to_words(database_codes),
        a,
        b,
        8 * query_codes.shape[1] + 1,
        progress,
    )


def average_precisions(counts: Ints) -> Precision:
    """Compute average precision from `distance_counts`: the expectation over ties, and its bounds.

    In a tied group of n items, r of them relevant, after N items with R relevant, position t holds
    a relevant item with probability r/n, and then R + 1 + (t-1) a relevant ones are at or before it
    in expectation, a = (r-1)/(n-1). Summed over t: r/n [a n + (R + 1 - a - a N) (H(N+n) - H(N))]
    with harmonic numbers H (McSherry and Najork 2008).
    """
    counts = np.ascontiguousarray(counts, dtype=np.int64)
    if (
        counts.ndim != 3
        or counts.shape[1] != 2
        or (counts[:, 1] > counts[:, 0]).any()
        or (counts < 0).any()
    ):
        raise InvalidData(
            "counts must be (m, 2, D): items, and how many of them are relevant, at each distance."
        )
    result = np.empty((3, len(counts)))
    _expected_precisions(
        counts, _harmonic_numbers(int(counts[:, 0].sum(axis=1).max(initial=0))), result
    )
    return Precision(*result)


def ranked_precisions(
    score: Callable[[slice], Array],
    query_labels: ArrayLike,
    database_labels: ArrayLike,
    *,
    block: int = 64,
    progress: Progress | None = None,
) -> Floats:
    """Compute average precisions from real-valued scores, in expectation over ties.

    Parameters:
        score: returns the scores (len(rows), n) of a block of queries, higher is nearer. The
            block bounds the memory.
        query_labels: one label per query (m,), or indicators of several (m, C).
        database_labels: the same for the items.
        block: how many queries are scored at once.
        progress: called with the number of queries done and their total.
    """
    a, b = label_words(query_labels, database_labels)
    result = np.empty(len(a))
    for start in range(0, len(a), checks.whole("block", block)):
        rows = slice(start, min(start + block, len(a)))
        relevant = np.asarray((a[rows, None, :] & b[None, :, :]).any(axis=2))
        result[rows] = score_precisions(score(rows), relevant)
        if progress is not None:
            progress(rows.stop, len(a))
    return result


def score_precisions(scores: ArrayLike, relevant: ArrayLike) -> Floats:
    """Compute the average precision of each query, in expectation over ties.

    Parameters:
        scores: scores (m, n), higher is nearer.
        relevant: whether each item is relevant to each query (m, n).
    """
    values, marks = np.asarray(scores, dtype=np.float32), np.asarray(relevant, dtype=bool)
    if values.ndim != 2 or values.shape != marks.shape or np.isnan(values).any():
        raise InvalidData(
            f"scores must be numbers of shape {marks.shape}, as the relevance; got {values.shape}."
        )
    harmonic = _harmonic_numbers(values.shape[1])
    rows = (_tied_runs(np.sort(_keys(values[i], marks[i])), harmonic) for i in range(len(values)))
    return np.fromiter(rows, dtype=np.float64, count=len(values))


def _class_index(labels: Array) -> Ints:
    """Map labels of any kind to whole numbers from 0."""
    if labels.dtype.kind in "iu" and len(labels) and labels.min() >= 0 and labels.max() < 1024:
        return labels.astype(np.int64)  # class numbers already: no need to sort them
    return np.unique(labels, return_inverse=True)[1].ravel()


def _harmonic_numbers(count: int) -> Floats:
    return np.concatenate([[0.0], np.cumsum(1 / np.arange(1, count + 1))])


def _keys(scores: Floats32, relevant: Bools) -> Ints:
    """Integers in the order of falling scores, with the relevance in the lowest bit."""
    bits = (scores + np.float32(0)).view(np.int32).astype(np.int64)  # + 0 turns -0 into 0
    ordered = np.where(bits >= 0, bits, np.int64(-(2**31)) - bits)
    return -2 * ordered + relevant


def _mean(values: Floats) -> float:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")


# The inner loops, compiled.


def _ctpop(context: object, word: object) -> tuple[object, object]:
    """The number of ones in a 64-bit word, as one machine instruction."""
    types: Any = optional_module("numba.core.types", extra="compiled")

    def build(context: object, builder: Any, signature: object, arguments: Sequence[Any]) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), build


_popcount: Any = optional_module("numba.extending", extra="compiled").intrinsic(_ctpop)


@njit(cache=True, nogil=True)
def _tally(
    query: np.uint64,
    database: Words,
    shift: np.uint64,
    table: NDArray[np.int32],
    buffer: NDArray[np.uint16],
    into: Ints,
) -> None:  # pragma: no cover
    """Count the distances of one query to codes of one word.

    Two distances together are one index into `table`, so that counters are touched half as often.
    The indices are computed into a small buffer first, in a loop that compiles to vector popcounts.
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
def _unfold(table: NDArray[np.int32], shift: np.uint64, into: Ints) -> None:  # pragma: no cover
    """Add the counts of pairs to their two distances, and clear the table."""
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
def _count_one_word(
    queries: Words,
    database: Words,
    starts: Ints,
    classes: Ints,
    counts: Ints,
) -> None:  # pragma: no cover
    """Count for codes of one word with one label each.

    The database is sorted by class, and class g is in rows starts[g]:starts[g + 1].
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
def _count_any_words(
    queries: Words, database: Words, labels: Words, others: Words, counts: Ints
) -> None:  # pragma: no cover
    """Count for codes and label sets of any number of words."""
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


def _count_by_distance(
    queries: Words,
    database: Words,
    labels: Words,
    others: Words,
    width: int,
    progress: Progress | None = None,
) -> Ints:
    """Ints (m, 2, width) of items and of relevant items at each distance."""
    counts = np.zeros((len(queries), 2, width), np.int64)
    single = queries.shape[1] == 1 and _single(labels) and _single(others)
    if single:
        query_index, database_index = _bit_index(labels), _bit_index(others)
        # numpy sorts 16-bit numbers by radix, in linear time.
        order = np.argsort(
            database_index.astype(np.uint16) if labels.shape[1] <= 1024 else database_index,
            kind="stable",
        )
        database = database[order, 0]
        starts = np.concatenate(
            [[0], np.cumsum(np.bincount(database_index, minlength=64 * labels.shape[1]))]
        )
    for start in range(0, len(queries), _QUERIES_PER_STEP):
        rows = slice(start, start + _QUERIES_PER_STEP)
        if single:
            _count_one_word(
                queries[rows, 0].copy(), database, starts, query_index[rows], counts[rows]
            )
        else:
            _count_any_words(queries[rows], database, labels[rows], others, counts[rows])
        if progress is not None:
            progress(min(start + _QUERIES_PER_STEP, len(queries)), len(queries))
    return counts


def _single(labels: Words) -> bool:
    return bool((np.bitwise_count(labels).sum(axis=1) == 1).all())


def _bit_index(labels: Words) -> Ints:
    """The position of the one bit that is set in each row."""
    word = np.argmax(labels != 0, axis=1)
    lower = labels[np.arange(len(labels)), word] - np.uint64(1)
    return np.asarray(64 * word + np.bitwise_count(lower))


@njit(cache=True, nogil=True)
def _expected_precisions(
    counts: Ints, harmonic: Floats, result: Floats
) -> None:  # pragma: no cover
    """Write average precision from counts (m, 2, D) to result (3, m).

    The rows are its expectation over the orders of tied items, its minimum and its maximum.
    """
    for i in range(len(counts)):
        expected, least, most, before, relevant = 0.0, 0.0, 0.0, 0, 0
        for d in range(counts.shape[2]):
            n, r = counts[i, 0, d], counts[i, 1, d]
            if r:
                a = (r - 1) / (n - 1) if n > 1 else 0.0
                span = harmonic[before + n] - harmonic[before]
                expected += r / n * (a * n + (relevant + 1 - a - a * before) * span)
                # Relevant first: the sum of (R+i)/(N+i), i = 1..r. Relevant last: the same after
                # the n - r others.
                most += r + (relevant - before) * (harmonic[before + r] - harmonic[before])
                late = before + n - r
                least += r + (relevant - late) * (harmonic[late + r] - harmonic[late])
            before += n
            relevant += r
        scale = 1 / relevant if relevant else np.nan
        result[0, i], result[1, i], result[2, i] = expected * scale, least * scale, most * scale


@njit(cache=True, nogil=True)
def _tied_runs(keys: Ints, harmonic: Floats) -> float:  # pragma: no cover
    """Expected average precision of sorted keys (order << 1 | relevant).

    Tied items have the same upper bits.
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
