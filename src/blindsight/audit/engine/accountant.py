"""A second opinion on what a plan costs: our own privacy-loss distributions by FFT, sharing no code
with `privacy`.

The loss L = ln p(o)/q(o) of one release is laid on a grid (rounded to the nearest point: no bias
either way, where accountants for promises round up), composed by powers of its Fourier transform,
and delta(epsilon) = E max(0, 1 - exp(epsilon - L)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr

from blindsight.core.arrays import Array
from blindsight.core.errors import InvalidParameter

__all__ = ["Gauss", "Pure", "epsilon_of", "gaussian_delta"]

_STEP = 2.0**-11
_REACH = 9.0  # standard deviations on either side: what lies beyond weighs less than 1e-18


@dataclass(frozen=True)
class Gauss:
    """`count` Gaussian releases with sensitivity over sigma `mu`."""

    mu: float
    count: int = 1


@dataclass(frozen=True)
class Pure:
    """`count` releases of pure epsilon: bounded by randomised response (Kairouz, Oh and Viswanath
    2015).
    """

    epsilon: float
    count: int = 1


def epsilon_of(parts: Sequence[Gauss | Pure], delta: float) -> float:
    """The least epsilon at `delta` of all parts together, the worse of both directions; to about a
    hundredth.
    """
    if not parts:
        return 0.0
    pure = math.fsum(part.count * part.epsilon for part in parts if isinstance(part, Pure))
    gauss = [part for part in parts if isinstance(part, Gauss)]
    if delta == 0:
        return math.inf if gauss else pure
    if not pure:
        return _least(
            lambda e: gaussian_delta(e, math.sqrt(sum(p.count * p.mu**2 for p in gauss))), delta
        )
    return max(_composed(parts, delta, swapped) for swapped in (False, True))


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu), by quadrature-free error
    functions.
    """
    if mu == 0:
        return 0.0
    tail = float(ndtr(-mu / 2 - epsilon / mu))
    return float(ndtr(mu / 2 - epsilon / mu)) - (
        math.exp(epsilon + math.log(tail)) if tail > 0 else 0.0
    )


def _least(curve: Any, delta: float) -> float:
    high = 1.0
    while curve(high) > delta:
        high *= 2
        if high > 1e6:
            return math.inf
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if curve(middle) <= delta else (middle, high)
    return high


def _composed(parts: Sequence[Gauss | Pure], delta: float, swapped: bool) -> float:
    singles = [(*_losses(part, swapped), part.count) for part in parts]
    mean = sum(count * float(losses @ mass) for losses, mass, count in singles)
    variance = sum(
        count * float((losses**2) @ mass - (losses @ mass) ** 2) for losses, mass, count in singles
    )
    top = max(float(np.abs(losses).max()) for losses, _, _ in singles)
    width = abs(mean) + 12 * math.sqrt(max(variance, 0.0)) + top + 2
    step = max(_STEP if max(p.count for p in parts) == 1 else _STEP / 8, width * 2.0**-20)
    size = 2 ** math.ceil(math.log2(2 * width / step))
    spectrum: Any = np.ones(size // 2 + 1, np.complex128)
    for losses, mass, count in singles:
        spectrum = spectrum * np.fft.rfft(_on_grid(losses, mass, step, size)) ** count
    total = np.fft.irfft(spectrum, size)[
        : size // 2
    ]  # losses 0, step, 2 step, ...: epsilon is not below 0
    above = np.append(np.cumsum(total[::-1])[::-1], 0.0)
    weighed = np.append(np.cumsum((total * np.exp(-step * np.arange(len(total))))[::-1])[::-1], 0.0)

    def curve(epsilon: float) -> float:
        first = min(int(epsilon / step) + 1, len(total))
        return float(above[first] - math.exp(min(epsilon, 700)) * weighed[first])

    return _least(curve, delta)


def _on_grid(losses: Array, mass: Array, step: float, size: int) -> Array:
    """Each loss shared between its two neighbours on the grid, so that the mean is kept exactly."""
    place = losses / step
    low = np.floor(place).astype(np.int64)
    part = place - low
    laid = np.zeros(size)
    np.add.at(laid, low % size, mass * (1 - part))
    np.add.at(laid, (low + 1) % size, mass * part)
    return laid


def _losses(part: Gauss | Pure, swapped: bool) -> tuple[Array, Array]:
    """Values of ln p/q and their probabilities under p, of one release."""
    if isinstance(part, Pure):
        chance = 1 / (1 + math.exp(-part.epsilon))
        return np.array([part.epsilon, -part.epsilon]), np.array([chance, 1 - chance])
    if part.mu <= 0 or part.count < 1:
        raise InvalidParameter("a Gaussian part must have mu above 0 and happen at least once.")
    x = np.linspace(-_REACH, part.mu + _REACH, 60_001)
    plain, moved = -0.5 * x * x, -0.5 * (x - part.mu) ** 2
    p, q = (plain, moved) if swapped else (moved, plain)
    mass = np.exp(p)
    return p - q, mass / mass.sum()
