"""Locality sensitive hashing: signs of random projections (Charikar 2002)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from blindsight.hashing.base import Hasher
from blindsight.privacy.entropy import RandomState

__all__ = ["LSH"]


class LSH(Hasher):
    """Random hyperplanes.

    With `center=False` the hash function does not depend on the images at all: it can be given to
    anyone. With `center=True` (better on features that are never negative) it knows their mean.
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
