"""Folders of photos: all images below a folder, or a folder per class (Caltech-101, ImageNet
style).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from blindsight.core.errors import HostileFile, InvalidData, MissingData
from blindsight.data.limits import LIMITS, Limits
from blindsight.data.listing import (
    FilesRead,
    Inventory,
    list_photos,
    no_photos,
    shown_name,
)
from blindsight.data.sets import ImageSet
from blindsight.data.sources import DecodedPhotos, Files, find_damaged

__all__ = ["load_class_folders", "load_folder", "read_folder", "relative_file"]


def load_folder(
    path: str | os.PathLike[str], *, recursive: bool = True, limits: Limits = LIMITS
) -> ImageSet:
    """Every photo of a folder, read one by one on demand; names are paths relative to it.

    Hidden files and links are passed over: a link could point to what was never meant to be read.
    `read_folder` also says what was passed over.
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
    """The photos of a folder that can be decoded, and what became of every other file in it.

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

    Args:
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
    shown = tuple(shown_name(name) for name in classes)
    return ImageSet(files, labels, np.array(names), shown, root.name or "images")
