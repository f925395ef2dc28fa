"""Tables of labels of 0 and 1, the source of their names, and the user's file of labels.

The file is a CSV with a column `image` and a column `labels`, labels separated by semicolons:

    image,labels
    beach/001.jpg,person;dog
    002.png,

The vocabulary is given separately, one word per line: names that are read from private labels are
private themselves.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from blindsight.core.arrays import Bytes, Floats
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter, MissingData
from blindsight.data import LIMITS, DecodedPhotos, Files, MultiLabelSet
from blindsight.data.label_tables import read_label_table
from blindsight.data.listing import FilesRead, list_photos
from blindsight.data.sources import pixel_digest

__all__ = [
    "FromLabels",
    "LabelsFile",
    "check_names",
    "column_names",
    "label_names",
    "label_rows",
    "log_odds",
    "read_labels",
    "read_vocabulary",
    "sigmoid",
]


@dataclass(frozen=True)
class FromLabels:
    """Names that were read from the private labels.

    They are as private as the records, so nothing is proven if they are used.
    """

    names: tuple[str, ...]


def column_names(table: Any) -> tuple[str, ...] | None:
    """Return the column names of a table (such as pandas); None if the columns have no names.

    As in scikit-learn, columns have names only if all of them are text.
    """
    columns = getattr(table, "columns", None)
    if columns is None:
        return None
    names = list(columns)
    return tuple(names) if names and all(isinstance(name, str) for name in names) else None


def label_names(
    classes: Sequence[str] | FromLabels | int | None, n_labels: int, y: ArrayLike | None = None
) -> tuple[str, ...]:
    """Return names of `n_labels` columns: those given, else those of `y`, else numbers."""
    names = classes.names if isinstance(classes, FromLabels) else classes
    if names is None and column_names(y) is not None:
        names = column_names(y)
    if names is None or isinstance(names, (int, np.integer)):
        count = n_labels if names is None else int(names)
        names = [str(number) for number in range(count)]
    if isinstance(names, str) or not isinstance(names, (Sequence, np.ndarray)):
        raise InvalidParameter(
            f"classes must be the labels' names, or how many there are, got {classes!r}."
        )
    listed = tuple(str(name) for name in names)
    check_names(listed)
    if len(listed) != n_labels:
        raise InvalidData(f"classes name {len(listed)} labels, but y has {n_labels} columns.")
    return listed


def check_names(names: Sequence[str]) -> None:
    """Refuse names that a terminal, a spreadsheet or a file of labels would misinterpret."""
    if len(set(names)) != len(names):
        raise InvalidParameter("classes must be different names.")
    for name in names:
        if not name.strip() or not name.isprintable() or ";" in name or name[0] in "=+-@":
            raise InvalidParameter(
                "a label must be a printable name without semicolons that begins with none of = + "
                f"- @, got {name!r}."
            )


def label_rows(y: ArrayLike, *, classes: Any = None) -> Bytes:
    """Convert labels (n, C), dense or sparse, to 0 and 1: 1 if a value is above one half.

    A table with named columns is put into the order of `classes`, if these are names.

    Raises:
        InvalidData: y is no table, or its columns are not those that `classes` names.
    """
    columns = column_names(y)
    names = classes.names if isinstance(classes, FromLabels) else classes
    if columns is not None and isinstance(names, (list, tuple, np.ndarray)):
        wanted = [str(name) for name in names]
        if sorted(columns) != sorted(wanted):
            odd = sorted(set(columns) ^ set(wanted))
            raise InvalidData(
                "the columns of y must be the labels that classes= names, in any order; "
                f"{', '.join(odd[:5]) or 'a name that occurs twice'} is only in one of them."
            )
        y = cast("Any", y)[wanted]
    array = np.asarray(y.toarray() if hasattr(y, "toarray") else y)
    if array.ndim != 2 or array.shape[0] == 0 or array.shape[1] == 0:
        raise InvalidData(
            f"labels must be a non-empty table of images by labels, got shape {array.shape}."
        )
    if array.dtype.kind not in "biuf":
        raise InvalidData(f"labels must be a table of 0 and 1, got dtype {array.dtype}.")
    return (array > 0.5).astype(np.uint8)


def sigmoid(x: ArrayLike) -> Floats:
    """1 / (1 + e^-x), without overflow."""
    return 1.0 / (1.0 + np.exp(-np.clip(np.asarray(x, np.float64), -500, 500)))


def log_odds(rates: ArrayLike) -> Floats:
    """ln(p / (1 - p)), with rates clipped to [1e-6, 1 - 1e-6]."""
    p = np.clip(np.asarray(rates, np.float64), 1e-6, 1 - 1e-6)
    return np.asarray(np.log(p) - np.log1p(-p))


_LARGEST = 256 * 2**20
_MOST_LABELS = 5_000


@dataclass(frozen=True)
class LabelsFile:
    """The labelled photos of a folder.

    Attributes:
        photos: one entry per distinct image, with its labels in the vocabulary's order.
        left_out: labels that are not in the vocabulary, for the owner only.
        missing: names in the table that no photo of the folder has, or that several could have.
        files: which files of the folder were read, and why others were not.
    """

    photos: MultiLabelSet
    left_out: tuple[str, ...]
    missing: tuple[str, ...] = ()
    files: FilesRead | None = None


def read_labels(
    source: str | Path, images: Path, vocabulary: Mapping[str, Sequence[str]] | None = None
) -> LabelsFile:
    """Read the labels of a folder's photos; the photos themselves are read on demand.

    Each distinct image is one record, even if it is listed several times or under several names:
    otherwise the guarantee per photo would be weaker for a photo that occurs twice. It has the
    labels of all its lines. Labels are compared without regard to case, and other names of a label
    count as the label.

    Parameters:
        source: A table, `FILE:COLUMN`, "folders" or "keywords": see
            `blindsight.data.label_tables`.
        images: the folder with the photos.
        vocabulary: the labels to learn, each with its other names. Labels outside the vocabulary
            are left out, because refusing them would reveal that there is one. Without a
            vocabulary the labels are those of the table, in alphabetical order.

    Returns:
        The labelled photos.

    Raises:
        InvalidData, MissingData: The table cannot be read, no photo has a label, or none of its
            photos is in the folder.
    """
    root = images.resolve()
    inventory = list_photos(root)
    table = read_label_table(source, root, inventory.photos)
    decoded = DecodedPhotos()
    records, damaged = _distinct(table.labels, root, decoded)
    spelled = {_plain(word): word for _, words in records for word in sorted(words, reverse=True)}
    if vocabulary is None:
        vocabulary = {spelled[plain]: () for plain in sorted(spelled)}
        check_names(list(vocabulary))
    if len(vocabulary) > _MOST_LABELS:
        raise InvalidData(
            f"{table.source} names {len(vocabulary)} labels; at most {_MOST_LABELS} are allowed."
        )
    column = {
        _plain(synonym): index
        for index, synonyms in enumerate(vocabulary.values())
        for synonym in synonyms
    }
    column |= {_plain(label): index for index, label in enumerate(vocabulary)}
    labels = np.zeros((len(records), len(vocabulary)), np.uint8)
    for row, (_, words) in enumerate(records):
        labels[row, [column[plain] for plain in map(_plain, words) if plain in column]] = 1
    if not labels.any():
        raise InvalidData(
            f"no photo that can be read has a label of the vocabulary by {table.source}: there is "
            "nothing to learn from. Nothing was charged."
        )
    names = [name for name, _ in records]
    pictures = Files([root / name for name in names], limits=LIMITS, decoded=decoded)
    photos = MultiLabelSet(
        labels, pictures, None, tuple(vocabulary), np.array(names), name=Path(table.source).stem
    )
    left_out = tuple(spelled[plain] for plain in sorted(spelled.keys() - column.keys()))
    copies = len(table.labels) - len(damaged) - len(records)
    files = inventory.files_read(read=len(records), copies=copies, damaged=damaged)
    unlabelled = sorted(set(inventory.photos) - table.labels.keys())
    files = files.plus_skipped("photos without labels", "add them to the labels", unlabelled)
    return LabelsFile(photos, left_out, (*table.missing, *table.ambiguous), files)


def read_vocabulary(words: str) -> dict[str, tuple[str, ...]]:
    """Read label names, one per line of a text file or separated by commas, with their other names.

    A line "tv = television / screen" gives the label "tv" two other names.
    """
    path = Path(words)
    if len(words) < 4096 and path.is_file():
        if path.stat().st_size > _LARGEST:
            raise InvalidData(f"{path} must be a text file of at most {_LARGEST >> 20} MB.")
        try:
            listed = path.read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise InvalidData(
                f"{path.name} is not text in UTF-8: {error}. Save it as UTF-8."
            ) from error
    elif path.suffix and "," not in words:
        raise MissingData(
            f"{path} does not exist. Give a file with one word per line, or words separated by "
            "commas."
        )
    else:
        listed = words.split(",")
    vocabulary: dict[str, tuple[str, ...]] = {}
    spelled: dict[str, str] = {}
    for line in listed:
        name, _, others = (part.strip() for part in line.partition("="))
        if name:
            name = spelled.setdefault(_plain(name), unicodedata.normalize("NFC", name))
            vocabulary[name] = (
                *vocabulary.get(name, ()),
                *(word.strip() for word in others.split("/") if word.strip()),
            )
    if not vocabulary or len(vocabulary) > _MOST_LABELS:
        raise InvalidData(
            f"a vocabulary must have 1 to {_MOST_LABELS} words, got {len(vocabulary)}."
        )
    check_names(list(vocabulary))
    return vocabulary


def _plain(label: str) -> str:
    """Normalise a label for comparison: Unicode form, lower case and single spaces."""
    return " ".join(unicodedata.normalize("NFC", label).casefold().split())


def _distinct(
    named: Mapping[str, frozenset[str]], root: Path, decoded: DecodedPhotos
) -> tuple[list[tuple[str, set[str]]], list[tuple[str, str]]]:
    """Return every distinct image once, in the table's order, with the labels of all its names.

    The second result lists the images that cannot be read, with the reasons.
    """
    by_content: dict[bytes, tuple[str, set[str]]] = {}
    damaged: list[tuple[str, str]] = []
    for name, words in named.items():
        try:
            digest = pixel_digest(Files([root / name], limits=LIMITS, decoded=decoded)[0])
        except (HostileFile, OSError) as error:
            damaged.append((name, str(error)))
            continue
        by_content.setdefault(digest, (name, set()))[1].update(words)
    return list(by_content.values()), damaged
