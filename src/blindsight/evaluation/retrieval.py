"""How well a ranking retrieves: mean average precision and precision-recall, exact over ties, by
counting.

With short codes ties are the rule: a query at distance 3 from ten thousand codes has no one
ranking. So every figure here is the exact expectation over all orders of the tied items, and
`average_precisions` also gives the best and the worst order. For Hamming distances the counts per
distance are all that matters: one popcount pass per query and a closed form with harmonic numbers,
no sorting, and memory for c + 1 counters.

An item is relevant to a query if they share at least one label. Queries without any relevant item
are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks, codes
from blindsight.core.errors import InvalidData
from blindsight.evaluation.counting import count_by_distance, expected_precisions, tied_runs

__all__ = [
    "Curve",
    "Precision",
    "average_precisions",
    "distance_counts",
    "label_words",
    "mean_average_precision",
    "precision_at",
    "precision_recall",
    "ranked_precisions",
    "score_precisions",
]

Progress = Callable[[int, int], None]
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Precision:
    """Average precision a query: the expectation over tie orders, and the least and the most any
    order gives.

    Queries without a relevant item are NaN in all three.
    """

    expected: NDArray[np.float64]
    least: NDArray[np.float64]
    most: NDArray[np.float64]

    @property
    def mean(self) -> float:
        """Mean average precision, in expectation over tie orders."""
        return _mean(self.expected)

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the most that mean average precision can be by tie order."""
        return _mean(self.least), _mean(self.most)


@dataclass(frozen=True)
class Curve:
    """Precision and recall at each Hamming radius 0..c, averaged over queries.

    Recall averages over all queries, precision over those that retrieve anything at that radius
    (NaN if none).
    """

    radius: NDArray[np.int64]
    precision: NDArray[np.float64]
    recall: NDArray[np.float64]


def mean_average_precision(
    queries: ArrayLike,
    database: ArrayLike,
    query_labels: ArrayLike,
    database_labels: ArrayLike,
    *,
    progress: Progress | None = None,
) -> float:
    """The paper's mAP over the whole ranking by Hamming distance, exactly averaged over tie orders.

    Codes are packed uint8 (n, bytes); labels are (n,) or multi-label indicators (n, C).
    """
    return average_precisions(
        distance_counts(queries, database, query_labels, database_labels, progress=progress)
    ).mean


def label_words(
    labels: ArrayLike, other: ArrayLike
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Two sets of labels as bit words (n, w), so that "share a label" is one bitwise and.

    (n,) labels of any kind become one bit a class, (n, C) indicators one bit a column.
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
) -> Counts:
    """Counts (m, 2, D): items, and relevant items, at each Hamming distance of each query.

    D = 8 bytes + 1.
    """
    left, right = (
        codes.check_codes(queries, name="queries"),
        codes.check_codes(database, name="database"),
    )
    if left.shape[1] != right.shape[1]:
        raise InvalidData(
            f"queries and database must be equally wide, got {left.shape[1]} and {right.shape[1]} "
            "bytes."
        )
    a, b = label_words(query_labels, database_labels)
    if (len(a), len(b)) != (len(left), len(right)):
        raise InvalidData(
            f"need a label for each code, got {len(a)} and {len(b)} for {len(left)} and "
            f"{len(right)}."
        )
    return count_by_distance(
        codes.to_words(left), codes.to_words(right), a, b, 8 * left.shape[1] + 1, progress
    )


def average_precisions(counts: Counts) -> Precision:
    """Average precision from counts (m, 2, D): exact over tie orders, with its bounds.

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
    expected_precisions(
        counts, _harmonic_numbers(int(counts[:, 0].sum(axis=1).max(initial=0))), result
    )
    return Precision(*result)


def ranked_precisions(
    score: Callable[[slice], NDArray[Any]],
    query_labels: ArrayLike,
    database_labels: ArrayLike,
    *,
    block: int = 64,
    progress: Progress | None = None,
) -> NDArray[np.float64]:
    """Average precision a query for real-valued scores (higher is nearer), exact over tie orders.

    `score(rows)` gives the scores (len(rows), n) of a block of queries, so memory stays bounded.
    One sort a query: the relevance rides in the lowest bit of the sort key.
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


def score_precisions(scores: ArrayLike, relevant: ArrayLike) -> NDArray[np.float64]:
    """Average precision a query from scores (m, n), higher is nearer, and relevance (m, n); exact
    over tie orders.
    """
    values, marks = np.asarray(scores, dtype=np.float32), np.asarray(relevant, dtype=bool)
    if values.ndim != 2 or values.shape != marks.shape or np.isnan(values).any():
        raise InvalidData(
            f"scores must be numbers of shape {marks.shape}, as the relevance; got {values.shape}."
        )
    harmonic = _harmonic_numbers(values.shape[1])
    rows = (tied_runs(np.sort(_keys(values[i], marks[i])), harmonic) for i in range(len(values)))
    return np.fromiter(rows, dtype=np.float64, count=len(values))


def precision_at(counts: Counts, k: int) -> float:
    """Precision among the first k, in expectation over tie orders, averaged over queries."""
    k = checks.whole("k", k)
    n, r = counts[:, 0], counts[:, 1]
    before = np.cumsum(n, axis=1) - n
    taken = np.clip(k - before, 0, n)  # how many of the tied group are among the first k
    hits = np.divide(r * taken, n, out=np.zeros(n.shape), where=n > 0).sum(axis=1)
    return float((hits / np.maximum(taken.sum(axis=1), 1)).mean())


def precision_recall(counts: Counts, n_bits: int) -> Curve:
    """The precision-recall curve of hash lookup: everything within Hamming radius 0, 1, ..., c."""
    n_bits = checks.whole("n_bits", n_bits)
    found = np.cumsum(counts, axis=2)[:, :, : n_bits + 1].astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        precision, recall = (
            found[:, 1] / found[:, 0],
            found[:, 1] / counts[:, 1].sum(axis=1)[:, None],
        )
    return Curve(np.arange(n_bits + 1), _column_means(precision), _column_means(recall))


def _class_index(labels: NDArray[Any]) -> NDArray[np.int64]:
    """Labels of any kind as whole numbers from 0."""
    if labels.dtype.kind in "iu" and len(labels) and labels.min() >= 0 and labels.max() < 1024:
        return labels.astype(np.int64)  # class numbers already: no need to sort them
    return np.unique(labels, return_inverse=True)[1].ravel()


def _harmonic_numbers(count: int) -> NDArray[np.float64]:
    return np.concatenate([[0.0], np.cumsum(1 / np.arange(1, count + 1))])


def _keys(scores: NDArray[np.float32], relevant: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Integers in the order of falling scores, with the relevance in the lowest bit."""
    bits = (scores + np.float32(0)).view(np.int32).astype(np.int64)  # + 0 turns -0 into 0
    ordered = np.where(bits >= 0, bits, np.int64(-(2**31)) - bits)
    return -2 * ordered + relevant


def _mean(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _column_means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    known = ~np.isnan(values)
    total = np.where(known, values, 0).sum(axis=0)
    return np.asarray(
        np.divide(
            total, known.sum(axis=0), out=np.full(values.shape[1], np.nan), where=known.any(axis=0)
        )
    )
