"""A linear SVM by stochastic gradient descent with the elastic net, as Section 3.1 of the paper has
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.federated.learning.linear import LOSSES

__all__ = ["SGD"]

Matrix = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Small batches in random order; the l1 part of each step is a soft threshold, so zeros are
    exact zeros.

    The step decays as 1 / (1 + strength t) from `step` over the mean squared norm of the rows,
    which keeps it in proportion to the features' scale.
    """

    loss: str = "hinge"
    strength: float = 1e-3
    l1_ratio: float = 0.5
    epochs: int = 5
    batch: int = 8
    step: float = 1.0

    def __post_init__(self) -> None:
        checks.one_of("loss", self.loss, tuple(LOSSES))
        checks.non_negative("strength", self.strength)
        checks.probability("l1_ratio", self.l1_ratio)
        checks.whole("epochs", self.epochs)
        checks.whole("batch", self.batch)
        checks.positive("step", self.step)

    def fit(
        self,
        X: NDArray[Any],
        signs: Matrix,
        start: Matrix,
        *,
        free: NDArray[np.bool_] | None = None,
        rng: np.random.Generator | None = None,
    ) -> Matrix:
        """Weights (rows, features + 1) for signs (n, rows) in {-1, 1}; `rng` orders the records."""
        order = np.random.default_rng() if rng is None else rng
        slope = LOSSES[self.loss].slope
        data = np.column_stack([X, np.ones(len(X))])
        first = self.step / float(np.mean(np.sum(data * data, axis=1)))
        ridge, lasso = self.strength * (1 - self.l1_ratio), self.strength * self.l1_ratio
        weights = np.array(start, dtype=np.float64)
        taken = 0
        for _ in range(self.epochs):
            for batch in np.array_split(order.permutation(len(data)), -(-len(data) // self.batch)):
                rate = first / (1 + self.strength * first * taken)
                taken += 1
                rows, own = data[batch], signs[batch]
                gradient = (slope(own * (rows @ weights.T)) * own).T @ rows / len(batch)
                gradient[:, :-1] += ridge * weights[:, :-1]
                moved = weights - rate * gradient
                moved[:, :-1] = np.sign(moved[:, :-1]) * np.maximum(
                    0, np.abs(moved[:, :-1]) - rate * lasso
                )
                weights = moved if free is None else np.where(free, moved, start)
        return weights
