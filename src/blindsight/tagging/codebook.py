"""Answers as one of k words: a codebook of label sets, or of graded scores, chosen from what is already public.

With C labels and noise on each, a budget of epsilon is torn into C pieces. A codebook asks one question instead: which
of k typical answers is nearest? k-ary response then tells the truth with probability e^ε/(e^ε + k - 1), which at ε = 10
is above 0.95 for k = 1,000.

Two kinds. "sets" are label sets. "graded" words also say how sure the model is, which is what mean average precision
rewards: they are the centres of simulated answers, drawn from the label tree (post-processing of the noisy counts) and
from how logits of present and absent labels are spread (four numbers, released with noise by `ConfidenceRelease`).
Words, their number and their order come from released values only, so the codebook costs nothing more, and is public.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from blindsight import checks
from blindsight.errors import InvalidData
from blindsight.privacy.entropy import Rng
from blindsight.privacy.guarantee import Cost
from blindsight.privacy.mechanisms import DiscreteLaplace
from blindsight.tagging.label_tree import LabelTree

__all__ = ["Codebook", "Confidence", "ConfidenceRelease", "choose_codebook", "sigmoid"]

Matrix = NDArray[np.float64]
_LOGIT = 10.0
_SIMULATED = 8_000


def sigmoid(x: Any) -> Matrix:
    """1 / (1 + e^-x), without overflow."""
    return 1.0 / (1.0 + np.exp(-np.clip(np.asarray(x, np.float64), -500, 500)))


@dataclass(frozen=True)
class Confidence:
    """How logits are spread: mean and deviation where a label is present (on) and where it is not (off)."""

    on_mean: float = 1.0
    on_deviation: float = 3.0
    off_mean: float = -5.0
    off_deviation: float = 2.5

    def simulate(self, labels: NDArray[np.uint8], *, rng: np.random.Generator) -> Matrix:
        """Logits that a model like this might give to images with these labels."""
        noise = rng.standard_normal(labels.shape)
        on = self.on_mean + self.on_deviation * noise
        return np.where(labels > 0, on, self.off_mean + self.off_deviation * noise)


@dataclass(frozen=True, kw_only=True)
class ConfidenceRelease:
    """The four numbers of `Confidence` from training records, with discrete Laplace noise.

    Each record gives five values in [-1, 1] (its mean logit and mean square, on and off, and whether it has labels), so
    one record added or removed moves their sum by at most 5 in l1.
    """

    epsilon: float

    @property
    def mechanism(self) -> DiscreteLaplace:
        """The exact sampler."""
        return DiscreteLaplace.calibrate(
            self.epsilon, sensitivity=5.0, grid=2.0**-10, dimensions=5, unit="record", neighbours="add or remove one"
        )

    @property
    def cost(self) -> Cost:
        """What it spends, per record."""
        return self.mechanism.cost

    def contributions(self, logits: Any, labels: Any) -> Matrix:
        """What each record adds to the sums: five numbers in [-1, 1]."""
        values = np.clip(np.asarray(logits, np.float64), -_LOGIT, _LOGIT) / _LOGIT
        on = np.asarray(labels) > 0
        rows = []
        for mask in (on, ~on):
            count = np.maximum(mask.sum(axis=1), 1)
            rows += [(values * mask).sum(axis=1) / count, (values**2 * mask).sum(axis=1) / count]
        return np.stack([*rows, on.any(axis=1).astype(np.float64)], axis=1)

    def release(self, logits: Any, labels: Any, *, rng: Rng) -> Confidence:
        """The released spread; deviations are kept within sane bounds, which is post-processing."""
        rows = self.contributions(logits, labels)
        on1, on2, off1, off2, with_labels = self.mechanism.release(rows.sum(axis=0), rng=rng)
        numbers = []
        for first, second, count in ((on1, on2, with_labels), (off1, off2, len(rows))):
            mean = float(np.clip(first / max(count, 1.0), -1, 1))
            variance = float(np.clip(second / max(count, 1.0) - mean**2, 0.04, 0.25))
            numbers += [_LOGIT * mean, _LOGIT * math.sqrt(variance)]
        return Confidence(*numbers)


@dataclass(frozen=True)
class Codebook:
    """k words over C labels: probabilities in [0, 1], one row a word. Public.

    `weights` say how much each label counts when the nearest word is sought; a label is named as a tag where the
    released word's value is above `threshold`.
    """

    words: Matrix
    weights: Matrix
    threshold: float = 0.5

    def __post_init__(self) -> None:
        words = checks.finite_array("words", self.words, ndim=2)
        if len(words) < 2 or words.min() < 0 or words.max() > 1:
            raise InvalidData("a codebook must hold at least two words with values in [0, 1].")
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "weights", checks.finite_array("weights", self.weights, ndim=1))
        checks.probability("threshold", self.threshold)
        if len(self.weights) != words.shape[1]:
            raise InvalidData("a codebook needs one weight a label.")

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, logits: Any) -> NDArray[np.int64]:
        """The word nearest to the model's probabilities, for every row."""
        return self.nearest(sigmoid(logits))

    def nearest(self, probabilities: Matrix) -> NDArray[np.int64]:
        """The word nearest to each row of probabilities."""
        p, words = probabilities * self.weights, self.words * self.weights
        distance = (words**2).sum(axis=1)[None, :] - 2.0 * p @ words.T
        return distance.argmin(axis=1).astype(np.int64)

    def decode(self, cells: Any) -> Matrix:
        """The words' values: the answer's scores."""
        return self.words[np.asarray(cells)]


def choose_codebook(
    tree: LabelTree,
    confidence: Confidence,
    *,
    epsilon: float,
    kind: Literal["graded", "sets"] = "graded",
    size: int | None = None,
    rng: np.random.Generator,
) -> Codebook:
    """The codebook for a budget; `size=None` minimises the simulated error, lies included."""
    checks.one_of("kind", kind, ("graded", "sets"))
    drawn = tree.sample(_SIMULATED, rng=rng)
    answers = sigmoid(confidence.simulate(drawn, rng=rng))
    # Rare labels count more than their share of the squared error: every label has its own average precision.
    weights = (tree.rate + 0.01) ** -0.125 if kind == "graded" else np.ones(len(tree.rate))
    if size is None:
        book = _best_size(drawn, answers, weights, epsilon, kind, rng)
    else:
        book = _words(drawn, answers, weights, checks.whole("size", size, least=2), kind, rng)
    return _with_threshold(book, drawn, answers, epsilon, rng) if kind == "graded" else book


def _best_size(
    drawn: NDArray[np.uint8], answers: Matrix, weights: Matrix, epsilon: float, kind: str, rng: np.random.Generator
) -> Codebook:
    # The best size lies well below e^ε, where lies begin to outweigh finer words; search upwards from there.
    first = min(9, max(1, math.floor(epsilon / math.log(2)) - 7))
    best = _words(drawn, answers, weights, 2**first, kind, rng)
    for power in range(first + 1, 13):
        book = _words(drawn, answers, weights, 2**power, kind, rng)
        if _expected_error(book, answers, epsilon) >= _expected_error(best, answers, epsilon):
            break
        best = book
    return best


def _with_threshold(
    book: Codebook, drawn: NDArray[np.uint8], answers: Matrix, epsilon: float, rng: np.random.Generator
) -> Codebook:
    """The threshold with the best simulated F1: under many lies, and for rare labels, one half names too little."""
    truth = 1 / (1 + (len(book) - 1) * math.exp(-epsilon))
    cells = book.nearest(answers)
    cells = np.where(rng.random(len(cells)) < truth, cells, rng.integers(0, len(book), len(cells)))
    values = book.decode(cells)

    def f1(threshold: float) -> float:
        named = values > threshold
        return 2 * float((named & (drawn > 0)).sum()) / max(1.0, float(named.sum() + drawn.sum()))

    return replace(book, threshold=max(np.linspace(0.5, 0.02, 25).tolist(), key=f1))


def _words(
    drawn: NDArray[np.uint8], answers: Matrix, weights: Matrix, size: int, kind: str, rng: np.random.Generator
) -> Codebook:
    if kind == "sets":
        sets, counts = np.unique(drawn, axis=0, return_counts=True)
        words = sets[np.argsort(-counts, kind="stable")][:size].astype(np.float64)
        if len(words) < 2:
            words = np.stack([np.zeros(drawn.shape[1]), np.ones(drawn.shape[1])])
        return Codebook(words, weights)
    from sklearn.cluster import MiniBatchKMeans

    size = min(size, len(np.unique(answers[:4096], axis=0)))
    seed = int(rng.integers(0, 2**31 - 1))
    centres = MiniBatchKMeans(size, random_state=seed, n_init=1, batch_size=1024, max_iter=10)
    centres.fit(answers * weights)
    return Codebook(np.clip(centres.cluster_centers_ / weights, 0.0, 1.0), weights)


def _expected_error(book: Codebook, answers: Matrix, epsilon: float) -> float:
    """Mean squared distance to the released word: the nearest, or with a lie's probability any other."""
    p, words = answers * book.weights, book.words * book.weights
    squares = (p**2).sum(axis=1)
    distance = squares[:, None] - 2.0 * p @ words.T + (words**2).sum(axis=1)[None, :]
    truth = 1 / (1 + (len(words) - 1) * math.exp(-epsilon))
    return float(truth * distance.min(axis=1).mean() + (1 - truth) * distance.mean())
