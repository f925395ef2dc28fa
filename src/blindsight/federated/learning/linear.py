"""Linear classifiers as one matrix, and the losses of a margin m = y f(x) that learners minimise.

The matrix has one row per class (one-vs-rest; two classes need one row only) and one column per
feature, with the bias in the last column. Flattened row by row it is the vector w of the paper, of
dimension D = NC (d + 1).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import InvalidData

__all__ = [
    "LOSSES",
    "Loss",
    "flat",
    "model_digest",
    "predicted",
    "rows_of",
    "scores",
    "shaped",
    "sparsity",
    "targets",
]

Matrix = NDArray[np.float64]


def rows_of(classes: int) -> int:
    """Return the number of rows of a model with this many classes."""
    return 1 if classes <= 2 else classes


def targets(labels: NDArray[Any], classes: int) -> Matrix:
    """Return +1 for a row's own class and -1 for the others.

    `labels` are class numbers, or an indicator matrix (n, C) if a row may have several labels.
    """
    if labels.ndim == 2:
        return np.where(labels == 1, 1.0, -1.0)
    if classes <= 2:
        return np.where(labels == 1, 1.0, -1.0)[:, None]
    return np.where(labels[:, None] == np.arange(classes), 1.0, -1.0)


def scores(weights: Matrix, X: NDArray[Any]) -> Matrix:
    """Return decision values, one column for each row of the model."""
    return X @ weights[:, :-1].T + weights[:, -1]


def predicted(weights: Matrix, X: NDArray[Any]) -> NDArray[np.intp]:
    """Return the number of the class with the highest score, for each row."""
    values = scores(weights, X)
    return (values[:, 0] > 0).astype(np.intp) if values.shape[1] == 1 else np.argmax(values, axis=1)


def sparsity(vector: NDArray[Any]) -> float:
    """Return the share of entries that are zero."""
    return float(np.mean(np.asarray(vector) == 0))


def flat(weights: Matrix) -> NDArray[np.float64]:
    """Return the matrix as one vector."""
    return np.ascontiguousarray(weights, dtype=np.float64).ravel()


def shaped(vector: NDArray[Any], features: int) -> NDArray[Any]:
    """Return the vector as a matrix of `features` + 1 columns."""
    if vector.ndim != 1 or vector.size % (features + 1):
        raise InvalidData(
            f"a model of {features} features must have a multiple of {features + 1} weights."
        )
    return vector.reshape(-1, features + 1)


def model_digest(vector: NDArray[np.float64]) -> bytes:
    """Return the digest of a model: the hash of its weights as little-endian float64."""
    return hashlib.sha256(np.ascontiguousarray(vector, dtype="<f8").tobytes()).digest()


Margins = NDArray[np.float64]


@dataclass(frozen=True)
class Loss:
    """One loss; `curvature` bounds its second derivative (infinite for the plain hinge)."""

    value: Callable[[Margins], Any]
    slope: Callable[[Margins], Any]
    curvature: float


LOSSES: dict[str, Loss] = {
    "hinge": Loss(lambda m: np.maximum(0, 1 - m), lambda m: np.where(m < 1, -1.0, 0.0), np.inf),
    "squared hinge": Loss(
        lambda m: np.maximum(0, 1 - m) ** 2, lambda m: -2 * np.maximum(0, 1 - m), 2.0
    ),
    "logistic": Loss(lambda m: np.logaddexp(0, -m), lambda m: (np.tanh(m / 2) - 1) / 2, 0.25),
}
