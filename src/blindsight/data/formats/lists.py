"""Label lists in plain text: CelebA's attributes, NUS-WIDE's concepts, and one line per image as
hashing papers use.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import one_of
from blindsight.core.errors import HostileFile, MissingData
from blindsight.data.formats.folders import relative_file
from blindsight.data.limits import LIMITS, Limits, read_bytes, regular_file
from blindsight.data.sets import MultiLabelSet
from blindsight.data.sources import Files

__all__ = ["load_celeba", "load_label_list", "load_nuswide"]

_LONGEST_LINE = 1 << 16


def load_celeba(
    attributes: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    partition: str | os.PathLike[str] | None = None,
    split: str | None = None,
    limits: Limits = LIMITS,
) -> MultiLabelSet:
    """CelebA's attribute list: how many images, the attributes' names, then a line of 1 and -1 for
    each image.

    Args:
        attributes: list_attr_celeba.txt.
        images: The folder of the images, or None for labels only.
        partition: list_eval_partition.txt, needed for a split.
        split: "train", "val", "test" or None.
        limits: Bounds on bytes, images and attributes.
    """
    path = regular_file(attributes, largest=limits.file_bytes)
    lines = _lines(path)
    try:
        count = int(next(lines, "").strip())
    except ValueError:
        raise HostileFile(f"{path.name} must start with the number of images.") from None
    classes = tuple(next(lines, "").split())
    # Each line holds a name and two characters an attribute at least: a lie is noticed before
    # allocation.
    if not 0 < count <= limits.rows or count * 2 * max(len(classes), 1) > path.stat().st_size:
        raise HostileFile(f"{path.name} claims {count:,} images, more than its size allows.")
    if not 0 < len(classes) <= limits.columns:
        raise HostileFile(f"{path.name} must name its attributes in the second line.")
    names, labels = _table(lines, path.name, len(classes), count, {"1": 1, "-1": 0})
    if len(names) != count:
        raise HostileFile(f"{path.name} claims {count:,} images and lists {len(names):,}.")
    whole_set = MultiLabelSet(
        labels, _files(images, names, limits), None, classes, np.array(names), name="celeba"
    )
    if split is None:
        return whole_set
    wanted = {"train": "0", "val": "1", "test": "2"}[
        one_of("split", split, {"train", "val", "test"})
    ]
    if partition is None:
        raise MissingData("a split of CelebA needs list_eval_partition.txt: pass partition=.")
    part = dict(line.split() for line in _lines(Path(partition)) if len(line.split()) == 2)
    return whole_set.take(np.array([part.get(name) == wanted for name in names]))


def load_label_list(
    path: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    classes: tuple[str, ...] = (),
    limits: Limits = LIMITS,
) -> MultiLabelSet:
    """One line per image: its file, then 0 or 1 for every label (NUS-WIDE, MIRFlickr, COCO in
    hashing papers).
    """
    path = regular_file(path, largest=limits.file_bytes)
    first = next(_lines(path), "").split()
    width = len(first) - 1
    if not 0 < width <= limits.columns:
        raise HostileFile(f"{path.name} must hold a file name and at least one label in each line.")
    names, labels = _table(_lines(path), path.name, width, limits.rows, {"1": 1, "0": 0})
    return MultiLabelSet(
        labels, _files(images, names, limits), None, classes, np.array(names), name=path.stem
    )


def load_nuswide(
    root: str | os.PathLike[str],
    *,
    split: str | None = None,
    images: str | os.PathLike[str] | None = None,
    limits: Limits = LIMITS,
) -> MultiLabelSet:
    """NUS-WIDE as it is published: Concepts81.txt, a list of images, and one file of 0 and 1 for
    each concept.

    Args:
        root: Holds ConceptsList/Concepts81.txt, ImageList/ and Groundtruth/ (each may also lie flat
        in root). split: "train", "test" or None for all 269,648 images. images: The folder of the
        images, or None for labels only. limits: Bounds on bytes, images and concepts.
    """
    root = Path(root)
    concepts = tuple(_column(_find(root, "Concepts81.txt"), limits))
    if len(concepts) > limits.columns:
        raise HostileFile(f"Concepts81.txt has more than {limits.columns} concepts.")
    if split is None:
        listing, pattern = "Imagelist.txt", "Labels_{}.txt"
    else:
        part = {"train": "Train", "test": "Test"}[one_of("split", split, {"train", "test"})]
        listing, pattern = f"{part}Imagelist.txt", f"Labels_{{}}_{part}.txt"
    names = [line.replace("\\", "/") for line in _column(_find(root, listing), limits)]
    labels = np.zeros((len(names), len(concepts)), dtype=np.uint8)
    for column, concept in enumerate(concepts):
        path = _find(root, pattern.format(relative_file(root, concept).name))
        values = _column(path, limits)
        if len(values) != len(names) or not set(values) <= {"0", "1"}:
            raise HostileFile(f"{path.name} must hold 0 or 1 for each of {len(names):,} images.")
        labels[:, column] = np.array(values) == "1"
    return MultiLabelSet(
        labels, _files(images, names, limits), None, concepts, np.array(names), name="nus-wide"
    )


def _table(
    lines: Iterator[str], name: str, width: int, most: int, values: dict[str, int]
) -> tuple[list[str], NDArray[np.uint8]]:
    names: list[str] = []
    rows: list[bytes] = []
    for line in lines:
        file, *cells = line.split()
        if len(names) >= most:
            raise HostileFile(f"{name} lists more than {most:,} images.")
        if len(cells) != width or not values.keys() >= set(cells):
            expected = " or ".join(values)
            raise HostileFile(
                f"{name}: image {len(names) + 1} must have {width} labels of {expected}."
            )
        names.append(file)
        rows.append(bytes(values[cell] for cell in cells))
    if not names:
        raise HostileFile(f"{name} lists no images.")
    return names, np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(rows), width)


def _lines(path: Path) -> Iterator[str]:
    """Lines that are not blank; a line without an end cannot fill the memory."""
    with path.open("rb") as stream:
        while line := stream.readline(_LONGEST_LINE):
            if len(line) == _LONGEST_LINE or b"\0" in line:
                raise HostileFile(
                    f"{path.name} is not a list: it has zero bytes or an endless line."
                )
            text = line.decode("utf-8", "replace").strip()
            if text:
                yield text


def _column(path: Path, limits: Limits) -> list[str]:
    text = read_bytes(path, largest=limits.file_bytes).decode("utf-8", "replace")
    values = [line.strip() for line in io.StringIO(text) if line.strip()]
    if not 0 < len(values) <= limits.rows:
        raise HostileFile(f"{path.name} must have between 1 and {limits.rows:,} lines.")
    return values


def _find(root: Path, name: str) -> Path:
    folders = (
        "ConceptsList",
        "ImageList",
        "Groundtruth",
        "Groundtruth/AllLabels",
        "Groundtruth/TrainTestLabels",
    )
    for folder in (".", *folders):
        if (root / folder / name).is_file():
            return root / folder / name
    raise MissingData(f"{root} lacks {name}. Unpack NUS-WIDE's lists there.")


def _files(images: str | os.PathLike[str] | None, names: list[str], limits: Limits) -> Files | None:
    if images is None:
        return None
    return Files([relative_file(Path(images), name) for name in names], limits=limits)
