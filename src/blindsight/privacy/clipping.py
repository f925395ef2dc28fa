"""What happens to a record before noise: unusable numbers become zeros, long vectors shorter."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter

__all__ = ["LARGEST_FEATURE", "clip_norm", "finite_rows", "unusable_rows"]

# Squares of larger numbers, summed over many columns, overflow in single precision.
LARGEST_FEATURE = 1e15


def unusable_rows(rows: ArrayLike) -> NDArray[np.bool_]:
    """Which records (along the last axis) hold NaN, infinity or a number beyond `LARGEST_FEATURE`.

    Parameters:
        rows: numbers, one record along the last axis.

    Returns:
        A mask of the shape of `rows` without its last axis.
    """
    values = np.asarray(rows)
    if values.dtype.kind not in "iuf":
        values = values.astype(np.float64)
    # By the largest and the smallest of a record, which are NaN where one of its numbers is: no
    # copy of all numbers is made.
    largest, smallest = values.max(axis=-1, initial=0), values.min(axis=-1, initial=0)
    usable = largest.astype(np.float64) <= LARGEST_FEATURE
    return np.asarray(~(usable & (smallest.astype(np.float64) >= -LARGEST_FEATURE)))


def finite_rows(rows: ArrayLike) -> Any:
    """Private records with every unusable one (`unusable_rows`) set to zeros.

    It stands before every door: a record of NaN, infinity or 1e308 must neither stop a release nor
    change its form, because both would tell that there is such a record. Each record is treated by
    itself. What is no table of real numbers comes back as it is, and is refused later on by its
    type or shape, which are public.

    Parameters:
        rows: an array of numbers (..., n_features), or a data frame.

    Returns:
        A copy of the same type and precision.

    Examples:
        >>> finite_rows(np.array([[1.0, 2.0], [np.nan, 3.0], [1e308, 0.0]]))
        array([[1., 2.],
               [0., 0.],
               [0., 0.]])
    """
    values = np.asarray(rows)
    if values.ndim < 2 or values.dtype.kind not in "iuf":
        return rows
    usable = ~unusable_rows(values)[..., None]
    if hasattr(rows, "columns") and hasattr(rows, "where"):  # a data frame keeps its column names
        return rows.where(np.broadcast_to(usable, values.shape), 0)
    return np.where(usable, values, np.zeros((), values.dtype))


def clip_norm(
    x: ArrayLike, bound: float, *, order: Literal[1, 2] = 2, axis: int | tuple[int, ...] = -1
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
