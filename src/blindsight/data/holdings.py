"""Readers of the sets that lie in a folder: each takes the folder and a split, and knows the files'
names.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from blindsight.core.errors import HostileFile, MissingData
from blindsight.data.arrays import load_arrays
from blindsight.data.census import load_adult, load_bank, load_numbers
from blindsight.data.formats.cifar import load_cifar
from blindsight.data.formats.coco import load_coco
from blindsight.data.formats.folders import load_class_folders
from blindsight.data.formats.idx import load_idx
from blindsight.data.formats.lists import load_celeba, load_nuswide
from blindsight.data.limits import LIMITS, regular_file
from blindsight.data.sets import ImageSet, MultiLabelSet, Table
from blindsight.data.sources import ZipMembers

__all__ = ["divided", "present", "variant"]


def variant(path: Path) -> Path | None:
    """The file or folder, or the same file compressed; None if there is neither."""
    return next(
        (p for end in ("", ".gz", ".xz") if (p := path.with_name(path.name + end)).exists()), None
    )


def present(path: Path) -> Path:
    """The file, or the same file compressed; it must be there."""
    found = variant(path)
    if found is None:
        raise MissingData(f"{path} does not exist.")
    return found


S = TypeVar("S", ImageSet, Table)


def divided(whole_set: S, split: str | None) -> S:
    """The 80:20 split, always the same, of a set that has no official one; stratified by class."""
    if split is None:
        return whole_set
    return whole_set.split({"train": 0.8, "test": 0.2}, seed=0)[split]


def idx(
    name: str, classes: tuple[str, ...], dims: int = 3
) -> Callable[[Path, str | None], ImageSet]:
    """A reader of the four files of MNIST and its like."""

    def part(folder: Path, prefix: str) -> ImageSet:
        images = present(folder / f"{prefix}-images-idx{dims}-ubyte")
        labels = present(folder / f"{prefix}-labels-idx1-ubyte")
        return load_idx(images, labels, classes=classes, name=name)

    def read(folder: Path, split: str | None) -> ImageSet:
        if split is not None:
            return part(folder, "train" if split == "train" else "t10k")
        parts = [part(folder, "train"), part(folder, "t10k")]
        labels = [each.labels for each in parts if each.labels is not None]
        images = np.concatenate([each.array() for each in parts])
        return ImageSet(images, np.concatenate(labels), None, classes, name)

    return read


def idx_files(dims: int = 3) -> tuple[str, ...]:
    """The four files' names."""
    kinds = (f"images-idx{dims}", "labels-idx1")
    return tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in kinds)


def cifar(kind: str) -> Callable[[Path, str | None], ImageSet]:
    """A reader of the binary version of CIFAR."""
    return lambda folder, split: load_cifar(folder, kind=kind, split=split)


def adult(folder: Path, split: str | None, *, encoding: str = "onehot") -> Table:
    """UCI Adult with its official split."""
    train = present(folder / "adult.data") if split != "test" else None
    test = present(folder / "adult.test") if split != "train" else None
    return load_adult(train, test, encoding=encoding)


def bank(folder: Path, split: str | None, *, encoding: str = "onehot") -> Table:
    """UCI Bank marketing."""
    return divided(load_bank(present(folder / "bank-full.csv"), encoding=encoding), split)


def numbers(file: str, name: str) -> Callable[[Path, str | None], Table]:
    """A reader of a table of numbers with the label last."""
    return lambda folder, split: divided(load_numbers(present(folder / file), name=name), split)


def coco_subset(folder: Path, split: str | None) -> MultiLabelSet:
    """4,500 images of MS-COCO in one zip file."""
    stored = load_arrays(folder / "labels.npz")
    parts, ids = stored["split"], stored["image_id"]
    names = np.array([f"{part}/{image:012d}.jpg" for part, image in zip(parts, ids, strict=True)])
    images = ZipMembers(folder / "images.zip", names.tolist())
    classes = tuple(stored["classes"].tolist())
    whole_set = MultiLabelSet(stored["labels"], images, None, classes, names, name="coco-subset")
    return whole_set if split is None else whole_set.take(parts == split)


def coco(folder: Path, split: str | None) -> MultiLabelSet:
    """MS-COCO 2017: "train" is train2017, "test" is val2017 (the test labels are not public)."""
    if split is None:
        raise MissingData(
            'MS-COCO is loaded by part: split="train" (train2017) or "test" (val2017).'
        )
    part = "train2017" if split == "train" else "val2017"
    photos = folder / part
    return load_coco(
        folder / "annotations" / f"instances_{part}.json", photos if photos.is_dir() else None
    )


def caltech_zip(folder: Path, split: str | None, *, background: bool = False) -> ImageSet:
    """Caltech-101 in one zip file, `class/image.jpg`."""
    path = regular_file(folder / "images.zip", largest=LIMITS.file_bytes)
    try:
        with zipfile.ZipFile(path) as archive:
            listed = archive.namelist()
    except (zipfile.BadZipFile, OSError) as error:
        raise HostileFile(
            f"images.zip of Caltech-101 is not a readable zip file: {error}."
        ) from error
    members = sorted(m for m in listed if m.lower().endswith(".jpg") and m.count("/") == 1)
    if not background:  # the 102nd folder is no class
        members = [m for m in members if not m.startswith("BACKGROUND_Google/")]
    classes = sorted({m.split("/")[0] for m in members})
    number = {name: i for i, name in enumerate(classes)}
    labels = np.array([number[m.split("/")[0]] for m in members], dtype=np.int64)
    images = ZipMembers(path, members)
    return divided(ImageSet(images, labels, np.array(members), tuple(classes), "caltech101"), split)


def caltech_folders(folder: Path, split: str | None, *, background: bool = False) -> ImageSet:
    """Caltech-101 as it unpacks: a folder per class."""
    leave_out = () if background else ("BACKGROUND_Google",)
    return divided(load_class_folders(folder / "101_ObjectCategories", leave_out=leave_out), split)


def caltech256(folder: Path, split: str | None) -> ImageSet:
    """Caltech-256 as it unpacks, without its folder of clutter."""
    return divided(
        load_class_folders(folder / "256_ObjectCategories", leave_out=("257.clutter",)), split
    )


def multilabel(
    name: str, classes: tuple[str, ...] = ()
) -> Callable[[Path, str | None], MultiLabelSet]:
    """A reader of features with labels and an official split, in one npz file."""

    def read(folder: Path, split: str | None) -> MultiLabelSet:
        stored = load_arrays(folder / f"{name}.npz")
        parts = ("train", "test") if split is None else (split,)
        X = np.concatenate([stored[f"X_{part}"] for part in parts]).astype(np.float64)
        labels = np.concatenate([stored[f"y_{part}"] for part in parts])
        return MultiLabelSet(labels, None, X, classes, name=name)

    return read


def voc_labels(folder: Path, split: str | None) -> MultiLabelSet:
    """The labels of PASCAL VOC 2007 without its images."""
    stored = load_arrays(folder / "labels.npz")
    parts = {"train": ("trainval",), "test": ("test",), None: ("trainval", "test")}[split]
    raw = np.concatenate([stored[f"labels_{part}"] for part in parts])
    names = np.concatenate([stored[f"ids_{part}"] for part in parts])
    classes = tuple(stored["classes"].tolist())
    # 1 present, -1 absent, 0 only difficult objects: not counted as present, and marked as unsure.
    labels = (raw == 1).astype(np.uint8)
    return MultiLabelSet(
        labels, classes=classes, names=names, known=raw != 0, name="voc2007-labels"
    )


def celeba(folder: Path, split: str | None) -> MultiLabelSet:
    """CelebA's attributes and, if they are there, its aligned images."""
    photos, partition = folder / "img_align_celeba", folder / "list_eval_partition.txt"
    return load_celeba(
        folder / "list_attr_celeba.txt",
        photos if photos.is_dir() else None,
        partition=partition,
        split=split,
    )


def nuswide(folder: Path, split: str | None) -> MultiLabelSet:
    """NUS-WIDE's lists and, if they are there, its images."""
    photos = folder / "Flickr"
    return load_nuswide(folder, split=split, images=photos if photos.is_dir() else None)
