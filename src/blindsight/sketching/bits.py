"""Pixels to bits and back.

Bit 1 is the most significant; a string is attribute after attribute, as in the paper.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData, InvalidParameter

__all__ = ["as_images", "from_bits", "pixels_of", "to_bits"]

MOST_BITS = 16


def _depth(depth: int) -> int:
    if checks.whole("depth", depth) > MOST_BITS:
        raise InvalidParameter(f"depth must be at most {MOST_BITS} bits, got {depth}.")
    return int(depth)


def to_bits(values: NDArray[Any], depth: int) -> NDArray[np.uint8]:
    """Bits (..., depth) of whole numbers, most significant first: 16 at depth 8 is 00010000."""
    shifts = np.arange(_depth(depth) - 1, -1, -1, dtype=np.uint16)
    return ((np.asarray(values, np.uint16)[..., None] >> shifts) & 1).astype(np.uint8)


def from_bits(bits: NDArray[Any]) -> NDArray[np.uint16]:
    """Whole numbers from bits (..., depth), most significant first."""
    bits = np.asarray(bits)
    weights = 1 << np.arange(_depth(bits.shape[-1]) - 1, -1, -1, dtype=np.uint32)
    return (bits.astype(np.uint32) @ weights).astype(np.uint16)


def as_images(images: Any, depth: int) -> NDArray[Any]:
    """Whole-number images as (n, channels, height, width), every value inside the depth.

    Takes (n, h, w), (n, h, w, channels), or a table (n, pixels), which becomes images of one row.
    """
    array = np.asarray(images)
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise InvalidData(
                "images must be finite: they contain NaN or infinity. Clean them first."
            )
        if array.size and (array != np.rint(array)).any():
            raise InvalidData(
                f"images must hold whole numbers from 0 to {2**depth - 1}, got fractions. Scale "
                "and round them first."
            )
    elif array.dtype.kind not in "iub":
        raise InvalidData(f"images must be an array of whole numbers, got dtype {array.dtype}.")
    if array.ndim == 2:
        array = array[:, None, None, :]
    elif array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4:
        array = np.moveaxis(array, -1, 1)
    else:
        raise InvalidData(
            "images must have shape (n, height, width) or (n, height, width, channels), got "
            f"{array.shape}."
        )
    if not array.size:
        raise InvalidData(f"images must not be empty, got shape {array.shape}.")
    low, high = array.min(), array.max()
    if low < 0 or high >= 2**depth:
        raise InvalidData(
            f"images must hold values from 0 to {2**depth - 1} at depth {depth}, found values from "
            f"{low:g} to "
            f"{high:g}. Choose a q with one entry a bit of the image, or rescale the image."
        )
    return np.ascontiguousarray(array, dtype=np.uint8 if depth <= 8 else np.uint16)


def pixels_of(X: Any) -> NDArray[Any]:
    """The array behind an image set, or the array itself."""
    return X.array() if hasattr(X, "array") and not isinstance(X, np.ndarray) else np.asarray(X)
