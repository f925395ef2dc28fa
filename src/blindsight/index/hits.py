"""What a search returns: one shape for the k nearest, for a radius and for soft ranking."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import InvalidParameter

__all__ = ["Hit", "Hits", "by_photos"]


class Hit(NamedTuple):
    """One found record.

    `distance` (Hamming) is there for codes of bits; `cell`, `trust` (how likely the stored cell is
    the true one) and `tied` (how many records share it, so that their order means nothing) for
    cells of a codebook. `probability` is that of a match or of relevance, where it is known.
    """

    id: int | str
    distance: int | None
    probability: float | None
    score: float
    cell: int | None = None
    trust: float | None = None
    tied: int = 1


def by_photos(key: int | str, likeness: float) -> Hit:
    """A record as its owner ranks it, by the photos themselves: what its code says no longer
    matters.
    """
    return Hit(key, None, None, likeness)


@dataclass(frozen=True, eq=False)
class Hits:
    """The hits of all queries, one query after the other; `hits[i]` is query i's list, best first.

    Parameters:
        ids: (m,) int64, or object for names. distances: (m,) int32 Hamming distances between the
        query and the stored (flipped) code. probabilities: (m,) posterior probability of a match,
        or None where the index does not know its flips. scores: (m,) what the ranking went by,
        larger is better: minus the distance, or the soft score. limits: (queries + 1,) query i owns
        the slice limits[i]:limits[i + 1]. cells: (m,) for cells of a codebook, see `Hit`; then
        `distances` is None. trust: (m,) for cells of a codebook, see `Hit`; then `distances` is
        None. tied: (m,) for cells of a codebook, see `Hit`; then `distances` is None.
    """

    ids: NDArray[Any]
    distances: NDArray[np.int32] | None
    probabilities: NDArray[np.float64] | None
    scores: NDArray[np.float64]
    limits: NDArray[np.int64]
    cells: NDArray[np.int64] | None = None
    trust: NDArray[np.float64] | None = None
    tied: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.limits) - 1

    def __getitem__(self, query: int) -> list[Hit]:
        if not -len(self) <= query < len(self):
            raise IndexError(f"query {query} of {len(self)}")
        start, stop = self.limits[query % len(self)], self.limits[query % len(self) + 1]
        rows = slice(int(start), int(stop))
        count = int(stop - start)
        columns = [
            _column(values, rows, count, default)
            for values, default in (
                (self.ids, None),
                (self.distances, None),
                (self.probabilities, None),
                (self.scores, None),
                (self.cells, None),
                (self.trust, None),
                (self.tied, 1),
            )
        ]
        return [Hit(*row) for row in zip(*columns, strict=True)]

    def __iter__(self) -> Iterator[list[Hit]]:
        return (self[query] for query in range(len(self)))

    def at_least(self, probability: float) -> Hits:
        """Only the hits whose posterior probability of a match reaches the threshold."""
        if self.probabilities is None:
            raise InvalidParameter(
                "these hits have no probabilities: a codebook needs labelled public pictures to "
                "calibrate on, "
                "an index of bits decoding=MatchModel(...) when it is made."
            )
        return self.only(self.probabilities >= probability)

    def only(self, keep: NDArray[np.bool_]) -> Hits:
        """Only the hits that are marked (m,)."""
        kept_before = np.concatenate([[0], np.cumsum(keep)])
        columns = (
            self.distances,
            self.probabilities,
            self.scores,
            self.cells,
            self.trust,
            self.tied,
        )
        distances, probabilities, scores, cells, trust, tied = (
            None if values is None else values[keep] for values in columns
        )
        limits = kept_before[self.limits].astype(np.int64)
        return Hits(self.ids[keep], distances, probabilities, scores, limits, cells, trust, tied)  # type: ignore[arg-type]


def _column(values: NDArray[Any] | None, rows: slice, count: int, default: Any) -> list[Any]:
    return [default] * count if values is None else values[rows].tolist()
