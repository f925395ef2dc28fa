"""Private answers: what leaves for one queried image, and what it costs per query.

| release | noise | epsilon per query |
|---|---|---|
| `PaperLaplace` | Lap(S_b S / ε) on raw logits, S = C (text) or 1 (code) | none; clipped to ±B: 2 B C / scale |
| `LaplaceScores` | logits clipped to ±B, discrete Laplace for l1 sensitivity 2 B C | ε, exact sampler |
| `GaussianScores` | logits clipped to ±B, discrete Gaussian for l2 sensitivity 2 B sqrt(C) | (ε, δ), exact sampler |
| `TopTags` | noisy top-k over logits clipped to ±B; tags only | ε |
| `CodebookAnswer` | nearest word of a public codebook, k-ary response | ε, exact sampler |

Neighbours are *any two* images that might have been asked about (and, because the bound holds for any two inputs, any
two models too). So an answer tells little about the asked image, and little about a training record; but each further
answer about the same image, or from the same model, costs as much again. That is why every answered query is charged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.evaluation.multilabel import top_k
from blindsight.privacy.clipping import clip_values
from blindsight.privacy.entropy import Rng
from blindsight.privacy.guarantee import Cost
from blindsight.privacy.mechanisms import (
    DiscreteGaussian,
    DiscreteLaplace,
    KaryResponse,
    Laplace,
    NoisyTopK,
)
from blindsight.tagging.codebook import Codebook, Confidence
from blindsight.tagging.label_tree import LabelTree

__all__ = [
    "Answers",
    "CodebookAnswer",
    "GaussianScores",
    "LaplaceScores",
    "PaperLaplace",
    "Release",
    "TopTags",
]

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Answers:
    """What was released for each image: `tags` (n, C) of True and False, and `scores` (n, C) that rank them."""

    tags: NDArray[np.bool_]
    scores: Matrix


class Release(Protocol):
    """One way to answer: frozen, public, with its cost."""

    @property
    def cost(self) -> Cost: ...

    @property
    def claimed(self) -> float | None: ...

    @property
    def sampler(self) -> Literal["exact", "float"]: ...

    @property
    def mechanism(self) -> str: ...

    def answer(self, logits: Any, *, rng: Any) -> Answers: ...


@dataclass(frozen=True, kw_only=True)
class PaperLaplace:
    """Equation 6 to the letter: Lap(0, S_b S / ε) on every raw logit.

    `sensitivity` is "C" (the text: the number of labels) or "1" (the authors' published code). The paper claims ε, and
    ε / S_b with a bound factor S_b < 1 (Section 4.3). Raw logits have no bound, so nothing is proven; with `clip` the
    vector's l1 sensitivity is 2 B C and a number follows.
    """

    epsilon: float
    n_labels: int
    sensitivity: Literal["C", "1"] = "C"
    bound_factor: float = 1.0
    clip: float | None = None
    sampler: Literal["exact", "float"] = "float"

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.one_of("sensitivity", self.sensitivity, ("C", "1"))
        checks.positive("bound_factor", self.bound_factor)

    @property
    def scale(self) -> float:
        """S_b S / ε."""
        size = float(self.n_labels) if self.sensitivity == "C" else 1.0
        return self.bound_factor * size / self.epsilon

    @property
    def claimed(self) -> float:
        """The paper's epsilon ("relaxed" where S_b is below 1)."""
        return self.epsilon / self.bound_factor

    @property
    def cost(self) -> Cost:
        """What is proven: nothing, unless the logits are clipped."""
        if self.clip is None:
            return Cost(epsilon=math.inf, unit="query")
        return Cost(epsilon=2 * self.clip * self.n_labels / self.scale, unit="query")

    @property
    def mechanism(self) -> str:
        """In a few words."""
        return f"Lap({self.scale:.3g}) on {'raw' if self.clip is None else 'clipped'} logits, as printed"

    def answer(self, logits: Any, *, rng: np.random.Generator) -> Answers:
        """Noisy logits; a label is a tag where its noisy logit is above 0."""
        values = checks.finite_array("logits", logits, ndim=2)
        if self.clip is not None:
            values = clip_values(values, -self.clip, self.clip)
        noise = Laplace(scale=self.scale, sensitivity=1.0, unit="query")
        noisy = np.asarray(noise.release(values, rng=rng), np.float64)
        return Answers(noisy > 0, noisy)


@dataclass(frozen=True, kw_only=True)
class LaplaceScores:
    """The proven P2 baseline: logits clipped to ±`bound`, whole-vector discrete Laplace noise.

    With `tree` and `confidence` the noisy scores are turned into posterior log-odds (post-processing by the graph).
    """

    epsilon: float
    n_labels: int
    bound: float = 5.0
    tree: LabelTree | None = None
    confidence: Confidence | None = None
    sampler: Literal["exact", "float"] = "exact"
    claimed: None = None

    @property
    def noise(self) -> DiscreteLaplace:
        """The exact sampler for l1 sensitivity 2 B C."""
        return DiscreteLaplace.calibrate(
            self.epsilon,
            sensitivity=2 * checks.positive("bound", self.bound) * self.n_labels,
            grid=2.0**-8,
            dimensions=self.n_labels,
            unit="query",
        )

    @property
    def cost(self) -> Cost:
        """epsilon, for the whole vector."""
        return self.noise.cost

    @property
    def mechanism(self) -> str:
        """In a few words."""
        return f"discrete Laplace on {self.n_labels} logits clipped to ±{self.bound:g}"

    def answer(self, logits: Any, *, rng: Rng) -> Answers:
        """Noisy clipped logits, or their posterior under the label tree."""
        values = clip_values(checks.finite_array("logits", logits, ndim=2), -self.bound, self.bound)
        noise = self.noise
        noisy = np.asarray(noise.release(values, rng=rng), np.float64)
        scale = float(noise.scale) * noise.grid

        def log_density(x: Matrix) -> Matrix:
            return -np.abs(x) / scale

        return _score(noisy, self, log_density)


@dataclass(frozen=True, kw_only=True)
class GaussianScores:
    """Logits clipped to ±`bound`, whole-vector discrete Gaussian noise for l2 sensitivity 2 B sqrt(C)."""

    epsilon: float
    delta: float
    n_labels: int
    bound: float = 5.0
    tree: LabelTree | None = None
    confidence: Confidence | None = None
    sampler: Literal["exact", "float"] = "exact"
    claimed: None = None

    @property
    def noise(self) -> DiscreteGaussian:
        """The exact sampler."""
        return DiscreteGaussian.calibrate(
            self.epsilon,
            delta=self.delta,
            sensitivity=2 * checks.positive("bound", self.bound) * math.sqrt(self.n_labels),
            dimensions=self.n_labels,
            unit="query",
        )

    @property
    def cost(self) -> Cost:
        """(epsilon, delta), for the whole vector."""
        return self.noise.cost

    @property
    def mechanism(self) -> str:
        """In a few words."""
        return f"discrete Gaussian on {self.n_labels} logits clipped to ±{self.bound:g}"

    def answer(self, logits: Any, *, rng: Rng) -> Answers:
        """Noisy clipped logits, or their posterior under the label tree."""
        values = clip_values(checks.finite_array("logits", logits, ndim=2), -self.bound, self.bound)
        noise = self.noise
        noisy = np.asarray(noise.release(values, rng=rng), np.float64)
        variance = noise.sigma**2

        def log_density(x: Matrix) -> Matrix:
            return -(x**2) / (2 * variance)

        return _score(noisy, self, log_density)


@dataclass(frozen=True, kw_only=True)
class TopTags:
    """The k most likely tags, by noisy top-k over clipped logits; no scores leave.

    Any logit may move by 2 B between two images. With `conditional` the labels that were not named are ranked by how
    often they occur together with the named ones.
    """

    epsilon: float
    k: int = 3
    bound: float = 5.0
    conditional: Matrix | None = None
    sampler: Literal["exact", "float"] = "float"
    claimed: None = None

    @property
    def noise(self) -> NoisyTopK:
        """The selection mechanism."""
        return NoisyTopK(
            epsilon=self.epsilon, k=self.k, sensitivity=2 * checks.positive("bound", self.bound), unit="query"
        )

    @property
    def cost(self) -> Cost:
        """epsilon, for the ordered list."""
        return self.noise.cost

    @property
    def mechanism(self) -> str:
        """In a few words."""
        return f"noisy top-{self.k} of logits clipped to ±{self.bound:g}"

    def answer(self, logits: Any, *, rng: np.random.Generator) -> Answers:
        """The named tags; scores fall with the place, and from the graph for the rest."""
        values = clip_values(checks.finite_array("logits", logits, ndim=2), -self.bound, self.bound)
        named = self.noise.release(values, rng=rng)
        tags = np.zeros(values.shape, bool)
        np.put_along_axis(tags, named, True, axis=1)
        scores = np.zeros(values.shape)
        if self.conditional is not None:
            scores = tags @ self.conditional / self.k
        np.put_along_axis(scores, named, 2.0 - np.arange(self.k)[None, :] / self.k, axis=1)
        return Answers(tags, scores)


@dataclass(frozen=True, kw_only=True)
class CodebookAnswer:
    """The nearest word of a public codebook, by k-ary response: one question instead of C."""

    epsilon: float
    codebook: Codebook
    sampler: Literal["exact", "float"] = "exact"
    claimed: None = None

    @property
    def noise(self) -> KaryResponse:
        """The exact sampler over the words."""
        return KaryResponse(epsilon=self.epsilon, k=len(self.codebook), unit="query")

    @property
    def cost(self) -> Cost:
        """epsilon, for the whole answer."""
        return self.noise.cost

    @property
    def mechanism(self) -> str:
        """In a few words."""
        return f"k-ary response over a codebook of {len(self.codebook)} words"

    def answer(self, logits: Any, *, rng: Rng) -> Answers:
        """The released word's values; a label is a tag where its value is above the codebook's threshold."""
        cells = self.codebook.encode(checks.finite_array("logits", logits, ndim=2))
        scores = self.codebook.decode(self.noise.release(cells, rng=rng))
        return Answers(scores > self.codebook.threshold, scores)


def _score(noisy: Matrix, release: LaplaceScores | GaussianScores, log_density: Any) -> Answers:
    if release.tree is None or release.confidence is None:
        return Answers(noisy > 0, noisy)
    on = min(max(release.confidence.on_mean, -release.bound), release.bound)
    off = min(max(release.confidence.off_mean, -release.bound), release.bound)
    posterior = release.tree.posterior(log_density(noisy - on) - log_density(noisy - off))
    # Under heavy noise no posterior passes one half: name as many labels as an image has on average.
    usual = max(1, round(float(release.tree.rate.sum())))
    return Answers(top_k(posterior, usual), np.log(posterior + 1e-12) - np.log1p(1e-12 - posterior))
