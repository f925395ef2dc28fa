"""Answers as one of k words: a codebook of label sets, or of graded scores, chosen from what is already public.

With C labels and noise on each, a budget of epsilon is torn into C pieces. A codebook asks one question instead: which
of k typical answers is nearest? k-ary response then tells the truth with probability e^ε/(e^ε + k - 1), which at ε = 10
is above 0.95 for k = 1,000.

Two kinds. "sets" are label sets drawn from the label tree. "graded" words also say how sure the model is, which is what
mean average precision rewards: they are the centres of simulated answers, drawn from their released spread
(`SpreadRelease`). Words, their number and their values come from released numbers only, so the codebook costs nothing
more, and is public.

What a word stands for is the posterior mean of the labels given that it was released, lies included: under a small
budget the answer falls back to the labels' rates instead of repeating a lie. The number of words is the one with which
that posterior explains most of the answers' variance: a handful at ε = 1, hundreds at ε = 10.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData
from blindsight.privacy.entropy import Rng
from blindsight.privacy.guarantee import Cost
from blindsight.privacy.mechanisms import DiscreteLaplace
from blindsight.tagging.answer_spread import AnswerSpread
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

    `weights` say how much each label counts when the nearest word is sought. `values` (k, C) are the scores that a
    released word stands for (None: the word itself); a label is named as a tag where its value is above `threshold`.
    """

    words: Matrix
    weights: Matrix
    threshold: float = 0.5
    values: Matrix | None = None

    def __post_init__(self) -> None:
        words = checks.finite_array("words", self.words, ndim=2)
        if len(words) < 2 or words.min() < 0 or words.max() > 1:
            raise InvalidData("a codebook must hold at least two words with values in [0, 1].")
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "weights", checks.finite_array("weights", self.weights, ndim=1))
        checks.probability("threshold", self.threshold)
        if len(self.weights) != words.shape[1]:
            raise InvalidData("a codebook needs one weight a label.")
        if self.values is not None:
            object.__setattr__(self, "values", checks.finite_array("values", self.values, ndim=2))
            if self.values.shape != words.shape:
                raise InvalidData("a codebook needs one value a word and label.")

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
        return (self.words if self.values is None else self.values)[np.asarray(cells)]


def choose_codebook(
    source: AnswerSpread | LabelTree,
    *,
    epsilon: float,
    size: int | None = None,
    rng: np.random.Generator,
) -> Codebook:
    """The codebook for a budget: graded words from a spread, label sets from a tree.

    `size=None` takes the number of words that explains most of the answers, lies included.
    """
    if isinstance(source, LabelTree):
        answers = source.sample(_SIMULATED, rng=rng).astype(np.float64)
        weights = np.ones(answers.shape[1])
        make = _sets
    else:
        answers = sigmoid(source.sample(_SIMULATED, rng=rng))
        # Every label has its own average precision: count deviations in the label's own units.
        weights = 1.0 / (answers.std(axis=0) + 0.01)
        make = _centres
    if size is not None:
        return _decoded(make(answers, weights, checks.whole("size", size, least=2), rng), answers, epsilon)[0]
    best, most, worse = None, -math.inf, 0
    for count in _sizes(epsilon):
        book, explained = _decoded(make(answers, weights, count, rng), answers, epsilon)
        if explained > most:
            best, most, worse = book, explained, 0
        else:
            worse += 1
        if worse == 2 or len(book) < count:
            break
    assert best is not None  # noqa: S101  (the first size always explains more than nothing)
    return best


def _sizes(epsilon: float) -> list[int]:
    # The best size lies well below e^ε, where lies outweigh finer words, and not far below e^(ε/2).
    least, most = min(128.0, math.exp(epsilon / 2) / 2), 8 * math.exp(min(epsilon, 10.0))
    steps = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512)
    return [count for count in steps if least <= count <= most]


def _decoded(book: Codebook, answers: Matrix, epsilon: float) -> tuple[Codebook, float]:
    """The book with posterior values and the best threshold, and the variance its releases explain."""
    k, cells = len(book), book.nearest(answers)
    share = np.bincount(cells, minlength=k) / len(cells)
    there = np.zeros_like(book.words)
    np.add.at(there, cells, answers / len(cells))  # P(cell) E[labels | cell]
    truth = 1 / (1 + (k - 1) * math.exp(-epsilon))
    lie = truth * math.exp(-epsilon)
    usual = answers.mean(axis=0)
    released = ((truth - lie) * share + lie)[:, None]
    values = np.clip(((truth - lie) * there + lie * usual) / released, 0.0, 1.0)
    explained = float((released * ((values - usual) * book.weights) ** 2).sum())

    def f1(threshold: float) -> float:
        named = released * (values > threshold)
        return 2 * float((named * values).sum()) / float(named.sum() + usual.sum())

    threshold = max(np.linspace(0.6, 0.01, 60).tolist(), key=f1)
    return replace(book, values=values, threshold=threshold), explained


def _sets(answers: Matrix, weights: Matrix, size: int, rng: np.random.Generator) -> Codebook:
    """The most frequent label sets."""
    # Packed bits: sorting hundreds of floating-point columns takes seconds.
    sets, counts = np.unique(np.packbits(answers > 0, axis=1), axis=0, return_counts=True)
    common = sets[np.argsort(-counts, kind="stable")][:size]
    words = np.unpackbits(common, axis=1, count=answers.shape[1]).astype(np.float64)
    if len(words) < 2:
        words = np.stack([np.zeros(answers.shape[1]), np.ones(answers.shape[1])])
    return Codebook(words, weights)


def _centres(answers: Matrix, weights: Matrix, size: int, rng: np.random.Generator) -> Codebook:
    """Centres of the answers (k-means)."""
    from sklearn.cluster import MiniBatchKMeans

    size = min(size, len(np.unique(answers[:4096], axis=0)))
    seed = int(rng.integers(0, 2**31 - 1))
    centres = MiniBatchKMeans(size, random_state=seed, n_init=1, batch_size=1024, max_iter=20)
    centres.fit(answers * weights)
    return Codebook(np.clip(centres.cluster_centers_ / weights, 0.0, 1.0), weights)
