"""Mechanisms as data: what one must have, and its way to JSON and back by type name and
parameters.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any, Protocol, TypeVar, runtime_checkable

from numpy.typing import ArrayLike, NDArray

from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.privacy.cost import Cost, Neighbours, Sampler, Unit
from blindsight.privacy.mechanisms.domain import Domain

__all__ = ["Mechanism", "from_fields", "register", "to_fields"]

T = TypeVar("T", bound=type)
_KNOWN: dict[str, type] = {}


@runtime_checkable
class Mechanism(Protocol):
    """A frozen value that releases what lies in its domain, and knows what that costs.

    A Gaussian mechanism also has `mu` (sensitivity over sigma), by which accountants compose it
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
    """Make a mechanism (a frozen dataclass) known by its class name, so that guarantees and files
    can name it.
    """
    if not dataclasses.is_dataclass(cls):
        raise InvalidParameter(f"a mechanism must be a frozen dataclass, got {cls!r}.")
    known = _KNOWN.setdefault(cls.__name__, cls)
    if known is not cls:
        raise InvalidParameter(
            f"another mechanism is called {cls.__name__} already: choose another name."
        )
    return cls


def to_fields(mechanism: Any) -> dict[str, Any]:
    """{"type": class name, parameters ...}: plain values for JSON."""
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
    """The inverse of `to_fields`; anything else is refused."""
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
