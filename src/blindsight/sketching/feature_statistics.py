"""Private releases from features: noisy statistics, or a classifier that is trained with noise.

The classifier, `PrivateHead`, is about a percentage point better than one that a receiver learns
from statistics at the same epsilon, because the whole budget is spent on it. It cannot be merged
with those of other senders, and nothing else can be learned from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from blindsight.core import checks
from blindsight.core.arrays import Floats, Floats32, Ints
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.privacy.accounting import Planned
from blindsight.privacy.door import Outer
from blindsight.privacy.estimator import Protected
from blindsight.privacy.guarantee import Assumption, Guarantee
from blindsight.privacy.mechanisms import DiscreteGaussian, Gaussian
from blindsight.sketching.statistics import FeatureBasis, Statistics, StatisticsLayout, UnitRows
from blindsight.sketching.statistics_rules import (
    DEFAULT_DELTA,
    StatisticsForecast,
    forecast,
    moments_share,
    width_for,
)

if TYPE_CHECKING:
    from blindsight.privacy import Ledger
    from blindsight.privacy.entropy import EntropyName, RandomState, Source

__all__ = [
    "GRADIENTS",
    "NAMES_FROM_LABELS",
    "PUBLIC_FACTS",
    "STATISTICS",
    "FeatureStatistics",
    "PrivateHead",
    "statistics_guarantee",
]

Unit = Literal["record", "person"]

#: The name of the release in a plan.
STATISTICS = "feature statistics"

#: Assumptions of everything that is released in a public basis.
PUBLIC_FACTS = (
    Assumption(
        "public sizes",
        "the number of images, the names of the classes and all settings are public",
    ),
    Assumption(
        "public basis",
        "the encoder and the pictures behind the basis are public, and not made from the images",
    ),
)
_ONE_PERSON = Assumption("one person per image", "every image belongs to exactly one person")
NAMES_FROM_LABELS = Assumption(
    "private class names",
    "the names of the classes were read from the labels of the images: state them (classes=), "
    "because the name of a rare class tells that there is an image of it",
)


def statistics_guarantee(
    layout: StatisticsLayout,
    *,
    epsilon: float,
    delta: float,
    unit: Unit = "record",
    most: int = 1,
    public_names: bool = True,
    entropy: EntropyName = "system",
) -> Guarantee:
    """Return the guarantee of one release of statistics, per image and label or per person.

    Parameters:
        layout: what is released.
        epsilon: the budget.
        delta: probability bound.
        unit: "record" for an image with its label, "person" for all images of a person.
        most: number of images of one person; the noise grows with its square root.
        public_names: whether the class names were stated without looking at the images.
        entropy: where the noise comes from.
    """
    bound = layout.bound(most if unit == "person" else 1)
    mechanism = DiscreteGaussian.calibrate(
        epsilon,
        delta=delta,
        sensitivity=bound,
        dimensions=layout.size,
        unit=unit,
        neighbours="add or remove one",
    )
    twice = DiscreteGaussian(
        sigma=mechanism.sigma,
        sensitivity=2 * bound,
        dimensions=layout.size,
        delta=delta,
        unit=unit,
        levels=mechanism.levels,
    )
    return Guarantee(
        releases=(Planned(what=STATISTICS, mechanism=mechanism),),
        delta=delta,
        model="central",
        also=(twice.cost,) if public_names else (),
        unproven=() if public_names else (NAMES_FROM_LABELS,),
        assumptions=(*PUBLIC_FACTS, _ONE_PERSON) if unit == "person" else PUBLIC_FACTS,
        entropy=entropy,
    )


class FeatureStatistics(Protected):
    """Class sums, counts and second moment of image features, released once with a proof.

    Parameters:
        epsilon: privacy budget per image with its label, or per person.
        delta: probability bound of the guarantee; below one over the number of images.
        classes: the names of the classes, known without the images. None uses the values of y, and
            nothing is proven then.
        public: features of public pictures, from which the basis is learned.
        basis: a basis to use instead, which several senders share.
        width: length of the rows; by default chosen by the public rule (`width_for`).
        moments: share of the budget for the second moment; by default chosen by the public rule
            (`moments_share`).
        unit: "record" (an image and its label) or "person" (all images of a person).
        most: with unit="person", about the number of images that a person usually has. The noise
            grows with its square root, and the sum over a person's images is clipped to it.
        n_records: public number of images; by default the number of rows.
        encoder: identity of the encoder (`Encoder.identity()`), which the file then states.
        refuse: whether a release from which nothing could be learned is refused before it is
            charged.
        random_state: None for the operating system's entropy, a vault's training source, or a seed,
            which makes a simulation.

    Attributes:
        statistics_: the released `Statistics`.
        forecast_: the prediction of the public rules.
        classes_: the names of the classes.

    Guarantee:
        `guarantee_` is (epsilon, delta) per image and label, or per person, one added or removed,
        in the central model, for the statistics and everything that is computed from them.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> X, y = rng.random((400, 12)), np.repeat(["cat", "dog"], 200)
        >>> X[y == "dog", :6] += 1
        >>> sender = FeatureStatistics(
        ...     2.0, classes=("cat", "dog"), public=rng.random((300, 12)), random_state=0
        ... ).fit(X, y)
        >>> from blindsight.sketching import fit_from_statistics
        >>> bool(fit_from_statistics(sender.statistics_).score(X, y) > 0.9)
        True
        >>> sender.guarantee_.unit, round(sender.guarantee_.epsilon, 2)
        ('record', 2.0)
    """

    _kind = "feature statistics"

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float = DEFAULT_DELTA,
        classes: Sequence[str] | None = None,
        public: ArrayLike | None = None,
        basis: FeatureBasis | None = None,
        width: int | None = None,
        moments: float | None = None,
        unit: Unit = "record",
        most: int = 1,
        n_records: int | None = None,
        encoder: dict[str, object] | None = None,
        refuse: bool = True,
        random_state: RandomState | Source = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.classes = classes
        self.public = public
        self.basis = basis
        self.width = width
        self.moments = moments
        self.unit = unit
        self.most = most
        self.n_records = n_records
        self.encoder = encoder
        self.refuse = refuse
        self.random_state = random_state

    def promise(self, **public: object) -> Guarantee:
        """Return the guarantee, from parameters and public facts only."""
        return statistics_guarantee(
            _layout(public),
            epsilon=self.epsilon,
            delta=self.delta,
            unit=self.unit,
            most=self.most,
            public_names=bool(public["named"]),
            entropy=self.entropy_,
        )

    def predict_use(self, n_records: int, n_classes: int) -> StatisticsForecast:
        """Predict the usefulness of a release from public numbers, before it is charged."""
        most = self.most if self.unit == "person" else 1
        return forecast(n_records, n_classes, epsilon=self.epsilon, delta=self.delta, most=most)

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        units: ArrayLike | None = None,
        ledger: Ledger | None = None,
    ) -> FeatureStatistics:
        """Release the statistics of features and labels; the ledger is charged first.

        Parameters:
            X: features (n, D) of the encoder. A vector that is not finite is ignored.
            y: the name of each image's class. An image whose class is not in `classes` is ignored.
            units: the person to whom each image belongs (unit="person"), or a number for each
                distinct picture if there are copies.
            ledger: charged before anything is released.

        Raises:
            InvalidParameter: if there are too few images per class to learn from at this epsilon.
            BudgetExceeded: if the ledger has too little left; nothing is released.
        """
        self._check()
        features = checks.number_array("X", X)
        names = np.asarray(y)
        if features.ndim != 2 or not len(features):
            raise InvalidData(f"X must be a non-empty table of features, got {features.shape}.")
        if names.shape != (len(features),):
            raise InvalidData(
                f"y must name one class for each of {len(features)} rows, got {names.shape}."
            )
        if self.unit == "person" and units is None:
            raise InvalidParameter('unit="person" needs units=, the person in each image.')
        class_list = sorted(set(names.tolist())) if self.classes is None else list(self.classes)
        classes = [str(name) for name in class_list]
        count = len(features) if self.n_records is None else self.n_records
        checks.whole("n_records", count)
        if self.delta * count >= 1:
            raise InvalidParameter(
                f"delta must be below one over the number of images, 1/{count:,}, got "
                f"{self.delta:g}: a release that reveals one image completely would meet it."
            )
        self.forecast_ = self.predict_use(count, len(classes))
        if self.refuse and self.forecast_.refused:
            raise InvalidParameter(self.forecast_.line())
        basis = self._basis(features.shape[1], count, len(classes))
        share = self.moments
        if share is None:
            most = self.most if self.unit == "person" else 1
            share = moments_share(
                count, len(classes), epsilon=self.epsilon, delta=self.delta, most=most
            )
        self.public_ = {
            "classes": classes,
            "named": self.classes is not None,
            "n_records": int(count),
            "width": basis.width,
            "moments": float(share),
            "mean": basis.mean,
            "directions": basis.directions,
            "encoder": dict(self.encoder or {}),
        }
        number = {name: index for index, name in enumerate(classes)}
        labels = np.array([number.get(str(name), -1) for name in names.tolist()], np.int64)
        rows = UnitRows(_layout(self.public_), basis.rows(features), labels, units)
        door = self._open(ledger, what=f"{STATISTICS} of {count} images")
        self.released_ = {"vector": door.total(STATISTICS, rows)}
        self._settle()
        return self

    def _check(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.one_of("unit", self.unit, ("record", "person"))
        checks.whole("most", self.most)
        if (self.public is None) == (self.basis is None):
            raise InvalidParameter(
                "give either public=, features of public pictures, or basis=, which was learned "
                "from some."
            )

    def _basis(self, n_features: int, count: int, n_classes: int) -> FeatureBasis:
        most = self.most if self.unit == "person" else 1
        width = self.width
        if width is None:
            width = width_for(count, n_classes, epsilon=self.epsilon, delta=self.delta, most=most)
        basis = self.basis
        if basis is None:
            assert self.public is not None  # noqa: S101  (checked before)
            basis = FeatureBasis.learn(self.public, width=width)
        if basis.n_features != n_features:
            raise InvalidData(
                f"the public pictures have {basis.n_features} features, and X has {n_features}. "
                "Use one encoder for both."
            )
        return basis

    def _settle(self) -> None:
        """Read the statistics from what was released and what is public."""
        public = self.public_
        mechanism = self.promise(**public).releases[0].mechanism
        assert isinstance(mechanism, DiscreteGaussian)  # noqa: S101  (of our own making)
        basis = FeatureBasis(np.asarray(public["mean"]), np.asarray(public["directions"]))
        vector = np.asarray(self.released_["vector"], np.float64)
        encoder = public["encoder"]
        if not isinstance(encoder, dict):
            raise InvalidData("the encoder's identity must be a mapping.")
        self.statistics_ = Statistics(
            _layout(public),
            basis,
            vector,
            mechanism.sigma,
            encoder,
        )
        self.classes_ = np.array(self.statistics_.classes)
        self.n_features_in_ = basis.n_features
        self.forecast_ = self.predict_use(int(public["n_records"]), len(self.classes_))

    def _saved_parameters(self) -> dict[str, object]:
        """Return parameters that are plain values, without those that are in `public_`."""
        return {
            name: getattr(self, name) for name in ("epsilon", "delta", "unit", "most", "refuse")
        }


def _layout(public: dict[str, object]) -> StatisticsLayout:
    names, width, share = public["classes"], public["width"], public["moments"]
    if not isinstance(names, list) or not isinstance(width, int):
        raise InvalidData("the layout of statistics must have a list of classes and a width.")
    return StatisticsLayout(tuple(names), width, checks.number("moments", share))


#: The name of the releases in a plan.
GRADIENTS = "gradients"
_CLIP, _MOMENTUM, _CONSTANT = 0.5, 0.9, 0.3


class PrivateHead(ClassifierMixin, Protected):  # type: ignore[misc]
    """Logistic regression on public features, trained with noise on every gradient.

    Parameters:
        epsilon: privacy budget per image with its label.
        delta: probability bound of the guarantee; below one over the number of images.
        classes: the names of the classes, known without the images. None uses the values of y, and
            nothing is proven then.
        public: features of public pictures, from which the basis is learned.
        basis: a basis to use instead.
        steps: number of gradient steps, each over all images.
        learning_rate: size of a step on the mean gradient.
        n_records: public number of images; by default the number of rows.
        encoder: identity of the encoder, which the file then states.
        random_state: None for the operating system's entropy, a vault's training source, or a seed,
            which makes a simulation.

    Guarantee:
        `guarantee_` is (epsilon, delta) per image and label, one added or removed, in the central
        model, for the weights and everything that is computed from them.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> X, y = rng.random((2000, 12)), np.tile(["cat", "dog"], 1000)
        >>> X[y == "dog", :6] += 1
        >>> head = PrivateHead(
        ...     2.0, classes=("cat", "dog"), public=rng.random((300, 12)), random_state=0
        ... ).fit(X, y)
        >>> bool(head.score(X, y) > 0.9), head.guarantee_.unit
        (True, 'record')
    """

    _kind = "private head"

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float = DEFAULT_DELTA,
        classes: Sequence[str] | None = None,
        public: ArrayLike | None = None,
        basis: FeatureBasis | None = None,
        steps: int = 60,
        learning_rate: float = 25.0,
        n_records: int | None = None,
        encoder: dict[str, object] | None = None,
        random_state: RandomState | Source = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.classes = classes
        self.public = public
        self.basis = basis
        self.steps = steps
        self.learning_rate = learning_rate
        self.n_records = n_records
        self.encoder = encoder
        self.random_state = random_state

    def promise(self, **public: object) -> Guarantee:
        """Return the guarantee, from parameters and public facts only."""
        names, width = public["classes"], public["width"]
        if not isinstance(names, list) or not isinstance(width, int):
            raise InvalidData("a head must have a list of classes and a width.")
        steps = checks.whole("steps", self.steps)
        plain = Gaussian.calibrate(self.epsilon, delta=self.delta, sensitivity=1.0, unit="record")

        def plan(sensitivity: float, *, replaced: bool) -> DiscreteGaussian:
            return DiscreteGaussian.fine(
                # 0.2% more noise covers the rounding to the grid, whose cost `fine` bounds.
                sigma=1.002 * _CLIP * math.sqrt(steps) / plain.mu,
                sensitivity=sensitivity,
                dimensions=len(names) * (width + 1),
                delta=self.delta,
                unit="record",
                neighbours="replace one" if replaced else "add or remove one",
            )

        return Guarantee(
            releases=(Planned(what=GRADIENTS, mechanism=plan(_CLIP, replaced=False), count=steps),),
            delta=self.delta,
            mechanism="noisy gradient descent on logistic regression",
            model="central",
            unproven=() if public["named"] else (NAMES_FROM_LABELS,),
            assumptions=PUBLIC_FACTS,
            entropy=self.entropy_,
        )

    def fit(self, X: ArrayLike, y: ArrayLike, *, ledger: Ledger | None = None) -> PrivateHead:
        """Train on features X (n, D), one row per distinct image, with labels y.

        The ledger is charged first.

        Raises:
            BudgetExceeded: if the ledger has too little left; nothing is released.
        """
        if (self.public is None) == (self.basis is None):
            raise InvalidParameter(
                "give either public=, features of public pictures, or basis=, which was learned "
                "from some."
            )
        features, names = checks.number_array("X", X), np.asarray(y)
        if features.ndim != 2 or names.shape != (len(features),) or not len(features):
            raise InvalidData(
                f"X must be a non-empty table of features and y one name for each row, got shapes "
                f"{features.shape} and {names.shape}."
            )
        class_list = sorted(set(names.tolist())) if self.classes is None else list(self.classes)
        classes = [str(name) for name in class_list]
        count = len(features) if self.n_records is None else self.n_records
        if self.delta * checks.whole("n_records", count) >= 1:
            raise InvalidParameter(
                f"delta must be below one over the number of images, 1/{count:,}, got "
                f"{self.delta:g}."
            )
        basis = self.basis
        if basis is None:
            assert self.public is not None  # noqa: S101  (checked before)
            width = width_for(count, len(classes), epsilon=self.epsilon, delta=self.delta)
            basis = FeatureBasis.learn(self.public, width=width)
        self.public_ = {
            "classes": classes,
            "named": self.classes is not None,
            "n_records": int(count),
            "width": basis.width,
            "mean": basis.mean,
            "directions": basis.directions,
            "encoder": dict(self.encoder or {}),
        }
        number = {name: index for index, name in enumerate(classes)}
        labels = np.array([number.get(str(name), -1) for name in names.tolist()], np.int64)
        door = self._open(ledger, what=f"a classifier trained on {count} images")
        self.released_ = {
            "weights": _descend(
                lambda rows: door.total(GRADIENTS, rows),
                basis.rows(features),
                labels,
                len(classes),
                count,
                steps=self.steps,
                rate=self.learning_rate,
            )
        }
        self._settle()
        return self

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return scores (n, C) of features X (n, D)."""
        check_is_fitted(self, "released_")
        return np.asarray(_beside(self.basis_.rows(X)) @ self.coef_.T)

    def predict(self, X: ArrayLike) -> NDArray[np.str_]:
        """Return the name of the likeliest class of each feature vector."""
        return np.asarray(self.classes_[self.decision_function(X).argmax(axis=1)])

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Return the probability (n, C) of each class: the softmax of the scores."""
        return _softmax(self.decision_function(X))

    def _settle(self) -> None:
        public = self.public_
        self.basis_ = FeatureBasis(np.asarray(public["mean"]), np.asarray(public["directions"]))
        self.coef_ = np.asarray(self.released_["weights"], np.float64)
        self.classes_ = np.array([str(name) for name in public["classes"]])
        self.n_features_in_ = self.basis_.n_features
        if self.coef_.shape != (len(self.classes_), self.basis_.width + 1):
            raise InvalidData("the weights of a head must fit its classes and its basis.")

    def _saved_parameters(self) -> dict[str, object]:
        return {
            name: getattr(self, name) for name in ("epsilon", "delta", "steps", "learning_rate")
        }


def _descend(
    total: Callable[[Outer], Floats],
    rows: Floats32,
    labels: Ints,
    n_classes: int,
    count: int,
    *,
    steps: int,
    rate: float,
) -> Floats:
    """Run full-batch gradient descent with momentum; images of unknown classes are ignored."""
    counted = ((labels >= 0) & (labels < n_classes) & rows.any(axis=1)).astype(np.float64)
    inputs = _beside(rows) * counted[:, None]
    target = np.zeros((len(rows), n_classes))
    target[np.arange(len(rows)), np.where(counted > 0, labels, 0)] = 1.0
    weights = np.zeros((n_classes, inputs.shape[1]))
    velocity = np.zeros_like(weights)
    for _ in range(steps):
        residual = _softmax(inputs @ weights.T) - target
        velocity = _MOMENTUM * velocity + total(Outer(residual, inputs)) / count
        weights = weights - rate * velocity
    return weights


def _beside(rows: Floats32) -> Floats:
    """Append a constant to each row."""
    return np.concatenate([rows, np.full((len(rows), 1), _CONSTANT)], axis=1, dtype=np.float64)


def _softmax(scores: Floats) -> Floats:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
