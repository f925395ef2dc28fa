"""Reading released cells: how the stored images spread over the cells, and how to rank them for a query.

k-ary response tells the true cell with probability p and each of the others with q0 = (1 - p)/(k - 1). All that is
computed here comes from released cells and public values, so it costs no privacy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks

__all__ = ["Reading", "own_share", "prior_from_counts"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_STEPS = 30
_BINS = 1024
# How much worse than the best cell a filled one may fit and still show something like the query.
_FAR = 0.08


def prior_from_counts(counts: NDArray[Any], *, truth: float, k: int) -> Floats:
    """The share of stored images whose *true* cell is each group, from counts of released ones, by 30 steps of EM.

    `counts` are per group of k / len(counts) cells; with groups of one cell they are per cell. Starting from equal
    shares, few steps keep the estimate from chasing the noise.
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
    """How much of a released cell's meaning is its own, for cells of these shares: the rest is the average's.

    The probability that the release was no lie, counting a lie that happens to hit the true cell as one.
    """
    lie = (1 - truth) / (k - 1)
    true = (truth - lie) * np.asarray(prior, dtype=np.float64)
    return np.asarray(true / (true + lie), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Reading:
    """What an index of released cells says: `prior` (k,) shares of the true cells, how often the truth is told.

    Parameters:
        prior: the share of stored images in each cell, estimated from the released ones.
        truth: p, the probability that a released cell is the true one beforehand.
        relevant: the share of stored images taken to be relevant to a query; ranking hardly depends on it.
        slope: how sharply relevance grows with similarity; 5 ln(1/relevant) fits sets without labels, a labelled
            public folder fits its own.
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

        Over all records it is p on average, whatever they show; but cells that noise filled look full, and so the prior
        trusts them too much. With `counts`, all log-odds are shifted until the average over the records is p.
        """
        told = self.truth * self.prior
        trust = np.clip(told / ((self.truth - self.lie) * self.prior + self.lie), 1e-9, 1 - 1e-9)
        if self.counts is None or not self.counts.sum():
            return trust
        odds = np.log(trust / (1 - trust))
        share = self.counts / self.counts.sum()
        low, high = -30.0, 30.0
        for _ in range(50):
            middle = 0.5 * (low + high)
            if float(share @ (1 / (1 + np.exp(-(odds + middle))))) > self.truth:
                high = middle
            else:
                low = middle
        shifted: Floats = 1 / (1 + np.exp(-(odds + 0.5 * (low + high))))
        return shifted

    @cached_property
    def _own(self) -> Floats:
        return own_share(self.prior, truth=self.truth, k=len(self.prior))

    def relevance(self, similarity: NDArray[Any]) -> Floats:
        """P(an image of the cell is relevant to the query) (m, k): a logistic of the similarity whose level is
        set so that `relevant` of the stored images are."""
        slope = 5 * np.log(1 / self.relevant) if self.slope is None else self.slope
        # Halved here once: sigmoid(z) = (1 + tanh(z / 2)) / 2.
        half = np.float32(0.5 * slope) * np.asarray(similarity, dtype=np.float32)
        return np.stack([_sigmoid(row + np.float32(_level(row, self.prior, self.relevant))) for row in half])

    def scores(self, similarity: NDArray[Any]) -> Floats:
        """P(relevant | the stored cell) (m, k): the cell's own as far as it is trusted, the average beyond."""
        return self.relevant + self._own.astype(np.float32) * (self.relevance(similarity) - np.float32(self.relevant))

    def present(self, similarity: NDArray[Any], counts: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether anything like each query is stored (m,), as far as the noise lets tell.

        A cell is filled if it holds more records than lies alone would put there. With classes, "nothing" means that
        the query's likeliest class is not filled; else, that every filled cell fits the query worse than the best cell
        of all by more than `_FAR`, which was true for one in twenty tuning photos whose like was stored.
        """
        seen, fit = np.asarray(counts, dtype=np.float64), np.asarray(similarity)
        lies = seen.sum() * self.lie
        classes = self.slope is not None
        filled = seen > (lies + 2 * np.sqrt(lies) if classes else lies + 3 * np.sqrt(lies) + 0.5)
        best = np.where(filled, fit, -np.inf).max(axis=1)
        result: NDArray[np.bool_] = fit.max(axis=1) - best <= (0.0 if classes else _FAR)
        return result


def _sigmoid(half: NDArray[Any]) -> NDArray[Any]:
    """The logistic function of twice its argument."""
    result: NDArray[Any] = np.tanh(half)
    result += 1
    result *= 0.5
    return result


def _level(half: NDArray[np.float32], prior: Floats, target: float) -> float:
    """The shift at which the prior mean of the sigmoid is `target`; by bisection over a histogram."""
    low, high = float(half.min()), float(half.max())
    width = max(high - low, 1e-9) / _BINS
    at = ((half - np.float32(low)) * np.float32((1 - 1e-6) / width)).astype(np.int32)
    mass = np.bincount(at, weights=prior, minlength=_BINS)
    middle = low + (np.arange(len(mass)) + 0.5) * width
    left, right = -high - 20.0, -low + 20.0
    for _ in range(40):
        shift = 0.5 * (left + right)
        if float(mass @ _sigmoid(middle + shift)) > target:
            right = shift
        else:
            left = shift
    return 0.5 * (left + right)
