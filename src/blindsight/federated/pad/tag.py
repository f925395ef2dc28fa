"""A vector's tag: Σ κ_j m_j modulo 2^61 - 1 under a key that users share and the aggregator does
not have.

It is linear, so the tags of many vectors add up to the tag of their sum: users check the sum they
are given. A sum that is off by anything fixed beforehand passes with probability 2^-61. The tag
travels with the pad's secret, as 24 digits of seven bits that are summed one by one. Sums of digits
tell more than the sum of the numbers, so a user first adds a random multiple of the modulus, of 107
bits more than the modulus has: the digits that are summed are then random apart from what their
sum tells.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

import numpy as np
from numpy.typing import NDArray

from blindsight.core.compiled import njit
from blindsight.federated.pad.ring import _less
from blindsight.federated.pad.stream import expand

__all__ = ["DIGITS", "DIGIT_BITS", "MODULUS", "from_digits", "plus", "product", "tag", "to_digits"]

MODULUS: Final = (1 << 61) - 1
DIGITS: Final = 24
DIGIT_BITS: Final = 7
_MASK_BITS: Final = DIGITS * DIGIT_BITS - 61
_P, _30, _31, _61 = np.uint64(MODULUS), np.uint64(30), np.uint64(31), np.uint64(61)
_LOW31 = np.uint64((1 << 31) - 1)
_CHUNK = 1 << 20


@njit(cache=True, nogil=True)
def _fold(x: np.uint64) -> np.uint64:
    return (x & _P) + (x >> _61)


@njit(cache=True, nogil=True)
def _dot(keys: NDArray[np.uint64], values: NDArray[np.uint64]) -> tuple[np.uint64, np.uint64]:
    """Σ high halves and Σ low halves of the keys times values below 2^32."""
    high, low = np.uint64(0), np.uint64(0)
    for i in range(values.shape[0]):
        key = keys[i] & _P
        high = _fold(high + _fold((key >> _31) * values[i]))
        low = _fold(low + _fold((key & _LOW31) * values[i]))
    return high, low


@njit(cache=True, nogil=True)
def plus(x: int | np.uint64, y: int | np.uint64) -> int:
    """The sum of two numbers below 2^62 modulo 2^61 - 1, without a division."""
    return _less(_less(_fold(np.uint64(x) + np.uint64(y)), _P), _P)  # type: ignore[return-value]


@njit(cache=True, nogil=True)
def product(keys: NDArray[np.uint64], values: NDArray[np.uint64]) -> int:
    """Σ keys · values modulo 2^61 - 1, for values below 2^32: 2^31 times a number is the number
    turned round.
    """
    high, low = _dot(keys, values)
    whole = np.uint64(plus(high, 0))
    return plus(((whole << _31) & _P) | (whole >> _30), low)


def tag(key: bytes, header: bytes, values: NDArray[np.uint64]) -> int:
    """The tag of whole numbers in [0, 2^32)."""
    stream = hashlib.sha256(b"blindsight pad tag" + key + header).digest()[:16]
    total = 0
    for chunk in range(-(-len(values) // _CHUNK)):
        part = values[chunk * _CHUNK : (chunk + 1) * _CHUNK]
        keys = np.frombuffer(
            expand(stream, chunk.to_bytes(4, "little"), 8 * len(part)), dtype="<u8"
        )
        total = plus(total, product(keys, part))
    return total


def to_digits(value: int) -> NDArray[np.uint8]:
    """24 digits of seven bits, lowest first, of the tag plus a random multiple of the modulus."""
    masked = value + MODULUS * secrets.randbits(_MASK_BITS)
    return np.array([masked >> (DIGIT_BITS * i) & 127 for i in range(DIGITS)], dtype=np.uint8)


def from_digits(digits: NDArray[np.int64]) -> int:
    """The tag that sums of digits stand for."""
    return sum(int(digit) << (DIGIT_BITS * i) for i, digit in enumerate(digits)) % MODULUS
