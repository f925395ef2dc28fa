"""Answers as one of k words: a codebook of graded scores, chosen from what is already public.

With C labels and noise on each, a budget of epsilon is torn into C pieces. A codebook asks one
question instead: which of k typical answers is nearest? k-ary response then tells the truth with
probability e^ε/(e^ε + k - 1).

Words also say how sure the model is, which is what mean average precision rewards: they are the
centres of answers that are simulated from their released spread, or given to public images
(`answer_spread`). Words, their number and their values come from released numbers only, so the
codebook costs nothing more, and is public.

How many words a budget pays for is the rule that all codebooks share (`codebooks.number_of_cells`).
Where it pays for many thousands (from ε = 14 or so) a word has stages: a centre, the centre of what
is left, and so on. That is the name of a cell, not several questions: one k-ary response over all
combinations has the whole budget, which is never split.

What a word stands for is the posterior mean of the labels given that it was released, lies
included: under a small budget the answer falls back to the labels' rates instead of repeating a
lie.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.codebooks.codebook import number_of_cells
from blindsight.codebooks.reading import own_share
from blindsight.core import checks
from blindsight.core.errors import InvalidData
from blindsight.privacy.mechanisms import KaryResponse
from blindsight.tagging.answer_spread import AnswerSpread, PublicAnswers
from blindsight.tagging.descent import sigmoid

__all__ = ["Codebook", "Posterior", "choose_codebook"]

Matrix = NDArray[np.float64]
Cells = NDArray[np.int64]
_SIMULATED = 8_000
# Words of one stage at most, of a further one at least, and how many stages: simulated answers fill
# no more.
_STAGE, _LEAST, _STAGES = 512, 16, 3


@dataclass(frozen=True)
class Posterior:
    """What is known of answers before a word is released: the share of each word, and the usual
    answer.
    """

    shares: Matrix
    usual: Matrix

    def __post_init__(self) -> None:
        for name in ("shares", "usual"):
            object.__setattr__(self, name, checks.finite_array(name, getattr(self, name), ndim=1))
        if self.shares.min() < 0:
            raise InvalidData("shares of words must not be negative.")


@dataclass(frozen=True)
class Codebook:
    """Words over C labels: probabilities in [0, 1], one row per word. Public.

    Parameters:
        words: rows of the first stage, and below them those of further stages, which are added to
        it. weights: how much each label counts when the nearest word is sought. threshold: a label
        is named as a tag where its score is above it. sizes: how many words each stage has; none
        given: one stage. posterior: what scores fall back to where a word may be a lie; None takes
        words as they are.
    """

    words: Matrix
    weights: Matrix
    threshold: float = 0.5
    sizes: tuple[int, ...] = ()
    posterior: Posterior | None = None

    def __post_init__(self) -> None:
        words = checks.finite_array("words", self.words, ndim=2)
        sizes = tuple(
            checks.whole("sizes", size, least=2) for size in (self.sizes or (len(words),))
        )
        if sum(sizes) != len(words) or math.prod(sizes) >= 1 << 62:
            raise InvalidData(
                "a codebook's stages must hold all of its words, and no more than 2^62 "
                "combinations."
            )
        first = words[: sizes[0]]
        if first.min() < 0 or first.max() > 1:
            raise InvalidData("a codebook must hold at least two words with values in [0, 1].")
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "weights", checks.finite_array("weights", self.weights, ndim=1))
        checks.probability("threshold", self.threshold)
        if len(self.weights) != words.shape[1]:
            raise InvalidData("a codebook needs one weight per label.")
        known = self.posterior
        if known is not None and (known.shares.shape, known.usual.shape) != (
            (len(words),),
            self.weights.shape,
        ):
            raise InvalidData("a codebook needs one share per word and one usual score per label.")

    def __len__(self) -> int:
        return math.prod(self.sizes)

    def to_fields(self) -> dict[str, Any]:
        """Arrays and plain values for a file."""
        fields = {
            "words": self.words,
            "word_weights": self.weights,
            "threshold": float(self.threshold),
            "sizes": list(self.sizes),
        }
        known = self.posterior
        return (
            fields
            if known is None
            else fields | {"word_shares": known.shares, "usual": known.usual}
        )

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Codebook:
        """The inverse of `to_fields`."""
        known = (
            Posterior(fields["word_shares"], fields["usual"]) if "word_shares" in fields else None
        )
        threshold, sizes = float(fields["threshold"]), tuple(fields["sizes"])
        return cls(fields["words"], fields["word_weights"], threshold, sizes, known)

    @property
    def stages(self) -> list[slice]:
        """Where each stage's words are."""
        ends = np.cumsum(self.sizes).tolist()
        return [slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]

    def encode(self, logits: Any) -> Cells:
        """The word nearest to the model's probabilities, for every row."""
        return self.nearest(sigmoid(logits))

    def nearest(self, probabilities: Matrix) -> Cells:
        """The word nearest to each row of probabilities, stage by stage."""
        left, cells = probabilities, np.zeros(len(probabilities), np.int64)
        for stage, size in zip(self.stages, self.sizes, strict=True):
            near = _nearest(left * self.weights, self.words[stage] * self.weights)
            left, cells = left - self.words[stage][near], cells * size + near
        return cells

    def decode(self, cells: Any, epsilon: float) -> Matrix:
        """The answer's scores: what released words stand for, by k-ary response at epsilon."""
        left = np.asarray(cells, np.int64)
        scores, share = np.zeros((len(left), self.words.shape[1])), np.ones(len(left))
        for stage, size in zip(self.stages[::-1], self.sizes[::-1], strict=True):
            left, place = np.divmod(left, size)
            scores += self.words[stage][place]
            if self.posterior is not None:
                share *= self.posterior.shares[stage][place]
        scores = np.clip(scores, 0.0, 1.0)
        if self.posterior is None:
            return scores
        truth = KaryResponse(epsilon=epsilon, k=len(self), unit="query").truth_probability
        own = own_share(share, truth=truth, k=len(self))[:, None]
        return own * scores + (1 - own) * self.posterior.usual


def choose_codebook(
    spread: AnswerSpread | PublicAnswers,
    *,
    epsilon: float,
    size: int | None = None,
    rng: np.random.Generator,
) -> Codebook:
    """The codebook for a budget; `size=None` takes as many words as the budget pays for.

    `rng` draws simulated answers of public numbers: it protects nobody, and may be fixed.
    """
    answers = sigmoid(spread.sample(_SIMULATED, rng=rng))
    # Every label has its own average precision: count deviations in the label's own units.
    weights = 1.0 / (answers.std(axis=0) + 0.01)
    wanted = number_of_cells(epsilon) if size is None else checks.whole("size", size, least=2)
    left, stages, shares, sizes = answers, list[Matrix](), list[Matrix](), list[int]()
    while not sizes or (wanted >= _LEAST and len(sizes) < _STAGES):
        centres = _centres(left * weights, min(wanted, _STAGE), rng) / weights
        centres = centres if stages else np.clip(centres, 0.0, 1.0)
        near = _nearest(left * weights, centres * weights)
        stages.append(centres)
        shares.append(np.bincount(near, minlength=len(centres)) / len(near))
        sizes.append(len(centres))
        left, wanted = left - centres[near], wanted // len(centres)
    posterior = Posterior(np.concatenate(shares), answers.mean(axis=0))
    book = Codebook(np.vstack(stages), weights, sizes=tuple(sizes), posterior=posterior)
    return replace(book, threshold=_threshold(book, answers, epsilon, rng))


def _threshold(book: Codebook, answers: Matrix, epsilon: float, rng: np.random.Generator) -> float:
    """Where F1 is highest, on simulated answers and simulated releases of them."""
    noise = KaryResponse(epsilon=epsilon, k=len(book), unit="query")
    scores = book.decode(noise.release(book.nearest(answers), rng=rng), epsilon)

    def f1(threshold: float) -> float:
        named = scores > threshold
        return 2 * float((named * answers).sum()) / float(named.sum() + answers.sum())

    return float(max(np.linspace(0.6, 0.01, 60).tolist(), key=f1))


def _nearest(rows: Matrix, words: Matrix) -> Cells:
    distance = (words**2).sum(axis=1)[None, :] - 2.0 * rows @ words.T
    return np.asarray(distance.argmin(axis=1), np.int64)


def _centres(rows: Matrix, size: int, rng: np.random.Generator) -> Matrix:
    """Centres of the rows (k-means); fewer where there are not that many different rows."""
    from sklearn.cluster import MiniBatchKMeans

    size = max(2, min(size, len(np.unique(rows[:4096], axis=0))))
    seed = int(rng.integers(0, 2**31 - 1))
    centres = MiniBatchKMeans(size, random_state=seed, n_init=1, batch_size=1024, max_iter=20)
    return np.asarray(centres.fit(rows).cluster_centers_, np.float64)
