"""`FederatedClassifier`: a linear classifier learned over users who never show their rows or their updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from blindsight.core import checks
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.federated.agreement import SUM, Agreement, agree
from blindsight.federated.learning import linear
from blindsight.federated.learning.federation import Federation, RoundLog
from blindsight.federated.learning.local import LocalTrainer, initial_weights
from blindsight.federated.learning.proximal import Proximal
from blindsight.federated.learning.sending import Sending, from_name
from blindsight.federated.learning.sgd import SGD
from blindsight.federated.protocol import Simulation
from blindsight.privacy import Guarantee, Ledger
from blindsight.privacy.door import Door
from blindsight.privacy.entropy import release_rng, training_rng
from blindsight.privacy.estimator import Protected
from blindsight.privacy.guarantee import Assumption

__all__ = ["FederatedClassifier"]

_NO_CLASSES = Assumption(
    "classes", "classes were taken from the private labels: name them, classes=[...], and they are public"
)
_LEARNERS: dict[str, Proximal | SGD] = {"proximal": Proximal(strength=1e-3), "sgd": SGD()}


class FederatedClassifier(ClassifierMixin, Protected):
    """Linear classifiers over several owners' rows, averaged by secure sums: all roles in one process.

    Parameters
    ----------
    classes: the class names, known beforehand to everybody. None takes them from the private labels, and then no
        epsilon is proven: which classes occur would be in the file.
    users: how many owners rows are dealt to when `fit` gets no `groups`.
    rounds: how often weights are shared, updated and averaged.
    learner: "proximal", "sgd" (the paper's), or a `Proximal` or `SGD` with its own settings.
    send: "change" (the whole change), "weights" (the paper: the sparse classifier itself), "top-k" (the largest
        changes, with error feedback), "mask" (a random support common to all users), or a `Sending`.
    sparsity: with "weights" the share of zeros that the elastic net's strength adapts to; with "top-k" and "mask" the
        share that is not sent.
    mode: "pad", or "paper" for Algorithm 1 to the letter.
    least_per_coordinate: with "weights" and "top-k", how many users must have a coordinate in their support before
        anybody sends it; above 1 a round of votes comes first.
    group, least_users, colluders, holders, bound, bits, capacity: the protocol's settings (`Settings`).
    encrypt: False computes the same numbers without the cryptography.
    key_bits: 2048, or 3072 for the long term.
    epsilon, delta, clip: noise on the sum: at most (epsilon, delta) per user over all rounds, updates clipped to l2
        norm `clip`. None: no noise, and `guarantee_` says so.

    Attributes
    ----------
    coef_, intercept_, classes_, scale_: the model; features are (X - mean) / deviation of the public rows, if any.
    rounds_: one `RoundLog` per round: users, sparsity, bytes, seconds, accuracy. They are exact, so they stay with
        their owner: `save` leaves them out, and a loaded model has none.
    guarantee_, disclosure_: what is promised, and who sees what.
    advice_: what to change where noise drowns the updates; else None.

    Guarantee
    ---------
    With `epsilon`, per user and per record, replace one. Without, none: the exact sums are published.
    """

    _kind: ClassVar[str] = "federated classifier"

    def __init__(
        self,
        *,
        classes: Any = None,
        users: int = 5,
        rounds: int = 3,
        learner: Any = "proximal",
        send: Any = "change",
        sparsity: float | None = None,
        mode: str = "pad",
        group: int | None = None,
        least_users: int | None = None,
        least_per_coordinate: int = 3,
        colluders: int = 1,
        holders: tuple[int, int] | None = None,
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
        self.group = group
        self.least_users = least_users
        self.least_per_coordinate = least_per_coordinate
        self.colluders = colluders
        self.holders = holders
        self.bound = bound
        self.bits = bits
        self.capacity = capacity
        self.encrypt = encrypt
        self.key_bits = key_bits
        self.epsilon = epsilon
        self.delta = delta
        self.clip = clip
        self.random_state = random_state

    def agreement(self, *, users: int, classes: int, features: int) -> Agreement:
        """The settings of a federation of that shape."""
        votes = self.mode == "pad" and self.epsilon is None and self.send in ("weights", "top-k")
        return agree(
            dimension=linear.rows_of(classes) * (features + 1),
            users=users,
            rounds=self.rounds,
            epsilon=self.epsilon,
            delta=self.delta,
            clip=self.clip,
            bound=self.bound,
            bits=self.bits,
            least_users=self.least_users,
            colluders=min(self.colluders, users - 2),
            mode=self.mode,
            group=self.group,
            holders=self.holders,
            least_per_coordinate=min(self.least_per_coordinate, users) if votes else 1,
            capacity=self.capacity,
        )

    def promise(self, **public: Any) -> Guarantee:
        """What will be promised, from parameters and public facts only: users, classes, named, features."""
        found = self.agreement(users=public["users"], classes=len(public["classes"]), features=public["features"])
        return found.guarantee(self.rounds, entropy=self.entropy_, unproven=() if public["named"] else (_NO_CLASSES,))

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
        """Learn over the owners that `groups` names, one entry per row.

        public: (X, y) that anybody may see: w̄_0 and the features' scale come from it (Section 2.1). Without it
            training starts at zero and features are taken as they are.
        test: (X, y) on which every round's accuracy is logged; without it on the training rows.
        ledger: charged with the guarantee before the first round; refuses what has no finite epsilon.
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        classes, labels = self._labels(np.asarray(y))
        owners, owner = self._owners(groups, len(X))
        self.public_ = {
            "users": owners,
            "classes": classes.tolist(),
            "named": self.classes is not None,
            "features": X.shape[1],
            "scale": _scale(public, X.shape[1]),
        }
        agreement = self.agreement(users=owners, classes=len(classes), features=X.shape[1])
        sending = self._sending()
        door = self._open(ledger, what=f"federated classifier, {self.rounds} rounds")
        X = self._scaled(X)
        start = self._start(public, classes, agreement.settings.dimension)
        federation = Federation(
            self._simulation(agreement, door),
            self._trainers(X, labels, owner, owners, len(classes), sending),
            initial=start,
            sending=sending,
            accuracy=self._judge(X, labels, classes, test),
        )
        self.rounds_: list[RoundLog] = federation.run(self.rounds, progress=progress)
        self.released_ = {"weights": linear.shaped(federation.weights, X.shape[1])}
        return self._settle_in()

    def _simulation(self, agreement: Agreement, door: Door) -> Simulation:
        noise, rng = agreement.noise, release_rng(self.random_state)[0]
        if noise is None or self.encrypt:
            # Under encryption each user draws its own share, and nobody ever holds the sum without noise.
            return Simulation(agreement.settings, encrypt=self.encrypt, rng=rng, key_bits=self.key_bits)
        step = noise.step

        def release(steps: NDArray[np.int64]) -> NDArray[np.int64]:
            return np.rint(door.release(SUM, steps * step) / step).astype(np.int64)

        return Simulation(
            agreement.settings,
            encrypt=False,
            rng=rng,
            key_bits=self.key_bits,
            release=release,
            counted=noise.shares,
        )

    def _labels(self, y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.intp]]:
        """The classes, from the parameter where it is given and else from the labels; and class numbers."""
        check_classification_targets(y)
        if self.classes is None:
            found, labels = np.unique(y, return_inverse=True)
            if len(found) < 2:
                raise InvalidData("a classifier needs at least 2 classes, got 1 class.")
            return found, labels
        classes = np.unique(np.asarray(self.classes))
        if len(classes) < 2 or len(classes) != len(self.classes):
            raise InvalidParameter("classes must name at least 2 different classes.")
        numbered = _numbered(classes, y)
        if numbered is None:
            raise InvalidData("every label must be one of `classes`, and some are not.")
        return classes, numbered

    def _owners(self, groups: ArrayLike | None, rows: int) -> tuple[int, NDArray[np.intp]]:
        if groups is None:
            users = checks.whole("users", self.users, least=3)
            if rows < users:
                raise InvalidData(f"n_samples={rows} is too few for {users} users: each needs a row.")
            return users, np.arange(rows) % users
        given = np.asarray(groups)
        if given.shape != (rows,):
            raise InvalidData(f"groups must name an owner per row: {rows} were expected, got shape {given.shape}.")
        names, owner = np.unique(given, return_inverse=True)
        if len(names) < 3:
            raise InvalidData(
                f"at least 3 owners are needed, got {len(names)}: with two, each sees through the sum to the other."
            )
        return len(names), owner

    def _start(
        self, public: tuple[ArrayLike, ArrayLike] | None, classes: NDArray[Any], dimension: int
    ) -> NDArray[np.float64]:
        if public is None:
            return np.zeros(dimension)
        rows, names = public
        labels = _numbered(classes, np.asarray(names))
        if labels is None:
            raise InvalidData("public rows must have classes that are among `classes`, or among the users' labels.")
        return initial_weights(self._scaled(np.asarray(rows, dtype=np.float64)), labels, classes=len(classes))

    def _sending(self) -> Sending:
        if isinstance(self.send, Sending):
            return self.send
        if self.epsilon is not None and self.send != "change":
            raise InvalidParameter('noise needs send="change": every coordinate carries noise.')
        rng, _ = training_rng(self.random_state)
        return from_name(self.send, sparsity=self.sparsity, seed=int(rng.integers(1 << 62)))

    def _trainers(
        self,
        X: NDArray[Any],
        labels: NDArray[Any],
        owner: NDArray[np.intp],
        owners: int,
        classes: int,
        sending: Sending,
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
            n + 1: LocalTrainer(X[owner == n], labels[owner == n], classes, learner, target, [seed, n])
            for n in range(owners)
        }

    def _judge(
        self,
        X: NDArray[Any],
        labels: NDArray[Any],
        classes: NDArray[Any],
        test: tuple[ArrayLike, ArrayLike] | None,
    ) -> Callable[[NDArray[np.float64]], float]:
        if test is None:
            rows, names = X, classes[labels]
        else:
            rows, names = self._scaled(np.asarray(test[0], dtype=np.float64)), np.asarray(test[1])

        def accuracy(weights: NDArray[np.float64]) -> float:
            found = classes[linear.predicted(linear.shaped(weights, rows.shape[1]), rows)]
            return float(np.mean(found == names))

        return accuracy

    def _scaled(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        scale = self.public_["scale"]
        return (X - scale[0]) / scale[1]

    def _settle(self) -> None:
        public, weights = self.public_, checks.finite_array("weights", self.released_["weights"], ndim=2)
        self.classes_ = np.array(public["classes"])
        self.scale_ = checks.finite_array("scale", public["scale"], ndim=2)
        self.n_features_in_ = public["features"]
        rows, width = linear.rows_of(len(self.classes_)), self.n_features_in_
        if weights.shape != (rows, width + 1) or self.scale_.shape != (2, width) or not (self.scale_[1] > 0).all():
            raise HostileFile("the parts of a federated classifier do not fit together.")
        self.coef_, self.intercept_ = weights[:, :-1].copy(), weights[:, -1].copy()
        agreement = self.agreement(users=public["users"], classes=len(self.classes_), features=width)
        self.disclosure_, self.advice_ = agreement.disclosure(), agreement.advice()

    def _saved_parameters(self) -> dict[str, Any]:
        found = super()._saved_parameters()
        return found if self.classes is None else {**found, "classes": np.unique(np.asarray(self.classes)).tolist()}

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
