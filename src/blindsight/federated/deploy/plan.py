"""The plan of a federation: what it learns and how; every party may read it.

A plan is one safetensors file with the initial weights, the features' scale, and the settings of
the learner and of the updates that users send.
"""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks, storage
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter, MissingData
from blindsight.core.parsing import one_parser
from blindsight.federated.agreement import Agreement
from blindsight.federated.estimator import FederatedClassifier, Pad, SumNoise
from blindsight.federated.learning import (
    SGD,
    LocalTrainer,
    Participant,
    Proximal,
    RecordDescent,
    Sending,
    linear,
)
from blindsight.federated.learning.federation import from_name
from blindsight.federated.noise import RecordShares
from blindsight.federated.sums.settings import Settings
from blindsight.privacy.door import clip_norm, finite_rows

__all__ = [
    "LearnedModel",
    "Plan",
    "RoundTask",
    "SiteTask",
    "class_numbers",
    "held_out_records",
    "read_rows",
    "scaled_counts",
]

_KIND = "federation plan"
_LEARNERS: dict[str, type[Proximal] | type[SGD] | type[RecordDescent]] = {
    "proximal": Proximal,
    "sgd": SGD,
    "records": RecordDescent,
}
_EVALUATION_LENGTH = 2  # the numbers of correctly classified and of all held-out records
_EXACT_COUNT = 8192  # held-out records of a site that are counted exactly without noise


class RoundTask(Protocol):
    """One site's part of every round."""

    def vector(
        self, weights: NDArray[np.float64], turn: int, settings: Settings
    ) -> NDArray[np.float64]:
        """Return the site's vector for the round, from the shared weights and its own records."""
        ...


class LearnedModel(Protocol):
    """A classifier that can be used and saved."""

    def predict(self, X: NDArray[Any]) -> NDArray[Any]:
        """Return the class of each row."""
        ...

    def save(self, path: str | Path) -> None:
        """Write it to a file."""
        ...


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A classifier's shape, its initial weights, and what a site does in a round.

    A subclass implements another way to learn. It overrides `task`, `advanced`, `predicted` and
    `learned`, has a name in `method`, and is added to `Plan.METHODS` so that its files can be read.

    Parameters:
        initial: the weights of the first round, flat.
        scale: mean and deviation by which every site scales its features.
        classes: the number of classes.
        rounds: how often the model is updated.
        learner: "proximal", "sgd", or "records" for epsilon per record.
        options: keywords of the learner.
        send: "change", or "mask".
        sparsity: share of zeros, for "mask".
        mask_seed: of a common mask.
        patience: once enough users have contributed, a round ends when no new contribution has
            arrived for this many seconds.
        names: the classes' names, sorted; sites match their labels by name. Empty: labels are
            class numbers.
        encoder: how photos become rows: the name by which an encoder is opened, under "open", and
            its identity, under "identity". Empty: sites bring rows.
        holdout: the share of each site's records that are never trained on. After the last round
            sites sum how many of them the model classifies correctly.
        examples: the number of records at which a site has full weight, so that the mean is over
            records and not over sites. 0: all sites count the same. The learner "records" counts
            records by itself.
    """

    METHODS: ClassVar[dict[str, type[Plan]]] = {}
    method: ClassVar[str] = "linear"

    initial: NDArray[np.float64] = field(repr=False)
    scale: NDArray[np.float64] = field(repr=False)
    classes: int
    rounds: int = 3
    learner: str = "proximal"
    options: dict[str, Any] = field(default_factory=dict)
    send: str = "change"
    sparsity: float | None = None
    mask_seed: int = 0
    patience: float = 60.0
    names: tuple[str, ...] = ()
    encoder: dict[str, Any] = field(default_factory=dict)
    holdout: float = 0.0
    examples: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))
        checks.whole("classes", self.classes, least=2)
        checks.whole("rounds", self.rounds)
        checks.non_negative("patience", self.patience)
        if self.names and (
            len(self.names) != self.classes
            or not all(isinstance(name, str) and name for name in self.names)
            or list(self.names) != sorted(set(self.names))
        ):
            raise InvalidParameter("names must name every class once, in sorted order.")
        if not 0 <= checks.number("holdout", self.holdout) < 1:
            raise InvalidParameter(f"holdout must be at least 0 and below 1, got {self.holdout}.")
        checks.whole("examples", self.examples, least=0)
        self._check_shape()

    def _check_shape(self) -> None:
        """Refuse a model, a learner and a `send` that do not fit together."""
        checks.one_of("learner", self.learner, tuple(_LEARNERS))
        if self.scale.shape != (2, self.features) or not (self.scale[1] > 0).all():
            raise InvalidParameter(
                "scale must have a mean and a deviation above 0 for each feature."
            )
        if len(self.initial) != linear.rows_of(self.classes) * (self.features + 1):
            raise InvalidParameter("initial weights must fit classes and features.")
        if (self.examples or self.descent is not None) and self.send != "change":
            raise InvalidParameter("means over records need send='change'.")
        if self.examples and self.descent is not None:
            raise InvalidParameter("the learner 'records' counts records itself: examples=0.")
        if self.sending.sparse:
            raise InvalidParameter(
                f"send must be change or mask, got {self.send!r}: sparse updates need the paper's "
                "protocol, which runs in one process only."
            )

    @property
    def features(self) -> int:
        """The number of features of a row."""
        return int(self.scale.shape[1])

    @property
    def dimension(self) -> int:
        """The length of the vectors that are summed: the weights, and perhaps a count."""
        return len(self.initial) + bool(self.examples or self.descent is not None)

    @property
    def total_rounds(self) -> int:
        """The number of sums: the rounds, and the evaluation if records are held out."""
        return self.rounds + bool(self.holdout)

    @property
    def descent(self) -> RecordDescent | None:
        """The learner, if it clips records one by one, otherwise None."""
        learner = self.local_learner
        return learner if isinstance(learner, RecordDescent) else None

    def evaluates(self, turn: int) -> bool:
        """Whether sum number `turn` is the evaluation on held-out records."""
        return turn > self.rounds

    def length(self, turn: int) -> int:
        """Return the length of the vectors of a round."""
        if self.evaluates(turn):
            return _EVALUATION_LENGTH
        free = self.sending.free(len(self.initial), turn)
        return self.dimension if free is None else int(free.sum())

    def check(self, settings: Settings) -> None:
        """Refuse settings of the sum that do not fit.

        Raises:
            InvalidData: lengths or units of privacy do not fit together.
        """
        if self.dimension != settings.dimension:
            raise InvalidData(
                f"settings are for {settings.dimension} weights, the plan has {self.dimension}."
            )
        per_record = isinstance(settings.noise, RecordShares)
        if per_record != (self.descent is not None):
            raise InvalidData("noise per record and the learner 'records' need each other.")
        covered = np.inf if settings.noise is None else settings.noise.clip
        if self.descent is not None and covered < self.descent.record_norm:
            raise InvalidData(
                f"the noise covers records of norm {covered:g}, the learner's have "
                f"{self.descent.record_norm:g}."
            )
        if settings.noise is not None and not per_record and (self.holdout or self.examples):
            raise InvalidData(
                "with noise per site all sites count the same and nothing is held out: "
                "holdout=0, examples=0."
            )

    @property
    def local_learner(self) -> Proximal | SGD | RecordDescent:
        """The learner with its settings."""
        try:
            return _LEARNERS[self.learner](**self.options)
        except TypeError as error:
            raise InvalidParameter(
                f"options do not fit the learner {self.learner!r}: {error}."
            ) from error

    @property
    def sending(self) -> Sending:
        """Which entries of an update users send."""
        return from_name(self.send, sparsity=self.sparsity, seed=self.mask_seed)

    def checked(
        self, X: NDArray[Any], labels: NDArray[Any]
    ) -> tuple[NDArray[np.float64], NDArray[Any]]:
        """Return a site's rows and class numbers after checking that they fit the plan."""
        rows, numbers = finite_rows(checks.number_array("X", X, ndim=2)), np.asarray(labels)
        if (
            rows.shape[1] != self.features
            or numbers.shape != (len(rows),)
            or numbers.dtype.kind not in "iu"
        ):
            raise InvalidData(
                f"rows must have {self.features} features and a class number each, got "
                f"{rows.shape}."
            )
        if len(numbers) == 0 or numbers.min() < 0 or numbers.max() >= self.classes:
            raise InvalidData(f"class numbers must lie in [0, {self.classes - 1}].")
        return rows, numbers

    def trainer(self, X: NDArray[Any], labels: NDArray[Any], *, user: int) -> LocalTrainer:
        """Return a user's local step over its own rows; labels are class numbers."""
        rows, numbers = self.checked(X, labels)
        learner = self.local_learner
        if isinstance(learner, RecordDescent):
            raise InvalidParameter("the learner 'records' has no local steps: use task().")
        seed = [self.mask_seed, user]
        return LocalTrainer(self.scaled(rows), numbers, self.classes, learner, None, seed)

    def task(self, X: NDArray[Any], labels: NDArray[Any], *, user: int) -> RoundTask:
        """Return a site's part of every round, with its own rows.

        Parameters:
            X: the site's rows.
            labels: class numbers.
            user: the site's number.

        Raises:
            InvalidData: the rows do not fit the plan.
        """
        return SiteTask(self, *self.checked(X, labels), user=user)

    def advanced(
        self, weights: NDArray[np.float64], mean: NDArray[np.float64], *, users: int, turn: int
    ) -> NDArray[np.float64]:
        """Return the weights after a round's sum; they are the same at every party.

        Parameters:
            weights: the weights before.
            mean: the mean of the users' contributions.
            users: the number of contributors.
            turn: the number of the round.
        """
        if self.evaluates(turn):
            return weights
        if self.descent is not None:
            return self.descent.advanced(weights, mean * users)
        if self.examples:
            weight = float(mean[-1])
            return weights + mean[:-1] / weight if weight > 0 else weights
        free = self.sending.free(len(weights), turn)
        sent = np.ones(len(weights), dtype=bool) if free is None else free
        change = np.zeros(len(weights))
        change[sent] = mean
        return self.sending.apply(weights, change, sent)

    def evaluation(self, mean: NDArray[np.float64]) -> float | None:
        """Return the share of all sites' held-out records that the model classifies correctly.

        With noise it is an estimate, and None if the noisy count is not positive.
        """
        right, count = mean
        return float(np.clip(right / count, 0.0, 1.0)) if count > 0 else None

    def scaled(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return rows scaled as the model expects them."""
        return np.asarray((X - self.scale[0]) / self.scale[1])

    def accuracy(
        self, weights: NDArray[np.float64], X: NDArray[Any], labels: NDArray[Any]
    ) -> float:
        """Return the accuracy of a flat model on labelled rows."""
        predicted = self.predicted(weights, np.asarray(X, dtype=np.float64))
        return float(np.mean(predicted == np.asarray(labels)))

    def predicted(self, weights: NDArray[np.float64], X: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the class number that a flat model gives each row."""
        model = linear.shaped(weights, self.features)
        return np.asarray(linear.predicted(model, self.scaled(X)), dtype=np.int64)

    def learned(self, weights: NDArray[np.float64], settings: Settings) -> LearnedModel | None:
        """Return the model that the parties have learned so far, or None if there is none yet."""
        return self.classifier(weights, settings)

    def classifier(self, weights: NDArray[np.float64], settings: Settings) -> FederatedClassifier:
        """Return the learned classifier, with the guarantee that the parties agreed on."""
        noise = None
        classes: list[Any] = list(self.names) or list(range(self.classes))
        if settings.noise is not None:
            epsilon = Agreement(settings).guarantee(self.rounds).epsilon
            if isinstance(settings.noise, RecordShares):
                noise = SumNoise(
                    epsilon=epsilon,
                    delta=settings.noise.delta,
                    unit="record",
                    records=settings.noise.records,
                )
            else:
                noise = SumNoise(
                    epsilon=epsilon, delta=settings.noise.delta, clip=settings.noise.clip
                )
        model = FederatedClassifier(
            classes=classes,
            users=settings.users,
            rounds=self.rounds,
            learner=self.local_learner,
            send=self.sending,
            sums=Pad(
                colluders=settings.colluders,
                holders=settings.holders,
                clip=settings.clip,
                groups=settings.groups,
            ),
            noise=noise,
        )
        model.public_ = {
            "users": settings.users,
            "classes": classes,
            "named": True,
            "counted": bool(self.examples),
            "features": self.features,
            "scale": self.scale,
            "agreed": settings.encode().hex(),
            "encoder": dict(self.encoder.get("identity", {})),
        }
        model.guarantee_ = model.promise(**model.public_)
        model.released_ = {"weights": linear.shaped(weights, self.features)}
        return model._settle_in()

    def save(self, path: str | Path) -> None:
        arrays, fields = self._content()
        storage.save(path, kind=_KIND, arrays=arrays, fields=fields)

    def _content(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return the arrays and plain fields of the file."""
        fields = {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if f.name not in ("initial", "scale")
        }
        return {"initial": self.initial, "scale": self.scale}, fields

    @classmethod
    def _from_content(cls, arrays: dict[str, NDArray[Any]], fields: dict[str, Any]) -> Self:
        return cls(
            initial=checks.finite_array("initial", arrays["initial"], ndim=1),
            scale=checks.finite_array("scale", arrays["scale"], ndim=2),
            **fields,
        )

    def dump(self) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "plan.safetensors"
            self.save(path)
            return path.read_bytes()

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan that `save` wrote; anything else is refused."""
        arrays, fields = storage.load(path, kind=_KIND)
        method = fields.pop("method", Plan.method)
        plan_class = Plan if method == Plan.method else Plan.METHODS.get(str(method))
        if plan_class is None:
            raise HostileFile(
                f"{path} is a plan by the method {method!r}, which this version does not know. "
                "Open it by blindsight.app.federation."
            )
        try:
            return plan_class._from_content(arrays, fields)
        except (KeyError, TypeError, ValueError) as error:
            raise HostileFile(f"{path} does not hold a federation plan: {error}.") from error


class SiteTask:
    """One site's part of every round: a vector from the shared weights and its own records.

    Parameters:
        plan: the agreed plan.
        X: the site's rows, before scaling.
        labels: class numbers.
        user: the site's number.
    """

    def __init__(
        self, plan: Plan, X: NDArray[np.float64], labels: NDArray[Any], *, user: int
    ) -> None:
        self.plan, rows = plan, plan.scaled(X)
        held = held_out_records(X, labels, plan.holdout)
        self.held_out = rows[held], labels[held]
        self._rows, self._labels = rows[~held], labels[~held]
        self._trainer: LocalTrainer | None = None
        if plan.descent is None and len(self._rows):
            self._trainer = plan.trainer(X[~held], labels[~held], user=user)

    def vector(
        self, weights: NDArray[np.float64], turn: int, settings: Settings
    ) -> NDArray[np.float64]:
        """Return the site's vector for the sum of a round.

        Parameters:
            weights: the shared model.
            turn: the number of the round.
            settings: of the secure sum.
        """
        plan = self.plan
        if plan.evaluates(turn):
            return self._counted(weights, settings)
        if plan.descent is not None:
            rows = self._rows, self._labels
            return plan.descent.contribution(weights, *rows, classes=plan.classes)
        update = np.zeros(len(weights))
        if self._trainer is not None:
            update, _ = Participant(self._trainer, plan.sending, settings.code).step(weights, turn)
        if not plan.examples:
            free = plan.sending.free(len(weights), turn)
            return update if free is None else update[free]
        if settings.clip is not None:  # the sum's clip also covers the count
            update = clip_norm(update[None], float(np.sqrt(max(settings.clip**2 - 1, 0))))[0]
        return np.append(update, 1.0) * min(1.0, len(self._rows) / plan.examples)

    def _counted(self, weights: NDArray[np.float64], settings: Settings) -> NDArray[np.float64]:
        """Return the scaled numbers of correctly classified and of all held-out records."""
        rows, labels = self.held_out
        right = linear.predicted(linear.shaped(weights, self.plan.features), rows) == labels
        return scaled_counts(int(right.sum()), len(rows), settings)


def scaled_counts(right: int, total: int, settings: Settings) -> NDArray[np.float64]:
    """Return a site's vector for the evaluation of a model.

    Parameters:
        right: the number of held-out records that the model classifies correctly.
        total: the number of held-out records.
        settings: of the secure sum, to whose range the counts are scaled.
    """
    count = np.array([float(right), float(total)])
    if settings.noise is not None:  # a record adds (1, 1) or (0, 1), scaled to the clip
        return np.asarray(count * settings.noise.clip / np.sqrt(2.0))
    return np.asarray(count * settings.code.bound / max(_EXACT_COUNT, total))


def held_out_records(
    X: NDArray[np.float64], labels: NDArray[Any], share: float
) -> NDArray[np.bool_]:
    """Return a mask of the records that are never trained on.

    The choice depends on the record alone: adding or removing a record affects no other record, and
    copies of a record are treated alike.
    """
    if share == 0:
        return np.zeros(len(X), dtype=bool)
    rows = np.column_stack([X, np.asarray(labels, np.float64)]).astype("<f8")
    drawn = [int.from_bytes(hashlib.sha256(row.tobytes()).digest()[:8], "little") for row in rows]
    return np.array(drawn, dtype=np.float64) < share * 2.0**64


def class_numbers(labels: NDArray[Any], names: tuple[str, ...]) -> NDArray[np.int64]:
    """Return a site's labels as numbers of the agreed classes, matched by name.

    Parameters:
        labels: names, or whole numbers.
        names: the agreed classes; empty: class numbers were agreed on.

    Raises:
        InvalidData: a label is none of the agreed classes.

    Examples:
        >>> class_numbers(np.array(["dog", "cat", "dog"]), ("bird", "cat", "dog")).tolist()
        [2, 1, 2]
    """
    if not names:
        if labels.dtype.kind not in "iu":
            raise InvalidData("class numbers were agreed on, and these labels are names.")
        return labels.astype(np.int64)
    numbers = {name: number for number, name in enumerate(names)}
    texts = [str(label) for label in labels]
    strangers = sorted(set(texts) - set(names))
    if strangers:
        some = ", ".join(repr(name) for name in strangers[:3])
        raise InvalidData(
            f"{len(strangers)} labels are none of the agreed classes ({some}). The classes are "
            f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''}. Rename the labels, or "
            "agree on other classes."
        )
    return np.array([numbers[name] for name in texts], dtype=np.int64)


def read_rows(
    path: str | Path, names: tuple[str, ...] = ()
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Read X and y from an .npz file; y holds class numbers, or class names if `names` is given.

    Parameters:
        path: the file.
        names: the agreed classes, see `class_numbers`.
    """
    try:
        with one_parser(), np.load(path, allow_pickle=False) as file:
            X, y = file["X"], file["y"]
    except FileNotFoundError:
        raise MissingData(f"{path} does not exist. Check the path.") from None
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise HostileFile(
            f"{path} must be an .npz file with arrays X and y: {type(error).__name__}."
        ) from error
    if y.dtype.kind not in ("iuU" if names else "iu") or y.ndim != 1:
        raise InvalidData(
            f"y in {path} must hold a whole class number per row, got dtype {y.dtype}."
        )
    return finite_rows(checks.number_array("X", X, ndim=2)), class_numbers(y, names)
