"""Labels as an indicator matrix: two images are similar if they share at least one label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import InvalidData

__all__ = ["as_indicator", "similarity"]


def as_indicator(y: Any, classes: Sequence[Any] | None = None) -> NDArray[np.float32]:
    """Labels (n,) of any kind, or a multi-label indicator (n, C) of 0 and 1, to float32 (n, C).

    With `classes`, a column for each of them, seen or not; a label that is none of them is a row of
    zeros.

    Examples:
        >>> as_indicator(["cat", "dog", "cat"]).tolist()
        [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]
    """
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 1 and classes is not None:
        return np.asarray(labels[:, None] == np.asarray(classes)[None, :], dtype=np.float32)
    if labels.ndim == 1:
        found, index = np.unique(labels, return_inverse=True)
        return np.eye(len(found), dtype=np.float32)[index]
    if labels.ndim != 2:
        raise InvalidData(f"labels must have shape (n,) or (n, C), got {labels.shape}.")
    if labels.dtype.kind not in "biuf" or not ((labels == 0) | (labels == 1)).all():
        raise InvalidData("multi-label targets must be an indicator matrix of 0 and 1.")
    return labels.astype(np.float32)


def similarity(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float32]:
    """S (n, m): +1 where two indicator rows share a label, -1 elsewhere (the paper's S)."""
    return np.where(a @ b.T > 0, np.float32(1), np.float32(-1))
