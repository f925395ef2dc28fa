"""ARFF, the format of Weka and MULAN: declared attributes, then dense or sparse rows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import whole
from blindsight.core.errors import HostileFile, InvalidParameter
from blindsight.data.formats.csvtable import Column, class_numbers, encode, read_rows, read_text
from blindsight.data.limits import LIMITS, Limits
from blindsight.data.sets import MultiLabelSet, Table

__all__ = ["load_arff", "load_multilabel_arff", "read_arff"]

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
