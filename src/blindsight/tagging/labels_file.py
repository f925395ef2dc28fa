"""A user's own labels: a CSV file with a column `image` and a column `labels`, labels parted by semicolons.

image,labels
beach/001.jpg,person;dog
002.png,
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from blindsight.core.errors import InvalidData, MissingData
from blindsight.data import LIMITS, Files, MultiLabelSet

__all__ = ["read_labels"]

_LARGEST = 256 * 2**20
_MOST_LABELS = 5_000


def read_labels(path: Path, images: Path) -> MultiLabelSet:
    """The images of a CSV file, read on demand, with their labels in alphabetical order."""
    if not path.is_file():
        raise MissingData(f"{path} does not exist. Check the path.")
    if path.stat().st_size > _LARGEST:
        raise InvalidData(f"{path} must be a CSV file of at most {_LARGEST >> 20} MB.")
    root = images.resolve()
    names, sets = [], []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if not {"image", "labels"} <= set(reader.fieldnames or ()):
                raise InvalidData(f"{path.name} must have the columns image and labels.")
            for line in reader:
                names.append(_inside(root, line["image"] or "", path.name))
                sets.append({word.strip() for word in (line["labels"] or "").split(";")} - {""})
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidData(f"{path.name} is not a CSV file in UTF-8: {error}.") from error
    _check_there(root, names, path.name)
    classes = sorted(set().union(*sets)) if sets else []
    if not classes:
        raise InvalidData(f"{path.name} names no labels.")
    if len(classes) > _MOST_LABELS:
        raise InvalidData(f"{path.name} names {len(classes)} labels; at most {_MOST_LABELS} are taken.")
    column = {label: index for index, label in enumerate(classes)}
    labels = np.zeros((len(sets), len(classes)), np.uint8)
    for row, chosen in enumerate(sets):
        labels[row, [column[label] for label in chosen]] = 1
    files = Files([root / name for name in names], limits=LIMITS)
    return MultiLabelSet(labels, files, None, tuple(classes), np.array(names), name=path.stem)


def _check_there(root: Path, names: list[str], source: str) -> None:
    """A folder without the images is the commonest mistake: say so before anything is read."""
    missing = sum(not (root / name).is_file() for name in names)
    if missing:
        raise MissingData(
            f"{missing} of the {len(names)} images that {source} names are not in {root}. "
            "Give the folder they are in with --images."
        )


def _inside(root: Path, name: str, source: str) -> str:
    """The path within the folder of images; one that leads out of it is refused."""
    target = (root / name).resolve()
    if not name or root not in target.parents:
        raise InvalidData(f"{source} names an image outside its folder.")
    return str(target.relative_to(root))
