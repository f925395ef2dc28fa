"""Smoothing: a Gaussian filter whose width is chosen without the original, by Stein's unbiased
estimate of the risk.

For y = x + white noise of deviation s and a linear filter S, the mean of (y - Sy)^2 + 2 s^2 S_0 -
s^2 is, on average, the filter's squared error against x, where S_0 is the filter's weight on the
pixel itself. It needs no original, so an attacker tries all widths and keeps the best.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

__all__ = ["WIDTHS", "smooth", "stein_risk"]

WIDTHS = (
    0.0,
    0.4,
    0.5,
    0.6,
    0.8,
    1.0,
    1.3,
    1.6,
    2.0,
    2.5,
    3.0,
    4.0,
    5.0,
    7.0,
    10.0,
    14.0,
    math.inf,
)
TRUNCATE = 4.0


def _filtered(values: NDArray[np.float32], width: float) -> NDArray[np.float32]:
    if width == 0:
        return values
    if math.isinf(width):
        return np.broadcast_to(values.mean(axis=(1, 2), keepdims=True), values.shape)
    return np.asarray(gaussian_filter(values, (0, width, width), truncate=TRUNCATE))


def _own_weight(width: float, pixels: int) -> float:
    """The filter's weight on the pixel itself: its value at the centre."""
    if width == 0:
        return 1.0
    if math.isinf(width):
        return 1.0 / pixels
    reach = np.arange(-int(TRUNCATE * width + 0.5), int(TRUNCATE * width + 0.5) + 1)
    return float(1 / np.exp(-0.5 * (reach / width) ** 2).sum() ** 2)


def stein_risk(
    values: NDArray[np.float32], filtered: NDArray[np.float32], noise: float, own: float
) -> float:
    """Stein's estimate of the mean squared error of a linear filter's output against the unknown
    truth.
    """
    return float(np.mean((values - filtered) ** 2)) + noise**2 * (2 * own - 1)


def smooth(values: NDArray[np.float32], noise: float) -> tuple[NDArray[np.float32], float]:
    """Values (channels, h, w) with white noise, filtered at the width of least estimated risk; that
    width.
    """
    pixels = values.shape[1] * values.shape[2]
    best = noise**2, values, 0.0  # no filter at all
    for width in WIDTHS[1:]:
        if not math.isinf(width) and width > max(1.0, min(values.shape[1:]) / 4):
            continue
        filtered = _filtered(values, width)
        risk = stein_risk(values, filtered, noise, _own_weight(width, pixels))
        if risk < best[0]:
            best = risk, filtered, width
    return np.asarray(best[1], np.float32), best[2]
