"""A user's own labels: a CSV file with a column `image` and a column `labels`, labels parted by semicolons.

image,labels
beach/001.jpg,person;dog
002.png,

The vocabulary is given apart, one word per line: names that are read off private labels are private themselves.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from blindsight.core.errors import InvalidData, MissingData
from blindsight.data import LIMITS, Files, MultiLabelSet

__all__ = ["read_labels", "read_vocabulary"]

_LARGEST = 256 * 2**20
_MOST_LABELS = 5_000


def read_labels(path: Path, images: Path, vocabulary: Sequence[str] | None = None) -> MultiLabelSet:
    """The images of a CSV file, read on demand, with their labels in the vocabulary's order.

    Labels outside the vocabulary are left out: refusing them would tell that there is one. Without a vocabulary the
    labels are those of the file, in alphabetical order.
    """
    names, sets = _rows(path, images.resolve())
    classes = sorted(set().union(*sets)) if vocabulary is None and sets else list(vocabulary or ())
    if not names or not classes:
        raise InvalidData(f"{path.name} names no {'images' if not names else 'labels'}.")
    if len(classes) > _MOST_LABELS:
        raise InvalidData(f"{path.name} names {len(classes)} labels; at most {_MOST_LABELS} are taken.")
    column = {label: index for index, label in enumerate(classes)}
    labels = np.zeros((len(sets), len(classes)), np.uint8)
    for row, chosen in enumerate(sets):
        labels[row, [column[label] for label in chosen if label in column]] = 1
    files = Files([images.resolve() / name for name in names], limits=LIMITS)
    return MultiLabelSet(labels, files, None, tuple(classes), np.array(names), name=path.stem)


def read_vocabulary(words: str) -> dict[str, tuple[str, ...]]:
    """Label names, of a text file with one per line or parted by commas, each with its other names.

    A line "tv = television / screen" gives the label "tv" two more names to be known by.
    """
    path = Path(words)
    if path.is_file():
        if path.stat().st_size > _LARGEST:
            raise InvalidData(f"{path} must be a text file of at most {_LARGEST >> 20} MB.")
        try:
            listed = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise InvalidData(f"{path.name} is not text in UTF-8: {error}.") from error
    elif path.suffix:
        raise MissingData(f"{path} does not exist. Give a file with one word per line, or words parted by commas.")
    else:
        listed = words.split(",")
    found: dict[str, tuple[str, ...]] = {}
    for line in listed:
        name, _, others = (part.strip() for part in line.partition("="))
        if name:
            found[name] = (*found.get(name, ()), *(word.strip() for word in others.split("/") if word.strip()))
    if not found or len(found) > _MOST_LABELS:
        raise InvalidData(f"a vocabulary must have 1 to {_MOST_LABELS} words, got {len(found)}.")
    return found


def _rows(path: Path, root: Path) -> tuple[list[str], list[set[str]]]:
    if not path.is_file():
        raise MissingData(f"{path} does not exist. Check the path.")
    if path.stat().st_size > _LARGEST:
        raise InvalidData(f"{path} must be a CSV file of at most {_LARGEST >> 20} MB.")
    names: list[str] = []
    sets: list[set[str]] = []
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
    missing = sum(not (root / name).is_file() for name in names)
    if missing:
        raise MissingData(f"{missing} of the {len(names)} images that {path.name} names are not in {root}.")
    return names, sets


def _inside(root: Path, name: str, source: str) -> str:
    """The path within the folder of images; one that leads out of it is refused."""
    target = (root / name).resolve()
    if not name or root not in target.parents:
        raise InvalidData(f"{source} names an image outside its folder.")
    return str(target.relative_to(root))
