"""Checks of parameters, with messages that say what was expected and what was found; optional
packages, and functions compiled by numba.
"""

from __future__ import annotations

import importlib
import math
import numbers
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core.errors import InvalidData, InvalidParameter, MissingDependency

__all__ = [
    "core_module",
    "finite_array",
    "njit",
    "non_negative",
    "number",
    "number_array",
    "one_of",
    "optional_module",
    "positive",
    "probability",
    "refuse_infinite",
    "whole",
]

T = TypeVar("T", bound=str)


def _refuse(name: str, expected: str, value: object) -> InvalidParameter:
    return InvalidParameter(f"{name} must be {expected}, got {value!r}.")


def number(name: str, value: object) -> float:
    """Check a real number: not a bool, not text, not NaN (infinity is allowed)."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise _refuse(name, "a number", value)
    result = float(value)
    if math.isnan(result):
        raise _refuse(name, "a number", value)
    return result


def positive(name: str, value: object) -> float:
    """Check a finite number above zero."""
    result = number(name, value)
    if not 0 < result < math.inf:
        raise _refuse(name, "a finite number above 0", value)
    return result


def non_negative(name: str, value: object, *, infinite: bool = False) -> float:
    """Check a number of at least zero; infinity is allowed only with `infinite`."""
    result = number(name, value)
    if result < 0 or (math.isinf(result) and not infinite):
        raise _refuse(name, "at least 0" if infinite else "finite and at least 0", value)
    return result


def probability(name: str, value: object, *, below_one: bool = False) -> float:
    """Check a number in [0, 1], or in [0, 1) with `below_one`."""
    result = number(name, value)
    if not 0 <= result <= 1 or (below_one and result == 1):
        raise _refuse(name, "in [0, 1)" if below_one else "in [0, 1]", value)
    return result


def whole(name: str, value: object, *, least: int = 1) -> int:
    """Check a whole number of at least `least`; a bool is refused."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
        raise _refuse(name, f"a whole number of at least {least}", value)
    if value < least:
        raise _refuse(name, f"a whole number of at least {least}", value)
    return int(value)


def one_of(name: str, value: T, allowed: Collection[T]) -> T:
    """Check that a value is one of the allowed words, which an error lists in their order."""
    if value not in allowed:
        words = ", ".join(
            repr(word)
            for word in (sorted(allowed) if isinstance(allowed, set | frozenset) else allowed)
        )
        raise _refuse(name, f"one of {words}", value)
    return value


def refuse_infinite(name: str, array: NDArray[np.float64]) -> None:
    """Raise `InvalidData` if the array holds NaN or infinity."""
    if not np.isfinite(array).all():
        raise InvalidData(
            f"{name} must be finite: it contains NaN or infinity. Clean or impute first."
        )


def number_array(name: str, value: ArrayLike, *, ndim: int | None = None) -> NDArray[np.float64]:
    """Convert to a float64 array; bool and text are refused, NaN is allowed."""
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise InvalidData(f"{name} must be an array of numbers, got dtype {array.dtype}.")
    if ndim is not None and array.ndim != ndim:
        raise InvalidData(f"{name} must have {ndim} dimensions, got shape {array.shape}.")
    return array.astype(np.float64, copy=False)


def finite_array(name: str, value: ArrayLike, *, ndim: int | None = None) -> NDArray[np.float64]:
    """Convert to a float64 array; bool, text, NaN and infinity are refused."""
    result = number_array(name, value, ndim=ndim)
    refuse_infinite(name, result)
    return result


def optional_module(module: str, *, extra: str) -> ModuleType:
    """Import an optional dependency, or a module of ours that needs one.

    Parameters:
        module: the module's name.
        extra: the extra that brings the dependency.

    Raises:
        MissingDependency: It is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(module)
    except MissingDependency:
        raise
    except ImportError as error:
        missing = module
        if module.startswith("blindsight."):
            missing = (error.name or "blindsight").partition(".")[0]
            if missing == "blindsight":  # our own mistake, which no extra fixes
                raise
        raise MissingDependency(
            f"{missing} is not installed. Install it with: pip install 'blindsight[{extra}]'."
        ) from error


def core_module(module: str) -> ModuleType:
    """Import a module that comes with the extra `core`, or one of ours that needs such a module.

    Raises:
        MissingDependency: The extra is not installed.
    """
    return optional_module(module, extra="core")


F = TypeVar("F", bound=Callable[..., Any])


def njit(**options: bool | str) -> Callable[[F], F]:
    """Decorate like `numba.njit` with these options, and keep the function's type.

    Raises:
        MissingDependency: numba is not installed.
    """
    compiler: Any = optional_module("numba", extra="compiled")
    decorate: Callable[[F], F] = compiler.njit(**options)
    return decorate
