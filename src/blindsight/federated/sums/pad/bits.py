"""Residues as bits: `bits` bits each, lowest first, one after the other without gaps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import njit

__all__ = ["pack", "unpack"]


@njit(cache=True, nogil=True)
def _pack(x: NDArray[np.uint64], bits: int, out: NDArray[np.uint8]) -> None:
    held, filled, at = np.uint64(0), np.uint64(0), 0
    width, eight = np.uint64(bits), np.uint64(8)
    for i in range(x.shape[0]):
        held |= np.uint64(x[i]) << filled
        filled += width
        while filled >= eight:
            out[at] = np.uint8(held & np.uint64(255))
            held >>= eight
            filled -= eight
            at += 1
    if filled > np.uint64(0):
        out[at] = np.uint8(held & np.uint64(255))


@njit(cache=True, nogil=True)
def _unpack(data: NDArray[np.uint8], bits: int, out: NDArray[np.uint64]) -> np.uint64:
    held, filled, at, largest = np.uint64(0), np.uint64(0), 0, np.uint64(0)
    width, eight = np.uint64(bits), np.uint64(8)
    mask = (np.uint64(1) << width) - np.uint64(1)
    for i in range(out.shape[0]):
        while filled < width:
            held |= np.uint64(data[at]) << filled
            filled += eight
            at += 1
        value = held & mask
        largest = max(largest, value)
        out[i] = value
        held >>= width
        filled -= width
    return largest


def pack(numbers: NDArray[np.unsignedinteger], bits: int) -> bytes:
    """Numbers below 2^bits (at most 56) as ⌈len · bits / 8⌉ bytes."""
    out = np.empty(-(-len(numbers) * bits // 8), dtype=np.uint8)
    _pack(numbers, bits, out)
    return out.tobytes()


def unpack(data: bytes | memoryview, bits: int, out: NDArray[np.unsignedinteger]) -> int:
    """Fill `out` with what `pack` wrote; the largest number found."""
    if len(data) != -(-len(out) * bits // 8):
        raise AssertionError("the caller checks lengths")
    return int(_unpack(np.frombuffer(data, dtype=np.uint8), bits, out))
