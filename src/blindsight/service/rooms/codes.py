"""Search over the released cells of a codebook, quick at any size: equal codes score alike, so each is scored once."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["CellIndex", "Ranked"]


class Ranked(NamedTuple):
    """Rows, best first, and their scores."""

    rows: NDArray[np.int64]
    scores: NDArray[np.float64]


class CellIndex:
    """Codes (n, bytes) of a fitted `CodebookHasher`, grouped by what was released.

    A codebook of k cells releases few distinct codes (k of them where one cell is named), so ranking a hundred
    thousand pictures is one small product and a walk through lists.
    """

    def __init__(self, hasher: Any, codes: NDArray[np.uint8]) -> None:
        self.hasher = hasher
        distinct, group = np.unique(codes, axis=0, return_inverse=True)
        self._posterior = hasher.posterior(distinct)
        group = group.ravel()
        self._order = np.argsort(group, kind="stable")
        self._starts = np.searchsorted(group[self._order], np.arange(len(distinct) + 1))
        self.size = len(codes)

    def rank(self, similarity: NDArray[Any], k: int, least: float = 0.0) -> Ranked:
        """The k best rows whose expected similarity is at least `least`; ties by row."""
        scores = self._posterior @ np.asarray(similarity).ravel()
        rows: list[NDArray[np.int64]] = []
        values: list[NDArray[np.float64]] = []
        wanted = k
        for group in np.argsort(-scores, kind="stable"):
            if wanted <= 0 or scores[group] < least:
                break
            members = self._order[self._starts[group] : self._starts[group + 1]][:wanted]
            rows.append(members)
            values.append(np.full(len(members), scores[group], np.float64))
            wanted -= len(members)
        if not rows:
            return Ranked(np.empty(0, np.int64), np.empty(0))
        return Ranked(np.concatenate(rows), np.concatenate(values))
