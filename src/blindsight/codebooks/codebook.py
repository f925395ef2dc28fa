"""A codebook: public cells, one k-ary response, and the reading of what was released.

codebook = from_head("lite0", epsilon=8)              # or from_pictures, from_classes
cells = codebook.assign(features)                     # private: the true cells
codes = door.release(CELL, cells)                     # `codebook.guarantee()` is the door's
reading = codebook.reading(np.bincount(codes, minlength=codebook.k))
scores = reading.scores(codebook.similarity(queries)) # for each distinct code, not for each record
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from blindsight.codebooks.cells import (
    Cells,
    ClassCells,
    Embedding,
    GroupCells,
    LabelCells,
    PairCells,
)
from blindsight.codebooks.posterior import Reading, prior_from_counts
from blindsight.core import checks, storage
from blindsight.core.errors import BlindsightError, HostileFile
from blindsight.privacy import Assumption, Guarantee, Plan, Planned
from blindsight.privacy.entropy import EntropyName
from blindsight.privacy.mechanisms import KaryResponse

__all__ = ["CELL", "Codebook", "Source", "number_of_cells"]

CELL = "cell"
KIND = "codebook"
Way = Literal["many", "some", "few", "first page"]
Source = Literal["network", "pictures", "labelled pictures", "names", "protected images"]
_CELLS: dict[str, type[Any]] = {
    cells.kind: cells for cells in (GroupCells, PairCells, ClassCells, LabelCells)
}
_RESTS_ON = {
    "network": Assumption("public cells", "the cells were made from a public network's weights"),
    "pictures": Assumption("public cells", "the pictures that the cells were made from are public"),
    "labelled pictures": Assumption(
        "public cells", "the labelled pictures that the cells were made from are public"
    ),
    "names": Assumption("public cells", "the words that the cells were made from are public"),
    "protected images": Assumption(
        "private cells", "the cells were learned from the protected images with noise"
    ),
}
_ONCE = Assumption(
    "released once", "an image's cell is released once; each further release adds to the cost"
)


def number_of_cells(epsilon: float, way: Way = "many", *, most: int | None = None) -> int:
    """The one rule by which a budget chooses k, at least 2 and at most `most` (what the pictures at
    hand pay for).

    K = 2 e^(2 epsilon / 3): with perfect cells e^epsilon - 1 would be best; real ones pay less.
    Where images are of some kinds only, no more than 0.3 e^epsilon, so that the truth is told three
    times in four; where they are of few kinds, or where noise blurs the cells themselves, 4
    e^(epsilon / 3): more would only blur the response. For the first page, 1.5 e^epsilon: better
    first hits, a worse order of the rest.

    Examples:
        >>> [number_of_cells(e) for e in (2, 4, 8, 12)]
        [8, 29, 414, 5962]
        >>> [number_of_cells(e, "some") for e in (2, 4, 8)], [number_of_cells(e, "few") for e in (2, 4, 8, 12)]
        ([8, 16, 414], [8, 15, 58, 218])
    """  # noqa: E501
    e = min(checks.positive("epsilon", epsilon), 24.0)
    usual = 2 * math.exp(2 * e / 3)
    k = round(
        {
            "many": usual,
            "some": min(usual, max(8.0, 0.3 * math.exp(e))),
            "few": 4 * math.exp(e / 3),
            "first page": 1.5 * math.exp(e),
        }[checks.one_of("way", way, get_args(Way))]
    )
    return max(2, k if most is None else min(k, most))


@dataclass(frozen=True, eq=False)
class Codebook:
    """Public cells and the budget with which one of them is released per image.

    Parameters:
        embedding: see their modules.
        cells: see their modules.
        epsilon: per record, pure, in the local model.
        source: what the cells were made from.
        slope: how relevance grows with similarity, fitted on a labelled public folder; None where
            there is none, and then no probability of relevance may be shown.
        classes: the names of a labelled folder's classes.
    """

    embedding: Embedding
    cells: Cells
    epsilon: float
    source: Source = "network"
    slope: float | None = None
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.one_of("source", self.source, tuple(_RESTS_ON))

    @property
    def k(self) -> int:
        """How many cells."""
        return self.cells.k

    @property
    def mechanism(self) -> KaryResponse:
        """One k-ary response over all cells: a budget is never split between parts of a cell."""
        return KaryResponse(epsilon=self.epsilon, k=self.k, unit="record")

    @property
    def calibrated(self) -> bool:
        """Whether scores are probabilities of relevance (a labelled public folder was there to
        check them on).
        """
        return self.slope is not None and self.source == "labelled pictures"

    def plan(self) -> Plan:
        """One cell per image."""
        return (Planned(what=CELL, mechanism=self.mechanism),)

    def guarantee(self, entropy: EntropyName = "system") -> Guarantee:
        """Pure epsilon per record, local: whoever holds the image releases its cell."""
        rests_on = (_RESTS_ON[self.source], _ONCE)
        return Guarantee(releases=self.plan(), model="local", assumptions=rests_on, entropy=entropy)

    def assign(self, X: NDArray[Any]) -> NDArray[np.int64]:
        """The true cells (n,) of features: private until a mechanism has answered for them.

        One row that is repeated throughout, as an audit asks for it, is assigned once.
        """
        rows = np.asarray(X)
        if (
            rows.ndim == 2
            and len(rows) > 1
            and (rows[-1] == rows[0]).all()
            and (rows == rows[0]).all()
        ):
            return np.repeat(self.cells.assign(self.embedding(rows[:1])), len(rows))
        return self.cells.assign(self.embedding(rows))

    def similarity(self, X: NDArray[Any]) -> NDArray[np.float32]:
        """How well queries (m, d), which are not private, fit each cell (m, k)."""
        return self.cells.similarity(self.embedding(X))

    def likeness(self, cells: NDArray[Any]) -> NDArray[np.float32]:
        """How well the middle of these (released) cells fits each cell (m, k): to search by what is
        stored.
        """
        return self.cells.likeness(np.asarray(cells, dtype=np.int64))

    def reading(self, counts: NDArray[Any]) -> Reading:
        """How to read an index with these counts (k,) of released cells."""
        group, groups = self.cells.coarse()
        truth = self.mechanism.truth_probability
        shares = prior_from_counts(
            np.bincount(group, weights=counts, minlength=groups), truth=truth, k=self.k
        )
        return self.reading_of(
            (shares / np.bincount(group, minlength=groups))[group], np.asarray(counts)
        )

    def reading_of(self, prior: NDArray[Any], counts: NDArray[Any] | None = None) -> Reading:
        """How to read an index whose images spread over the true cells so (k,)."""
        truth = self.mechanism.truth_probability
        if not isinstance(self.cells, ClassCells):
            return Reading(prior, truth, slope=self.slope, counts=counts)
        # Two stored images share a label this often: the share that is relevant to a query of the
        # same kind.
        often = float(np.clip(self.cells.often(prior), 1e-4, 0.9))
        return Reading(prior, truth, often, self.slope, counts)

    def to_parts(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """(arrays, fields) that rebuild it."""
        arrays = {
            "axes": self.embedding.axes,
            "centre": self.embedding.centre,
            **self.cells.arrays(),
        }
        if self.embedding.text_centre is not None:
            arrays["text_centre"] = self.embedding.text_centre
        fields = {
            "cells": self.cells.kind,
            "epsilon": self.epsilon,
            "source": self.source,
            "slope": self.slope,
            "classes": list(self.classes),
        }
        if not self.embedding.row_mean:
            fields["row_mean"] = False
        return arrays, fields

    @classmethod
    def from_parts(cls, arrays: dict[str, NDArray[Any]], fields: dict[str, Any]) -> Codebook:
        """The inverse of `to_parts`; `HostileFile` where anything does not fit."""
        try:
            given = {name: _checked(name, array) for name, array in arrays.items()}
            kind = _CELLS[checks.one_of("cells", fields["cells"], tuple(_CELLS))]
            embedding = Embedding(
                given.pop("axes"),
                given.pop("centre"),
                given.pop("text_centre", None),
                fields.get("row_mean", True) is not False,
            )
            slope, classes = fields["slope"], tuple(str(name) for name in fields["classes"])
            slope = None if slope is None else checks.positive("slope", slope)
            book = cls(
                embedding, kind(**given), fields["epsilon"], fields["source"], slope, classes
            )
            book.similarity(
                np.zeros((1, len(embedding.axes)), np.float32)
            )  # shapes that do not fit show here
            _ = book.mechanism
        except HostileFile:
            raise
        except (KeyError, TypeError, ValueError, IndexError, BlindsightError) as error:
            raise HostileFile(
                f"not a codebook that can be used ({type(error).__name__}). Make it again."
            ) from error
        return book

    def digest(self) -> str:
        """Tells this codebook from others: noise by name must differ between two of them."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        kind = KIND if self.embedding.row_mean else f"{KIND} without row means"
        return storage.digest(kind, self.to_parts()[0])

    def save(self, path: str | Path) -> None:
        """Write it to one file without pickle; everything in it is public."""
        arrays, fields = self.to_parts()
        storage.save(path, kind=KIND, arrays=arrays, fields=fields)

    @classmethod
    def load(cls, path: str | Path) -> Codebook:
        """Read it back; anything else is refused."""
        arrays, fields = storage.load(path, kind=KIND)
        return cls.from_parts(arrays, fields)


def _checked(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers as int64, others as finite float32."""
    if array.dtype.kind in "iu":
        return array.astype(np.int64)
    if array.dtype.kind != "f" or not np.isfinite(array).all():
        raise HostileFile(f"the array {name!r} of a codebook is not finite. Make it again.")
    return array.astype(np.float32)
