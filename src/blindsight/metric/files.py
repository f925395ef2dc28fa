"""Read pairs and features from CSV tables and image folders, and measure a metric's accuracy.

Images are mapped to vectors by an encoder, which is fixed beforehand and not learned from private
data. The vectors are not projected to fewer columns, which would lose more than it saves.

The accuracy figures are computed on private data without noise. They are for the owner of the data;
publishing one is a release.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks
from blindsight.core.arrays import Bools, Floats, Ints
from blindsight.core.errors import InvalidData
from blindsight.data.listing import FilesRead
from blindsight.data.sources import DecodedPhotos, Files
from blindsight.data.tables import read_rows, read_text
from blindsight.encoders import Encoder
from blindsight.privacy.door import finite_rows

__all__ = [
    "Records",
    "Scores",
    "nearest_neighbours",
    "read_bounds",
    "read_features",
    "read_image_folder",
    "read_pairs",
    "read_triplets",
    "split_by_pairs",
]

_SIMILAR = {"1", "true", "yes", "same", "similar", "must-link", "+1"}
_DISSIMILAR = {"0", "false", "no", "different", "dissimilar", "cannot-link", "-1"}


@dataclass(frozen=True)
class Records:
    """Named records.

    Attributes:
        ids: the name of each record.
        X: features (n, d).
        classes: the class of each record, if known.
        columns: the names of the features, if they have any.
        people: the person in each record, if `person_column` was given.
        files: for a folder of photos, which files were read and which were not.
        decoded: pixels of these photos, if they are still in memory.
    """

    ids: tuple[str, ...]
    X: Floats
    classes: NDArray[np.str_] | None = None
    columns: tuple[str, ...] = ()
    files: FilesRead | None = None
    decoded: DecodedPhotos | None = None
    people: NDArray[np.str_] | None = None

    def numbers(self, names: list[str], *, where: str) -> Ints:
        """Return the record numbers of names; raise `InvalidData` if a name is unknown."""
        position = {name: i for i, name in enumerate(self.ids)}
        unknown = [line for line, name in enumerate(names, start=1) if name not in position]
        if unknown:
            distinct = len({names[line - 1] for line in unknown})
            raise InvalidData(
                f"{where} names {distinct} unknown records, the first in entry {unknown[0]}. "
                "Every id must be in the features."
            )
        return np.array([position[name] for name in names], dtype=np.int64)


def read_features(
    path: str | Path,
    *,
    id_column: str = "id",
    class_column: str | None = None,
    person_column: str | None = None,
    columns: Sequence[str] | None = None,
) -> Records:
    """Read records from a CSV file with ids, numbers and optionally classes.

    Parameters:
        path: the file.
        id_column: column of the ids.
        class_column: column of the classes; None uses "class" if there is one.
        person_column: column that names the person behind each record.
        columns: the columns of numbers, in their order; None uses all other columns.

    Raises:
        InvalidData: a column is missing, an id is repeated, or a cell holds no number.
    """
    name = Path(path).name
    header, *body = read_rows(read_text(path), name=name)
    if id_column not in header:
        raise InvalidData(
            f"{name} must have a column {id_column!r}, found {', '.join(header[:8])}."
        )
    wanted = class_column or ("class" if "class" in header else None)
    if wanted is not None and wanted not in header:
        raise InvalidData(
            f"{name} must have a column {wanted!r} for the classes, found {', '.join(header[:8])}."
        )
    if person_column is not None and person_column not in header:
        raise InvalidData(
            f"{name} must have a column {person_column!r} for the people, found "
            f"{', '.join(header[:8])}."
        )
    missing = [] if columns is None else [column for column in columns if column not in header]
    if missing:
        raise InvalidData(
            f"{name} must have the columns that the metric was learned with; {len(missing)} are "
            f"missing, {missing[0]!r} first."
        )
    chosen = [
        i for i, column in enumerate(header) if column not in (id_column, wanted, person_column)
    ]
    if columns is not None:
        chosen = [header.index(column) for column in columns]
    if not body or not chosen:
        raise InvalidData(f"{name} must have at least one record and one column of numbers.")
    ids = tuple(row[header.index(id_column)] for row in body)
    if len(set(ids)) < len(ids):
        raise InvalidData(
            f"{name} holds {len(ids) - len(set(ids))} ids more than once. Keep one row for each "
            "record."
        )
    X = np.array([[_number(row[i], name, header[i]) for i in chosen] for row in body])
    classes = None if wanted is None else np.array([row[header.index(wanted)] for row in body])
    people = None
    if person_column is not None:
        people = np.array([row[header.index(person_column)] for row in body])
        if (people == "").any():
            raise InvalidData(f"{name} names no person for some records. Every record needs one.")
    return Records(
        ids,
        finite_rows(checks.number_array(name, X, ndim=2)),
        classes,
        tuple(header[i] for i in chosen),
        people=people,
    )


def read_image_folder(
    path: str | Path,
    *,
    encoder: Encoder,
    progress: Callable[[int, int], None] | None = None,
) -> Records:
    """Read records from a folder of images.

    Ids are relative paths, and the first folder of a path is the class.

    Parameters:
        path: the folder.
        encoder: computes a vector for each image; nothing is written to disk.
        progress: called with (done, total).
    """
    from blindsight import encoders
    from blindsight.data.listing import read_folder

    images, files = read_folder(path)
    names = tuple(str(name) for name in images.names)  # type: ignore[union-attr]
    X = encoders.encode_images(encoder, images.images, names, progress=progress)
    parts = [name.split("/") for name in names]
    classes = (
        np.array([part[0] for part in parts]) if all(len(part) > 1 for part in parts) else None
    )
    decoded = images.images.decoded if isinstance(images.images, Files) else None
    return Records(names, X.astype(np.float64), classes, files=files, decoded=decoded)


def read_triplets(path: str | Path, records: Records) -> Ints:
    """Read triplets from a CSV file with three ids per row: anchor, similar, dissimilar.

    A first row that names no record is treated as a header.
    """
    name = Path(path).name
    rows = read_rows(read_text(path), name=name)
    if len(rows[0]) != 3:
        raise InvalidData(
            f"{name} must have three columns (anchor, similar, dissimilar), found {len(rows[0])}."
        )
    if not set(rows[0]) & set(records.ids):
        rows = rows[1:]
    if not rows:
        raise InvalidData(f"{name} holds no triplets.")
    triplets = np.column_stack(
        [records.numbers([row[i] for row in rows], where=name) for i in range(3)]
    )
    if (np.diff(np.sort(triplets, axis=1), axis=1) == 0).any():
        raise InvalidData(f"{name}: a triplet must name three different records.")
    return triplets


def read_pairs(path: str | Path, records: Records | None = None) -> tuple[Ints, Bools]:
    """Read pairs from a CSV file with three columns: two ids and a label.

    Labels are 1/0, same/different or must-link/cannot-link. A first row that names no record is
    treated as a header, unless its label also occurs in other rows. Without `records`, ids are
    numbered in the order in which they first appear. A pair of a record with itself is refused.
    """
    name = Path(path).name
    rows = read_rows(read_text(path), name=name)
    if len(rows[0]) != 3:
        raise InvalidData(
            f"{name} must have three columns (two ids and a label), found {len(rows[0])}."
        )
    ids_of_records = (
        {cell for row in rows[1:] for cell in row[:2]} if records is None else set(records.ids)
    )
    if _header(rows, ids_of_records):
        rows = rows[1:]
    if not rows:
        raise InvalidData(f"{name} holds no pairs.")
    if records is None:
        ids = tuple(dict.fromkeys(cell for row in rows for cell in row[:2]))
        records = Records(ids, np.zeros((len(ids), 1)))
    ends = [records.numbers([row[i] for row in rows], where=name) for i in (0, 1)]
    alone = np.flatnonzero(ends[0] == ends[1])
    if len(alone):
        raise InvalidData(
            f"a pair must join two different records: {name} holds {len(alone)} self-pairs, the "
            f"first in entry {alone[0] + 1}. Remove them."
        )
    return np.column_stack(ends), np.array(
        [_label(row[2], name, line) for line, row in enumerate(rows, start=1)]
    )


def _header(rows: list[list[str]], ids: set[str]) -> bool:
    """Whether the first row names the columns: "a,b,similar" does if the labels are 1 and 0."""
    if ids & {*rows[0][:2]}:
        return False
    word = rows[0][2].lower()
    return word not in _SIMILAR | _DISSIMILAR or word not in {
        row[2].lower() for row in rows[1:]
    } | {
        "0",
        "1",
        "-1",
        "+1",
    }


def read_bounds(path: str | Path, columns: tuple[str, ...]) -> tuple[Floats, Floats]:
    """Read public bounds of the features from a CSV file.

    It has the columns "column", "low" and "high" and one row for each column of the features.
    """
    name = Path(path).name
    header, *body = read_rows(read_text(path), name=name)
    if header != ["column", "low", "high"]:
        raise InvalidData(
            f"{name} must have the columns column, low, high, found {', '.join(header[:8])}."
        )
    bounds = {row[0]: (_number(row[1], name, "low"), _number(row[2], name, "high")) for row in body}
    missing = [column for column in columns if column not in bounds]
    if missing:
        raise InvalidData(
            f"{name} must give bounds for every column; {len(missing)} are missing, {missing[0]!r} "
            "first."
        )
    low, high = np.array([bounds[column] for column in columns]).T
    return low, high


def _label(text: str, name: str, line: int) -> bool:
    word = text.lower()
    if word not in _SIMILAR | _DISSIMILAR:
        raise InvalidData(f"{name}, pair {line}: the label must be 1 or 0 (or same/different).")
    return word in _SIMILAR


def _number(text: str, name: str, column: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidData(
            f"{name}, column {column!r} must hold numbers; a cell does not."
        ) from None


@dataclass(frozen=True)
class Scores:
    """Accuracy, and accuracy averaged over classes (for sets with a dominant class)."""

    accuracy: float
    balanced: float
    tested: int

    def interval(self) -> tuple[float, float]:
        """Return Wilson's 95% interval of the accuracy."""
        z, n, p = 1.96, self.tested, self.accuracy
        middle, width = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return (middle - width) / (1 + z * z / n), (middle + width) / (1 + z * z / n)


def nearest_neighbours(
    gallery: ArrayLike, classes: ArrayLike, queries: ArrayLike, truth: ArrayLike, *, k: int = 5
) -> Scores:
    """Measure the accuracy of k-nearest-neighbour classification of mapped records.

    Each of `queries` gets the majority class of the k nearest records of `gallery`. Ties go to the
    class of the nearer record.
    """
    import faiss

    gallery_classes, true_classes = np.asarray(classes), np.asarray(truth)
    if len(np.unique(gallery_classes)) < 2:
        raise InvalidData(
            "the gallery must have at least two classes for nearest neighbours, found one."
        )
    if len(true_classes) == 0:
        raise InvalidData("there are no held-out records to test on.")
    index = faiss.IndexFlatL2(np.shape(gallery)[1])
    index.add(np.ascontiguousarray(gallery, dtype=np.float32))
    _, nearest = index.search(
        np.ascontiguousarray(queries, dtype=np.float32),
        min(checks.whole("k", k), len(gallery_classes)),
    )
    names, codes = np.unique(gallery_classes, return_inverse=True)
    votes = np.zeros((len(true_classes), len(names)))
    near = codes[nearest]
    for rank in range(near.shape[1]):
        # Slightly smaller votes for farther records break ties in favour of the nearer.
        votes[np.arange(len(true_classes)), near[:, rank]] += 1 - 1e-6 * rank
    hit = names[votes.argmax(axis=1)] == true_classes
    per_class = [float(hit[true_classes == name].mean()) for name in np.unique(true_classes)]
    return Scores(float(hit.mean()), float(np.mean(per_class)), len(true_classes))


def split_by_pairs(edges: Ints, n_records: int) -> tuple[Ints, Ints]:
    """The paper's protocol: records in pairs are the gallery, all others are held out."""
    used = np.zeros(n_records, dtype=bool)
    used[edges.ravel()] = True
    return np.flatnonzero(used), np.flatnonzero(~used)
