"""Iterative quantisation (Gong, Lazebnik, Gordo and Perronnin 2013): rotate principal components to
the cube.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.hashing.base import Hasher
from blindsight.hashing.projection import principal_axes, procrustes, random_rotation, second_moment
from blindsight.privacy.entropy import RandomState

__all__ = ["ITQ", "quantisation_loss"]

Array = NDArray[Any]


def quantisation_loss(U: Array, V: Array, R: Array) -> float:
    """Equation 4: ||U - V R||_F^2 with V = Y W."""
    return float(np.square(U - V @ R).sum(dtype=np.float64))


class ITQ(Hasher):
    """PCA, then alternately the codes U = sign(YWR) and the rotation R that fits them best.

    Asked for more bits than there are features, R is a (d, c) matrix with orthonormal rows: the
    same steps, and the same proof that the loss never rises. `losses_` holds Equation 4 after every
    half step.
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
