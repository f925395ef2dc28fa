"""`LinearMetric`, the base class of learned linear maps, with the method names of metric-learn.

The module also reads pairs and tuples of records, normalises records, and chooses the threshold
between similar and dissimilar pairs from exact distances of public pairs.

`ErrorCurve` computes thresholds and error rates from two noisy histograms that were released (the
distances of similar and of dissimilar pairs). All of it is post-processing, so it costs nothing and
can be repeated.

Noise is reduced in two steps that need no data. The number of pairs is public, so the two totals
must add up to it. Counts are not negative, so each histogram is projected onto the non-negative
vectors with its total (Wang and Carreira-Perpinan 2013), which sets most cells without pairs to
zero.
"""

from __future__ import annotations

import copy
import html
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from blindsight.core import checks
from blindsight.core.arrays import Array, Bools, Floats, Ints
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.metric.graph import pair_labels
from blindsight.privacy.door import finite_rows
from blindsight.privacy.entropy import RandomState, training_rng

__all__ = [
    "STRATEGIES",
    "ComparisonAnswer",
    "ErrorCurve",
    "EuclideanMetric",
    "LinearMetric",
    "Norm",
    "OperatingPoint",
    "best_threshold",
    "normalised",
    "orthogonal",
    "read_tuples",
]

Norm = Literal["l1", "l2", "none"]


def read_tuples(
    tuples: ArrayLike, preprocessor: Any = None, *, width: int | None = 2
) -> tuple[Floats, Ints]:
    """Convert pairs or tuples, in either form of metric-learn, to records and record numbers.

    Parameters:
        tuples: features (m, k, d), or indices (m, k).
        preprocessor: what indices refer to: an array (n, d), or a function from (j,) indices to (j,
            d) features.
        width: k, or None for any k of at least 3.

    Returns:
        The records (n, d), and the numbers (m, k) of the records of each tuple.

    Raises:
        InvalidData: the shape is wrong, there are no tuples, or an index is unknown.
    """
    array = np.asarray(tuples)
    if array.ndim == 2:
        records, numbers = _from_indices(array, preprocessor)
    elif array.ndim == 3:
        if preprocessor is not None:
            raise InvalidData(
                "pairs must be indices (m, 2) when a preprocessor is given, got features (m, 2, d)."
            )
        records = finite_rows(checks.number_array("pairs", array)).reshape(-1, array.shape[2])
        numbers = np.arange(len(records)).reshape(array.shape[:2])
    else:
        raise InvalidData(
            f"pairs must be (m, 2, d) features or (m, 2) indices into X, got shape {array.shape}."
        )
    if len(numbers) == 0:
        raise InvalidData("pairs must not be empty: there is nothing to learn from.")
    found_width = numbers.shape[1]
    if found_width != width if width is not None else found_width < 3:
        wanted = (
            f"{width} records each"
            if width is not None
            else "at least 3 records: anchor, positive, negatives"
        )
        raise InvalidData(f"tuples must have {wanted}, got {found_width}.")
    return records, numbers


def _from_indices(indices: Array, preprocessor: Any) -> tuple[Floats, Ints]:
    if preprocessor is None:
        raise InvalidData(
            "indices need the records they point to: pass preprocessor=X, or features (m, 2, d)."
        )
    if indices.dtype.kind not in "iu":
        raise InvalidData(f"indices must be whole numbers, got dtype {indices.dtype}.")
    numbers = indices.astype(np.int64)
    if callable(preprocessor):
        named, numbers = np.unique(numbers, return_inverse=True)
        rows = checks.number_array("what the preprocessor returns", preprocessor(named), ndim=2)
        records = finite_rows(rows)
        if len(records) != len(named):
            raise InvalidData(
                f"the preprocessor must return one row for each index: {len(named)} indices, "
                f"{len(records)} rows."
            )
        return records, numbers.reshape(indices.shape)
    records = finite_rows(checks.number_array("X", preprocessor, ndim=2))
    outside = (numbers < 0) | (numbers >= len(records))
    if outside.any():
        unknown = np.unique(numbers[outside]).size
        raise InvalidData(
            f"pairs name {unknown} unknown records: X has {len(records)} rows, numbered from 0."
        )
    return records, numbers


def normalised(X: Floats, norm: Norm) -> Floats:
    """Scale every row to l1 or l2 norm 1. Rows of zeros are unchanged."""
    checks.one_of("normalize", norm, get_args(Norm))
    if norm == "none":
        return X
    size = np.linalg.norm(X, ord=1 if norm == "l1" else 2, axis=1, keepdims=True)
    return X / np.where(size > 0, size, 1.0)


STRATEGIES = ("accuracy", "balanced", "max_tpr", "max_tnr")


def best_threshold(
    distance: Floats,
    similar: Bools,
    *,
    strategy: str = "accuracy",
    min_rate: float = 0.9,
) -> float:
    """Return the distance up to which pairs should count as similar.

    Parameters:
        distance: exact distances of the pairs.
        similar: whether each pair is similar.
        strategy: as for `LinearMetric.calibrate_threshold`.
        min_rate: the rate that "max_tpr" and "max_tnr" require of the other kind.

    Raises:
        InvalidData: there are no pairs of one kind.

    Examples:
        >>> similar = np.array([True, True, False, False])
        >>> round(best_threshold(np.array([0.1, 0.2, 0.9, 1.1]), similar), 2)
        0.55
    """
    checks.one_of("strategy", strategy, STRATEGIES)
    rate = checks.probability("min_rate", min_rate)
    if len(distance) != len(similar):
        raise InvalidData(
            f"y must have one label per pair: {len(distance)} pairs, {len(similar)} labels."
        )
    if similar.all() or not similar.any():
        raise InvalidData(
            "y must hold both similar and dissimilar pairs: with a single kind no threshold is "
            "better than another."
        )
    order = np.argsort(distance, kind="stable")
    sorted_distance, alike = distance[order], similar[order]
    # Entry k: the k nearest pairs count as similar. A threshold can only lie between two different
    # distances.
    accepted = np.r_[0, np.cumsum(alike)] / alike.sum()
    refused = 1 - np.r_[0, np.cumsum(~alike)] / (~alike).sum()
    worth = _worth(accepted, refused, strategy, rate, share=float(alike.mean()))
    worth[1:-1][sorted_distance[1:] == sorted_distance[:-1]] = -np.inf
    best = int(np.argmax(worth))
    edges = np.r_[0.0, sorted_distance, sorted_distance[-1]]
    return float(edges[best] + edges[best + 1]) / 2


def _worth(
    accepted: Floats,
    refused: Floats,
    strategy: str,
    rate: float,
    share: float,
) -> Floats:
    if strategy == "accuracy":
        return share * accepted + (1 - share) * refused
    if strategy == "balanced":
        return accepted + refused
    main, other = (accepted, refused) if strategy == "max_tpr" else (refused, accepted)
    return np.where(other >= rate, main, -1 + other)


def orthogonal(rows: int, columns: int, *, rng: np.random.Generator) -> Floats:
    """Draw a random map with orthonormal rows, or columns if there are more rows than columns."""
    q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    q = q * np.sign(np.diag(r))
    return q if rows >= columns else q.T


class _Hidden:
    def __repr__(self) -> str:
        return "<records>"


class LinearMetric(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """The base class of metrics |W(u - v)|, with the methods of metric-learn.

    Subclasses learn `components_` (W), `norm_`, `stretch_` and `n_features_in_`. `stretch_`
    multiplies the columns before records are normalised to `norm_`.
    """

    components_: Floats
    stretch_: Floats
    norm_: str
    n_features_in_: int
    threshold_: float
    identity_: bool = False

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """Return scikit-learn's text, without the records of a preprocessor."""
        printable = copy.copy(self)
        if getattr(self, "preprocessor", None) is not None:
            printable.preprocessor = _Hidden()
        return str(BaseEstimator.__repr__(printable, N_CHAR_MAX))

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"

    def transform(self, X: ArrayLike) -> Floats:
        """Scale and normalise rows as in training, then map them.

        The Euclidean distance of mapped rows is the learned distance.
        """
        check_is_fitted(self)
        rows = checks.finite_array("X", X, ndim=2)
        if rows.shape[1] != self.n_features_in_:
            raise InvalidData(
                f"X must have {self.n_features_in_} columns as in training, got {rows.shape[1]}."
            )
        prepared = self._prepared(rows)
        # A product with the identity of 1,280 columns would take most of the time.
        return prepared if self.identity_ else prepared @ self.components_.T

    def pair_distance(self, pairs: ArrayLike) -> Floats:
        """Return the learned distance of each pair.

        Pairs are (m, 2, d) features, or (m, 2) indices into the preprocessor.
        """
        return self._distances(pairs, width=2)[:, 0]

    def score_pairs(self, pairs: ArrayLike) -> Floats:
        """Return `pair_distance`; this is metric-learn's older name for it."""
        return self.pair_distance(pairs)

    def pair_score(self, pairs: ArrayLike) -> Floats:
        """Return the negative distance, which is higher for more similar pairs."""
        return -self.pair_distance(pairs)

    def decision_function(self, tuples: ArrayLike) -> Floats:
        """Return `pair_score` for pairs, and for triplets how much nearer the positive is."""
        if np.ndim(tuples) >= 2 and np.shape(tuples)[1] == 3:
            apart = self._distances(tuples, width=3)
            return apart[:, 1] - apart[:, 0]
        return self.pair_score(tuples)

    def predict(self, tuples: ArrayLike) -> Ints:
        """Return 1 for pairs at most `threshold_` apart and -1 for others.

        For triplets it is 1 if the positive is nearer than the negative.
        """
        least = 0.0 if np.ndim(tuples) >= 2 and np.shape(tuples)[1] == 3 else -self._threshold()
        return np.where(self.decision_function(tuples) >= least, 1, -1)

    def score(self, tuples: ArrayLike, y: ArrayLike | None = None) -> float:
        """Return the area under the ROC curve for pairs (0.5 is chance).

        For triplets, which have no y, it is the share in which the positive is nearer.
        """
        from sklearn.metrics import roc_auc_score

        if y is None:
            return float((self.predict(tuples) == 1).mean())
        similar = pair_labels(y)
        if similar.all() or not similar.any():
            raise InvalidData(
                "y must hold both similar and dissimilar pairs: with a single class there is no "
                "AUC."
            )
        return float(roc_auc_score(similar, self.pair_score(tuples)))

    def set_threshold(self, threshold: float) -> Self:
        """Set the largest distance of pairs that count as similar, chosen without private data."""
        check_is_fitted(self)
        self.threshold_ = checks.non_negative("threshold", threshold)
        return self

    def calibrate_threshold(
        self,
        pairs: ArrayLike,
        y: ArrayLike,
        *,
        strategy: str = "accuracy",
        min_rate: float = 0.9,
        public: bool = False,
    ) -> Self:
        """Choose `threshold_` from labelled pairs, which must be public if there is a guarantee.

        Parameters:
            pairs: as for `pair_distance`.
            y: labels, as for `pair_labels`.
            strategy: "accuracy"; "balanced", the mean of both rates; "max_tpr", the highest rate of
                accepted similar pairs with at least `min_rate` of the dissimilar pairs refused;
                "max_tnr", the same with the roles exchanged.
            min_rate: the required rate of "max_tpr" and "max_tnr".
            public: states that these pairs and labels are public; required if there is a
                `guarantee_`.

        Raises:
            InvalidParameter: the metric has a guarantee, and `public` is False.
        """
        if hasattr(self, "guarantee_") and not public:
            raise InvalidParameter(
                "a threshold chosen by private pairs is a release that is not charged "
                "(DPPMetric.fit has already set one within its budget). Say public=True if these "
                "pairs and labels are public."
            )
        threshold = best_threshold(
            self.pair_distance(pairs), pair_labels(y), strategy=strategy, min_rate=min_rate
        )
        return self.set_threshold(threshold)

    def get_metric(self) -> Callable[[Any, Any], float]:
        """Return a distance function of two vectors, for scikit-learn's `metric=` parameters."""
        check_is_fitted(self)
        W, prepared = self.components_.copy(), self._prepared

        def distance(u: Any, v: Any) -> float:
            both = prepared(checks.finite_array("u and v", [u, v]))
            return float(np.linalg.norm(W @ (both[0] - both[1])))

        return distance

    def get_mahalanobis_matrix(self) -> Floats:
        """Return M = W'W, which applies to scaled and normalised records."""
        check_is_fitted(self)
        return self.components_.T @ self.components_

    def _width(self, columns: int) -> int:
        """Return the number of rows of the map: `n_components`, or the number of columns."""
        n_components: int | None = getattr(self, "n_components", None)
        if n_components is None:
            return columns
        if checks.whole("n_components", n_components) > columns:
            raise InvalidParameter(
                f"n_components must be at most the {columns} columns of X, got {n_components}."
            )
        return n_components

    def _prepared(self, rows: Floats) -> Floats:
        return normalised(rows * self.stretch_, self.norm_)  # type: ignore[arg-type]

    def _distances(self, tuples: ArrayLike, *, width: int) -> Floats:
        """Return the distances from the first record of each tuple to the others."""
        check_is_fitted(self)
        array = np.asarray(tuples)
        # A preprocessor applies to indices only, not to features.
        preprocessor = getattr(self, "preprocessor", None) if array.ndim == 2 else None
        records, numbers = read_tuples(array, preprocessor, width=width)
        mapped = self.transform(records)[numbers]
        return np.asarray(np.linalg.norm(mapped[:, :1] - mapped[:, 1:], axis=2))

    def _threshold(self) -> float:
        check_is_fitted(self)
        if not hasattr(self, "threshold_"):
            raise InvalidParameter(
                "there is no threshold yet: call set_threshold, or calibrate_threshold with public "
                "pairs."
            )
        return self.threshold_


class EuclideanMetric(LinearMetric):
    """The Euclidean distance of normalised records, or of a random projection of them.

    It is a baseline that learns nothing.
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        normalize: str = "l2",
        random_state: RandomState = None,
    ) -> None:
        self.n_components = n_components
        self.normalize = normalize
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Read the number of columns of X, which may be records (n, d) or pairs (m, 2, d)."""
        columns = np.asarray(X).shape[-1]
        rows = (
            columns
            if self.n_components is None
            else checks.whole("n_components", self.n_components)
        )
        rng, _ = training_rng(self.random_state)
        self.components_ = (
            np.eye(columns) if self.n_components is None else orthogonal(rows, columns, rng=rng)
        )
        self.norm_, self.n_features_in_, self.stretch_ = self.normalize, columns, np.ones(columns)
        self.identity_ = self.n_components is None
        return self


#: Rates are known if the number of pairs of each kind is at least this many standard deviations
#: of its noise.
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
        """The mean of both rates: the share of wrong answers if both kinds are equally frequent."""
        return (self.false_accept + self.false_reject) / 2

    def answer(self, distance: float, *, share_same: float = 0.5) -> ComparisonAnswer:
        """Answer whether two records are the same, with the error rate of such answers.

        Parameters:
            distance: the distance of the two records.
            share_same: expected share of same pairs among all questions.

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
        answered = wrong + right * (share if same else 1 - share)
        return ComparisonAnswer(same=same, wrong=0.0 if answered <= 0 else wrong / answered)

    def __str__(self) -> str:
        return (
            f"threshold {self.threshold:.4g}: {_hundred(self.false_accept)} of 100 different pairs "
            f"called the same (give or take {_hundred(2 * self.accept_deviation)}), "
            f"{_hundred(self.false_reject)} of 100 same pairs called different (give or take "
            f"{_hundred(2 * self.reject_deviation)})"
        )


@dataclass(frozen=True)
class ComparisonAnswer:
    """The answer of a metric for two records.

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
        each: how many counts one pair or tuple adds to the two histograms together: 1 for a pair,
            2 for a tuple, which is counted in both.

    Examples:
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
            raise InvalidData("the edges of an error curve must increase.")

    @property
    def known(self) -> bool:
        """Whether the numbers of both kinds of pairs exceed the noise, so that rates are known."""
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
        # The error is smoothed over neighbouring cells: its minimum is flat, and without smoothing
        # noise would determine the position.
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
                f"{name} of {level:g} is finer than the counts allow: their noise alone is about "
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
        """Return the numbers of similar and dissimilar pairs, which add up to the public total."""
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
    """Project onto the non-negative vectors whose sum is 1."""
    descending = np.sort(values)[::-1]
    excess = (np.cumsum(descending) - 1) / np.arange(1, len(values) + 1)
    last = np.flatnonzero(descending > excess)[-1]
    return np.asarray(np.maximum(values - excess[last], 0.0))


def _hundred(share: float) -> str:
    """Format a share as a number out of 100, with one decimal below 10."""
    number = 100 * share
    return f"{number:.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"
