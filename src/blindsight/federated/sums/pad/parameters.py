"""Sizes of the pad by number of users and weights: ring, slots, and primes for an exact sum.

A coefficient holds `slots` weights of `slot_bits` = value bits + ⌈log2 users⌉ each, and t is
2^(slots · slot_bits). The sum is exact if |Σ e| <= E: then |t Σ e + Σ m| < t (E + 1), and the
condition is 2 t (E + 1) <= q. A sum of U errors of sub-Gaussian parameter 6.4 exceeds E anywhere in
the longest vector of this ring with probability at most 2^-40 (and E is never more than 63 U). A
failure is noticed, because the vector's tag then does not fit.

log2 q is at most 104 for N = 4096 and 207 for N = 8192. `python -m benchmarks.federated.estimate`
prints the resulting security level, at half the deviation, because the sum of the secrets is
published (docs/federated-protocol.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import gmpy2

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter
from blindsight.federated.sums.pad.sampler import LARGEST, SIGMA

__all__ = ["CAPS", "LONGEST", "SMALL", "Parameters", "choose", "primes"]

CAPS = {4096: 104, 8192: 207}  # the largest modulus of each ring, in bits
SMALL = 1 << 20  # from this dimension on the larger ring is used
LONGEST = 1 << 28
_FAILURE_BITS = 40
_LARGEST_PRIME = 30


@lru_cache(maxsize=64)
def primes(degree: int, bits: int, count: int) -> tuple[int, ...]:
    """Return the `count` largest primes of at most `bits` bits that are 1 modulo 2 · degree."""
    chosen: list[int] = []
    candidate = (1 << bits) - 2 * degree + 1
    while len(chosen) < count:
        if candidate < 1 << (bits - 1):
            raise InvalidParameter(
                f"there are no {count} primes of {bits} bits for degree {degree}."
            )
        if gmpy2.is_prime(candidate, 40):
            chosen.append(candidate)
        candidate -= 2 * degree
    return tuple(chosen)


def _errors(users: int, coefficients: int) -> int:
    """Return E with 2 · coefficients · exp(-E²/(2 U σ²)) <= 2^-40."""
    exponent = math.log(2) * (_FAILURE_BITS + 1) + math.log(coefficients)
    return min(LARGEST * users, math.ceil(float(SIGMA) * math.sqrt(2 * users * exponent)))


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """One size of pad; `choose` finds the cheapest."""

    degree: int
    users: int
    value_bits: int
    slots: int
    prime_bits: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.degree not in CAPS:
            raise InvalidParameter(f"degree must be one of {sorted(CAPS)}, got {self.degree!r}.")
        checks.whole("users", self.users)
        checks.whole("value_bits", self.value_bits)
        checks.whole("slots", self.slots)
        if 2 * (self.errors + 1) << self.plain_bits > self.modulus:
            raise InvalidParameter("the modulus is too small for an exact sum.")
        if self.modulus.bit_length() > CAPS[self.degree]:
            raise InvalidParameter(
                f"a modulus of {self.modulus.bit_length()} bits is too large to be safe."
            )

    @property
    def slot_bits(self) -> int:
        """Bits of one weight's sum."""
        return self.value_bits + (self.users - 1).bit_length()

    @property
    def plain_bits(self) -> int:
        """log2 t, the bits of one coefficient's plaintext."""
        return self.slots * self.slot_bits

    @property
    def block(self) -> int:
        """How many weights one block holds."""
        return self.slots * self.degree

    @cached_property
    def errors(self) -> int:
        """E, which the sums of errors exceed with probability at most 2^-40."""
        longest = SMALL if self.degree == min(CAPS) else LONGEST
        return _errors(self.users, -(-longest // self.slots))

    @cached_property
    def primes(self) -> tuple[int, ...]:
        """The primes whose product is q."""
        counts: dict[int, int] = {}
        chosen = []
        for bits in self.prime_bits:
            counts[bits] = counts.get(bits, 0) + 1
            chosen.append(primes(self.degree, bits, counts[bits])[-1])
        return tuple(chosen)

    @cached_property
    def modulus(self) -> int:
        """q, the product of all primes."""
        return math.prod(self.primes)

    def blocks(self, dimension: int) -> int:
        """How many blocks a vector of that length has."""
        return -(-dimension // self.block)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block on the wire."""
        return self.degree * sum(self.prime_bits) // 8

    def bytes(self, dimension: int) -> int:
        """Bytes of a padded vector on the wire."""
        return self.blocks(dimension) * self.block_bytes


def _modulus_bits(degree: int, users: int, value_bits: int, slots: int) -> tuple[int, ...] | None:
    """Return the fewest bits of primes of nearly equal length that keep a sum exact."""
    for total in range(slots, CAPS[degree] + 1):
        count = -(-total // _LARGEST_PRIME)
        short, longer = divmod(total, count)
        split = (short + 1,) * longer + (short,) * (count - longer)
        if short < 20:  # too few primes of that length are 1 modulo 2N
            continue
        try:
            Parameters(
                degree=degree, users=users, value_bits=value_bits, slots=slots, prime_bits=split
            )
        except InvalidParameter:
            continue
        return split
    return None


@lru_cache(maxsize=64)
def choose(users: int, dimension: int, value_bits: int = 16) -> Parameters:
    """Return the parameters with the fewest bytes per weight.

    Parameters:
        users: the largest number of vectors in a sum.
        dimension: the number of weights of a vector.
        value_bits: the bits of a weight.

    Raises:
        InvalidParameter: no pad fits these sizes.
    """
    checks.whole("users", users)
    if not 1 <= checks.whole("dimension", dimension) <= LONGEST:
        raise InvalidParameter(f"dimension must be in [1, {LONGEST:,}], got {dimension:,}.")
    degree = min(CAPS) if dimension < SMALL else max(CAPS)
    fitting: list[Parameters] = []
    slot = value_bits + (users - 1).bit_length()
    for slots in range(1, CAPS[degree] // slot + 1):
        split = _modulus_bits(degree, users, value_bits, slots)
        if split is not None:
            fitting.append(
                Parameters(
                    degree=degree, users=users, value_bits=value_bits, slots=slots, prime_bits=split
                )
            )
    if not fitting:
        raise InvalidParameter(
            f"no pad fits {value_bits}-bit values of {users:,} users: use fewer bits a value."
        )
    # The fewest bytes; among equals the smaller modulus, which is more secure.
    return min(fitting, key=lambda p: (p.bytes(dimension), sum(p.prime_bits)))
