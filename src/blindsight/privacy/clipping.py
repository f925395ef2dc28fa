"""Bounds before noise: without one, no noise is large enough."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter

__all__ = ["clip_norm"]


def clip_norm(
    x: Any, bound: float, *, order: Literal[1, 2] = 2, axis: int | tuple[int, ...] = -1
) -> NDArray[np.float64]:
    """Scale every vector along `axis` into the l1 or l2 ball of radius `bound`; those inside stay
    as they are.

    Examples:
        >>> clip_norm([[3.0, 4.0], [0.3, 0.4]], 1.0)
        array([[0.6, 0.8],
               [0.3, 0.4]])
    """
    if order not in (1, 2):
        raise InvalidParameter(f"order must be 1 or 2, got {order!r}.")
    array, limit = checks.finite_array("x", x), checks.positive("bound", bound)
    size = np.abs(array) if order == 1 else np.square(array)
    norm = size.sum(axis=axis, keepdims=True)
    norm = norm if order == 1 else np.sqrt(norm)
    return np.asarray(array * (limit / np.maximum(norm, limit)))
