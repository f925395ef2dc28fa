"""What the additive mechanisms share: one vector in, the same vector plus noise out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter

__all__ = ["check_grid", "grid_units", "keep_dtype"]


def keep_dtype(noisy: NDArray[Any], x: Any) -> NDArray[Any]:
    """Back to the float type that came in; integers become float64, because noise has no whole
    steps here.
    """
    dtype = np.asarray(x).dtype
    return noisy.astype(dtype if dtype.kind == "f" else np.float64, copy=False)


def check_grid(grid: float) -> float:
    """A grid step must be a power of two, so that its multiples are floats exactly."""
    step = checks.positive("grid", grid)
    if math.frexp(step)[0] != 0.5:
        raise InvalidParameter(f"grid must be a power of two (such as 2**-10), got {grid!r}.")
    return step


def grid_units(x: Any, grid: float) -> NDArray[np.int64]:
    """The nearest whole number of grid steps to every value; beyond 2^52 steps the last one.

    Clipping brings values together, never apart, so it does not add to the sensitivity; refusing
    would tell.
    """
    with np.errstate(over="ignore"):
        units = np.rint(checks.finite_array("x", x) / grid)
    return np.clip(units, -(2.0**52), 2.0**52).astype(np.int64)
