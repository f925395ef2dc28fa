"""Pseudo-random bytes from a key, and discrete Gaussian secrets and errors.

Bytes are from AES in counter mode, about 2 GB per second with processor support. Secrets have sigma
6.4 and are cut off at ±63, by a table of 126-bit thresholds.

|x| is the number of thresholds that a uniform 126-bit number reaches. Every sample is compared with
all of them without a branch, so the time reveals nothing about x. The error in distribution is
2^-70 per sample from the cut-off and 2^-119 from the rounding of the table.
"""

from __future__ import annotations

import os
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from blindsight.core.checks import njit

__all__ = ["LARGEST", "SIGMA", "Stream", "expand", "secret", "secret_words", "thresholds"]

SIGMA: Final = Decimal("6.4")
LARGEST: Final = 63
_HALF_BITS = 63
_ZEROS: Final = bytes(1 << 16)


class Stream:
    """AES-CTR under one key: the key is expanded once, however many nonces it is used with."""

    def __init__(self, key: bytes) -> None:
        self._context = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def start(self, nonce: bytes) -> None:
        """Start the stream of a nonce, of at most 8 bytes; the other 8 bytes are the counter."""
        if len(nonce) > 8:
            raise AssertionError("the counter's half of the nonce is not ours")
        self._context.reset_nonce(nonce.ljust(16, b"\0"))

    def read(self, length: int) -> bytes:
        """The next `length` bytes of the nonce."""
        zeros = _ZEROS if length <= len(_ZEROS) else bytes(length)
        return self._context.update(memoryview(zeros)[:length])


def expand(key: bytes, nonce: bytes, length: int) -> bytes:
    """`length` bytes of AES-CTR from the beginning of a nonce of at most 8 bytes."""
    stream = Stream(key)
    stream.start(nonce)
    return stream.read(length)


def secret_words(count: int) -> NDArray[np.uint64]:
    """Return `count` fresh 64-bit words.

    They are from AES-256 in counter mode under a key that the operating system draws for this call.
    The key is not kept, so there is no state that could be read, forked or restored.
    """
    return np.frombuffer(expand(os.urandom(32), b"", 8 * count), dtype="<u8")


@lru_cache(maxsize=1)
def thresholds() -> tuple[int, ...]:
    """Return T_i = 2^126 · P(|x| < i) for i = 1..63, rounded.

    |x| >= i exactly if a uniform number is at least T_i.
    """
    with localcontext() as context:
        context.prec = 60
        weights = [(-Decimal(k * k) / (2 * SIGMA * SIGMA)).exp() for k in range(LARGEST + 1)]
        total = weights[0] + 2 * sum(weights[1:])
        scale = Decimal(1 << (2 * _HALF_BITS))
        rounded, below = [], weights[0]
        for weight in weights[1:]:
            rounded.append(int((scale * below / total).to_integral_value()))
            below += 2 * weight
        return tuple(rounded)


@lru_cache(maxsize=1)
def _table() -> NDArray[np.uint64]:
    """Return high and low halves of the thresholds, and a 64th that no number reaches.

    The compiler turns two rows of 64 into whole vector instructions; 63 rows of two took five times
    as long.
    """
    mask = (1 << _HALF_BITS) - 1
    halves = [(t >> _HALF_BITS, t & mask) for t in thresholds()]
    return np.array([*halves, (1 << _HALF_BITS, 0)], dtype=np.uint64).T.copy()


@njit(cache=True, nogil=True)
def _scan(words: NDArray[np.uint64], table: NDArray[np.uint64], out: NDArray[np.int8]) -> None:
    bit, top, count = np.uint64(1), np.uint64(63), np.uint64(64)
    for i in range(out.shape[0]):
        sign = words[2 * i] & bit
        high, low = words[2 * i] >> bit, words[2 * i + 1] >> bit
        missed = np.uint64(0)
        for j in range(64):
            borrow = (low - table[1, j]) >> top
            missed += (high - table[0, j] - borrow) >> top
        # Negative without a branch: x -> (x ^ -sign) + sign.
        out[i] = np.int8(np.int64(((count - missed) ^ (np.uint64(0) - sign)) + sign))


def secret(count: int) -> NDArray[np.int8]:
    """Return `count` fresh samples, each from 128 bits."""
    out = np.empty(count, dtype=np.int8)
    _scan(secret_words(2 * count), _table(), out)
    return out
