"""Hashers to one file and back, through `blindsight.core.storage`: arrays and plain fields, never pickle."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from blindsight.core import storage
from blindsight.core.errors import HostileFile, InvalidParameter

__all__ = ["describe", "fingerprint", "load", "rebuild", "require", "save", "take"]

KIND = "hasher"
T = TypeVar("T")


def require(holds: bool, what: str) -> None:
    """Refuse a file unless `holds`."""
    if not holds:
        raise HostileFile(f"not a hasher that can be used: {what}. Fit and save it again.")


def describe(hasher: Any) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """(arrays, fields) that rebuild a fitted hasher."""
    if not hasattr(hasher, "state") or type(hasher).__name__ not in _names():
        raise InvalidParameter(f"only Blindsight's own hashers can be saved, got {type(hasher).__name__}.")
    arrays, learned = hasher.state()
    params = {key: value for key, value in hasher.get_params(deep=False).items() if _plain(value)}
    return arrays, {"class": type(hasher).__name__, "params": params, "learned": learned}


def fingerprint(hasher: Any) -> str:
    """A digest of what a fitted hasher computes: noise by name must differ between two functions of one record."""
    arrays, fields = describe(hasher)
    return storage.digest(str(fields["class"]), arrays)


def rebuild(arrays: dict[str, NDArray[Any]], fields: dict[str, Any]) -> Any:
    """The inverse of `describe`; refuses what does not fit together."""
    name, params, learned = fields.get("class"), fields.get("params"), fields.get("learned")
    require(isinstance(name, str) and name in _names(), "it names no known class")
    require(isinstance(params, dict) and isinstance(learned, dict), "its fields are missing")
    cls = getattr(importlib.import_module("blindsight.hashing"), str(name))
    try:
        hasher = cls(**{key: tuple(v) if isinstance(v, list) else v for key, v in (params or {}).items()})
        hasher.restore(arrays, learned or {})
    except HostileFile:
        raise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise HostileFile(f"not a hasher that can be used: {type(error).__name__} while reading it.") from error
    return hasher


def save(path: str | Path, hasher: Any) -> None:
    """Write a fitted hasher to `path`."""
    arrays, fields = describe(hasher)
    storage.save(path, kind=KIND, arrays=arrays, fields=fields)


def load(path: str | Path, cls: type[T] | None = None) -> T:
    """Read a hasher from `path`, of class `cls` if given."""
    arrays, fields = storage.load(path, kind=KIND)
    hasher = rebuild(arrays, fields)
    if cls is not None and not isinstance(hasher, cls):
        raise HostileFile(f"the file holds a {type(hasher).__name__}, not a {cls.__name__}.")
    return hasher


def take(target: Any, arrays: dict[str, NDArray[Any]], names: tuple[str, ...]) -> None:
    """Set the named arrays on `target`; each must be there and finite."""
    for name in names:
        require(name in arrays, f"the array {name!r} is missing")
        value = np.asarray(arrays[name])
        require(value.dtype.kind in "iufb" and bool(np.isfinite(value).all()), f"the array {name!r} is not finite")
        setattr(target, name, value)


def _names() -> tuple[str, ...]:
    return importlib.import_module("blindsight.hashing").ESTIMATORS


def _plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))
