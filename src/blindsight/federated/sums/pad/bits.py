"""Residues as bits: `bits` bits each, lowest first, one after the other without gaps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import njit

__all__ = ["pack", "unpack"]


_ONE, _63 = np.uint64(1), np.uint64(63)


@njit(cache=True, nogil=True)
def _pack(x: NDArray[np.uint64], bits: int, words: NDArray[np.uint64]) -> None:
    held, filled, at = np.uint64(0), 0, 0
    for i in range(x.shape[0]):
        value = np.uint64(x[i])
        held |= value << np.uint64(filled)
        filled += bits
        if filled >= 64:
            words[at], at, filled = held, at + 1, filled - 64
            held = (value >> np.uint64(bits - 1 - filled)) >> _ONE
    if filled > 0:
        words[at] = held


@njit(cache=True, nogil=True)
def _unpack(words: NDArray[np.uint64], bits: int, out: NDArray[np.uint64]) -> np.uint64:
    """Unpack numbers and return the largest; `words` needs one extra word at the end.

    Each number is read from two neighbouring words.
    """
    at, largest, mask = 0, np.uint64(0), (_ONE << np.uint64(bits)) - _ONE
    for i in range(out.shape[0]):
        word, offset = at >> 6, np.uint64(at & 63)
        value = (words[word] >> offset | words[word + 1] << _ONE << (_63 - offset)) & mask
        largest = max(largest, value)
        out[i] = value
        at += bits
    return largest


def pack(numbers: NDArray[np.unsignedinteger], bits: int) -> bytes:
    """Return numbers below 2^bits (bits at most 56) as ⌈len · bits / 8⌉ bytes."""
    words = np.zeros(-(-len(numbers) * bits // 64), dtype=np.uint64)
    _pack(numbers, bits, words)
    return words.astype("<u8", copy=False).tobytes()[: -(-len(numbers) * bits // 8)]


def unpack(data: bytes | memoryview, bits: int, out: NDArray[np.unsignedinteger]) -> int:
    """Fill `out` with the numbers that `pack` wrote, and return the largest."""
    if len(data) != -(-len(out) * bits // 8):
        raise AssertionError("the caller checks lengths")
    words = np.zeros(len(data) // 8 + 2, dtype="<u8")
    words.view(np.uint8)[: len(data)] = np.frombuffer(data, dtype=np.uint8)
    return int(_unpack(words.astype(np.uint64, copy=False), bits, out))
