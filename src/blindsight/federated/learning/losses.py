"""Losses of a margin m = y f(x): value, slope, and the largest curvature where there is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["LOSSES", "Loss"]

Margins = NDArray[np.float64]


@dataclass(frozen=True)
class Loss:
    """One loss; `curvature` bounds its second derivative (infinite for the plain hinge)."""

    value: Callable[[Margins], Any]
    slope: Callable[[Margins], Any]
    curvature: float


LOSSES: dict[str, Loss] = {
    "hinge": Loss(lambda m: np.maximum(0, 1 - m), lambda m: np.where(m < 1, -1.0, 0.0), np.inf),
    "squared hinge": Loss(
        lambda m: np.maximum(0, 1 - m) ** 2, lambda m: -2 * np.maximum(0, 1 - m), 2.0
    ),
    "logistic": Loss(lambda m: np.logaddexp(0, -m), lambda m: (np.tanh(m / 2) - 1) / 2, 0.25),
}
