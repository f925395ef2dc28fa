"""From what a user hands over, arrays of pairs or indices into X, to records and record numbers.

Records are named by indices only. In an array of features every row is a record of its own,
whatever its values: rows that happen to be equal are no reason to take two people for one, and to
compare values would make the number of pairs of a record, which is public, a function of features,
which are not.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData
from blindsight.privacy.clipping import finite_rows

__all__ = ["Norm", "normalised", "read_tuples"]

Norm = Literal["l1", "l2", "none"]
Floats = NDArray[np.float64]


def read_tuples(
    tuples: Any, preprocessor: Any = None, *, width: int | None = 2
) -> tuple[Floats, NDArray[np.int64]]:
    """(records (n, d), numbers (m, k)) from (m, k, d) features, or from (m, k) indices, as in
    metric-learn.

    Parameters:
        preprocessor: what indices point to: an array (n, d), or a function from (j,) indices to (j,
        d) features. width: k, or None for any k of at least 3.
    """
    given = np.asarray(tuples)
    if given.ndim == 2:
        records, numbers = _from_indices(given, preprocessor)
    elif given.ndim == 3:
        if preprocessor is not None:
            raise InvalidData(
                "pairs must be indices (m, 2) when a preprocessor is given, got features (m, 2, d)."
            )
        records = finite_rows(checks.number_array("pairs", given)).reshape(-1, given.shape[2])
        numbers = np.arange(len(records)).reshape(given.shape[:2])
    else:
        raise InvalidData(
            f"pairs must be (m, 2, d) features or (m, 2) indices into X, got shape {given.shape}."
        )
    if len(numbers) == 0:
        raise InvalidData("pairs must not be empty: there is nothing to learn from.")
    found = numbers.shape[1]
    if found != width if width is not None else found < 3:
        wanted = (
            f"{width} records each"
            if width is not None
            else "at least 3 records: anchor, positive, negatives"
        )
        raise InvalidData(f"tuples must have {wanted}, got {found}.")
    return records, numbers


def _from_indices(given: NDArray[Any], preprocessor: Any) -> tuple[Floats, NDArray[np.int64]]:
    if preprocessor is None:
        raise InvalidData(
            "indices need the records they point to: pass preprocessor=X, or features (m, 2, d)."
        )
    if given.dtype.kind not in "iu":
        raise InvalidData(f"indices must be whole numbers, got dtype {given.dtype}.")
    numbers = given.astype(np.int64)
    if callable(preprocessor):
        named, numbers = np.unique(numbers, return_inverse=True)
        made = checks.number_array("what the preprocessor returns", preprocessor(named), ndim=2)
        records = finite_rows(made)
        if len(records) != len(named):
            raise InvalidData(
                f"the preprocessor must return one row for each index: {len(named)} indices, "
                f"{len(records)} rows."
            )
        return records, numbers.reshape(given.shape)
    records = finite_rows(checks.number_array("X", preprocessor, ndim=2))
    outside = (numbers < 0) | (numbers >= len(records))
    if outside.any():
        unknown = np.unique(numbers[outside]).size
        raise InvalidData(
            f"pairs name {unknown} unknown records: X has {len(records)} rows, numbered from 0."
        )
    return records, numbers


def normalised(X: Floats, norm: Norm) -> Floats:
    """Every row at l1 or l2 norm 1 (a row of zeros stays), without a look at any other row."""
    checks.one_of("normalize", norm, get_args(Norm))
    if norm == "none":
        return X
    size = np.linalg.norm(X, ord=1 if norm == "l1" else 2, axis=1, keepdims=True)
    return X / np.where(size > 0, size, 1.0)
