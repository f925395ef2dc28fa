"""Answers as one of k code words: the words, and the released spread of answers they are fitted to.

With noise on each of C labels, a budget of epsilon is divided into C parts. A codebook needs one
question instead: which of k typical answers is nearest? k-ary response then gives the true word
with probability e^ε/(e^ε + k - 1). Words are graded scores, so they also express how certain the
model is, which mean average precision rewards. The words, their number and their values come from
released or public numbers only, so the codebook itself is public and costs nothing more.

Words are the centres of the answers that the model gives to public images (`PublicAnswers`), or of
simulated answers (`AnswerSpread`). For the simulation each record contributes one row: its logits
minus the log-odds of the released label rates, in public directions, scaled into the unit ball,
with a constant 1 appended. The sum of [a, 1][a, 1]' changes by at most |[a, 1]|² ≤ `SENSITIVITY` in
l2 norm when a record is added or removed, and gets noise once. Directions whose variance is below
the noise are dropped and answers are simulated as a Gaussian; all of that is post-processing.

The number of words for a budget follows the rule of all codebooks (`codebooks.number_of_cells`).
Where it allows many thousands (from about ε = 14), a word has stages: a centre, the centre of the
residual, and so on. The stages name one cell: one k-ary response over all combinations gets the
whole budget, which is never split.

A word decodes to the posterior mean of the labels given that the word was released, noise included.
With a small budget the answer falls back to the label rates instead of repeating a wrong word.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from blindsight.codebooks.codebook import number_of_cells, own_share
from blindsight.core import checks
from blindsight.core.arrays import Floats, Ints
from blindsight.core.errors import InvalidData
from blindsight.privacy.door import clip_norm
from blindsight.privacy.mechanisms import KaryResponse
from blindsight.tagging.labels import log_odds, sigmoid

__all__ = [
    "DIRECTIONS",
    "FEWER_SCENES",
    "SCENES",
    "SENSITIVITY",
    "AnswerCodebook",
    "AnswerSpread",
    "Posterior",
    "PublicAnswers",
    "choose_codebook",
    "main_directions",
    "quota_thresholds",
    "shifted_to",
    "spread_rows",
]

# Logits this far (root mean square over labels) from their rates' log-odds reach the unit ball's
# edge.
_REACH = 1.5
DIRECTIONS = 16
SENSITIVITY = 2.0
#: How many made scenes words are fitted to, and thresholds.
SCENES, FEWER_SCENES = 8_000, 2_000


def main_directions(maps: ArrayLike) -> Floats:
    """The main left directions (C, r) of released or public maps (C, m) that logits are made by."""
    return np.asarray(
        np.linalg.svd(np.asarray(maps, np.float64), full_matrices=False)[0][:, :DIRECTIONS]
    )


def spread_rows(logits: ArrayLike, rates: ArrayLike, directions: Floats) -> Floats:
    """Each record's row, within the unit ball, and the constant beside it."""
    away = (np.asarray(logits, np.float64) - log_odds(rates)) @ directions
    inside = clip_norm(away / (_REACH * math.sqrt(len(directions))), 1.0)
    return np.hstack([inside, np.ones((len(inside), 1))])


def shifted_to(logits: ArrayLike, rates: ArrayLike) -> Floats:
    """Logits (n, C) shifted label by label until their mean probability is the label's rate.

    Public images show other things than private ones; their answers are moved to how often the
    labels occur, as released.
    """
    values, wanted = np.asarray(logits, np.float64), np.asarray(rates, np.float64)
    low, high = np.full(values.shape[1], -_FARTHEST), np.full(values.shape[1], _FARTHEST)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        above = sigmoid(values + middle).mean(axis=0) > wanted
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.asarray(values + (low + high) / 2)


def quota_thresholds(logits: ArrayLike, rates: ArrayLike) -> Floats:
    """For each label the logit above which it is named as a tag, from public answers.

    A label has a quota: it is named at most `_QUOTA` times as often as it occurs by the released
    rates. All labels must also pass one probability: that at which the expected F1 of all tags is
    highest, which is about half of that F1.
    """
    values, wanted = np.asarray(logits, np.float64), np.asarray(rates, np.float64)
    quotas = np.minimum(1.0, _QUOTA * wanted)
    own = [np.quantile(column, 1 - quota) for column, quota in zip(values.T, quotas, strict=True)]
    answers = sigmoid(values)
    return np.maximum(own, log_odds(_best_threshold(answers, answers)))


def _best_threshold(scores: Floats, probabilities: Floats) -> float:
    """The score above which labels with these probabilities have the highest expected F1."""

    def f1(threshold: float) -> float:
        named = scores > threshold
        hits = float((named * probabilities).sum())
        return 2 * hits / float(named.sum() + probabilities.sum())

    return float(max(np.linspace(0.6, 0.01, 60).tolist(), key=f1))


# How often a label is named at most, against its released rate. Chosen on training photos of the
# COCO and VOC2012 subsets (F1 on both above that of a fixed .2).
_QUOTA = 1.25


# Shifts of logits that are tried, and how often the interval is halved.
_FARTHEST, _HALVINGS = 20.0, 30


@dataclass(frozen=True)
class PublicAnswers:
    """Logits (n, C) that a released model gives to public images."""

    logits: Floats

    def sample(self, n: int, *, rng: np.random.Generator) -> Floats:
        """Some of them, one row per image."""
        return self.logits[rng.integers(0, len(self.logits), n)]


@dataclass(frozen=True)
class AnswerSpread:
    """A Gaussian picture of logits: `mean` (C,) and `factor` (r, C), so that factor' factor is
    their covariance.
    """

    mean: Floats
    factor: Floats

    def sample(self, n: int, *, rng: np.random.Generator) -> Floats:
        """Logits that this model might give, one row per image."""
        return self.mean + rng.standard_normal((n, len(self.factor))) @ self.factor

    @classmethod
    def from_moments(
        cls,
        moments: ArrayLike,
        directions: ArrayLike,
        rates: ArrayLike,
        *,
        n_records: int,
        sigma: float,
    ) -> AnswerSpread:
        """The picture behind noisy sums (r + 1, r + 1) of `spread_rows`; `sigma` is the noise of
        one of them.
        """
        axes_of = np.asarray(directions, np.float64)
        noisy = np.asarray(moments, np.float64)
        # The noise of both halves is independent: their mean has less.
        second = (noisy + noisy.T) / (2 * n_records)
        q = axes_of.shape[1]
        mean = np.clip(second[:q, q], -1, 1)
        variance, axes = np.linalg.eigh(second[:q, :q] - np.outer(mean, mean))
        # The noise alone has eigenvalues up to sigma sqrt(2 q) / n; half of it keeps a few doubtful
        # directions.
        noise_level = sigma * math.sqrt(q / 2) / n_records
        selected = (variance > noise_level) | (np.arange(q) == q - 1)
        deviation = np.sqrt(np.clip(variance[selected], 1e-6, 1.0))
        reach = _REACH * math.sqrt(len(axes_of))
        return cls(
            log_odds(rates) + reach * axes_of @ mean,
            reach * (axes[:, selected] * deviation).T @ axes_of.T,
        )


_SIMULATED = 8_000
# Words of one stage at most, of a further one at least, and how many stages: simulated answers fill
# no more.
_STAGE, _LEAST, _STAGES = 512, 16, 3


@dataclass(frozen=True)
class Posterior:
    """What is known of answers before a word is released: the share of each word, and the usual
    answer.
    """

    shares: Floats
    usual: Floats

    def __post_init__(self) -> None:
        for name in ("shares", "usual"):
            object.__setattr__(self, name, checks.finite_array(name, getattr(self, name), ndim=1))
        if self.shares.min() < 0:
            raise InvalidData("shares of words must not be negative.")


@dataclass(frozen=True)
class AnswerCodebook:
    """Words over C labels: probabilities in [0, 1], one row per word. Public.

    Parameters:
        words: rows of the first stage, and below them those of further stages, which are added to
            it.
        weights: how much each label counts when the nearest word is sought.
        threshold: a label is named as a tag where its score is above it.
        sizes: how many words each stage has; none
        given: one stage.
        posterior: what scores fall back to where a word may be a lie; None takes words as they are.
    """

    words: Floats
    weights: Floats
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
        posterior = self.posterior
        if posterior is not None and (posterior.shares.shape, posterior.usual.shape) != (
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
        posterior = self.posterior
        return (
            fields
            if posterior is None
            else fields | {"word_shares": posterior.shares, "usual": posterior.usual}
        )

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> AnswerCodebook:
        posterior = (
            Posterior(fields["word_shares"], fields["usual"]) if "word_shares" in fields else None
        )
        threshold, sizes = float(fields["threshold"]), tuple(fields["sizes"])
        return cls(fields["words"], fields["word_weights"], threshold, sizes, posterior)

    @property
    def stages(self) -> list[slice]:
        """Where each stage's words are."""
        ends = np.cumsum(self.sizes).tolist()
        return [slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]

    def encode(self, logits: ArrayLike) -> Ints:
        """The word nearest to the model's probabilities, for every row."""
        return self.nearest(sigmoid(logits))

    def nearest(self, probabilities: Floats) -> Ints:
        """The word nearest to each row of probabilities, stage by stage."""
        residual, cells = probabilities, np.zeros(len(probabilities), np.int64)
        for stage, size in zip(self.stages, self.sizes, strict=True):
            near = _nearest(residual * self.weights, self.words[stage] * self.weights)
            residual, cells = residual - self.words[stage][near], cells * size + near
        return cells

    def decode(self, cells: Any, epsilon: float) -> Floats:
        """The answer's scores: what released words stand for, by k-ary response at epsilon."""
        remaining = np.asarray(cells, np.int64)
        scores, share = np.zeros((len(remaining), self.words.shape[1])), np.ones(len(remaining))
        for stage, size in zip(self.stages[::-1], self.sizes[::-1], strict=True):
            remaining, word = np.divmod(remaining, size)
            scores += self.words[stage][word]
            if self.posterior is not None:
                share *= self.posterior.shares[stage][word]
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
) -> AnswerCodebook:
    """The codebook for a budget; `size=None` takes as many words as the budget pays for.

    `rng` draws simulated answers of public numbers: it protects nobody, and may be fixed.
    """
    answers = sigmoid(spread.sample(_SIMULATED, rng=rng))
    # Every label has its own average precision: count deviations in the label's own units.
    weights = 1.0 / (answers.std(axis=0) + 0.01)
    wanted = number_of_cells(epsilon) if size is None else checks.whole("size", size, least=2)
    residual, stages, shares, sizes = answers, list[Floats](), list[Floats](), list[int]()
    while not sizes or (wanted >= _LEAST and len(sizes) < _STAGES):
        centres = _centres(residual * weights, min(wanted, _STAGE), rng) / weights
        centres = centres if stages else np.clip(centres, 0.0, 1.0)
        near = _nearest(residual * weights, centres * weights)
        stages.append(centres)
        shares.append(np.bincount(near, minlength=len(centres)) / len(near))
        sizes.append(len(centres))
        residual, wanted = residual - centres[near], wanted // len(centres)
    posterior = Posterior(np.concatenate(shares), answers.mean(axis=0))
    book = AnswerCodebook(np.vstack(stages), weights, sizes=tuple(sizes), posterior=posterior)
    # Where F1 is highest, on simulated answers and simulated releases of them.
    noise = KaryResponse(epsilon=epsilon, k=len(book), unit="query")
    scores = book.decode(noise.release(book.nearest(answers), rng=rng), epsilon)
    return replace(book, threshold=_best_threshold(scores, answers))


def _nearest(rows: Floats, words: Floats) -> Ints:
    distance = (words**2).sum(axis=1)[None, :] - 2.0 * rows @ words.T
    return np.asarray(distance.argmin(axis=1), np.int64)


def _centres(rows: Floats, size: int, rng: np.random.Generator) -> Floats:
    """Centres of the rows (k-means); fewer where there are not that many different rows."""
    from sklearn.cluster import MiniBatchKMeans

    size = max(2, min(size, len(np.unique(rows[:4096], axis=0))))
    seed = int(rng.integers(0, 2**31 - 1))
    centres = MiniBatchKMeans(size, random_state=seed, n_init=1, batch_size=1024, max_iter=20)
    return np.asarray(centres.fit(rows).cluster_centers_, np.float64)
