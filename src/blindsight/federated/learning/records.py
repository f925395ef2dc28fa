"""Linear classifiers with epsilon per record: records' gradients are clipped, summed and noised.

Each round every site sums its records' gradients, each clipped to a norm; the secure sum adds the
sites' sums and their shares of noise; everybody moves the model by the same step. Nothing depends
on a single record by more than its clip.

Reference: Abadi et al. (2016), Deep learning with differential privacy, Algorithm 1, without
sampling; the noise is that of `RecordShares`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.federated.learning import linear
from blindsight.federated.noise import clipped_sum
from blindsight.privacy.door import Outer

__all__ = ["RecordDescent"]

Vector = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RecordDescent:
    """Logistic regression (softmax) by full gradients, clipped record by record.

    Rows are scaled to unit length with their constant 1, which leaves the predicted class of a
    linear model as it is. A record contributes its clipped gradient and a count, so that the mean
    needs nobody's number of records.

    Parameters:
        clip: the largest norm of a record's gradient; of rows of unit length it is at most
            sqrt(2) without clipping.
        rate: the step, in mean gradients.
        count_weight: what a record adds to the count, in clips. The noise is larger by the factor
            sqrt(1 + count_weight^2).

    Examples:
        >>> descent = RecordDescent()
        >>> X, y = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]), np.array([0, 1, 2])
        >>> weights = np.zeros(9)
        >>> for _ in range(5):
        ...     weights = descent.advanced(weights, descent.contribution(weights, X, y, classes=3))
        >>> linear.predicted(linear.shaped(weights, 2), X).tolist()
        [0, 1, 2]
    """

    clip: float = 0.5
    rate: float = 20.0
    count_weight: float = 0.2

    def __post_init__(self) -> None:
        checks.positive("clip", self.clip)
        checks.positive("rate", self.rate)
        checks.positive("count_weight", self.count_weight)

    @property
    def record_norm(self) -> float:
        """The largest norm of what one record contributes: the clip of the noise."""
        return float(self.clip * np.hypot(1.0, self.count_weight))

    def contribution(
        self, weights: Vector, X: NDArray[Any], labels: NDArray[Any], *, classes: int
    ) -> Vector:
        """A site's sum: minus its records' clipped gradients, and the count.

        Parameters:
            weights: the shared model, flat.
            X: the site's rows; a row that is no number counts as zeros.
            labels: class numbers.
            classes: how many classes there are.

        Returns:
            A vector one longer than the model.
        """
        rows = _unit(np.asarray(X, np.float64))
        scores = rows @ linear.shaped(weights, rows.shape[1] - 1).T
        if classes <= 2:
            error = (1 + np.tanh(scores[:, 0] / 2)) / 2 - (np.asarray(labels) == 1)
            error = error[:, None]
        else:
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            error = scores / scores.sum(axis=1, keepdims=True)
            error[np.arange(len(rows)), labels] -= 1
        gradients = clipped_sum(Outer(-error, rows), self.clip)
        return np.append(gradients.ravel(), len(rows) * self.count_weight * self.clip)

    def advanced(self, weights: Vector, total: Vector) -> Vector:
        """The model that follows from the sum of all sites' contributions.

        A mean of clipped gradients is no longer than the clip: where noise makes it longer, it is
        scaled down.
        """
        count = max(float(total[-1]) / (self.count_weight * self.clip), 1.0)
        mean = np.asarray(total[:-1], np.float64) / count
        longest = max(float(np.linalg.norm(mean)), self.clip)
        return np.asarray(weights + self.rate * self.clip / longest * mean, np.float64)


def _unit(X: NDArray[np.float64]) -> NDArray[np.float64]:
    rows = np.column_stack([X, np.ones(len(X))])
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))
