"""The content of a folder: the photos that can be read, and all other files by kind.

Nothing is left out silently. Each file is a photo, or is counted under a kind that says why it is
not read and, where that helps, what to install.

A folder of photos is read as all images below it (`load_folder`), or as one folder per class
(`load_class_folders`), as in Caltech-101 and ImageNet.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from blindsight.core.errors import HostileFile, InvalidData, MissingData
from blindsight.data.limits import LIMITS, Limits
from blindsight.data.reading import (
    DICOM_SUFFIXES,
    HEIF_SUFFIXES,
    SUFFIXES,
    missing_extra,
    unnamed_dicom,
)
from blindsight.data.sets import ImageSet
from blindsight.data.sources import DecodedPhotos, Files, find_damaged

__all__ = [
    "FilesRead",
    "Inventory",
    "Skipped",
    "compared_name",
    "list_photos",
    "load_class_folders",
    "load_folder",
    "no_photos",
    "read_folder",
    "relative_file",
    "shown_name",
    "valid_text",
]

_FIRST_NAMES = 3
_MOST_REASONS = 12
_LONGEST_NAME = 80
_VIDEO = frozenset({".mov", ".mp4", ".m4v", ".avi", ".mkv", ".3gp", ".mts", ".webm", ".wmv"})
_VECTOR = frozenset({".svg", ".svgz", ".eps", ".ai", ".pdf", ".psd", ".xcf"})
_UNREAD_RAW = frozenset({".cr3", ".raf", ".x3f", ".iiq", ".3fr", ".mrw", ".kdc", ".dcr"})
_BESIDE = frozenset({".xmp", ".aae", ".thm", ".csv", ".json", ".txt", ".md", ".xlsx", ".parquet"})
_SYSTEM = frozenset({"thumbs.db", "desktop.ini", ".ds_store"})

_HIDDEN_ADVICE = "rename them without the leading dot to include them"
_KINDS: tuple[tuple[frozenset[str], str, str], ...] = (
    (_VIDEO, "videos", "only still pictures are read"),
    (_VECTOR, "drawings and documents", "save them as PNG or JPEG to include them"),
    (_UNREAD_RAW, "raw files without a known preview", "convert them to DNG or JPEG"),
    (_BESIDE, "tables and sidecar files", "not pictures"),
)


@dataclass(frozen=True)
class Skipped:
    """Files of one kind that are not read.

    Attributes:
        kind: what they are, in the plural.
        advice: why they are not read, or what to do to include them.
        count: how many there are.
        first: the names of the first few.
    """

    kind: str
    advice: str
    count: int
    first: tuple[str, ...]

    @property
    def first_names(self) -> str:
        """The first names as they can be printed, with dots where there are more."""
        more = ", ..." if self.count > len(self.first) else ""
        return ", ".join(_shortened(shown_name(name)) for name in self.first) + more

    def __str__(self) -> str:
        return f"{self.count:,} {self.kind} ({self.first_names}): {self.advice}"


@dataclass(frozen=True)
class Inventory:
    """The photos of a folder and its subfolders, and what else is there.

    Attributes:
        photos: names relative to the folder, with slashes, in alphabetical order. A name that is
            not valid UTF-8 holds surrogates, as `os.fsdecode` makes them; `shown_name` makes it
            printable.
        skipped: everything else by kind, the most frequent first.
    """

    photos: tuple[str, ...]
    skipped: tuple[Skipped, ...] = ()

    @property
    def skipped_count(self) -> int:
        """How many files and folders are not read."""
        return sum(kind.count for kind in self.skipped)

    def files_read(
        self, *, read: int, copies: int = 0, damaged: Iterable[tuple[str, str]] = ()
    ) -> FilesRead:
        """Return how each file of the folder was used, once its photos have been decoded.

        Parameters:
            read: how many different photos were read.
            copies: how many files show the same picture as another one.
            damaged: names and reasons of photos that could not be read.
        """
        collector = _Collector()
        for name, reason in damaged:
            words = reason
            for start in (f"{name} cannot be read: ", name, name.rpartition("/")[2], "the image"):
                words = words.removeprefix(start).strip()
            key = ("photos that cannot be read", words.rstrip(".") or "damaged")
            if key not in collector.names and len(collector.names) >= _MOST_REASONS:
                key = ("photos that cannot be read", "for other reasons")
            collector.add(name, *key)
        return FilesRead(read, copies, (*self.skipped, *collector.skipped()))


@dataclass(frozen=True)
class FilesRead:
    """How every file that was found was used: the last table of every verb that reads photos.

    Attributes:
        read: how many different photos were read.
        copies: how many files show the same picture as another one.
        skipped: everything else by kind, with the first names and what to do about it.

    Examples:
        >>> files = FilesRead(2, 1, (Skipped("videos", "only still pictures are read", 1, ("a",)),))
        >>> for row in files.rows():
        ...     print(row)
        ('photos read', '2', '', '')
        ('copies of another photo', '1', '', '')
        ('skipped: videos', '1', 'a', 'only still pictures are read')
    """

    read: int
    copies: int = 0
    skipped: tuple[Skipped, ...] = ()

    @property
    def skipped_count(self) -> int:
        """How many files and folders were not read."""
        return sum(kind.count for kind in self.skipped)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Rows of a table: what it is, how many, the first names, and what to do."""
        copies = [("copies of another photo", f"{self.copies:,}", "", "")] if self.copies else []
        return [
            ("photos read", f"{self.read:,}", "", ""),
            *copies,
            *(
                (f"skipped: {kind.kind}", f"{kind.count:,}", kind.first_names, kind.advice)
                for kind in self.skipped
            ),
        ]

    def plus_skipped(self, kind: str, advice: str, names: Sequence[str]) -> FilesRead:
        """The same with further files of one kind that are not used; itself where there are none.

        Parameters:
            kind: what they are, in the plural.
            advice: what to do to include them.
            names: their names, in order.
        """
        if not names:
            return self
        more = Skipped(kind, advice, len(names), tuple(names[:_FIRST_NAMES]))
        return replace(self, skipped=(*self.skipped, more))

    def __add__(self, other: FilesRead) -> FilesRead:
        """Return how the files of two folders were used."""
        collector = _Collector()
        counts: dict[tuple[str, str], int] = {}
        for kind in (*self.skipped, *other.skipped):
            key = (kind.kind, kind.advice)
            counts[key] = counts.get(key, 0) + kind.count
            for name in kind.first:
                collector.add(name, *key)
        skipped = tuple(
            Skipped(kind, advice, counts[kind, advice], tuple(names[:_FIRST_NAMES]))
            for (kind, advice), names in collector.names.items()
        )
        return FilesRead(self.read + other.read, self.copies + other.copies, skipped)


@dataclass
class _Collector:
    names: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def add(self, name: str, kind: str, advice: str) -> None:
        self.names.setdefault((kind, advice), []).append(name)

    def skipped(self) -> tuple[Skipped, ...]:
        kinds = [
            Skipped(kind, advice, len(names), tuple(sorted(names)[:_FIRST_NAMES]))
            for (kind, advice), names in self.names.items()
        ]
        return tuple(sorted(kinds, key=lambda kind: (-kind.count, kind.kind)))


def list_photos(
    folder: str | os.PathLike[str], *, leave_out: Iterable[Path] = (), recursive: bool = True
) -> Inventory:
    """List the photos of a folder and its subfolders, and count everything else.

    Links are not followed: a link to a file of the folder would be a copy, and a link to another
    folder could include files by mistake. Hidden files and folders are not read either.

    Parameters:
        folder: the folder.
        leave_out: subfolders that are not looked into, and not counted: an index or a vault inside
            the folder.
        recursive: whether to look into subfolders; otherwise they are counted.

    Returns:
        Inventory

    Raises:
        InvalidData: There is no such folder.

    Examples:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("b.JPG", "a.png", "clip.mov"):
        ...     _ = (folder / name).write_bytes(b"")
        >>> listed = list_photos(folder)
        >>> listed.photos
        ('a.png', 'b.JPG')
        >>> print(listed.skipped[0])
        1 videos (clip.mov): only still pictures are read
    """
    root = Path(folder)
    if not root.is_dir():
        raise InvalidData(f"{root} is not a folder. Check the path.")
    left_out = {path.resolve() for path in leave_out}
    collector = _Collector()
    photos: list[str] = []

    def unreadable(error: OSError) -> None:
        name = os.path.relpath(error.filename, root) if error.filename else "?"
        collector.add(name, "folders that cannot be opened", error.strerror or "no permission")

    for directory, folders, files in os.walk(root, onerror=unreadable):
        parent = Path(directory)
        entered = []  # the subfolders to look into; the others are counted
        for name in folders:
            path = parent / name
            relative = path.relative_to(root).as_posix()
            if os.path.islink(path):  # False where the path is too long; then opening it fails
                collector.add(relative, "links to folders", "links are not followed")
            elif path.resolve() in left_out:
                continue
            elif name.startswith("."):
                collector.add(relative, "hidden folders", _HIDDEN_ADVICE)
            elif not recursive:
                collector.add(relative, "subfolders", "only the folder itself was asked for")
            else:
                entered.append(name)
        folders[:] = sorted(entered)
        for name in files:
            relative = (parent / name).relative_to(root).as_posix()
            reason = _reason(parent / name)
            if reason is None:
                photos.append(relative)
            else:
                collector.add(relative, *reason)
    return Inventory(tuple(sorted(photos)), collector.skipped())


def _reason(path: Path) -> tuple[str, str] | None:
    """Why a file is not read, as kind and advice; None for a photo."""
    suffix = path.suffix.lower()
    if path.name.lower() in _SYSTEM or path.name.startswith("._"):
        return "files of the operating system", "not pictures"
    if path.name.startswith("."):
        return "hidden files", _HIDDEN_ADVICE
    try:
        status = path.lstat()
    except OSError as error:
        return "files that cannot be opened", error.strerror or "no permission"
    if stat.S_ISLNK(status.st_mode):
        if not path.exists():
            return "links that lead nowhere", "remove them, or restore what they point to"
        return "links", "links are not followed; copy the file to include it"
    if not stat.S_ISREG(status.st_mode):
        return "devices and pipes", "not files"
    if suffix not in SUFFIXES:
        for suffixes, kind, advice in _KINDS:
            if suffix in suffixes:
                return kind, advice
        if not unnamed_dicom(path):
            return "other files", "their names do not end like a picture's"
        suffix = ".dcm"
    decoder = (
        "heif" if suffix in HEIF_SUFFIXES else "dicom" if suffix in DICOM_SUFFIXES else "pictures"
    )
    extra = missing_extra(decoder)
    if extra is None:
        return None
    return f"{extra.upper()} files", f"install their reader: pip install 'blindsight[{extra}]'"


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."


def no_photos(folder: str | os.PathLike[str], skipped: Iterable[Skipped]) -> str:
    """The message for a folder without a photo that can be read: what it holds instead."""
    kinds = [str(kind) for kind in skipped]
    if not kinds:
        return f"{os.fspath(folder)} holds no images: it is empty. Check the path."
    return f"{os.fspath(folder)} holds no images that can be read, but {'; '.join(kinds[:5])}."


def compared_name(name: str) -> str:
    """The form in which names are compared: "é" is one letter, however a system writes it.

    Examples:
        >>> compared_name("cafe\u0301.jpg") == compared_name("caf\u00e9.jpg")
        True
    """
    return unicodedata.normalize("NFC", name)


def shown_name(name: str) -> str:
    """A file's name as it can be printed: bytes that are not UTF-8 and control characters escaped.

    Examples:
        >>> shown_name("caf\\udce9\\n.jpg")
        'caf\\\\xe9\\\\n.jpg'
    """
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in valid_text(name)
    )


def valid_text(text: str) -> str:
    """Text that can be encoded: bytes of files' names that are not UTF-8 are escaped."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def load_folder(
    path: str | os.PathLike[str], *, recursive: bool = True, limits: Limits = LIMITS
) -> ImageSet:
    """Every photo of a folder, read one by one on demand; names are paths relative to it.

    Hidden files and links are skipped: a link could point to files that were not meant to be read.
    `read_folder` also returns what was skipped.
    """
    root = _folder(path)
    return _all_photos(root, _listed(root, limits, recursive=recursive), limits)


def read_folder(
    path: str | os.PathLike[str],
    *,
    classes: bool = False,
    limits: Limits = LIMITS,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[ImageSet, FilesRead]:
    """Return the photos of a folder that can be decoded, and how every file in it was used.

    Each photo is decoded to find out. The pixels of small photos stay in memory for their use
    (`DecodedPhotos`), so that they are decoded once. Damaged photos are left out and counted.

    Parameters:
        path: the folder.
        classes: whether the subfolders are classes, as in `load_class_folders`, where there are
            any.
        limits: bounds on the number of files and on each image.
        progress: called with (photos tried, photos in all).

    Returns:
        the photos, and the counts of all files.

    Raises:
        InvalidData: The folder holds no photo that can be read; the message says what it holds.
    """
    root = _folder(path)
    listed = _listed(root, limits)
    unused: list[str] = []
    if classes and any("/" in name for name in listed.photos):
        images = _class_photos(root, listed, (), limits)
        unused = [name for name in listed.photos if "/" not in name]
    else:
        images = _all_photos(root, listed, limits)
    lazy = images.images
    assert isinstance(lazy, Files)  # noqa: S101  (made here)
    lazy.decoded = DecodedPhotos()
    reasons = find_damaged(lazy, progress=progress)
    names = [str(name) for name in images.names] if images.names is not None else []
    damaged = [(names[row], reason) for row, reason in reasons.items()]
    readable = np.array([row for row in range(len(images)) if row not in reasons], np.int64)
    files = listed.files_read(read=len(readable), damaged=damaged).plus_skipped(
        "photos outside the folders of the classes",
        "move them into the folder of their class",
        unused,
    )
    if not len(readable):
        raise InvalidData(no_photos(root, files.skipped))
    return images.take(readable) if damaged else images, files


def load_class_folders(
    path: str | os.PathLike[str],
    *,
    leave_out: tuple[str, ...] = ("BACKGROUND_Google",),
    limits: Limits = LIMITS,
) -> ImageSet:
    """A folder per class, as Caltech-101 comes: the folder's name is the class.

    Parameters:
        path: The folder that holds the classes' folders.
        leave_out: Folders that are no classes (Caltech's background images by default).
        limits: Bounds on the number of files and on each image.
    """
    root = _folder(path)
    return _class_photos(root, _listed(root, limits), leave_out, limits)


def relative_file(root: Path, name: str) -> Path:
    """A file named by an annotation, which must stay below `root`: no absolute path, no `..`."""
    cleaned = name.replace("\\", "/")
    parts = cleaned.split("/")
    if (
        not cleaned
        or cleaned.startswith("/")
        or ".." in parts
        or "\0" in cleaned
        or ":" in parts[0]
    ):
        raise HostileFile(
            f"an annotation names the file {name[:80]!r}, which leads outside its folder."
        )
    return root / cleaned


def _folder(path: str | os.PathLike[str]) -> Path:
    root = Path(path)
    if not root.is_dir():
        raise MissingData(f"{root} is not a folder. Check the path.")
    return root


def _listed(root: Path, limits: Limits, *, recursive: bool = True) -> Inventory:
    listed = list_photos(root, recursive=recursive)
    if len(listed.photos) > limits.rows:
        raise HostileFile(f"{root} holds more than {limits.rows:,} images.")
    return listed


def _all_photos(root: Path, listed: Inventory, limits: Limits) -> ImageSet:
    if not listed.photos:
        raise InvalidData(no_photos(root, listed.skipped))
    files = Files([root / name for name in listed.photos], limits=limits)
    return ImageSet(files, None, np.array(listed.photos), (), root.name or "photos")


def _class_photos(
    root: Path, listed: Inventory, leave_out: tuple[str, ...], limits: Limits
) -> ImageSet:
    names = [name for name in listed.photos if "/" in name and name.split("/")[0] not in leave_out]
    if not names:
        raise InvalidData(f"{root} must hold one folder of images per class; none was found.")
    classes = sorted({name.split("/")[0] for name in names})
    number = {name: i for i, name in enumerate(classes)}
    labels = np.array([number[name.split("/")[0]] for name in names], dtype=np.int64)
    files = Files([root / name for name in names], limits=limits)
    class_names = tuple(shown_name(name) for name in classes)
    return ImageSet(files, labels, np.array(names), class_names, root.name or "images")
