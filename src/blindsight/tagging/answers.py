"""How answers leave, and what one costs.

| answers | what leaves | epsilon per query |
|---|---|---|
| `Exact` | the model's own scores | none: they cost what training cost, once, however many are given |
| `CodebookAnswers` | one of k typical answers, by k-ary response | ε, exact sampler |
| `LaplaceAnswers` | all logits clipped to ±B, discrete Laplace for l1 sensitivity 2BC | ε, exact sampler |

Noise is for *publishing tags of private images*: neighbours are any two images that might have been
asked about, and each further answer about the same image costs as much again. Where training is
private and the asked images are not secret, noise on answers buys nothing.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from blindsight.core import checks
from blindsight.core.arrays import Array, Bools, Floats
from blindsight.privacy.guarantee import Cost
from blindsight.privacy.mechanisms import DiscreteLaplace, KaryResponse
from blindsight.tagging.answer_codebook import AnswerCodebook
from blindsight.tagging.labels import sigmoid

__all__ = [
    "AnswerNoise",
    "Answers",
    "CodebookAnswers",
    "Exact",
    "LaplaceAnswers",
    "NoCharge",
]


@dataclass(frozen=True)
class Answers:
    """What was released for each image: `tags` (n, C) of True and False, and `scores` (n, C) that
    rank them.
    """

    tags: Bools
    scores: Floats


class NoCharge:
    """A ledger that charges nothing: for trials whose answers leave nowhere."""

    def charge(
        self, cost: Sequence[Cost], *, what: str, key: str | None = None, **details: str
    ) -> None:
        """Charge nothing."""


@dataclass(frozen=True, eq=False)
class Exact:
    """The model's own scores: for models whose training was private, or whose owner alone asks.

    Parameters:
        threshold: a label is a tag where its probability is above this. None gives every label a
            quota: it is a tag about as often as it occurs by the released rates. Without training
            there are no rates, and the threshold is 0.2.
        quotas: for each label the logit above which it is a tag; set by training.
    """

    threshold: float | None = None
    quotas: Floats | None = None

    def __post_init__(self) -> None:
        if self.threshold is not None:
            checks.positive(
                "threshold", checks.probability("threshold", self.threshold, below_one=True)
            )

    def with_quotas(self, quotas: Floats) -> Exact:
        """The same, with the thresholds that were computed from released rates."""
        return replace(self, quotas=checks.finite_array("quotas", quotas, ndim=1))

    def read(self, released: ArrayLike) -> Answers:
        """Tags where the score is above the label's threshold."""
        logits = np.asarray(released, np.float64)
        if self.threshold is None and self.quotas is not None:
            return Answers(logits > self.quotas, logits)
        return Answers(sigmoid(logits) > (self.threshold or _UNTRAINED_THRESHOLD), logits)

    def probabilities(self, scores: Floats) -> Floats:
        """Scores as probabilities."""
        return sigmoid(scores)


# F1 is highest at half of its own value, and so far below one half.
_UNTRAINED_THRESHOLD = 0.2


@dataclass(frozen=True)
class CodebookAnswers:
    """The nearest word of a public codebook, by k-ary response: one question instead of C.

    `k` is the number of words (None: as many as this epsilon pays for); `words` may be your own
    public codebook.
    """

    epsilon: float = 10.0
    k: int | None = None
    words: AnswerCodebook | None = None

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        if self.k is not None:
            checks.whole("k", self.k, least=2)

    def with_words(self, words: AnswerCodebook) -> CodebookAnswers:
        """The same, with the words that were learned."""
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
        """The released word's values; a label is a tag where its value is above the codebook's
        threshold.
        """
        assert self.words is not None  # noqa: S101
        scores = self.words.decode(released, self.epsilon)
        return Answers(scores > self.words.threshold, scores)

    def probabilities(self, scores: Floats) -> Floats:
        """The words' values are probabilities already."""
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
        """The clipped logits."""
        return np.clip(logits, -self.bound, self.bound)

    def read(self, released: ArrayLike) -> Answers:
        """A label is a tag where its noisy logit is above 0."""
        noisy = np.asarray(released, np.float64)
        return Answers(noisy > 0, noisy)

    def probabilities(self, scores: Floats) -> Floats:
        """Noisy scores as probabilities."""
        return sigmoid(scores)


AnswerNoise: TypeAlias = CodebookAnswers | LaplaceAnswers
