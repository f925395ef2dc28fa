"""Same or different: thresholds and error rates from released histograms of distances.

The only input is a pair of noisy histograms (distances of similar and of dissimilar pairs) that
passed the door, so everything here is post-processing and may be asked as often as one likes.

Noise is taken out in two steps that need no data. The number of pairs is public, so the two totals
must add up to it. Counts are not negative, so each histogram is projected onto the non-negative
vectors with its total (Wang and Carreira-Perpinan 2013), which empties the many cells that hold
nothing but noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from blindsight.core import checks
from blindsight.core.arrays import Floats
from blindsight.core.errors import InvalidData, InvalidParameter

__all__ = ["ComparisonAnswer", "ErrorCurve", "OperatingPoint"]

#: Pairs of a kind that the histograms must show, in standard deviations of its noise.
MIN_SIGNAL = 3.0


@dataclass(frozen=True)
class OperatingPoint:
    """A threshold and how often it errs.

    Parameters:
        threshold: pairs at most this far apart are called the same.
        false_accept: share of different pairs that are called the same.
        false_reject: share of same pairs that are called different.
        accept_deviation: standard deviation of `false_accept`, by noise and number of pairs.
        reject_deviation: standard deviation of `false_reject`.
    """

    threshold: float
    false_accept: float
    false_reject: float
    accept_deviation: float
    reject_deviation: float

    @property
    def error(self) -> float:
        """The mean of both rates: the share of wrong answers where both kinds are as frequent."""
        return (self.false_accept + self.false_reject) / 2

    def answer(self, distance: float, *, share_same: float = 0.5) -> ComparisonAnswer:
        """Same or different, and how often such an answer is wrong.

        Parameters:
            distance: of the two records.
            share_same: share of same pairs among those that will be asked about.

        Returns:
            The answer, with the expected share of wrong ones among answers of its kind.
        """
        share = checks.probability("share_same", share_same)
        same = distance <= self.threshold
        rate, right = (
            (self.false_accept, 1 - self.false_reject)
            if same
            else (self.false_reject, 1 - self.false_accept)
        )
        wrong = rate * (1 - share if same else share)
        said = wrong + right * (share if same else 1 - share)
        return ComparisonAnswer(same=same, wrong=0.0 if said <= 0 else wrong / said)

    def __str__(self) -> str:
        return (
            f"threshold {self.threshold:.4g}: {_hundred(self.false_accept)} of 100 different pairs "
            f"called the same (give or take {_hundred(2 * self.accept_deviation)}), "
            f"{_hundred(self.false_reject)} of 100 same pairs called different (give or take "
            f"{_hundred(2 * self.reject_deviation)})"
        )


@dataclass(frozen=True)
class ComparisonAnswer:
    """What a metric says about two records.

    Parameters:
        same: whether they count as the same.
        wrong: expected share of wrong ones among such answers.
    """

    same: bool
    wrong: float

    def __str__(self) -> str:
        word = "same" if self.same else "different"
        return f"{word}, wrong in about {_hundred(self.wrong)} of 100"


@dataclass(frozen=True)
class ErrorCurve:
    """False accepts and false rejects at every threshold that was counted.

    Parameters:
        edges: (bins + 1,) edges of the cells.
        similar: (bins,) released counts of similar pairs.
        dissimilar: (bins,) released counts of dissimilar pairs.
        noise: standard deviation of the noise on each count.
        n_pairs: number of pairs (or tuples), which is public.
        each: what one pair or tuple adds to each of the two histograms together: 1 for a pair, 2
            for a tuple, which is in both.

    Example:
        >>> near, far = np.array([0.0, 90, 10, 0]), np.array([0.0, 5, 35, 60])
        >>> curve = ErrorCurve(np.linspace(0, 2, 5), near, far, noise=0.1, n_pairs=200)
        >>> point = curve.best()
        >>> point.threshold, round(point.false_reject, 2), str(point.answer(0.8))
        (1.0, 0.1, 'same, wrong in about 5.3 of 100')
    """

    edges: Floats
    similar: Floats
    dissimilar: Floats
    noise: float
    n_pairs: int
    each: int = 1

    def __post_init__(self) -> None:
        bins = len(self.edges) - 1
        if bins < 1 or self.similar.shape != (bins,) or self.dissimilar.shape != (bins,):
            raise InvalidData("the counts must have one cell between every two edges.")
        if not (np.diff(self.edges) > 0).all():
            raise InvalidData("the edges of an error curve must grow.")

    @property
    def known(self) -> bool:
        """Whether both kinds of pairs stand out from the noise; otherwise there are no rates."""
        least = MIN_SIGNAL * self.noise * math.sqrt(len(self.similar))
        return min(self._totals()) > least

    @property
    def thresholds(self) -> Floats:
        """Upper edges of the cells."""
        return np.asarray(self.edges[1:])

    @property
    def false_accept(self) -> Floats:
        """Share of different pairs that are called the same, at each threshold."""
        return np.minimum(np.cumsum(self._shares()[1]), 1.0)

    @property
    def false_reject(self) -> Floats:
        """Share of same pairs that are called different, at each threshold."""
        return np.maximum(1 - np.cumsum(self._shares()[0]), 0.0)

    def best(self) -> OperatingPoint:
        """The threshold with the smallest mean of both error rates."""
        # Neighbouring cells vote too: the minimum is flat, and noise would choose its place.
        error = self.false_accept + self.false_reject
        padded = np.concatenate([error[:1], error, error[-1:]])
        return self._point(int(np.argmin(padded[:-2] + 2 * padded[1:-1] + padded[2:])))

    def equal_error(self) -> OperatingPoint:
        """The threshold at which both rates are nearest to each other (the equal error rate)."""
        return self._point(int(np.argmin(np.abs(self.false_accept - self.false_reject))))

    def at(
        self, *, false_accept: float | None = None, false_reject: float | None = None
    ) -> OperatingPoint:
        """The operating point that keeps one rate at a chosen level.

        Parameters:
            false_accept: at most this share of different pairs is called the same.
            false_reject: at most this share of same pairs is called different.

        Returns:
            The largest threshold that keeps `false_accept`, or the smallest that keeps
            `false_reject`.

        Raises:
            InvalidParameter: if not exactly one of the two is given, or the level is finer than
                the noise of the counts allows.
        """
        if (false_accept is None) == (false_reject is None):
            raise InvalidParameter("give either false_accept or false_reject.")
        if false_accept is not None:
            level = checks.probability("false_accept", false_accept)
            rates = self.false_accept
            fitting = np.flatnonzero(rates <= level)
            index = int(fitting[-1]) if len(fitting) else 0
        else:
            level = checks.probability("false_reject", false_reject)
            rates = self.false_reject
            index = int(np.flatnonzero(rates <= level)[0])
        point = self._point(index)
        name = "false_accept" if false_accept is not None else "false_reject"
        deviation = point.accept_deviation if false_accept is not None else point.reject_deviation
        if not self.known or deviation > max(level, 1e-12):
            finest = deviation if self.known else 1.0
            raise InvalidParameter(
                f"{name} of {level:g} is finer than the counts tell: their noise alone is about "
                f"{finest:.2g}. Choose a larger rate, or learn with a larger epsilon or more pairs."
            )
        return point

    def at_threshold(self, threshold: float) -> OperatingPoint:
        """The rates at any threshold, interpolated within its cell."""
        point = self._point(
            int(np.clip(np.searchsorted(self.thresholds, threshold), 0, len(self.similar) - 1))
        )
        accept, reject = (
            float(np.interp(threshold, self.edges, np.r_[first, rates]))
            for first, rates in ((0.0, self.false_accept), (1.0, self.false_reject))
        )
        return OperatingPoint(
            float(threshold), accept, reject, point.accept_deviation, point.reject_deviation
        )

    def _point(self, index: int) -> OperatingPoint:
        accept, reject = float(self.false_accept[index]), float(self.false_reject[index])
        similar, dissimilar = self._totals()
        cells = min(index + 1, len(self.similar) - index - 1)
        noise = self.noise * math.sqrt(max(1, cells))
        return OperatingPoint(
            float(self.thresholds[index]),
            accept,
            reject,
            math.hypot(noise / dissimilar, math.sqrt(accept * (1 - accept) / dissimilar)),
            math.hypot(noise / similar, math.sqrt(reject * (1 - reject) / similar)),
        )

    def _totals(self) -> tuple[float, float]:
        """Similar and dissimilar pairs: together as many as there are."""
        both = float(self.n_pairs * self.each)
        if self.each == 2:  # every tuple has one of each kind
            return both / 2, both / 2
        difference = float(self.similar.sum() - self.dissimilar.sum())
        similar = float(np.clip((both + difference) / 2, 1.0, max(1.0, both - 1)))
        return similar, max(1.0, both - similar)

    def _shares(self) -> tuple[Floats, Floats]:
        similar, dissimilar = self._totals()
        return (
            _onto_simplex(self.similar / similar),
            _onto_simplex(self.dissimilar / dissimilar),
        )


def _onto_simplex(values: Floats) -> Floats:
    """The nearest vector of non-negative numbers that add up to 1."""
    descending = np.sort(values)[::-1]
    excess = (np.cumsum(descending) - 1) / np.arange(1, len(values) + 1)
    last = np.flatnonzero(descending > excess)[-1]
    return np.asarray(np.maximum(values - excess[last], 0.0))


def _hundred(share: float) -> str:
    """A share as a number of 100, with one digit where it is below 10."""
    number = 100 * share
    return f"{number:.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"
