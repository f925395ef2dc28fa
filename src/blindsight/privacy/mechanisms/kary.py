"""One of k cells, released: k-ary randomised response and subset selection.

k-ary response tells the truth with probability e^eps/(e^eps + k - 1), else another cell, all alike.
Subset selection (Ye and Barg 2018, Wang et al. 2016) releases a subset of w cells that holds the
true one with probability w e^eps / (w e^eps + k - w), the others uniformly; w near k/(1 + e^eps) is
the best size, and w = 1 is k-ary response.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, localcontext
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.privacy.cost import Cost, Neighbours, Sampler, Unit
from blindsight.privacy.entropy import Rng, words
from blindsight.privacy.mechanisms.domain import Cells

__all__ = ["KaryResponse", "SubsetSelection"]


@dataclass(frozen=True, kw_only=True)
class KaryResponse:
    """Release a cell in [0, k): the true one with probability e^eps/(e^eps + k - 1), else another
    at random.

    Guarantee: `epsilon` per unit, pure, in the local model. Exact: the decision compares 128 random
    bits with a threshold rounded toward privacy.
    """

    epsilon: float
    k: int
    unit: Unit
    neighbours: Neighbours = "replace one"
    sampler: ClassVar[Sampler] = "exact"

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.whole("k", self.k, least=2)
        _ = self.cost

    @property
    def says(self) -> str:
        """In a few words."""
        return f"k-ary response over {self.k} cells"

    @property
    def cost(self) -> Cost:
        """epsilon."""
        return Cost(epsilon=self.epsilon, unit=self.unit, neighbours=self.neighbours)

    @property
    def truth_probability(self) -> float:
        """The probability that the true cell is released."""
        return 1 / (1 + (self.k - 1) * math.exp(-self.epsilon))

    @property
    def domain(self) -> Cells:
        """Whole numbers in [0, k), one per record."""
        return Cells(self.k)

    def worst_pair(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Two neighbouring inputs that meet the stated epsilon."""
        return np.array([0]), np.array([1])

    def release(self, x: Any, *, rng: Rng) -> NDArray[Any]:
        """One cell for each cell given; same shape, same integer type."""
        cells = check_cells(x, self.k)
        lie = _coin(lie_threshold(self.epsilon, self.k - 1), cells.size, rng).reshape(cells.shape)
        # A lie is any of the other k - 1 cells: shift by 1 to k - 1, round the clock.
        shift = rng.integers(1, self.k, size=cells.shape, dtype=np.int64)
        return np.where(lie, (cells.astype(np.int64) + shift) % self.k, cells).astype(cells.dtype)

    def log_prob(self, released: Any, x: Any) -> NDArray[np.float64]:
        """ln Pr(released | x)."""
        truth = self.truth_probability
        other = truth * math.exp(-self.epsilon)
        return np.log(np.where(np.asarray(released) == np.asarray(x), truth, other))


@dataclass(frozen=True, kw_only=True)
class SubsetSelection:
    """Release a subset of `size` of the k cells that tends to hold the true one.

    `size=None` picks the size that tells most about the true cell for the budget. Guarantee:
    `epsilon` per unit, pure, in the local model; exact sampler.
    """

    epsilon: float
    k: int
    size: int | None = None
    unit: Unit
    neighbours: Neighbours = "replace one"
    sampler: ClassVar[Sampler] = "exact"

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.whole("k", self.k, least=2)
        if self.size is None:
            object.__setattr__(self, "size", _best_size(self.epsilon, self.k))
        if checks.whole("size", self.size) >= self.k:
            raise InvalidParameter(f"size must be below k = {self.k}, got {self.size}.")
        _ = self.cost

    @property
    def says(self) -> str:
        """In a few words."""
        return f"subset selection, {self.size} of {self.k} cells"

    @property
    def cost(self) -> Cost:
        """epsilon."""
        return Cost(epsilon=self.epsilon, unit=self.unit, neighbours=self.neighbours)

    @property
    def _width(self) -> int:
        assert self.size is not None  # noqa: S101  (set at birth)
        return self.size

    @property
    def truth_probability(self) -> float:
        """The probability that the subset holds the true cell."""
        return 1 / (1 + (self.k - self._width) / self._width * math.exp(-self.epsilon))

    @property
    def domain(self) -> Cells:
        """Whole numbers in [0, k), one per record."""
        return Cells(self.k)

    def worst_pair(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Two neighbouring inputs that meet the stated epsilon."""
        return np.array([0]), np.array([1])

    def release(self, x: Any, *, rng: Rng) -> NDArray[np.bool_]:
        """A row of k booleans for each cell given: the members of its subset."""
        cells = check_cells(x, self.k)
        flat = cells.ravel().astype(np.int64)
        inside = ~_coin(
            lie_threshold(self.epsilon, Fraction(self.k - self._width, self._width)), flat.size, rng
        )
        members = np.empty((flat.size, self.k), np.bool_)
        rows = max(1, (1 << 22) // self.k)
        for start in range(0, flat.size, rows):
            part = slice(start, start + rows)
            members[part] = self._draw(flat[part], inside[part], rng)
        return members.reshape(*cells.shape, self.k)

    def _draw(
        self, cells: NDArray[np.int64], inside: NDArray[np.bool_], rng: Rng
    ) -> NDArray[np.bool_]:
        # Random 64-bit keys order the other cells uniformly; the true cell comes first when inside,
        # last when not.
        keys = words(rng, cells.size * self.k).reshape(cells.size, self.k) | np.uint64(1)
        keys[np.arange(cells.size), cells] = np.where(inside, np.uint64(0), np.uint64(2**64 - 1))
        chosen = np.argpartition(keys, self._width - 1, axis=1)[:, : self._width]
        members = np.zeros((cells.size, self.k), np.bool_)
        np.put_along_axis(members, chosen, True, axis=1)
        return members

    def log_prob(self, released: Any, x: Any) -> NDArray[np.float64]:
        """ln Pr(subset | x)."""
        members = np.asarray(released, np.bool_)
        holds = np.take_along_axis(members, np.asarray(x, np.int64)[..., None], axis=-1)[..., 0]
        size, truth = self._width, self.truth_probability
        log_in = math.log(truth) - math.log(math.comb(self.k - 1, size - 1))
        # ln(1 - truth) by way of the odds: above epsilon = 37 the truth itself rounds to 1.
        log_lie = math.log(truth) + math.log((self.k - size) / size) - self.epsilon
        log_out = log_lie - math.log(math.comb(self.k - 1, size))
        return np.where(holds, log_in, log_out)


def check_cells(x: Any, k: int) -> NDArray[Any]:
    """Whole numbers in [0, k), or an error that says so."""
    cells = np.asarray(x)
    if cells.dtype.kind not in "iu":
        raise InvalidData(f"cells must be whole numbers in [0, {k}), got dtype {cells.dtype}.")
    if cells.size and (cells.min() < 0 or cells.max() >= k):
        raise InvalidData(f"cells must be whole numbers in [0, {k}); found one outside.")
    return cells


def lie_threshold(epsilon: float, others: int | Fraction) -> int:
    """The lie's probability others e^-eps / (1 + others e^-eps) in units of 2^-128, rounded up:
    toward privacy.

    In sixty decimal digits: a float would round the truth's probability to 1 above epsilon = 37,
    and lies of less than 2^-64 would be told too seldom. Beyond epsilon = 80 a lie is told more
    often than it must be, never less.
    """
    with localcontext() as context:
        context.prec = 60
        odds = Decimal(others.numerator) / Decimal(others.denominator) * (-Decimal(epsilon)).exp()
        share = odds / (1 + odds) * (1 << 128)
        return min(int(share.to_integral_value(rounding=ROUND_CEILING)) + 1, 1 << 128)


def _coin(threshold: int, size: int, rng: Rng) -> NDArray[np.bool_]:
    """True with probability threshold / 2^128: 64 random bits decide, 64 more where those tie."""
    if threshold >= 1 << 128:
        return np.ones(size, np.bool_)
    high, low = np.uint64(threshold >> 64), np.uint64(threshold & (2**64 - 1))
    drawn = words(rng, size)
    result = drawn < high
    ties = np.flatnonzero(drawn == high)
    result[ties] = words(rng, ties.size) < low
    return result


def _best_size(epsilon: float, k: int) -> int:
    """The subset size with the largest mutual information between a uniform cell and its subset."""

    def information(size: int) -> float:
        truth = 1 / (1 + (k - size) / size * math.exp(-epsilon))
        lie = 1 - truth
        gain = truth * math.log(truth * k / size)
        return gain + (lie * math.log(lie * k / (k - size)) if lie > 0 else 0.0)

    guess = k / (1 + math.exp(min(epsilon, 700)))
    around = {max(1, min(k - 1, round(guess) + step)) for step in (-1, 0, 1)}
    return max(sorted(around), key=information)
