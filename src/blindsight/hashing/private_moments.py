"""Noisy sums over clipped rows: what PITQ and the codebook learn from when the images are private.

Neighbours replace one row. Rows have norm at most B, so that a replaced row moves
- the sum of rows by at most 2 B,
- the second moment, sum of y y', by at most sqrt(2) B^2 in Frobenius norm (|yy' - zz'|^2 <= 2 B^4),
- a cross moment U'V, sum of u v' with |u| <= A and |v| <= B, by at most 2 A B,
- cluster sums and counts (of unit-norm rows) by at most 2 B and sqrt(2).
All noise is Gaussian. Gaussian releases of noise multipliers z_i (noise over sensitivity) compose exactly to one of
multiplier z with 1/z^2 = sum of 1/z_i^2, which the analytic curve turns into (epsilon, delta): so a budget is
handed out in shares of 1/z^2.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import InvalidParameter
from blindsight.privacy import Cost
from blindsight.privacy.mechanisms import Gaussian

__all__ = ["Noise", "NoiseBudget", "noisy_clusters", "noisy_cross", "noisy_mean", "noisy_second"]

Array = NDArray[Any]


class Noise:
    """Gaussian noise of one multiplier; without a cost, none at all."""

    def __init__(self, multiplier: float, cost: Cost | None) -> None:
        self.multiplier = multiplier
        self.cost = cost

    def __call__(self, value: Array, sensitivity: float, rng: np.random.Generator) -> Array:
        """The value, plus noise of `multiplier` times its sensitivity."""
        if self.cost is None:
            return value
        sigma = self.multiplier * sensitivity
        noise = Gaussian(sigma=sigma, sensitivity=sensitivity, delta=self.cost.delta, unit=self.cost.unit)
        return noise.release(value, rng=rng)


class NoiseBudget:
    """An (epsilon, delta) handed out in shares; `NoiseBudget(None)` hands out no noise, for public rows."""

    def __init__(self, cost: Cost | None) -> None:
        self.cost = cost
        self.left = 1.0
        self.whole = 0.0
        if cost is not None:
            self.whole = Gaussian.calibrate(cost.epsilon, delta=cost.delta, sensitivity=1.0, unit=cost.unit).sigma

    def take(self, share: float) -> Noise:
        """Noise for one release that spends this share of the budget; more than what is left is refused."""
        if self.cost is not None:
            if not 0 < share <= self.left + 1e-12:
                raise InvalidParameter(f"a share of {share:.3g} was asked for, {self.left:.3g} of the budget is left.")
            self.left -= share
        return Noise(self.whole / math.sqrt(share), self.cost)


def noisy_mean(X: Array, bound: float, noise: Noise, *, rng: np.random.Generator) -> NDArray[np.float64]:
    """The mean of rows of norm at most `bound`; their number is public."""
    return noise(X.sum(axis=0, dtype=np.float64), 2 * bound, rng) / len(X)


def noisy_second(X: Array, bound: float, noise: Noise, *, rng: np.random.Generator) -> NDArray[np.float64]:
    """The sum of y y' over rows, symmetric: noise on the upper triangle, mirrored."""
    moment = (X.T @ X).astype(np.float64)
    upper = np.triu_indices(len(moment))
    noisy = np.zeros_like(moment)
    noisy[upper] = noise(moment[upper], math.sqrt(2) * bound**2, rng)
    return noisy + np.triu(noisy, 1).T


def noisy_cross(U: Array, V: Array, bound: float, noise: Noise, *, rng: np.random.Generator) -> NDArray[np.float64]:
    """U'V where the product of a row's two norms is at most `bound`."""
    return noise((U.T @ V).astype(np.float64), 2 * bound, rng)


def noisy_clusters(
    X: Array, centres: Array, steps: int, budget: NoiseBudget, share: float, *, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lloyd's algorithm on rows of norm at most 1, with noisy sums and counts: (centres, weights)."""
    centres = np.array(centres, dtype=np.float64)
    weights = np.full(len(centres), 1 / len(centres))
    for _ in range(steps):
        nearest = np.argmin(np.square(centres).sum(axis=1) - 2 * X @ centres.T, axis=1)
        member = np.zeros((len(X), len(centres)))
        member[np.arange(len(X)), nearest] = 1
        sums = budget.take(0.75 * share / steps)(member.T @ X, 2.0, rng)
        counts = budget.take(0.25 * share / steps)(member.sum(axis=0), math.sqrt(2), rng)
        # A cell that noise left (nearly) empty keeps its centre.
        full = counts > 1
        centres[full] = sums[full] / counts[full, None]
        # The true centre lies in the unit ball: what noise threw out of it comes back to its border.
        centres /= np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1)
        weights = np.maximum(counts, 1) / np.maximum(counts, 1).sum()
    return centres, weights
