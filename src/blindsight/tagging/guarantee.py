"""Kinds of answers, and the guarantees of taggers per training record and per query.

| answers | released value | epsilon per query |
|---|---|---|
| `Exact` | the model's own scores | none: only training is charged, for any number of answers |
| `CodebookAnswers` | one of k typical answers, by k-ary response | ε, exact sampler |
| `LaplaceAnswers` | all logits clipped to ±B, discrete Laplace for l1 sensitivity 2BC | ε, exact sampler |

Noise is for *publishing tags of private images*: neighbours are any two images that might have been
queried, and each further answer about the same image costs the same again. If training is private
and the queried images are not secret, answers need no noise.
"""  # noqa: E501

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from blindsight.core import checks
from blindsight.core.arrays import Array, Bools, Floats
from blindsight.privacy.accounting import Plan, Planned, price
from blindsight.privacy.entropy import EntropyName
from blindsight.privacy.guarantee import Assumption, Cost, Guarantee
from blindsight.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace, KaryResponse
from blindsight.tagging.answer_codebook import AnswerCodebook
from blindsight.tagging.labels import sigmoid
from blindsight.tagging.training import DPTraining, Training, TrainingFacts, Untrained

__all__ = [
    "ANSWER",
    "AnswerNoise",
    "Answers",
    "CodebookAnswers",
    "Exact",
    "LaplaceAnswers",
    "NoCharge",
    "of_answers",
    "of_publishing",
    "of_repeated_answers",
    "of_training",
]


@dataclass(frozen=True)
class Answers:
    """Released answers: `tags` (n, C) of True and False, and `scores` (n, C) that rank them."""

    tags: Bools
    scores: Floats


class NoCharge:
    """A ledger that charges nothing, for trials whose answers are discarded."""

    def charge(
        self, cost: Sequence[Cost], *, what: str, key: str | None = None, **details: str
    ) -> None:
        """Accept any charge without recording it."""


@dataclass(frozen=True, eq=False)
class Exact:
    """Exact scores, for models whose training was private or that only the owner queries.

    Parameters:
        threshold: a label is a tag if its probability is above this. None gives every label a
            quota: it is a tag about as often as it occurs by the released rates. Without training
            there are no rates, and the threshold is 0.2.
        quotas: for each label the logit above which it is a tag; set by training.

    Examples:
        >>> Exact(threshold=0.5).threshold
        0.5
    """

    threshold: float | None = None
    quotas: Floats | None = None

    def __post_init__(self) -> None:
        if self.threshold is not None:
            checks.positive(
                "threshold", checks.probability("threshold", self.threshold, below_one=True)
            )

    def with_quotas(self, quotas: Floats) -> Exact:
        """Return the same answers with thresholds that were computed from released rates."""
        return replace(self, quotas=checks.finite_array("quotas", quotas, ndim=1))

    def read(self, released: ArrayLike) -> Answers:
        """Return tags: the labels whose score is above their threshold."""
        logits = np.asarray(released, np.float64)
        if self.threshold is None and self.quotas is not None:
            return Answers(logits > self.quotas, logits)
        return Answers(sigmoid(logits) > (self.threshold or _UNTRAINED_THRESHOLD), logits)

    def probabilities(self, scores: Floats) -> Floats:
        return sigmoid(scores)


# The threshold with the highest F1 is half of that F1, so it is below one half.
_UNTRAINED_THRESHOLD = 0.2


@dataclass(frozen=True)
class CodebookAnswers:
    """Answers by k-ary response over the words of a public codebook.

    Parameters:
        epsilon: the budget of one answer.
        k: number of words; None derives it from epsilon.
        words: a public codebook of your own; None learns one in training.

    Examples:
        >>> CodebookAnswers(epsilon=4.0, k=16).k
        16
    """

    epsilon: float = 10.0
    k: int | None = None
    words: AnswerCodebook | None = None

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        if self.k is not None:
            checks.whole("k", self.k, least=2)

    def with_words(self, words: AnswerCodebook) -> CodebookAnswers:
        """Return the same answers with the words that were learned."""
        return replace(self, words=words)

    def noise(self, n_labels: int) -> KaryResponse:
        """The exact sampler over the words."""
        assert self.words is not None  # noqa: S101  (learned before anything is answered)
        return KaryResponse(epsilon=self.epsilon, k=len(self.words), unit="query")

    def value(self, logits: Floats) -> Array:
        """The word nearest to each row of logits."""
        assert self.words is not None  # noqa: S101
        return self.words.encode(logits)

    def read(self, released: ArrayLike) -> Answers:
        """Decode released words; a label is a tag if its score exceeds the codebook's threshold."""
        assert self.words is not None  # noqa: S101
        scores = self.words.decode(released, self.epsilon)
        return Answers(scores > self.words.threshold, scores)

    def probabilities(self, scores: Floats) -> Floats:
        """Return the scores, because the values of words are probabilities."""
        return scores


@dataclass(frozen=True)
class LaplaceAnswers:
    """The proven form of P2-ML-GCN: discrete Laplace noise for the whole vector of clipped logits.

    Parameters:
        epsilon: the privacy budget of one answer.
        bound: logits are clipped to plus or minus this before noise.
    """

    epsilon: float = 10.0
    bound: float = 5.0

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.positive("bound", self.bound)

    def noise(self, n_labels: int) -> DiscreteLaplace:
        """The exact sampler for l1 sensitivity 2 B C."""
        return DiscreteLaplace.calibrate(
            self.epsilon,
            sensitivity=2 * self.bound * n_labels,
            grid=2.0**-8,
            dimensions=n_labels,
            unit="query",
        )

    def value(self, logits: Floats) -> Array:
        """Return the logits, clipped to the bound."""
        return np.clip(logits, -self.bound, self.bound)

    def read(self, released: ArrayLike) -> Answers:
        """Return tags: the labels whose noisy logit is above 0."""
        noisy = np.asarray(released, np.float64)
        return Answers(noisy > 0, noisy)

    def probabilities(self, scores: Floats) -> Floats:
        return sigmoid(scores)


AnswerNoise: TypeAlias = CodebookAnswers | LaplaceAnswers


ANSWER = "answer"
_NEIGHBOURS: Any = "add or remove one"
_ANY_TWO = Assumption("any two images", "neighbours are any two images asked about")
_DISTINCT = Assumption(
    "distinct images",
    "a photo is a distinct image: copies share one answer, and how many distinct images there are "
    "is public; whoever is on several different images is protected for each",
)
_KEYED = Assumption(
    "keyed noise",
    "noise comes from a secret key by HMAC-SHA-256 and AES-256, which nobody can tell from random; "
    "the tagger in memory and its pickled copies hold the key and are not given away",
)
_PUBLIC = (
    Assumption(
        "public sizes",
        "the number of training records, the labels' names and all settings are public",
    ),
    Assumption("public extractor", "the feature extractor was trained on public images"),
    Assumption(
        "public images", "images given as public, and a prior, were not made from the records"
    ),
)
_VOCABULARY = Assumption(
    "private vocabulary",
    "the labels' names were read off the private records: name them yourself (classes=, "
    "--vocabulary), for one record's rare label is in the file as it is",
)
_ORDINARY = Assumption(
    "ordinary training",
    "training has no noise: a record is protected only through noise on answers, which adds up "
    "query by query",
)


def of_training(
    training: Training, facts: TrainingFacts, *, public_names: bool, entropy: EntropyName
) -> Guarantee:
    """Return the guarantee per training record, one added or removed.

    It holds for the weights and everything computed from them.
    """
    if isinstance(training, Untrained):
        return Guarantee(
            mechanism="public knowledge only: no record is looked at",
            unit="record",
            neighbours=_NEIGHBOURS,
            epsilon=0.0,
            model="central",
            assumptions=_PUBLIC[1:],
            sampler="exact",  # there is no noise whose low bits could reveal anything
            entropy=entropy,
        )
    if not isinstance(training, DPTraining):
        return Guarantee(
            unproven=(_ORDINARY,),
            mechanism="ordinary training",
            unit="record",
            neighbours=_NEIGHBOURS,
            model="central",
            entropy=entropy,
        )
    plan = training.plan(facts)
    return Guarantee(
        releases=plan,
        delta=training.delta,
        also=(_replaced(plan, training.delta),) if public_names else (),
        unproven=() if public_names else (_VOCABULARY,),
        mechanism="noisy gradient descent on the linear head, label counts and gradients in one "
        "account",
        model="central",
        assumptions=_PUBLIC,
        entropy=entropy,
    )


def _replaced(plan: Plan, delta: float) -> Cost:
    """Return the cost if one record is replaced, where every sum changes by twice as much."""
    twice = []
    for item in plan:
        mechanism = item.mechanism
        assert isinstance(mechanism, DiscreteGaussian)  # noqa: S101  (all that training releases)
        moved = dataclasses.replace(
            mechanism, sensitivity=2 * mechanism.sensitivity, neighbours="replace one"
        )
        twice.append(dataclasses.replace(item, mechanism=moved))
    return price(tuple(twice), delta=delta)


def of_answers(
    answers: Exact | AnswerNoise, n_labels: int, *, entropy: EntropyName
) -> Guarantee | None:
    """Return the guarantee of one answer about one image; None if answers have no noise."""
    if isinstance(answers, Exact):
        return None
    return Guarantee(
        releases=(Planned(what=ANSWER, mechanism=answers.noise(n_labels)),),
        delta=getattr(answers, "delta", 0.0),
        model="central",
        assumptions=(
            _ANY_TWO,
            Assumption(
                "repeats add up", "each further answer about the same image costs as much again"
            ),
            Assumption(
                "images apart",
                "which answers are about the same image is public: the asker names the images",
            ),
        ),
        entropy=entropy,
    )


def of_repeated_answers(answers: Guarantee, *, entropy: EntropyName) -> Guarantee:
    """Return the guarantee of one answer per distinct image, with noise derived from a key."""
    return dataclasses.replace(
        answers,
        assumptions=(_ANY_TWO, _DISTINCT, *((_KEYED,) if entropy == "keyed" else ())),
        entropy=entropy,
    )


def of_publishing(answers: Guarantee) -> Guarantee:
    """Return the guarantee of one answer per distinct image, with a vault's permanent noise."""
    return dataclasses.replace(
        answers,
        assumptions=(
            _ANY_TWO,
            _DISTINCT,
            Assumption(
                "keyed noise",
                "noise comes from a secret key by HMAC-SHA-256 and AES-256, which nobody can tell "
                "from random; the vault that holds the key is not given away",
            ),
        ),
        also=(dataclasses.replace(answers.cost, unit="record"),),
        entropy="keyed",
    )
