"""The best k of a stream, query by query: what a walk through an index keeps while it goes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["TopK", "largest"]


class TopK:
    """For each query the k best offers so far, by score; of equal ones the earlier."""

    def __init__(self, queries: int, k: int) -> None:
        self._k = k
        self._kept: list[tuple[NDArray[Any], NDArray[np.int32], NDArray[np.float64]] | None] = [None] * queries

    def offer(self, ids: NDArray[Any], distances: NDArray[np.int32], scores: NDArray[Any]) -> None:
        """A block: ids (n,), distances and scores (queries, n)."""
        for query, kept in enumerate(self._kept):
            row = scores[query].astype(np.float64)
            chosen = np.arange(len(row)) if len(row) <= self._k else largest(row, self._k)
            mine, far, best = ids[chosen], distances[query, chosen], row[chosen]
            if kept is not None:
                mine, far, best = (
                    np.concatenate([kept[0], mine]),
                    np.concatenate([kept[1], far]),
                    np.concatenate([kept[2], best]),
                )
            order = np.argsort(-best, kind="stable")[: self._k]
            self._kept[query] = (mine[order], far[order], best[order])

    def result(self, kind: Any) -> tuple[NDArray[Any], NDArray[np.int32], NDArray[np.float64], NDArray[np.int64]]:
        """Ids, distances, scores of all queries one after the other, and where each query's part ends."""
        nothing = (np.empty(0, dtype=kind), np.empty(0, np.int32), np.empty(0, np.float64))
        parts = [nothing if kept is None else kept for kept in self._kept]
        limits = np.concatenate([[0], np.cumsum([len(ids) for ids, _, _ in parts])]).astype(np.int64)
        return (
            np.concatenate([nothing[0], *(part[0] for part in parts)]),
            np.concatenate([nothing[1], *(part[1] for part in parts)]),
            np.concatenate([nothing[2], *(part[2] for part in parts)]),
            limits,
        )


def largest(scores: NDArray[Any], k: int) -> NDArray[np.int64]:
    """Positions of the k largest in their order; of those level with the last, the earlier ones."""
    cut = np.partition(scores, len(scores) - k)[len(scores) - k]
    above = np.flatnonzero(scores > cut)
    level = np.flatnonzero(scores == cut)[: k - len(above)]
    return np.sort(np.concatenate([above, level]))
