"""From counts to a lower bound on epsilon: what an attack's success proves, at a stated
confidence.
"""

from __future__ import annotations

import math

from scipy import stats

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter

__all__ = ["clopper_pearson", "epsilon_from_guesses", "epsilon_from_rates"]


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
