"""Noisy moments of clipped rows: what PITQ and the codebook learn from when the images are private.

Neighbours replace one row. Rows have norm at most B, so that a replaced row moves
- the sum of rows by at most 2 B,
- the second moment, sum of y y', by at most sqrt(2) B^2 in Frobenius norm (|yy' - zz'|^2 <= 2 B^4),
- U'V, sum of u v' with |u| = sqrt(c) and |v| <= B, by at most 2 sqrt(c) B.
All noise is Gaussian. Gaussian releases of noise multipliers z_i (noise over sensitivity) compose exactly to one of
multiplier z with 1/z^2 = sum of 1/z_i^2, which the analytic curve turns into (epsilon, delta).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.privacy import Cost
from blindsight.privacy.mechanisms import Gaussian

__all__ = ["PrivateMoments", "split_multiplier"]

Array = NDArray[Any]


def split_multiplier(cost: Cost, weights: tuple[float, ...]) -> tuple[float, ...]:
    """Noise multipliers z_i that together keep `cost`, the i-th spending a share of the budget 1/z^2.

    >>> [round(z, 2) for z in split_multiplier(Cost(epsilon=1.0, delta=1e-5, unit="record"), (0.5, 0.5))]
    [5.28, 5.28]
    """
    whole = Gaussian.calibrate(cost.epsilon, delta=cost.delta, sensitivity=1.0, unit=cost.unit).sigma
    total = math.fsum(weights)
    return tuple(whole * math.sqrt(total / weight) for weight in weights)


@dataclass(frozen=True, kw_only=True)
class PrivateMoments:
    """Mean once, second moment once, U'V `steps` times; without a cost, all exact."""

    clip: float = 1.0
    steps: int = 1
    cost: Cost | None = None
    mean_multiplier: float = 0.0
    second_multiplier: float = 0.0
    cross_multiplier: float = 0.0

    @classmethod
    def exact(cls) -> PrivateMoments:
        """No noise: the rows are public."""
        return cls()

    @classmethod
    def calibrate(cls, cost: Cost, *, steps: int, clip: float) -> PrivateMoments:
        """Split (epsilon, delta): a tenth to the mean, half to the second moment, the rest over the steps."""
        each = 0.4 / steps
        multipliers = split_multiplier(cost, (0.1, 0.5, *([each] * steps)))
        return cls(
            clip=clip,
            steps=steps,
            cost=cost,
            mean_multiplier=multipliers[0],
            second_multiplier=multipliers[1],
            cross_multiplier=multipliers[2],
        )

    def mean(self, X: Array, *, rng: np.random.Generator) -> NDArray[np.float64]:
        """The mean of the rows."""
        return self._noisy(X.sum(axis=0, dtype=np.float64), 2 * self.clip, self.mean_multiplier, rng) / len(X)

    def second(self, X: Array, *, rng: np.random.Generator) -> NDArray[np.float64]:
        """The sum of y y' over rows, symmetric: noise on the upper triangle, mirrored."""
        moment = (X.T @ X).astype(np.float64)
        upper = np.triu_indices(len(moment))
        values = self._noisy(moment[upper], math.sqrt(2) * self.clip**2, self.second_multiplier, rng)
        noisy = np.zeros_like(moment)
        noisy[upper] = values
        return noisy + np.triu(noisy, 1).T

    def cross(self, U: Array, V: Array, *, rng: np.random.Generator) -> NDArray[np.float64]:
        """U'V for codes U of +1 and -1; call at most `steps` times."""
        sensitivity = 2 * math.sqrt(U.shape[1]) * self.clip
        return self._noisy((U.T @ V).astype(np.float64), sensitivity, self.cross_multiplier, rng)

    def _noisy(self, value: Array, sensitivity: float, multiplier: float, rng: np.random.Generator) -> Array:
        if self.cost is None:
            return value
        noise = Gaussian(
            sigma=multiplier * sensitivity,
            sensitivity=sensitivity,
            delta=self.cost.delta,
            unit=self.cost.unit,
            neighbours=self.cost.neighbours,
        )
        return noise.release(value, rng=rng)
