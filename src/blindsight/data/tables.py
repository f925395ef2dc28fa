"""Tables from CSV and ARFF files, with categories encoded by declared columns."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import one_of, whole
from blindsight.core.errors import HostileFile, InvalidParameter
from blindsight.data.limits import LIMITS, Limits, read_at_most, regular_file
from blindsight.data.sets import MultiLabelSet, Table

__all__ = [
    "Column",
    "encode",
    "infer_columns",
    "load_arff",
    "load_csv",
    "load_multilabel_arff",
    "read_arff",
    "read_rows",
    "read_text",
]

_OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
_XZ_MEMORY = 128 << 20


@dataclass(frozen=True)
class Column:
    """One column: a number, or one of the categories.

    With `cuts`, a number becomes the indicator of its interval (used by encodings that are all 0
    and 1).
    """

    name: str
    categories: tuple[str, ...] = ()
    cuts: tuple[float, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """What this column becomes: itself, or one indicator per category or interval."""
        if self.categories:
            return tuple(f"{self.name}={category}" for category in self.categories)
        if self.cuts:
            edges = ("-inf", *(f"{cut:g}" for cut in self.cuts), "inf")
            return tuple(f"{self.name}({low},{high}]" for low, high in pairwise(edges))
        return (self.name,)


def read_text(path: str | os.PathLike[str], *, limits: Limits = LIMITS) -> str:
    """The text of a file, unpacked if its name ends in .gz, .xz or .bz2; UTF-8, or Latin-1 if it is
    not.
    """
    path = regular_file(path, largest=limits.file_bytes)
    try:
        data = _unpacked(path, limits.text_bytes + 1)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise HostileFile(
            f"{path.name} is damaged or not readable ({type(error).__name__})."
        ) from error
    if len(data) > limits.text_bytes:
        raise HostileFile(f"{path.name} holds more than {limits.text_bytes:,} bytes of text.")
    if b"\0" in data:
        raise HostileFile(f"{path.name} is not text: it contains zero bytes.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def read_rows(
    text: str,
    *,
    name: str = "the table",
    delimiter: str = ",",
    comment: str = "",
    limits: Limits = LIMITS,
) -> list[list[str]]:
    """Rows of stripped text cells, all of one width; blank lines and comment lines are left out."""
    rows: list[list[str]] = []
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, skipinitialspace=True)
    try:
        for cells in reader:
            if not cells or (len(cells) == 1 and not cells[0].strip()):
                continue
            if comment and cells[0].startswith(comment):
                continue
            if len(cells) > limits.columns or (len(rows) + 1) * len(cells) > limits.cells:
                raise HostileFile(
                    f"{name} has more than {limits.columns} columns or {limits.cells:,} cells."
                )
            if rows and len(cells) != len(rows[0]):
                raise HostileFile(
                    f"{name}, line {reader.line_num}: expected {len(rows[0])} cells, found "
                    f"{len(cells)}."
                )
            rows.append([cell.strip() for cell in cells])
    except csv.Error as error:
        raise HostileFile(f"{name}, line {reader.line_num}: {error}.") from error
    if not rows:
        raise HostileFile(f"{name} has no rows.")
    return rows


def infer_columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[Column, ...]:
    """Numbers where every cell is one, else the sorted categories found (which then depend on the
    data).
    """
    columns = []
    for i, name in enumerate(names):
        values = {row[i] for row in rows}
        columns.append(
            Column(name) if all(map(_is_number, values)) else Column(name, tuple(sorted(values)))
        )
    return tuple(columns)


def encode(
    rows: Sequence[Sequence[str]],
    columns: Sequence[Column],
    *,
    name: str = "the table",
    unknown: str = "refuse",
) -> NDArray[np.float64]:
    """Rows of text to numbers: categories one-hot.

    An unknown category is refused, or encoded as all zeros.
    """
    one_of("unknown", unknown, {"refuse", "zeros"})
    blocks = []
    for i, column in enumerate(columns):
        cells = [row[i] for row in rows]
        if column.categories:
            blocks.append(_one_hot(cells, column, name, unknown))
            continue
        values = _numbers(cells, column, name)
        if column.cuts:
            bins = np.searchsorted(column.cuts, values, side="left")
            blocks.append(np.eye(len(column.cuts) + 1)[bins])
        else:
            blocks.append(values[:, None])
    return np.concatenate(blocks, axis=1) if blocks else np.empty((len(rows), 0))


def load_csv(
    path: str | os.PathLike[str],
    *,
    target: str | None = None,
    header: Sequence[str] | None = None,
    columns: Sequence[Column] | None = None,
    classes: Sequence[str] | None = None,
    delimiter: str = ",",
    limits: Limits = LIMITS,
) -> Table:
    """A table from a CSV file (plain, .gz, .xz or .bz2).

    Parameters:
        path: The file.
        target: Name of the label's column; None for a table without labels.
        header: Names of the columns if the first line does not hold them.
        columns: What each column (but the target) is; inferred from the data if not given.
            Inferred categories reveal which values occur: give them from a public code book where
            that matters.
        classes: The label's values in order; sorted from the data if not given.
        delimiter: What separates cells.
        limits: Bounds on bytes, rows and columns.
    """
    name = Path(path).name
    rows = read_rows(read_text(path, limits=limits), name=name, delimiter=delimiter, limits=limits)
    names, body = (list(header), rows) if header is not None else (rows[0], rows[1:])
    if len(names) != len(rows[0]) or len(set(names)) != len(names):
        raise HostileFile(f"{name}: the header must name each of {len(rows[0])} columns once.")
    if not body:
        raise HostileFile(f"{name} has a header but no rows.")
    y = None
    if target is not None:
        if target not in names:
            raise InvalidParameter(
                f"target must be one of the columns {', '.join(names[:20])}, got {target!r}."
            )
        at = names.index(target)
        labels = [row[at] for row in body]
        classes = tuple(classes) if classes is not None else tuple(sorted(set(labels)))
        y = class_numbers(labels, classes, name=name)
        body = [row[:at] + row[at + 1 :] for row in body]
        names = names[:at] + names[at + 1 :]
    columns = tuple(columns) if columns is not None else infer_columns(names, body)
    if len(columns) != len(names):
        raise InvalidParameter(f"columns must describe the {len(names)} columns beside the target.")
    X = encode(body, columns, name=name)
    return Table(
        X, y, tuple(n for c in columns for n in c.names), tuple(classes or ()), name=Path(path).stem
    )


def class_numbers(labels: Sequence[str], classes: Sequence[str], *, name: str) -> NDArray[np.int64]:
    """The position of each label among the classes; a label that is none of them is refused."""
    position = {value: i for i, value in enumerate(classes)}
    try:
        return np.array([position[label] for label in labels], dtype=np.int64)
    except KeyError:
        raise HostileFile(f"{name} has labels other than {', '.join(classes)}.") from None


def _unpacked(path: Path, most: int) -> bytes:
    """The first `most` bytes, unpacked."""
    if path.suffix.lower() == ".xz":
        # The header states how much memory unpacking takes; lzma.open would accept any figure.
        unpacker = lzma.LZMADecompressor(memlimit=_XZ_MEMORY)
        data = unpacker.decompress(path.read_bytes(), max_length=most)
        if len(data) < most and not unpacker.eof:
            raise EOFError
        return data
    opener = _OPENERS.get(path.suffix.lower(), open)
    with opener(path, "rb") as stream:
        return read_at_most(stream, most)


def _is_number(cell: str) -> bool:
    try:
        return bool(np.isfinite(float(cell)))
    except ValueError:
        return False


def _numbers(cells: Sequence[str], column: Column, name: str) -> NDArray[np.float64]:
    try:
        values = np.array([float(cell) for cell in cells])
    except ValueError:
        raise HostileFile(f"{name}: column {column.name} must hold numbers only.") from None
    if not np.isfinite(values).all():
        raise HostileFile(f"{name}: column {column.name} must hold finite numbers.")
    return values


def _one_hot(cells: Sequence[str], column: Column, name: str, unknown: str) -> NDArray[np.float64]:
    position = {category: i for i, category in enumerate(column.categories)}
    indices = np.array([position.get(cell, -1) for cell in cells])
    if unknown == "refuse" and (indices < 0).any():
        raise HostileFile(
            f"{name}: column {column.name} has a value outside its {len(position)} categories."
        )
    block = np.zeros((len(cells), len(position)))
    rows = np.flatnonzero(indices >= 0)
    block[rows, indices[rows]] = 1.0
    return block


_ATTRIBUTE = re.compile(r"@attribute\s+('(?:[^'\\]|\\.)*'|\"[^\"]*\"|\S+)\s+(.+)", re.IGNORECASE)


def read_arff(
    path: str | os.PathLike[str], *, limits: Limits = LIMITS
) -> tuple[tuple[Column, ...], list[list[str]]]:
    """The declared columns and the rows as text.

    Sparse rows are filled with zeros (or the first category).
    """
    name = Path(path).name
    lines = iter(read_text(path, limits=limits).splitlines())
    columns = _attributes(lines, name, limits)
    body = [line.strip() for line in lines]
    body = [line for line in body if line and not line.startswith("%")]
    if not body or len(body) > limits.rows:
        raise HostileFile(f"{name} must have between 1 and {limits.rows:,} rows.")
    if body[0].startswith("{"):
        # Sparse files are small for what they stand for: check what filling them would take.
        if len(body) * len(columns) > limits.cells:
            raise HostileFile(
                f"{name} would fill {len(body):,} x {len(columns):,} cells, more than the limit."
            )
        return columns, [_sparse(line, columns, name) for line in body]
    rows = read_rows("\n".join(line.replace("'", '"') for line in body), name=name, limits=limits)
    if len(rows[0]) != len(columns):
        raise HostileFile(
            f"{name} declares {len(columns)} attributes and has {len(rows[0])} columns."
        )
    return columns, rows


def load_arff(
    path: str | os.PathLike[str], *, target: str | None = None, limits: Limits = LIMITS
) -> Table:
    """A table; `target` names the label's attribute, by default the last one if it is nominal."""
    name = Path(path).name
    columns, rows = read_arff(path, limits=limits)
    names = [column.name for column in columns]
    if target is None:
        at = len(columns) - 1 if columns[-1].categories else None
    elif target in names:
        at = names.index(target)
    else:
        raise InvalidParameter(f"target must be one of the attributes, got {target!r}.")
    if at is None:
        return Table(encode(rows, columns, name=name), None, _names(columns), name=Path(path).stem)
    if not columns[at].categories:
        raise InvalidParameter(f"target must be a nominal attribute; {names[at]!r} is a number.")
    y = class_numbers([row[at] for row in rows], columns[at].categories, name=name)
    others = columns[:at] + columns[at + 1 :]
    X = encode([row[:at] + row[at + 1 :] for row in rows], others, name=name)
    return Table(X, y, _names(others), columns[at].categories, name=Path(path).stem)


def load_multilabel_arff(
    path: str | os.PathLike[str], *, labels: int, limits: Limits = LIMITS
) -> MultiLabelSet:
    """A MULAN set: the last `labels` attributes are {0,1} labels, those before them features."""
    name = Path(path).name
    columns, rows = read_arff(path, limits=limits)
    if whole("labels", labels) >= len(columns):
        raise InvalidParameter(
            f"labels must be fewer than the {len(columns)} attributes, got {labels}."
        )
    marks = np.array([row[-labels:] for row in rows])
    if not np.isin(marks, ("0", "1")).all():
        raise HostileFile(f"{name}: the last {labels} attributes must be 0 or 1.")
    # Nominal {0,1} features are numbers, not two indicators each.
    plain = tuple(
        Column(c.name) if set(c.categories) <= {"0", "1"} else c for c in columns[:-labels]
    )
    features: NDArray[np.float64] = encode([row[:-labels] for row in rows], plain, name=name)
    classes = tuple(column.name for column in columns[-labels:])
    return MultiLabelSet(
        (marks == "1").astype(np.uint8), None, features, classes, name=Path(path).stem
    )


def _attributes(lines: Iterator[str], name: str, limits: Limits) -> tuple[Column, ...]:
    columns: list[Column] = []
    for line in lines:
        word = line.strip().lower()
        if word.startswith("@data"):
            if not columns:
                raise HostileFile(f"{name} declares no attributes before its data.")
            return tuple(columns)
        if not word.startswith("@attribute"):
            continue
        match = _ATTRIBUTE.match(line.strip())
        if match is None or len(columns) >= limits.columns:
            raise HostileFile(
                f"{name} has a broken attribute, or more than {limits.columns} of them."
            )
        columns.append(_column(match[1].strip("'\""), match[2].strip(), name))
    raise HostileFile(f"{name} is not ARFF: it has no @data line.")


def _column(attribute: str, kind: str, name: str) -> Column:
    if kind.startswith("{") and kind.endswith("}"):
        categories = read_rows(kind[1:-1].replace("'", '"'), name=name)[0]
        return Column(attribute, tuple(categories))
    if kind.lower().split()[0] in ("numeric", "real", "integer"):
        return Column(attribute)
    raise HostileFile(
        f"{name}: attribute {attribute[:40]} has type {kind[:20]}; numbers and {{...}} are read."
    )


def _sparse(line: str, columns: tuple[Column, ...], name: str) -> list[str]:
    row = [column.categories[0] if column.categories else "0" for column in columns]
    try:
        for pair in filter(None, (part.strip() for part in line.strip("{}").split(","))):
            index, value = pair.split(None, 1)
            if not 0 <= int(index) < len(columns):
                raise IndexError
            row[int(index)] = value.strip("'\"")
    except (ValueError, IndexError):
        raise HostileFile(
            f"{name} has a sparse row that is not `index value` pairs within its columns."
        ) from None
    return row


def _names(columns: Iterable[Column]) -> tuple[str, ...]:
    return tuple(name for column in columns for name in column.names)
