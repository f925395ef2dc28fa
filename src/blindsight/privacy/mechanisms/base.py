"""Mechanisms as data: the protocol, the domains of their inputs, and their conversion to JSON.

Every value can be projected into a domain, so a release never refuses private data. A domain
projects any value of the right shape into itself (clipping is part of the mechanism), measures the
distance of two values in the mechanism's own metric, and states how far apart the values of
neighbours may be.

The additive mechanisms, which return their input plus noise, share `keep_dtype`, `check_grid` and
`grid_units`.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.privacy.cost import Cost, Neighbours, Sampler, Unit

__all__ = [
    "Bits",
    "Box",
    "Cells",
    "Domain",
    "Mechanism",
    "Reals",
    "Sphere",
    "check_grid",
    "from_fields",
    "grid_units",
    "keep_dtype",
    "register",
    "to_fields",
]


def keep_dtype(noisy: NDArray[Any], x: ArrayLike) -> NDArray[Any]:
    """Convert a noisy array to the float type of `x`.

    If `x` holds integers, the result is float64, because the noise is not a whole number.
    """
    dtype = np.asarray(x).dtype
    return noisy.astype(dtype if dtype.kind == "f" else np.float64, copy=False)


def check_grid(grid: float) -> float:
    """Check that a grid step is a power of two, whose multiples are exact as floats."""
    step = checks.positive("grid", grid)
    if math.frexp(step)[0] != 0.5:
        raise InvalidParameter(f"grid must be a power of two (such as 2**-10), got {grid!r}.")
    return step


def grid_units(x: ArrayLike, grid: float) -> NDArray[np.int64]:
    """Round every value to a whole number of grid steps, clipped to 2^52 steps.

    Clipping never moves two values apart, so it does not add to the sensitivity; refusing a value
    would reveal that it is large.
    """
    with np.errstate(over="ignore"):
        units = np.rint(checks.finite_array("x", x) / grid)
    return np.clip(units, -(2.0**52), 2.0**52).astype(np.int64)


# Larger sums lose their fraction in a float; sums of clipped values are far smaller.
_LARGEST = 2.0**52


class Domain(Protocol):
    """The set of values that a mechanism can release."""

    @property
    def reach(self) -> float:
        """The largest `distance` between the values of neighbours."""
        ...

    def project(self, x: ArrayLike) -> NDArray[Any]:
        """Return the value, or the nearest value inside the domain."""
        ...

    def distance(self, x: ArrayLike, other: ArrayLike) -> float:
        """The distance of two values in the metric of the mechanism."""
        ...


@dataclass(frozen=True)
class Reals:
    """Vectors of real numbers.

    Vectors of neighbours are at most `reach` apart in the norm of this order (1, 2, inf).
    """

    reach: float
    order: float

    def project(self, x: ArrayLike) -> NDArray[Any]:
        """Clip to numbers that keep their fraction in a float; NaN counts as zero."""
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
    """One value per record, released separately. Neighbours differ arbitrarily in one value."""

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
        return np.asarray(np.clip(np.asarray(x), 0, self.k - 1))

    def distance(self, x: ArrayLike, other: ArrayLike) -> float:
        return self._changed(x, other, 1)


@dataclass(frozen=True)
class Bits(_Rows):
    """Codes of n bits, as 0/1, False/True or -1/+1; a unit is a bit or the whole code."""

    n: int
    whole: bool

    def project(self, x: ArrayLike) -> NDArray[Any]:
        return np.asarray(x)

    def distance(self, x: ArrayLike, other: ArrayLike) -> float:
        """The number of codes, or of bits, that differ."""
        if not self.whole or np.asarray(x).size % self.n:
            return self._changed(x, other, 1)
        return self._changed(x, other, self.n)


@dataclass(frozen=True)
class Box(_Rows):
    """Rows in [-bound, bound]^d; with d = 0, rows of any length."""

    dimensions: int
    bound: float

    def project(self, x: ArrayLike) -> NDArray[Any]:
        """Clip every coordinate to the box; NaN counts as zero."""
        values = np.asarray(x)
        return np.asarray(np.nan_to_num(np.clip(values, -self.bound, self.bound)))

    def distance(self, x: ArrayLike, other: ArrayLike) -> float:
        return self._changed(x, other, self.dimensions or np.asarray(x).shape[-1])


@dataclass(frozen=True)
class Sphere(_Rows):
    """Unit vectors of d coordinates, or rows of zeros."""

    dimensions: int

    def project(self, x: ArrayLike) -> NDArray[Any]:
        """Scale every row to norm 1; coordinates that are not finite count as zero."""
        values = np.nan_to_num(np.asarray(x, dtype=np.float64), posinf=0.0, neginf=0.0)
        peak = np.abs(values).max(axis=-1, keepdims=True, initial=0)
        scaled = values / np.where(peak > 0, peak, 1.0)
        norm = np.linalg.norm(scaled, axis=-1, keepdims=True)
        unit = scaled / np.where(norm > 0, norm, 1.0)
        # Rows that already have norm 1 are unchanged to the last bit.
        return np.where(np.abs(norm * peak - 1) < 1e-9, values, unit).astype(
            np.asarray(x).dtype, copy=False
        )

    def distance(self, x: ArrayLike, other: ArrayLike) -> float:
        return self._changed(x, other, self.dimensions)


T = TypeVar("T", bound=type)
_KNOWN: dict[str, type] = {}


@runtime_checkable
class Mechanism(Protocol):
    """A frozen value that releases values of its domain and states the cost of a release.

    A Gaussian mechanism also has `mu` (sensitivity over sigma), with which accountants compose it
    tightly.
    """

    @property
    def unit(self) -> Unit: ...

    @property
    def neighbours(self) -> Neighbours: ...

    @property
    def cost(self) -> Cost: ...

    @property
    def domain(self) -> Domain: ...

    @property
    def sampler(self) -> Sampler: ...

    @property
    def says(self) -> str: ...

    def release(self, x: ArrayLike, *, rng: Any) -> NDArray[Any]: ...

    def log_prob(self, released: ArrayLike, x: ArrayLike) -> NDArray[Any]: ...

    def worst_pair(self) -> tuple[NDArray[Any], NDArray[Any]]: ...


def register(cls: T) -> T:
    """Register a mechanism (a frozen dataclass), so that guarantees and files can name its class.

    Raises:
        InvalidParameter: The class is not a frozen dataclass, or its name is already in use.
    """
    if not dataclasses.is_dataclass(cls):
        raise InvalidParameter(f"a mechanism must be a frozen dataclass, got {cls!r}.")
    registered = _KNOWN.setdefault(cls.__name__, cls)
    if registered is not cls:
        raise InvalidParameter(
            f"another mechanism is called {cls.__name__} already: choose another name."
        )
    return cls


def to_fields(mechanism: Any) -> dict[str, Any]:
    """Convert a mechanism to plain JSON values: {"type": class name, parameters ...}."""
    name = type(mechanism).__name__
    if _KNOWN.get(name) is not type(mechanism):
        raise InvalidParameter(
            f"{name} is not a registered mechanism: decorate it with mechanisms.register."
        )
    listed: Any = type(mechanism)
    values = {
        field.name: getattr(mechanism, field.name)
        for field in dataclasses.fields(listed)
        if field.init
    }
    plain = {
        key: f"{v.numerator}/{v.denominator}" if isinstance(v, Fraction) else v
        for key, v in values.items()
    }
    return {"type": name, **plain}


def from_fields(fields: Any) -> Any:
    """Make a mechanism from what `to_fields` returned; raise `InvalidData` for anything else."""
    if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
        raise InvalidData("a mechanism must be a JSON object with a type.")
    cls = _KNOWN.get(fields["type"])
    if cls is None:
        raise InvalidData(
            f"no mechanism is called {fields['type']!r}: register it before you read what names it."
        )
    kinds: dict[str, Any] = {
        field.name: field.type for field in dataclasses.fields(cls) if field.init
    }
    values = {key: value for key, value in fields.items() if key != "type"}
    if not values.keys() <= kinds.keys():
        raise InvalidData(
            f"a {fields['type']} has no parameter {sorted(values.keys() - kinds.keys())[0]!r}."
        )
    try:
        return cls(
            **{key: Fraction(v) if kinds[key] == "Fraction" else v for key, v in values.items()}
        )
    except (TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise InvalidData(f"not a {fields['type']} that can be used: {error}") from error
