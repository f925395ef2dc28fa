"""Linear projections that several hashers share: principal components, random rotations,
Procrustes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

__all__ = ["principal_axes", "procrustes", "random_rotation", "second_moment", "unit_rows"]

Array = NDArray[Any]


def unit_rows(X: Array) -> NDArray[np.float64]:
    """Every row scaled to norm 1; rows of zeros stay."""
    rows = np.asarray(X, dtype=np.float64)
    norm = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(norm > 0, norm, 1))


def second_moment(X: Array, mean: Array, *, block: int = 8192) -> NDArray[np.float64]:
    """(X - mean)'(X - mean), summed over rows in blocks: no centred copy of a large matrix."""
    total = np.zeros((X.shape[1], X.shape[1]))
    for start in range(0, len(X), block):
        rows = X[start : start + block] - mean
        total += rows.T @ rows
    return total


def principal_axes(moment: Array, count: int) -> NDArray[np.float64]:
    """The `count` leading eigenvectors (d, count) of a symmetric matrix, the largest first, signs
    fixed.
    """
    size = len(moment)
    _, vectors = linalg.eigh(moment, subset_by_index=(size - count, size - 1))
    axes = vectors[:, ::-1]
    # An eigenvector's sign is arbitrary: fix it, so that two runs agree.
    largest = axes[np.abs(axes).argmax(axis=0), np.arange(count)]
    return np.asarray(axes * np.where(largest < 0, -1.0, 1.0))


def random_rotation(rows: int, columns: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """A random (rows, columns) matrix with orthonormal columns, or rows where there are fewer of
    them.
    """
    tall = rng.standard_normal((max(rows, columns), min(rows, columns)))
    basis, upper = np.linalg.qr(tall)
    basis = basis * np.where(np.diag(upper) < 0, -1.0, 1.0)
    return basis if rows >= columns else basis.T


def procrustes(cross: Array) -> NDArray[np.float64]:
    """The rotation R that brings V R closest to U, from `cross` = U'V = N Omega M': R = M N'."""
    n, _, m = np.linalg.svd(cross, full_matrices=False)
    return np.asarray(m.T @ n.T)
