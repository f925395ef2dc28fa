"""Training the linear head: full-batch gradient descent with momentum, from public scores on, noisy
or not.

The score of label c on an image is log-odds of its rate + α times its public score + w_c x; only w
is learned. A record's gradient is (residual) x', of norm |residual| |x|, so gradients are clipped
and summed without being laid out. Residuals are weighted by rate^-g: rare labels, which mean
average precision counts as much as frequent ones, get more of the clipping bound. The mean of the
second half's weights is kept; it is steadier than the last.

Guarantee: given a `total` that clips each record's gradient to `CLIP` and adds noise, everything
here is post-processing of what it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import InvalidData
from blindsight.evaluation.multilabel import mean_average_precision
from blindsight.tagging.inputs import private_rows
from blindsight.tagging.labels import label_rows

__all__ = ["CLIP", "Head", "Held", "descend", "log_odds", "sigmoid"]

Matrix = NDArray[np.float64]
CLIP = 0.7
_MOMENTUM = 0.9
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Head:
    """What the head is trained with: label rates, step size, how much rare labels count, and
    ridge.
    """

    rates: Matrix
    step: float
    power: float = 0.3
    ridge: float = 0.0

    @property
    def weights(self) -> Matrix:
        """rate^-g, scaled so that a record's residual at the rates has a length of about one."""
        raw = self.rates**-self.power
        return np.asarray(raw / np.sqrt((raw**2 * self.rates * (1 - self.rates)).sum()))


@dataclass(frozen=True)
class Held:
    """Images with labels that training does not look at: what is measured on them is their
    owner's.
    """

    rows: NDArray[np.float32]
    labels: NDArray[np.uint8]

    @classmethod
    def of(cls, validation: Any, n_features: int) -> Held | None:
        """Of a pair of features and labels, or of None."""
        if validation is None:
            return None
        rows, labels = (
            private_rows(validation[0], n_features=n_features)[0],
            label_rows(validation[1]),
        )
        if len(rows) != len(labels):
            raise InvalidData(
                f"validation must have as many labels as rows, got {len(labels)} and {len(rows)}."
            )
        return cls(rows, labels)

    def looking(self, x: Matrix, offset: Matrix, curve: list[float]) -> Callable[[Matrix], None]:
        """Notes the mean average precision of weights, for inputs `x` and scores `offset` to start
        from.
        """
        return lambda learned: curve.append(
            mean_average_precision(self.labels, offset + x @ learned.T)
        )


def sigmoid(x: Any) -> Matrix:
    """1 / (1 + e^-x), without overflow."""
    return 1.0 / (1.0 + np.exp(-np.clip(np.asarray(x, np.float64), -500, 500)))


def log_odds(rates: Any) -> Matrix:
    """ln(p / (1 - p)), off 0 and 1."""
    p = np.clip(np.asarray(rates, np.float64), 1e-6, 1 - 1e-6)
    return np.asarray(np.log(p) - np.log1p(-p))


def descend(
    head: Head,
    x: Matrix,
    labels: NDArray[Any],
    offset: Matrix,
    *,
    steps: int,
    total: Callable[[Matrix, Matrix], Matrix],
    look: Callable[[Matrix], None] | None = None,
    progress: Progress | None = None,
) -> Matrix:
    """The learned weights (C, width). `total(residuals, x)` sums the records' gradients, residual
    x'.

    `look` sees what would be kept if a step were the last.
    """
    n, labelled = len(x), np.asarray(labels, np.float64)
    learned = np.zeros((labelled.shape[1], x.shape[1]))
    speed, mean = np.zeros_like(learned), np.zeros_like(learned)
    half = steps // 2
    for number in range(steps):
        residuals = (sigmoid(offset + x @ learned.T) - labelled) * head.weights
        speed = _MOMENTUM * speed + total(residuals, x) / n + head.ridge * learned
        learned = learned - head.step * speed
        if number >= half:
            mean += learned / (steps - half)
        if look is not None:
            look(mean * ((steps - half) / (number + 1 - half)) if number >= half else learned)
        if progress is not None:
            progress(number + 1, steps)
    return mean
