"""How a model's answers are spread: their mean and main directions, released with noise, so that words can fit them.

A codebook should have its words where the model's answers lie. Each record gives one row: its logits less the log-odds
of the labels' (released) rates, in public directions, scaled into the unit ball. The second moments of the rows with a
constant beside them, Σ [a, 1][a, 1]', change by at most |[a, 1]|² ≤ 2 in l2 when a record is added or removed, and get
discrete Gaussian noise once. Directions whose variance the noise would drown are dropped, and answers are then
simulated as a Gaussian: all of that is post-processing.

Public directions: after DP-SGD the weights are released anyway, and their main left singular vectors cost nothing;
after ordinary training the labels themselves are the directions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.privacy.clipping import clip_norm
from blindsight.privacy.entropy import Rng
from blindsight.privacy.guarantee import Cost
from blindsight.privacy.mechanisms import DiscreteGaussian

__all__ = ["AnswerSpread", "SpreadRelease", "main_directions"]

Matrix = NDArray[np.float64]
# Logits this far (root mean square over labels) from their rates' log-odds reach the unit ball's edge.
_REACH = 1.5
_DIRECTIONS = 16


@dataclass(frozen=True)
class AnswerSpread:
    """A Gaussian picture of logits: `mean` (C,) and `factor` (r, C), so that factor' factor is their covariance."""

    mean: Matrix
    factor: Matrix

    def sample(self, n: int, *, rng: np.random.Generator) -> Matrix:
        """Logits that this model might give, one row an image."""
        return self.mean + rng.standard_normal((n, len(self.factor))) @ self.factor


def main_directions(weights: Any) -> Matrix:
    """The main directions (C, r) of logits W x for released weights; the last input is the constant."""
    return np.asarray(np.linalg.svd(np.asarray(weights, np.float64)[:, :-1], full_matrices=False)[0][:, :_DIRECTIONS])


@dataclass(frozen=True, kw_only=True)
class SpreadRelease:
    """Second moments of a model's logits over its training records, with noise; the number of records is public."""

    epsilon: float
    delta: float

    def noise(self, n_directions: int) -> DiscreteGaussian:
        """The exact sampler, for the distinct moments of rows with a constant."""
        return DiscreteGaussian.calibrate(
            self.epsilon,
            delta=self.delta,
            sensitivity=2.0,
            dimensions=(n_directions + 1) * (n_directions + 2) // 2,
            unit="record",
            neighbours="add or remove one",
        )

    @property
    def cost(self) -> Cost:
        """What it spends at most, per record, whatever the number of directions."""
        return Cost(epsilon=self.epsilon, delta=self.delta, unit="record", neighbours="add or remove one")

    def rows(self, logits: Any, rates: Any, directions: Any) -> Matrix:
        """Each record's row, within the unit ball, and the constant beside it."""
        away = (np.asarray(logits, np.float64) - _log_odds(rates)) @ directions
        inside = clip_norm(away / (_REACH * math.sqrt(len(directions))), 1.0)
        return np.hstack([inside, np.ones((len(inside), 1))])

    def release(self, logits: Any, rates: Any, directions: Any, *, rng: Rng) -> AnswerSpread:
        """The released spread. `rates` (C,) and `directions` (C, r) must be public."""
        directions = checks.finite_array("directions", directions, ndim=2)
        rows = self.rows(logits, rates, directions)
        n, q = len(rows), directions.shape[1]
        noise, upper = self.noise(q), np.triu_indices(q + 1)
        moments = np.zeros((q + 1, q + 1))
        moments[upper] = np.asarray(noise.release((rows.T @ rows)[upper], rng=rng), np.float64) / n
        moments += np.triu(moments, 1).T
        mean = moments[:q, q]
        variance, axes = np.linalg.eigh(moments[:q, :q] - np.outer(mean, mean))
        # The noise alone has eigenvalues up to 2 sigma sqrt(q) / n; half of it keeps a few doubtful directions.
        drowned = math.sqrt(q) * noise.sigma / n
        kept = (variance > drowned) | (np.arange(q) == q - 1)
        deviation = np.sqrt(np.clip(variance[kept], 1e-6, 1.0))
        reach = _REACH * math.sqrt(len(directions))
        return AnswerSpread(
            _log_odds(rates) + reach * directions @ np.clip(mean, -1, 1),
            reach * (axes[:, kept] * deviation).T @ directions.T,
        )


def _log_odds(rates: Any) -> Matrix:
    p = np.clip(np.asarray(rates, np.float64), 1e-6, 1 - 1e-6)
    return np.asarray(np.log(p / (1 - p)))
