"""Codebooks of answers: an answer is released as one of k code words.

With noise on each of C labels, epsilon is divided into C parts. A codebook needs only one release:
which of k typical answers is nearest. k-ary response then releases the true word with probability
e^ε/(e^ε + k - 1). Words are graded scores, so they also express how certain the model is, which
mean average precision rewards. The words, their number and their values come from released or
public numbers only, so the codebook itself is public and costs nothing more.

Words are the centres of the answers that the model gives to public images (`PublicAnswers`), or of
simulated answers (`AnswerSpread`). For the simulation each record contributes one row: its logits
minus the log-odds of the released label rates, in public directions, scaled to norm at most 1,
with a constant 1 appended. The sum of [a, 1][a, 1]' changes by at most |[a, 1]|² ≤ `SENSITIVITY` in
l2 norm when a record is added or removed, and gets noise once. Directions whose variance is below
the noise are dropped and answers are simulated as a Gaussian; all of that is post-processing.

The number of words for a budget follows the rule of all codebooks (`codebooks.number_of_cells`).
If it allows many thousands (from about ε = 14), a word has stages: a centre, the centre of the
residual, and so on. The stages together are one cell: one k-ary response over all combinations
spends the whole epsilon, which is not divided among the stages.

A released word decodes to the posterior mean of the labels, which takes the noise into account.
With a small epsilon the answer is close to the label rates rather than to a word that may be wrong.
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

# Logits whose root mean square distance from the log-odds of the rates is this large are scaled to
# norm 1.
_REACH = 1.5
DIRECTIONS = 16
SENSITIVITY = 2.0
#: Numbers of simulated scenes to which words and thresholds are fitted.
SCENES, FEWER_SCENES = 8_000, 2_000


def main_directions(maps: ArrayLike) -> Floats:
    """The main left singular vectors (C, r) of the released or public maps (C, m) to logits."""
    return np.asarray(
        np.linalg.svd(np.asarray(maps, np.float64), full_matrices=False)[0][:, :DIRECTIONS]
    )


def spread_rows(logits: ArrayLike, rates: ArrayLike, directions: Floats) -> Floats:
    """The row of each record, with norm at most 1, and the appended constant."""
    away = (np.asarray(logits, np.float64) - log_odds(rates)) @ directions
    inside = clip_norm(away / (_REACH * math.sqrt(len(directions))), 1.0)
    return np.hstack([inside, np.ones((len(inside), 1))])


def shifted_to(logits: ArrayLike, rates: ArrayLike) -> Floats:
    """Shift the logits (n, C) of each label so that their mean probability is the label's rate.

    Labels have other frequencies in public images than in private ones; the shift adapts the
    answers to the released rates.
    """
    values, wanted = np.asarray(logits, np.float64), np.asarray(rates, np.float64)
    low, high = np.full(values.shape[1], -_FARTHEST), np.full(values.shape[1], _FARTHEST)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        above = sigmoid(values + middle).mean(axis=0) > wanted
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.asarray(values + (low + high) / 2)


def quota_thresholds(logits: ArrayLike, rates: ArrayLike) -> Floats:
    """Return for each label the logit above which it is a tag, from public answers.

    A label has a quota: it is a tag at most `_QUOTA` times as often as it occurs by the released
    rates. All labels also have one common threshold on the probability, at which the expected F1
    of all tags is highest; it is about half of that F1.
    """
    values, wanted = np.asarray(logits, np.float64), np.asarray(rates, np.float64)
    quotas = np.minimum(1.0, _QUOTA * wanted)
    own = [np.quantile(column, 1 - quota) for column, quota in zip(values.T, quotas, strict=True)]
    answers = sigmoid(values)
    return np.maximum(own, log_odds(_best_threshold(answers, answers)))


def _best_threshold(scores: Floats, probabilities: Floats) -> float:
    """Return the threshold on the scores with the highest expected F1 for these probabilities."""

    def f1(threshold: float) -> float:
        named = scores > threshold
        hits = float((named * probabilities).sum())
        return 2 * hits / float(named.sum() + probabilities.sum())

    return float(max(np.linspace(0.6, 0.01, 60).tolist(), key=f1))


# The largest frequency of a tag as a multiple of the label's released rate. Chosen on training
# photos of the COCO and VOC2012 subsets (F1 on both above that of a fixed threshold of .2).
_QUOTA = 1.25


# The largest shift of logits, and the number of steps of the bisection.
_FARTHEST, _HALVINGS = 20.0, 30


@dataclass(frozen=True)
class PublicAnswers:
    """Logits (n, C) of a released model for public images."""

    logits: Floats

    def sample(self, n: int, *, rng: np.random.Generator) -> Floats:
        """Return n of the rows, one per image."""
        return self.logits[rng.integers(0, len(self.logits), n)]


@dataclass(frozen=True)
class AnswerSpread:
    """A Gaussian model of logits with mean (C,) and covariance factor' factor, `factor` (r, C)."""

    mean: Floats
    factor: Floats

    def sample(self, n: int, *, rng: np.random.Generator) -> Floats:
        """Draw n rows of simulated logits, one per image."""
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
        """Estimate the model from noisy sums (r + 1, r + 1) of the outer products of `spread_rows`.

        `sigma` is the standard deviation of the noise on each entry.
        """
        axes_of = np.asarray(directions, np.float64)
        noisy = np.asarray(moments, np.float64)
        # The noise of both triangles is independent, so their mean has less noise.
        second = (noisy + noisy.T) / (2 * n_records)
        q = axes_of.shape[1]
        mean = np.clip(second[:q, q], -1, 1)
        variance, axes = np.linalg.eigh(second[:q, :q] - np.outer(mean, mean))
        # Pure noise has eigenvalues up to sigma sqrt(2 q) / n. Half of that is the limit, so that a
        # few uncertain directions are used too.
        noise_level = sigma * math.sqrt(q / 2) / n_records
        selected = (variance > noise_level) | (np.arange(q) == q - 1)
        deviation = np.sqrt(np.clip(variance[selected], 1e-6, 1.0))
        reach = _REACH * math.sqrt(len(axes_of))
        return cls(
            log_odds(rates) + reach * axes_of @ mean,
            reach * (axes[:, selected] * deviation).T @ axes_of.T,
        )


_SIMULATED = 8_000
# The largest number of words of a stage, the smallest number of a further stage, and the largest
# number of stages. Simulated answers do not fill more.
_STAGE, _LEAST, _STAGES = 512, 16, 3


@dataclass(frozen=True)
class Posterior:
    """Prior knowledge about answers: the share of each word, and the mean answer (`usual`)."""

    shares: Floats
    usual: Floats

    def __post_init__(self) -> None:
        for name in ("shares", "usual"):
            object.__setattr__(self, name, checks.finite_array(name, getattr(self, name), ndim=1))
        if self.shares.min() < 0:
            raise InvalidData("shares of words must not be negative.")


@dataclass(frozen=True)
class AnswerCodebook:
    """A public codebook of answers: each word has a probability in [0, 1] for each of C labels.

    Parameters:
        words: the words of the first stage, one per row, followed by those of further stages, which
            are added to it.
        weights: the weight of each label in the distance to a word.
        threshold: a label is a tag if its score is above this.
        sizes: the number of words of each stage; empty for one stage.
        posterior: prior knowledge with which a released word is decoded, because noise may have
            changed it; None uses the words as they are.
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
        """Convert the codebook to arrays and plain values for a file."""
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
        """The slice of `words` for each stage."""
        ends = np.cumsum(self.sizes).tolist()
        return [slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]

    def encode(self, logits: ArrayLike) -> Ints:
        """Return the word nearest to the model's probabilities, for every row of logits."""
        return self.nearest(sigmoid(logits))

    def nearest(self, probabilities: Floats) -> Ints:
        """Return the word nearest to each row of probabilities, stage by stage."""
        residual, cells = probabilities, np.zeros(len(probabilities), np.int64)
        for stage, size in zip(self.stages, self.sizes, strict=True):
            near = _nearest(residual * self.weights, self.words[stage] * self.weights)
            residual, cells = residual - self.words[stage][near], cells * size + near
        return cells

    def decode(self, cells: Any, epsilon: float) -> Floats:
        """Return the scores of released words, given k-ary response at epsilon."""
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
    """Choose the codebook for a budget.

    Parameters:
        spread: a model of the answers, or answers for public images.
        epsilon: the budget of an answer.
        size: the number of words; None derives it from epsilon.
        rng: draws simulated answers from public numbers. It protects nobody, so it may be fixed.
    """
    answers = sigmoid(spread.sample(_SIMULATED, rng=rng))
    # Mean average precision weights all labels equally, so each deviation is scaled to 1.
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
    # The threshold with the highest F1 on simulated answers and simulated releases of them.
    noise = KaryResponse(epsilon=epsilon, k=len(book), unit="query")
    scores = book.decode(noise.release(book.nearest(answers), rng=rng), epsilon)
    return replace(book, threshold=_best_threshold(scores, answers))


def _nearest(rows: Floats, words: Floats) -> Ints:
    distance = (words**2).sum(axis=1)[None, :] - 2.0 * rows @ words.T
    return np.asarray(distance.argmin(axis=1), np.int64)


def _centres(rows: Floats, size: int, rng: np.random.Generator) -> Floats:
    """Return the k-means centres of the rows; fewer if there are fewer different rows."""
    from sklearn.cluster import MiniBatchKMeans

    size = max(2, min(size, len(np.unique(rows[:4096], axis=0))))
    seed = int(rng.integers(0, 2**31 - 1))
    centres = MiniBatchKMeans(size, random_state=seed, n_init=1, batch_size=1024, max_iter=20)
    return np.asarray(centres.fit(rows).cluster_centers_, np.float64)
