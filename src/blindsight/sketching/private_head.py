"""A classifier that the owner of the images trains with noise, to be sent instead of statistics.

It is about a point better than what a receiver learns from statistics at the same epsilon, because
all of the budget goes into one classifier. It cannot be merged with those of other senders, and
nothing else can be learned from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from blindsight.core import checks
from blindsight.core.arrays import Floats, Floats32, Ints
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.privacy.door import Outer
from blindsight.privacy.estimator import Protected
from blindsight.privacy.guarantee import Guarantee
from blindsight.privacy.mechanisms import DiscreteGaussian, Gaussian
from blindsight.privacy.plan import Planned
from blindsight.sketching.feature_statistics import NAMES_FROM_LABELS, PUBLIC_FACTS
from blindsight.sketching.statistics import FeatureBasis
from blindsight.sketching.statistics_rules import DEFAULT_DELTA, width_for

if TYPE_CHECKING:
    from blindsight.privacy import Ledger
    from blindsight.privacy.entropy import RandomState, Source

__all__ = ["GRADIENTS", "PrivateHead"]

#: The name by which the door knows the releases.
GRADIENTS = "gradients"
_CLIP, _MOMENTUM, _CONSTANT = 0.5, 0.9, 0.3


class PrivateHead(ClassifierMixin, Protected):  # type: ignore[misc]
    """Logistic regression on public features, trained with noise on every gradient.

    Parameters:
        epsilon: privacy budget per image with its label.
        delta: probability bound of the guarantee; below one over the number of images.
        classes: the names of the classes, known without the images. None takes the values of y, and
            nothing is proven then.
        public: features of public pictures, from which the basis is learned.
        basis: a basis to use instead.
        steps: gradient steps; each sees all images.
        learning_rate: of a step on the mean gradient.
        n_records: public number of images; by default the number of rows.
        encoder: identity of the encoder, which the file then states.
        random_state: None for the operating system's entropy, a vault's training source, or a seed,
            which makes a simulation.

    Guarantee:
        `guarantee_`: (epsilon, delta) per image and label, one added or removed, in the central
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
        """What will be promised, from parameters and public facts only."""
        names, width = public["classes"], public["width"]
        if not isinstance(names, list) or not isinstance(width, int):
            raise InvalidData("a head must have a list of classes and a width.")
        steps = checks.whole("steps", self.steps)
        plain = Gaussian.calibrate(self.epsilon, delta=self.delta, sensitivity=1.0, unit="record")

        def plan(sensitivity: float, *, replaced: bool) -> DiscreteGaussian:
            return DiscreteGaussian.fine(
                # A thousandth more noise pays for rounding to the grid, which `fine` bounds by it.
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
        """Train on features X (n, D), one row per distinct image, with labels y; charged before.

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
        given = sorted(set(names.tolist())) if self.classes is None else list(self.classes)
        classes = [str(name) for name in given]
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
        """Scores (n, C) of features X (n, D)."""
        check_is_fitted(self, "released_")
        return np.asarray(_beside(self.basis_.rows(X)) @ self.coef_.T)

    def predict(self, X: ArrayLike) -> NDArray[np.str_]:
        """The name of the likeliest class of each feature vector."""
        return np.asarray(self.classes_[self.decision_function(X).argmax(axis=1)])

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Probabilities (n, C)."""
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
    """Full-batch gradient descent with momentum; images of unknown classes have no gradient."""
    known = ((labels >= 0) & (labels < n_classes) & rows.any(axis=1)).astype(np.float64)
    inputs = _beside(rows) * known[:, None]
    target = np.zeros((len(rows), n_classes))
    target[np.arange(len(rows)), np.where(known > 0, labels, 0)] = 1.0
    weights = np.zeros((n_classes, inputs.shape[1]))
    velocity = np.zeros_like(weights)
    for _ in range(steps):
        residual = _softmax(inputs @ weights.T) - target
        velocity = _MOMENTUM * velocity + total(Outer(residual, inputs)) / count
        weights = weights - rate * velocity
    return weights


def _beside(rows: Floats32) -> Floats:
    """Rows with a constant beside them."""
    return np.concatenate([rows, np.full((len(rows), 1), _CONSTANT)], axis=1, dtype=np.float64)


def _softmax(scores: Floats) -> Floats:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
