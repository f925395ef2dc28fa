"""How answers leave, and what one costs.

| answers | what leaves | epsilon per query |
|---|---|---|
| `Exact` | the model's own scores | none: they cost what training cost, once, however many are given |
| `CodebookAnswers` | one of k typical answers, by k-ary response | ε, exact sampler |
| `TopTags` | the names of k tags, noisy top-k over logits clipped to ±B | ε |
| `LaplaceAnswers` | all logits clipped to ±B, discrete Laplace for l1 sensitivity 2BC | ε, exact sampler |
| `GaussianAnswers` | all logits clipped to ±B, discrete Gaussian, l2 sensitivity 2B sqrt(C) | (ε, δ), exact sampler |
| `PaperLaplace` | Lap(S_b S/ε) on raw logits, S = C (text) or 1 (code) | none; clipped to ±B: 2BC / scale |

Noise is for *publishing tags of private images*: neighbours are any two images that might have been
asked about, and each further answer about the same image costs as much again. Where training is
private and the asked images are not secret, noise on answers buys nothing.
"""  # noqa: E501

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks
from blindsight.privacy.guarantee import Cost
from blindsight.privacy.mechanisms import (
    DiscreteGaussian,
    DiscreteLaplace,
    KaryResponse,
    Laplace,
    NoisyTopK,
)
from blindsight.tagging.answer_codebook import AnswerCodebook
from blindsight.tagging.labels import sigmoid

__all__ = [
    "AnswerNoise",
    "Answers",
    "CodebookAnswers",
    "Exact",
    "GaussianAnswers",
    "LaplaceAnswers",
    "PaperLaplace",
    "TopTags",
]

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Answers:
    """What was released for each image: `tags` (n, C) of True and False, and `scores` (n, C) that
    rank them.
    """

    tags: NDArray[np.bool_]
    scores: Matrix


@dataclass(frozen=True)
class Exact:
    """The model's own scores: for models whose training was private, or whose owner alone asks.

    A label is a tag where its probability is above `threshold`. F1 is highest at half of its own
    value, and so far below one half; 0.2 was best on a third of the COCO subset's training images.
    """

    threshold: float = 0.2

    def __post_init__(self) -> None:
        checks.positive(
            "threshold", checks.probability("threshold", self.threshold, below_one=True)
        )

    def read(self, released: ArrayLike) -> Answers:
        """Tags where the probability is above the threshold."""
        logits = np.asarray(released, np.float64)
        return Answers(sigmoid(logits) > self.threshold, logits)

    def probabilities(self, scores: Matrix) -> Matrix:
        """Scores as probabilities."""
        return sigmoid(scores)


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

    def value(self, logits: Matrix) -> NDArray[Any]:
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

    def probabilities(self, scores: Matrix) -> Matrix:
        """The words' values are probabilities already."""
        return scores


@dataclass(frozen=True)
class _Clipped:
    """Logits clipped to ±`bound` before noise."""

    epsilon: float = 10.0
    bound: float = 5.0

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.positive("bound", self.bound)

    def value(self, logits: Matrix) -> NDArray[Any]:
        """The clipped logits."""
        return np.clip(logits, -self.bound, self.bound)

    def read(self, released: ArrayLike) -> Answers:
        """A label is a tag where its noisy logit is above 0."""
        noisy = np.asarray(released, np.float64)
        return Answers(noisy > 0, noisy)

    def probabilities(self, scores: Matrix) -> Matrix:
        """Noisy scores as probabilities."""
        return sigmoid(scores)


@dataclass(frozen=True)
class LaplaceAnswers(_Clipped):
    """The proven form of P2-ML-GCN: discrete Laplace noise for the whole vector of clipped
    logits.
    """

    def noise(self, n_labels: int) -> DiscreteLaplace:
        """The exact sampler for l1 sensitivity 2 B C."""
        return DiscreteLaplace.calibrate(
            self.epsilon,
            sensitivity=2 * self.bound * n_labels,
            grid=2.0**-8,
            dimensions=n_labels,
            unit="query",
        )


@dataclass(frozen=True)
class GaussianAnswers(_Clipped):
    """Discrete Gaussian noise for the whole vector of clipped logits."""

    delta: float = 1e-6

    def noise(self, n_labels: int) -> DiscreteGaussian:
        """The exact sampler for l2 sensitivity 2 B sqrt(C)."""
        return DiscreteGaussian.calibrate(
            self.epsilon,
            delta=self.delta,
            sensitivity=2 * self.bound * math.sqrt(n_labels),
            dimensions=n_labels,
            unit="query",
        )


@dataclass(frozen=True)
class TopTags(_Clipped):
    """The names of the `k` most likely tags; no scores leave."""

    k: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole("k", self.k)

    def noise(self, n_labels: int) -> NoisyTopK:
        """Any logit may move by 2 B between two images."""
        return NoisyTopK(
            epsilon=self.epsilon, k=min(self.k, n_labels), sensitivity=2 * self.bound, unit="query"
        )

    def read(self, released: ArrayLike, n_labels: int = 0) -> Answers:
        """The named tags; their scores fall with the place, all others have none."""
        named = np.asarray(released)
        scores = np.zeros((len(named), n_labels or int(named.max(initial=0)) + 1))
        np.put_along_axis(
            scores, named, 1.0 - np.arange(named.shape[1])[None, :] / (2.0 * named.shape[1]), axis=1
        )
        return Answers(scores > 0, scores)

    def probabilities(self, scores: Matrix) -> Matrix:
        """1 to a half for named tags, 0 for all others."""
        return scores


AnswerNoise: TypeAlias = CodebookAnswers | LaplaceAnswers | GaussianAnswers | TopTags


@dataclass(frozen=True, kw_only=True)
class PaperLaplace:
    """Equation 6 to the letter: Lap(0, S_b S / ε) on every raw logit.

    `sensitivity` is "C" (the text: the number of labels) or "1" (the authors' published code). The
    paper claims ε, and ε / S_b with a bound factor S_b < 1 (Section 4.3). Raw logits have no bound,
    so nothing is proven; with `clip` the vector's l1 sensitivity is 2 B C and a number follows.
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
        """S_b S / ε."""
        return self.bound_factor * self._stated / self.epsilon

    @property
    def _stated(self) -> float:
        return float(self.n_labels) if self.sensitivity == "C" else 1.0

    @property
    def claimed(self) -> float:
        """The paper's epsilon ("relaxed" where S_b is below 1)."""
        return self.epsilon / self.bound_factor

    @property
    def noise(self) -> Laplace:
        """As a mechanism: for logits within ±clip; or with the sensitivity S that the paper states,
        which is none.
        """
        reach = self._stated if self.clip is None else 2 * self.clip * self.n_labels
        return Laplace(scale=self.scale, sensitivity=reach, unit="query")

    @property
    def training_noise(self) -> Laplace:
        """The same noise on the outputs that training sees (Equation 8), for whom it protects
        nothing.
        """
        return replace(self.noise, unit="record", neighbours="add or remove one")

    @property
    def cost(self) -> Cost:
        """What is proven: nothing, unless the logits are clipped."""
        if self.clip is None:
            return Cost(epsilon=math.inf, unit="query")
        return self.noise.cost

    def value(self, logits: ArrayLike) -> Matrix:
        """The logits, clipped where there is a bound."""
        values = checks.finite_array("logits", logits, ndim=2)
        return values if self.clip is None else np.clip(values, -self.clip, self.clip)

    def read(self, released: ArrayLike) -> Answers:
        """A label is a tag where its noisy logit is above 0."""
        noisy = np.asarray(released, np.float64)
        return Answers(noisy > 0, noisy)

    def answer(self, logits: ArrayLike, *, rng: np.random.Generator) -> Answers:
        """Noisy logits, drawn outside the door: for trials."""
        return self.read(self.noise.release(self.value(logits), rng=rng))
