"""Neighbours of a data set, with one record at extremes, and unrelated data sets; made without
knowing what the data are.

A data set is an array or a tuple of arrays with one row per record. Real numbers go to both ends,
to the opposite, to zero, far out and onto one axis, and become NaN, infinite and 1e308; whole
numbers and labels go to their least and largest; a record becomes a copy of another; or it is
absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from blindsight.audit.engine.door import Neighbour
from blindsight.core.arrays import Array
from blindsight.core.errors import InvalidParameter

__all__ = ["neighbours_of", "unrelated_datasets"]

_FAR, _HUGE = 1e6, 1e308


def neighbours_of(
    data: Any,
    *,
    records: Sequence[int] = (0,),
    removed: bool = False,
    bounds: tuple[float, float] | None = None,
) -> list[Neighbour]:
    """`data` with one record replaced by extremes, for each of `records`; with `removed`, also
    absent.

    `bounds` are what real numbers may be (pixels: (0, 1)); without them records go far out too.
    """
    arrays, whole = _arrays(data)
    found = []
    for record in records:
        for name, rows in _rows(arrays, record % len(arrays[0]), bounds):
            changed = [array.copy() for array in arrays]
            for array, row in zip(changed, rows, strict=True):
                array[record] = row
            found.append(
                Neighbour(
                    f"{name}, record {record}", whole(changed), record=record % len(arrays[0])
                )
            )
        if removed:
            place = record % len(arrays[0])
            found.append(Neighbour(f"absent, record {record}", data, record=place, absent=(place,)))
    return found


def unrelated_datasets(
    data: Any, *, seed: int = 0, bounds: tuple[float, float] | None = None
) -> list[Any]:
    """Data of the same shapes and of the same public domains, but otherwise wholly different."""
    arrays, whole = _arrays(data)
    rng = np.random.default_rng(seed)
    ways = (_random, _constant, _constant_high, _shuffled)
    return [whole([way(array, rng, bounds) for array in arrays]) for way in ways]


def _arrays(data: Any) -> tuple[list[Array], Any]:
    arrays = [np.asarray(part) for part in data] if isinstance(data, tuple) else [np.asarray(data)]
    if len({len(array) for array in arrays}) != 1 or len(arrays[0]) < 3:
        raise InvalidParameter(
            "data must be arrays with one row per record, of at least three records."
        )
    return arrays, (tuple if isinstance(data, tuple) else lambda parts: parts[0])


def _rows(arrays: list[Array], record: int, bounds: Any) -> Iterator[tuple[str, list[Array]]]:
    """What the record may become: every array at the same extreme, and each array by itself."""
    kept = [array[record].copy() for array in arrays]
    other = (record + len(arrays[0]) // 2) % len(arrays[0])
    yield "a copy of another", [array[other] for array in arrays]
    extremes = [dict(_extremes(array, record, bounds)) for array in arrays]
    for name in dict.fromkeys(name for each in extremes for name in each):
        yield name, [each.get(name, row) for each, row in zip(extremes, kept, strict=True)]
    if len(arrays) > 1:
        for place, each in enumerate(extremes):
            for name in ("low", "high"):
                yield f"{name} in part {place}", [*kept[:place], each[name], *kept[place + 1 :]]


def _extremes(array: Array, record: int, bounds: Any) -> Iterator[tuple[str, Array]]:
    row = array[record]
    low, high = _ends(array, bounds)
    yield "low", np.full_like(row, low)
    yield "high", np.full_like(row, high)
    if array.dtype.kind == "f":
        yield "opposite", (low + high - row).astype(row.dtype)
        yield "zero", np.clip(np.zeros_like(row), low, high)
        if np.ndim(row):
            axis = np.clip(np.zeros_like(row), low, high)
            axis.reshape(-1)[0] = high
            yield "one axis", axis
        for name, value in (("NaN", np.nan), ("infinite", np.inf), ("huge", _HUGE)):
            with np.errstate(over="ignore"):  # beyond single precision, which makes it infinite
                yield name, np.full_like(row, value)
        if bounds is None:
            yield "far", (np.where(np.asarray(row) < 0, -1, 1) * _FAR).astype(row.dtype)
            yield (
                "far and opposite",
                (np.where(np.asarray(row) < 0, 1, -1) * _FAR).astype(row.dtype),
            )


def _ends(array: Array, bounds: tuple[float, float] | None) -> tuple[Any, Any]:
    if array.dtype.kind == "f":
        if bounds is not None:
            found: tuple[Any, Any] = bounds
            return found
        reach = float(np.abs(array).max(initial=0)) or 1.0
        return -reach, reach
    return array.min(), array.max()


def _random(array: Array, rng: Any, bounds: Any) -> Array:
    low, high = _ends(array, bounds)
    if array.dtype.kind == "f":
        return np.asarray(rng.uniform(low, high, array.shape), array.dtype)
    return np.asarray(rng.integers(int(low), int(high) + 1, array.shape), array.dtype)


def _constant(array: Array, rng: Any, bounds: Any) -> Array:
    return np.full_like(array, _ends(array, bounds)[0])


def _constant_high(array: Array, rng: Any, bounds: Any) -> Array:
    return np.full_like(array, _ends(array, bounds)[1])


def _shuffled(array: Array, rng: Any, bounds: Any) -> Array:
    return np.asarray(array[rng.permutation(len(array))][::-1].copy())
