"""Lower bounds on epsilon: from the counts of an attack, from likelihoods, and from one run.

*Counts.* What an attack's success proves, at a stated confidence.

*Exact likelihood ratios.* Where a mechanism knows its own distribution, no sampling is needed.

*One run* (Steinke, Nasr and Jagielski 2023). Every canary is in the data with probability one half,
by its own coin. After one training the attacker scores them and guesses "in" for the highest and
"out" for the lowest. How often it is right bounds epsilon from below.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from blindsight.core import checks
from blindsight.core.arrays import Array, Bools, Floats
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.privacy import Audited
from blindsight.privacy.mechanisms import Mechanism

__all__ = [
    "audit_in_one_run",
    "audit_scores",
    "clopper_pearson",
    "epsilon_from_guesses",
    "epsilon_from_rates",
    "exact_epsilon",
    "likelihood_ratio",
]


def clopper_pearson(hits: int, trials: int, *, error: float) -> tuple[float, float]:
    """Lower and upper bounds on a probability; each fails with a chance of at most `error`."""
    hits, trials = checks.whole("hits", hits, least=0), checks.whole("trials", trials)
    if hits > trials:
        raise InvalidParameter(f"hits must be at most trials = {trials}, got {hits}.")
    low = stats.beta.ppf(error, hits, trials - hits + 1) if hits > 0 else 0.0
    high = stats.beta.ppf(1 - error, hits + 1, trials - hits) if hits < trials else 1.0
    return float(low), float(high)


def epsilon_from_rates(
    true_hits: int,
    true_trials: int,
    false_hits: int,
    false_trials: int,
    *,
    confidence: float,
    delta: float = 0.0,
) -> float:
    """The least epsilon that an event with these counts on two neighbours leaves possible.

    (epsilon, delta)-privacy forces P(event | D) <= e^epsilon P(event | D') + delta. Each
    probability is bounded on its own side with half of the error, so the bound is wrong with a
    chance of at most 1 - confidence. The event must have been chosen without looking at these
    trials.
    """
    error = (1 - checks.probability("confidence", confidence)) / 2
    low, _ = clopper_pearson(true_hits, true_trials, error=error)
    _, high = clopper_pearson(false_hits, false_trials, error=error)
    return max(0.0, math.log((low - delta) / high)) if low > delta else 0.0


def epsilon_from_guesses(
    correct: int, guesses: int, *, canaries: int, confidence: float, delta: float = 0.0
) -> float:
    """The least epsilon that this many right guesses about independent fair coins leave possible,
    from one run.

    Steinke, Nasr and Jagielski (2023), Theorem 5.2: under (epsilon, delta)-privacy the number of
    right guesses is dominated by Binomial(guesses, e^eps/(1 + e^eps)), up to a term in delta and
    the number of canaries.
    """
    correct, guesses = checks.whole("correct", correct, least=0), checks.whole("guesses", guesses)
    canaries = checks.whole("canaries", canaries)
    error = 1 - checks.probability("confidence", confidence)
    if correct > guesses or guesses > canaries:
        raise InvalidParameter(
            f"expected correct <= guesses <= canaries, got {correct}, {guesses}, {canaries}."
        )

    def possible(epsilon: float) -> bool:
        return _chance_of_guesses(correct, guesses, canaries, epsilon, delta) > error

    if possible(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while not possible(high):
        low, high = high, 2 * high
        if high > 64:
            return low
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if possible(middle) else (middle, high)
    return low


def _chance_of_guesses(
    correct: int, guesses: int, canaries: int, epsilon: float, delta: float
) -> float:
    """An upper bound on the chance of at least `correct` right guesses under (epsilon, delta)."""
    right = 1 / (1 + math.exp(-epsilon))
    chance = float(stats.binom.sf(correct - 1, guesses, right))
    if delta == 0:
        return chance
    worst, mass = 0.0, 0.0
    for short in range(1, correct + 1):
        mass += float(stats.binom.pmf(correct - short, guesses, right))
        worst = max(worst, mass / short)
    return min(1.0, chance + 2 * canaries * delta * worst)


def exact_epsilon(
    mechanism: Mechanism, x: ArrayLike, neighbour: ArrayLike, outcomes: ArrayLike
) -> Audited:
    """The largest |ln Pr(o | x) - ln Pr(o | neighbour)| over the given outcomes, from the
    mechanism's `log_prob`.

    Outcomes are stacked along the first axis; probabilities of a vector's coordinates multiply.
    """
    listed = np.asarray(outcomes)
    if not len(listed):
        raise InvalidParameter("outcomes must hold at least one outcome, got none.")
    with np.errstate(invalid="ignore"):
        ratio = np.abs(_whole(mechanism, listed, x) - _whole(mechanism, listed, neighbour))
    # Where both are impossible (-inf minus -inf) the outcome never happens and tells nothing.
    largest = float(np.nanmax(np.nan_to_num(ratio, nan=0.0, posinf=np.inf)))
    return Audited(
        epsilon=largest, confidence=1.0, attack="exact likelihood ratio", trials=len(listed)
    )


def likelihood_ratio(
    mechanism: Mechanism, released: ArrayLike, x: ArrayLike, neighbour: ArrayLike
) -> Floats:
    """ln Pr(released | x) - ln Pr(released | neighbour) of every release: the best statistic there
    is.
    """
    listed = np.asarray(released)
    return _whole(mechanism, listed, x) - _whole(mechanism, listed, neighbour)


def _whole(mechanism: Mechanism, outcomes: Array, x: ArrayLike) -> Floats:
    value = np.asarray(x)
    parts = np.asarray(
        mechanism.log_prob(outcomes, np.broadcast_to(value, (len(outcomes), *value.shape)))
    )
    return np.asarray(parts.reshape(len(outcomes), -1).sum(axis=1), np.float64)


def audit_in_one_run(
    train: Callable[[Bools, np.random.Generator], Any],
    score: Callable[[Any], Floats],
    *,
    canaries: int,
    seed: int = 0,
    confidence: float = 0.95,
    delta: float = 0.0,
) -> Audited:
    """Audit a training: `train(included, rng)` gets the canaries' coins, `score(model)` gives one
    score a canary.
    """
    rng = np.random.default_rng(seed)
    included = rng.random(checks.whole("canaries", canaries, least=4)) < 0.5
    scores = np.asarray(score(train(included, rng)), np.float64)
    return audit_scores(scores, included, confidence=confidence, delta=delta)


def audit_scores(
    scores: Floats,
    included: Bools,
    *,
    confidence: float = 0.95,
    delta: float = 0.0,
) -> Audited:
    """The bound from scores and coins; how many to guess is tried on a grid, sharing the error over
    it.
    """
    if scores.shape != included.shape or not np.isfinite(scores).all():
        raise InvalidData(
            f"expected one finite score for each of {len(included)} canaries, got shape "
            f"{scores.shape}."
        )
    count = len(scores)
    order = np.argsort(-scores, kind="stable")
    sizes = sorted({max(1, count // part) for part in (2, 4, 8, 16, 32)})
    share = 1 - (1 - confidence) / len(sizes)
    best = 0.0
    for size in sizes:
        correct = int(included[order[:size]].sum() + (~included[order[-size:]]).sum())
        best = max(
            best,
            epsilon_from_guesses(correct, 2 * size, canaries=count, confidence=share, delta=delta),
        )
    return Audited(epsilon=best, confidence=confidence, attack="one run, canaries", trials=count)
