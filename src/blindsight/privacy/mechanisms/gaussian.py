"""Gaussian noise, calibrated by its exact privacy curve (Balle and Wang 2018), and the discrete Gaussian.

For l2 sensitivity D and noise sigma the smallest delta at epsilon is
    Phi(D/(2 sigma) - epsilon sigma/D) - e^epsilon Phi(-D/(2 sigma) - epsilon sigma/D).
The discrete Gaussian (Canonne, Kamath and Steinke 2020) is D^2/(2 sigma^2)-concentrated like the continuous one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_ndtr

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter
from blindsight.privacy.entropy import Rng
from blindsight.privacy.guarantee import Cost, Neighbours, Sampler, Unit
from blindsight.privacy.mechanisms.additive import check_grid, grid_units, keep_dtype
from blindsight.privacy.mechanisms.exact import discrete_gaussian, fraction_above

__all__ = ["DiscreteGaussian", "Gaussian"]


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """Add N(0, sigma^2) to a vector whose l2 sensitivity is `sensitivity`.

    Guarantee: (epsilon, delta) with the smallest epsilon at the stated `delta`, for the whole vector. Floating
    point: for inside use; `DiscreteGaussian` is for outsiders.
    """

    sigma: float
    sensitivity: float
    delta: float
    unit: Unit
    neighbours: Neighbours = "replace one"
    sampler: Sampler = "float"

    def __post_init__(self) -> None:
        checks.positive("sigma", self.sigma)
        checks.positive("sensitivity", self.sensitivity)
        _check_delta(self.delta)
        _ = Cost(epsilon=0, unit=self.unit, neighbours=self.neighbours)

    @classmethod
    def calibrate(
        cls,
        epsilon: float,
        *,
        delta: float,
        sensitivity: float,
        unit: Unit,
        neighbours: Neighbours = "replace one",
    ) -> Gaussian:
        """The least sigma that keeps (epsilon, delta), rounded toward privacy."""
        target, limit = checks.positive("epsilon", epsilon), _check_delta(delta)
        ratio = _least(lambda sigma: _delta(target, sigma) <= limit)
        sigma = ratio * checks.positive("sensitivity", sensitivity)
        found = cls(sigma=sigma, sensitivity=sensitivity, delta=delta, unit=unit, neighbours=neighbours)
        while found.cost.epsilon > target:
            sigma *= 1 + 1e-12
            found = cls(sigma=sigma, sensitivity=sensitivity, delta=delta, unit=unit, neighbours=neighbours)
        return found

    @property
    def cost(self) -> Cost:
        """The smallest epsilon at `delta`."""
        ratio = self.sigma / self.sensitivity
        epsilon = 0.0 if _delta(0.0, ratio) <= self.delta else _least(lambda e: _delta(e, ratio) <= self.delta)
        return Cost(epsilon=epsilon, delta=self.delta, unit=self.unit, neighbours=self.neighbours)

    def release(self, x: Any, *, rng: np.random.Generator) -> NDArray[Any]:
        """The vector plus noise; same shape, same float type."""
        values = checks.finite_array("x", x)
        noise = rng.standard_normal(values.shape)
        noise *= self.sigma
        noise += values
        return keep_dtype(noise, x)

    def log_prob(self, released: Any, x: Any) -> NDArray[np.float64]:
        """Log-density of every coordinate."""
        z = (np.asarray(released, np.float64) - np.asarray(x, np.float64)) / self.sigma
        return -0.5 * z * z - math.log(self.sigma) - 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True, kw_only=True)
class DiscreteGaussian:
    """Round to a grid and add exact discrete Gaussian noise; variance and sensitivity are counted in grid steps.

    Guarantee: rho = squared_sensitivity / (2 variance) concentrated, hence (epsilon, delta), for the whole vector.
    """

    variance: Fraction
    squared_sensitivity: Fraction
    grid: float
    delta: float
    unit: Unit
    neighbours: Neighbours = "replace one"
    sampler: Sampler = "exact"

    def __post_init__(self) -> None:
        for name in ("variance", "squared_sensitivity"):
            checks.positive(name, getattr(self, name))
            object.__setattr__(self, name, Fraction(getattr(self, name)))
        check_grid(self.grid)
        _check_delta(self.delta)
        _ = Cost(epsilon=0, unit=self.unit, neighbours=self.neighbours)

    @classmethod
    def calibrate(
        cls,
        epsilon: float,
        *,
        delta: float,
        sensitivity: float,
        grid: float,
        dimensions: int,
        unit: Unit,
        neighbours: Neighbours = "replace one",
    ) -> DiscreteGaussian:
        """For a vector of `dimensions` coordinates with real l2 `sensitivity`, before rounding to the grid.

        Rounding moves the difference by at most one step in each coordinate: its norm grows by at most
        sqrt(dimensions). Pass dimensions=0 where values lie on the grid already.
        """
        target, limit = checks.positive("epsilon", epsilon), _check_delta(delta)
        extra = math.sqrt(checks.whole("dimensions", dimensions, least=0))
        steps = math.nextafter(checks.positive("sensitivity", sensitivity) / check_grid(grid) + extra, math.inf)
        squared = Fraction(steps) ** 2
        rho = _most(lambda r: _epsilon_of_rho(r, limit) <= target)
        # 30 bits of the standard deviation are plenty; rounding up is toward privacy.
        variance = fraction_above(math.sqrt(float(squared) / (2 * rho))) ** 2
        found = cls(
            variance=variance,
            squared_sensitivity=squared,
            grid=grid,
            delta=delta,
            unit=unit,
            neighbours=neighbours,
        )
        assert found.cost.epsilon <= target, "calibration must not overspend"  # noqa: S101
        return found

    @property
    def rho(self) -> float:
        """The concentrated-privacy parameter of one release."""
        return float(self.squared_sensitivity / (2 * self.variance))

    @property
    def cost(self) -> Cost:
        """(epsilon, delta) from rho."""
        return Cost(
            epsilon=_epsilon_of_rho(self.rho, self.delta),
            delta=self.delta,
            unit=self.unit,
            neighbours=self.neighbours,
        )

    def release(self, x: Any, *, rng: Rng) -> NDArray[Any]:
        """The rounded vector plus noise, on the grid; same shape, same float type."""
        units = grid_units(x, self.grid)
        noise = discrete_gaussian(self.variance, units.size, rng=rng).reshape(units.shape)
        return keep_dtype((units + noise) * self.grid, x)

    def log_prob(self, released: Any, x: Any) -> NDArray[np.float64]:
        """Log-probability of every coordinate's grid point."""
        steps = (grid_units(released, self.grid) - grid_units(x, self.grid)).astype(np.float64)
        variance = float(self.variance)
        reach = np.arange(1, int(12 * math.sqrt(variance)) + 3, dtype=np.float64)
        total = 1 + 2 * np.exp(-0.5 * reach * reach / variance).sum()
        return -0.5 * steps * steps / variance - math.log(total)


def _check_delta(delta: float) -> float:
    value = checks.number("delta", delta)
    if not 0 < value < 1:
        raise InvalidParameter(f"delta must be above 0 and below 1 for Gaussian noise, got {delta!r}.")
    return value


def _delta(epsilon: float, ratio: float) -> float:
    """The exact privacy curve for sigma = ratio x sensitivity."""
    half, shift = 0.5 / ratio, epsilon * ratio
    # The second term in logarithms: e^epsilon alone overflows.
    return float(np.exp(log_ndtr(half - shift)) - np.exp(epsilon + log_ndtr(-half - shift)))


def _epsilon_of_rho(rho: float, delta: float) -> float:
    """The best (epsilon, delta) that rho-concentrated privacy gives, over the Renyi order (CKS 2020, Cor. 13)."""

    def at(log_order: float) -> float:
        order = 1 + math.exp(log_order)
        return rho * order + (-math.log(order * delta)) / (order - 1) + math.log1p(-1 / order)

    best = minimize_scalar(at, bounds=(-30, 30), method="bounded", options={"xatol": 1e-10})
    # Any order gives a valid bound, so a search that stops early only rounds toward privacy.
    return max(0.0, float(best.fun))


def _least(holds: Callable[[float], bool]) -> float:
    """The least positive number from which on `holds` is true, from above, to the last digits."""
    high = 1.0
    while not holds(high):
        high *= 2
    while high > 1e-300 and holds(high / 2):
        high /= 2
    low = high / 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _most(holds: Callable[[float], bool]) -> float:
    """The largest positive number up to which `holds` is true, from below."""
    low = 1.0
    while not holds(low):
        low /= 2
    while holds(2 * low):
        low *= 2
    high = 2 * low
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
