"""Search over the released cells of a codebook, quick at any size: equal codes score alike, so each
is scored once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["CellIndex", "Ranked"]


class Ranked(NamedTuple):
    """Rows, best first, and the probability that each is a match."""

    rows: NDArray[np.int64]
    chances: NDArray[np.float64]


class CellIndex:
    """Codes (n, bytes) of a fitted `CodebookHasher`, grouped by what was released.

    A codebook of k cells releases few distinct codes (k of them where one cell is named), so
    ranking a hundred thousand pictures is one small product and a walk through lists.
    """

    def __init__(self, hasher: Any, codes: NDArray[np.uint8]) -> None:
        self.hasher = hasher
        distinct, group = np.unique(codes, axis=0, return_inverse=True)
        self._posterior = hasher.posterior(distinct)
        group = group.ravel()
        self._order = np.argsort(group, kind="stable")
        self._starts = np.searchsorted(group[self._order], np.arange(len(distinct) + 1))
        self.size = len(codes)

    def rank(
        self, similarity: NDArray[Any], k: int, least: float = 0.0, cell: int | None = None
    ) -> Ranked:
        """The k best rows by expected similarity that match with a probability of at least `least`;
        ties by row.

        Of a supervised codebook the expected similarity is that probability. Of others, `cell` is
        the query's own cell, and a match is a row whose true cell is the same.
        """
        scores = self._posterior @ np.asarray(similarity).ravel()
        chances = scores if cell is None else self._posterior[:, cell]
        rows: list[NDArray[np.int64]] = []
        values: list[NDArray[np.float64]] = []
        wanted = k
        for group in np.argsort(-scores, kind="stable"):
            if wanted <= 0:
                break
            if chances[group] < least:
                continue
            members = self._order[self._starts[group] : self._starts[group + 1]][:wanted]
            rows.append(members)
            values.append(np.full(len(members), chances[group], np.float64))
            wanted -= len(members)
        if not rows:
            return Ranked(np.empty(0, np.int64), np.empty(0))
        return Ranked(np.concatenate(rows), np.concatenate(values))
