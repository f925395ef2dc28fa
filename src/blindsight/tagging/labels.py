"""Labels as a table of 0 and 1, and where their names come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import InvalidData, InvalidParameter

__all__ = ["FromLabels", "check_names", "label_names", "label_rows"]


@dataclass(frozen=True)
class FromLabels:
    """Names that were read off the private labels.

    They are as private as the records: nothing is proven then.
    """

    names: tuple[str, ...]


def label_names(classes: Any, n_labels: int) -> tuple[str, ...]:
    """The names of `n_labels` columns: those given, or their numbers."""
    names = classes.names if isinstance(classes, FromLabels) else classes
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
    """Refuse names that a terminal, a spreadsheet or a file of labels would take for something
    else.
    """
    if len(set(names)) != len(names):
        raise InvalidParameter("classes must be different names.")
    for name in names:
        if not name.strip() or not name.isprintable() or ";" in name or name[0] in "=+-@":
            raise InvalidParameter(
                "a label must be a printable name without semicolons that begins with none of = + "
                f"- @, got {name!r}."
            )


def label_rows(y: Any) -> NDArray[np.uint8]:
    """Labels (n, C), dense or sparse, as 0 and 1: 1 where a value is above a half, whatever else it
    is.
    """
    array = np.asarray(y.toarray() if hasattr(y, "toarray") else y)
    if array.ndim != 2 or array.shape[0] == 0 or array.shape[1] == 0:
        raise InvalidData(
            f"labels must be a non-empty table of images by labels, got shape {array.shape}."
        )
    if array.dtype.kind not in "biuf":
        raise InvalidData(f"labels must be a table of 0 and 1, got dtype {array.dtype}.")
    return (array > 0.5).astype(np.uint8)
