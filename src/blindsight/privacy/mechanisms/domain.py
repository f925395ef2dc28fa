"""What a mechanism takes: a domain that every value can be put into, so that a release never
refuses private data.

A domain knows how to project any value of the right shape into itself (clipping is part of the
mechanism), how far two values are apart in the mechanism's own measure, and how far apart those of
neighbours may be.

The additive mechanisms share `keep_dtype`, `check_grid` and `grid_units`: one vector in, the same
vector plus noise out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter

__all__ = [
    "Bits",
    "Box",
    "Cells",
    "Domain",
    "Reals",
    "Sphere",
    "check_grid",
    "grid_units",
    "keep_dtype",
]


def keep_dtype(noisy: NDArray[Any], x: ArrayLike) -> NDArray[Any]:
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


def grid_units(x: ArrayLike, grid: float) -> NDArray[np.int64]:
    """The nearest whole number of grid steps to every value; beyond 2^52 steps the last one.

    Clipping brings values together, never apart, so it does not add to the sensitivity; refusing
    would tell.
    """
    with np.errstate(over="ignore"):
        units = np.rint(checks.finite_array("x", x) / grid)
    return np.clip(units, -(2.0**52), 2.0**52).astype(np.int64)


# Sums larger than this lose their fraction in a float: nothing that was clipped gets near it.
_LARGEST = 2.0**52


class Domain(Protocol):
    """Values a mechanism can release."""

    @property
    def reach(self) -> float:
        """How far apart, by `distance`, the values of neighbours may be."""
        ...

    def project(self, x: ArrayLike) -> NDArray[Any]:
        """The value itself, or the nearest one inside."""
        ...

    def distance(self, x: ArrayLike, other: ArrayLike) -> float:
        """How far apart two values are, in the measure that the mechanism protects."""
        ...


@dataclass(frozen=True)
class Reals:
    """Vectors of real numbers; those of neighbours are at most `reach` apart in the norm of this
    order (1, 2, inf).
    """

    reach: float
    order: float

    def project(self, x: ArrayLike) -> NDArray[Any]:
        """Numbers that are not finite count as zero, as a record outside every bound should."""
        values = np.asarray(x)
        if values.dtype.kind == "f":
            return np.asarray(np.nan_to_num(np.clip(values, -_LARGEST, _LARGEST), copy=False))
        return values.astype(np.float64)

    def distance(self, x: ArrayLike, other: ArrayLike) -> float:
        """The norm of the difference."""
        difference = (np.asarray(x, np.float64) - np.asarray(other, np.float64)).ravel()
        return float(np.linalg.norm(difference, ord=self.order)) if difference.size else 0.0


@dataclass(frozen=True)
class _Rows:
    """Values of records side by side, each released by itself: neighbours differ in one of them, in
    any way.
    """

    @property
    def reach(self) -> float:
        return 1.0

    def _changed(self, x: ArrayLike, other: ArrayLike, width: int) -> float:
        a, b = (np.asarray(value).reshape(-1, width) for value in (x, other))
        return float((a != b).any(axis=1).sum()) if a.shape == b.shape else math.inf


@dataclass(frozen=True)
class Cells(_Rows):
    """Whole numbers in [0, k), one per record."""

    k: int

    def project(self, x: ArrayLike) -> NDArray[Any]:
        """Numbers outside go to the nearest end."""
        return np.asarray(np.clip(np.asarray(x), 0, self.k - 1))

    def distance(self, x: ArrayLike, other: ArrayLike) -> float:
        """How many records differ."""
        return self._changed(x, other, 1)


@dataclass(frozen=True)
class Bits(_Rows):
    """Codes of n bits, as 0/1, False/True or -1/+1; a unit is a bit or the whole code."""

    n: int
    whole: bool

    def project(self, x: ArrayLike) -> NDArray[Any]:
        """Bits are bits: nothing to clip."""
        return np.asarray(x)

    def distance(self, x: ArrayLike, other: ArrayLike) -> float:
        """How many codes, or bits, differ."""
        if not self.whole or np.asarray(x).size % self.n:
            return self._changed(x, other, 1)
        return self._changed(x, other, self.n)


@dataclass(frozen=True)
class Box(_Rows):
    """Rows of [-bound, bound]^d; with d = 0 rows of any length."""

    dimensions: int
    bound: float

    def project(self, x: ArrayLike) -> NDArray[Any]:
        """Every coordinate into the box; what is no number counts as zero."""
        values = np.asarray(x)
        return np.asarray(np.nan_to_num(np.clip(values, -self.bound, self.bound)))

    def distance(self, x: ArrayLike, other: ArrayLike) -> float:
        """How many rows differ."""
        return self._changed(x, other, self.dimensions or np.asarray(x).shape[-1])


@dataclass(frozen=True)
class Sphere(_Rows):
    """Unit vectors of d coordinates, or rows of zeros."""

    dimensions: int

    def project(self, x: ArrayLike) -> NDArray[Any]:
        """Every row to norm 1; what is no number counts as zero."""
        values = np.nan_to_num(np.asarray(x, dtype=np.float64), posinf=0.0, neginf=0.0)
        peak = np.abs(values).max(axis=-1, keepdims=True, initial=0)
        scaled = values / np.where(peak > 0, peak, 1.0)
        norm = np.linalg.norm(scaled, axis=-1, keepdims=True)
        unit = scaled / np.where(norm > 0, norm, 1.0)
        # What is of norm 1 already stays as it is, to the last bit.
        return np.where(np.abs(norm * peak - 1) < 1e-9, values, unit).astype(
            np.asarray(x).dtype, copy=False
        )

    def distance(self, x: ArrayLike, other: ArrayLike) -> float:
        """How many rows differ."""
        return self._changed(x, other, self.dimensions)
