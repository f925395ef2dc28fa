"""Reading released cells: how the stored images spread over the cells, and how to rank them for a
query.

k-ary response tells the true cell with probability p and each of the others with q0 = (1 - p)/(k -
1). All that is computed here comes from released cells and public values, so it costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks

__all__ = ["Reading", "all_lies", "own_share", "prior_from_counts"]

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
    seen = np.asarray(counts, dtype=np.float64)
    for _ in range(_STEPS):
        expected = keep * prior + lie * size
        ratio = seen / expected
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
        told = self.truth * prior
        trust = np.clip(told / ((self.truth - self.lie) * prior + self.lie), 1e-9, 1 - 1e-9)
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
        seen, fit = np.asarray(counts, dtype=np.float64), np.asarray(similarity)
        n = float(seen.sum())
        far = (
            0.0
            if self.slope is not None
            else (_FAR_WORDS if words else _FAR) * (1 + (_FEW / max(n, 1.0)) ** 0.5)
        )
        near = fit >= fit.max(axis=1, keepdims=True) - far
        true = (self.truth - self.lie) * _ALIKE * n  # records that would be there beside the lies
        lies = near.sum(axis=1) * n * self.lie
        found = near @ seen
        return np.array(
            [all_lies(*each, true) < _SURE for each in zip(found, lies, strict=True)],
            dtype=np.bool_,
        )


def all_lies(found: float, lies: float, true: float) -> float:
    """How likely `found` records are all lies, of which `lies` are expected; else some `true` ones
    are among them, a number with an exponential law. At even odds beforehand.
    """
    if true <= 0 or found > 10 * (lies + 10):  # nothing can be told; or far too many
        return 0.5 if true <= 0 else 0.0
    lies, often = max(lies, 1e-12), math.log(true / (1 + true))
    # P(found | some) / P(found | lies alone) = sum over i lies among them of a Poisson and a
    # geometric probability.
    i = np.arange(round(found) + 1)
    terms = i * (math.log(lies) - often) - np.concatenate([[0.0], np.cumsum(np.log(i[1:]))])
    top = float(terms.max())
    ratio = (
        top
        + math.log(float(np.exp(terms - top).sum()))
        + found * (often - math.log(lies))
        - math.log1p(true)
    )
    ratio += math.lgamma(found + 1)
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
    left, right = -high - 20.0, -low + 20.0
    shift = 0.5 * (left + right)
    for _ in range(40):
        seen = _sigmoid(middle + shift)
        excess = float(mass @ seen) - target
        left, right = (left, shift) if excess > 0 else (shift, right)
        steepness = 2 * float(mass @ (seen - seen * seen))
        before, shift = shift, shift - excess / max(steepness, 1e-300)
        if not left < shift < right:
            shift = 0.5 * (left + right)
        if abs(shift - before) < 1e-10:
            break
    return shift
