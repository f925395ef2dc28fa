"""`FederatedClassifier`: a linear classifier learned over users who never show their rows or their updates."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from blindsight.core import checks, storage
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.federated import keys
from blindsight.federated.agreement import agree, layout_key
from blindsight.federated.learning import linear
from blindsight.federated.learning.federation import Federation, RoundLog
from blindsight.federated.learning.local import LocalTrainer, initial_weights
from blindsight.federated.learning.proximal import Proximal
from blindsight.federated.learning.sending import CommonMask, Sending, from_name
from blindsight.federated.learning.sgd import SGD
from blindsight.federated.protocol import Settings, Simulation
from blindsight.privacy import Disclosure, Guarantee, Ledger
from blindsight.privacy.entropy import release_rng, training_rng

__all__ = ["FederatedClassifier"]

_KIND = "federated classifier"
_NO_CLASSES = "classes were taken from the private labels: name them, classes=[...], and they are public"
_LEARNERS: dict[str, Proximal | SGD] = {"proximal": Proximal(strength=1e-3), "sgd": SGD()}


class FederatedClassifier(ClassifierMixin, BaseEstimator):
    """Linear classifiers over several owners' rows, averaged under DPHE: all roles in one process.

    Parameters
    ----------
    classes: the class names, known beforehand to everybody. None takes them from the private labels, and then no
        epsilon is proven: which classes occur would be in the file.
    users: how many owners rows are dealt to when `fit` gets no `groups`.
    rounds: how often weights are shared, updated and averaged.
    learner: "proximal", "sgd" (the paper's), or a `Proximal` or `SGD` with its own settings.
    send: "change" (the whole change, packed), "weights" (the paper: the sparse classifier itself), "top-k" (the
        largest changes, with error feedback), "mask" (a random support common to all users), or a `Sending`.
    sparsity: with "weights" the share of zeros that the elastic net's strength adapts to; with "top-k" and "mask" the
        share that is not sent.
    support: "hidden" sends every block, so that sizes tell nothing; "sparse" non-empty blocks only. None: "hidden"
        where everything is sent anyway.
    mode, count, least_users, least_per_coordinate, bound, bits, capacity: the protocol's settings.
    encrypt: False computes the same numbers without the cryptography.
    key_bits: 2048, or 3072 for the long term.
    epsilon, delta, clip: noise on the sum: at most (epsilon, delta) per user over all rounds, updates clipped to l2
        norm `clip`. None: no noise, and `guarantee_` says so.

    Attributes
    ----------
    coef_, intercept_, classes_, scale_: the model; features are (X - mean) / deviation of the public rows, if any.
    rounds_: one `RoundLog` a round: users, sparsity, bytes, seconds, accuracy. They are exact, so they stay with their
        owner: `save` leaves them out, and a loaded model has none.
    guarantee_, disclosure_: what is promised, and who sees what.
    advice_: what to change where noise drowns the updates; else None.

    Guarantee
    ---------
    With `epsilon`, per user and per record, replace one. Without, none: the exact sums are published.
    """

    def __init__(
        self,
        *,
        classes: Any = None,
        users: int = 5,
        rounds: int = 3,
        learner: Any = "proximal",
        send: Any = "change",
        sparsity: float | None = None,
        mode: str = "block",
        support: str | None = None,
        count: str = "coordinate",
        least_users: int | None = None,
        least_per_coordinate: int = 3,
        bound: float | None = None,
        bits: int | None = None,
        capacity: int | None = None,
        encrypt: bool = True,
        key_bits: int = 2048,
        epsilon: float | None = None,
        delta: float = 1e-5,
        clip: float = 1.0,
        random_state: Any = None,
    ) -> None:
        self.classes = classes
        self.users = users
        self.rounds = rounds
        self.learner = learner
        self.send = send
        self.sparsity = sparsity
        self.mode = mode
        self.support = support
        self.count = count
        self.least_users = least_users
        self.least_per_coordinate = least_per_coordinate
        self.bound = bound
        self.bits = bits
        self.capacity = capacity
        self.encrypt = encrypt
        self.key_bits = key_bits
        self.epsilon = epsilon
        self.delta = delta
        self.clip = clip
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any,
        groups: ArrayLike | None = None,
        *,
        public: tuple[ArrayLike, ArrayLike] | None = None,
        test: tuple[ArrayLike, ArrayLike] | None = None,
        ledger: Ledger | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> FederatedClassifier:
        """Learn over the owners that `groups` names, one entry a row.

        public: (X, y) that anybody may see: w̄_0 and the features' scale come from it (Section 2.1). Without it
            training starts at zero and features are taken as they are.
        test: (X, y) on which every round's accuracy is logged; without it on the training rows.
        ledger: charged with the guarantee before the first round; refuses what has no finite epsilon.
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        labels = self._labels(np.asarray(y))
        owners, owner = self._owners(groups, len(X))
        dimension = linear.rows_of(len(self.classes_)) * (X.shape[1] + 1)
        agreement = agree(
            dimension=dimension,
            users=owners,
            rounds=self.rounds,
            epsilon=self.epsilon,
            delta=self.delta,
            clip=self.clip,
            bound=self.bound,
            bits=self.bits,
            least_users=self.least_users,
            mode=self.mode,
            support=self.support or ("hidden" if self.send == "change" else "sparse"),
            count=self.count,
            least_per_coordinate=min(self.least_per_coordinate, owners),
            capacity=self.capacity,
        )
        release, simulated = release_rng(self.random_state)
        self.guarantee_ = agreement.guarantee(
            self.rounds, simulation=simulated, missing=() if self.classes is not None else (_NO_CLASSES,)
        )
        self.disclosure_ = agreement.disclosure()
        self.advice_ = agreement.advice()
        if ledger is not None:
            ledger.charge(self.guarantee_.cost, what=f"federated classifier, {self.rounds} rounds")
        self.scale_ = _scale(public, X.shape[1])
        X = self._scaled(X)
        start = self._start(public, dimension)
        key = keys.generate(self.key_bits) if self.encrypt else layout_key(self.key_bits)
        simulation = Simulation(agreement.settings, key=key, encrypt=self.encrypt, rng=release)
        sending = self._sending(agreement.settings, simulation)
        trainers = self._trainers(X, labels, owner, owners, sending)
        federation = Federation(
            simulation, trainers, initial=start, sending=sending, accuracy=self._judge(X, labels, test)
        )
        self.rounds_: list[RoundLog] = federation.run(self.rounds, progress=progress)
        self._keep(linear.shaped(federation.weights, X.shape[1]))
        return self

    def _labels(self, y: NDArray[Any]) -> NDArray[np.intp]:
        """Class numbers; sets `classes_`, from the parameter where it is given and else from the labels."""
        check_classification_targets(y)
        if self.classes is None:
            self.classes_, labels = np.unique(y, return_inverse=True)
            if len(self.classes_) < 2:
                raise InvalidData("a classifier needs at least 2 classes, got 1 class.")
            return labels
        self.classes_ = np.unique(np.asarray(self.classes))
        if len(self.classes_) < 2 or len(self.classes_) != len(self.classes):
            raise InvalidParameter("classes must name at least 2 different classes.")
        found = _numbered(self.classes_, y)
        if found is None:
            raise InvalidData("every label must be one of `classes`, and some are not.")
        return found

    def _owners(self, groups: ArrayLike | None, rows: int) -> tuple[int, NDArray[np.intp]]:
        if groups is None:
            users = checks.whole("users", self.users, least=3)
            if rows < users:
                raise InvalidData(f"n_samples={rows} is too few for {users} users: each needs a row.")
            return users, np.arange(rows) % users
        given = np.asarray(groups)
        if given.shape != (rows,):
            raise InvalidData(f"groups must name an owner a row: {rows} were expected, got shape {given.shape}.")
        names, owner = np.unique(given, return_inverse=True)
        if len(names) < 3:
            raise InvalidData(
                f"at least 3 owners are needed, got {len(names)}: with two, each sees through the sum to the other."
            )
        return len(names), owner

    def _start(self, public: tuple[ArrayLike, ArrayLike] | None, dimension: int) -> NDArray[np.float64]:
        if public is None:
            return np.zeros(dimension)
        rows, names = public
        labels = _numbered(self.classes_, np.asarray(names))
        if labels is None:
            raise InvalidData("public rows must have classes that are among `classes`, or among the users' labels.")
        return initial_weights(self._scaled(np.asarray(rows, dtype=np.float64)), labels, classes=len(self.classes_))

    def _sending(self, settings: Settings, simulation: Simulation) -> Sending:
        if isinstance(self.send, Sending):
            return self.send
        if self.epsilon is not None and self.send != "change":
            raise InvalidParameter('noise needs send="change": every coordinate carries noise.')
        rng, _ = training_rng(self.random_state)
        chosen = from_name(self.send, sparsity=self.sparsity, seed=int(rng.integers(1 << 62)))
        if isinstance(chosen, CommonMask) and settings.mode == "block":
            return dataclasses.replace(chosen, run=settings.packing(simulation.key.public).slots)
        return chosen

    def _trainers(
        self, X: NDArray[Any], labels: NDArray[Any], owner: NDArray[np.intp], owners: int, sending: Sending
    ) -> dict[int, LocalTrainer]:
        if isinstance(self.learner, str):
            learner = _LEARNERS[checks.one_of("learner", self.learner, tuple(_LEARNERS))]
        elif isinstance(self.learner, (Proximal, SGD)):
            learner = self.learner
        else:
            raise InvalidParameter(f'learner must be "proximal", "sgd", a Proximal or an SGD, got {self.learner!r}.')
        target = self.sparsity if sending.replaces else None
        rng, _ = training_rng(self.random_state)
        seed = int(rng.integers(1 << 62))
        return {
            n + 1: LocalTrainer(X[owner == n], labels[owner == n], len(self.classes_), learner, target, [seed, n])
            for n in range(owners)
        }

    def _judge(
        self, X: NDArray[Any], labels: NDArray[Any], test: tuple[ArrayLike, ArrayLike] | None
    ) -> Callable[[NDArray[np.float64]], float]:
        if test is None:
            rows, names = X, self.classes_[labels]
        else:
            rows, names = self._scaled(np.asarray(test[0], dtype=np.float64)), np.asarray(test[1])

        def accuracy(weights: NDArray[np.float64]) -> float:
            found = self.classes_[linear.predicted(linear.shaped(weights, rows.shape[1]), rows)]
            return float(np.mean(found == names))

        return accuracy

    def _scaled(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        return (X - self.scale_[0]) / self.scale_[1]

    def _keep(self, weights: NDArray[np.float64]) -> None:
        self.coef_, self.intercept_ = weights[:, :-1].copy(), weights[:, -1].copy()

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Scores: (n,) for two classes, (n, classes) otherwise."""
        check_is_fitted(self)
        rows = self._scaled(validate_data(self, X, dtype=np.float64, reset=False))
        values = rows @ self.coef_.T + self.intercept_
        return values[:, 0] if values.shape[1] == 1 else values

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Classes."""
        values = self.decision_function(X)
        return self.classes_[(values > 0).astype(int) if values.ndim == 1 else np.argmax(values, axis=1)]

    def save(self, path: str | Path) -> None:
        """Write the released weights, what is public, guarantee and disclosure as one file."""
        check_is_fitted(self)
        plain = {k: v for k, v in self.get_params(deep=False).items() if isinstance(v, (str, int, float, bool))}
        fields = {
            "parameters": plain,
            "classes": self.classes_.tolist(),
            "named": self.classes is not None,
            "guarantee": json.loads(self.guarantee_.to_json()),
            "disclosure": json.loads(self.disclosure_.to_json()),
        }
        arrays = {"coef": self.coef_, "intercept": self.intercept_, "scale": self.scale_}
        storage.save(path, kind=_KIND, arrays=arrays, fields=fields)

    @classmethod
    def load(cls, path: str | Path) -> FederatedClassifier:
        """Read back what `save` wrote; anything else is refused."""
        arrays, fields = storage.load(path, kind=_KIND)
        try:
            known = cls._get_param_names()
            model = cls(**{key: value for key, value in fields["parameters"].items() if key in known})
            model.coef_ = checks.finite_array("coef", arrays["coef"], ndim=2)
            model.intercept_ = checks.finite_array("intercept", arrays["intercept"], ndim=1)
            model.scale_ = checks.finite_array("scale", arrays["scale"], ndim=2)
            model.classes_ = np.array(fields["classes"])
            model.guarantee_ = Guarantee.from_json(json.dumps(fields["guarantee"]))
            model.disclosure_ = Disclosure.from_json(json.dumps(fields["disclosure"]))
            model.classes = model.classes_.tolist() if fields["named"] else None
            model.n_features_in_ = model.coef_.shape[1]
            rows = linear.rows_of(len(model.classes_))
            fits = model.coef_.shape[0] == rows == len(model.intercept_) and model.scale_.shape == (
                2,
                model.n_features_in_,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise HostileFile(f"{path} does not hold a federated classifier: {type(error).__name__}.") from error
        if not fits or not (model.scale_[1] > 0).all():
            raise HostileFile(f"{path} does not hold a federated classifier: its parts do not fit together.")
        return model


def _numbered(classes: NDArray[Any], names: NDArray[Any]) -> NDArray[np.intp] | None:
    """Each name's place among the sorted classes; None where one is no class."""
    places = np.minimum(np.searchsorted(classes, names), len(classes) - 1)
    return places if bool((classes[places] == names).all()) else None


def _scale(public: tuple[ArrayLike, ArrayLike] | None, features: int) -> NDArray[np.float64]:
    """Mean and deviation of the public rows; constant features are left alone."""
    if public is None:
        return np.vstack([np.zeros(features), np.ones(features)])
    rows = checks.finite_array("public rows", public[0], ndim=2)
    if rows.shape[1] != features:
        raise InvalidData(f"public rows must have {features} features, got {rows.shape[1]}.")
    deviation = rows.std(axis=0)
    return np.vstack([rows.mean(axis=0), np.where(deviation > 1e-9, deviation, 1.0)])
