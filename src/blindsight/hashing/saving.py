"""Hashers to one file and back, through `blindsight.core.storage`: arrays and plain fields, never
pickle.

Plain hashers write all they learned; private ones (`releasing`) what is public and what was
released.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from blindsight.core import storage
from blindsight.core.errors import HostileFile, InvalidParameter

__all__ = ["KIND", "describe", "load", "make", "rebuild", "require", "save", "take"]

KIND = "hasher"
T = TypeVar("T")


def require(holds: bool, what: str) -> None:
    """Refuse a file unless `holds`."""
    if not holds:
        raise HostileFile(f"not a hasher that can be used: {what}. Fit and save it again.")


def describe(hasher: Any) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """(arrays, fields) that rebuild a fitted plain hasher."""
    if not hasattr(hasher, "state") or type(hasher).__name__ not in _names():
        raise InvalidParameter(
            f"only Blindsight's own hashers can be saved, got {type(hasher).__name__}."
        )
    arrays, learned = hasher.state()
    return arrays, {
        "class": type(hasher).__name__,
        "params": plain_parameters(hasher),
        "learned": learned,
    }


def plain_parameters(hasher: Any) -> dict[str, Any]:
    """The parameters that are plain values; a seed that is a generator is not."""
    return {key: value for key, value in hasher.get_params(deep=False).items() if _plain(value)}


def make(name: Any, params: Any) -> Any:
    """An unfitted plain hasher from its class's name and its parameters."""
    require(isinstance(name, str) and name in _names(), "it names no known class")
    require(isinstance(params, dict), "its parameters are missing")
    cls = getattr(importlib.import_module("blindsight.hashing"), str(name))
    require(hasattr(cls, "restore"), "it names no plain hasher")
    return cls(
        **{key: tuple(value) if isinstance(value, list) else value for key, value in params.items()}
    )


def rebuild(arrays: dict[str, NDArray[Any]], fields: dict[str, Any]) -> Any:
    """The inverse of `describe`; refuses what does not fit together."""
    require(isinstance(fields.get("learned"), dict), "its fields are missing")
    try:
        hasher = make(fields.get("class"), fields.get("params"))
        hasher.restore(arrays, fields["learned"])
    except HostileFile:
        raise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise HostileFile(
            f"not a hasher that can be used: {type(error).__name__} while reading it."
        ) from error
    return hasher


def save(path: str | Path, hasher: Any) -> None:
    """Write a fitted plain hasher to `path`."""
    arrays, fields = describe(hasher)
    storage.save(path, kind=KIND, arrays=arrays, fields=fields)


def load(path: str | Path, cls: type[T] | None = None) -> T:
    """Read a hasher, plain or private, from `path`; of class `cls` if given."""
    arrays, fields = storage.load(path, kind=KIND)
    if isinstance(fields.get("parameters"), dict):
        name = fields["parameters"].get("class")
        require(isinstance(name, str) and name in _names(), "it names no known class")
        hasher = getattr(importlib.import_module("blindsight.hashing"), str(name)).load(path)
    else:
        hasher = rebuild(arrays, fields)
    if cls is not None and not isinstance(hasher, cls):
        raise HostileFile(f"the file holds a {type(hasher).__name__}, not a {cls.__name__}.")
    return hasher  # type: ignore[no-any-return]


def take(target: Any, arrays: dict[str, NDArray[Any]], names: tuple[str, ...]) -> None:
    """Set the named arrays on `target`; each must be there and finite."""
    for name in names:
        require(name in arrays, f"the array {name!r} is missing")
        value = np.asarray(arrays[name])
        require(
            value.dtype.kind in "iufb" and bool(np.isfinite(value).all()),
            f"the array {name!r} is not finite",
        )
        setattr(target, name, value)


def _names() -> tuple[str, ...]:
    names: tuple[str, ...] = importlib.import_module("blindsight.hashing").ESTIMATORS
    return names


def _plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))
