"""Watch a folder: protect new photos as they arrive."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from blindsight.app.protect import PathText, ProtectedPhotos, protect
from blindsight.app.result import JobResult, ResultTable, counted, files_table
from blindsight.core.checks import optional_module
from blindsight.core.errors import InvalidData
from blindsight.data.listing import list_photos
from blindsight.index.release_folder import vault_beside

__all__ = ["WatchedFolder", "WatchedRun", "watch"]

# Milliseconds after which the watcher checks whether it should stop.
_PAUSE = 250


@dataclass(frozen=True)
class WatchedRun:
    """One run while a folder was watched.

    Parameters:
        time: when it ended, in UTC.
        released: number of photos that it released.
        stored: number of codes in the release afterwards.
        unreadable: number of files that could not be read.
        skipped: number of other files in the folder.
        charged: what was charged, as text.
    """

    time: datetime
    released: int
    stored: int
    unreadable: int
    skipped: int
    charged: str

    def __str__(self) -> str:
        """Return one line for a log, with counts but without names and paths."""
        return (
            f"{self.time:%Y-%m-%dT%H:%M:%SZ} {self.released:,} released, {self.stored:,} in the "
            f"release, {self.unreadable:,} could not be read, {self.skipped:,} other files skipped"
        )


@dataclass(frozen=True)
class WatchedFolder(JobResult):
    """The result of `watch`, after it was stopped.

    Parameters:
        runs: the first run, and every run that released photos.
        last: the result of the last run; None if no photo ever arrived.

    Examples:
        >>> print(WatchedFolder(runs=(), last=None))
        0 photos protected while the folder was watched
          release  none: no photo arrived
    """

    runs: tuple[WatchedRun, ...]
    last: ProtectedPhotos | None

    @property
    def title(self) -> str:
        released = sum(run.released for run in self.runs)
        return f"{counted(released, 'photo')} protected while the folder was watched"

    def facts(self) -> list[tuple[str, str]]:
        if self.last is None:
            return [("release", "none: no photo arrived")]
        return [
            ("runs", f"{len(self.runs):,}"),
            ("codes in the release", f"{self.last.counts.stored:,}"),
            ("guarantee", self.last.guarantee.line()),
            ("ledger", self.last.charged),
        ]

    def tables(self) -> list[ResultTable]:
        return [] if self.last is None else [files_table(self.last.files)]


def watch(
    photos: PathText,
    release: PathText,
    *,
    epsilon: float | None = None,
    ledger: PathText | None = None,
    dataset: str | None = None,
    actor: str | None = None,
    purpose: str = "",
    vault: PathText | None = None,
    encoder: PathText | None = None,
    fast: bool = False,
    people: str | None = None,
    max_per_person: int | None = None,
    stop: threading.Event | None = None,
    changes: Iterable[object] | None = None,
    report: Callable[[WatchedRun], None] | None = None,
) -> WatchedFolder:
    """Protect the photos of a folder, and new ones as they arrive, until it is stopped.

    Each run is a run of `protect` with the same options, so that a photo is released once, the
    ledger is charged before anything is released, and a run that is stopped is continued by the
    next one. A file that is still being written is read again when it has changed.

    Parameters:
        photos: the folder of photos; it may be empty at first.
        release: the folder to share: a new one, or one to continue with the same options.
        epsilon: as in `protect`, like all options up to `max_per_person`.
        ledger: the ledger that is charged before anything is released.
        dataset: the photos' name in the ledger.
        actor: the name of the person who asks for the release.
        purpose: the purpose of the release.
        vault: the folder of the vault.
        encoder: the image encoder.
        fast: use the small built-in network.
        people: whose photos they are.
        max_per_person: the largest number of images of one person that are released.
        stop: an event that ends the watch when it is set; a run that has begun is finished first.
        changes: an iterable that yields when the folder may have changed; by default notifications
            of the operating system (extra `watch`).
        report: called after the first run, and after every run that released photos.

    Returns:
        The runs, and the result of the last one.

    Raises:
        BudgetExceeded: if the remaining budget is too small; that run releases nothing.
        MissingDependency: if watchfiles is not installed.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "photos").mkdir()
        >>> def arrivals():
        ...     yield "ready"
        ...     Image.new("RGB", (64, 64), "red").save(folder / "photos" / "red.png")
        ...     yield "a photo came"
        >>> done = watch(folder / "photos", folder / "release", encoder="pixels",
        ...              changes=arrivals())
        >>> done.last.counts.stored
        1
    """
    source = Path(photos)
    if not source.is_dir():
        raise InvalidData(f"{source} is not a folder. Check the path.")
    ended = stop or threading.Event()
    own = (Path(release), vault_beside(Path(release)) if vault is None else Path(vault))
    runs: list[WatchedRun] = []
    last: ProtectedPhotos | None = None
    for first, change in _numbered(changes or _notices(source, own, ended)):
        if ended.is_set():
            break
        if not (first or change) or not (last or list_photos(source, leave_out=own).photos):
            continue
        last = protect(
            source,
            release,
            epsilon=epsilon,
            ledger=ledger,
            dataset=dataset,
            actor=actor,
            purpose=purpose,
            vault=vault,
            encoder=encoder,
            fast=fast,
            people=people,
            max_per_person=max_per_person,
        )
        if last.counts.released or not runs:
            runs.append(_run_of(last))
            if report is not None:
                report(runs[-1])
    return WatchedFolder(tuple(runs), last)


def _numbered(changes: Iterable[object]) -> Iterator[tuple[bool, object]]:
    """Yield each change and whether it is the first, at which present photos are protected."""
    return ((number == 0, change) for number, change in enumerate(changes))


def _notices(folder: Path, own: Iterable[Path], stop: threading.Event) -> Iterator[object]:
    """Yield notifications of the operating system; the first, empty one when the watch begins."""
    watchfiles = optional_module("watchfiles", extra="watch")
    hidden = tuple(path.resolve() for path in own)

    def foreign(_: object, path: str) -> bool:
        return not any(Path(path).resolve().is_relative_to(each) for each in hidden)

    yield from watchfiles.watch(
        folder,
        watch_filter=foreign,
        stop_event=stop,
        yield_on_timeout=True,
        rust_timeout=_PAUSE,
    )


def _run_of(protected: ProtectedPhotos) -> WatchedRun:
    unreadable = len(protected.counts.refused)
    return WatchedRun(
        time=datetime.now(UTC),
        released=protected.counts.released,
        stored=protected.counts.stored,
        unreadable=unreadable,
        skipped=protected.files.skipped_count - unreadable,
        charged=protected.charged,
    )
