"""No release path refuses by private values, and none charges and then refuses.

Every scene of the replay contracts is run on data with one unusable record (NaN, infinite, 1e308),
on no record and on one.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import tempfile
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from blindsight.privacy.door import Door
from contracts.replay import ReplayContract

MODULES = sorted(path.stem for path in Path(__file__).parent.glob("test_replay*.py"))


def _scenes() -> list[Any]:
    found = []
    for module in map(importlib.import_module, (f"contracts.{name}" for name in MODULES)):
        for name, case in inspect.getmembers(module, inspect.isclass):
            own = case.__module__ == module.__name__
            if own and issubclass(case, ReplayContract) and name.startswith("Test"):
                part = module.__name__.removeprefix("contracts.test_replay").lstrip("_")
                found.append(pytest.param(case, id=f"{part or 'privacy'}:{name}"))
    return found


class _Run:
    """What one run did at the door: how many charges, and what it raised."""

    def __init__(self, case: Any, data: Any) -> None:
        self.charges: list[str] = []
        self.error: Exception | None = None
        real = Door._charge

        def charge(door: Door, *given: Any, **named: Any) -> Any:
            done = real(door, *given, **named)
            self.charges.append(door.what)
            return done

        with (
            tempfile.TemporaryDirectory() as folder,
            warnings.catch_warnings(),
            mock.patch.object(Door, "_charge", charge),
        ):
            warnings.simplefilter("ignore")
            try:
                case.run(data, Path(folder))
            except Exception as error:
                self.error = error


def _arrays(data: Any) -> list[Any]:
    return [np.array(part) for part in (data if isinstance(data, tuple) else (data,))]


def _spoilt(data: Any, value: float) -> Any:
    """The data with their first record unusable wherever it has real numbers."""
    arrays = _arrays(data)
    with np.errstate(over="ignore"):
        for array in arrays:
            if array.dtype.kind == "f":
                array[0] = value
    return tuple(arrays) if isinstance(data, tuple) else arrays[0]


def _first(data: Any, count: int) -> Any:
    return tuple(part[:count] for part in data) if isinstance(data, tuple) else data[:count]


@functools.cache
def _warm(scene: Any) -> None:
    """Run a scene once: some train a model in their first run, which is charged, and keep it."""
    case = scene()
    _Run(case, case.data())


@pytest.mark.parametrize("scene", _scenes())
def test_an_unusable_record_changes_neither_refusals_nor_charges(scene: Any) -> None:
    _warm(scene)
    case = scene()
    data = case.data()
    sound = _Run(case, data)
    assert sound.error is None and sound.charges
    if not any(array.dtype.kind == "f" for array in _arrays(data)):
        return  # pictures: whole numbers are always usable
    for value in (np.nan, np.inf, -np.inf, 1e308):
        spoilt = _Run(case, _spoilt(data, value))
        assert spoilt.error is None, f"refuses a record of {value}: {spoilt.error!r}"
        assert spoilt.charges == sound.charges


@pytest.mark.parametrize("scene", _scenes())
@pytest.mark.parametrize("count", [0, 1], ids=["empty", "one record"])
def test_nothing_is_charged_and_then_refused(scene: Any, count: int) -> None:
    _warm(scene)
    case = scene()
    small = _Run(case, _first(case.data(), count))
    if small.error is not None:
        assert not small.charges, f"charged, then refused: {small.error!r}"
        assert type(small.error).__module__.startswith("blindsight.") or isinstance(
            small.error, ValueError
        ), f"not a sentence for the user: {small.error!r}"
    elif count:
        assert small.charges


def test_every_module_of_replay_contracts_has_scenes() -> None:
    named = {scene.id.partition(":")[0] for scene in _scenes()}
    assert len(named) == len(MODULES) >= 7
