"""Fetch a data set from the package that contains it: download, check, unpack, convert.

Every step works in a folder of its own and ends with a rename, so that a data set is either
complete or absent, even after a power failure; a finished step is not repeated.

Packages are downloaded with the machine's own client (pip, npm or apt). No script of a package is
run, and the paths inside an archive are compared but never written to.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from blindsight.core import durable
from blindsight.core.errors import HostileFile, MissingData, MissingDependency
from blindsight.data.fetch.recipes import RECIPES, Member, PackageRecipe

__all__ = [
    "RECIPES",
    "Member",
    "PackageRecipe",
    "cache_folder",
    "checksum",
    "command",
    "data_folder",
    "download",
    "get",
    "is_offline",
    "unpack",
]


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


def is_offline() -> bool:
    """Whether fetching is switched off, by `blindsight --offline` or BLINDSIGHT_OFFLINE=1."""
    return os.environ.get("BLINDSIGHT_OFFLINE") == "1"


def get(
    name: str, *, progress: Progress | None = None, recipe: PackageRecipe | None = None
) -> Path:
    """Fetch a data set into the cache, unless it is there already, and return its folder.

    Parameters:
        name: "mnist", "fashion-mnist", "cifar10", "adult" or "bank".
        progress: Called with (bytes done, bytes in all), downloading and unpacking together.
        recipe: How to get it, if it is none of the known ones.

    Raises:
        MissingData: There is no such set, the disk is full, or the package could not be downloaded.
        MissingDependency: The registry's client is not installed.
        HostileFile: The package is not, byte for byte, the known one.
    """
    chosen = recipe or RECIPES.get(name)
    if chosen is None:
        raise MissingData(
            f"{name!r} cannot be fetched. What can: {', '.join(RECIPES)}. See blindsight data list."
        )
    target = cache_folder() / "sets" / chosen.name
    if target.is_dir():
        return target
    source = f"{chosen.size / 1e6:.1f} MB, package {chosen.package} {chosen.version}"
    if is_offline():
        raise MissingData(
            f"{chosen.name} is not on this machine ({source}), and fetching is switched off. "
            "On a machine with a network run: blindsight data get "
            f"{chosen.part_of or chosen.name}. Then copy "
            f"{f'what it names to {target.parent}' if chosen.part_of else f'it to {target}'} here."
        )
    print(f"fetching {chosen.name} ({source}, checked by SHA-256) to {target}", file=sys.stderr)
    # One process at a time: the first to finish deletes the package that another would unpack.
    with durable.only_writer(cache_folder() / "locks", chosen.name):
        if not target.is_dir():  # another process may have been faster
            _fetch(chosen, target, progress)
    return target


def _fetch(recipe: PackageRecipe, target: Path, progress: Progress | None) -> None:
    unpacked = sum(member.size for member in recipe.members)
    tell = _Progress(progress, recipe.size + unpacked)
    _check_room(2 * recipe.size + 6 * unpacked)
    package = _package(recipe, tell)
    tell(recipe.size)
    with _workshop(recipe.name) as work:
        parts, finished = work / "parts", work / "whole"
        parts.mkdir()
        finished.mkdir()
        unpack(recipe, package, parts, progress=lambda done: tell(recipe.size + done))
        recipe.finish(parts, finished)
        _publish(finished, target)
    package.unlink(missing_ok=True)
    tell(recipe.size + unpacked)


class _Progress:
    """Progress that never decreases, whatever a client does with its files."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def __call__(self, done: int) -> None:
        self._done = min(max(self._done, done), self._total)
        if self._progress is not None:
            self._progress(self._done, self._total)


def _package(recipe: PackageRecipe, tell: Callable[[int], None]) -> Path:
    """Return the verified package, stored by an earlier run or downloaded now."""
    stored = cache_folder() / "downloads" / recipe.file
    if _is_whole(stored, recipe):
        return stored
    stored.unlink(missing_ok=True)  # a damaged file of an earlier run
    stored.parent.mkdir(parents=True, exist_ok=True)
    # A client may outlive the process that started it, and finish after that process has ended.
    for candidate in (cache_folder() / "work").glob(f"{recipe.name}-*/*"):
        if _is_whole(candidate, recipe):
            try:
                os.link(candidate, stored)  # not moved: the process that owns it may still run
            except FileExistsError:
                pass
            except FileNotFoundError:  # and has deleted it
                continue
            return stored
    with _workshop(recipe.name) as work:
        brought = download(recipe, work, progress=lambda done: tell(min(done, recipe.size)))
        digest = checksum(brought)
        if digest != recipe.sha256:
            raise HostileFile(
                f"{recipe.package} {recipe.version} is not the known package: its SHA-256 starts "
                f"with {digest[:12]}, not {recipe.sha256[:12]}. It was deleted."
            )
        os.replace(brought, stored)
    return stored


def _is_whole(path: Path, recipe: PackageRecipe) -> bool:
    try:
        return (
            path.is_file()
            and path.stat().st_size == recipe.size
            and checksum(path) == recipe.sha256
        )
    except OSError:
        return False


def _publish(finished: Path, target: Path) -> None:
    """Rename a finished set to its final name, unless another process was faster."""
    for path in finished.iterdir():
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(finished, target)
    except OSError:
        if not target.is_dir():
            raise


@contextlib.contextmanager
def _workshop(name: str) -> Iterator[Path]:
    """Make a temporary folder in the cache, on the same disk so that renames are atomic."""
    parent = cache_folder() / "work"
    parent.mkdir(parents=True, exist_ok=True)
    for leftover in parent.iterdir():  # of killed processes
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(leftover, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))
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
            "Free some space, or name another folder in BLINDSIGHT_CACHE."
        )


_TIMEOUT = 1800.0
_NEEDED = {
    "npm": ("npm", "Install Node.js (it brings npm)"),
    "apt": (
        "apt-get",
        "It is there on Debian and Ubuntu; elsewhere take the package's files to BLINDSIGHT_DATA",
    ),
    "pip": (sys.executable, "Install it with: python -m ensurepip (or: uv pip install pip)"),
}


def command(recipe: PackageRecipe) -> list[str]:
    """Return the command that downloads the package; no script of the package is run."""
    match recipe.client:
        case "npm":
            quiet = ["--ignore-scripts", "--silent"]
            return ["npm", "pack", *quiet, f"{recipe.package}@{recipe.version}"]
        case "apt":
            return ["apt-get", "download", "-q", f"{recipe.package}={recipe.version}"]
        case _:
            # Wheels only: a source package would run its own code to describe itself.
            quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
            pip = [sys.executable, "-m", "pip", "download"]
            return [*pip, *quiet, f"{recipe.package}=={recipe.version}"]


def download(
    recipe: PackageRecipe, folder: Path, *, progress: Callable[[int], None] | None = None
) -> Path:
    """Run the client in `folder` and return the file that it downloaded (not yet verified).

    Raises:
        MissingDependency: The client is not installed.
        MissingData: The client failed; its last line is part of the message.
    """
    program, advice = _NEEDED[recipe.client]
    without_pip = recipe.client == "pip" and importlib.util.find_spec("pip") is None
    if shutil.which(program) is None or without_pip:
        raise MissingDependency(
            f"{recipe.name} is downloaded with {recipe.client}, which is not installed. {advice}."
        )
    log = folder / "client.log"
    with log.open("wb") as output:
        # The program and its arguments are constants of ours; no shell is involved.
        process = subprocess.Popen(  # noqa: S603
            command(recipe), cwd=folder, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            _wait(process, folder, progress)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode != 0:
        messages = log.read_text(errors="replace").strip().splitlines()
        reason = messages[-1][:200] if messages else f"exit code {process.returncode}"
        # After its attempts to connect, pip's last line says that no version of the package exists.
        if any("connection" in line.lower() for line in messages):
            reason = "there is no connection to the package registry"
        raise MissingData(
            f"{recipe.client} could not download {recipe.package} {recipe.version}: {reason}. "
            "Check the network, then run it again."
        )
    brought = [path for path in folder.iterdir() if path != log and path.is_file()]
    if len(brought) != 1:
        raise HostileFile(
            f"{recipe.client} should download one file for {recipe.package}, found {len(brought)}."
        )
    return brought[0]


def _wait(
    process: subprocess.Popen[bytes], folder: Path, progress: Callable[[int], None] | None
) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while process.poll() is None:
        if time.monotonic() > deadline:
            raise MissingData(
                f"the client took longer than {_TIMEOUT:.0f} s. Check the network, then run it "
                "again."
            )
        if progress is not None:
            progress(sum(_size(path) for path in folder.iterdir() if path.name != "client.log"))
        time.sleep(0.1)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # the client has renamed or deleted it
        return 0


_PIECE = 1 << 20
_LARGEST_ARCHIVE = 2 << 30


def checksum(path: Path) -> str:
    """SHA-256 of a file, read piece by piece."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def unpack(
    recipe: PackageRecipe,
    archive: Path,
    folder: Path,
    *,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write each member of the recipe into `folder` under the recipe's name for it.

    Only regular files with exactly the recorded path, size and SHA-256 are written; links, devices
    and all other members are skipped, so that nothing can be written outside `folder`.
    """
    try:
        _take(recipe, archive, folder, progress)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise MissingData(
                f"the disk is too full for {recipe.name}. Free some space, then run it again."
            ) from error
        raise HostileFile(f"{recipe.file} cannot be unpacked ({type(error).__name__}).") from error


def _take(
    recipe: PackageRecipe, archive: Path, folder: Path, progress: Callable[[int], None] | None
) -> None:
    wanted = {member.path: member for member in recipe.members}
    done = 0
    for path, size, stream in _regular_files(recipe, archive, set(wanted)):
        member = wanted.pop(path, None)
        if member is None:
            continue
        if size != member.size:
            raise HostileFile(f"{path} in {recipe.file} has {size:,} bytes, not {member.size:,}.")
        _copy(stream, member, folder / member.name)
        done += member.size
        if progress is not None:
            progress(done)
    if wanted:
        raise HostileFile(f"{recipe.file} lacks {', '.join(sorted(wanted))}.")


def _copy(stream: IO[bytes], member: Member, target: Path) -> None:
    digest, remaining = hashlib.sha256(), member.size
    with target.open("wb") as output:
        while remaining > 0:
            piece = stream.read(min(_PIECE, remaining))
            if not piece:
                raise HostileFile(f"{member.path} ends {remaining:,} bytes too early.")
            digest.update(piece)
            output.write(piece)
            remaining -= len(piece)
    if digest.hexdigest() != member.sha256:
        target.unlink()
        raise HostileFile(f"{member.path} is not the known file: its SHA-256 differs.")


def _regular_files(
    recipe: PackageRecipe, archive: Path, wanted: set[str]
) -> Iterator[tuple[str, int, IO[bytes]]]:
    if recipe.client == "pip":
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                if info.filename in wanted and not info.is_dir():
                    with zipped.open(info) as member:
                        yield info.filename, info.file_size, member
    elif recipe.client == "apt":
        # dpkg-deb only turns the package into a tar stream; what is taken from it is decided here.
        with (
            _piped(["dpkg-deb", "--fsys-tarfile", str(archive)]) as pipe,
            tarfile.open(fileobj=pipe, mode="r|") as tar,
        ):
            yield from _tar_files(tar)
    else:
        with tarfile.open(archive, mode="r:gz") as tar:
            yield from _tar_files(tar)


def _tar_files(tar: tarfile.TarFile) -> Iterator[tuple[str, int, IO[bytes]]]:
    total = 0
    for info in tar:
        total += max(info.size, 0)
        if total > _LARGEST_ARCHIVE:
            raise HostileFile(f"the package unpacks to more than {_LARGEST_ARCHIVE:,} bytes.")
        # Links, devices and folders are never followed or made.
        if info.isreg() and (stream := tar.extractfile(info)) is not None:
            yield info.name.removeprefix("./"), info.size, stream


@contextlib.contextmanager
def _piped(command: list[str]) -> Iterator[IO[bytes]]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:  # noqa: S603
        if process.stdout is None:
            raise OSError("no pipe")
        try:
            yield process.stdout
        finally:
            process.stdout.close()
            process.kill()
