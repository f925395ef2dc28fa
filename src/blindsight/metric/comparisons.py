"""Labelled pairs and tuples in one shape: from the first record of each tuple to each other, alike
or not.

Everything here is private. Each small release that a learner needs beside its own is given as rows
for the door, one for each pair or tuple, with the norm that bounds it: what one pair can do is then
the door's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.metric.records import Norm, normalised
from blindsight.privacy.door import added

__all__ = ["BUCKETS", "SMALLEST", "Comparisons", "Counts"]

Floats = NDArray[np.float64]
# Powers of two that differences of a column are sorted into: 2^-24 to 2^39, and what is smaller is
# left out.
SMALLEST, BUCKETS = -24, 64
_FARTHEST = 1e100


@dataclass(frozen=True, eq=False)
class Counts:
    """Rows with few entries, for the door: row `row[i]` has `size[i]` more in `cell[i]` of
    `cells`.
    """

    n: int
    cells: int
    row: NDArray[np.int64]
    cell: NDArray[np.int64]
    size: Floats

    def __len__(self) -> int:
        return self.n

    def norms(self, order: float) -> Floats:
        """The norm of each row; entries of one row in one cell add up first."""
        cells, inverse = np.unique(self.row * self.cells + self.cell, return_inverse=True)
        total = np.bincount(inverse, weights=self.size, minlength=len(cells))
        powers: Floats = np.bincount(
            cells // self.cells, weights=total**order, minlength=self.n
        ).astype(np.float64)
        return np.asarray(powers ** (1 / order), dtype=np.float64)

    def weighted_sum(self, weights: Floats) -> Floats:
        """All rows, each times its weight, added."""
        sizes = self.size * weights[self.row]
        return added(
            weights[self.row],
            lambda entries: np.bincount(
                self.cell[entries], weights=sizes[entries], minlength=self.cells
            ),
        )


@dataclass(frozen=True, eq=False)
class Comparisons:
    """(m, k) numbers of records, the first of each tuple compared with the others, and which of
    these are alike.
    """

    records: Floats
    numbers: NDArray[np.int64]
    alike: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.numbers)

    def __repr__(self) -> str:
        return f"Comparisons({len(self)} of {self.numbers.shape[1]} records)"

    @property
    def differences(self) -> Floats:
        """(m, k - 1, d)."""
        return self.records[self.numbers[:, :1]] - self.records[self.numbers[:, 1:]]

    def prepared(self, stretch: Floats, norm: Norm) -> Comparisons:
        """The same with columns multiplied by `stretch` and records then normalised.

        Numbers stay below 1e100, so that no square overflows and one record's infinity cannot blot
        out a sum.
        """
        with np.errstate(over="ignore"):
            records = np.clip(self.records * stretch, -_FARTHEST, _FARTHEST)
        return Comparisons(normalised(records, norm), self.numbers, self.alike)

    def far(self) -> Floats:
        """(m, 2) half the mean distance of dissimilar ones (at most 1), and whether there is one:
        norm up to root 2.
        """
        distance = np.minimum(np.linalg.norm(self.differences, axis=2), 2.0) / 2
        unlike = ~self.alike
        count = unlike.sum(axis=1)
        mean = (distance * unlike).sum(axis=1) / np.maximum(count, 1)
        return np.column_stack([mean, count > 0]).astype(np.float64)

    def spread(self) -> Counts:
        """For each column the power of two just above the difference: norm at most the root of the
        columns.
        """
        with np.errstate(over="ignore"):
            differences = self.differences
        _, exponent = np.frexp(np.clip(differences, -_FARTHEST, _FARTHEST))
        m, others, columns = exponent.shape
        kept = (differences != 0) & (exponent >= SMALLEST)
        row, _, column = np.nonzero(kept)
        bucket = np.minimum(exponent[kept] - SMALLEST, BUCKETS - 1)
        size = np.full(len(row), 1 / others)
        return Counts(m, columns * BUCKETS, row, column * BUCKETS + bucket, size)

    def distances(self, W: Floats, edges: Floats) -> Counts:
        """Histograms of mapped distances, of similar and of dissimilar ones: norm 1 of a pair, root
        2 of a tuple.
        """
        mapped = np.linalg.norm(self.differences @ W.T, axis=2)
        bins = len(edges) - 1
        bucket = np.clip(np.searchsorted(edges, mapped, side="right") - 1, 0, bins - 1)
        kinds = np.where(
            self.alike,
            self.alike.sum(axis=1, keepdims=True),
            (~self.alike).sum(axis=1, keepdims=True),
        )
        row: Any = np.repeat(np.arange(len(self)), mapped.shape[1])
        return Counts(
            len(self), 2 * bins, row, (bucket + bins * ~self.alike).ravel(), (1 / kinds).ravel()
        )
