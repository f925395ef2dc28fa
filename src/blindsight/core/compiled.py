"""Functions compiled by numba. Modules that need it say so when they are imported, not when it is
used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from blindsight.core.checks import optional_module

__all__ = ["njit"]

F = TypeVar("F", bound=Callable[..., Any])


def njit(**options: bool | str) -> Callable[[F], F]:
    """`numba.njit` with these options, which keeps the function's type.

    Raises:
        MissingDependency: numba is not installed.
    """
    compiler: Any = optional_module("numba", extra="compiled")
    decorate: Callable[[F], F] = compiler.njit(**options)
    return decorate
