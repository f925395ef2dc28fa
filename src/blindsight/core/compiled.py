"""Kernels compiled by numba, which only some parts need: those say so when they are imported, not
when they are used.

`njit(...)` is numba's, with the function's own type kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from blindsight.core.checks import optional_module

__all__ = ["njit"]

F = TypeVar("F", bound=Callable[..., Any])


def njit(**options: Any) -> Callable[[F], F]:
    """numba.njit with these options; without numba an error that names the extra."""
    compiler: Any = optional_module("numba", extra="compiled")
    decorate: Callable[[F], F] = compiler.njit(**options)
    return decorate
