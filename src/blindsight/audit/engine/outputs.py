"""Every output of a run, as parts that can be compared byte by byte.

A run is called with its data and an empty folder of its own. Its outputs are what it returns and
raises; the files and folders that it leaves, with their modes, times and link targets; standard
output and standard error, also of code that writes to the file descriptors; log records of every
level; warnings; calls of a progress callback (`watch`); and times, extended attributes, environment
variables, network connections and programs that it sets, opens or starts.

Entropy is frozen meanwhile (the operating system's, numpy's, torch's and Python's), so that two
runs on the same data give the same parts unless they read a clock. How long a run takes is not
compared.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import logging
import os
import random
import re
import stat
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

import numpy as np

from blindsight.core import storage
from blindsight.core.errors import BlindsightError, UnchargedRelease
from blindsight.privacy.door import Listener, listening

__all__ = ["Outputs", "Run", "collect", "frozen", "parts_of", "watch"]

Run: TypeAlias = Callable[[Any, Path], Any]


@dataclasses.dataclass(frozen=True)
class Outputs:
    """The outputs of one run, as digests by name, and what it raised."""

    parts: dict[str, str]
    raised: str = ""

    def differing(self, other: Outputs) -> list[str]:
        """The names of parts that are not the same."""
        names = [*self.parts, *(name for name in other.parts if name not in self.parts)]
        return [name for name in names if self.parts.get(name) != other.parts.get(name)]


def collect(run: Run, data: object, listener: Listener | None, *, seed: int = 0) -> Outputs:
    """Run once with a listener at the door and return every output.

    Parameters:
        run: called with `data` and a folder.
        listener: stands at every door; None leaves the doors as they are in production.
        seed: of the frozen entropy.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with _Recorder() as recorder, ExitStack() as stack:
            stack.enter_context(frozen(seed))
            if listener is not None:
                stack.enter_context(listening(listener))
            try:
                value, raised = run(data, folder), ""
            except Exception as error:
                value, raised = None, f"{type(error).__name__}: {error}".replace(str(folder), "")
        parts = {"exception": _digest(raised.encode())}
        for name, content in parts_of(value):
            parts[name] = _digest(content)
        for name, content in _files(folder, recorder):
            parts[name] = _digest(content.replace(str(folder).encode(), b""))
        for name, words in recorder.spoken().items():
            parts[name] = _digest(_without_places(words, folder).encode())
    return Outputs(parts, raised)


def watch(*positional: object, **named: object) -> None:
    """A progress callback for audited runs: its arguments become part of the run's outputs."""
    if _recorder is not None:
        _recorder.progress.append(repr((positional, sorted(named.items()))))


@contextmanager
def frozen(seed: int) -> Iterator[None]:
    """Derive the entropy of the operating system, numpy, torch and `random` from one seed.

    Threads that run already keep the system's entropy: what they draw meanwhile would change what
    the run draws next. On exit the previous state is restored.
    """
    source, system = np.random.default_rng(seed), os.urandom
    others = set(threading.enumerate()) - {threading.current_thread()}

    def urandom(size: int) -> bytes:
        return system(size) if threading.current_thread() in others else source.bytes(size)

    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    torch = sys.modules.get("torch")
    torch_state = None if torch is None else torch.get_rng_state()
    random.seed(seed)
    np.random.set_state(np.random.RandomState(seed).get_state())  # noqa: NPY002  (code under audit may use it)
    if torch is not None:
        # `torch.manual_seed` sets the same, but formats a stack trace for each kind of device.
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(seed)
    try:
        with mock.patch("os.urandom", urandom), mock.patch("random._urandom", urandom):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(torch_state)


def parts_of(value: object, name: str = "returned") -> Iterator[tuple[str, bytes]]:
    """Yield (name, bytes) of everything inside a value.

    Arrays, containers, dataclasses and the attributes of objects are searched.
    """
    yield from _walk(value, name, {})


def _walk(value: object, name: str, visited: dict[int, Any]) -> Iterator[tuple[str, bytes]]:
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, Path)):
        yield name, f"{type(value).__name__} {value!r}".encode()
        return
    if isinstance(value, (np.random.Generator, np.random.RandomState, np.random.SeedSequence)):
        yield name, b"a generator"
        return
    if id(value) in visited:
        return
    visited[id(value)] = (
        value  # kept alive: the id of a deleted list may be reused for the next one
    )
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
        yield name, f"{value.dtype} {value.shape} ".encode() + value.tobytes()
    elif type(value).__module__.split(".")[0] == "torch" and hasattr(value, "detach"):
        yield from _walk(value.detach().cpu().numpy(), name, visited)
    elif hasattr(value, "state_dict") and callable(value.state_dict):
        yield from _walk(dict(value.state_dict()), name, visited)
    else:
        yield name, type(value).__qualname__.encode()
        for key, inner in _inside(value):
            yield from _walk(inner, f"{name}.{key}", visited)


def _inside(value: object) -> Iterator[tuple[str, Any]]:
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


def _files(folder: Path, recorder: _Recorder) -> Iterator[tuple[str, bytes]]:
    """Yield everything in the run's folder by name, and any other file that it wrote and left."""
    inside = sorted(folder.rglob("*"))
    outside = sorted(
        {path for path in recorder.written if path.is_file() and folder not in path.parents}
    )
    yield "files", "\n".join(str(path.relative_to(folder)) for path in inside).encode()
    for path in [*inside, *outside]:
        name = f"file {path.relative_to(folder) if path in inside else path}"
        if path.is_symlink():
            yield f"{name}, its target", os.readlink(path).encode()
        elif path.is_file():
            yield from _contents(path, name)
        if path in inside:
            yield f"{name}, its mode and time", _attributes(path, recorder).encode()


def _attributes(path: Path, recorder: _Recorder) -> str:
    """Return a file's mode and, unless it is the time of the run, its modification time."""
    status = path.lstat()
    during = recorder.began - 2e9 <= status.st_mtime_ns <= recorder.ended + 2e9
    return f"{stat.filemode(status.st_mode)} {'' if during else status.st_mtime_ns}"


def _contents(path: Path, name: str) -> Iterator[tuple[str, bytes]]:
    """Yield a file's bytes, and its fields if it has our own format, so that findings name them."""
    try:
        kind, arrays, fields = storage.load_any(path)
    except (BlindsightError, OSError, ValueError):
        yield name, path.read_bytes()
        return
    # The memory layout of an array is chosen by the reader and is not part of the file.
    yield from _walk({"kind": kind, **dict(sorted(arrays.items())), **fields}, name, {})
    yield f"{name}, its bytes", path.read_bytes()


# The random part of a temporary file's name.
_TEMPORARY = re.compile(re.escape(tempfile.gettempdir()) + r"/[\w.-]+")
_EVENTS = ("os.utime", "os.setxattr", "os.putenv", "socket.connect", "subprocess.Popen")


def _without_places(words: str, folder: Path) -> str:
    return _TEMPORARY.sub("TEMPORARY", words.replace(str(folder), "FOLDER"))


class _LogHandler(logging.Handler):
    """Keeps the message of every log record, without its time."""

    def __init__(self) -> None:
        super().__init__(logging.NOTSET)
        self.words: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.words.append(f"{record.name} {record.levelname} {record.getMessage()}")


class _Recorder:
    """Records what a run prints, logs, warns of, reports to `watch` and does to the system."""

    def __init__(self) -> None:
        self.written: list[Path] = []
        self.progress: list[str] = []
        self.events: list[str] = []
        self.began = self.ended = 0
        self._stack = ExitStack()
        self._log = _LogHandler()
        self._streams = {"stdout": io.StringIO(), "stderr": io.StringIO()}
        self._bytes = {"stdout": b"", "stderr": b""}

    def __enter__(self) -> _Recorder:
        global _recorder
        _hook()
        self._outer, _recorder = _recorder, self
        self.began = time.time_ns()
        stack = self._stack
        for number, name in ((1, "stdout"), (2, "stderr")):
            stack.enter_context(self._descriptor(number, name))
        stack.enter_context(redirect_stdout(self._streams["stdout"]))
        stack.enter_context(redirect_stderr(self._streams["stderr"]))
        self._warnings: Any = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", UnchargedRelease)
        stack.enter_context(_logging_to(self._log))
        return self

    def __exit__(self, *_: object) -> None:
        global _recorder
        self._stack.close()
        self.ended = time.time_ns()
        _recorder = self._outer

    def during(self, arguments: tuple[Any, ...]) -> bool:
        """Whether a file's time is set to a time of this run, as for copies of new files."""
        _, seconds, nanoseconds, *_ = arguments
        times = nanoseconds or [int(moment * 1e9) for moment in seconds or ()]
        return all(self.began - 2e9 <= moment <= time.time_ns() + 2e9 for moment in times)

    def spoken(self) -> dict[str, str]:
        """Return the recorded outputs by channel."""
        return {
            **{
                name: stream.getvalue() + self._bytes[name].decode(errors="replace")
                for name, stream in self._streams.items()
            },
            "logging": "\n".join(self._log.words),
            "warnings": "\n".join(
                f"{warning.category.__name__} {warning.message}" for warning in self._warnings
            ),
            "progress": "\n".join(self.progress),
            "system": "\n".join(self.events),
        }

    @contextmanager
    def _descriptor(self, number: int, name: str) -> Iterator[None]:
        """Record bytes written directly to a file descriptor, not through Python's streams."""
        stream = getattr(sys, f"__{name}__")
        if stream is not None:
            stream.flush()
        before = os.dup(number)
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), number)
            try:
                yield
            finally:
                if stream is not None:
                    stream.flush()
                os.dup2(before, number)
                os.close(before)
                file.seek(0)
                self._bytes[name] = file.read()


@contextmanager
def _logging_to(handler: logging.Handler) -> Iterator[None]:
    """Log our own loggers at every level, and others at their own level, to this handler.

    The root logger's other handlers rest meanwhile: they may print the time.
    """
    root, own = logging.getLogger(), logging.getLogger("blindsight")
    level, disabled = own.level, logging.root.manager.disable
    others, root.handlers = root.handlers, [handler]
    own.setLevel(logging.DEBUG)
    logging.disable(logging.NOTSET)
    try:
        yield
    finally:
        logging.disable(disabled)
        own.setLevel(level)
        root.removeHandler(handler)
        root.handlers = [*others, *root.handlers]  # with those that the run added


_recorder: _Recorder | None = None
_hooked = False


def _hook() -> None:
    """Subscribe to the interpreter's audit events at the first run."""
    global _hooked
    if not _hooked:
        sys.addaudithook(_heard)
        _hooked = True


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    recorder = _recorder
    if recorder is None:
        return
    if event == "os.rename":
        _note(recorder, arguments[1])
    elif event == "open":
        path, mode, flags = arguments
        if (isinstance(mode, str) and set(mode) & set("wax+")) or (
            isinstance(flags, int) and flags & 3
        ):
            _note(recorder, path)
    elif event in _EVENTS:
        # Workers run our own code in another process; they are started once and reused.
        worker = event == "subprocess.Popen" and arguments[0] == sys.executable
        if (event == "os.utime" and recorder.during(arguments)) or worker or _importing():
            return
        recorder.events.append(f"{event} {arguments!r}")


def _importing() -> bool:
    """Whether a module is being imported, which happens in the first run only."""
    frame = sys._getframe()
    while frame.f_back is not None:
        if "importlib._bootstrap" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def _note(recorder: _Recorder, path: object) -> None:
    if isinstance(path, (str, bytes, os.PathLike)):
        target = Path(os.fsdecode(path)).absolute()
        if "__pycache__" not in target.parts and target.parts[:2] not in (
            ("/", "dev"),
            ("/", "proc"),
        ):
            recorder.written.append(target)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
