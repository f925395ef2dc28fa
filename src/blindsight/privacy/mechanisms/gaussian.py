"""Gaussian noise, calibrated by its exact privacy curve, and discrete Gaussian noise.

For l2 sensitivity D and noise sigma the smallest delta at epsilon is (Balle and Wang 2018)

    Phi(D/(2 sigma) - epsilon sigma/D) - e^epsilon Phi(-D/(2 sigma) - epsilon sigma/D).

The cost of the discrete Gaussian is bounded by that of a slightly narrower continuous one
(`DiscreteGaussian`).

`convolved_gaussian` quickly draws discrete Gaussian noise of any width as a sum of narrow ones. A
discrete Gaussian of variance S0 = 41 is drawn from a table of cumulative probabilities of 256 bits.
The noise is z_0 + 3 z_1 + 9 z_2 + ... with J such values, and is nearly the discrete Gaussian of
variance S0 (9^J - 1)/8. The error is bounded by Poisson summation: for s >= 2 and any shift x

    sum over m in Z of exp(-(m - x)^2 / (2 s^2)) = s sqrt(2 pi) (1 + e),
    |e| <= 2.1 exp(-2 pi^2 s^2).

- *Convolution.* Given z = a + 3^j b with independent discrete Gaussians a (variance A = S0 (9^j -
  1)/8) and b (variance S0), the terms of Pr(z) are a Gaussian in b of variance 1/(1/S0 + 9^j/A) >=
  4.1, so Pr(z) is the discrete Gaussian's up to a factor within exp(+- 2^-114), and the levels
  after the first add less than a thousandth of that.
- *Table.* Values beyond +-160 (probability below 2^-440) are left out and each probability is
  rounded to 2^-256: the statistical distance of one value is below 2^-247.

A vector of 10^9 values is thus within a factor exp(+- 1e-25) of its stated distribution except for
events of probability 1e-64: the margin in `DiscreteGaussian.mu` is far larger.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter
from blindsight.privacy.cost import Cost, Neighbours, Sampler, Unit
from blindsight.privacy.entropy import Rng, words
from blindsight.privacy.mechanisms.base import Reals, grid_units, keep_dtype

__all__ = [
    "BASE_VARIANCE",
    "MOST_LEVELS",
    "DiscreteGaussian",
    "Gaussian",
    "convolved_gaussian",
    "gaussian_epsilon",
    "levels_for",
    "width",
]

BASE_VARIANCE = 41
MOST_LEVELS = 28  # 3^28 x 160 is below 2^52
_REACH = 160
_MORE = 192  # bits behind the first 64
_BLOCK = 1 << 18


def width(levels: int) -> float:
    """The standard deviation, in grid steps, of noise with this number of levels."""
    if not 1 <= levels <= MOST_LEVELS:
        raise InvalidParameter(f"levels must be 1 to {MOST_LEVELS}, got {levels}.")
    return math.sqrt(BASE_VARIANCE * (9**levels - 1) / 8)


def levels_for(steps: float) -> int:
    """The smallest number of levels whose noise has at least this standard deviation in steps."""
    for levels in range(1, MOST_LEVELS + 1):
        if width(levels) >= steps:
            return levels
    raise InvalidParameter(
        f"noise of {steps:.3g} steps is too wide for the sampler; use a coarser grid."
    )


def convolved_gaussian(levels: int, size: int, *, rng: Rng) -> NDArray[np.int64]:
    """Draw `size` integers of the discrete Gaussian with standard deviation `width(levels)`."""
    width(levels)
    result = np.empty(size, np.int64)
    powers = 3 ** np.arange(levels, dtype=np.int64)
    block = _BLOCK // levels
    for start in range(0, size, block):
        part = result[start : start + block]
        # All levels are drawn at once, so that a small vector needs one table lookup, not several.
        part[:] = powers @ _from_table(levels * part.size, rng).reshape(levels, -1)
    return result


def _from_table(size: int, rng: Rng) -> NDArray[np.int64]:
    """Draw the first value whose cumulative probability exceeds 256 random bits.

    The first 64 bits decide, except for ties.
    """
    first, cumulative = _table()
    drawn = words(rng, size)
    row = np.searchsorted(first, drawn, side="right")
    for tie in np.flatnonzero(np.searchsorted(first, drawn, side="left") != row):
        uniform = (int(drawn[tie]) << _MORE) | int.from_bytes(rng.bytes(_MORE // 8), "big")
        row[tie] = bisect.bisect_right(cumulative, uniform)
    return row.astype(np.int64) - _REACH


@lru_cache(maxsize=1)
def _table() -> tuple[NDArray[np.uint64], list[int]]:
    """Cumulative probabilities of -160 .. 159 in units of 2^-256.

    Returns:
        Their first 64 bits, and all 256 bits.
    """
    with localcontext() as context:
        context.prec = 160
        mass = [(Decimal(-k * k) / (2 * BASE_VARIANCE)).exp() for k in range(-_REACH, _REACH + 1)]
        total, running, rows = sum(mass, Decimal(0)), Decimal(0), []
        for value in mass[:-1]:
            running += value
            rows.append(int(running / total * (1 << (64 + _MORE))))
    return np.array([row >> _MORE for row in rows], np.uint64), rows


# h^2, the variance of the rounding that turns a continuous Gaussian into the discrete one.
_ROUNDING_VARIANCE = 9
# Below this, erfc approaches the smallest positive float.
_ERFC_UNDERFLOWS = -35.0


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """Add N(0, sigma^2) to a vector whose l2 sensitivity is `sensitivity`.

    Guarantee:
        (epsilon, delta) for the whole vector, with the smallest epsilon at the stated `delta`. The
        noise is floating point: use it for values that stay with the owner, and `DiscreteGaussian`
        for values that are published.
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
        """Return the noise with the smallest sigma for (epsilon, delta), rounded toward privacy."""
        target, limit = checks.positive("epsilon", epsilon), _check_delta(delta)
        ratio = _least(lambda sigma: _delta(target, sigma) <= limit)
        sigma = ratio * checks.positive("sensitivity", sensitivity)
        mechanism = cls(
            sigma=sigma, sensitivity=sensitivity, delta=delta, unit=unit, neighbours=neighbours
        )
        while mechanism.cost.epsilon > target:
            sigma *= 1 + 1e-12
            mechanism = cls(
                sigma=sigma, sensitivity=sensitivity, delta=delta, unit=unit, neighbours=neighbours
            )
        return mechanism

    @property
    def says(self) -> str:
        return f"Gaussian noise, sigma = {self.sigma:.4g} for sensitivity {self.sensitivity:.4g}"

    @property
    def cost(self) -> Cost:
        """The smallest epsilon at `delta`."""
        return _gaussian_cost(self.mu, self.delta, self.unit, self.neighbours)

    @property
    def mu(self) -> float:
        """The ratio of the sensitivity to sigma, by which releases are composed."""
        return self.sensitivity / self.sigma

    @property
    def domain(self) -> Reals:
        """Vectors; those of neighbours differ by at most `sensitivity` in l2 norm."""
        return Reals(self.sensitivity, 2)

    def worst_pair(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Two neighbouring inputs for which the privacy loss reaches the stated epsilon."""
        return np.array([0.0]), np.array([self.sensitivity])

    def release(self, x: ArrayLike, *, rng: np.random.Generator) -> NDArray[Any]:
        """Return the vector plus noise, with the same shape and float type."""
        values = checks.finite_array("x", x)
        noise = rng.standard_normal(values.shape)
        noise *= self.sigma
        noise += values
        return keep_dtype(noise, x)

    def log_prob(self, released: ArrayLike, x: ArrayLike) -> NDArray[np.float64]:
        z = (np.asarray(released, np.float64) - np.asarray(x, np.float64)) / self.sigma
        return -0.5 * z * z - math.log(self.sigma) - 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True, kw_only=True)
class DiscreteGaussian:
    """Round to a grid and add discrete Gaussian noise, for values that are published.

    Parameters:
        sigma: standard deviation of the noise, in the units of the vector.
        sensitivity: l2 sensitivity of the vector before it is rounded.
        dimensions: number of coordinates that may change together. Rounding changes the difference
            of two neighbours by at most one step in each of them, so by sqrt(dimensions) steps in
            l2 norm. It is 0 if the values already lie on the grid.
        levels: number of levels of the sampler (`convolved_gaussian`); the standard deviation is
            `width(levels)` grid steps.

    Guarantee:
        (epsilon, delta) for the whole vector: that of continuous Gaussian noise with `mu`. Up to a
        factor within exp(+- 4 exp(-2 pi^2 h^2)), the discrete Gaussian of variance s^2 on the
        integers is the result of adding N(0, s^2 - h^2) and rounding at random to an integer by a
        discrete Gaussian of variance h^2 around it: the integral of the product of both densities
        over the real line is the density of variance s^2, and the normalisation of the rounding is
        constant up to that factor by Poisson summation. Rounding does not depend on the data, so
        the continuous mechanism with variance s^2 - h^2 bounds the discrete one. With h = 3 the
        factor is exp(+- 2^-253).
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
        """Return noise of this sigma on a grid so fine that rounding costs less than 0.1%."""
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
        """Return the noise with the smallest sigma for (epsilon, delta), to 0.1%.

        It is rounded toward privacy.
        """
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

        mechanism = make(plain.sigma)
        while mechanism.mu > plain.mu:
            mechanism = make(mechanism.sigma * max(mechanism.mu / plain.mu, 1 + 1e-12))
        return mechanism

    @property
    def grid(self) -> float:
        """The grid step to which values are rounded."""
        return self.sigma / width(self.levels)

    @property
    def mu(self) -> float:
        """Sensitivity over sigma of the continuous Gaussian that bounds this one.

        The change by rounding is included.
        """
        steps = width(self.levels)
        reach = self.sensitivity / self.grid + math.sqrt(self.dimensions)
        # The margin of 1e-9 is far larger than the cost of the sampler's deviation from its
        # distribution.
        return (1 + 1e-9) * reach / math.sqrt(steps * steps - _ROUNDING_VARIANCE)

    @property
    def says(self) -> str:
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
        """Vectors; those of neighbours differ by at most `sensitivity` in l2 norm."""
        return Reals(self.sensitivity, 2)

    def worst_pair(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Two neighbouring inputs for which the privacy loss reaches the stated epsilon."""
        return np.array([0.0]), np.array([self.sensitivity])

    def release(self, x: ArrayLike, *, rng: Rng) -> NDArray[Any]:
        """Return the rounded vector plus noise, on the grid, with the same shape and float type."""
        units = grid_units(x, self.grid)
        noise = convolved_gaussian(self.levels, units.size, rng=rng).reshape(units.shape)
        return keep_dtype((units + noise) * self.grid, x)

    def log_prob(self, released: ArrayLike, x: ArrayLike) -> NDArray[np.float64]:
        """Return the log-probability of the grid point of every coordinate."""
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
    # The second term is computed in logarithms, because e^epsilon may overflow.
    return math.exp(_log_cdf(half - shift)) - math.exp(epsilon + _log_cdf(-half - shift))


def _log_cdf(x: float) -> float:
    """The logarithm of the standard normal distribution function.

    It is plain Python, so that reading a guarantee needs no scientific library.
    """
    if x > 0:
        return math.log1p(-0.5 * math.erfc(x / math.sqrt(2)))
    if x > _ERFC_UNDERFLOWS:
        return math.log(0.5 * math.erfc(-x / math.sqrt(2)))
    # Abramowitz and Stegun 26.2.12; below this bound six terms are exact to the last digit.
    series, term = 1.0, 1.0
    for odd in range(1, 12, 2):
        term *= -odd / (x * x)
        series += term
    return -0.5 * x * x - math.log(-x * math.sqrt(2 * math.pi)) + math.log(series)


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
    """The smallest positive number from which `holds` is true, approximated from above."""
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
