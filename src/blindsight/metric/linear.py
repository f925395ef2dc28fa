"""`LinearMetric`: what every learned linear map can do, under the names that metric-learn's users
know.
"""

from __future__ import annotations

import copy
import html
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from blindsight.core import checks
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.metric.graph import pair_labels
from blindsight.metric.records import normalised, read_tuples
from blindsight.metric.threshold import best_threshold

__all__ = ["LinearMetric"]

Floats = NDArray[np.float64]


class _Hidden:
    def __repr__(self) -> str:
        return "<records>"


class LinearMetric(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A distance |W(u - v)|; `components_` (W), `norm_`, `stretch_` and `n_features_in_` are
    learned by subclasses.

    `stretch_` multiplies the columns before records are normalised to `norm_`.
    """

    components_: Floats
    stretch_: Floats
    norm_: str
    n_features_in_: int
    threshold_: float

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """As scikit-learn has it, but the records of a preprocessor stay out of it."""
        shown = copy.copy(self)
        if getattr(self, "preprocessor", None) is not None:
            shown.preprocessor = _Hidden()
        return str(BaseEstimator.__repr__(shown, N_CHAR_MAX))

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"

    def transform(self, X: Any) -> Floats:
        """Rows scaled and normalised as in training, then mapped: Euclidean distance there is the
        learned distance.
        """
        check_is_fitted(self)
        rows = checks.finite_array("X", X, ndim=2)
        if rows.shape[1] != self.n_features_in_:
            raise InvalidData(
                f"X must have {self.n_features_in_} columns as in training, got {rows.shape[1]}."
            )
        return self._prepared(rows) @ self.components_.T

    def pair_distance(self, pairs: Any) -> Floats:
        """The learned distance of each pair: (m, 2, d) features, or (m, 2) indices into the
        preprocessor.
        """
        return self._distances(pairs, width=2)[:, 0]

    def score_pairs(self, pairs: Any) -> Floats:
        """The same as `pair_distance`: the older name of metric-learn."""
        return self.pair_distance(pairs)

    def pair_score(self, pairs: Any) -> Floats:
        """Minus the distance: higher is more alike."""
        return -self.pair_distance(pairs)

    def decision_function(self, tuples: Any) -> Floats:
        """Of pairs `pair_score`; of triplets (anchor, positive, negative) how much nearer the
        positive is.
        """
        if np.ndim(tuples) >= 2 and np.shape(tuples)[1] == 3:
            apart = self._distances(tuples, width=3)
            return apart[:, 1] - apart[:, 0]
        return self.pair_score(tuples)

    def predict(self, tuples: Any) -> NDArray[np.int64]:
        """1 for pairs at most `threshold_` apart, -1 for others; of triplets, whether the positive
        is nearer.
        """
        least = 0.0 if np.ndim(tuples) >= 2 and np.shape(tuples)[1] == 3 else -self._threshold()
        return np.where(self.decision_function(tuples) >= least, 1, -1)

    def score(self, tuples: Any, y: Any = None) -> float:
        """Of pairs the area under the ROC curve (0.5 is chance); of triplets, which take no y, the
        share predicted.
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
        """Pairs at most this far apart count as similar from now on; a number chosen without
        private data.
        """
        check_is_fitted(self)
        self.threshold_ = checks.non_negative("threshold", threshold)
        return self

    def calibrate_threshold(
        self,
        pairs: Any,
        y: Any,
        *,
        strategy: str = "accuracy",
        min_rate: float = 0.9,
        public: bool = False,
    ) -> Self:
        """Choose `threshold_` by labelled pairs; where the metric promises anything, they must be
        *public*.

        Parameters:
            public: that these pairs and labels are public: say so where there is a `guarantee_`.
            strategy: "accuracy"; "balanced" (both kinds count the same); "max_tpr", the most
            similar pairs found while
                at least `min_rate` of the dissimilar ones are told apart; "max_tnr", the other way
                round.
        """
        if hasattr(self, "guarantee_") and not public:
            raise InvalidParameter(
                "a threshold chosen by private pairs is a release that nobody paid for "
                "(DPPMetric.fit has already set "
                "one within its budget). Say public=True if these pairs and labels are public."
            )
        found = best_threshold(
            self.pair_distance(pairs), pair_labels(y), strategy=strategy, min_rate=min_rate
        )
        return self.set_threshold(found)

    def get_metric(self) -> Callable[[Any, Any], float]:
        """A function of two vectors, for scikit-learn's `metric=` and the like."""
        check_is_fitted(self)
        W, prepared = self.components_.copy(), self._prepared

        def distance(u: Any, v: Any) -> float:
            both = prepared(checks.finite_array("u and v", [u, v]))
            return float(np.linalg.norm(W @ (both[0] - both[1])))

        return distance

    def get_mahalanobis_matrix(self) -> Floats:
        """M = W'W, positive semidefinite, on prepared records."""
        check_is_fitted(self)
        return self.components_.T @ self.components_

    def _width(self, columns: int) -> int:
        """The rows of the map: `n_components`, or as many as there are columns."""
        asked: int | None = getattr(self, "n_components", None)
        if asked is None:
            return columns
        if checks.whole("n_components", asked) > columns:
            raise InvalidParameter(
                f"n_components must be at most the {columns} columns of X, got {asked}."
            )
        return asked

    def _prepared(self, rows: Floats) -> Floats:
        return normalised(rows * self.stretch_, self.norm_)  # type: ignore[arg-type]

    def _distances(self, tuples: Any, *, width: int) -> Floats:
        """From the first of each tuple to each other."""
        check_is_fitted(self)
        given = np.asarray(tuples)
        # Features are taken as they are, with or without a preprocessor.
        preprocessor = getattr(self, "preprocessor", None) if given.ndim == 2 else None
        records, numbers = read_tuples(given, preprocessor, width=width)
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
