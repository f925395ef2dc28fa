"""Two mechanisms for vectors in the local model: `Duchi` and `PrivUnit`.

`Duchi` is the multidimensional mechanism of Duchi, Jordan and Wainwright (2018), in the form that
also holds for even d. A row t in [-1, 1]^d is first rounded at random to a corner v with E v = t.
Then a corner s is drawn: each s with s.v > 0 is e^epsilon times as likely as each other one, and
B s is released, with B such that E(B s) = t. (Counting the ties s.v = 0 of an even d as agreeing on
both sides, as in the first publication, would cost ln(1 + e^epsilon).)

`PrivUnit` (Bhowmick et al. 2018) releases a unit vector u in d dimensions as a random unit vector
v: with probability p uniformly from the cap <v, u> >= gamma, otherwise uniformly from the rest of
the sphere. With q the cap's share of the sphere, the density ratio between two inputs is at most
[p/q] / [(1-p)/(1-q)], so epsilon = ln(p/(1-p)) + ln((1-q)/q), exactly. For each epsilon the cap
with the largest expected inner product <v, u> is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.privacy.cost import Cost, Neighbours, Sampler, Unit
from blindsight.privacy.mechanisms.base import Box, Sphere, keep_dtype

__all__ = ["Duchi", "PrivUnit"]

_RAREST = 2.0**-40


@dataclass(frozen=True, kw_only=True)
class PrivUnit:
    """Release unit vectors of `dimensions` coordinates as random unit vectors.

    Guarantee:
        Pure `epsilon` per unit in the local model, for the real-valued mechanism. The sampler uses
        floating point.
    """

    epsilon: float
    dimensions: int
    unit: Unit
    neighbours: Neighbours = "replace one"
    sampler: ClassVar[Sampler] = "float"

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.whole("dimensions", self.dimensions, least=2)
        _ = self.cost
        # A uniform double has a granularity of 2^-53. An event outside the cap that is rarer would
        # be drawn with another probability than stated, or never, and epsilon would be infinite.
        if 1 - self.cap(self.gamma)[0] < _RAREST:
            raise InvalidParameter(
                f"epsilon {self.epsilon:g} is too large for PrivUnit in {self.dimensions} "
                "dimensions: directions outside the cap would be drawn with a probability below "
                "2^-40, which floating point does not keep. Use a smaller epsilon or more "
                "dimensions."
            )

    @property
    def says(self) -> str:
        return f"PrivUnit in {self.dimensions} dimensions"

    @property
    def cost(self) -> Cost:
        return Cost(epsilon=self.epsilon, unit=self.unit, neighbours=self.neighbours)

    @property
    def gamma(self) -> float:
        """The height of the cap with the largest expected inner product."""
        best = _scipy("optimize").minimize_scalar(
            lambda g: -self._inner(g), bounds=(0.0, 0.999), method="bounded"
        )
        return float(best.x)

    @property
    def inner_product(self) -> float:
        """E<v, u>; dividing the release by it makes it unbiased."""
        return self._inner(self.gamma)

    def cap(self, gamma: float) -> tuple[float, float]:
        """Return (p, q): the probability of the cap, and its share of the sphere."""
        q = 0.5 * float(
            _scipy("special").betainc((self.dimensions - 1) / 2, 0.5, 1 - gamma * gamma)
        )
        q = max(q, 1e-300)
        return float(_scipy("special").expit(self.epsilon - math.log1p(-q) + math.log(q))), q

    @property
    def domain(self) -> Sphere:
        return Sphere(self.dimensions)

    def worst_pair(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Two neighbouring inputs for which the privacy loss reaches the stated epsilon."""
        return np.eye(1, self.dimensions)[0], -np.eye(1, self.dimensions)[0]

    def release(self, x: ArrayLike, *, rng: np.random.Generator) -> NDArray[Any]:
        """Return random unit vectors for unit vectors (..., d); rows of zeros are allowed."""
        vectors = checks.finite_array("x", x)
        if vectors.ndim == 0 or vectors.shape[-1] != self.dimensions:
            raise InvalidData(
                f"x must be unit vectors of {self.dimensions} coordinates, got shape "
                f"{vectors.shape}."
            )
        u = vectors.reshape(-1, self.dimensions)
        norm = np.linalg.norm(u, axis=1)
        if not np.allclose(norm[norm > 0], 1, atol=1e-6):
            raise InvalidData(
                "x must be unit vectors, or rows of zeros: divide each row by its norm."
            )
        p, q = self.cap(self.gamma)
        inside = rng.random(len(u)) < p
        # For the height t = <v, u>, (1 - t)/2 is Beta((d-1)/2, (d-1)/2), and its CDF is below q in
        # the cap.
        level = rng.random(len(u)) * np.where(inside, q, 1 - q) + np.where(inside, 0.0, q)
        half = (self.dimensions - 1) / 2
        t = 1 - 2 * _scipy("special").betaincinv(half, half, level)
        # A row of zeros has no direction, so a random one is used.
        u = np.where((norm == 0)[:, None], _unit(rng.standard_normal(u.shape)), u)
        side = rng.standard_normal(u.shape)
        side -= (side * u).sum(axis=1, keepdims=True) * u
        released = t[:, None] * u + np.sqrt(np.maximum(0, 1 - t * t))[:, None] * _unit(side)
        return keep_dtype(released.reshape(vectors.shape), x)

    def log_prob(self, released: ArrayLike, x: ArrayLike) -> NDArray[np.float64]:
        """Return the log-density with respect to the uniform distribution on the sphere."""
        gamma = self.gamma
        p, q = self.cap(gamma)
        t = (np.asarray(released) * np.asarray(x)).sum(axis=-1)
        return np.where(t >= gamma, math.log(p / q), math.log1p(-p) - math.log1p(-q))

    def _inner(self, gamma: float) -> float:
        p, q = self.cap(gamma)
        log_mass = (self.dimensions - 1) / 2 * math.log1p(-gamma * gamma) - _scipy(
            "special"
        ).betaln(0.5, (self.dimensions - 1) / 2)
        mass = math.exp(log_mass) / (self.dimensions - 1)  # E[t; t >= gamma]
        return p * mass / q - (1 - p) * mass / (1 - q)


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300))


@dataclass(frozen=True, kw_only=True)
class Duchi:
    """Release rows of [-bound, bound]^dimensions as corners of a larger box, without bias.

    Guarantee:
        Pure `epsilon` for a whole row in the local model. The output is one of 2^d corners, which
        is chosen with floating-point uniform numbers.
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
        return f"Duchi's mechanism in {self.dimensions} dimensions"

    @property
    def cost(self) -> Cost:
        return Cost(epsilon=self.epsilon, unit=self.unit, neighbours=self.neighbours)

    @property
    def magnitude(self) -> float:
        """The absolute value B x bound of every released coordinate."""
        d = self.dimensions
        # B = (2^d + N (e^eps - 1)) / (C(d-1, floor(d/2)) (e^eps - 1)), N = corners with s.v > 0;
        # numerator and denominator are divided by 2^d.
        gain = math.expm1(min(self.epsilon, 700))
        return (
            self.bound
            * (1 + self._agreeing * gain)
            / (math.exp(_log_choose(d - 1, d // 2) - d * math.log(2)) * gain)
        )

    @property
    def _agreeing(self) -> float:
        """The share N / 2^d of corners that agree with a given one in most coordinates."""
        d = self.dimensions
        ties = math.exp(_log_choose(d, d // 2) - d * math.log(2)) if d % 2 == 0 else 0.0
        return (1 - ties) / 2

    @property
    def domain(self) -> Box:
        return Box(self.dimensions, self.bound)

    def worst_pair(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Two neighbouring inputs for which the privacy loss reaches the stated epsilon."""
        return np.full(self.dimensions, self.bound), np.full(self.dimensions, -self.bound)

    def release(self, x: ArrayLike, *, rng: np.random.Generator) -> NDArray[Any]:
        """Return one corner for each row of (..., dimensions)."""
        rows = self._rows(x)
        v = np.where(rng.random(rows.shape) < (1 + rows) / 2, 1.0, -1.0)
        d = self.dimensions
        # The number k of coordinates that agree with v has weight C(d, k), times e^eps if k is
        # more than half.
        k = np.arange(d + 1)
        weight = _log_choose(d, k) + self.epsilon * (k > d / 2)
        share = np.cumsum(np.exp(weight - weight.max()))
        agree = np.searchsorted(share / share[-1], rng.random(len(rows)), side="right")
        # These are the coordinates of the `agree` smallest of d random keys.
        rank = rng.random(rows.shape).argsort(axis=1).argsort(axis=1)
        corner = np.where(rank < agree[:, None], v, -v) * self.magnitude
        return keep_dtype(corner.reshape(np.shape(x)), x)

    def log_prob(self, released: ArrayLike, x: ArrayLike) -> NDArray[np.float64]:
        """Return ln Pr(released row | row).

        The probability that v agrees with it in more than half of the coordinates is computed by
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

    def _rows(self, x: ArrayLike) -> NDArray[np.float64]:
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
    special = _scipy("special")
    return (
        special.gammaln(n + 1)
        - special.gammaln(np.asarray(k) + 1)
        - special.gammaln(n - np.asarray(k) + 1)
    )


def _scipy(part: str) -> Any:
    return checks.core_module(f"scipy.{part}")
