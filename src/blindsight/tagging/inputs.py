"""What a head sees of an image's features: rows of one length, in public directions where there are
any.

Private training clips every record's gradient, which is its residual times its input: rows of one
length waste nothing of the bound. Pooled features share a large common part that carries no
information and eats the bound, so it is taken away: the mean of public images, or the records' own
mean, released with noise. Public images, of any subject, also give their main directions,
half-whitened; fewer directions need less noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData
from blindsight.privacy.clipping import finite_rows, unusable_rows

__all__ = ["CONSTANT", "Inputs", "PaperInputs", "feature_rows", "private_rows", "unit_rows"]

Matrix = NDArray[np.float64]
# The constant beside a row of length one: large enough to learn a rate by, small enough to cost the
# bound little.
CONSTANT = 0.3
_LENGTH = 4.0


def feature_rows(x: Any, *, n_features: int | None = None) -> NDArray[np.float32]:
    """Finite float rows (n, D), or an error that says what is wrong."""
    rows = checks.finite_array("X", x)
    _check_shape(rows.shape, n_features)
    return rows.astype(np.float32)


def private_rows(x: Any, *, n_features: int | None = None) -> tuple[NDArray[np.float32], int]:
    """Float rows (n, D) of private records, and how many of them were unusable and count as zeros.

    See `blindsight.privacy.clipping.finite_rows`.
    """
    rows = checks.number_array("X", x)
    _check_shape(rows.shape, n_features)
    return finite_rows(rows).astype(np.float32), int(unusable_rows(rows).sum())


def unit_rows(x: Any) -> Matrix:
    """Every row divided by its length; rows of zeros stay."""
    rows = np.asarray(x, np.float64)
    peak = np.abs(rows).max(axis=1, keepdims=True, initial=0)
    rows = rows / np.where(peak > 0, peak, 1.0)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length > 0, length, 1.0)


@dataclass(frozen=True)
class Inputs:
    """Centre (D,) taken away from unit rows, and directions (D, r) that they are seen in; both
    public or released.

    The head's input is a row of length one with a constant beside it.
    """

    centre: Matrix
    directions: Matrix | None = None

    def __post_init__(self) -> None:
        # One layout in memory, so that a model that was saved and read gives the same numbers to
        # the last bit.
        object.__setattr__(self, "centre", np.ascontiguousarray(self.centre, np.float64))
        if self.directions is not None:
            object.__setattr__(
                self, "directions", np.ascontiguousarray(self.directions, np.float64)
            )

    @classmethod
    def from_public(cls, x: Any, *, components: int) -> Inputs:
        """The mean of public features, and their main directions, each scaled by the root of its
        deviation.
        """
        rows = unit_rows(feature_rows(x))
        centre = rows.mean(axis=0)
        _, size, axes = np.linalg.svd(rows - centre, full_matrices=False)
        kept = min(
            checks.whole("components", components), int((size > 1e-6 * max(size[0], 1e-300)).sum())
        )
        if kept == 0:
            raise InvalidData("public must hold images that differ from each other.")
        return cls(centre, axes[:kept].T / np.sqrt(size[:kept]))

    @property
    def width(self) -> int:
        """How many inputs the head has."""
        return 1 + (len(self.centre) if self.directions is None else self.directions.shape[1])

    def __call__(self, x: Any) -> Matrix:
        """The head's input (n, width)."""
        rows = unit_rows(x) - self.centre
        rows = unit_rows(rows if self.directions is None else rows @ self.directions)
        return np.hstack([rows, np.full((len(rows), 1), CONSTANT)])


@dataclass(frozen=True)
class PaperInputs:
    """ML-GCN's input: y = Wx has no bias, so rows are only scaled to one length.

    `floor` and `ceiling` are the corollaries' conditions: |x_i| at least, x_i at most.
    """

    floor: float | None = None
    ceiling: float | None = None

    def __call__(self, x: Any) -> NDArray[np.float32]:
        """The head's input."""
        rows = (_LENGTH * unit_rows(x)).astype(np.float32)
        if self.floor is not None:
            rows = np.where(rows < 0, -1.0, 1.0) * np.maximum(np.abs(rows), self.floor)
        if self.ceiling is not None:
            rows = np.minimum(rows, self.ceiling)
        return rows.astype(np.float32)


def _check_shape(shape: tuple[int, ...], n_features: int | None) -> None:
    if len(shape) != 2 or shape[0] == 0 or shape[1] == 0:
        raise InvalidData(f"X must be a non-empty table of images by features, got shape {shape}.")
    if n_features is not None and shape[1] != n_features:
        raise InvalidData(
            f"X must have the {n_features} features of the training data, got {shape[1]}."
        )
