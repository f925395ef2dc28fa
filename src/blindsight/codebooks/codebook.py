"""A codebook: public cells, one k-ary response, and the reading of what was released.

codebook = from_head("lite0", epsilon=8)              # or from_pictures, from_classes
cells = codebook.assign(features)                     # private: the true cells
codes = door.release(CELL, cells)                     # `codebook.guarantee()` is the door's
reading = codebook.reading(np.bincount(codes, minlength=codebook.k))
scores = reading.scores(codebook.similarity(queries)) # for each distinct code, not for each record

`Reading` estimates how the stored images spread over the cells and ranks them for a query. k-ary
response tells the true cell with probability p and each of the others with q0 = (1 - p)/(k - 1).
All that is computed from released cells and public values costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from blindsight.codebooks.cells import (
    CellPartition,
    ClassCells,
    Embedding,
    GroupCells,
    LabelCells,
    PairCells,
)
from blindsight.core import checks, storage
from blindsight.core.errors import BlindsightError, HostileFile
from blindsight.privacy import Assumption, Guarantee, Planned
from blindsight.privacy.entropy import EntropyName
from blindsight.privacy.mechanisms import KaryResponse

__all__ = [
    "CELL",
    "Codebook",
    "Reading",
    "Source",
    "all_lies",
    "number_of_cells",
    "own_share",
    "prior_from_counts",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_STEPS = 30
_BINS = 1024
# A cell may fit this much worse than the best one and still hold something like the query. Of few
# alike photos the nearest lies further off: with `_FEW` stored photos, twice as far. Words lie in
# the middle of what they name, far from any photo.
_FAR, _FAR_WORDS, _FEW = 0.09, 0.5, 50
# Where something like a query is stored, it is this share of the photos; and how sure "nothing like
# this" must be.
_ALIKE, _SURE = 0.02, 0.7
# Photos spread evenly over the cells that trust counts beside the stored ones, so that few of these
# do not decide.
_EVENLY = 100.0
# Trust is off by less than .05 where the truth is told this often; or else from so many records,
# and so many per cell.
_TOLD, _RECORDS, _PER_CELL = 0.8, 1000, 40


def prior_from_counts(counts: NDArray[Any], *, truth: float, k: int) -> Floats:
    """The share of stored images whose *true* cell is each group, from counts of released ones, by
    30 steps of EM.

    `counts` are per group of k / len(counts) cells; with groups of one cell they are per cell.
    Starting from equal shares, few steps keep the estimate from chasing the noise.
    """
    n = float(np.sum(counts))
    groups = len(counts)
    prior = np.full(groups, 1 / groups)
    if n == 0:
        return prior
    lie = (1 - truth) / (k - 1)
    size = k / groups
    keep = truth - lie  # the released group is the true one by more than chance
    released = np.asarray(counts, dtype=np.float64)
    for _ in range(_STEPS):
        expected = keep * prior + lie * size
        ratio = released / expected
        prior = prior * (keep * ratio + lie * size * ratio.sum()) / n
        prior /= prior.sum()
    return prior


def own_share(prior: NDArray[Any], *, truth: float, k: int) -> Floats:
    """How much of a released cell's meaning is its own, for cells of these shares: the rest is the
    average's.

    The probability that the release was no lie, counting a lie that happens to hit the true cell as
    one.
    """
    lie = (1 - truth) / (k - 1)
    true = (truth - lie) * np.asarray(prior, dtype=np.float64)
    return np.asarray(true / (true + lie), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Reading:
    """What an index of released cells says: `prior` (k,) shares of the true cells, how often the
    truth is told.

    Parameters:
        prior: the share of stored images in each cell, estimated from the released ones.
        truth: p, the probability that a released cell is the true one beforehand.
        relevant: the share of stored images taken to be relevant to a query; ranking hardly depends
            on it.
        slope: how sharply relevance grows with similarity; 5 ln(1/relevant) fits sets without
            labels, a labelled public folder fits its own.
        counts: how many records were released in each cell (k,), to set the level of `trust` by.
    """

    prior: Floats
    truth: float
    relevant: float = 0.05
    slope: float | None = None
    counts: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        checks.probability("relevant", self.relevant)
        checks.probability("truth", self.truth)

    @property
    def lie(self) -> float:
        """The probability of each cell that is not the true one."""
        return (1 - self.truth) / (len(self.prior) - 1)

    @cached_property
    def trust(self) -> Floats:
        """For each cell: the probability that an image stored under it truly lies in it.

        Over all records it is p on average, whatever they show; but cells that noise filled look
        full, and so the prior trusts them too much. With `counts`, evenly spread photos are counted
        beside the stored ones, and all log-odds are shifted until the average over the records is
        p.
        """
        n = 0.0 if self.counts is None else float(self.counts.sum())
        prior = (n * self.prior + _EVENLY / len(self.prior)) / (n + _EVENLY) if n else self.prior
        truthful = self.truth * prior
        trust = np.clip(truthful / ((self.truth - self.lie) * prior + self.lie), 1e-9, 1 - 1e-9)
        if self.counts is None or not n:
            return trust
        odds = np.log(trust / (1 - trust))
        share = self.counts / n
        low, high = -30.0, 30.0
        for _ in range(50):
            middle = 0.5 * (low + high)
            if float(share @ (1 / (1 + np.exp(-(odds + middle))))) > self.truth:
                high = middle
            else:
                low = middle
        shifted: Floats = 1 / (1 + np.exp(-(odds + 0.5 * (low + high))))
        return shifted

    @property
    def shown_trust(self) -> Floats | None:
        """`trust` where it is true enough to be shown: of hits, it was then off by at most .05 on
        photos that had no part in choosing anything here; elsewhere by up to .11.
        """
        n = 0 if self.counts is None else int(self.counts.sum())
        enough = n >= max(_RECORDS, _PER_CELL * len(self.prior))
        return self.trust if self.truth >= _TOLD or enough else None

    @cached_property
    def _own(self) -> Floats:
        return own_share(self.prior, truth=self.truth, k=len(self.prior))

    def relevance(self, similarity: NDArray[Any]) -> Floats:
        """P(an image of the cell is relevant to the query) (m, k): a logistic of the similarity
        whose level is set so that `relevant` of the stored images are.
        """
        slope = 5 * np.log(1 / self.relevant) if self.slope is None else self.slope
        # Halved here once: sigmoid(z) = (1 + tanh(z / 2)) / 2.
        half = np.float32(0.5 * slope) * np.asarray(similarity, dtype=np.float32)
        return np.stack(
            [_sigmoid(row + np.float32(_level(row, self.prior, self.relevant))) for row in half]
        )

    def scores(self, similarity: NDArray[Any]) -> Floats:
        """P(relevant | the stored cell) (m, k): the cell's own as far as it is trusted, the average
        beyond.
        """
        return self.relevant + self._own.astype(np.float32) * (
            self.relevance(similarity) - np.float32(self.relevant)
        )

    def present(
        self, similarity: NDArray[Any], counts: NDArray[Any], *, words: bool = False
    ) -> NDArray[np.bool_]:
        """Whether anything like each query is stored (m,), as far as the noise lets tell.

        Counted are the records of the cells that fit the query nearly as well as the best: with
        classes, of the likeliest class. "Nothing" is said where, at even odds beforehand, it is at
        least 70% sure that all of them are lies. Few records or a small budget are never that sure.
        """
        released, fit = np.asarray(counts, dtype=np.float64), np.asarray(similarity)
        n = float(released.sum())
        far = (
            0.0
            if self.slope is not None
            else (_FAR_WORDS if words else _FAR) * (1 + (_FEW / max(n, 1.0)) ** 0.5)
        )
        near = fit >= fit.max(axis=1, keepdims=True) - far
        true = (self.truth - self.lie) * _ALIKE * n  # records that would be there beside the lies
        lies = near.sum(axis=1) * n * self.lie
        observed = near @ released
        return np.array(
            [all_lies(*each, true) < _SURE for each in zip(observed, lies, strict=True)],
            dtype=np.bool_,
        )


def all_lies(observed: float, lies: float, true: float) -> float:
    """How likely `found` records are all lies, of which `lies` are expected; else some `true` ones
    are among them, a number with an exponential law. At even odds beforehand.
    """
    if true <= 0 or observed > 10 * (lies + 10):  # nothing can be told; or far too many
        return 0.5 if true <= 0 else 0.0
    lies, often = max(lies, 1e-12), math.log(true / (1 + true))
    # P(found | some) / P(found | lies alone) = sum over i lies among them of a Poisson and a
    # geometric probability.
    i = np.arange(round(observed) + 1)
    terms = i * (math.log(lies) - often) - np.concatenate([[0.0], np.cumsum(np.log(i[1:]))])
    top = float(terms.max())
    ratio = (
        top
        + math.log(float(np.exp(terms - top).sum()))
        + observed * (often - math.log(lies))
        - math.log1p(true)
    )
    ratio += math.lgamma(observed + 1)
    return 1 / (1 + math.exp(min(ratio, 700.0)))


def _sigmoid(half: NDArray[Any]) -> NDArray[Any]:
    """The logistic function of twice its argument."""
    result: NDArray[Any] = np.tanh(half)
    result += 1
    result *= 0.5
    return result


def _level(half: NDArray[np.float32], prior: Floats, target: float) -> float:
    """The shift at which the prior mean of the sigmoid is `target`: by Newton's steps over a
    histogram, and by halving where they would leave what is still possible.
    """
    low, high = float(half.min()), float(half.max())
    width = max(high - low, 1e-9) / _BINS
    at = ((half - np.float32(low)) * np.float32((1 - 1e-6) / width)).astype(np.int32)
    mass = np.bincount(at, weights=prior, minlength=_BINS)
    middle = low + (np.arange(len(mass)) + 0.5) * width
    low_shift, high_shift = -high - 20.0, -low + 20.0
    shift = 0.5 * (low_shift + high_shift)
    for _ in range(40):
        sigmoid = _sigmoid(middle + shift)
        excess = float(mass @ sigmoid) - target
        low_shift, high_shift = (low_shift, shift) if excess > 0 else (shift, high_shift)
        steepness = 2 * float(mass @ (sigmoid - sigmoid * sigmoid))
        before, shift = shift, shift - excess / max(steepness, 1e-300)
        if not low_shift < shift < high_shift:
            shift = 0.5 * (low_shift + high_shift)
        if abs(shift - before) < 1e-10:
            break
    return shift


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

    Attributes:
        k: how many cells.
        mechanism: one k-ary response over all cells: a budget is never split between parts of a
            cell.
    """

    embedding: Embedding
    cells: CellPartition
    epsilon: float
    source: Source = "network"
    slope: float | None = None
    classes: tuple[str, ...] = ()
    k: int = field(init=False, repr=False)
    mechanism: KaryResponse = field(init=False, repr=False)

    def __post_init__(self) -> None:
        checks.one_of("source", self.source, tuple(_RESTS_ON))
        object.__setattr__(self, "k", self.cells.k)
        response = KaryResponse(epsilon=self.epsilon, k=self.k, unit="record")
        object.__setattr__(self, "mechanism", response)

    @property
    def calibrated(self) -> bool:
        """Whether scores are probabilities of relevance (a labelled public folder was there to
        check them on).
        """
        return self.slope is not None and self.source == "labelled pictures"

    def guarantee(self, entropy: EntropyName = "system") -> Guarantee:
        """Pure epsilon per record, local: whoever holds the image releases its cell."""
        rests_on = (_RESTS_ON[self.source], _ONCE)
        releases = (Planned(what=CELL, mechanism=self.mechanism),)  # one cell per image
        return Guarantee(releases=releases, model="local", assumptions=rests_on, entropy=entropy)

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
            checked = {name: _checked(name, array) for name, array in arrays.items()}
            kind = _CELLS[checks.one_of("cells", fields["cells"], tuple(_CELLS))]
            embedding = Embedding(
                checked.pop("axes"),
                checked.pop("centre"),
                checked.pop("text_centre", None),
                fields.get("row_mean", True) is not False,
            )
            slope, classes = fields["slope"], tuple(str(name) for name in fields["classes"])
            slope = None if slope is None else checks.positive("slope", slope)
            book = cls(
                embedding, kind(**checked), fields["epsilon"], fields["source"], slope, classes
            )
            book.similarity(
                np.zeros((1, len(embedding.axes)), np.float32)
            )  # shapes that do not fit show here
        except HostileFile:
            raise
        except (KeyError, TypeError, ValueError, IndexError, BlindsightError) as error:
            raise HostileFile(
                f"not a codebook that can be used ({type(error).__name__}). Make it again."
            ) from error
        return book

    @cached_property
    def digest(self) -> str:
        """Tells this codebook from others: noise by name must differ between two of them."""
        kind = KIND if self.embedding.row_mean else f"{KIND} without row means"
        return storage.digest(kind, self.to_parts()[0])

    def to_bytes(self) -> bytes:
        """The content of its file, without pickle; everything in it is public."""
        arrays, fields = self.to_parts()
        return storage.to_bytes(kind=KIND, arrays=arrays, fields=fields)

    def save(self, path: str | Path) -> None:
        """Write its file, in one step."""
        storage.write_atomically(path, self.to_bytes())

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
