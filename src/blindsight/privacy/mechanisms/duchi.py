"""The multidimensional mechanism of Duchi, Jordan and Wainwright (2018), in the form that also
holds for even d.

A row t in [-1, 1]^d is first rounded at random to a corner v with E v = t. Then a corner s is
drawn: each s with s.v > 0 is e^epsilon times as likely as each other one, and B s is released, with
B such that E(B s) = t. (Counting the ties s.v = 0 of an even d as agreeing on both sides, as in the
first publication, would cost ln(1 + e^epsilon).)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy  # its parts are imported when they are used: they take half a second
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData
from blindsight.privacy.cost import Cost, Neighbours, Sampler, Unit
from blindsight.privacy.mechanisms.additive import keep_dtype
from blindsight.privacy.mechanisms.domain import Box

__all__ = ["Duchi"]


@dataclass(frozen=True, kw_only=True)
class Duchi:
    """Release rows of [-bound, bound]^dimensions as corners of a larger box, without bias.

    Guarantee: `epsilon` for a whole row. Local model. Output is one of 2^d corners; which one is
    chosen with floating-point uniforms.
    """

    epsilon: float
    dimensions: int
    bound: float = 1.0
    unit: Unit
    neighbours: Neighbours = "replace one"
    sampler: ClassVar[Sampler] = "float"

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.whole("dimensions", self.dimensions)
        checks.positive("bound", self.bound)
        _ = self.cost

    @property
    def says(self) -> str:
        """In a few words."""
        return f"Duchi's mechanism in {self.dimensions} dimensions"

    @property
    def cost(self) -> Cost:
        """epsilon, for the row."""
        return Cost(epsilon=self.epsilon, unit=self.unit, neighbours=self.neighbours)

    @property
    def magnitude(self) -> float:
        """B x bound, the size of every released coordinate."""
        d = self.dimensions
        # B = (2^d + N (e^eps - 1)) / (C(d-1, floor(d/2)) (e^eps - 1)), N = corners with s.v > 0;
        # all over 2^d.
        gain = math.expm1(min(self.epsilon, 700))
        return (
            self.bound
            * (1 + self._agreeing * gain)
            / (math.exp(_log_choose(d - 1, d // 2) - d * math.log(2)) * gain)
        )

    @property
    def _agreeing(self) -> float:
        """The share N / 2^d of corners that agree with a given one in more than half of the
        coordinates.
        """
        d = self.dimensions
        ties = math.exp(_log_choose(d, d // 2) - d * math.log(2)) if d % 2 == 0 else 0.0
        return (1 - ties) / 2

    @property
    def domain(self) -> Box:
        """Rows of the box."""
        return Box(self.dimensions, self.bound)

    def worst_pair(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Two neighbouring inputs that meet the stated epsilon."""
        return np.full(self.dimensions, self.bound), np.full(self.dimensions, -self.bound)

    def release(self, x: Any, *, rng: np.random.Generator) -> NDArray[Any]:
        """One corner for each row of (..., dimensions)."""
        rows = self._rows(x)
        v = np.where(rng.random(rows.shape) < (1 + rows) / 2, 1.0, -1.0)
        d = self.dimensions
        # How many coordinates agree with v: C(d, k), times e^eps where that is more than half.
        k = np.arange(d + 1)
        weight = _log_choose(d, k) + self.epsilon * (k > d / 2)
        share = np.cumsum(np.exp(weight - weight.max()))
        agree = np.searchsorted(share / share[-1], rng.random(len(rows)), side="right")
        # Which ones: the `agree` smallest of d random keys.
        rank = rng.random(rows.shape).argsort(axis=1).argsort(axis=1)
        corner = np.where(rank < agree[:, None], v, -v) * self.magnitude
        return keep_dtype(corner.reshape(np.shape(x)), x)

    def log_prob(self, released: Any, x: Any) -> NDArray[np.float64]:
        """ln Pr(released row | row): the probability that v agrees with it in more than half, by
        convolution.
        """
        rows = self._rows(x)
        sign = np.sign(np.asarray(released, np.float64)).reshape(rows.shape)
        match = (1 + sign * rows) / 2
        counts = np.zeros((len(rows), self.dimensions + 1))
        counts[:, 0] = 1
        for j in range(self.dimensions):
            p = match[:, j : j + 1]
            counts[:, 1:] = counts[:, 1:] * (1 - p) + counts[:, :-1] * p
            counts[:, 0] *= 1 - p[:, 0]
        agree = counts[:, self.dimensions // 2 + 1 :].sum(axis=1)
        gain = math.expm1(min(self.epsilon, 700))
        log_z = self.dimensions * math.log(2) + math.log1p(self._agreeing * gain)
        return np.asarray((np.log1p(gain * agree) - log_z).reshape(np.shape(x)[:-1]))

    def _rows(self, x: Any) -> NDArray[np.float64]:
        values = checks.finite_array("x", x)
        if values.ndim == 0 or values.shape[-1] != self.dimensions:
            raise InvalidData(
                f"x must have rows of {self.dimensions} numbers, got shape {values.shape}."
            )
        if np.abs(values).max(initial=0) > self.bound:
            raise InvalidData(
                f"x must lie in [-{self.bound:g}, {self.bound:g}]: clip it before the release."
            )
        return values.reshape(-1, self.dimensions) / self.bound


def _log_choose(n: int, k: Any) -> Any:
    return (
        scipy.special.gammaln(n + 1)
        - scipy.special.gammaln(np.asarray(k) + 1)
        - scipy.special.gammaln(n - np.asarray(k) + 1)
    )
