"""ML-GCN, P2-ML-GCN and RP2-ML-GCN (Xu, Cai and Li 2022) as estimators, as printed.

| class | loss | noise | claim |
|---|---|---|---|
| `Tagger` | ML-GCN (Equation 2); with `robust` R-ML-GCN | none | nothing |
| `P2MLGCN` | Equation 8 | Lap(S_b S/ε) on outputs, also in training (Equation 6) | ε per answer |
| `RP2MLGCN` | Equation 14 | the same | the same, more robust |

None of them has a proven guarantee: logits have no bound (with `clip` an epsilon per answer
follows), label counts are exact, and noise that is drawn again at each step averages out of the
weights. Use `PrivateTagger` for protection. The noise is still drawn through the door, so that the
guarantees name the noise that is drawn, and a ledger refuses a release without a finite cost.

λ is relative to the *sum* over the training set (Equations 15 to 18 are ridge regression, xx' +
λI), so relative to the mean loss it is λ/N: `penalty="ridge"`. With `"mean"` λ is relative to the
mean loss, which at λ = 0.5 destroys the model; `"decay"` is decoupled weight decay.

The noise as printed, Lap(S_b S / ε) on every raw logit with S = C (text) or 1 (published code),
proves nothing, because logits have no bound. If they are clipped to ±B, epsilon is 2BC / scale per
query.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from blindsight.core import checks, storage
from blindsight.core.arrays import Bytes, Floats, Floats32
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.privacy.accounting import Planned
from blindsight.privacy.door import Door
from blindsight.privacy.entropy import EntropyName, RandomState, source_of, training_rng
from blindsight.privacy.guarantee import Assumption, Cost, Guarantee
from blindsight.privacy.mechanisms import Laplace
from blindsight.tagging.gcn import LabelGraph, label_matrix
from blindsight.tagging.guarantee import ANSWER, Answers
from blindsight.tagging.prior import feature_rows, private_rows, unit_rows

if TYPE_CHECKING:
    from blindsight.privacy.ledger import Ledger

__all__ = [
    "OUTPUTS",
    "P2MLGCN",
    "RP2MLGCN",
    "Corollary",
    "GraphHead",
    "PaperInputs",
    "PaperLaplace",
    "Penalty",
    "Schedule",
    "Tagger",
    "label_vectors",
    "of_printed_answers",
    "of_printed_training",
]

OUTPUTS = "training outputs"
_ANEW = Assumption(
    "noise drawn anew",
    "noise on training outputs is drawn anew at every step and averages out of the weights; "
    "outputs have no bound, and label counts are used as they are",
)


@dataclass(frozen=True, kw_only=True)
class PaperLaplace:
    """Equation 6 as printed: Lap(0, S_b S / ε) on every raw logit.

    `sensitivity` is "C" (the text: the number of labels) or "1" (the authors' published code). The
    paper claims ε, and ε / S_b with a bound factor S_b < 1 (Section 4.3). Raw logits have no bound,
    so nothing is proven; with `clip` the vector's l1 sensitivity is 2 B C, and epsilon is finite.
    """

    epsilon: float
    n_labels: int
    sensitivity: Literal["C", "1"] = "C"
    bound_factor: float = 1.0
    clip: float | None = None
    sampler: ClassVar[str] = "float"

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.one_of("sensitivity", self.sensitivity, ("C", "1"))
        checks.positive("bound_factor", self.bound_factor)

    @property
    def scale(self) -> float:
        """The scale of the Laplace noise, S_b S / ε."""
        return self.bound_factor * self._stated / self.epsilon

    @property
    def _stated(self) -> float:
        return float(self.n_labels) if self.sensitivity == "C" else 1.0

    @property
    def claimed(self) -> float:
        """The paper's epsilon ("relaxed" if S_b is below 1)."""
        return self.epsilon / self.bound_factor

    @property
    def noise(self) -> Laplace:
        """The noise as a mechanism, for logits within ±clip.

        Without `clip` its sensitivity is the paper's S, which does not bound raw logits.
        """
        reach = self._stated if self.clip is None else 2 * self.clip * self.n_labels
        return Laplace(scale=self.scale, sensitivity=reach, unit="query")

    @property
    def training_noise(self) -> Laplace:
        """The same noise on the outputs in training (Equation 8), which protects no record."""
        return replace(self.noise, unit="record", neighbours="add or remove one")

    @property
    def cost(self) -> Cost:
        """The proven cost, which is infinite unless the logits are clipped."""
        if self.clip is None:
            return Cost(epsilon=math.inf, unit="query")
        return self.noise.cost

    def value(self, logits: ArrayLike) -> Floats:
        """Return the logits, clipped if there is a bound."""
        values = checks.finite_array("logits", logits, ndim=2)
        return values if self.clip is None else np.clip(values, -self.clip, self.clip)

    def read(self, released: ArrayLike) -> Answers:
        """Return tags: the labels whose noisy logit is above 0."""
        noisy = np.asarray(released, np.float64)
        return Answers(noisy > 0, noisy)

    def answer(self, logits: ArrayLike, *, rng: np.random.Generator) -> Answers:
        """Draw noisy logits without the door, for trials."""
        return self.read(self.noise.release(self.value(logits), rng=rng))


def of_printed_training(
    release: PaperLaplace, steps: int, *, claimed: float | None, entropy: EntropyName
) -> Guarantee:
    """Return the guarantee of the paper's training: its noise proves nothing per record."""
    return Guarantee(
        releases=(Planned(what=OUTPUTS, mechanism=release.training_noise, count=steps),),
        unproven=(_ANEW,),
        model="central",
        claimed=claimed,
        calibration="paper",
        entropy=entropy,
    )


def of_printed_answers(release: PaperLaplace, *, entropy: EntropyName) -> Guarantee:
    """Return the paper's claim per answer and what is proven."""
    unbounded = Assumption(
        "unbounded logits", "logits have no bound, so no noise hides what one image does to them"
    )
    bounded = release.clip is not None
    return Guarantee(
        releases=(Planned(what=ANSWER, mechanism=release.noise),),
        unproven=() if bounded else (unbounded,),
        mechanism=f"Lap({release.scale:.3g}) on {'clipped' if bounded else 'raw'} logits, as "
        "printed",
        model="central",
        claimed=release.claimed,
        calibration="paper",
        entropy=entropy,
    )


Penalty = Literal["ridge", "mean", "decay"]
_LENGTH = 4.0
_RANDOM_DIMENSIONS = 50


@dataclass(frozen=True)
class PaperInputs:
    """ML-GCN's input: y = Wx has no bias, so rows are only scaled to the same norm.

    `floor` and `ceiling` are the conditions of the corollaries: bounds on |x_i| and x_i.
    """

    floor: float | None = None
    ceiling: float | None = None

    def __call__(self, x: ArrayLike) -> Floats32:
        """Return the input of the graph head for features x."""
        rows = (_LENGTH * unit_rows(x)).astype(np.float32)
        if self.floor is not None:
            rows = np.where(rows < 0, -1.0, 1.0) * np.maximum(np.abs(rows), self.floor)
        if self.ceiling is not None:
            rows = np.minimum(rows, self.ceiling)
        return rows.astype(np.float32)


def label_vectors(source: Any, *, n_labels: int, rng: np.random.Generator) -> Floats32:
    """Return vectors of the labels, the first input of the graph convolution.

    Parameters:
        source: a table (labels, d), such as the GloVe vectors that ML-GCN publishes, or None for
            random vectors, which were not worse in our measurements.
        n_labels: the number of labels.
        rng: draws random vectors.

    Raises:
        InvalidData: the table does not have one row for each label.
    """
    if source is None:
        return rng.standard_normal((n_labels, _RANDOM_DIMENSIONS)).astype(np.float32)
    table = checks.finite_array("label_vectors", source, ndim=2)
    if len(table) != n_labels:
        raise InvalidData(
            f"label_vectors must have one row a label ({n_labels}), got {len(table)}."
        )
    return table.astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class GraphHead:
    """The settings of the graph head.

    Parameters:
        hidden: the width of the first graph convolution.
        label_vectors: a table (labels, d), or None for random vectors.
        threshold: ML-GCN's tau.
        reweight: ML-GCN's p.
        form: "text" (Equations 7 and 8 of ML-GCN) or "code" (the published code: the transposed
            graph, 0.25 A + I).
    """

    hidden: int = 1024
    label_vectors: Any = None
    threshold: float = 0.4
    reweight: float = 0.2
    form: Literal["text", "code"] = "text"

    def __post_init__(self) -> None:
        checks.whole("hidden", self.hidden)
        checks.one_of("form", self.form, ("text", "code"))

    def build(
        self, labels: ArrayLike, n_features: int, *, rng: np.random.Generator, **bounds: Any
    ) -> Any:
        """Build a new head on the exact label graph, as in the paper."""
        from blindsight.tagging.gcn import MLGCN, torch_generator

        graph = LabelGraph.from_labels(labels, threshold=self.threshold, p=self.reweight)
        return MLGCN(
            graph.normalised if self.form == "text" else graph.as_published,
            label_vectors(self.label_vectors, n_labels=graph.n_labels, rng=rng),
            n_features=n_features,
            hidden=self.hidden,
            generator=torch_generator(rng),
            **bounds,
        )


@dataclass(frozen=True)
class Schedule:
    """The training schedule of the graph head: Adam with a cosine decay to 1/50 of the rate."""

    epochs: int = 20
    batch_size: int = 128
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        checks.whole("epochs", self.epochs)
        checks.whole("batch_size", self.batch_size)
        checks.positive("learning_rate", self.learning_rate)

    def steps(self, n_records: int) -> int:
        """The total number of batches."""
        return self.epochs * -(-n_records // self.batch_size)


@dataclass(frozen=True)
class Corollary:
    """The conditions of Corollary 1 or 2.

    Corollary 1: W is at most γ²P and |x| at least 1/γ. Corollary 2: |W| is at least 1/γ and x at
    most γ²Q.
    """

    number: Literal[1, 2]
    gamma: float = 10.0
    factor: float = 0.1

    def __post_init__(self) -> None:
        if self.number not in (1, 2):
            raise InvalidParameter(f"number of a corollary must be 1 or 2, got {self.number!r}.")
        checks.positive("gamma", self.gamma)
        checks.positive("factor", self.factor)

    @property
    def inputs(self) -> PaperInputs:
        """The input map that meets the corollary's condition on features."""
        if self.number == 1:
            return PaperInputs(floor=1 / self.gamma)
        return PaperInputs(ceiling=self.gamma**2 * self.factor)

    @property
    def bounds(self) -> dict[str, float]:
        """The bounds of the weights that the corollary requires."""
        if self.number == 1:
            return {"weight_ceiling": self.gamma**2 * self.factor}
        return {"weight_floor": 1 / self.gamma}


class _GraphModel(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """The base class of the papers' taggers: training of the graph head, logits, and files."""

    _kind = ""
    # Defaults of parameters that a subclass may not have.
    robust: float = 0.0
    penalty: Penalty = "ridge"
    corollary: Corollary | None = None
    head: GraphHead
    schedule: Schedule
    classes: Any
    random_state: RandomState

    def _learn(
        self, X: ArrayLike, y: ArrayLike, ledger: Ledger | None, validation: Any, progress: Any
    ) -> Self:
        checks.optional_module("torch", extra="torch")
        from blindsight.tagging.gcn import TaggingLoss, classifier_array, train

        self._check()
        (rows, _), labels = private_rows(X), label_matrix(y)
        if len(rows) != len(labels):
            raise InvalidData(f"X and y must have as many rows, got {len(rows)} and {len(labels)}.")
        self.n_records_, self.n_features_in_, self.n_labels_ = (
            len(rows),
            rows.shape[1],
            labels.shape[1],
        )
        self._promise()
        perturb = self._perturb(ledger)
        rng, _ = training_rng(self.random_state)
        inputs = PaperInputs() if self.corollary is None else self.corollary.inputs
        bounds = {} if self.corollary is None else self.corollary.bounds
        head = self.head.build(labels, rows.shape[1], rng=rng, **bounds)
        loss = TaggingLoss.of(self.robust, self.penalty, n_records=len(rows))
        held_out = None
        if validation is not None:
            held_out = (
                inputs(feature_rows(validation[0], n_features=rows.shape[1])),
                validation[1],
            )
        self.curves_: Any = train(
            head,
            inputs(rows),
            labels,
            loss,
            self.schedule,
            rng=rng,
            perturb=perturb,
            validation=held_out,
            progress=progress,
        )
        self.weights_ = classifier_array(head)
        names = self.classes if self.classes is not None else range(self.n_labels_)
        self.classes_ = np.array([str(name) for name in names])
        return self

    def logits(self, X: ArrayLike) -> Floats:
        """Return the model's outputs without noise."""
        check_is_fitted(self, "weights_")
        rows, _ = private_rows(X, n_features=self.n_features_in_)
        inputs = PaperInputs() if self.corollary is None else self.corollary.inputs
        return (inputs(rows) @ self.weights_.T).astype(np.float64)

    def save(self, path: str | Path) -> None:
        """Write one safetensors file with the classifier matrix. It is not private."""
        check_is_fitted(self, "weights_")
        params = self.get_params(deep=False)
        seed = params["random_state"]
        params["random_state"] = int(seed) if isinstance(seed, (int, np.integer)) else None
        head = asdict(params["head"])
        head["label_vectors"] = None  # The weights contain the user's table.
        params |= {
            "head": head,
            "schedule": asdict(params["schedule"]),
            "classes": [str(c) for c in self.classes_],
        }
        if params.get("corollary") is not None:
            params["corollary"] = asdict(params["corollary"])
        fields = {"params": params, "named": self.classes is not None, "n_records": self.n_records_}
        storage.save(path, kind=self._kind, arrays={"weights": self.weights_}, fields=fields)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote; raise `HostileFile` for anything else."""
        arrays, fields = storage.load(path, kind=cls._kind)
        try:
            params = dict(fields["params"])
            params |= {
                # Earlier files name the source of the vectors, which are part of the weights.
                "head": GraphHead(**{**params["head"], "label_vectors": None}),
                "schedule": Schedule(**params["schedule"]),
            }
            if params.get("corollary") is not None:
                params["corollary"] = Corollary(**params["corollary"])
            names = [str(name) for name in params["classes"]]
            params["classes"] = names if fields["named"] else None
            model = cls(**params)
            model._check()
            weights = arrays["weights"].astype(np.float32)
            model.n_records_ = checks.whole("n_records", fields["n_records"])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise HostileFile(
                f"{Path(path).name} is not a tagger that can be used: {error}."
            ) from error
        if weights.ndim != 2 or len(weights) != len(names) or not np.isfinite(weights).all():
            raise HostileFile(f"{Path(path).name} does not hold a tagger's weights.")
        model.weights_, model.curves_ = weights, None
        model.n_labels_, model.n_features_in_ = weights.shape
        model.classes_ = np.array(names)
        model._promise()
        return model

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output, tags.target_tags.single_output = True, False
        return tags

    def _check(self) -> None:
        checks.non_negative("robust", self.robust)
        checks.one_of("penalty", self.penalty, ("ridge", "mean", "decay"))

    def _promise(self) -> None:
        """Set the guarantees, from parameters and sizes, before any record is used."""

    def _perturb(self, ledger: Ledger | None) -> Callable[[Any], Any] | None:
        """Return a function that adds noise to training outputs, or None without noise."""
        return None


class Tagger(_GraphModel):
    """ML-GCN (Chen et al. 2019) on features, and with `robust` > 0 R-ML-GCN. Nothing is protected.

    Parameters:
        robust: λ of the Frobenius term.
        penalty: how λ is weighted ("ridge", "mean" or "decay"), as in `RP2MLGCN`.
        head: the network that computes logits.
        schedule: epochs, batches and step sizes.
        classes: the labels' names.
        random_state: a seed, or None for fresh randomness.
    """

    _kind = "plain tagger"

    def __init__(
        self,
        *,
        robust: float = 0.0,
        penalty: Penalty = "ridge",
        head: GraphHead = GraphHead(),  # noqa: B008  (frozen)
        schedule: Schedule = Schedule(),  # noqa: B008
        classes: Any = None,
        random_state: RandomState = None,
    ) -> None:
        self.robust = robust
        self.penalty = penalty
        self.head = head
        self.schedule = schedule
        self.classes = classes
        self.random_state = random_state

    def fit(
        self, X: ArrayLike, y: ArrayLike, *, validation: Any = None, progress: Any = None
    ) -> Self:
        """Learn from features (n, D) and labels (n, C) of 0 and 1.

        `validation` (features, labels) adds mean average precision to the learning curve.
        """
        return self._learn(X, y, None, validation, progress)

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return the logits (n, C) of the labels."""
        return self.logits(X)

    def predict(self, X: ArrayLike) -> Bytes:
        """Return tags (n, C): 1 if the logit is above 0."""
        return (self.logits(X) > 0).astype(np.uint8)


class P2MLGCN(_GraphModel):
    """P2-ML-GCN: Laplace noise of scale S_b S/ε on the outputs, in training and in answers.

    Parameters:
        epsilon: what the paper claims per answer (ε / S_b with a bound factor).
        sensitivity: S, "C" as in the text (the number of labels) or "1" as in the authors'
            published code.
        bound_factor: S_b (Section 4.3).
        clip: logits are clipped to ±clip before noise; None leaves them unbounded, as printed, and
            nothing is proven.
        corollary: imposes the conditions of Corollary 1 or 2, or None.
        head: the network that makes logits, a `GraphHead`.
        schedule: the passes over the records, the size of batches and the step sizes.
        classes: the names of the labels; None numbers them.
        random_state: None draws from the operating system; a seed makes a simulation.

    Guarantee:
        `guarantee_` states the claim per query, and with `clip` the proven epsilon. There is no
        guarantee per training record: `training_guarantee_` names the noise of training and states
        why it proves nothing.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> X, y = rng.normal(size=(20, 4)), rng.integers(0, 2, (20, 3))
        >>> quick = {"head": GraphHead(hidden=4), "schedule": Schedule(epochs=1)}
        >>> P2MLGCN(**quick, random_state=0).fit(X, y).predict(X).shape
        (20, 3)
    """

    _kind = "p2-ml-gcn"

    def __init__(
        self,
        epsilon: float = 10.0,
        *,
        sensitivity: Literal["C", "1"] = "C",
        bound_factor: float = 1.0,
        clip: float | None = None,
        corollary: Corollary | None = None,
        head: GraphHead = GraphHead(),  # noqa: B008  (frozen)
        schedule: Schedule = Schedule(),  # noqa: B008
        classes: Any = None,
        random_state: RandomState = None,
    ) -> None:
        self.epsilon = epsilon
        self.sensitivity = sensitivity
        self.bound_factor = bound_factor
        self.clip = clip
        self.corollary = corollary
        self.head = head
        self.schedule = schedule
        self.classes = classes
        self.random_state = random_state

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        ledger: Ledger | None = None,
        validation: Any = None,
        progress: Any = None,
    ) -> Self:
        """Learn from features (n, D) and labels (n, C) of 0 and 1, on noisy outputs.

        A ledger refuses the charge, because no finite epsilon is proven per record.
        `validation` (features, labels) adds mean average precision to the learning curve.
        """
        return self._learn(X, y, ledger, validation, progress)

    def answer(self, X: ArrayLike, *, ledger: Ledger | None = None) -> Answers:
        """Release noisy logits.

        Each call draws new noise, so the mean of many answers reveals the exact outputs.
        """
        logits = self.logits(X)
        what = f"P2-ML-GCN's tags of {len(logits)} images"
        door = Door(self.guarantee_, what=what, ledger=ledger, random_state=self.random_state)
        return self.release_.read(door.release(ANSWER, self.release_.value(logits)))

    def decision_function(self, X: ArrayLike, *, ledger: Ledger | None = None) -> Floats:
        """Return noisy logits (n, C) of the labels."""
        return self.answer(X, ledger=ledger).scores

    def predict(self, X: ArrayLike, *, ledger: Ledger | None = None) -> Bytes:
        """Return tags (n, C): 1 if the noisy logit is above 0."""
        return self.answer(X, ledger=ledger).tags.astype(np.uint8)

    def _check(self) -> None:
        super()._check()
        _ = self._noise(1)
        if self.clip is not None:
            checks.positive("clip", self.clip)

    def _noise(self, n_labels: int) -> PaperLaplace:
        return PaperLaplace(
            epsilon=self.epsilon,
            n_labels=n_labels,
            sensitivity=self.sensitivity,
            bound_factor=self.bound_factor,
            clip=self.clip,
        )

    def _promise(self) -> None:
        self.release_ = self._noise(self.n_labels_)
        entropy = source_of(self.random_state).name
        self.guarantee_: Guarantee = of_printed_answers(self.release_, entropy=entropy)
        first = self.corollary is not None and self.corollary.number == 1
        self.training_guarantee_: Guarantee = of_printed_training(
            self.release_,
            self.schedule.steps(self.n_records_),
            claimed=self.epsilon * self.corollary.factor
            if first and self.corollary is not None
            else None,
            entropy=entropy,
        )

    def _perturb(self, ledger: Ledger | None) -> Callable[[Any], Any]:
        what = "P2-ML-GCN's training outputs"
        door = Door(
            self.training_guarantee_, what=what, ledger=ledger, random_state=self.random_state
        )
        return lambda outputs: door.release(OUTPUTS, outputs)


class RP2MLGCN(P2MLGCN):
    """RP2-ML-GCN: P2-ML-GCN with λ||W||² in the loss (Equation 14).

    Parameters:
        epsilon: what the paper claims per answer (ε / S_b with a bound factor).
        robust: λ.
        penalty: what λ is relative to: "ridge" (λ/N against the mean loss, as in Equations 15 to
            18), "mean" (λ against the mean loss) or "decay" (decoupled weight decay).
        sensitivity: S, "C" (the number of labels) or "1".
        bound_factor: S_b (Section 4.3).
        clip: the bound of logits before noise; with None nothing is proven.
        corollary: imposes the conditions of Corollary 1 or 2, or None.
        head: the network that makes logits, a `GraphHead`.
        schedule: the passes over the records, the size of batches and the step sizes.
        classes: the names of the labels; None numbers them.
        random_state: None draws from the operating system; a seed makes a simulation.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> X, y = rng.normal(size=(20, 4)), rng.integers(0, 2, (20, 3))
        >>> quick = {"head": GraphHead(hidden=4), "schedule": Schedule(epochs=1)}
        >>> RP2MLGCN(**quick, random_state=0).fit(X, y).predict(X).shape
        (20, 3)
    """

    _kind = "rp2-ml-gcn"

    def __init__(
        self,
        epsilon: float = 10.0,
        *,
        robust: float = 0.5,
        penalty: Penalty = "ridge",
        sensitivity: Literal["C", "1"] = "C",
        bound_factor: float = 1.0,
        clip: float | None = None,
        corollary: Corollary | None = None,
        head: GraphHead = GraphHead(),  # noqa: B008  (frozen)
        schedule: Schedule = Schedule(),  # noqa: B008
        classes: Any = None,
        random_state: RandomState = None,
    ) -> None:
        super().__init__(
            epsilon,
            sensitivity=sensitivity,
            bound_factor=bound_factor,
            clip=clip,
            corollary=corollary,
            head=head,
            schedule=schedule,
            classes=classes,
            random_state=random_state,
        )
        self.robust = robust
        self.penalty = penalty
