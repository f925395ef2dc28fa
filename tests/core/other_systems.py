"""What macOS and Windows lack, taken away from this process before Blindsight is imported; then a
walk through its first hour.

    python other_systems.py      # leaves macos.json and windows.json, what was seen in each walk

Nothing here runs on those systems: it shows that no code relies on what they do not have. What they
do differently beyond that (files that are open cannot be replaced, folders cannot be opened, names
that are refused, text files in another encoding) is imitated by the calls through which it shows.
"""

from __future__ import annotations

import builtins
import ctypes
import fcntl
import io
import json
import os
import platform
import re
import select
import shutil
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

__all__ = ["become"]

NOT_ON_MACOS = ("memfd_create", "sched_getaffinity", "sched_setaffinity", "posix_fadvise")
NOT_ON_WINDOWS = (
    *("fork", "forkpty", "register_at_fork", "getuid", "geteuid", "getgid", "fchmod"),
    *("pread", "pwrite", "preadv", "pwritev", "readv", "writev", "sendfile", "statvfs", "sysconf"),
    *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "mkfifo", "killpg", "setsid"),
)
RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.IGNORECASE)
_flock, _open, _replace, _rename = fcntl.flock, os.open, os.replace, os.rename


def become(system: str) -> None:
    """Take away what the named system ("macos" or "windows") does not have."""
    assert "blindsight" not in sys.modules, "Blindsight must be imported later"
    for name in NOT_ON_MACOS:
        if hasattr(os, name):
            delattr(os, name)
    library = ctypes.CDLL
    if system == "macos":
        platform.system = lambda: "Darwin"
        ctypes.CDLL = lambda *args, **kw: _Without(library(*args, **kw))  # type: ignore[misc,assignment]
        _bound_no_address_space()
        return
    platform.system = lambda: "Windows"
    for module in ("fcntl", "resource", "pwd", "grp", "termios", "_posixshmem"):
        sys.modules[module] = None  # type: ignore[assignment]
    for name in NOT_ON_WINDOWS:
        if hasattr(os, name):
            delattr(os, name)
    del select.poll, signal.SIGKILL
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    os.getlogin = lambda: "somebody"
    sys.modules["msvcrt"] = _msvcrt()
    ctypes.CDLL = _no_default_library(library)  # type: ignore[misc,assignment]
    os.open, os.replace, os.rename = _opened, _replaced, _renamed
    subprocess.Popen.__init__ = _without_descriptors(subprocess.Popen.__init__)  # type: ignore[method-assign]
    subprocess.Popen.kill = lambda self: self.send_signal(9)  # type: ignore[method-assign]
    builtins.open = io.open = _file_opened(io.open)  # type: ignore[assignment]


class _Without:
    """A C library without the calls of Linux."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        if name in {"prctl", "unshare", "syscall", "renameat2", "mallopt"}:
            raise AttributeError(name)
        return getattr(self._library, name)


def _bound_no_address_space() -> None:
    import resource

    inner = resource.setrlimit

    def setrlimit(kind: int, limits: tuple[int, int]) -> None:
        if kind == resource.RLIMIT_AS:
            raise ValueError("current limit exceeds maximum limit")
        inner(kind, limits)

    resource.setrlimit = setrlimit


def _msvcrt() -> types.ModuleType:
    module = types.ModuleType("msvcrt")

    def locking(descriptor: int, mode: int, size: int) -> None:
        assert (mode, size) == (2, 1) and os.lseek(descriptor, 0, os.SEEK_CUR) >= 1 << 30
        _flock(descriptor, 2 | 4)  # LOCK_EX | LOCK_NB

    module.locking, module.LK_NBLCK = locking, 2  # type: ignore[attr-defined]
    return module


def _no_default_library(library: Any) -> Any:
    def load(name: Any = None, *args: Any, **options: Any) -> Any:
        if name is None:
            raise TypeError("expected str, bytes or os.PathLike object, not NoneType")
        return library(name, *args, **options)

    return load


def _check_name(path: Any) -> None:
    if isinstance(path, (str, bytes, os.PathLike)):
        for part in Path(os.fsdecode(path)).parts[1:]:
            if (
                RESERVED.fullmatch(part)
                or set(part) & set('<>:"|?*\\')
                or part.endswith((".", " "))
            ):
                raise OSError(22, "Invalid argument", os.fsdecode(path))


def _opened(path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
    _check_name(path)
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", os.fsdecode(path))
    return _open(path, flags, mode, **options)


def _file_opened(inner: Any) -> Any:
    def opened(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        _check_name(file)
        if "b" not in mode and len(args) < 2 and options.get("encoding") in (None, "locale"):
            options["encoding"] = "cp1252"
        return inner(file, mode, *args, **options)

    return opened


def _is_open(path: Any) -> bool:
    target = os.path.realpath(path)
    for entry in os.scandir("/proc/self/fd"):
        try:
            held = os.readlink(entry.path)
        except OSError:
            continue
        if held == target or held.startswith(f"{target}/"):
            return True
    return False


def _replaced(source: Any, target: Any, **options: Any) -> None:
    _check_name(target)
    if _is_open(source) or _is_open(target):
        raise PermissionError(13, "The process cannot access the file", os.fsdecode(source))
    _replace(source, target, **options)


def _renamed(source: Any, target: Any, **options: Any) -> None:
    if os.path.exists(target):
        raise FileExistsError(17, "File exists", os.fsdecode(target))
    _replaced(source, target, **options)


def _without_descriptors(inner: Any) -> Any:
    def start(self: Any, *args: Any, **options: Any) -> None:
        if options.get("pass_fds"):
            raise ValueError("pass_fds not supported on Windows.")
        inner(self, *args, **options)

    return start


def walk(system: str) -> dict[str, Any]:
    """Protect, search, open, attack and prune on the system, in the present folder."""
    become(system)
    import numpy as np
    from PIL import Image

    from blindsight.data import confined

    confined._MAIN = (
        "import json, sys; sys.path[:] = json.loads(sys.argv[2]); import numpy, PIL.Image, "
        f"other_systems; other_systems.become({system!r}); "
        "from blindsight.data.confined import main; main()"
    )
    import blindsight
    from blindsight.core import durable
    from blindsight.core.errors import HostileFile, InvalidData

    seen: dict[str, Any] = {}
    photos, release = Path("photos"), Path("release")
    photos.mkdir()
    for number in range(4):
        pixels = np.full((24, 24, 3), 60 * number + 20, np.uint8)
        Image.fromarray(pixels).save(photos / f"Größe {number}.png")
    (photos / "broken.png").write_bytes(b"no image")
    with blindsight.Ledger("b.db", dataset="photos") as ledger:
        ledger.grant(blindsight.Cost(epsilon=8, unit="record", neighbours="replace one"))
    options: dict[str, Any] = {"epsilon": 8, "encoder": "pixels", "ledger": "b.db"}
    made = blindsight.protect(photos, release, **options)
    codes = (release / "codes.index").read_bytes()
    blindsight.protect(photos, release, **options)
    seen["same codes"] = (release / "codes.index").read_bytes() == codes
    found = blindsight.search(release, photos / "Größe 1.png", vault=made.vault)
    seen["names"] = sorted(name for hit in found.hits for name in hit.names)
    seen["attacked"] = str(blindsight.audit_release(release)).splitlines()[0]
    (photos / "Größe 3.png").unlink()
    blindsight.protect(photos, release, prune=True, **options)
    seen["left"] = len(blindsight.open_release(release).entries["id"])
    seen["spent"] = str(blindsight.budget("b.db"))
    seen["walls"] = sorted({wall for each in confined._READERS.values() for wall in each.walls})
    with durable.only_writer(Path("shared")), durable.only_writer(Path()):
        path = Path("one.file")
        path.write_bytes(b"a\n")
        first = durable.DurableFile(path, lock=True)
        try:
            durable.DurableFile(path, lock=True)
        except InvalidData as error:
            seen["second writer"] = str(error)
        first.append(b"b\r\n")
        first.close()
        seen["bytes"] = path.read_bytes().decode()
    (slow, *_) = confined._READERS.values()
    slow.seconds = 1e-6
    try:
        slow.decode((photos / "Größe 0.png").read_bytes(), name="slow.png")
    except HostileFile as error:
        seen["slow"] = str(error)
    return seen


if __name__ == "__main__":
    # Other people's modules find what this system has; so do those of the standard library.
    import asyncio  # noqa: F401
    import multiprocessing.pool  # noqa: F401
    import sqlite3  # noqa: F401

    import cryptography.x509  # noqa: F401
    import faiss  # noqa: F401
    import PIL.Image  # noqa: F401
    import scipy.stats  # noqa: F401
    import sklearn.linear_model  # noqa: F401
    import sqlalchemy.pool  # noqa: F401

    for name in ("macos", "windows"):
        child = os.fork()
        if not child:
            os.mkdir(name)
            os.chdir(name)
            with open(f"../{name}.json", "w", encoding="utf-8") as file:
                json.dump(walk(name), file)
            sys.exit()
        if os.waitpid(child, 0)[1]:
            sys.exit(f"the walk on {name} failed")
