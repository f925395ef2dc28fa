"""Classifiers that the receiver of feature statistics fits to sums, without any image."""

from __future__ import annotations

import math
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from blindsight.core import checks, storage
from blindsight.core.arrays import Floats, Floats32, Ints
from blindsight.core.errors import HostileFile, InvalidData
from blindsight.sketching.statistics import FeatureBasis, Statistics

__all__ = ["StatisticsClassifier", "fit_from_statistics", "moments_of", "sample_rows"]

Method = Literal["lda", "ridge"]


def moments_of(statistics: Statistics) -> tuple[Floats, Floats, Floats]:
    """Estimate class means (C, d), counts (C,) and the covariance within classes (d, d).

    Counts are shrunk towards their mean according to their noise. The contribution of the noise of
    the means to the covariance is subtracted, and its eigenvalues are raised to at least half the
    edge of the spectrum of pure noise. Without a second moment the covariance is that of rows of
    norm 1 with uniformly distributed directions.
    """
    counts = _shrunk_counts(statistics)
    means = statistics.sums / counts[:, None]
    width, total = statistics.layout.width, counts.sum()
    moment = statistics.moment
    if moment is None:
        return means, counts, np.eye(width) / width
    noise = statistics.noise_of_sums
    between = (means.T * (counts / total)) @ means
    extra = float((noise**2 / (counts * total)).sum())
    within = moment / total - between + extra * np.eye(width)
    values, vectors = np.linalg.eigh((within + within.T) / 2)
    floor = statistics.noise_of_moments * math.sqrt(width / 2) / total
    values = np.maximum(values, max(floor, 1e-9))
    return means, counts, (vectors * values) @ vectors.T


def fit_from_statistics(statistics: Statistics, method: Method = "lda") -> StatisticsClassifier:
    """Fit a classifier to statistics.

    Parameters:
        statistics: what a sender released, or several merged.
        method: "lda" (linear discriminant analysis with equal priors) or "ridge" (least squares,
            which needs a second moment).

    Returns:
        A fitted scikit-learn classifier on the encoder's features.

    Raises:
        InvalidData: if the method is "ridge" and the statistics have no second moment.

    Examples:
        >>> from blindsight.sketching import FeatureStatistics
        >>> rng = np.random.default_rng(0)
        >>> X, y = rng.random((2000, 12)), np.tile(["a", "b"], 1000)
        >>> X[y == "b", :6] += 1
        >>> sender = FeatureStatistics(
        ...     4.0, classes=("a", "b"), public=rng.random((300, 12)), random_state=0
        ... ).fit(X, y)
        >>> model = fit_from_statistics(sender.statistics_, "ridge")
        >>> bool(model.score(X, y) > 0.9)
        True
    """
    return StatisticsClassifier(method).fit(statistics)


def sample_rows(
    statistics: Statistics, n: int, *, random_state: int | None = None
) -> tuple[Floats32, Ints]:
    """Draw synthetic rows and labels from the Gaussians that the statistics describe.

    They are computed from the release alone, so they cost nothing more.

    Parameters:
        statistics: what a sender released, or several merged.
        n: number of rows.
        random_state: a seed, or None.

    Returns:
        Rows (n, width) in the basis, and the numbers of their classes.
    """
    checks.whole("n", n)
    rng = np.random.default_rng(random_state)
    means, counts, within = moments_of(statistics)
    labels = rng.choice(len(counts), size=n, p=counts / counts.sum())
    values, vectors = np.linalg.eigh(within)
    spread = rng.standard_normal((n, statistics.layout.width)) * np.sqrt(np.maximum(values, 0))
    return (means[labels] + spread @ vectors.T).astype(np.float32), labels.astype(np.int64)


class StatisticsClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A linear classifier that was fitted to statistics instead of images.

    Parameters:
        method: "lda" or "ridge".

    Attributes:
        classes_: the names of the classes.
        coef_: weights (C, width) on the rows of the basis.
        intercept_: one number for each class.
        basis_: the map from features to rows.
        encoder_: identity of the encoder whose features it takes.
    """

    kind: ClassVar[str] = "statistics classifier"

    def __init__(self, method: Method = "lda") -> None:
        self.method = method

    def fit(self, statistics: Statistics, y: None = None) -> Self:
        """Fit to `Statistics`; no other data are used."""
        checks.one_of("method", self.method, ("lda", "ridge"))
        if not isinstance(statistics, Statistics):
            raise InvalidData(
                f"fit takes Statistics, got {type(statistics).__name__}. Read a file with "
                "FeatureStatistics.load(path).statistics_."
            )
        weights = _lda if self.method == "lda" else _ridge
        self.coef_, self.intercept_ = weights(statistics)
        self.classes_ = np.array(statistics.classes)
        self.basis_: FeatureBasis = statistics.basis
        self.encoder_ = dict(statistics.encoder)
        self.n_features_in_ = statistics.basis.n_features
        return self

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return scores (n, C) of features X (n, D)."""
        check_is_fitted(self, "coef_")
        return self.decide_rows(self.basis_.rows(X))

    def decide_rows(self, rows: ArrayLike) -> Floats:
        """Return scores (n, C) of rows that `FeatureBasis.rows` returned."""
        check_is_fitted(self, "coef_")
        return np.asarray(np.asarray(rows, np.float64) @ self.coef_.T + self.intercept_)

    def predict(self, X: ArrayLike) -> NDArray[np.str_]:
        """Return the name of the likeliest class of each feature vector."""
        return np.asarray(self.classes_[self.decision_function(X).argmax(axis=1)])

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Return the softmax of the scores: probabilities if each class is Gaussian ("lda")."""
        scores = self.decision_function(X)
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def save(self, path: str | Path) -> None:
        """Write the classifier to one file without pickle."""
        check_is_fitted(self, "coef_")
        arrays: dict[str, NDArray[np.floating]] = {
            "weights": self.coef_,
            "intercept": self.intercept_,
            "mean": self.basis_.mean,
            "directions": self.basis_.directions,
        }
        fields = {"method": self.method, "classes": list(self.classes_), "encoder": self.encoder_}
        storage.save(path, kind=self.kind, arrays=arrays, fields=fields)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote.

        Raises:
            HostileFile: if the file is damaged or its parts do not fit.
        """
        arrays, fields = storage.load(path, kind=cls.kind)
        try:
            model = cls(fields["method"])
            model.coef_, model.intercept_ = arrays["weights"], arrays["intercept"]
            model.classes_ = np.array([str(name) for name in fields["classes"]])
            model.basis_ = FeatureBasis(arrays["mean"], arrays["directions"])
            model.encoder_ = dict(fields["encoder"])
        except (KeyError, TypeError, ValueError, InvalidData) as error:
            raise HostileFile(f"{path} does not hold a classifier that can be used.") from error
        shape = (len(model.classes_), model.basis_.width)
        if model.coef_.shape != shape or model.intercept_.shape != shape[:1]:
            raise HostileFile(f"{path} holds weights that do not fit its classes.")
        model.n_features_in_ = model.basis_.n_features
        return model


def _shrunk_counts(statistics: Statistics) -> Floats:
    """Return class counts, shrunk towards their mean according to the known noise.

    They are at least a tenth of the mean.
    """
    counts = statistics.counts
    mean = max(float(counts.mean()), 1.0)
    spread = float(((counts - mean) ** 2).mean())
    weight = max(0.0, 1 - statistics.noise_of_counts**2 / spread) if spread > 0 else 0.0
    return np.maximum(mean + weight * (counts - mean), 0.1 * mean)


def _lda(statistics: Statistics) -> tuple[Floats, Floats]:
    means, counts, within = moments_of(statistics)
    inverse = np.eye(len(within)) if statistics.moment is None else np.linalg.inv(within)
    weights = means @ inverse
    # The noise of a mean increases its expected squared norm by this.
    noise = np.trace(inverse) * (statistics.noise_of_sums / counts) ** 2
    return weights, -0.5 * (np.einsum("cd,cd->c", weights, means) - noise)


def _ridge(statistics: Statistics) -> tuple[Floats, Floats]:
    moment = statistics.moment
    if moment is None:
        raise InvalidData(
            "these statistics have no second moment, which least squares needs: use method='lda'."
        )
    counts = _shrunk_counts(statistics)
    total = float(counts.sum())
    centre = statistics.sums.sum(axis=0) / total
    covariance = moment / total - np.outer(centre, centre)
    crossed = (statistics.sums - counts[:, None] * centre) / total
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    edge = statistics.noise_of_moments * math.sqrt(statistics.layout.width / 2) / total
    inverse = (vectors / (np.maximum(values, edge) + edge)) @ vectors.T
    weights = crossed @ inverse
    return weights, counts / total - weights @ centre
