"""Laplace noise, continuous and discrete, and staircase noise.

A vector with l1 sensitivity D plus independent Laplace(scale) noise has epsilon = D / scale.
`Laplace` is fast floating-point noise for values that stay with the owner. `DiscreteLaplace` is
exact, for values that are published: it first rounds to a grid, which may increase the difference
of each of d coordinates by one step, so its sensitivity in steps is D / grid + d.

`discrete_laplace` is the exact sampler of Canonne, Kamath and Steinke (2020), vectorised.
Parameters are fractions, and every decision compares a uniform integer with an integer, so the
output has exactly the stated distribution, and its low bits reveal nothing.

`Staircase` is the noise of Soria-Comas and Domingo-Ferrer (2013), "SCDF": the optimal noise for a
number that does not depend on the data. For sensitivity D the density is flat, epsilon/(2D),
on [-m, m] and falls by e^-epsilon at each step of width D beyond, with m = D (1/epsilon -
1/(e^epsilon - 1)) so that it integrates to one. m is at most D/2.
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

    Guarantee:
        Pure `epsilon` for each coordinate, so `dimensions` x epsilon for a vector all of whose
        coordinates may change. Unlike with Laplace noise, the cost does not follow from an l1
        bound: any change up to one step costs the full epsilon. The noise is floating point, for
        values that stay with the owner.
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
        """Return the noise for `epsilon` over all `dimensions` coordinates together."""
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
        """Two neighbouring inputs for which the privacy loss reaches the stated epsilon."""
        return np.zeros(self.dimensions), np.full(self.dimensions, self.sensitivity)

    def release(self, x: ArrayLike, *, rng: np.random.Generator) -> NDArray[Any]:
        """Return the vector plus noise, with the same shape and float type."""
        values = checks.finite_array("x", x)
        m, step = self.half_width, self.sensitivity
        centre = self.epsilon / step * m  # the plateau's probability
        # Draw a geometric number of whole steps, then a uniform position within the step.
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

    Guarantee:
        Pure epsilon = sensitivity / scale for the whole vector. The noise is floating point: use it
        for values that stay with the owner, and `DiscreteLaplace` for values that are published.
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
        """Return the noise with the smallest scale for `epsilon`, rounded toward privacy."""
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
        """Vectors; those of neighbours differ by at most `sensitivity` in l1 norm."""
        return Reals(self.sensitivity, 1)

    def worst_pair(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Two neighbouring inputs for which the privacy loss reaches the stated epsilon."""
        return np.array([0.0]), np.array([self.sensitivity])

    def release(self, x: ArrayLike, *, rng: np.random.Generator) -> NDArray[Any]:
        """Return the vector plus noise, with the same shape and float type."""
        values = checks.number_array("x", x)
        noisy = np.empty(values.shape)
        flat, out = values.ravel(), noisy.reshape(-1)
        # The noise is drawn in blocks that fit into the cache: numpy's ziggurat draws the absolute
        # value and one random bit the sign.
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
    """Round to a grid and add exact discrete Laplace noise, for values that are published.

    `scale` and `sensitivity` are in grid steps. `sensitivity` includes one step for the rounding of
    each of `dimensions` coordinates.

    Guarantee:
        Pure epsilon = sensitivity / scale for the whole vector. Floating point reveals nothing: the
        output is a multiple of a power of two and is sampled by integer comparisons only.
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
        """Return the noise for a vector with the l1 `sensitivity` before rounding to the grid.

        Pass dimensions=0 if the values already are multiples of the grid (counts on grid 1), so
        that rounding changes nothing.
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
        """The cost of one release, epsilon = sensitivity / scale."""
        return Cost(
            epsilon=float(self.sensitivity / self.scale), unit=self.unit, neighbours=self.neighbours
        )

    @property
    def domain(self) -> Reals:
        """Vectors; those of neighbours differ by at most `sensitivity` in l1 after rounding."""
        return Reals((self.sensitivity - self.dimensions) * self.grid, 1)

    def worst_pair(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Two neighbouring inputs for which the privacy loss reaches the stated epsilon."""
        return np.array([0.0]), np.array([self.sensitivity * self.grid])

    def release(self, x: ArrayLike, *, rng: Rng) -> NDArray[Any]:
        """Return the rounded vector plus noise, on the grid, with the same shape and float type."""
        units = grid_units(x, self.grid)
        noise = discrete_laplace(self.scale, units.size, rng=rng).reshape(units.shape)
        return keep_dtype((units + noise) * self.grid, x)

    def log_prob(self, released: ArrayLike, x: ArrayLike) -> NDArray[np.float64]:
        """Return the log-probability of the grid point of every coordinate."""
        steps = np.abs(grid_units(released, self.grid) - grid_units(x, self.grid))
        decay = 1 / float(self.scale)
        return np.asarray(-steps * decay + math.log(math.tanh(decay / 2)))


def fraction_above(value: float) -> Fraction:
    """The smallest fraction of at least `value` that the samplers accept (nine digits).

    Rounding up is rounding toward privacy.
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
    """Draw True with probability exp(-top/bottom), elementwise, for ratios in [0, 1].

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
    """Draw integers with Pr(z) proportional to exp(-|z| / scale)."""
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
    """Draw Geometric(1 - exp(-bottom/top)) for each element, and return which were accepted."""
    offset = _below(top, size, rng)
    accepted = _unit_exp(offset, top, rng)
    turns = np.zeros(size, np.int64)
    alive = np.flatnonzero(accepted)
    while alive.size:
        alive = alive[_unit_exp(np.full(alive.size, 1, np.int64), 1, rng)]
        turns[alive] += 1
    return (offset + top * turns) // bottom, accepted
