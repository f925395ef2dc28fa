"""Folders of photos: all images below a folder, or a folder per class (Caltech-101, ImageNet
style).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from blindsight.core.errors import HostileFile, InvalidData, MissingData
from blindsight.data.formats.dicom import unnamed_dicom
from blindsight.data.limits import LIMITS, Limits
from blindsight.data.reading import SUFFIXES
from blindsight.data.sets import ImageSet
from blindsight.data.sources import Files

__all__ = ["load_class_folders", "load_folder", "relative_file"]


def load_folder(
    path: str | os.PathLike[str], *, recursive: bool = True, limits: Limits = LIMITS
) -> ImageSet:
    """Every photo of a folder, read one by one on demand; names are paths relative to it.

    Hidden files and links are passed over: a link could point to what was never meant to be read.
    """
    root = _folder(path)
    names = sorted(_images_below(root, recursive, limits))
    if not names:
        raise InvalidData(f"{root} holds no images (looked for {', '.join(sorted(SUFFIXES))}).")
    files = Files([root / name for name in names], limits=limits)
    return ImageSet(files, None, np.array(names), (), root.name or "photos")


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
    names = [
        name
        for name in sorted(_images_below(root, True, limits))
        if "/" in name and name.split("/")[0] not in leave_out
    ]
    if not names:
        raise InvalidData(f"{root} must hold one folder of images per class; none was found.")
    classes = sorted({name.split("/")[0] for name in names})
    number = {name: i for i, name in enumerate(classes)}
    labels = np.array([number[name.split("/")[0]] for name in names], dtype=np.int64)
    files = Files([root / name for name in names], limits=limits)
    return ImageSet(files, labels, np.array(names), tuple(classes), root.name or "images")


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


def _images_below(root: Path, recursive: bool, limits: Limits) -> Iterator[str]:
    found = 0
    for folder, below, files in os.walk(root, followlinks=False):
        below[:] = sorted(name for name in below if not name.startswith(".")) if recursive else []
        for name in files:
            path = Path(folder, name)
            if (
                name.startswith(".")
                or path.is_symlink()
                or not (path.suffix.lower() in SUFFIXES or unnamed_dicom(path))
            ):
                continue
            found += 1
            if found > limits.rows:
                raise HostileFile(f"{root} holds more than {limits.rows:,} images.")
            yield path.relative_to(root).as_posix()
