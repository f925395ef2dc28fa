"""Hashers that learn from features alone: LSH, SH and ITQ, and the projections they share."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from blindsight.core import checks
from blindsight.hashing.base import Hasher
from blindsight.privacy.entropy import RandomState

__all__ = [
    "ITQ",
    "LSH",
    "SH",
    "principal_axes",
    "procrustes",
    "quantisation_loss",
    "random_rotation",
    "second_moment",
    "unit_rows",
]

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


class LSH(Hasher):
    """Random hyperplanes.

    With `center=False` the hash function does not depend on the images at all: it can be given to
    anyone. With `center=True` (better on features that are never negative) it knows their mean.

    Parameters:
        n_bits: length of a code.
        center: subtract the mean of the images first.
        random_state: seed or generator of what is drawn while learning; None draws a fresh one.

    Example:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).standard_normal((40, 8))
        >>> LSH(16, random_state=0).fit(X).transform(X).shape
        (40, 2)
    """

    _learned: ClassVar[tuple[str, ...]] = ("mean_", "directions_")

    def __init__(
        self, n_bits: int = 32, *, center: bool = True, random_state: RandomState = None
    ) -> None:
        self.n_bits = n_bits
        self.center = center
        self.random_state = random_state

    @property
    def data_free(self) -> bool:  # type: ignore[override]
        """Whether the hash function is independent of the images."""
        return not self.center

    def _learn(
        self, X: NDArray[Any], labels: NDArray[Any] | None, rng: np.random.Generator
    ) -> None:
        self.mean_ = X.mean(axis=0, dtype=np.float64) if self.center else np.zeros(X.shape[1])
        self.directions_ = rng.standard_normal((X.shape[1], self.n_bits))

    def _project(self, X: NDArray[Any]) -> NDArray[Any]:
        return (X - self.mean_) @ self.directions_


class SH(Hasher):
    """Bits are signs of sin(pi/2 + k pi (v - low) / (high - low)): analytical eigenfunctions of a
    box.

    Of all components and wave numbers k the c with the smallest eigenvalue, (k / (high - low))^2,
    are taken.

    Parameters:
        n_bits: length of a code.
        random_state: accepted as every hasher does; nothing is drawn.

    Example:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).standard_normal((40, 8))
        >>> SH(16, random_state=0).fit(X).transform(X).shape
        (40, 2)
    """

    _learned: ClassVar[tuple[str, ...]] = ("mean_", "projection_", "low_", "frequency_")

    def __init__(self, n_bits: int = 32, *, random_state: RandomState = None) -> None:
        self.n_bits = n_bits
        self.random_state = random_state

    def _learn(
        self, X: NDArray[Any], labels: NDArray[Any] | None, rng: np.random.Generator
    ) -> None:
        self.mean_ = X.mean(axis=0, dtype=np.float64).astype(X.dtype)
        axes = min(self.n_bits, X.shape[1])
        projection = principal_axes(second_moment(X, self.mean_), axes)
        V = (X - self.mean_) @ projection
        low, high = V.min(axis=0), V.max(axis=0)
        extent = np.maximum(high - low, np.finfo(np.float64).tiny)
        waves = np.arange(1, self.n_bits + 1)
        eigenvalues = np.square(waves[:, None] / extent[None, :])
        chosen = np.argsort(eigenvalues, axis=None, kind="stable")[: self.n_bits]
        wave, axis = np.unravel_index(chosen, eigenvalues.shape)
        self.projection_ = projection[:, axis]
        self.low_ = low[axis]
        self.frequency_ = np.pi * waves[wave] / extent[axis]

    def _project(self, X: NDArray[Any]) -> NDArray[Any]:
        V = (X - self.mean_) @ self.projection_
        return np.asarray(np.sin(np.pi / 2 + (V - self.low_) * self.frequency_))


def quantisation_loss(U: Array, V: Array, R: Array) -> float:
    """Equation 4: ||U - V R||_F^2 with V = Y W."""
    return float(np.square(U - V @ R).sum(dtype=np.float64))


class ITQ(Hasher):
    """PCA, then alternately the codes U = sign(YWR) and the rotation R that fits them best.

    Asked for more bits than there are features, R is a (d, c) matrix with orthonormal rows: the
    same steps, and the same proof that the loss never rises. `losses_` holds Equation 4 after every
    half step.

    Parameters:
        n_bits: length of a code.
        n_iterations: how often codes and rotation are updated.
        random_state: seed or generator of what is drawn while learning; None draws a fresh one.

    Example:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).standard_normal((40, 8))
        >>> ITQ(16, random_state=0).fit(X).transform(X).shape
        (40, 2)
    """

    _learned: ClassVar[tuple[str, ...]] = ("mean_", "projection_", "rotation_")

    def __init__(
        self, n_bits: int = 32, *, n_iterations: int = 50, random_state: RandomState = None
    ) -> None:
        self.n_bits = n_bits
        self.n_iterations = n_iterations
        self.random_state = random_state

    def _learn(self, X: Array, labels: Array | None, rng: np.random.Generator) -> None:
        checks.whole("n_iterations", self.n_iterations)
        self.mean_ = X.mean(axis=0, dtype=np.float64).astype(X.dtype)
        axes = min(self.n_bits, X.shape[1])
        self.projection_ = principal_axes(second_moment(X, self.mean_), axes).astype(X.dtype)
        V = (X - self.mean_) @ self.projection_
        R = random_rotation(axes, self.n_bits, rng).astype(X.dtype)
        self.losses_: list[float] = []
        for _ in range(self.n_iterations):
            U = np.where(V @ R >= 0, X.dtype.type(1), X.dtype.type(-1))
            self.losses_.append(quantisation_loss(U, V, R))
            R = procrustes(U.T @ V).astype(X.dtype)
            self.losses_.append(quantisation_loss(U, V, R))
        self.rotation_ = R

    def _project(self, X: Array) -> Array:
        return np.asarray((X - self.mean_) @ self.projection_ @ self.rotation_)
