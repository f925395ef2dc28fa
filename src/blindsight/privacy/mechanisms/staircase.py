"""The staircase noise of Soria-Comas and Domingo-Ferrer (2013), "SCDF": the data-independent
optimum for a number.

For sensitivity D the density is flat, epsilon/(2D), on [-m, m] and falls by e^-epsilon at each step
of width D beyond, with m = D (1/epsilon - 1/(e^epsilon - 1)) so that it integrates to one. m is at
most D/2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.privacy.cost import Cost, Neighbours, Sampler, Unit
from blindsight.privacy.mechanisms.additive import keep_dtype
from blindsight.privacy.mechanisms.domain import Reals

__all__ = ["Staircase"]


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
        """In a few words."""
        return f"staircase noise on {self.dimensions} coordinates"

    @property
    def cost(self) -> Cost:
        """epsilon x dimensions."""
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

    def release(self, x: Any, *, rng: np.random.Generator) -> NDArray[Any]:
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

    def log_prob(self, released: Any, x: Any) -> NDArray[np.float64]:
        """Log-density of every coordinate."""
        distance = np.abs(np.asarray(released, np.float64) - np.asarray(x, np.float64))
        steps = np.maximum(0, np.ceil((distance - self.half_width) / self.sensitivity))
        return math.log(self.epsilon / (2 * self.sensitivity)) - self.epsilon * steps
