"""Answers as one of k words: a codebook of graded scores, chosen from what is already public.

With C labels and noise on each, a budget of epsilon is torn into C pieces. A codebook asks one question instead: which
of k typical answers is nearest? k-ary response then tells the truth with probability e^ε/(e^ε + k - 1), which at ε = 10
is above 0.95 for k = 1,000.

Words also say how sure the model is, which is what mean average precision rewards: they are the centres of answers
that are simulated from their released spread, or given to public images (`answer_spread`). Words, their number and
their values come from released numbers only, so the codebook costs nothing more, and is public.

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
from blindsight.tagging.answer_spread import AnswerSpread, PublicAnswers
from blindsight.tagging.descent import sigmoid

__all__ = ["Codebook", "choose_codebook"]

Matrix = NDArray[np.float64]
_SIMULATED = 8_000


@dataclass(frozen=True)
class Codebook:
    """k words over C labels: probabilities in [0, 1], one row per word. Public.

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
            raise InvalidData("a codebook needs one weight per label.")
        if self.values is not None:
            object.__setattr__(self, "values", checks.finite_array("values", self.values, ndim=2))
            if self.values.shape != words.shape:
                raise InvalidData("a codebook needs one value per word and label.")

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
    spread: AnswerSpread | PublicAnswers, *, epsilon: float, size: int | None = None, rng: np.random.Generator
) -> Codebook:
    """The codebook for a budget; `size=None` takes as many words as explain most of the answers, lies included.

    `rng` draws simulated answers of public numbers: it protects nobody, and may be fixed.
    """
    answers = sigmoid(spread.sample(_SIMULATED, rng=rng))
    # Every label has its own average precision: count deviations in the label's own units.
    weights = 1.0 / (answers.std(axis=0) + 0.01)
    if size is not None:
        return _decoded(_centres(answers, weights, checks.whole("size", size, least=2), rng), answers, epsilon)[0]
    best, most, worse = None, -math.inf, 0
    for count in _sizes(epsilon):
        book, explained = _decoded(_centres(answers, weights, count, rng), answers, epsilon)
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


def _centres(answers: Matrix, weights: Matrix, size: int, rng: np.random.Generator) -> Codebook:
    """Centres of the answers (k-means)."""
    from sklearn.cluster import MiniBatchKMeans

    size = min(size, len(np.unique(answers[:4096], axis=0)))
    seed = int(rng.integers(0, 2**31 - 1))
    centres = MiniBatchKMeans(size, random_state=seed, n_init=1, batch_size=1024, max_iter=20)
    centres.fit(answers * weights)
    return Codebook(np.clip(centres.cluster_centers_ / weights, 0.0, 1.0), weights)
