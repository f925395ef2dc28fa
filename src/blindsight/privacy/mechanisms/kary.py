"""Mechanisms that release discrete values: cells, bits and the indices of the largest scores.

`KaryResponse` releases the true one of k cells with probability e^eps/(e^eps + k - 1), and each
other cell with equal probability. `SubsetSelection` (Ye and Barg 2018, Wang et al. 2016) releases a
subset of w cells that contains the true one with probability w e^eps / (w e^eps + k - w); the other
members are uniform. The best size w is near k/(1 + e^eps), and w = 1 is k-ary response.

`BitFlip` (Algorithm 1 of Wang, Lu and Zhang 2020) is randomised response for each bit. A bit that
is flipped with probability beta has Pr(out | 0) / Pr(out | 1) at most max((1-beta)/beta,
beta/(1-beta)), so its epsilon is |ln((1-beta)/beta)|, and a record of c bits that may all differ
costs c times that. The paper's Theorem 4 uses beta = e^-epsilon for the whole matrix; that holds
per bit only for epsilon >= ln((1+sqrt 5)/2) = 0.4812.

`NoisyTopK` is one-shot noisy top-k. Adding Gumbel noise of scale 2 k D / epsilon to all scores and
reporting the k largest in order is the same as k rounds of the exponential mechanism without
replacement at epsilon/k each (Durfee and Rogers 2019), where D is the largest change of a score.
The epsilon is pure and holds for the ordered list; the scores themselves are not released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, localcontext
from fractions import Fraction
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.privacy.cost import Cost, Neighbours, Sampler, Unit
from blindsight.privacy.entropy import Rng, words
from blindsight.privacy.mechanisms.base import Bits, Cells, Reals

__all__ = [
    "BitFlip",
    "KaryResponse",
    "NoisyTopK",
    "SubsetSelection",
]

FlipUnit = Literal["bit", "record"]
_CHUNK = 1 << 22


@dataclass(frozen=True, kw_only=True)
class BitFlip:
    """Flip each bit with probability `beta`, independently.

    Guarantee:
        Pure epsilon = |ln((1-beta)/beta)| per bit in the local model, `n_bits` times that per
        record. The sampler is exact: beta is compared with 64 random bits.

    Examples:
        >>> print(BitFlip.proven(1.0, n_bits=48, unit="record").cost)
        ε = 1 per record (replace one)
    """

    beta: float
    n_bits: int = 1
    unit: FlipUnit = "bit"
    neighbours: ClassVar[Neighbours] = "replace one"
    sampler: ClassVar[Sampler] = "exact"

    def __post_init__(self) -> None:
        object.__setattr__(self, "beta", checks.probability("beta", self.beta))
        checks.whole("n_bits", self.n_bits)
        checks.one_of("unit", self.unit, get_args(FlipUnit))

    @classmethod
    def paper(cls, epsilon: float, *, n_bits: int = 1, unit: FlipUnit = "record") -> BitFlip:
        """Theorem 4 as printed: beta = e^-epsilon, which is above 1/2 for epsilon < ln 2."""
        return cls(beta=math.exp(-checks.positive("epsilon", epsilon)), n_bits=n_bits, unit=unit)

    @classmethod
    def proven(cls, epsilon: float, *, n_bits: int = 1, unit: FlipUnit = "record") -> BitFlip:
        """The smallest beta for `epsilon` per unit.

        It is 1/(1+e^epsilon) per bit and 1/(1+e^(epsilon/c)) per record of c bits.
        """
        target = checks.positive("epsilon", epsilon)
        n_bits = checks.whole("n_bits", n_bits)
        checks.one_of("unit", unit, get_args(FlipUnit))
        beta = 1 / (1 + math.exp(min(target / (n_bits if unit == "record" else 1), 700)))
        mechanism = cls(beta=beta, n_bits=n_bits, unit=unit)
        while mechanism.cost.epsilon > target:  # Round the last digit toward privacy.
            beta = math.nextafter(beta, 1)
            mechanism = cls(beta=beta, n_bits=n_bits, unit=unit)
        return mechanism

    @property
    def epsilon_per_bit(self) -> float:
        """|ln((1-beta)/beta)|, which is infinite if a bit is never or always flipped."""
        if self.beta in (0.0, 1.0):
            return math.inf
        return abs(math.log1p(-self.beta) - math.log(self.beta))

    @property
    def says(self) -> str:
        return f"random flipping of {self.n_bits} bits, beta = {self.beta:.4g}"

    @property
    def cost(self) -> Cost:
        """The cost of one release, per bit or per record of `n_bits`."""
        times = self.n_bits if self.unit == "record" else 1
        return Cost(epsilon=self.epsilon_per_bit * times, unit=self.unit)

    @property
    def domain(self) -> Bits:
        return Bits(self.n_bits, whole=self.unit == "record")

    def worst_pair(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Two neighbouring inputs for which the privacy loss reaches the stated epsilon."""
        n = self.n_bits if self.unit == "record" else 1
        return (np.zeros(n, np.uint8), np.ones(n, np.uint8))

    def release(self, x: ArrayLike, *, rng: Rng) -> NDArray[Any]:
        """Flip bits given as 0/1, False/True or -1/+1; shape and dtype are unchanged."""
        bits = np.asarray(x)
        signed = _alphabet(bits)
        mask = self._mask(bits.size, rng).reshape(bits.shape)
        if bits.dtype == np.bool_:
            return bits ^ mask
        if signed:
            return np.where(mask, -bits, bits)
        return np.asarray(np.bitwise_xor(bits, mask.astype(bits.dtype)))

    def log_prob(self, released: ArrayLike, x: ArrayLike) -> NDArray[np.float64]:
        """Return ln Pr(released | x) of every bit; the sum over its bits is that of a record."""
        changed = np.asarray(np.not_equal(released, x))
        with np.errstate(divide="ignore"):
            unchanged, flipped = np.log1p(-np.float64(self.beta)), np.log(np.float64(self.beta))
        return np.choose(changed, [unchanged, flipped]).astype(np.float64)

    def _mask(self, count: int, rng: Rng) -> NDArray[np.bool_]:
        """Draw True with probability beta, to 64 binary digits.

        16 random bits decide, and 48 more in case of a tie.
        """
        threshold = min(math.ceil(self.beta * 2**64), 2**64)
        high, low = threshold >> 48, threshold & ((1 << 48) - 1)
        mask = np.empty(count, np.bool_)
        for start in range(0, count, _CHUNK):
            part = mask[start : start + _CHUNK]
            drawn = words(rng, -(-part.size // 4)).view(np.uint16)[: part.size]
            if high == 1 << 16:
                part[:] = True
                continue
            np.less(drawn, np.uint16(high), out=part)
            ties = np.flatnonzero(drawn == np.uint16(high))
            part[ties] = words(rng, ties.size) >> np.uint64(16) < np.uint64(low)
        return mask


def _alphabet(bits: NDArray[Any]) -> bool:
    """Whether the bits are -1/+1 (True) or 0/1 (False); raise `InvalidData` for other values."""
    if bits.dtype == np.bool_:
        return False
    if bits.dtype.kind not in "iu":
        raise InvalidData(f"bits must be bool or integers, got dtype {bits.dtype}.")
    if bits.size == 0 or (bits.min() >= 0 and bits.max() <= 1):
        return False
    if bits.dtype.kind == "i" and ((bits == 1) | (bits == -1)).all():
        return True
    raise InvalidData("bits must all be 0 or 1, or all be -1 or +1; found other values.")


@dataclass(frozen=True, kw_only=True)
class KaryResponse:
    """Release a cell in [0, k) by k-ary randomised response.

    The true cell is released with probability e^eps/(e^eps + k - 1), otherwise another at random.

    Guarantee:
        Pure `epsilon` per unit in the local model. The sampler is exact: it compares 128 random
        bits with a threshold that is rounded toward privacy.
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
        return f"k-ary response over {self.k} cells"

    @property
    def cost(self) -> Cost:
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
        """Two neighbouring inputs for which the privacy loss reaches the stated epsilon."""
        return np.array([0]), np.array([1])

    def release(self, x: ArrayLike, *, rng: Rng) -> NDArray[Any]:
        """Return a cell for each given cell, with the same shape and integer type."""
        cells = check_cells(x, self.k)
        lie = _coin(lie_threshold(self.epsilon, self.k - 1), cells.size, rng).reshape(cells.shape)
        # One of the other k - 1 cells is the true cell plus 1 to k - 1, modulo k.
        shift = rng.integers(1, self.k, size=cells.shape, dtype=np.int64)
        return np.where(lie, (cells.astype(np.int64) + shift) % self.k, cells).astype(cells.dtype)

    def log_prob(self, released: ArrayLike, x: ArrayLike) -> NDArray[np.float64]:
        truth = self.truth_probability
        lie = truth * math.exp(-self.epsilon)
        return np.log(np.where(np.asarray(released) == np.asarray(x), truth, lie))


@dataclass(frozen=True, kw_only=True)
class SubsetSelection:
    """Release a subset of `size` of the k cells that is likely to contain the true one.

    `size=None` chooses the most informative size for this epsilon.

    Guarantee:
        Pure `epsilon` per unit in the local model. The sampler is exact.
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
        return f"subset selection, {self.size} of {self.k} cells"

    @property
    def cost(self) -> Cost:
        return Cost(epsilon=self.epsilon, unit=self.unit, neighbours=self.neighbours)

    @property
    def _width(self) -> int:
        assert self.size is not None  # noqa: S101  (set by __post_init__)
        return self.size

    @property
    def truth_probability(self) -> float:
        """The probability that the subset contains the true cell."""
        return 1 / (1 + (self.k - self._width) / self._width * math.exp(-self.epsilon))

    @property
    def domain(self) -> Cells:
        """Whole numbers in [0, k), one per record."""
        return Cells(self.k)

    def worst_pair(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Two neighbouring inputs for which the privacy loss reaches the stated epsilon."""
        return np.array([0]), np.array([1])

    def release(self, x: ArrayLike, *, rng: Rng) -> NDArray[np.bool_]:
        """Return a row of k booleans for each given cell, which marks the members of its subset."""
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
        # Random 64-bit keys order the other cells uniformly. The true cell comes first if it is in
        # the subset and last if it is not.
        keys = words(rng, cells.size * self.k).reshape(cells.size, self.k) | np.uint64(1)
        keys[np.arange(cells.size), cells] = np.where(inside, np.uint64(0), np.uint64(2**64 - 1))
        chosen = np.argpartition(keys, self._width - 1, axis=1)[:, : self._width]
        members = np.zeros((cells.size, self.k), np.bool_)
        np.put_along_axis(members, chosen, True, axis=1)
        return members

    def log_prob(self, released: ArrayLike, x: ArrayLike) -> NDArray[np.float64]:
        members = np.asarray(released, np.bool_)
        holds = np.take_along_axis(members, np.asarray(x, np.int64)[..., None], axis=-1)[..., 0]
        size, truth = self._width, self.truth_probability
        log_in = math.log(truth) - math.log(math.comb(self.k - 1, size - 1))
        # ln(1 - truth) is computed from the odds, because above epsilon = 37 the truth rounds to 1.
        log_lie = math.log(truth) + math.log((self.k - size) / size) - self.epsilon
        log_out = log_lie - math.log(math.comb(self.k - 1, size))
        return np.where(holds, log_in, log_out)


def check_cells(x: ArrayLike, k: int) -> NDArray[Any]:
    """Return whole numbers in [0, k); raise `InvalidData` for anything else."""
    cells = np.asarray(x)
    if cells.dtype.kind not in "iu":
        raise InvalidData(f"cells must be whole numbers in [0, {k}), got dtype {cells.dtype}.")
    if cells.size and (cells.min() < 0 or cells.max() >= k):
        raise InvalidData(f"cells must be whole numbers in [0, {k}); found one outside.")
    return cells


def lie_threshold(epsilon: float, others: int | Fraction) -> int:
    """The probability of a false answer in units of 2^-128, rounded up, toward privacy.

    It is others e^-eps / (1 + others e^-eps), computed with sixty decimal digits: a float would
    round the probability of the truth to 1 above epsilon = 37, and false answers with a probability
    below 2^-64 would be too rare. Beyond epsilon = 80 false answers are more frequent than
    necessary, never less.
    """
    with localcontext() as context:
        context.prec = 60
        odds = Decimal(others.numerator) / Decimal(others.denominator) * (-Decimal(epsilon)).exp()
        share = odds / (1 + odds) * (1 << 128)
        return min(int(share.to_integral_value(rounding=ROUND_CEILING)) + 1, 1 << 128)


def _coin(threshold: int, size: int, rng: Rng) -> NDArray[np.bool_]:
    """Draw True with probability threshold / 2^128, by 64 random bits and 64 more for ties."""
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


@dataclass(frozen=True, kw_only=True)
class NoisyTopK:
    """Release the indices of the `k` largest scores, in order.

    Each score may change by at most `sensitivity` between neighbours.

    Guarantee:
        Pure `epsilon` per unit for the ordered list. The noise is floating point, but only indices
        are released.
    """

    epsilon: float
    k: int
    sensitivity: float
    unit: Unit
    neighbours: Neighbours = "replace one"
    sampler: ClassVar[Sampler] = "float"

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.whole("k", self.k)
        checks.positive("sensitivity", self.sensitivity)
        _ = self.cost

    @property
    def says(self) -> str:
        return f"noisy top-{self.k}"

    @property
    def cost(self) -> Cost:
        """The epsilon of the whole list."""
        return Cost(epsilon=self.epsilon, unit=self.unit, neighbours=self.neighbours)

    @property
    def scale(self) -> float:
        """The scale of the Gumbel noise, 2 k sensitivity / epsilon."""
        return 2 * self.k * self.sensitivity / self.epsilon

    @property
    def domain(self) -> Reals:
        """Scores, each of which may change by `sensitivity` between neighbours."""
        return Reals(self.sensitivity, np.inf)

    def worst_pair(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Two neighbouring inputs for which the privacy loss reaches the stated epsilon."""
        return np.eye(1, self.k + 1)[0] * self.sensitivity, np.eye(1, self.k + 1, self.k)[
            0
        ] * self.sensitivity

    def release(self, x: ArrayLike, *, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the indices (..., k) of scores (..., C), the largest first."""
        scores = self._scores(x)
        # Gumbel = -ln(Exponential). numpy's standard_exponential is 0 only by underflow.
        noise = -np.log(
            np.maximum(rng.standard_exponential(scores.shape), np.finfo(np.float64).tiny)
        )
        noisy = scores / self.scale + noise
        top = np.argpartition(-noisy, min(self.k, scores.shape[-1] - 1), axis=-1)[..., : self.k]
        order = np.argsort(-np.take_along_axis(noisy, top, axis=-1), axis=-1)
        return np.take_along_axis(top, order, axis=-1).astype(np.int64)

    def log_prob(self, released: ArrayLike, x: ArrayLike) -> NDArray[np.float64]:
        """Return ln Pr(ordered list | scores) of the Plackett-Luce model: one softmax per rank."""
        logits = self._scores(x) / self.scale
        chosen = np.asarray(released, np.int64)
        remaining = np.broadcast_to(logits, (*chosen.shape[:-1], logits.shape[-1])).copy()
        total = np.zeros(chosen.shape[:-1])
        for rank in range(self.k):
            index = chosen[..., rank : rank + 1]
            total += np.take_along_axis(remaining, index, axis=-1)[..., 0]
            total -= np.logaddexp.reduce(remaining, axis=-1)
            np.put_along_axis(remaining, index, -np.inf, axis=-1)
        return total

    def _scores(self, x: ArrayLike) -> NDArray[np.float64]:
        scores = checks.finite_array("x", x)
        if scores.ndim == 0 or scores.shape[-1] < self.k:
            raise InvalidData(
                f"x must have at least k = {self.k} scores in its last axis, got shape "
                f"{scores.shape}."
            )
        return scores
