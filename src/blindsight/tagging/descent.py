"""Training the linear head: full-batch gradient descent with momentum, from public scores on, noisy or not.

The score of label c on an image is log-odds of its rate + α times its public score + w_c x; only w is learned. A
record's gradient is (residual) x', of norm |residual| |x|, so gradients are clipped and summed without being laid out.
Residuals are weighted by rate^-g: rare labels, which mean average precision counts as much as frequent ones, get more
of the clipping bound. The mean of the second half's weights is kept; it is steadier than the last.

Guarantee: given a `total` that clips each record's gradient to `CLIP` and adds noise, everything here is
post-processing of what it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["CLIP", "Head", "descend", "log_odds", "sigmoid"]

Matrix = NDArray[np.float64]
CLIP = 0.7
_MOMENTUM = 0.9
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Head:
    """What the head is trained with: label rates, step size, how much rare labels count, and ridge."""

    rates: Matrix
    step: float
    power: float = 0.3
    ridge: float = 0.0

    @property
    def weights(self) -> Matrix:
        """rate^-g, scaled so that a record's residual at the rates has a length of about one."""
        raw = self.rates**-self.power
        return np.asarray(raw / np.sqrt((raw**2 * self.rates * (1 - self.rates)).sum()))


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
    progress: Progress | None = None,
) -> Matrix:
    """The learned weights (C, width). `total(residuals, x)` sums the records' gradients, residual x'."""
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
        if progress is not None:
            progress(number + 1, steps)
    return mean
