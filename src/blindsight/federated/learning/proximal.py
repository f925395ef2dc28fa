"""FISTA (Beck and Teboulle 2009) for a smooth loss and the elastic net: exact zeros, a few passes
over the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.federated.learning.linear import LOSSES

__all__ = ["Proximal"]

Matrix = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Proximal:
    """Minimises mean loss + strength (l1_ratio |w|_1 + (1 - l1_ratio)/2 |w|²), the bias
    unpenalised.

    It starts at the shared weights and stops after `iterations` steps, so that what others learned
    is not forgotten: run to the end, a convex problem forgets where it started. This solver, unlike
    plain SGD, reproduces Table 2.
    """

    loss: str = "squared hinge"
    strength: float = 0.01
    l1_ratio: float = 0.5
    iterations: int = 20
    tolerance: float = 1e-5

    def __post_init__(self) -> None:
        checks.one_of("loss", self.loss, ("squared hinge", "logistic"))
        checks.non_negative("strength", self.strength)
        checks.probability("l1_ratio", self.l1_ratio)
        checks.whole("iterations", self.iterations)
        checks.non_negative("tolerance", self.tolerance)

    def fit(
        self,
        X: NDArray[Any],
        signs: Matrix,
        start: Matrix,
        *,
        free: NDArray[np.bool_] | None = None,
        rng: Any = None,
    ) -> Matrix:
        """Weights (rows, features + 1) for signs (n, rows) in {-1, 1}; where `free` is false they
        stay as they are.
        """
        loss = LOSSES[self.loss]
        data = np.column_stack([X, np.ones(len(X))])
        ridge, lasso = self.strength * (1 - self.l1_ratio), self.strength * self.l1_ratio
        step = 1 / (loss.curvature * _squared_norm(data) / len(data) + ridge)
        weights = np.array(start, dtype=np.float64)
        ahead, momentum = weights, 1.0
        for _ in range(self.iterations):
            gradient = (loss.slope(signs * (data @ ahead.T)) * signs).T @ data / len(data)
            gradient[:, :-1] += ridge * ahead[:, :-1]
            moved = ahead - step * gradient
            moved[:, :-1] = np.sign(moved[:, :-1]) * np.maximum(
                0, np.abs(moved[:, :-1]) - step * lasso
            )
            if free is not None:
                moved = np.where(free, moved, start)
            after = (1 + np.sqrt(1 + 4 * momentum * momentum)) / 2
            ahead = moved + (momentum - 1) / after * (moved - weights)
            change = float(np.abs(moved - weights).max())
            weights, momentum = moved, after
            if change <= self.tolerance * float(np.abs(weights).max()):
                break
        return weights


def _squared_norm(data: NDArray[np.float64]) -> float:
    """The largest squared singular value, a hair above it: power iteration from a fixed start, so
    always the same.
    """
    vector = np.ones(data.shape[1]) / np.sqrt(data.shape[1])
    for _ in range(30):
        image = data.T @ (data @ vector)
        norm = float(np.linalg.norm(image))
        if norm == 0:
            return 1.0
        vector = image / norm
    return 1.05 * norm
