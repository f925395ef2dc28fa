"""Laplace noise: fast in floating point for inside use, discrete and exact for what leaves.

A vector with l1 sensitivity D plus independent Laplace(scale) noise has epsilon = D / scale. The
discrete one first rounds to a grid; rounding may widen each of d coordinates' difference by one
step, so its sensitivity is counted in steps as D / grid + d.

`discrete_laplace` is the exact sampler of Canonne, Kamath and Steinke (2020), vectorised.
Parameters are fractions, and every decision is the comparison of a uniform integer with an integer:
the output has the stated distribution exactly, whatever the source of randomness, and its low bits
reveal nothing.

The staircase noise of Soria-Comas and Domingo-Ferrer (2013), "SCDF": the data-independent
optimum for a number.

For sensitivity D the density is flat, epsilon/(2D), on [-m, m] and falls by e^-epsilon at each step
of width D beyond, with m = D (1/epsilon - 1/(e^epsilon - 1)) so that it integrates to one. m is at
most D/2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter
from blindsight.privacy.cost import Cost, Neighbours, Sampler, Unit
from blindsight.privacy.entropy import Rng, words
from blindsight.privacy.mechanisms.base import Reals, check_grid, grid_units, keep_dtype

__all__ = ["DiscreteLaplace", "Laplace", "Staircase", "discrete_laplace", "fraction_above"]


@dataclass(frozen=True, kw_only=True)
class Staircase:
    """Add staircase noise to every coordinate, each of which may change by at most `sensitivity`.

    Guarantee: `epsilon` for each coordinate, so `dimensions` x epsilon for a vector all of whose
    coordinates may change. (Unlike Laplace noise it does not trade an l1 bound over coordinates:
    any change up to one step costs a full epsilon.) Floating point, for inside use.
    """

    epsilon: float
    sensitivity: float
    dimensions: int = 1
    unit: Unit
    neighbours: Neighbours = "replace one"
    sampler: ClassVar[Sampler] = "float"

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.positive("sensitivity", self.sensitivity)
        checks.whole("dimensions", self.dimensions)
        _ = self.cost

    @classmethod
    def calibrate(
        cls,
        epsilon: float,
        *,
        sensitivity: float,
        dimensions: int = 1,
        unit: Unit,
        neighbours: Neighbours = "replace one",
    ) -> Staircase:
        """For `epsilon` over all `dimensions` coordinates together."""
        each = checks.positive("epsilon", epsilon) / checks.whole("dimensions", dimensions)
        if each * dimensions > epsilon:
            each = math.nextafter(each, 0)
        return cls(
            epsilon=each,
            sensitivity=sensitivity,
            dimensions=dimensions,
            unit=unit,
            neighbours=neighbours,
        )

    @property
    def says(self) -> str:
        return f"staircase noise on {self.dimensions} coordinates"

    @property
    def cost(self) -> Cost:
        """The cost of a vector, which is epsilon times `dimensions`."""
        return Cost(
            epsilon=self.epsilon * self.dimensions, unit=self.unit, neighbours=self.neighbours
        )

    @property
    def half_width(self) -> float:
        """m, half the width of the central plateau."""
        return self.sensitivity * (1 / self.epsilon - 1 / math.expm1(min(self.epsilon, 700)))

    @property
    def domain(self) -> Reals:
        """Vectors of which each coordinate may change by `sensitivity` between neighbours."""
        return Reals(self.sensitivity, np.inf)

    def worst_pair(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Two neighbouring inputs that meet the stated epsilon."""
        return np.zeros(self.dimensions), np.full(self.dimensions, self.sensitivity)

    def release(self, x: ArrayLike, *, rng: np.random.Generator) -> NDArray[Any]:
        """The vector plus noise; same shape, same float type."""
        values = checks.finite_array("x", x)
        m, step = self.half_width, self.sensitivity
        centre = self.epsilon / step * m  # the plateau's probability
        # A geometric number of whole steps, then uniform within the step.
        steps = rng.geometric(-math.expm1(-self.epsilon), values.shape)
        outer = m + step * (steps - 1 + rng.random(values.shape))
        sign = np.where(rng.random(values.shape) < 0.5, -1.0, 1.0)
        inner = m * rng.random(values.shape)
        noise = sign * np.where(rng.random(values.shape) < centre, inner, outer)
        return keep_dtype(values + noise, x)

    def log_prob(self, released: ArrayLike, x: ArrayLike) -> NDArray[np.float64]:
        distance = np.abs(np.asarray(released, np.float64) - np.asarray(x, np.float64))
        steps = np.maximum(0, np.ceil((distance - self.half_width) / self.sensitivity))
        return math.log(self.epsilon / (2 * self.sensitivity)) - self.epsilon * steps


_BLOCK = 1 << 14


@dataclass(frozen=True, kw_only=True)
class Laplace:
    """Add Laplace noise of the given `scale` to a vector whose l1 sensitivity is `sensitivity`.

    Guarantee: epsilon = sensitivity / scale for the whole vector. The noise is floating point: keep
    it inside, or round what leaves; `DiscreteLaplace` is for outsiders.
    """

    scale: float
    sensitivity: float
    unit: Unit
    neighbours: Neighbours = "replace one"
    sampler: ClassVar[Sampler] = "float"

    def __post_init__(self) -> None:
        checks.positive("scale", self.scale)
        checks.positive("sensitivity", self.sensitivity)
        _ = self.cost

    @classmethod
    def calibrate(
        cls,
        epsilon: float,
        *,
        sensitivity: float,
        unit: Unit,
        neighbours: Neighbours = "replace one",
    ) -> Laplace:
        """The least scale that keeps `epsilon`, rounded toward privacy."""
        target = checks.positive("epsilon", epsilon)
        scale = checks.positive("sensitivity", sensitivity) / target
        while sensitivity / scale > target:
            scale = math.nextafter(scale, math.inf)
        return cls(scale=scale, sensitivity=sensitivity, unit=unit, neighbours=neighbours)

    @property
    def says(self) -> str:
        return f"Laplace noise of scale {self.scale:.4g}"

    @property
    def cost(self) -> Cost:
        return Cost(
            epsilon=self.sensitivity / self.scale, unit=self.unit, neighbours=self.neighbours
        )

    @property
    def domain(self) -> Reals:
        """Vectors; those of neighbours differ by at most `sensitivity` in l1."""
        return Reals(self.sensitivity, 1)

    def worst_pair(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Two neighbouring inputs that meet the stated epsilon."""
        return np.array([0.0]), np.array([self.sensitivity])

    def release(self, x: ArrayLike, *, rng: np.random.Generator) -> NDArray[Any]:
        """The vector plus noise; same shape, same float type."""
        values = checks.number_array("x", x)
        noisy = np.empty(values.shape)
        flat, out = values.ravel(), noisy.reshape(-1)
        # In blocks that stay in the cache: numpy's ziggurat draws the size, one random bit the
        # sign.
        for start in range(0, flat.size, _BLOCK):
            block, part = out[start : start + _BLOCK], flat[start : start + _BLOCK]
            checks.refuse_infinite("x", part)
            rng.standard_exponential(out=block)
            bits = np.unpackbits(words(rng, -(-block.size // 64)).view(np.uint8), count=block.size)
            block.view(np.uint64)[:] ^= bits.astype(np.uint64) << np.uint64(63)
            block *= self.scale
            block += part
        return keep_dtype(noisy, x)

    def log_prob(self, released: ArrayLike, x: ArrayLike) -> NDArray[np.float64]:
        distance = np.abs(np.asarray(released, np.float64) - np.asarray(x, np.float64))
        return -distance / self.scale - math.log(2 * self.scale)


@dataclass(frozen=True, kw_only=True)
class DiscreteLaplace:
    """Round to a grid and add exact discrete Laplace noise; `scale` and `sensitivity` are in grid
    steps.

    `dimensions` of the steps of `sensitivity` are for the rounding: values before it may be that
    much less apart.

    Guarantee: epsilon = sensitivity / scale for the whole vector, with no leak through floating
    point: output is a multiple of a power of two, sampled by integer comparisons only.
    """

    scale: Fraction
    sensitivity: int
    grid: float
    unit: Unit
    neighbours: Neighbours = "replace one"
    dimensions: int = 0
    sampler: ClassVar[Sampler] = "exact"

    def __post_init__(self) -> None:
        checks.positive("scale", self.scale)
        object.__setattr__(self, "scale", Fraction(self.scale))
        checks.whole(
            "sensitivity",
            self.sensitivity,
            least=checks.whole("dimensions", self.dimensions, least=0) + 1,
        )
        check_grid(self.grid)
        _ = self.cost

    @classmethod
    def calibrate(
        cls,
        epsilon: float,
        *,
        sensitivity: float,
        grid: float,
        dimensions: int,
        unit: Unit,
        neighbours: Neighbours = "replace one",
    ) -> DiscreteLaplace:
        """For a vector of `dimensions` coordinates with real l1 `sensitivity`, before rounding to
        the grid.

        Where values are whole multiples of the grid already (counts on grid 1), pass dimensions=0:
        rounding then widens nothing.
        """
        target = checks.positive("epsilon", epsilon)
        extra = checks.whole("dimensions", dimensions, least=0)
        steps = (
            math.ceil(
                Fraction(checks.positive("sensitivity", sensitivity)) / Fraction(check_grid(grid))
            )
            + extra
        )
        scale = fraction_above(steps / target)
        while float(Fraction(steps) / scale) > target:
            scale += Fraction(1, scale.denominator)
        return cls(
            scale=scale,
            sensitivity=steps,
            grid=grid,
            unit=unit,
            neighbours=neighbours,
            dimensions=extra,
        )

    @property
    def says(self) -> str:
        return f"discrete Laplace noise of scale {float(self.scale) * self.grid:.4g}"

    @property
    def cost(self) -> Cost:
        """sensitivity / scale, in grid steps."""
        return Cost(
            epsilon=float(self.sensitivity / self.scale), unit=self.unit, neighbours=self.neighbours
        )

    @property
    def domain(self) -> Reals:
        """Vectors; those of neighbours differ by so little in l1 that rounded they differ by at
        most `sensitivity`.
        """
        return Reals((self.sensitivity - self.dimensions) * self.grid, 1)

    def worst_pair(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Two neighbouring inputs that meet the stated epsilon."""
        return np.array([0.0]), np.array([self.sensitivity * self.grid])

    def release(self, x: ArrayLike, *, rng: Rng) -> NDArray[Any]:
        """The rounded vector plus noise, on the grid; same shape, same float type."""
        units = grid_units(x, self.grid)
        noise = discrete_laplace(self.scale, units.size, rng=rng).reshape(units.shape)
        return keep_dtype((units + noise) * self.grid, x)

    def log_prob(self, released: ArrayLike, x: ArrayLike) -> NDArray[np.float64]:
        """Log-probability of every coordinate's grid point."""
        steps = np.abs(grid_units(released, self.grid) - grid_units(x, self.grid))
        decay = 1 / float(self.scale)
        return np.asarray(-steps * decay + math.log(math.tanh(decay / 2)))


def fraction_above(value: float) -> Fraction:
    """The least fraction of at least `value` that the samplers can take (nine digits): rounds
    toward privacy.
    """
    if not 0 < value < 2**30:
        raise InvalidParameter(
            f"the exact samplers take a noise scale below 2^30 grid steps, got {value:.4g}; use a "
            "coarser grid."
        )
    shift = 30 - max(0, math.frexp(value)[1])
    return Fraction(math.ceil(Fraction(value) * (1 << shift)), 1 << shift)


def _below(bound: int, size: int, rng: Rng) -> NDArray[np.int64]:
    return np.asarray(rng.integers(0, bound, size=size, dtype=np.int64))


def _unit_exp(top: NDArray[np.int64], bottom: int, rng: Rng) -> NDArray[np.bool_]:
    """True with probability exp(-top/bottom), elementwise, for ratios in [0, 1].

    The first k at which Bernoulli(x/k) fails is odd with probability exp(-x).
    """
    odd = np.ones(top.shape, np.bool_)
    alive, k = np.arange(top.size), 1
    while alive.size:
        # Bernoulli(x/k) as Bernoulli(x) and Bernoulli(1/k) keeps the integers small.
        go_on = _below(bottom, alive.size, rng) < top[alive]
        if k > 1:
            go_on &= _below(k, alive.size, rng) == 0
        alive = alive[go_on]
        odd[alive] = ~odd[alive]
        k += 1
    return odd


def discrete_laplace(scale: Fraction, size: int, *, rng: Rng) -> NDArray[np.int64]:
    """Integers with Pr(z) proportional to exp(-|z| / scale)."""
    if scale <= 0:
        raise InvalidParameter(f"scale must be above 0, got {scale}.")
    top, bottom = scale.numerator, scale.denominator
    if max(top, bottom) > 2**31:
        raise InvalidParameter(
            f"scale must be a fraction of 31-bit integers, got {scale}; see fraction_above."
        )
    result = np.empty(size, np.int64)
    todo = np.arange(size)
    while todo.size:
        value, fine = _geometric(top, bottom, todo.size, rng)
        negative = _below(2, todo.size, rng) == 1
        # Zero would be counted twice (as +0 and as -0).
        fine &= ~(negative & (value == 0))
        result[todo[fine]] = np.where(negative, -value, value)[fine]
        todo = todo[~fine]
    return result


def _geometric(
    top: int, bottom: int, size: int, rng: Rng
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """A draw of Geometric(1 - exp(-bottom/top)) for each element, and which of them were
    accepted.
    """
    offset = _below(top, size, rng)
    accepted = _unit_exp(offset, top, rng)
    turns = np.zeros(size, np.int64)
    alive = np.flatnonzero(accepted)
    while alive.size:
        alive = alive[_unit_exp(np.full(alive.size, 1, np.int64), 1, rng)]
        turns[alive] += 1
    return (offset + top * turns) // bottom, accepted
