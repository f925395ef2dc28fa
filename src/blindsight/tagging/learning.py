"""Everything a tagger learns, and what each part costs: the recipe, its price, and the result."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.privacy import accounting
from blindsight.privacy.entropy import Rng
from blindsight.privacy.guarantee import Cost
from blindsight.tagging.answer_spread import AnswerSpread, SpreadRelease, main_directions
from blindsight.tagging.codebook import Codebook, Confidence, ConfidenceRelease, choose_codebook
from blindsight.tagging.label_graph import CountsRelease, LabelGraph, cooccurrence
from blindsight.tagging.label_tree import LabelTree
from blindsight.tagging.label_vectors import label_vectors
from blindsight.tagging.scaling import CentreRelease, Scaling

__all__ = ["Learned", "Recipe", "learn"]

# Of training_epsilon, the part spent on the features' centre; of training_delta, the centre's and the spread's parts.
_CENTRE_SHARE = 0.1
_CENTRE_DELTA, _SPREAD_DELTA = 0.4, 0.1


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a tagger is to be made. Frozen and public; `cost` is known before any data are looked at."""

    private: bool = True
    training_epsilon: float | None = None
    training_delta: float = 1e-5
    graph_epsilon: float = 1.0
    codebook_epsilon: float = 0.5
    max_labels: int = 5
    graph: Any = None
    threshold: float = 0.4
    reweight: float = 0.2
    head: Literal["auto", "gcn", "linear"] = "auto"
    hidden: int = 1024
    label_vectors: Any = None
    classes: Any = None
    public: Any = None
    public_components: int = 128
    noise_scale: float = 0.0
    robust: float = 0.0
    corollary: Literal[1, 2] | None = None
    gamma: float = 10.0
    factor: float = 0.1
    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    codebook: Any = None
    n_words: int | None = None
    epsilon: float = 10.0
    confidence: bool = False
    spread: bool = False

    def __post_init__(self) -> None:
        checks.one_of("head", self.head, ("auto", "gcn", "linear"))
        checks.whole("hidden", self.hidden)
        if self.corollary not in (None, 1, 2):
            raise InvalidParameter(f"corollary must be 1, 2 or None, got {self.corollary!r}.")
        if self.training_epsilon is not None:
            checks.positive("training_epsilon", self.training_epsilon)

    @property
    def kind(self) -> Literal["gcn", "linear"]:
        """The head that "auto" means."""
        if self.head != "auto":
            return self.head
        return "linear" if self.training_epsilon is not None else "gcn"

    @property
    def counts(self) -> CountsRelease | None:
        """How the label counts are released, or None where they are public or, under "paper", exact."""
        if not self.private or self.graph is not None:
            return None
        return CountsRelease(epsilon=self.graph_epsilon, max_labels=self.max_labels)

    @property
    def confidence_release(self) -> ConfidenceRelease | None:
        """How the four numbers about logits are released, where the label tree reads noisy scores by them."""
        # Four means over all records need a fifth of what a covariance does.
        return ConfidenceRelease(epsilon=self.codebook_epsilon / 5) if self.private and self.confidence else None

    @property
    def spread_release(self) -> SpreadRelease | None:
        """How the spread of answers is released, where a graded codebook is fitted to it."""
        if not self.private or not self.spread:
            return None
        return SpreadRelease(epsilon=self.codebook_epsilon, delta=_SPREAD_DELTA * self.training_delta)

    @property
    def centre(self) -> CentreRelease | None:
        """How the features' centre is released: with private training and without public features only."""
        if self.training_epsilon is None or self.public is not None:
            return None
        return CentreRelease(epsilon=_CENTRE_SHARE * self.training_epsilon, delta=_CENTRE_DELTA * self.training_delta)

    def cost(self, n_records: int, n_features: int, n_labels: int) -> Cost:
        """Per training record, everything together; infinite where training itself is not private."""
        if self.training_epsilon is None:
            return Cost(epsilon=math.inf, unit="record", neighbours="add or remove one")
        parts = [self.schedule(n_records).cost]
        if self.centre is not None:
            parts.append(self.centre.cost(n_features))
        if self.counts is not None:
            parts.append(self.counts.cost(n_labels))
        if self.confidence_release is not None:
            parts.append(self.confidence_release.cost)
        if self.spread_release is not None:
            parts.append(self.spread_release.cost)
        return accounting.compose(parts)

    def schedule(self, n_records: int) -> Any:
        """DP-SGD's plan for what the centre and the spread leave of the budget."""
        from blindsight.tagging.dpsgd import PrivateSchedule

        assert self.training_epsilon is not None  # noqa: S101  (asked for private training only)
        linear = self.kind == "linear"
        centred = self.centre is not None
        return PrivateSchedule(
            epsilon=(1 - _CENTRE_SHARE) * self.training_epsilon if centred else self.training_epsilon,
            delta=(1 - _CENTRE_DELTA * centred - _SPREAD_DELTA * (self.spread_release is not None))
            * self.training_delta,
            n_records=n_records,
            epochs=self.epochs or (min(240, max(30, n_records // 100)) if linear else 20),
            # Few large steps need less noise in all, and many records can bear more of them; the linear head can afford
            # every record at every step.
            batch_size=self.batch_size or (n_records if linear else max(64, min(1024, n_records // 6))),
            learning_rate=self.learning_rate or (3.0 if linear else 0.2),
        )

    @property
    def mechanism(self) -> str:
        """In a few words."""
        if self.training_epsilon is None:
            return f"ordinary training of the {self.kind} head"
        counts = "public label graph" if self.counts is None else "noisy label counts"
        return f"DP-SGD on the {self.kind} head, {counts}"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What must hold."""
        if self.training_epsilon is None:
            return ("training records are protected through the noise on answers only, which adds up query by query",)
        return (
            "the number of training records and all settings are public",
            "the feature extractor was trained on public images",
            "the learning curve stays with the owner",
        )


@dataclass(frozen=True)
class Learned:
    """What came out: W, the scaling before it, the graph, and what answers need."""

    weights: NDArray[np.float32]
    scaling: Scaling
    graph: LabelGraph
    n_records: int
    confidence: Confidence | None = None
    spread: AnswerSpread | None = None
    codebook: Codebook | None = None
    curves: Any = None

    @property
    def n_labels(self) -> int:
        """How many labels there are."""
        return len(self.weights)

    @property
    def tree(self) -> LabelTree:
        """The label tree of the (noisy) counts."""
        return LabelTree.from_counts(self.graph.counts, self.n_records)

    def logits(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Equation 1."""
        return (self.scaling(features) @ self.weights.T).astype(np.float64)


def learn(
    recipe: Recipe,
    features: NDArray[np.float32],
    labels: NDArray[np.uint8],
    *,
    rng: np.random.Generator,
    secret: Rng,
    validation: Any = None,
    progress: Callable[[int, int], None] | None = None,
) -> Learned:
    """Graph, scaling, head, and the codebook. `rng` trains; `secret` draws the noise of the exact releases."""
    checks.optional_module("torch", extra="torch")
    graph = LabelGraph(_counts(recipe, labels, secret), recipe.threshold, recipe.reweight)
    scaling = _scaling(recipe, features, secret)
    weights, curves = _head(recipe, graph, scaling, features, labels, rng, validation, progress)
    learned = Learned(weights, scaling, graph, len(features), curves=curves)
    if recipe.confidence_release is not None:
        confidence = recipe.confidence_release.release(learned.logits(features), labels, rng=secret)
        learned = replace(learned, confidence=confidence)
    if recipe.spread_release is not None:
        public = recipe.training_epsilon is not None
        directions = main_directions(weights) if public else np.eye(learned.n_labels)
        spread = recipe.spread_release.release(learned.logits(features), learned.tree.rate, directions, rng=secret)
        learned = replace(learned, spread=spread)
    if recipe.codebook is not None:
        learned = replace(learned, codebook=_codebook(recipe, learned, rng))
    return learned


def _counts(recipe: Recipe, labels: NDArray[np.uint8], secret: Rng) -> NDArray[np.float64]:
    if recipe.graph is not None:
        own = checks.finite_array("graph", recipe.graph, ndim=2)
        if own.shape != (labels.shape[1], labels.shape[1]):
            raise InvalidData(
                f"graph must be counts of {labels.shape[1]} by {labels.shape[1]} labels, got {own.shape}."
            )
        return own
    if recipe.counts is None:
        return cooccurrence(labels).astype(np.float64)
    return recipe.counts.release(labels, rng=secret)


def _scaling(recipe: Recipe, features: NDArray[np.float32], secret: Rng) -> Scaling:
    if recipe.public is not None:
        scaling = Scaling.from_public(recipe.public, components=recipe.public_components)
        if scaling.centre is not None and len(scaling.centre) != features.shape[1]:
            raise InvalidData(f"public must have {features.shape[1]} features, got {len(scaling.centre)}.")
        return scaling
    if recipe.centre is not None:
        return Scaling(recipe.centre.release(features, rng=secret))
    if recipe.corollary == 1:
        return Scaling(floor=1 / recipe.gamma)
    if recipe.corollary == 2:
        return Scaling(ceiling=recipe.gamma**2 * recipe.factor)
    return Scaling()


def _head(
    recipe: Recipe,
    graph: LabelGraph,
    scaling: Scaling,
    features: NDArray[np.float32],
    labels: NDArray[np.uint8],
    rng: np.random.Generator,
    validation: Any,
    progress: Callable[[int, int], None] | None,
) -> tuple[NDArray[np.float32], Any]:
    from blindsight.tagging.dpsgd import train_privately
    from blindsight.tagging.gcn import MLGCN, LinearHead, classifier_array, torch_generator
    from blindsight.tagging.losses import TaggingLoss
    from blindsight.tagging.training import Schedule, train

    n_inputs = scaling.width(features.shape[1])
    head: MLGCN | LinearHead
    if recipe.kind == "linear":
        # Under DP-SGD the clipping bound should be spent on images, not on learning how rare labels are.
        rate = LabelTree.from_counts(graph.counts, len(features)).rate if recipe.training_epsilon is not None else None
        bias = None if rate is None else np.log(rate / (1 - rate))
        head = LinearHead(graph.normalised, n_features=n_inputs, bias=bias)
    else:
        source = recipe.label_vectors
        if source is None:
            source = "random" if recipe.classes is None else "glove"
        head = MLGCN(
            graph.normalised,
            label_vectors(source, names=recipe.classes, n_labels=graph.n_labels, rng=rng),
            n_features=n_inputs,
            hidden=recipe.hidden,
            weight_ceiling=recipe.gamma**2 * recipe.factor if recipe.corollary == 1 else None,
            weight_floor=1 / recipe.gamma if recipe.corollary == 2 else None,
            generator=torch_generator(rng),
        )
    x = scaling(features)
    if recipe.training_epsilon is not None:
        curves = train_privately(head, x, labels, recipe.schedule(len(x)), rng=rng, progress=progress)
    else:
        schedule = Schedule(recipe.epochs or 20, recipe.batch_size or 128, recipe.learning_rate or 1e-3)
        loss = TaggingLoss(noise_scale=recipe.noise_scale, robust=recipe.robust)
        held_out = None
        if validation is not None:
            held_out = (scaling(np.asarray(validation[0], np.float32)), validation[1])
        curves = train(head, x, labels, loss, schedule, rng=rng, validation=held_out, progress=progress)
    return classifier_array(head), curves


def _codebook(recipe: Recipe, learned: Learned, rng: np.random.Generator) -> Codebook:
    if not isinstance(recipe.codebook, str):
        words = checks.finite_array("codebook", recipe.codebook, ndim=2)
        if words.shape[1] != learned.n_labels:
            raise InvalidData(f"codebook must have {learned.n_labels} columns, got {words.shape[1]}.")
        return Codebook(words, np.ones(words.shape[1]))
    source = learned.tree if recipe.codebook == "sets" else learned.spread
    assert source is not None  # noqa: S101  (released whenever a graded codebook is learned)
    return choose_codebook(source, epsilon=recipe.epsilon, size=recipe.n_words, rng=rng)
