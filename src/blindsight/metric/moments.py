"""The closed form: noisy second moments of similar and of dissimilar differences, then generalised
eigenvectors.

One release: S, the sum of dx dx' over similar pairs, D over dissimilar ones, and how many there are
of each. A pair is in only one of them, so with differences clipped to length C it moves (S, D) by
at most C^2 in Frobenius norm, whatever the number of columns. Everything after that is free.

The directions in which dissimilar pairs are farther apart than similar ones are the top
eigenvectors of G = (D/n_d - S/n_s)/2 relative to T = (S + D)/n. With noise, T is only partly undone
(to a power below 1, its eigenvalues not below what noise alone would give), and an eigenvalue of G
counts by how far it rises above the edge of the spectrum of noise alone (Wigner's semicircle): a
direction that noise could explain gets none of the weight. Where nothing rises, T is undone less,
and in the end not at all. What is left of the plain distance (FLOOR) keeps records apart in all
other directions; if nothing ever rises above the noise it is all there is. So a hopeless budget
gives a plain distance, not a random one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blindsight.privacy.door import added

__all__ = [
    "COUNT",
    "MomentRows",
    "clipped",
    "map_of_moments",
    "read_moments",
    "release_size",
    "worth_moments",
]

Floats = NDArray[np.float64]
COUNT = 0.14  # how much of a row is its count: 1% more noise on the moments pays for both counts
CLIP = 1.0
WHITENINGS, FLOOR = (0.75, 0.5, 0.25, 0.0), 0.02
_ENOUGH = 4.0


def release_size(columns: int) -> tuple[int, float]:
    """(coordinates, norm of one pair's row) of the release."""
    return columns * (columns + 1) + 2, math.sqrt(1 + COUNT**2)


def worth_moments(n_pairs: int, columns: int, noise: float) -> bool:
    """Whether to learn by moments rather than by descent: from public numbers only.

    n / (noise d sqrt(2 d)) compares a direction's share of the second moment with the edge of the
    noise. Above 4 the closed form won on every table tried, below about 1 descent did (few pairs of
    digits).
    """
    return n_pairs >= _ENOUGH * noise * columns * math.sqrt(2 * columns)


def clipped(differences: Floats, bound: float = CLIP) -> Floats:
    """Differences no longer than the bound, in units of it."""
    size = np.linalg.norm(differences, axis=1, keepdims=True)
    return np.asarray(differences / np.maximum(size, bound))


@dataclass(frozen=True, eq=False)
class MomentRows:
    """A row for each pair, never laid out: the triangle of dx dx' among the similar or the
    dissimilar, and its count.

    Off-diagonal entries are stored once, times root 2, so that the norm of a row is that of the
    matrix.
    """

    differences: Floats
    similar: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.differences)

    def norms(self, order: float) -> Floats:
        """Of the matrix and the count, l2 only."""
        if order != 2:
            raise ValueError("second moments are bounded in l2 only")
        return np.asarray(np.sqrt((self.differences**2).sum(axis=1) ** 2 + COUNT**2))

    def weighted_sum(self, weights: Floats) -> Floats:
        """Both triangles and both counts."""
        return added(weights, lambda rows: self._added(rows, weights))

    def _added(self, rows: NDArray[np.int64], weights: Floats) -> Floats:
        parts, counts = [], []
        for kind in (rows[self.similar[rows]], rows[~self.similar[rows]]):
            differences, weight = self.differences[kind], weights[kind]
            parts.append(_triangle((differences * weight[:, None]).T @ differences))
            counts.append(COUNT * weight.sum())
        return np.concatenate([*parts, counts])


def read_moments(
    released: Floats, columns: int, n_pairs: int
) -> tuple[Floats, Floats, float, float]:
    """(S, D, n_s, n_d) of what was released; the counts are kept within 1 and all."""
    half = columns * (columns + 1) // 2
    similar, dissimilar = np.clip(released[2 * half :] / COUNT, 1, max(1, n_pairs - 1))
    S, D = (_matrix(released[i * half : (i + 1) * half], columns) for i in (0, 1))
    return S, D, float(similar), float(dissimilar)


def map_of_moments(released: Floats, *, columns: int, n_pairs: int, sigma: float) -> Floats:
    """W (d x d), best direction first, scaled so that the mean square of mapped differences is 1.

    sigma: standard deviation of the noise on each released coordinate.
    """
    S, D, similar, dissimilar = read_moments(released, columns, n_pairs)
    T, G = (S + D) / n_pairs, (D / dissimilar - S / similar) / 2
    # A symmetric matrix of noise s has its spectrum within 2 s sqrt(d), s its off-diagonal
    # deviation: sigma / root 2, and T adds two of them.
    values, V = np.linalg.eigh(T)
    values = np.maximum(values, 4 * sigma * math.sqrt(columns) / n_pairs + 1e-12)
    noise = sigma / 2 * math.hypot(1 / similar, 1 / dissimilar)
    for power in WHITENINGS:
        shrink = (values / values.mean()) ** (-power / 2)
        A = (V * shrink) @ V.T
        gain, U = np.linalg.eigh(A @ G @ A)
        edge = math.sqrt(2) * noise * math.sqrt(float((shrink**4).sum()))
        above = np.maximum(gain - edge, 0.0)[::-1]
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
