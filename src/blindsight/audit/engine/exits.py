"""Everything by which a run can tell: what it returns, raises and writes, as parts that can be
compared byte by byte.

A run is called with its data and an empty folder of its own. Entropy is frozen meanwhile (the
operating system's, numpy's, torch's and Python's), so that two runs on the same data give the same
parts unless they read a clock.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

import numpy as np

from blindsight.core import storage
from blindsight.core.errors import BlindsightError, UnchargedRelease
from blindsight.privacy.door import Listener, listening

__all__ = ["Exit", "Run", "frozen", "parts_of", "take"]

Run: TypeAlias = Callable[[Any, Path], Any]


@dataclasses.dataclass(frozen=True)
class Exit:
    """What one run gave, as digests by name, and what it raised."""

    parts: dict[str, str]
    raised: str = ""

    def differing(self, other: Exit) -> list[str]:
        """The names of parts that are not the same."""
        names = [*self.parts, *(name for name in other.parts if name not in self.parts)]
        return [name for name in names if self.parts.get(name) != other.parts.get(name)]


def take(run: Run, data: Any, listener: Listener | None, *, seed: int = 0) -> Exit:
    """Run once with a listener at the door and return every output.

    Parameters:
        listener: stands at every door; None leaves the doors as they are in production.
    """
    heard = nullcontext() if listener is None else listening(listener)
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore", UnchargedRelease)
        folder = Path(place)
        with frozen(seed), _watched() as written, heard:
            try:
                value, raised = run(data, folder), ""
            except Exception as error:
                value, raised = None, f"{type(error).__name__}: {error}".replace(str(folder), "")
        parts = {"exception": _digest(raised.encode())}
        for name, content in parts_of(value):
            parts[name] = _digest(content)
        for name, content in _files(folder, written):
            parts[name] = _digest(content.replace(str(folder).encode(), b""))
    return Exit(parts, raised)


@contextmanager
def frozen(seed: int) -> Iterator[None]:
    """Entropy of the operating system, numpy, torch and Python's random, all from one seed; as it
    was afterwards.
    """
    source = np.random.default_rng(seed)
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    torch = sys.modules.get("torch")
    kept = None if torch is None else torch.get_rng_state()
    random.seed(seed)
    np.random.set_state(np.random.RandomState(seed).get_state())  # noqa: NPY002  (code under audit may use it)
    if torch is not None:
        torch.manual_seed(seed)
    try:
        with mock.patch("os.urandom", source.bytes), mock.patch("random._urandom", source.bytes):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(kept)


def parts_of(value: Any, name: str = "returned") -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of everything inside a value: arrays, containers, dataclasses and attributes of
    objects.
    """
    yield from _walk(value, name, {})


def _walk(value: Any, name: str, seen: dict[int, Any]) -> Iterator[tuple[str, bytes]]:
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, Path)):
        yield name, f"{type(value).__name__} {value!r}".encode()
        return
    if isinstance(value, (np.random.Generator, np.random.RandomState, np.random.SeedSequence)):
        yield name, b"a generator"
        return
    if id(value) in seen:
        return
    seen[id(value)] = (
        value  # kept alive: the id of a list that is gone may be given to the next one
    )
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
        yield name, f"{value.dtype} {value.shape} ".encode() + value.tobytes()
    elif type(value).__module__.split(".")[0] == "torch" and hasattr(value, "detach"):
        yield from _walk(value.detach().cpu().numpy(), name, seen)
    elif hasattr(value, "state_dict") and callable(value.state_dict):
        yield from _walk(dict(value.state_dict()), name, seen)
    else:
        yield name, type(value).__qualname__.encode()
        for key, inner in _inside(value):
            yield from _walk(inner, f"{name}.{key}", seen)


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield "keys", [str(key) for key in value]
        yield from ((str(key), inner) for key, inner in value.items())
    elif isinstance(value, (list, tuple, np.ndarray)):
        yield "length", len(value)
        yield from ((str(i), inner) for i, inner in enumerate(value))
    elif isinstance(value, (set, frozenset)):
        yield "items", sorted(map(repr, value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from (
            (field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)
        )
    elif isinstance(value, type) or callable(value):
        yield "called", getattr(value, "__qualname__", type(value).__qualname__)
    else:
        yield from getattr(value, "__dict__", {}).items()


def _files(folder: Path, written: list[Path]) -> Iterator[tuple[str, bytes]]:
    """Files in the run's folder by their names, and any other file that it wrote and left."""
    inside = sorted(path for path in folder.rglob("*") if path.is_file())
    outside = sorted({path for path in written if path.is_file() and folder not in path.parents})
    yield "files", "\n".join(str(path.relative_to(folder)) for path in inside).encode()
    for path in [*inside, *outside]:
        name = f"file {path.relative_to(folder) if path in inside else path}"
        yield from _contents(path, name)


def _contents(path: Path, name: str) -> Iterator[tuple[str, bytes]]:
    """A file's bytes; of our own format also field by field, so that a finding can say which."""
    try:
        kind, arrays, fields = storage.load_any(path)
    except (BlindsightError, OSError, ValueError):
        yield name, path.read_bytes()
        return
    # The order of arrays in memory is the reader's, not the file's.
    yield from _walk({"kind": kind, **dict(sorted(arrays.items())), **fields}, name, {})
    yield f"{name}, its bytes", path.read_bytes()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


_watching: list[Path] | None = None
_hooked = False


@contextmanager
def _watched() -> Iterator[list[Path]]:
    """The paths that are opened for writing or renamed to meanwhile, by whatever code."""
    global _watching, _hooked
    if not _hooked:
        sys.addaudithook(_heard)
        _hooked = True
    before, _watching = _watching, []
    try:
        yield _watching
    finally:
        _watching = before


def _heard(event: str, given: tuple[Any, ...]) -> None:
    if _watching is None or event not in ("open", "os.rename"):
        return
    if event == "os.rename":
        _note(given[1])
    else:
        path, mode, flags = given
        if (isinstance(mode, str) and set(mode) & set("wax+")) or (
            isinstance(flags, int) and flags & 3
        ):
            _note(path)


def _note(path: Any) -> None:
    if _watching is not None and isinstance(path, (str, bytes, os.PathLike)):
        found = Path(os.fsdecode(path)).absolute()
        if "__pycache__" not in found.parts and found.parts[:2] not in (
            ("/", "dev"),
            ("/", "proc"),
        ):
            _watching.append(found)
