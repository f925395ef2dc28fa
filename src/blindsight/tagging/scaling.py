"""Features before the head: rows of one length, and for private training a released centre.

DP-SGD clips every record's gradient, which is its residual times its features: rows of one length waste nothing of the
bound. Pooled features share a large common part that carries no information and eats the bound, so the private head
subtracts their mean, released with discrete Gaussian noise (a row of length one moves the sum by one), and keeps a
constant in its place. Public images, of any subject, do better still: their mean and main directions cost nothing, and
fewer directions need less noise. Without private training rows are only scaled: y = Wx has no bias, and the common part
is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData
from blindsight.privacy.entropy import Rng
from blindsight.privacy.guarantee import Cost
from blindsight.privacy.mechanisms import DiscreteGaussian

__all__ = ["CentreRelease", "Scaling", "feature_rows", "unit_rows"]

_LENGTH = 4.0


def feature_rows(x: Any, *, n_features: int | None = None) -> NDArray[np.float32]:
    """Finite float rows (n, D), or an error that says what is wrong."""
    rows = checks.finite_array("X", x)
    if rows.ndim != 2 or rows.shape[0] == 0 or rows.shape[1] == 0:
        raise InvalidData(f"X must be a non-empty table of images by features, got shape {rows.shape}.")
    if n_features is not None and rows.shape[1] != n_features:
        raise InvalidData(f"X must have the {n_features} features of the training data, got {rows.shape[1]}.")
    return rows.astype(np.float32)


def unit_rows(x: Any) -> NDArray[np.float32]:
    """Every row divided by its length; rows of zeros stay."""
    rows = np.asarray(x, np.float32)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(length > 0, length, 1.0)).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class CentreRelease:
    """The mean of unit rows, with noise for one record added or removed; the number of records is public."""

    epsilon: float
    delta: float

    def noise(self, n_features: int) -> DiscreteGaussian:
        """The exact sampler for l2 sensitivity 1."""
        return DiscreteGaussian.calibrate(
            self.epsilon,
            delta=self.delta,
            sensitivity=1.0,
            dimensions=n_features,
            unit="record",
            neighbours="add or remove one",
        )

    def cost(self, n_features: int) -> Cost:
        """What it spends, per record."""
        return self.noise(n_features).cost

    def release(self, x: Any, *, rng: Rng) -> NDArray[np.float32]:
        """The noisy mean."""
        rows = unit_rows(x).astype(np.float64)
        noisy = self.noise(rows.shape[1]).release(rows.sum(axis=0), rng=rng)
        return (np.asarray(noisy) / len(rows)).astype(np.float32)


@dataclass(frozen=True)
class Scaling:
    """What is done to features before the head; `centre` is None without private training.

    `projection` (D, r) holds the main directions of public features. `floor` and `ceiling` are the corollaries'
    conditions on features: |x_i| at least, x_i at most.
    """

    centre: NDArray[np.float32] | None = None
    projection: NDArray[np.float32] | None = None
    floor: float | None = None
    ceiling: float | None = None

    @classmethod
    def from_public(cls, x: Any, *, components: int) -> Scaling:
        """Centre and main directions of public features, each direction scaled by the root of its deviation."""
        rows = unit_rows(feature_rows(x)).astype(np.float64)
        centre = rows.mean(axis=0)
        _, size, directions = np.linalg.svd(rows - centre, full_matrices=False)
        kept = min(checks.whole("public_components", components), int((size > 1e-6 * size[0]).sum()))
        projection = directions[:kept].T / np.sqrt(size[:kept])
        return cls(centre.astype(np.float32), projection.astype(np.float32))

    def width(self, n_features: int) -> int:
        """How many inputs the head has: a constant is added where a centre is taken away."""
        if self.centre is None:
            return n_features
        return 1 + (n_features if self.projection is None else self.projection.shape[1])

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """The head's input."""
        rows = unit_rows(x)
        if self.centre is not None:
            rows = rows - self.centre
            rows = unit_rows(rows if self.projection is None else rows @ self.projection)
            return np.hstack([rows, np.ones((len(rows), 1), np.float32)])
        rows = _LENGTH * rows
        if self.floor is not None:
            rows = np.where(rows < 0, -1.0, 1.0) * np.maximum(np.abs(rows), self.floor)
        if self.ceiling is not None:
            rows = np.minimum(rows, self.ceiling)
        return rows.astype(np.float32)
