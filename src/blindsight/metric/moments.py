"""Comparisons of records, the scale of their columns, and the closed form from second moments.

`Comparisons` holds labelled pairs and tuples in one form: the difference of the first record of a
tuple from each other record, and whether the two are similar. All of it is private. Each release
that a learner needs is a table of rows for the door, one row per pair or tuple, with the norm that
bounds it.

Without scaling, the widest column of a table dominates every distance. Bounds that are known
beforehand cost nothing. Without bounds, the size of a column is read from a noisy histogram of the
powers of two of its differences, which needs no bound, refuses no value, and is charged within the
total.

The closed form releases S, the sum of dx dx' over similar pairs, D over dissimilar pairs, and the
two counts. A pair is in only one of them, so with differences clipped to norm C it changes (S, D)
by at most C^2 in Frobenius norm, for any number of columns. Everything after that is
post-processing. The directions in which dissimilar pairs are farther apart than similar ones are
the top eigenvectors of G = (D/n_d - S/n_s)/2 relative to T = (S + D)/n. Because of the noise, T is
only partly inverted (to a power below 1, with its eigenvalues at least as large as noise alone
would give), and an eigenvalue of G counts by its excess over the edge of the spectrum of pure noise
(Wigner's semicircle). A direction that noise can explain gets weight zero. If no direction
exceeds the edge, T is inverted less, and finally not at all. FLOOR keeps a part of the plain
distance in all directions, so a budget that is too small gives the plain distance, not a random
one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from blindsight.core import checks
from blindsight.core.arrays import Bools, Floats, Ints
from blindsight.core.errors import InvalidParameter
from blindsight.metric.linear import Norm, normalised
from blindsight.privacy.door import added

__all__ = [
    "BUCKETS",
    "COUNT",
    "SMALLEST",
    "Comparisons",
    "Counts",
    "MomentRows",
    "bounds_stretch",
    "check_scale",
    "clipped",
    "counted_stretch",
    "map_of_moments",
    "read_moments",
    "release_size",
    "worth_learning",
    "worth_moments",
]

# The differences of a column are counted by powers of two from 2^-24 to 2^39; smaller ones are
# ignored.
SMALLEST, BUCKETS = -24, 64
_LARGEST_NUMBER = 1e100
_MIN_VISIBLE_COLUMNS = 0.5  # share of the columns whose counts must exceed the noise
_BLOCK = 4096


@dataclass(frozen=True, eq=False)
class Counts:
    """A sparse table for the door: entry i adds `size[i]` to row `row[i]`, column `cell[i]`."""

    n: int
    cells: int
    row: Ints
    cell: Ints
    size: Floats

    def __len__(self) -> int:
        return self.n

    def norms(self, order: float) -> Floats:
        """Return the norm of each row; entries of one row in one cell are added first."""
        cells, inverse = np.unique(self.row * self.cells + self.cell, return_inverse=True)
        total = np.bincount(inverse, weights=self.size, minlength=len(cells))
        powers: Floats = np.bincount(
            cells // self.cells, weights=total**order, minlength=self.n
        ).astype(np.float64)
        return np.asarray(powers ** (1 / order), dtype=np.float64)

    def weighted_sum(self, weights: Floats) -> Floats:
        """Return the sum of the rows, each multiplied by its weight."""
        sizes = self.size * weights[self.row]
        return added(
            weights[self.row],
            lambda entries: np.bincount(
                self.cell[entries], weights=sizes[entries], minlength=self.cells
            ),
        )


@dataclass(frozen=True, eq=False)
class Comparisons:
    """Labelled pairs and tuples. The first record of each tuple is compared with the others.

    Parameters:
        records: features (n, d).
        numbers: (m, k) record numbers of each tuple.
        alike: (m, k - 1) whether the first record is similar to each other one.
    """

    records: Floats
    numbers: Ints
    alike: Bools

    def __len__(self) -> int:
        return len(self.numbers)

    def __repr__(self) -> str:
        return f"Comparisons({len(self)} of {self.numbers.shape[1]} records)"

    @property
    def differences(self) -> Floats:
        """The differences (m, k - 1, d) of the first record of each tuple from the others."""
        return self.records[self.numbers[:, :1]] - self.records[self.numbers[:, 1:]]

    def prepared(self, stretch: Floats, norm: Norm) -> Comparisons:
        """Return the comparisons with columns multiplied by `stretch` and records then normalised.

        Numbers are clipped to 1e100, so that no square overflows and one record cannot make a sum
        infinite.
        """
        with np.errstate(over="ignore"):
            records = np.clip(self.records * stretch, -_LARGEST_NUMBER, _LARGEST_NUMBER)
        return Comparisons(normalised(records, norm), self.numbers, self.alike)

    def far(self) -> Floats:
        """Return rows (m, 2) of norm at most root 2.

        They contain half the mean distance of the dissimilar records (at most 1), and whether there
        is a dissimilar record.
        """
        distance = np.minimum(np.linalg.norm(self.differences, axis=2), 2.0) / 2
        unlike = ~self.alike
        count = unlike.sum(axis=1)
        mean = (distance * unlike).sum(axis=1) / np.maximum(count, 1)
        return np.column_stack([mean, count > 0]).astype(np.float64)

    def spread(self) -> Counts:
        """Count, for each column, the power of two just above the difference.

        The norm of a row is at most the square root of the number of columns.
        """
        with np.errstate(over="ignore"):
            differences = self.differences
        _, exponent = np.frexp(np.clip(differences, -_LARGEST_NUMBER, _LARGEST_NUMBER))
        m, others, columns = exponent.shape
        counted = (differences != 0) & (exponent >= SMALLEST)
        row, _, column = np.nonzero(counted)
        bucket = np.minimum(exponent[counted] - SMALLEST, BUCKETS - 1)
        size = np.full(len(row), 1 / others)
        return Counts(m, columns * BUCKETS, row, column * BUCKETS + bucket, size)

    def distances(self, W: Floats | None, edges: Floats) -> Counts:
        """Count the mapped distances of similar and of dissimilar records in two histograms.

        The norm of a row is 1 for a pair and root 2 for a tuple.

        Parameters:
            W: the map; None for the distance of the records themselves.
            edges: edges of the cells; larger distances are counted in the last cell.
        """
        records = self.records if W is None else self.records @ W.T
        mapped = np.empty((len(self), self.numbers.shape[1] - 1))
        for first in range(0, len(self), _BLOCK):  # differences of all pairs may not fit in memory
            tuples = records[self.numbers[first : first + _BLOCK]]
            mapped[first : first + _BLOCK] = np.linalg.norm(tuples[:, :1] - tuples[:, 1:], axis=2)
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


def check_scale(scale: Any) -> Any:
    """Return None, "private", or bounds (low, high) as two arrays with low below high."""
    if scale is None or (isinstance(scale, str) and scale == "private"):
        return scale
    if isinstance(scale, str) or not hasattr(scale, "__len__") or len(scale) != 2:
        raise InvalidParameter(
            f"scale must be None, 'private' or bounds (low, high), got {scale!r}."
        )
    low, high = (
        np.atleast_1d(checks.finite_array(name, part))
        for name, part in zip(("low", "high"), scale, strict=True)
    )
    if low.ndim != 1 or low.shape != high.shape or not (low < high).all():
        raise InvalidParameter(
            "scale must be bounds (low, high) of the same length, each low below its high."
        )
    return low, high


def bounds_stretch(scale: tuple[Floats, Floats], columns: int) -> Floats:
    """Return a factor for each column such that records within the bounds are at most 2 apart."""
    low, high = scale
    if len(low) not in (1, columns):
        raise InvalidParameter(
            f"scale must give bounds for the {columns} columns of X, got {len(low)}."
        )
    return np.broadcast_to(2 / (math.sqrt(columns) * (high - low)), (columns,)).copy()


def counted_stretch(counts: Floats, columns: int, *, noise: float) -> Floats:
    """Return a factor for each column, from the noisy counts of `Comparisons.spread`.

    The root mean square of each column's differences becomes 1 over the square root of the number
    of columns. Buckets whose count could be noise alone are treated as empty. A column whose
    buckets are all empty gets the factor of the widest column, which does not enlarge it. If noise
    hides more than half of the columns, all factors are 1.
    """
    table = counts.reshape(columns, BUCKETS)
    # Noise alone exceeds this in any cell with a probability of about a tenth of a per cent.
    least = noise * math.sqrt(2 * math.log(max(2, 1000 * table.size)))
    visible = np.where(table > least, table, 0.0)
    # Differences of exponent e lie in [2^(e-1), 2^e): their mean square is about 0.58 of 4^e.
    square = 0.58 * 4.0 ** (SMALLEST + np.arange(BUCKETS))
    # Pairs that do not differ in a column count as zero, so columns that seldom differ are narrow.
    size = np.sqrt(visible @ square / max(1.0, float(visible.sum(axis=1).max())))
    if (size > 0).mean() < _MIN_VISIBLE_COLUMNS:
        return np.ones(columns)
    return np.asarray(1 / (np.where(size > 0, size, size.max()) * math.sqrt(columns)))


COUNT = 0.14  # weight of the count in a row, at which the counts add 1% to the noise on the moments
CLIP = 1.0
WHITENINGS, FLOOR = (0.75, 0.5, 0.25, 0.0), 0.02
# Directions that gain less than this share of the best one are not used. With little noise there
# are many of them, and together they lowered the AUC on breast cancer from .905 to .887.
MIN_GAIN = 0.2
_MIN_SIGNAL_OF_MOMENTS = 3.0
_MIN_SIGNAL_TO_LEARN = 8.0
_MOST_COLUMNS = 256


def release_size(columns: int) -> tuple[int, float]:
    """Return the number of coordinates of the release, and the norm of one pair's row."""
    return columns * (columns + 1) + 2, math.sqrt(1 + COUNT**2)


def worth_moments(n_pairs: int, columns: int, noise: float) -> bool:
    """Whether to learn by moments rather than by gradient descent, from public numbers only.

    n / (noise d sqrt(2 d)) compares a direction's share of the second moment with the edge of the
    noise spectrum. Above 3 the closed form was better on every table tried (wine, breast cancer,
    digits with 2,400 and 9,600 pairs); below 2.5 gradient descent was better on digits.
    """
    return n_pairs >= _MIN_SIGNAL_OF_MOMENTS * noise * columns * math.sqrt(2 * columns)


def worth_learning(columns: int, noise: float) -> int | None:
    """Return the number of pairs from which learning is expected to beat the plain distance.

    n / (noise d) compares the sum over all pairs with the noise on a square map. On wine, breast
    cancer, digits, and digits with added random columns, gradient descent improved the AUC by .02
    to .12 for values from 8 on; below 6 the change was between -.035 and +.04. No map is learned
    for wide records: descent would start from a projection, which loses more than is learned.

    Parameters:
        columns: columns of the records.
        noise: standard deviation of the noise on the sum of gradients, in clipped gradients of one
            pair, if the whole budget were spent on one release.

    Returns:
        The number of pairs; None if there are more than 256 columns.

    Examples:
        >>> worth_learning(30, 7.0), worth_learning(1280, 7.0)
        (1680, None)
    """
    if columns > _MOST_COLUMNS:
        return None
    return math.ceil(_MIN_SIGNAL_TO_LEARN * noise * columns)


def clipped(differences: Floats, bound: float = CLIP) -> Floats:
    """Clip differences to norm `bound`, and divide them by it."""
    size = np.linalg.norm(differences, axis=1, keepdims=True)
    return np.asarray(differences / np.maximum(size, bound))


@dataclass(frozen=True, eq=False)
class MomentRows:
    """One row for each pair: the upper triangle of dx dx' and a count.

    A row has separate coordinates for similar and for dissimilar pairs, and it is never formed.
    Off-diagonal entries are stored once, multiplied by root 2, so that the norm of a row is the
    Frobenius norm of the matrix.
    """

    differences: Floats
    similar: Bools

    def __len__(self) -> int:
        return len(self.differences)

    def norms(self, order: float) -> Floats:
        """Return the l2 norm of each row, matrix and count together."""
        if order != 2:
            raise ValueError("second moments are bounded in l2 only")
        return np.asarray(np.sqrt((self.differences**2).sum(axis=1) ** 2 + COUNT**2))

    def weighted_sum(self, weights: Floats) -> Floats:
        """Return the weighted sum of the rows: both triangles and both counts."""
        return added(weights, lambda rows: self._added(rows, weights))

    def _added(self, rows: Ints, weights: Floats) -> Floats:
        parts, counts = [], []
        for kind in (rows[self.similar[rows]], rows[~self.similar[rows]]):
            differences, weight = self.differences[kind], weights[kind]
            parts.append(_triangle((differences * weight[:, None]).T @ differences))
            counts.append(COUNT * weight.sum())
        return np.concatenate([*parts, counts])


def read_moments(
    released: Floats, columns: int, n_pairs: int
) -> tuple[Floats, Floats, float, float]:
    """Read S, D, n_s and n_d from the release; the counts are clipped to [1, n_pairs - 1]."""
    half = columns * (columns + 1) // 2
    similar, dissimilar = np.clip(released[2 * half :] / COUNT, 1, max(1, n_pairs - 1))
    S, D = (_matrix(released[i * half : (i + 1) * half], columns) for i in (0, 1))
    return S, D, float(similar), float(dissimilar)


def map_of_moments(released: Floats, *, columns: int, n_pairs: int, sigma: float) -> Floats:
    """Compute the map W (d x d), best direction first, from released moments.

    It is scaled so that the mean square of mapped differences is 1. `sigma` is the standard
    deviation of the noise on each released coordinate.
    """
    S, D, similar, dissimilar = read_moments(released, columns, n_pairs)
    T, G = (S + D) / n_pairs, (D / dissimilar - S / similar) / 2
    # The spectrum of a symmetric noise matrix lies within 2 s sqrt(d), where s is its off-diagonal
    # standard deviation: sigma / root 2, and T adds two such matrices.
    values, V = np.linalg.eigh(T)
    values = np.maximum(values, 4 * sigma * math.sqrt(columns) / n_pairs + 1e-12)
    noise = sigma / 2 * math.hypot(1 / similar, 1 / dissimilar)
    for power in WHITENINGS:
        shrink = (values / values.mean()) ** (-power / 2)
        A = (V * shrink) @ V.T
        gain, U = np.linalg.eigh(A @ G @ A)
        edge = math.sqrt(2) * noise * math.sqrt(float((shrink**4).sum()))
        above = np.maximum(gain - max(edge, MIN_GAIN * gain[-1]), 0.0)[::-1]
        if above[0] > 0:
            break
    weight = above / above[0] + FLOOR if above[0] > 0 else np.ones(columns)
    W = np.sqrt(weight)[:, None] * (U[:, ::-1].T @ A)
    typical = float(np.einsum("ij,jk,ik->", W, (V * values) @ V.T, W))
    return np.asarray(W / math.sqrt(typical))


def _triangle(matrix: Floats) -> Floats:
    rows, columns = np.triu_indices(len(matrix))
    return matrix[rows, columns] * np.where(rows == columns, 1.0, math.sqrt(2))


def _matrix(triangle: Floats, columns: int) -> Floats:
    upper = np.zeros((columns, columns))
    rows, others = np.triu_indices(columns)
    upper[rows, others] = triangle / np.where(rows == others, 1.0, math.sqrt(2))
    return upper + np.triu(upper, 1).T
