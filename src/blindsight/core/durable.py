"""The only code that appends, overwrites, renames, truncates and flushes files whose loss would
matter.

All functions use unbuffered descriptors, so that no buffer in Python is written after a call that
dropped its content. When a function returns, the bytes are on the disk. When it raises, the next
reader finds the state before the call (or, if only the last flush failed, the state after it),
never a mix. Where that cannot be ensured because cleaning up failed too, the open file is marked as
poisoned: it refuses further changes, and opening it again drops the incomplete piece.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from blindsight.core.errors import InvalidData

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "DurableFile",
    "close_to_others",
    "link_new",
    "lock",
    "make_folder",
    "only_writer",
    "open_file",
    "read_at",
    "remove",
    "rename",
    "replace_folder",
    "staging_folder",
    "sync_folder",
    "write_file",
]

_STEP = 1 << 24  # bytes per system call
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of Linux' renameat2
# Descriptors are not inherited by other programs; Windows would otherwise change line ends.
_OPENED = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_OPENS_FOLDERS = hasattr(os, "O_DIRECTORY")  # not on Windows
_LOCKED_BYTE = 1 << 30  # Windows blocks reads of a locked byte: lock one that nobody reads


class DurableFile:
    """An open file to which content is appended, each piece on the disk when `append` returns.

    Parameters:
        path: the file, which must exist.
        lock: allow one writer only: a second one is refused with `InvalidData`.
    """

    descriptor = -1

    def __init__(self, path: Path, *, lock: bool = False) -> None:
        self.path = path
        self.descriptor = open_file(path, os.O_RDWR)
        self._poisoned = False
        try:
            if lock:
                self._lock()
            self.end = os.fstat(self.descriptor).st_size
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        try:
            lock(self.descriptor, wait=False)
        except OSError as error:
            raise InvalidData(
                f"{self.path.name} is open for writing elsewhere. Close it there first."
            ) from error
        # The lock is on the file, not on its name: another writer may just have put a new file in
        # its place.
        held, named = os.fstat(self.descriptor), os.stat(self.path)
        if (held.st_dev, held.st_ino) != (named.st_dev, named.st_ino):
            raise InvalidData(f"{self.path.name} is being replaced. Open it again.")

    @property
    def size(self) -> int:
        """Bytes in the file now, acknowledged or not."""
        return os.fstat(self.descriptor).st_size

    def append(self, content: bytes, *, flush: bool = True) -> None:
        """Write behind the last acknowledged byte and return when it is on the disk.

        With `flush=False` the content survives a crash of this process, but perhaps not one of the
        machine.
        """
        self._check()
        try:
            _write_all(self.descriptor, content, self.end)
            if flush:
                _flush(self.descriptor)
        except BaseException:
            self._cut_or_poison(self.end)
            raise
        self.end += len(content)

    def overwrite(self, offset: int, content: bytes) -> None:
        """Replace bytes in place.

        This is not atomic: use it where another record says which part of the file is complete.
        """
        self._check()
        _write_all(self.descriptor, content, offset)
        _flush(self.descriptor)
        self.end = max(self.end, offset + len(content))

    def cut(self, end: int) -> None:
        """Drop everything behind `end`, on the disk too."""
        self._check()
        if self.size != end:
            self._cut_or_poison(end)
            self._check()
        self.end = end

    def move_to(self, path: Path, *, over: DurableFile) -> None:
        """Rename the file over another open one without releasing the lock.

        If flushing the folder fails, the file still has its new name, as `path` shows. Windows
        cannot replace an open file: there both are closed for a moment, and this one is locked
        again.
        """
        if _OPENS_FOLDERS:
            os.replace(self.path, path)
            self.path = path
        else:
            over.close()
            self.close()
            os.replace(self.path, path)
            self.path = path
            self.descriptor = open_file(path, os.O_RDWR)
            self._lock()
        sync_folder(path.parent)

    def close(self) -> None:
        """Close the file and release its lock; closing twice is harmless."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        try:
            self.close()
        except (AttributeError, OSError):
            return  # at interpreter exit: the module is torn down, or the descriptor is closed

    def _cut_or_poison(self, end: int) -> None:
        try:
            os.ftruncate(self.descriptor, end)
            _flush(self.descriptor)
        except OSError:
            # Later appends would follow an incomplete piece: acknowledged, but unreadable.
            self._poisoned = True

    def _check(self) -> None:
        if self._poisoned:
            raise InvalidData(
                f"an earlier write to {self.path.name} failed and could not be undone, so nothing "
                "more is written through this handle. Free some space or repair the disk, then "
                "open the file again: all acknowledged writes are in it."
            )
        if self.descriptor < 0:
            raise InvalidData(f"{self.path.name} is closed. Open it again to change it.")


def write_file(
    path: str | Path,
    content: bytes | Iterable[bytes],
    *,
    mode: int = 0o600,
    replace: bool = True,
    size: int | None = None,
) -> None:
    """Write a file under a temporary name, flush it, and rename it in one step.

    A reader finds the old file or the new one, never half of either.

    Parameters:
        path: the file.
        content: its content, or the pieces of it.
        mode: the permissions of the file.
        replace: whether to replace an existing file.
        size: the size of the file, which is filled up with zeros; by default that of the content.

    Raises:
        FileExistsError: the file exists, and `replace` is false.
    """
    folder, name = os.path.split(os.path.abspath(path))
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(8)}.part")
    remains = True  # whether the temporary name does
    try:
        descriptor = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            offset = 0
            for piece in (content,) if isinstance(content, bytes) else content:
                _write_all(descriptor, piece, offset)
                offset += len(piece)
            if size is not None:
                os.ftruncate(descriptor, size)
            _flush(descriptor)
        finally:
            os.close(descriptor)
        if replace:
            os.replace(temporary, path)
            remains = False
        else:
            os.link(temporary, path)
        sync_folder(folder)
    finally:
        if remains:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def link_new(source: Path, target: Path) -> None:
    """Give a finished file a second, unused name: of several writers only the first succeeds."""
    os.link(source, target)
    sync_folder(target.parent)


def rename(source: Path, target: Path) -> None:
    """Move a file over another in one step, on the disk when it returns."""
    os.replace(source, target)
    sync_folder(target.parent)


def remove(path: Path) -> None:
    """Delete a file, if it is there, and make sure that it does not come back after a crash."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    sync_folder(path.parent)


def make_folder(path: Path, *, mode: int = 0o700) -> None:
    """Make a folder that only its owner may enter; one that others may enter is closed to them."""
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    close_to_others(path, mode=mode)
    sync_folder(path.parent)


def close_to_others(path: Path, *, mode: int) -> None:
    """Remove the permissions beyond `mode` from a file or folder: copies and archives may restore
    wider ones.
    """
    if path.stat().st_mode & 0o777 & ~mode:
        path.chmod(mode)


@contextlib.contextmanager
def only_writer(folder: Path, name: str | None = None, *, wait: bool = True) -> Iterator[None]:
    """Let one thread or process at a time write into a folder, which is made if it is missing.

    The lock of a process that is killed is released.

    Parameters:
        folder: the folder.
        name: a file in the folder to lock, which is created; by default the folder is locked.
        wait: whether to wait while another holds the lock.

    Raises:
        BlockingIOError: another holds the lock, and `wait` is false.
    """
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
    if name is not None:
        descriptor = open_file(folder / name, os.O_RDWR | os.O_CREAT)
    elif _OPENS_FOLDERS:
        descriptor = open_file(folder, os.O_RDONLY)
    else:  # Windows opens no folder: a file beside it is locked
        resolved = folder.resolve()
        beside = resolved.with_name(f".{resolved.name}.lock")
        descriptor = open_file(beside, os.O_RDWR | os.O_CREAT)
    try:
        lock(descriptor, wait=wait)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def staging_folder(target: Path) -> Iterator[Path]:
    """Make an empty folder beside `target`, to be filled and given to `replace_folder`.

    Other threads and processes that replace a folder in the same place wait meanwhile. What was not
    given to `replace_folder` is deleted at the end, and what an earlier run left is deleted first.
    """
    with only_writer(target.parent):
        unfinished = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{16}}\.part")
        for path in target.parent.iterdir():
            if unfinished.fullmatch(path.name):
                shutil.rmtree(path)
        staging = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
        make_folder(staging)
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def replace_folder(staging: Path, target: Path, *, last: str) -> None:
    """Replace a folder by a finished one in one step, and delete the old one.

    A reader finds all files of the old folder or all files of the new one. Where the system cannot
    exchange two folders (another file system, a mount point), the files are replaced one by one.

    Parameters:
        staging: a flat folder whose files are on the disk already.
        target: the folder to replace, which may be missing.
        last: the file that lists the others. Where files are replaced one by one, it is removed
            first and written last.
    """
    sync_folder(staging)
    if not target.exists():
        os.rename(staging, target)
    elif not _exchange(staging, target):
        remove(target / last)
        names = {path.name for path in staging.iterdir()}
        for path in list(target.iterdir()):
            if path.name not in names:
                remove(path)
        for name in sorted(names, key=lambda name: name == last):
            rename(staging / name, target / name)
        os.chmod(target, staging.stat().st_mode & 0o777)
    sync_folder(target.parent)
    shutil.rmtree(staging, ignore_errors=True)  # now the old folder; a crash leaves it for later


def _exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two folders in one step; return False where that is not possible."""
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except (AttributeError, TypeError):  # macOS; Windows, which has no such library
        return False
    words = (_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE)
    return bool(renameat2(*words) == 0)


def sync_folder(folder: str | Path) -> None:
    """Flush a folder's list of names: a renamed file is safe only then.

    Windows has no such call; its file systems write names in a journal.
    """
    if not _OPENS_FOLDERS:
        return
    descriptor = open_file(folder, os.O_RDONLY)
    try:
        _flush(descriptor)
    finally:
        os.close(descriptor)


def open_file(path: str | Path, flags: int, mode: int = 0o600) -> int:
    """Open a file in binary mode; other programs do not inherit the descriptor.

    Parameters:
        path: the file.
        flags: `os.O_RDWR`, `os.O_CREAT` and the like.
        mode: the permissions of a file that is created.

    Returns:
        The descriptor.
    """
    return os.open(path, flags | _OPENED, mode)


def lock(descriptor: int, *, wait: bool = True) -> None:
    """Lock an open file exclusively; closing the descriptor or ending the process releases it.

    Parameters:
        descriptor: the open file. Two descriptors of one process exclude each other, too.
        wait: whether to wait while another holds it.

    Raises:
        BlockingIOError: another holds it, and `wait` is false.
    """
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return
    msvcrt: Any = import_module("msvcrt")
    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    while True:
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            return
        except OSError as error:
            if not wait:
                raise BlockingIOError(errno.EAGAIN, "the file is locked elsewhere") from error
        finally:
            os.lseek(descriptor, position, os.SEEK_SET)
        time.sleep(0.02)


def read_at(descriptor: int, size: int, offset: int) -> bytes:
    """Read at most `size` bytes at an offset."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, size, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.read(descriptor, size)


def _flush(descriptor: int) -> None:
    """Wait until the bytes are on the disk; macOS needs a separate call for that."""
    command = getattr(fcntl, "F_FULLFSYNC", None)
    if command is not None:
        with contextlib.suppress(OSError):  # a file system without it is flushed as elsewhere
            fcntl.fcntl(descriptor, command)
            return
    os.fsync(descriptor)


def _write_all(descriptor: int, content: bytes, offset: int) -> None:
    view = memoryview(content).cast("B")
    done = 0
    while done < len(view):
        piece = view[done : done + _STEP]
        if hasattr(os, "pwrite"):
            done += os.pwrite(descriptor, piece, offset + done)
        else:
            os.lseek(descriptor, offset + done, os.SEEK_SET)
            done += os.write(descriptor, piece)
