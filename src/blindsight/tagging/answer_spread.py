"""How a model's answers are spread: their mean and main directions, released with noise, so that
words can fit them.

A codebook should have its words where the model's answers lie. Each record gives one row: its
logits less the log-odds of the labels' (released) rates, in public directions, scaled into the unit
ball, with a constant beside it. The sum of [a, 1][a, 1]' changes by at most |[a, 1]|² ≤
`SENSITIVITY` in l2 when a record is added or removed, and gets noise once. Directions whose
variance the noise would drown are dropped, and answers are then simulated as a Gaussian: all of
that is post-processing.

Where there are public images nothing need be released: the model's answers about them are public,
and fit better than a Gaussian (`PublicAnswers`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.privacy.clipping import clip_norm
from blindsight.tagging.descent import log_odds

__all__ = [
    "DIRECTIONS",
    "SENSITIVITY",
    "AnswerSpread",
    "PublicAnswers",
    "main_directions",
    "spread_rows",
]

Matrix = NDArray[np.float64]
# Logits this far (root mean square over labels) from their rates' log-odds reach the unit ball's
# edge.
_REACH = 1.5
DIRECTIONS = 16
SENSITIVITY = 2.0


def main_directions(maps: Any) -> Matrix:
    """The main left directions (C, r) of released or public maps (C, m) that logits are made by."""
    return np.asarray(
        np.linalg.svd(np.asarray(maps, np.float64), full_matrices=False)[0][:, :DIRECTIONS]
    )


def spread_rows(logits: Any, rates: Any, directions: Matrix) -> Matrix:
    """Each record's row, within the unit ball, and the constant beside it."""
    away = (np.asarray(logits, np.float64) - log_odds(rates)) @ directions
    inside = clip_norm(away / (_REACH * math.sqrt(len(directions))), 1.0)
    return np.hstack([inside, np.ones((len(inside), 1))])


@dataclass(frozen=True)
class PublicAnswers:
    """Logits (n, C) that a released model gives to public images."""

    logits: Matrix

    def sample(self, n: int, *, rng: np.random.Generator) -> Matrix:
        """Some of them, one row per image."""
        return self.logits[rng.integers(0, len(self.logits), n)]


@dataclass(frozen=True)
class AnswerSpread:
    """A Gaussian picture of logits: `mean` (C,) and `factor` (r, C), so that factor' factor is
    their covariance.
    """

    mean: Matrix
    factor: Matrix

    def sample(self, n: int, *, rng: np.random.Generator) -> Matrix:
        """Logits that this model might give, one row per image."""
        return self.mean + rng.standard_normal((n, len(self.factor))) @ self.factor

    @classmethod
    def from_moments(
        cls, moments: Any, directions: Any, rates: Any, *, n_records: int, sigma: float
    ) -> AnswerSpread:
        """The picture behind noisy sums (r + 1, r + 1) of `spread_rows`; `sigma` is the noise of
        one of them.
        """
        axes_of = np.asarray(directions, np.float64)
        noisy = np.asarray(moments, np.float64)
        # The noise of both halves is independent: their mean has less.
        second = (noisy + noisy.T) / (2 * n_records)
        q = axes_of.shape[1]
        mean = np.clip(second[:q, q], -1, 1)
        variance, axes = np.linalg.eigh(second[:q, :q] - np.outer(mean, mean))
        # The noise alone has eigenvalues up to sigma sqrt(2 q) / n; half of it keeps a few doubtful
        # directions.
        drowned = sigma * math.sqrt(q / 2) / n_records
        kept = (variance > drowned) | (np.arange(q) == q - 1)
        deviation = np.sqrt(np.clip(variance[kept], 1e-6, 1.0))
        reach = _REACH * math.sqrt(len(axes_of))
        return cls(
            log_odds(rates) + reach * axes_of @ mean,
            reach * (axes[:, kept] * deviation).T @ axes_of.T,
        )
