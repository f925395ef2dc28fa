"""A codebook: public cells, one k-ary response, and the estimation from released cells.

codebook = from_head("lite0", epsilon=8)              # or from_pictures, from_classes
cells = codebook.assign(features)                     # private: the true cells
codes = door.release(CELL, cells)                     # `codebook.guarantee()` is the door's
reading = codebook.reading(np.bincount(codes, minlength=codebook.k))
scores = reading.scores(codebook.similarity(queries)) # for each distinct code, not for each record

`Reading` estimates the shares of the true cells and ranks stored images for a query. k-ary response
releases the true cell with probability p and each other cell with q0 = (1 - p)/(k - 1). Whatever is
computed from released cells and public values costs no privacy.
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
# Cells whose similarity is lower than the best one by at most this much may contain photos like the
# query. The margin is twice as large with `_FEW` stored photos, because the nearest of few similar
# photos is farther away, and larger for words, which are not near any single photo.
_FAR, _FAR_WORDS, _FEW = 0.09, 0.5, 50
# Assumed share of photos like the query, if there are any; least probability to state that there
# are none.
_ALIKE, _SURE = 0.02, 0.7
# Pseudo-counts of `Reading.trust`, spread evenly over the cells.
_EVENLY = 100.0
# The error of trust is below .05 from this probability of truth on, or from this number of records
# in all and per cell on.
_MIN_TRUTH, _MIN_RECORDS, _MIN_PER_CELL = 0.8, 1000, 40


def prior_from_counts(counts: NDArray[Any], *, truth: float, k: int) -> Floats:
    """Estimate the share of stored images whose *true* cell is in each group, by 30 steps of EM.

    Starting from equal shares, few steps avoid fitting the noise.

    Parameters:
        counts: the number of released cells in each group of k / len(counts) cells.
        truth: the probability that a released cell is the true one.
        k: the number of cells.
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
    """Return the probability that a released cell was not drawn at random, for cells of these
    shares.

    A random cell that happens to be the true one counts as random.
    """
    lie = (1 - truth) / (k - 1)
    true = (truth - lie) * np.asarray(prior, dtype=np.float64)
    return np.asarray(true / (true + lie), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Reading:
    """The posterior of true cells and of relevance, given released cells.

    Parameters:
        prior: the estimated share (k,) of stored images whose true cell is each cell.
        truth: p, the probability that a released cell is the true one.
        relevant: prior probability that a stored image is relevant to a query; the ranking hardly
            depends on it.
        slope: the slope of relevance over similarity; None is 5 ln(1/relevant), which fits data
            sets without labels. It is fitted if there is a labelled public folder.
        counts: the number of records released in each cell (k,), with which `trust` is calibrated.
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
        """The probability with which each cell other than the true one is released."""
        return (1 - self.truth) / (len(self.prior) - 1)

    @cached_property
    def trust(self) -> Floats:
        """For each cell the probability that an image stored under it is truly of that cell.

        Its mean over all records is p. The estimated prior is too large for cells that contain many
        records by noise, so with `counts` pseudo-counts are added, and all log-odds are shifted
        until the mean over the records is p.
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
        """`trust` if it is accurate enough to be shown, else None.

        On photos that were not used to choose these limits, its error for hits was at most .05
        then, and up to .11 otherwise.
        """
        n = 0 if self.counts is None else int(self.counts.sum())
        enough = n >= max(_MIN_RECORDS, _MIN_PER_CELL * len(self.prior))
        return self.trust if self.truth >= _MIN_TRUTH or enough else None

    @cached_property
    def _own(self) -> Floats:
        return own_share(self.prior, truth=self.truth, k=len(self.prior))

    def relevance(self, similarity: NDArray[Any]) -> Floats:
        """Return P(an image of the cell is relevant to the query) (m, k): a logistic function of
        the similarity, shifted such that a share `relevant` of the stored images is relevant.
        """
        slope = 5 * np.log(1 / self.relevant) if self.slope is None else self.slope
        # Halved here once: sigmoid(z) = (1 + tanh(z / 2)) / 2.
        half = np.float32(0.5 * slope) * np.asarray(similarity, dtype=np.float32)
        return np.stack(
            [_sigmoid(row + np.float32(_level(row, self.prior, self.relevant))) for row in half]
        )

    def scores(self, similarity: NDArray[Any]) -> Floats:
        """Return P(relevant | the released cell) (m, k): the cell's relevance if it was not drawn
        at random, else the mean relevance.
        """
        return self.relevant + self._own.astype(np.float32) * (
            self.relevance(similarity) - np.float32(self.relevant)
        )

    def present(
        self, similarity: NDArray[Any], counts: NDArray[Any], *, words: bool = False
    ) -> NDArray[np.bool_]:
        """Return whether anything like each query is stored (m,), estimated from noisy counts.

        The test uses the records of the cells that are nearly as similar to the query as the best
        one. The result is False if, with a prior of 1/2, all of these records are due to noise with
        a probability of at least 70%, which few records or a small epsilon never reach.

        Parameters:
            similarity: the similarity of the queries to the cells (m, k).
            counts: the number of records released in each cell (k,).
            words: whether the queries are words.
        """
        released, fit = np.asarray(counts, dtype=np.float64), np.asarray(similarity)
        n = float(released.sum())
        far = (
            0.0
            if self.slope is not None
            else (_FAR_WORDS if words else _FAR) * (1 + (_FEW / max(n, 1.0)) ** 0.5)
        )
        near = fit >= fit.max(axis=1, keepdims=True) - far
        true = (self.truth - self.lie) * _ALIKE * n  # expected records besides the noise
        lies = near.sum(axis=1) * n * self.lie
        observed = near @ released
        return np.array(
            [all_lies(*each, true) < _SURE for each in zip(observed, lies, strict=True)],
            dtype=np.bool_,
        )


def all_lies(observed: float, lies: float, true: float) -> float:
    """Return the posterior probability, with a prior of 1/2, that all records are due to noise.

    Parameters:
        observed: the number of records.
        lies: the expected number of records by noise, which has a Poisson distribution.
        true: the expected number of other records, if there are any (exponential distribution).
    """
    if true <= 0 or observed > 10 * (lies + 10):  # no evidence; or far too many records
        return 0.5 if true <= 0 else 0.0
    lies, often = max(lies, 1e-12), math.log(true / (1 + true))
    # P(observed | some) / P(observed | noise alone) is a sum over the number i of records by noise,
    # of a Poisson and a geometric probability.
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
    """Return the logistic function of twice the argument."""
    result: NDArray[Any] = np.tanh(half)
    result += 1
    result *= 0.5
    return result


def _level(half: NDArray[np.float32], prior: Floats, target: float) -> float:
    """Return the shift at which the prior mean of the sigmoid is `target`, by Newton's method on a
    histogram with bisection as a safeguard.
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
    """Return the number of cells for an epsilon.

    The usual number is 2 e^(2 epsilon / 3); e^epsilon - 1 would be best for perfect cells.

    Parameters:
        epsilon: the epsilon per image.
        way: "many" for the usual number; "some", for images of some kinds only, at most 0.3
            e^epsilon, so that the true cell is released three times in four; "few", for images of
            few kinds or noisy cells, 4 e^(epsilon / 3); "first page", for better first hits and a
            worse order of the rest, 1.5 e^epsilon.
        most: the largest number, if public pictures limit it. The smallest number is 2.

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
    """Public cells, and the mechanism that releases one cell per image.

    Parameters:
        embedding: the map from features to points.
        cells: the partition of points into cells.
        epsilon: pure epsilon per record, in the local model.
        source: what the cells were made from.
        slope: the slope of relevance over similarity, fitted on a labelled public folder. None if
            there is none; then no probability of relevance may be shown.
        classes: the names of a labelled folder's classes.

    Attributes:
        k: the number of cells.
        mechanism: one k-ary response over all cells.
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
        """Whether scores are probabilities of relevance, fitted on a labelled public folder."""
        return self.slope is not None and self.source == "labelled pictures"

    def guarantee(self, entropy: EntropyName = "system") -> Guarantee:
        """Return the guarantee: pure epsilon per record in the local model."""
        rests_on = (_RESTS_ON[self.source], _ONCE)
        releases = (Planned(what=CELL, mechanism=self.mechanism),)  # one cell per image
        return Guarantee(releases=releases, model="local", assumptions=rests_on, entropy=entropy)

    def assign(self, X: NDArray[Any]) -> NDArray[np.int64]:
        """Return the true cells (n,) of features, which are private until one is released.

        If all rows are equal, as in an audit, one row is assigned.
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
        """Return the similarity (m, k) of queries (m, d), which are not private, to each cell."""
        return self.cells.similarity(self.embedding(X))

    def likeness(self, cells: NDArray[Any]) -> NDArray[np.float32]:
        """Return the similarity (m, k) of these released cells to each cell, to search by a stored
        image.
        """
        return self.cells.likeness(np.asarray(cells, dtype=np.int64))

    def reading(self, counts: NDArray[Any]) -> Reading:
        """Return the posterior for an index with these counts (k,) of released cells."""
        group, groups = self.cells.coarse()
        truth = self.mechanism.truth_probability
        shares = prior_from_counts(
            np.bincount(group, weights=counts, minlength=groups), truth=truth, k=self.k
        )
        return self.reading_of(
            (shares / np.bincount(group, minlength=groups))[group], np.asarray(counts)
        )

    def reading_of(self, prior: NDArray[Any], counts: NDArray[Any] | None = None) -> Reading:
        """Return the posterior for an index with these shares (k,) of true cells."""
        truth = self.mechanism.truth_probability
        if not isinstance(self.cells, ClassCells):
            return Reading(prior, truth, slope=self.slope, counts=counts)
        # The probability that two stored images share a label is the prior of relevance.
        often = float(np.clip(self.cells.often(prior), 1e-4, 0.9))
        return Reading(prior, truth, often, self.slope, counts)

    def to_parts(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return the arrays and fields that a file stores."""
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
        """Return the codebook with the arrays and fields of `to_parts`.

        Raises:
            HostileFile: arrays or fields are missing or invalid.
        """
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
            # Raises an error if shapes do not match.
            book.similarity(np.zeros((1, len(embedding.axes)), np.float32))
        except HostileFile:
            raise
        except (KeyError, TypeError, ValueError, IndexError, BlindsightError) as error:
            raise HostileFile(
                f"the codebook is invalid ({type(error).__name__}). Make it again."
            ) from error
        return book

    @cached_property
    def digest(self) -> str:
        """A digest of the codebook, from which permanent noise is derived."""
        kind = KIND if self.embedding.row_mean else f"{KIND} without row means"
        return storage.digest(kind, self.to_parts()[0])

    def to_bytes(self) -> bytes:
        """Return the content of the codebook's file, which is public."""
        arrays, fields = self.to_parts()
        return storage.to_bytes(kind=KIND, arrays=arrays, fields=fields)

    def save(self, path: str | Path) -> None:
        """Write the codebook to a file, atomically."""
        storage.write_atomically(path, self.to_bytes())

    @classmethod
    def load(cls, path: str | Path) -> Codebook:
        """Read a codebook from a file.

        Raises:
            HostileFile: the file is damaged, or contains something else.
        """
        arrays, fields = storage.load(path, kind=KIND)
        return cls.from_parts(arrays, fields)


def _checked(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers as int64, and others as float32, which must be finite."""
    if array.dtype.kind in "iu":
        return array.astype(np.int64)
    if array.dtype.kind != "f" or not np.isfinite(array).all():
        raise HostileFile(f"the array {name!r} of a codebook is not finite. Make it again.")
    return array.astype(np.float32)
