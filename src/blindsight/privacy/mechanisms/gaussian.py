"""Gaussian noise, calibrated by its exact privacy curve (Balle and Wang 2018), and the discrete
Gaussian.

For l2 sensitivity D and noise sigma the smallest delta at epsilon is
    Phi(D/(2 sigma) - epsilon sigma/D) - e^epsilon Phi(-D/(2 sigma) - epsilon sigma/D).
The discrete Gaussian is bounded by a continuous one that is narrower by a hair
(`DiscreteGaussian`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import scipy  # its parts are imported when they are used: they take half a second
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter
from blindsight.privacy.cost import Cost, Neighbours, Sampler, Unit
from blindsight.privacy.entropy import Rng
from blindsight.privacy.mechanisms.additive import grid_units, keep_dtype
from blindsight.privacy.mechanisms.convolved import convolved_gaussian, levels_for, width
from blindsight.privacy.mechanisms.domain import Reals

__all__ = ["DiscreteGaussian", "Gaussian", "gaussian_epsilon"]

# h^2: the variance given to the rounding that turns a continuous Gaussian into the discrete one.
_ROUNDING_VARIANCE = 9


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """Add N(0, sigma^2) to a vector whose l2 sensitivity is `sensitivity`.

    Guarantee: (epsilon, delta) with the smallest epsilon at the stated `delta`, for the whole
    vector. Floating point: for inside use; `DiscreteGaussian` is for outsiders.
    """

    sigma: float
    sensitivity: float
    delta: float
    unit: Unit
    neighbours: Neighbours = "replace one"
    sampler: ClassVar[Sampler] = "float"

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
        found = cls(
            sigma=sigma, sensitivity=sensitivity, delta=delta, unit=unit, neighbours=neighbours
        )
        while found.cost.epsilon > target:
            sigma *= 1 + 1e-12
            found = cls(
                sigma=sigma, sensitivity=sensitivity, delta=delta, unit=unit, neighbours=neighbours
            )
        return found

    @property
    def says(self) -> str:
        """In a few words."""
        return f"Gaussian noise, sigma = {self.sigma:.4g} for sensitivity {self.sensitivity:.4g}"

    @property
    def cost(self) -> Cost:
        """The smallest epsilon at `delta`."""
        return _gaussian_cost(self.mu, self.delta, self.unit, self.neighbours)

    @property
    def mu(self) -> float:
        """Sensitivity over sigma."""
        return self.sensitivity / self.sigma

    @property
    def domain(self) -> Reals:
        """Vectors; those of neighbours differ by at most `sensitivity` in l2."""
        return Reals(self.sensitivity, 2)

    def worst_pair(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Two neighbouring inputs that meet the stated epsilon."""
        return np.array([0.0]), np.array([self.sensitivity])

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
    """Round to a grid and add discrete Gaussian noise of standard deviation `sigma`: for what
    leaves.

    Parameters:
        sigma: of the noise, in the units of the vector.
        sensitivity: l2, of the vector before it is rounded.
        dimensions: coordinates that may change together. Rounding moves the difference of two
            neighbours by at most one step in each of them, so by sqrt(dimensions) steps in all; 0
            where values lie on the grid already.
        levels: of the sampler (`convolved`): the noise is `width(levels)` steps of the grid wide.

    Guarantee: (epsilon, delta) for the whole vector, that of continuous Gaussian noise with `mu`.
    The discrete Gaussian of variance s^2 on the integers is, up to a factor within exp(+- 4 exp(-2
    pi^2 h^2)), what comes out when N(0, s^2 - h^2) is added and the result is rounded at random to
    an integer by a discrete Gaussian of variance h^2 around it: summing the product of both
    densities over the real line gives the density of variance s^2, and the rounding's normalisation
    is constant up to that factor by Poisson's summation. Rounding does not depend on the data, so
    the continuous mechanism with variance s^2 - h^2 bounds the discrete one; with h = 3 the factor
    is exp(+- 2^-253).
    """

    sigma: float
    sensitivity: float
    dimensions: int
    delta: float
    unit: Unit
    neighbours: Neighbours = "replace one"
    levels: int = 8
    sampler: ClassVar[Sampler] = "exact"

    def __post_init__(self) -> None:
        checks.positive("sigma", self.sigma)
        checks.positive("sensitivity", self.sensitivity)
        checks.whole("dimensions", self.dimensions, least=0)
        checks.whole("levels", self.levels)
        _check_delta(self.delta)
        width(self.levels)
        _ = Cost(epsilon=0, unit=self.unit, neighbours=self.neighbours)

    @classmethod
    def fine(
        cls,
        *,
        sigma: float,
        sensitivity: float,
        dimensions: int,
        delta: float,
        unit: Unit,
        neighbours: Neighbours = "replace one",
    ) -> DiscreteGaussian:
        """Noise of this sigma on a grid so fine that rounding costs less than a thousandth."""
        ratio = checks.positive("sigma", sigma) / checks.positive("sensitivity", sensitivity)
        steps = 1000 * ratio * math.sqrt(max(1, checks.whole("dimensions", dimensions, least=0)))
        return cls(
            sigma=sigma,
            sensitivity=sensitivity,
            dimensions=dimensions,
            delta=delta,
            unit=unit,
            neighbours=neighbours,
            levels=levels_for(max(steps, 1000.0)),
        )

    @classmethod
    def calibrate(
        cls,
        epsilon: float,
        *,
        delta: float,
        sensitivity: float,
        dimensions: int,
        unit: Unit,
        neighbours: Neighbours = "replace one",
    ) -> DiscreteGaussian:
        """The least sigma (to a thousandth) that keeps (epsilon, delta), rounded toward privacy."""
        plain = Gaussian.calibrate(
            epsilon, delta=delta, sensitivity=sensitivity, unit=unit, neighbours=neighbours
        )

        def make(sigma: float) -> DiscreteGaussian:
            return cls.fine(
                sigma=sigma,
                sensitivity=sensitivity,
                dimensions=dimensions,
                delta=delta,
                unit=unit,
                neighbours=neighbours,
            )

        found = make(plain.sigma)
        while found.mu > plain.mu:
            found = make(found.sigma * max(found.mu / plain.mu, 1 + 1e-12))
        return found

    @property
    def grid(self) -> float:
        """The step that values are rounded to."""
        return self.sigma / width(self.levels)

    @property
    def mu(self) -> float:
        """Sensitivity over sigma of the continuous Gaussian that bounds this one, rounding
        counted.
        """
        steps = width(self.levels)
        reach = self.sensitivity / self.grid + math.sqrt(self.dimensions)
        # A thousand-millionth more than needed: far more than the sampler's distance from its law
        # can cost.
        return (1 + 1e-9) * reach / math.sqrt(steps * steps - _ROUNDING_VARIANCE)

    @property
    def says(self) -> str:
        """In a few words."""
        return (
            f"discrete Gaussian noise, sigma = {self.sigma:.4g} for sensitivity "
            f"{self.sensitivity:.4g}"
        )

    @property
    def cost(self) -> Cost:
        """The smallest epsilon at `delta`."""
        return _gaussian_cost(self.mu, self.delta, self.unit, self.neighbours)

    @property
    def domain(self) -> Reals:
        """Vectors; those of neighbours differ by at most `sensitivity` in l2."""
        return Reals(self.sensitivity, 2)

    def worst_pair(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Two neighbouring inputs that meet the stated epsilon."""
        return np.array([0.0]), np.array([self.sensitivity])

    def release(self, x: Any, *, rng: Rng) -> NDArray[Any]:
        """The rounded vector plus noise, on the grid; same shape, same float type."""
        units = grid_units(x, self.grid)
        noise = convolved_gaussian(self.levels, units.size, rng=rng).reshape(units.shape)
        return keep_dtype((units + noise) * self.grid, x)

    def log_prob(self, released: Any, x: Any) -> NDArray[np.float64]:
        """Log-probability of every coordinate's grid point."""
        steps = (grid_units(released, self.grid) - grid_units(x, self.grid)).astype(np.float64)
        deviation = width(self.levels)
        return -0.5 * (steps / deviation) ** 2 - math.log(deviation * math.sqrt(2 * math.pi))


def _check_delta(delta: float) -> float:
    value = checks.number("delta", delta)
    if not 0 < value < 1:
        raise InvalidParameter(
            f"delta must be above 0 and below 1 for Gaussian noise, got {delta!r}."
        )
    return value


def _delta(epsilon: float, ratio: float) -> float:
    """The exact privacy curve for sigma = ratio x sensitivity."""
    half, shift = 0.5 / ratio, epsilon * ratio
    # The second term in logarithms: e^epsilon alone overflows.
    return float(
        np.exp(scipy.special.log_ndtr(half - shift))
        - np.exp(epsilon + scipy.special.log_ndtr(-half - shift))
    )


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon at `delta` of Gaussian noise whose sensitivity over sigma is `mu`."""
    return _cached_epsilon(1 / mu, delta)


@lru_cache(maxsize=4096)
def _cached_epsilon(ratio: float, delta: float) -> float:
    return 0.0 if _delta(0.0, ratio) <= delta else _least(lambda e: _delta(e, ratio) <= delta)


def _gaussian_cost(mu: float, delta: float, unit: Unit, neighbours: Neighbours) -> Cost:
    epsilon = gaussian_epsilon(mu, delta)
    return Cost(epsilon=epsilon, delta=delta, unit=unit, neighbours=neighbours, rho=mu * mu / 2)


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
