"""How columns are brought to one size: by bounds that are public, or by noisy counts of how far
pairs are apart.

A census table has ages beside yes and no: without scaling the widest column decides every distance.
Bounds that are known beforehand cost nothing. Without them, a column's size is read off a noisy
histogram of the powers of two of its differences, which needs no bound and refuses no value; it is
paid for within the total.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter
from blindsight.metric.comparisons import BUCKETS, SMALLEST

__all__ = ["bounds_stretch", "check_scale", "counted_stretch"]

Floats = NDArray[np.float64]


def check_scale(scale: Any) -> Any:
    """None, "private", or (low, high) as two arrays with low below high."""
    if scale is None or (isinstance(scale, str) and scale == "private"):
        return scale
    if isinstance(scale, str) or not hasattr(scale, "__len__") or len(scale) != 2:
        raise InvalidParameter(
            f"scale must be None, 'private' or bounds (low, high), got {scale!r}."
        )
    low, high = (
        np.atleast_1d(checks.finite_array(name, part))
        for name, part in zip(("low", "high"), scale, strict=True)
    )
    if low.ndim != 1 or low.shape != high.shape or not (low < high).all():
        raise InvalidParameter(
            "scale must be bounds (low, high) of the same length, each low below its high."
        )
    return low, high


def bounds_stretch(scale: tuple[Floats, Floats], columns: int) -> Floats:
    """What to multiply each column by so that records within the bounds are at most 2 apart."""
    low, high = scale
    if len(low) not in (1, columns):
        raise InvalidParameter(
            f"scale must give bounds for the {columns} columns of X, got {len(low)}."
        )
    return np.broadcast_to(2 / (math.sqrt(columns) * (high - low)), (columns,)).copy()


def counted_stretch(counts: Floats, columns: int, *, noise: float) -> Floats:
    """The same from noisy counts (`Comparisons.spread`): the root mean square of each column's
    differences becomes 1 over the root of the columns.

    Buckets whose count noise alone could explain are taken for empty. A column without any other
    moves little or seldom; it gets the size of the widest, so that it keeps its place without
    growing.
    """
    table = counts.reshape(columns, BUCKETS)
    # One of all cells exceeds this by noise alone with probability of about a tenth of a per cent.
    least = noise * math.sqrt(2 * math.log(max(2, 1000 * table.size)))
    seen = np.where(table > least, table, 0.0)
    # Differences of exponent e lie in [2^(e-1), 2^e): their mean square is about 0.58 of 4^e.
    square = 0.58 * 4.0 ** (SMALLEST + np.arange(BUCKETS))
    # The share of pairs that do not move a column at all counts: rare columns are narrow.
    size = np.sqrt(seen @ square / max(1.0, float(seen.sum(axis=1).max())))
    if not size.any():
        return np.full(columns, 1 / math.sqrt(columns))
    return np.asarray(1 / (np.where(size > 0, size, size.max()) * math.sqrt(columns)))
