"""`FederatedClassifier`: a linear classifier learned by users who share neither rows nor updates.

`Pad` and `Paper` say how updates are summed, `SumNoise` the noise on the sums.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from blindsight.core import checks
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.federated.agreement import Agreement, agree
from blindsight.federated.learning import linear
from blindsight.federated.learning.federation import (
    Change,
    CommonMask,
    Federation,
    RoundLog,
    Sending,
    TopK,
    Weights,
)
from blindsight.federated.learning.local import (
    SGD,
    LocalTrainer,
    Proximal,
    RecordDescent,
    initial_weights,
)
from blindsight.federated.paper.algorithm import PaperSettings, PaperSimulation
from blindsight.federated.sums.settings import Settings
from blindsight.federated.sums.simulation import Simulation
from blindsight.privacy import Guarantee, Ledger
from blindsight.privacy.door import finite_rows
from blindsight.privacy.entropy import training_rng
from blindsight.privacy.estimator import Protected
from blindsight.privacy.guarantee import Assumption

__all__ = ["FederatedClassifier", "Pad", "Paper", "SumNoise"]


@dataclass(frozen=True, kw_only=True)
class SumNoise:
    """Noise on every sum: at most (epsilon, delta) over all rounds.

    Parameters:
        epsilon: per user, or per record.
        delta: of the guarantee.
        clip: the largest l2 norm of a user's update, 1 by default. With unit "record" it must be
            left out, because the learner clips records.
        unit: "user" bounds what the sums reveal about all rows of one user together, and needs many
            users; "record" bounds what they reveal about one row.
        records: with unit "record", about the largest number of rows of a user. It determines the
            range of the sum and is public.
    """

    epsilon: float
    delta: float = 1e-5
    clip: float | None = None
    unit: str = "user"
    records: int = 10_000

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.one_of("unit", self.unit, ("user", "record"))
        checks.whole("records", self.records)
        if self.clip is not None:
            checks.positive("clip", self.clip)
            if self.unit == "record":
                raise InvalidParameter(
                    "with unit='record' the learner clips: leave clip out and pass "
                    "learner=RecordDescent(clip=...)."
                )
        if not 0 < checks.number("delta", self.delta) < 1:
            raise InvalidParameter(f"delta must be above 0 and below 1, got {self.delta!r}.")

    @property
    def per_record(self) -> bool:
        """Whether the unit is a record."""
        return self.unit == "record"


@dataclass(frozen=True, kw_only=True)
class Pad:
    """Sums under one-time pads that key holders open together; the fields are those of `Settings`.

    Parameters:
        holders: the number of key holders; by default up to 20 users are their own holders.
        least_users: the smallest number of users in a round.
        most_users: the largest number of users in a round.
        colluders: how many users may collude with the aggregator.
        across_rounds: whether combinations of sums of different rounds are also protected.
        bound: the largest weight in fixed point; only without noise.
        bits: the bits of a weight in fixed point; only without noise.
        clip: the largest norm of an update, checked on the sum; only without noise.
        groups: an odd number of groups of users, of which the model uses the median mean, so that
            a few lying users cannot move the model beyond the honest groups' means; only without
            noise.
    """

    holders: int | None = None
    least_users: int | None = None
    most_users: int | None = None
    colluders: int = 1
    across_rounds: bool | None = None
    bound: float | None = None
    bits: int | None = None
    clip: float | None = None
    groups: int = 1

    def __post_init__(self) -> None:
        _check_code(self.bound, self.bits, None)
        checks.whole("colluders", self.colluders, least=0)
        if self.clip is not None:
            checks.positive("clip", self.clip)


@dataclass(frozen=True, kw_only=True)
class Paper:
    """Algorithm 1 exactly as published, with its weaknesses.

    There is one ciphertext per weight, and a shard holds `capacity` (M) of them.
    """

    capacity: int | None = None
    bound: float | None = None
    bits: int | None = None
    key_bits: int | None = None

    def __post_init__(self) -> None:
        _check_code(self.bound, self.bits, self.key_bits)


def _check_code(bound: float | None, bits: int | None, key_bits: int | None) -> None:
    if bound is not None:
        checks.positive("bound", bound)
    if bits is not None:
        checks.whole("bits", bits, least=2)
    if key_bits is not None:
        checks.whole("key_bits", key_bits)


_NO_CLASSES = Assumption(
    "classes",
    "classes were taken from the private labels: name them, classes=[...], and they are public",
)
_VALUES: dict[str, tuple[type, ...]] = {
    "learner": (Proximal, SGD, RecordDescent),
    "send": (Change, Weights, TopK, CommonMask),
    "sums": (Pad, Paper),
    "noise": (SumNoise,),
}


class FederatedClassifier(ClassifierMixin, Protected):  # type: ignore[misc]  # scikit-learn has no types
    """Linear classifier over several owners' rows, averaged by secure sums, with all roles in one
    process.

    Parameters:
        classes: the class names, which are public. None takes them from the private labels; then
            no epsilon is proven, because the file reveals which classes occur.
        users: the number of owners among whom `fit` divides the rows if it gets no `groups`.
        rounds: how often weights are shared, updated and averaged.
        learner: a `Proximal` (the default, of strength 1e-3) or an `SGD` (the paper's); with noise
            per record a `RecordDescent` (the default then), which needs about 30 rounds.
        send: `Change()` (the default: the whole change), `Weights()` (the paper's: the sparse
            classifier itself), `TopK(share)` (the largest changes, with error feedback) or
            `CommonMask(share, seed)` (a random support common to all users).
        sums: `Pad()` (the default), or `Paper()` for Algorithm 1 exactly as published.
        noise: `SumNoise(epsilon=...)` on every sum, per user, or with unit="record" per record;
            None: no noise, and `guarantee_` says so.
        encrypt: False computes the same numbers without the cryptography.
        random_state: None draws from the operating system; a seed makes a simulation.

    Attributes:
        coef_: the model's weights; features are (X - mean) / deviation of the public rows, if any.
        intercept_: the model's constants.
        classes_: the classes.
        scale_: mean and deviation of the public rows.
        rounds_: one `RoundLog` per round: users, sparsity, bytes, seconds, accuracy. They are
            exact, so they stay with their owner: `save` leaves them out, and a loaded model has
            none.
        guarantee_: the guarantee.
        disclosure_: what each party sees.
        advice_: what to change if noise hides the updates, otherwise None.

    Guarantee:
        With `noise`: per user and per record, replace one; with `SumNoise(unit="record")`: per
        record, add or remove one. Without noise there is none, because exact sums are published.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> X, y = rng.normal(size=(300, 2)), np.tile(["cat", "dog", "emu"], 100)
        >>> X += 5 * np.repeat([[[0, 0], [0, 1], [1, 0]]], 100, axis=0).reshape(300, 2)
        >>> model = FederatedClassifier(
        ...     classes=("cat", "dog", "emu"), users=3, rounds=2, random_state=0
        ... ).fit(X, y)
        >>> model.score(X, y) > 0.9, len(model.rounds_), model.guarantee_.epsilon
        (True, 2, inf)
    """

    _kind: ClassVar[str] = "federated classifier"

    def __init__(
        self,
        *,
        classes: Any = None,
        users: int = 5,
        rounds: int = 3,
        learner: Proximal | SGD | RecordDescent | None = None,
        send: Sending | None = None,
        sums: Pad | Paper | None = None,
        noise: SumNoise | None = None,
        encrypt: bool = True,
        random_state: Any = None,
    ) -> None:
        self.classes = classes
        self.users = users
        self.rounds = rounds
        self.learner = learner
        self.send = send
        self.sums = sums
        self.noise = noise
        self.encrypt = encrypt
        self.random_state = random_state

    def agreement(self, *, users: int, classes: int, features: int) -> Agreement:
        """Return the settings of a federation of this shape."""
        for name, kinds in _VALUES.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kinds):
                wanted = " or ".join(kind.__name__ for kind in kinds)
                raise InvalidParameter(f"{name} must be a {wanted}, got {value!r}.")
        if not isinstance(self.encrypt, bool):
            raise InvalidParameter(f"encrypt must be True or False, got {self.encrypt!r}.")
        if self.noise is not None and not isinstance(self._send, Change):
            raise InvalidParameter("noise needs send=Change(): every coordinate carries noise.")
        sums = self._sums
        if self._send.sparse and not isinstance(sums, Paper):
            raise InvalidParameter(
                f"send={self._send!r} needs sums=Paper(): under a pad every weight costs the same, "
                "and a sum would show the weights that only one user changed. Use Change()."
            )
        descent = self._descent
        if isinstance(self.learner, RecordDescent) and descent is None:
            raise InvalidParameter("RecordDescent needs noise=SumNoise(..., unit='record').")
        dimension = linear.rows_of(classes) * (features + 1) + (descent is not None)
        if isinstance(sums, Paper):
            if self.noise is not None:
                raise InvalidParameter("noise needs sums=Pad().")
            settings = PaperSettings(
                dimension=dimension,
                users=users,
                bound=2.0 if sums.bound is None else sums.bound,
                bits=16 if sums.bits is None else sums.bits,
                capacity=sums.capacity,
            )
            return Agreement(settings)
        noise: dict[str, Any] = {}
        if self.noise is not None:
            noise = {name: getattr(self.noise, name) for name in ("epsilon", "delta", "clip")}
            if descent is not None:
                noise |= {"clip": descent.record_norm, "records": self.noise.records}
        if noise and sums.clip is not None:
            raise InvalidParameter("with noise the clip is that of the noise: leave Pad.clip out.")
        return agree(dimension=dimension, users=users, rounds=self.rounds, **(asdict(sums) | noise))

    @property
    def _descent(self) -> RecordDescent | None:
        """The learner, if the unit of privacy is a record, otherwise None."""
        if self.noise is None or not self.noise.per_record:
            return None
        if self.learner is not None and not isinstance(self.learner, RecordDescent):
            raise InvalidParameter("noise per record needs learner=RecordDescent(...) or None.")
        return RecordDescent() if self.learner is None else self.learner

    @property
    def _send(self) -> Sending:
        return Change() if self.send is None else self.send

    @property
    def _sums(self) -> Pad | Paper:
        return Pad() if self.sums is None else self.sums

    def promise(self, **public: Any) -> Guarantee:
        """Return the guarantee, from parameters and public facts only.

        The public facts are users, classes, named, features and agreed.
        """
        unproven = () if public["named"] else (_NO_CLASSES,)
        return self._agreed(public).guarantee(self.rounds, entropy=self.entropy_, unproven=unproven)

    def _agreed(self, public: dict[str, Any]) -> Agreement:
        """Return the agreement of the parties.

        It is from the public facts of a run across machines; in one process it follows from the
        parameters.
        """
        classes, features = len(public["classes"]), public["features"]
        if "agreed" not in public:
            return self.agreement(users=public["users"], classes=classes, features=features)
        settings = Settings.decode(bytes.fromhex(public["agreed"]))
        if (settings.users, settings.dimension) != (
            public["users"],
            linear.rows_of(classes) * (features + 1)
            + (self._descent is not None or bool(public.get("counted"))),
        ):
            raise HostileFile("what was agreed on is not what was learned.")
        return Agreement(settings)

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
        """Learn from the rows of several owners.

        Parameters:
            X: the rows of all owners.
            y: their labels.
            groups: the owner of each row; by default rows are divided among `users` owners.
            public: public (X, y), from which w̄_0 and the features' scale are computed (Section
                2.1). Without it training starts at zero and features are not scaled.
            test: (X, y) on which every round's accuracy is logged; by default the training rows.
            ledger: charged with the guarantee before the first round; it refuses an infinite
                epsilon.
            progress: called with (done, total).

        Returns:
            The fitted classifier.
        """
        if self.classes is None:  # nothing is proven then, so invalid rows may be refused
            X, y = validate_data(self, X, y, dtype=np.float64)
        else:
            X, y = validate_data(self, finite_rows(X), dtype=np.float64), np.asarray(y)
            if y.shape != (len(X),):
                raise InvalidData(f"y must have one label per row, {len(X)}, got shape {y.shape}.")
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
        door = self._open(ledger, what=f"federated classifier, {self.rounds} rounds")
        X = self._scaled(X)
        start = self._start(public, classes, agreement.settings.dimension)
        simulation = self._simulation(agreement, door)
        accuracy = self._judge(X, labels, classes, test)
        if self._descent is not None:
            weights = self._descend(
                simulation, [(X[owner == n], labels[owner == n]) for n in range(owners)],
                start[:-1], len(classes), accuracy, progress,
            )  # fmt: skip
        else:
            federation = Federation(
                simulation,
                self._trainers(X, labels, owner, owners, len(classes)),
                initial=start,
                sending=self._send,
                accuracy=accuracy,
            )
            self.rounds_: list[RoundLog] = federation.run(self.rounds, progress=progress)
            weights = federation.weights
        self.released_ = {"weights": linear.shaped(weights, X.shape[1])}
        return self._settle_in()

    def _descend(
        self,
        simulation: Simulation | PaperSimulation,
        sites: list[tuple[NDArray[Any], NDArray[Any]]],
        start: NDArray[np.float64],
        classes: int,
        accuracy: Callable[[NDArray[np.float64]], float],
        progress: Callable[[int, int], None] | None,
    ) -> NDArray[np.float64]:
        """Run the rounds of noisy sums of records' clipped gradients."""
        descent, weights = self._descent or RecordDescent(), start
        self.rounds_ = []
        for number in range(1, self.rounds + 1):
            began = time.perf_counter()
            vectors = {
                n: descent.contribution(weights, *rows, classes=classes)
                for n, rows in enumerate(sites, start=1)
            }
            digest = linear.model_digest(weights)
            simulation.expect(digest)
            result = simulation.round(vectors, model=digest)
            weights = descent.advanced(weights, result.total)
            self.rounds_.append(
                RoundLog(
                    round=number,
                    users=len(result.contributors),
                    sparsity=0.0,
                    model_sparsity=linear.sparsity(weights),
                    revealed=1.0,
                    bytes=float(np.mean([*result.bytes_per_user.values()])),
                    seconds=time.perf_counter() - began,
                    accuracy=float(accuracy(weights)),
                )
            )
            if progress is not None:
                progress(number, self.rounds)
        return weights

    def _simulation(self, agreement: Agreement, door: Any) -> Simulation | PaperSimulation:
        settings = agreement.settings
        if isinstance(settings, PaperSettings):
            bits = self.sums.key_bits if isinstance(self.sums, Paper) else None
            return PaperSimulation(settings, encrypt=self.encrypt, key_bits=bits or 2048)
        return Simulation(settings, encrypt=self.encrypt, door=door)

    def _labels(self, y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.intp]]:
        """Return the classes, from the parameter or else from the labels, and class numbers."""
        if self.classes is None:
            check_classification_targets(y)
            classes, labels = np.unique(y, return_inverse=True)
            if len(classes) < 2:
                raise InvalidData("a classifier needs at least 2 classes, got 1 class.")
            return classes, labels
        classes = np.unique(np.asarray(self.classes))
        if len(classes) < 2 or len(classes) != len(self.classes):
            raise InvalidParameter("classes must name at least 2 different classes.")
        # A private label outside the classes counts as the first one: refusing would reveal it.
        places = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
        return classes, np.where(classes[places] == y, places, 0)

    def _owners(self, groups: ArrayLike | None, rows: int) -> tuple[int, NDArray[np.intp]]:
        if groups is None:
            users = checks.whole("users", self.users, least=3)
            if rows < users:
                raise InvalidData(
                    f"n_samples={rows} is too few for {users} users: each needs a row."
                )
            return users, np.arange(rows) % users
        owners = np.asarray(groups)
        if owners.shape != (rows,):
            raise InvalidData(
                f"groups must name an owner per row: {rows} were expected, got shape "
                f"{owners.shape}."
            )
        names, owner = np.unique(owners, return_inverse=True)
        if len(names) < 3:
            raise InvalidData(
                f"at least 3 owners are needed, got {len(names)}: with two, each sees through the "
                "sum to the other."
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
            raise InvalidData(
                "public rows must have classes that are among `classes`, or among the users' "
                "labels."
            )
        if self._descent is not None:  # logistic regression starts at zero: its rows are unit rows
            return np.zeros(dimension)
        return initial_weights(
            self._scaled(np.asarray(rows, dtype=np.float64)), labels, classes=len(classes)
        )

    def _trainers(
        self,
        X: NDArray[Any],
        labels: NDArray[Any],
        owner: NDArray[np.intp],
        owners: int,
        classes: int,
    ) -> dict[int, LocalTrainer]:
        rng, _ = training_rng(self.random_state)
        seed = int(rng.integers(1 << 62))
        learner = Proximal(strength=1e-3) if self.learner is None else self.learner
        if isinstance(learner, RecordDescent):
            raise InvalidParameter("RecordDescent needs noise=SumNoise(..., unit='record').")
        return {
            n + 1: LocalTrainer(
                X[owner == n], labels[owner == n], classes, learner, self._send.sparsity, [seed, n]
            )
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
            answers = classes[linear.predicted(linear.shaped(weights, rows.shape[1]), rows)]
            return float(np.mean(answers == names))

        return accuracy

    def _scaled(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        scale = self.public_["scale"]
        return np.asarray((X - scale[0]) / scale[1])

    def _settle(self) -> None:
        public, weights = (
            self.public_,
            checks.finite_array("weights", self.released_["weights"], ndim=2),
        )
        self.classes_ = np.array(public["classes"])
        self.scale_ = checks.finite_array("scale", public["scale"], ndim=2)
        self.n_features_in_ = public["features"]
        rows, width = linear.rows_of(len(self.classes_)), self.n_features_in_
        if (
            weights.shape != (rows, width + 1)
            or self.scale_.shape != (2, width)
            or not (self.scale_[1] > 0).all()
        ):
            raise HostileFile("the parts of a federated classifier do not fit together.")
        self.coef_, self.intercept_ = weights[:, :-1].copy(), weights[:, -1].copy()
        agreement = self._agreed(public)
        self.disclosure_, self.advice_ = agreement.disclosure(), agreement.advice()

    def _saved_parameters(self) -> dict[str, Any]:
        parameters = super()._saved_parameters()
        for name in _VALUES:
            value = getattr(self, name)
            parameters[name] = (
                None if value is None else {"type": type(value).__name__, **asdict(value)}
            )
        return (
            parameters
            if self.classes is None
            else {**parameters, "classes": np.unique(np.asarray(self.classes)).tolist()}
        )

    @classmethod
    def _read_parameters(cls, fields: dict[str, Any]) -> dict[str, Any]:
        parameters = super()._read_parameters(fields)
        for name, kinds in _VALUES.items():
            if parameters[name] is not None:
                arguments = dict(parameters[name])
                parameters[name] = {kind.__name__: kind for kind in kinds}[arguments.pop("type")](
                    **arguments
                )
        return parameters

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return scores: (n,) for two classes, (n, classes) otherwise."""
        check_is_fitted(self)
        rows = self._scaled(validate_data(self, X, dtype=np.float64, reset=False))
        values = rows @ self.coef_.T + self.intercept_
        return values[:, 0] if values.shape[1] == 1 else values

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        values = self.decision_function(X)
        places = (values > 0).astype(int) if values.ndim == 1 else np.argmax(values, axis=1)
        return np.asarray(self.classes_[places])


def _numbered(classes: NDArray[Any], names: NDArray[Any]) -> NDArray[np.intp] | None:
    """Return each name's position among the sorted classes, or None if one is not a class."""
    places = np.minimum(np.searchsorted(classes, names), len(classes) - 1)
    return places if bool((classes[places] == names).all()) else None


def _scale(public: tuple[ArrayLike, ArrayLike] | None, features: int) -> NDArray[np.float64]:
    """Return mean and deviation of the public rows; constant features are not scaled."""
    if public is None:
        return np.vstack([np.zeros(features), np.ones(features)])
    rows = checks.finite_array("public rows", public[0], ndim=2)
    if rows.shape[1] != features:
        raise InvalidData(f"public rows must have {features} features, got {rows.shape[1]}.")
    deviation = rows.std(axis=0)
    return np.vstack([rows.mean(axis=0), np.where(deviation > 1e-9, deviation, 1.0)])
