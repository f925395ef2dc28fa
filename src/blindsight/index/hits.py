"""What a search returns: one shape for the k nearest, for a radius and for soft ranking."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import InvalidParameter

__all__ = ["Hit", "Hits"]


class Hit(NamedTuple):
    """One found code: its id, its Hamming distance, and the posterior probability that it is a match (or None)."""

    id: int | str
    distance: int
    probability: float | None
    score: float


@dataclass(frozen=True, eq=False)
class Hits:
    """The hits of all queries, one query after the other; `hits[i]` is query i's list, best first.

    Parameters
    ----------
    ids: (m,) int64, or object for names.
    distances: (m,) int32 Hamming distances between the query and the stored (flipped) code.
    probabilities: (m,) posterior probability of a match, or None where the index does not know its flips.
    scores: (m,) what the ranking went by, larger is better: minus the distance, or the soft score.
    limits: (queries + 1,) query i owns the slice limits[i]:limits[i + 1].
    """

    ids: NDArray[Any]
    distances: NDArray[np.int32]
    probabilities: NDArray[np.float64] | None
    scores: NDArray[np.float64]
    limits: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.limits) - 1

    def __getitem__(self, query: int) -> list[Hit]:
        if not -len(self) <= query < len(self):
            raise IndexError(f"query {query} of {len(self)}")
        start, stop = self.limits[query % len(self)], self.limits[query % len(self) + 1]
        rows = slice(int(start), int(stop))
        chances = self.probabilities[rows].tolist() if self.probabilities is not None else [None] * int(stop - start)
        columns = (self.ids[rows].tolist(), self.distances[rows].tolist(), chances, self.scores[rows].tolist())
        return [Hit(*row) for row in zip(*columns, strict=True)]

    def __iter__(self) -> Iterator[list[Hit]]:
        return (self[query] for query in range(len(self)))

    def at_least(self, probability: float) -> Hits:
        """Only the hits whose posterior probability of a match reaches the threshold."""
        if self.probabilities is None:
            raise InvalidParameter(
                "this index has no match probabilities: give it decoding=MatchModel(...) when it is made."
            )
        keep = self.probabilities >= probability
        kept_before = np.concatenate([[0], np.cumsum(keep)])
        return Hits(
            self.ids[keep],
            self.distances[keep],
            self.probabilities[keep],
            self.scores[keep],
            kept_before[self.limits].astype(np.int64),
        )
