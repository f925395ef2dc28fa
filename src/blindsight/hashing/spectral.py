"""Spectral hashing (Weiss, Torralba and Fergus 2008): the smoothest sine waves along the principal
components.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from blindsight.hashing.base import Hasher
from blindsight.hashing.projection import principal_axes, second_moment
from blindsight.privacy.entropy import RandomState

__all__ = ["SH"]


class SH(Hasher):
    """Bits are signs of sin(pi/2 + k pi (v - low) / (high - low)): analytical eigenfunctions of a
    box.

    Of all components and wave numbers k the c with the smallest eigenvalue, (k / (high - low))^2,
    are taken.
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
