"""Z_q[x]/(x^N + 1) as residues modulo a few primes below 2^30, with number-theoretic transforms.

Arithmetic on secrets has no branch and no division: products with a known factor w use Shoup's
method (w' = ⌊w 2^32 / p⌋; x w - ⌊x w' / 2^32⌋ p lies in [0, 2p) for any x < 2^32), others Barrett's
reduction, and the last subtraction of p is masked. A transform leaves its values in bit-reversed
order; this is consistent, because all parties only multiply and add values in this order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import njit

__all__ = [
    "Field",
    "add_into",
    "field",
    "forward",
    "inverse",
    "multiply_add",
    "multiply_subtract",
    "shoup",
]

Residues = NDArray[np.uint32]
_ZERO, _32, _63 = np.uint64(0), np.uint64(32), np.uint64(63)
_LOW = np.uint64(0xFFFFFFFF)


def shoup(w: int, p: int) -> int:
    """Return ⌊w 2^32 / p⌋, the companion of w in Shoup's multiplication modulo p."""
    return (w << 32) // p


@dataclass(frozen=True, eq=False)
class Field:
    """One prime with its tables.

    The tables hold powers of a primitive 2N-th root in bit-reversed order, each with its companion.
    """

    prime: int
    degree: int
    roots: NDArray[np.uint32]  # (N, 2)
    inverses: NDArray[np.uint32]  # (N, 2)
    scale: tuple[int, int]  # N^-1 and its companion


def _primitive_root(prime: int, order: int) -> int:
    """Return an element of exactly this order, a power of two."""
    for candidate in range(2, prime):
        root = pow(candidate, (prime - 1) // order, prime)
        if pow(root, order // 2, prime) == prime - 1:
            return root
    raise AssertionError("a prime that is 1 modulo the order has such an element")


def _powers(root: int, degree: int, prime: int) -> NDArray[np.uint32]:
    bits = degree.bit_length() - 1
    table = np.empty((degree, 2), dtype=np.uint32)
    power = 1
    for i in range(degree):
        reversed_index = int(f"{i:0{bits}b}"[::-1], 2)
        table[reversed_index] = power, shoup(power, prime)
        power = power * root % prime
    return table


@lru_cache(maxsize=64)
def field(prime: int, degree: int) -> Field:
    """The tables of a prime, made once."""
    root = _primitive_root(prime, 2 * degree)
    back = pow(degree, -1, prime)
    return Field(
        prime,
        degree,
        _powers(root, degree, prime),
        _powers(pow(root, -1, prime), degree, prime),
        (back, shoup(back, prime)),
    )


@njit(cache=True, nogil=True)
def _lazy(x: np.uint64, w: np.uint64, companion: np.uint64, p: np.uint64) -> np.uint64:
    """x w modulo p, in [0, 2p), for x < 2^32."""
    return (x * w - ((x * companion) >> _32) * p) & _LOW


@njit(cache=True, nogil=True)
def _less(x: np.uint64, p: np.uint64) -> np.uint64:
    """x - p where that is not negative, else x; without a branch."""
    y = x - p
    return y + (p & (_ZERO - (y >> _63)))


_SHORT = 8  # shorter passes run across the groups, so that vector instructions stay full


@njit(cache=True, nogil=True)
def _forward(x: Residues, roots: NDArray[np.uint32], prime: int) -> None:
    """Harvey's butterflies (Cooley and Tukey): values stay below 4p until the last pass."""
    n = x.shape[0]
    p = np.uint64(prime)
    p2 = p + p
    half, groups = n >> 1, 1
    while half >= _SHORT:
        for g in range(groups):
            w, companion = np.uint64(roots[groups + g, 0]), np.uint64(roots[groups + g, 1])
            left = x[2 * g * half : (2 * g + 1) * half]
            right = x[(2 * g + 1) * half : (2 * g + 2) * half]
            for i in range(half):
                u = _less(np.uint64(left[i]), p2)
                v = _lazy(np.uint64(right[i]), w, companion, p)
                left[i] = np.uint32(u + v)
                right[i] = np.uint32(u + p2 - v)
        half >>= 1
        groups <<= 1
    while half >= 1:
        twiddles, pairs = roots[groups : 2 * groups], x.reshape(groups, 2, half)
        for i in range(half):
            for g in range(groups):
                u = _less(np.uint64(pairs[g, 0, i]), p2)
                w, companion = np.uint64(twiddles[g, 0]), np.uint64(twiddles[g, 1])
                v = _lazy(np.uint64(pairs[g, 1, i]), w, companion, p)
                pairs[g, 0, i] = np.uint32(u + v)
                pairs[g, 1, i] = np.uint32(u + p2 - v)
        half >>= 1
        groups <<= 1
    for i in range(n):
        x[i] = np.uint32(_less(_less(np.uint64(x[i]), p2), p))


@njit(cache=True, nogil=True)
def _inverse(
    x: Residues, roots: NDArray[np.uint32], prime: int, scale: int, companion_of_scale: int
) -> None:
    """Gentleman and Sande's butterflies, values below 2p; then divided by N."""
    n = x.shape[0]
    p = np.uint64(prime)
    p2 = p + p
    half, groups = 1, n >> 1
    while groups >= 1 and half < _SHORT:
        twiddles, pairs = roots[groups : 2 * groups], x.reshape(groups, 2, half)
        for i in range(half):
            for g in range(groups):
                u, v = np.uint64(pairs[g, 0, i]), np.uint64(pairs[g, 1, i])
                w, companion = np.uint64(twiddles[g, 0]), np.uint64(twiddles[g, 1])
                pairs[g, 0, i] = np.uint32(_less(u + v, p2))
                pairs[g, 1, i] = np.uint32(_lazy(u + p2 - v, w, companion, p))
        half <<= 1
        groups >>= 1
    while groups >= 1:
        for g in range(groups):
            w, companion = np.uint64(roots[groups + g, 0]), np.uint64(roots[groups + g, 1])
            left = x[2 * g * half : (2 * g + 1) * half]
            right = x[(2 * g + 1) * half : (2 * g + 2) * half]
            for i in range(half):
                u, v = np.uint64(left[i]), np.uint64(right[i])
                left[i] = np.uint32(_less(u + v, p2))
                right[i] = np.uint32(_lazy(u + p2 - v, w, companion, p))
        half <<= 1
        groups >>= 1
    s, c = np.uint64(scale), np.uint64(companion_of_scale)
    for i in range(n):
        x[i] = np.uint32(_less(_lazy(np.uint64(x[i]), s, c, p), p))


def forward(x: Residues, at: Field) -> None:
    """Transform N residues in place."""
    _forward(x, at.roots, at.prime)


def inverse(x: Residues, at: Field) -> None:
    """Apply the inverse of `forward` to N residues in place."""
    _inverse(x, at.inverses, at.prime, *at.scale)


@njit(cache=True, nogil=True)
def _product(
    x: np.uint64, y: np.uint64, p: np.uint64, barrett: np.uint64, shift: np.uint64
) -> np.uint64:
    """Return x y modulo p by Barrett's reduction.

    barrett = ⌊2^(2 shift) / p⌋ with p < 2^shift <= 2^30; the quotient is off by at most 2.
    """
    z = x * y
    guess = ((z >> (shift - np.uint64(1))) * barrett) >> (shift + np.uint64(1))
    return _less(_less(z - guess * p, p), p)


@njit(cache=True, nogil=True)
def _multiply_add(
    a: Residues, s: Residues, x: Residues, prime: int, barrett: int, bits: int, minus: bool
) -> None:
    p, b, shift = np.uint64(prime), np.uint64(barrett), np.uint64(bits)
    for i in range(x.shape[0]):
        z = _product(np.uint64(a[i]), np.uint64(s[i]), p, b, shift)
        if minus:  # a public choice
            z = _less(p - z, p)
        x[i] = np.uint32(_less(np.uint64(x[i]) + z, p))


def multiply_add(a: Residues, s: Residues, x: Residues, prime: int) -> None:
    """x += a s, value by value."""
    bits = prime.bit_length()
    _multiply_add(a, s, x, prime, (1 << (2 * bits)) // prime, bits, False)


def multiply_subtract(a: Residues, s: Residues, x: Residues, prime: int) -> None:
    """x -= a s, value by value."""
    bits = prime.bit_length()
    _multiply_add(a, s, x, prime, (1 << (2 * bits)) // prime, bits, True)


@njit(cache=True, nogil=True)
def add_into(total: Residues, x: Residues, prime: int) -> None:
    """Add x to the total in place, modulo the prime."""
    p = np.uint64(prime)
    for i in range(total.shape[0]):
        total[i] = np.uint32(_less(np.uint64(total[i]) + np.uint64(x[i]), p))
