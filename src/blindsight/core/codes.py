"""Binary codes as packed bytes, and distances between them.

A code of c bits is stored in ceil(c/8) bytes in little-endian bit order: bit j of a code is bit
j % 8 of byte j // 8, and the unused bits of the last byte are 0, so that a distance is the popcount
of an exclusive or. Bits are 0 and 1; `to_signs` and `from_signs` convert from and to +1 and -1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData

__all__ = [
    "check_codes",
    "from_signs",
    "hamming",
    "n_bytes",
    "pack",
    "to_signs",
    "to_words",
    "unpack",
]

# Rows of `a` handled at once in `hamming`: keeps the exclusive-or buffer near 32 MB.
_BUFFER_BYTES = 1 << 25


def n_bytes(n_bits: int) -> int:
    """The bytes that hold `n_bits` bits.

    Examples:
        >>> n_bytes(12)
        2
    """
    return (checks.whole("n_bits", n_bits) + 7) // 8


def pack(bits: ArrayLike) -> NDArray[np.uint8]:
    """Bits (n, c) of 0 and 1 (or bool) to packed codes (n, ceil(c/8)).

    Examples:
        >>> pack([[1, 0, 0, 0, 0, 0, 0, 0, 1]])
        array([[1, 1]], dtype=uint8)
    """
    array = np.asarray(bits)
    if array.ndim != 2 or array.shape[1] == 0:
        raise InvalidData(f"bits must have shape (n, c) with c of at least 1, got {array.shape}.")
    if array.dtype != np.bool_:
        if array.dtype.kind not in "iuf" or not ((array == 0) | (array == 1)).all():
            raise InvalidData("bits must be 0 or 1. Use from_signs for codes of +1 and -1.")
        array = array.astype(np.bool_)
    return np.packbits(array, axis=1, bitorder="little")


def unpack(codes: ArrayLike, n_bits: int) -> NDArray[np.uint8]:
    """Packed codes (n, ceil(c/8)) back to bits (n, c) of 0 and 1.

    Examples:
        >>> unpack(pack([[1, 0, 1]]), 3)
        array([[1, 0, 1]], dtype=uint8)
    """
    return np.unpackbits(check_codes(codes, n_bits), axis=1, count=n_bits, bitorder="little")


def check_codes(
    codes: ArrayLike, n_bits: int | None = None, *, name: str = "codes"
) -> NDArray[np.uint8]:
    """The same codes as a contiguous uint8 (n, bytes) array, or `InvalidData` saying what is wrong.

    With `n_bits` the width must fit and the padding bits must be 0.
    """
    array = np.asarray(codes)
    if array.dtype != np.uint8 or array.ndim != 2:
        raise InvalidData(
            f"{name} must be packed uint8 of shape (n, bytes), got {array.dtype} of shape "
            f"{array.shape}."
        )
    if n_bits is not None:
        width = n_bytes(n_bits)
        if array.shape[1] != width:
            raise InvalidData(
                f"{name} of {n_bits} bits must be {width} bytes wide, got {array.shape[1]}."
            )
        spare = 8 * width - n_bits
        if spare and (array[:, -1] >> (8 - spare)).any():
            raise InvalidData(f"{name} have bits set past bit {n_bits}: the padding must be 0.")
    return np.ascontiguousarray(array)


def to_signs(codes: ArrayLike, n_bits: int) -> NDArray[np.int8]:
    """Packed codes to +1 (bit 1) and -1 (bit 0), as int8 (n, c)."""
    return 2 * unpack(codes, n_bits).astype(np.int8) - 1


def from_signs(signs: ArrayLike) -> NDArray[np.uint8]:
    """+1 and -1 (n, c) to packed codes; anything else is refused (0 has no sign)."""
    array = np.asarray(signs)
    if array.dtype.kind not in "if" or not ((array == 1) | (array == -1)).all():
        raise InvalidData("signs must be +1 or -1. Use pack for bits of 0 and 1.")
    return pack(array > 0)


def to_words(codes: ArrayLike) -> NDArray[np.uint64]:
    """The same codes as 64-bit words (n, ceil(bytes/8)), zero-padded: popcounts run eight times as
    wide.
    """
    array = check_codes(codes)
    rows, width = array.shape
    words = max(1, (width + 7) // 8)
    if width == 8 * words:
        return array.view(np.uint64)
    padded = np.zeros((rows, 8 * words), dtype=np.uint8)
    padded[:, :width] = array
    return padded.view(np.uint64)


def hamming(a: ArrayLike, b: ArrayLike) -> NDArray[np.int32]:
    """Hamming distances (n, m) between packed codes a (n, bytes) and b (m, bytes).

    Examples:
        >>> hamming(pack([[1, 1, 0]]), pack([[1, 1, 0], [0, 0, 1]]))
        array([[0, 3]], dtype=int32)
    """
    left, right = check_codes(a, name="a"), check_codes(b, name="b")
    if left.shape[1] != right.shape[1]:
        raise InvalidData(
            f"a and b must be equally wide, got {left.shape[1]} and {right.shape[1]} bytes."
        )
    left_words, right_words = to_words(left), to_words(right)
    distances = np.zeros((len(left), len(right)), dtype=np.int32)
    step = max(1, _BUFFER_BYTES // max(1, 8 * len(right)))
    for start in range(0, len(left), step):
        rows = slice(start, start + step)
        for word in range(left_words.shape[1]):
            distances[rows] += np.bitwise_count(
                left_words[rows, word, None] ^ right_words[None, :, word]
            )
    return distances
