"""Random flipping of bits (Algorithm 1 of Wang, Lu and Zhang 2020): randomised response, bit by
bit.

A bit flipped with probability beta has Pr(out | 0) / Pr(out | 1) at most max((1-beta)/beta,
beta/(1-beta)), so its epsilon is |ln((1-beta)/beta)|, and a record of c bits that may all differ
costs c times that. The paper's Theorem 4 takes beta = e^-epsilon for the whole matrix; that holds
per bit only for epsilon >= ln((1+sqrt 5)/2) = 0.4812.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData
from blindsight.privacy.cost import Cost, Neighbours, Sampler
from blindsight.privacy.entropy import Rng, words
from blindsight.privacy.mechanisms.domain import Bits

__all__ = ["BitFlip"]

FlipUnit = Literal["bit", "record"]
_CHUNK = 1 << 22


@dataclass(frozen=True, kw_only=True)
class BitFlip:
    """Flip each bit with probability `beta`, independently.

    Guarantee: epsilon = |ln((1-beta)/beta)| per bit, `n_bits` times that per record. Local model.
    The sampler is exact: beta is compared with 64 random bits.

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
        """Theorem 4 to the letter: beta = e^-epsilon, above one half for epsilon < ln 2."""
        return cls(beta=math.exp(-checks.positive("epsilon", epsilon)), n_bits=n_bits, unit=unit)

    @classmethod
    def proven(cls, epsilon: float, *, n_bits: int = 1, unit: FlipUnit = "record") -> BitFlip:
        """The least beta that keeps `epsilon` per unit: 1/(1+e^epsilon) per bit,
        1/(1+e^(epsilon/c)) per record.
        """
        target = checks.positive("epsilon", epsilon)
        n_bits = checks.whole("n_bits", n_bits)
        checks.one_of("unit", unit, get_args(FlipUnit))
        beta = 1 / (1 + math.exp(min(target / (n_bits if unit == "record" else 1), 700)))
        found = cls(beta=beta, n_bits=n_bits, unit=unit)
        while found.cost.epsilon > target:  # the last digit of a float: round toward privacy
            beta = math.nextafter(beta, 1)
            found = cls(beta=beta, n_bits=n_bits, unit=unit)
        return found

    @property
    def epsilon_per_bit(self) -> float:
        """|ln((1-beta)/beta)|; infinite where a bit is never, or always, flipped."""
        if self.beta in (0.0, 1.0):
            return math.inf
        return abs(math.log1p(-self.beta) - math.log(self.beta))

    @property
    def says(self) -> str:
        """In a few words."""
        return f"random flipping of {self.n_bits} bits, beta = {self.beta:.4g}"

    @property
    def cost(self) -> Cost:
        """What one release costs, per bit or per record of `n_bits`."""
        times = self.n_bits if self.unit == "record" else 1
        return Cost(epsilon=self.epsilon_per_bit * times, unit=self.unit)

    @property
    def domain(self) -> Bits:
        """Codes of `n_bits`."""
        return Bits(self.n_bits, whole=self.unit == "record")

    def worst_pair(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Two neighbouring inputs that meet the stated epsilon."""
        n = self.n_bits if self.unit == "record" else 1
        return (np.zeros(n, np.uint8), np.ones(n, np.uint8))

    def release(self, x: Any, *, rng: Rng) -> NDArray[Any]:
        """Flip bits given as 0/1, False/True or -1/+1; same shape, same dtype."""
        bits = np.asarray(x)
        signed = _alphabet(bits)
        mask = self._mask(bits.size, rng).reshape(bits.shape)
        if bits.dtype == np.bool_:
            return bits ^ mask
        if signed:
            return np.where(mask, -bits, bits)
        return np.asarray(np.bitwise_xor(bits, mask.astype(bits.dtype)))

    def release_packed(self, codes: Any, *, rng: Rng) -> NDArray[np.uint8]:
        """Flip packed codes: (n, ceil(n_bits/8)) bytes, bits from the low end; padding bits stay
        zero.
        """
        packed = np.asarray(codes)
        width = -(-self.n_bits // 8)
        if packed.dtype != np.uint8 or packed.ndim != 2 or packed.shape[1] != width:
            raise InvalidData(
                f"codes must be uint8 of shape (n, {width}) for {self.n_bits} bits, "
                f"got {packed.dtype} of shape {packed.shape}."
            )
        result = packed.copy()
        rows = max(1, _CHUNK // self.n_bits)
        for start in range(0, len(packed), rows):
            block = result[start : start + rows]
            mask = self._mask(len(block) * self.n_bits, rng).reshape(len(block), self.n_bits)
            block ^= np.packbits(mask, axis=1, bitorder="little")
        return result

    def log_prob(self, released: Any, x: Any) -> NDArray[np.float64]:
        """ln Pr(released | x) of every bit; sum over a record's bits for the record."""
        changed = np.asarray(np.not_equal(released, x))
        with np.errstate(divide="ignore"):
            kept, flipped = np.log1p(-np.float64(self.beta)), np.log(np.float64(self.beta))
        return np.choose(changed, [kept, flipped]).astype(np.float64)

    def _mask(self, count: int, rng: Rng) -> NDArray[np.bool_]:
        """True with probability beta, to 64 binary digits: 16 random bits decide, 48 more where
        those tie.
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
    """Whether the bits are -1/+1 (True) or 0/1 (False); anything else is refused."""
    if bits.dtype == np.bool_:
        return False
    if bits.dtype.kind not in "iu":
        raise InvalidData(f"bits must be bool or integers, got dtype {bits.dtype}.")
    if bits.size == 0 or (bits.min() >= 0 and bits.max() <= 1):
        return False
    if bits.dtype.kind == "i" and ((bits == 1) | (bits == -1)).all():
        return True
    raise InvalidData("bits must all be 0 or 1, or all be -1 or +1; found other values.")
