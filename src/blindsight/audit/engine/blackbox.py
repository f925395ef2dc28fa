"""Black-box distinguishing: run a function many times on two neighbouring inputs and measure how
well an attacker distinguishes its outputs.

Half of the trials choose an event (a statistic and a threshold) and the other half measure it, so
that the choice does not invalidate the confidence level. Clopper-Pearson intervals turn the counts
into a lower bound on epsilon that is wrong with probability at most 1 - confidence.

`attack_mechanism` attacks a mechanism itself: it distinguishes the mechanism's releases of its two
worst inputs.

A lower bound on epsilon is computed in one of three ways:

- Counts: how often an attack succeeded, at a stated confidence.
- Exact likelihood ratios: where a mechanism knows its own distribution, no sampling is needed.
- One run (Steinke, Nasr and Jagielski 2023): each canary is in the data independently with
  probability one half. After one training the attacker scores the canaries, and guesses "in" for
  the highest scores and "out" for the lowest. The share of correct guesses bounds epsilon.
"""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from blindsight.audit.engine.listeners import drawing_from
from blindsight.core import checks
from blindsight.core.arrays import Array, Bools, Floats, Ints
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.privacy import Audited
from blindsight.privacy.mechanisms import (
    BitFlip,
    KaryResponse,
    Mechanism,
    NoisyTopK,
    SubsetSelection,
)

__all__ = [
    "CONFIDENCE",
    "Attack",
    "DistinguishingResult",
    "Outcomes",
    "attack_mechanism",
    "attack_outcomes",
    "attack_release",
    "audit_in_one_run",
    "audit_scores",
    "clopper_pearson",
    "collect",
    "collect_at_once",
    "distinguish",
    "distinguish_outcomes",
    "epsilon_from_guesses",
    "epsilon_from_rates",
    "exact_epsilon",
    "likelihood_ratio",
    "tell_apart",
    "worst_inputs",
]

Run = Callable[[Any, np.random.Generator], Any]
Statistic = Callable[[Array], Floats]
_CHUNK = 250
_ROWS, _NUMBERS = 100_000, 20_000_000  # of one call


@dataclass(frozen=True)
class Outcomes:
    """The outputs of many runs on the data and on its neighbour, one row per run."""

    data: Array
    neighbour: Array


@dataclass(frozen=True)
class DistinguishingResult:
    """How well two neighbours were distinguished: the bound and the figures behind it.

    `guilty` and `innocent` are the attacker's scores on the measuring half of the runs, for either
    input; larger scores are accusations. `rates` are an upper bound on the event's false positive
    rate and a lower bound on its true positive rate, at the stated confidence.
    """

    audited: Audited
    guilty: Floats
    innocent: Floats
    rates: tuple[float, float]


def collect(
    run: Run, data: object, neighbour: object, *, trials: int, seed: int, workers: int = 1
) -> Outcomes:
    """Run `trials` times on each side.

    The same seed gives the same outcomes whatever the number of workers.
    """
    trials, workers = checks.whole("trials", trials, least=4), checks.whole("workers", workers)
    chunks = [min(_CHUNK, trials - start) for start in range(0, trials, _CHUNK)]
    seeds = np.random.SeedSequence(seed).spawn(2 * len(chunks))
    jobs = [(side, size, seeds[2 * i + side]) for i, size in enumerate(chunks) for side in (0, 1)]

    def one(job: tuple[int, int, np.random.SeedSequence]) -> Array:
        side, size, source = job
        rng = np.random.default_rng(source)
        return np.stack([np.asarray(run((data, neighbour)[side], rng)) for _ in range(size)])

    alone = workers == 1 or not hasattr(os, "fork")  # Windows: the same, one after the other
    parts = [one(job) for job in jobs] if alone else _forked(one, jobs, workers)
    return Outcomes(data=np.concatenate(parts[0::2]), neighbour=np.concatenate(parts[1::2]))


def collect_at_once(
    release: Run, data: object, neighbour: object, *, trials: int, seed: int
) -> Outcomes:
    """Run `trials` times on each side of a release that takes one input per row.

    A few calls then make millions of trials.
    """
    trials = checks.whole("trials", trials, least=4)
    sides = []
    for value, source in zip((data, neighbour), np.random.SeedSequence(seed).spawn(2), strict=True):
        rng, row = np.random.default_rng(source), np.asarray(value)
        rows = max(1, min(_ROWS, _NUMBERS // max(1, row.size)))
        parts = [min(rows, trials - start) for start in range(0, trials, rows)]
        sides.append(
            np.concatenate([release(np.repeat(row[None], size, axis=0), rng) for size in parts])
        )
    return Outcomes(*sides)


def distinguish(
    run: Run,
    data: object,
    neighbour: object,
    *,
    trials: int = 10_000,
    seed: int = 0,
    confidence: float = 0.95,
    delta: float = 0.0,
    statistic: Statistic | None = None,
    workers: int = 1,
) -> Audited:
    """Return a lower bound on the epsilon of `run(data, rng)`.

    Parameters:
        run: the function under attack, called with an input and a generator.
        data: one input.
        neighbour: an input that differs from it by one unit.
        trials: runs on each input.
        seed: of the runs' generators.
        confidence: the probability with which the bound holds.
        delta: the delta of the promise.
        statistic: maps stacked outcomes to one number each, larger for `data`; a log-likelihood
            ratio is best. By default a linear discriminant is fitted on the first half of the runs.
        workers: processes that run trials.
    """
    outcomes = collect(run, data, neighbour, trials=trials, seed=seed, workers=workers)
    return distinguish_outcomes(outcomes, confidence=confidence, delta=delta, statistic=statistic)


def distinguish_outcomes(
    outcomes: Outcomes,
    *,
    confidence: float = 0.95,
    delta: float = 0.0,
    statistic: Statistic | None = None,
) -> Audited:
    """Return the lower bound of `distinguish` for outcomes that were already collected."""
    return tell_apart(outcomes, confidence=confidence, delta=delta, statistic=statistic).audited


def tell_apart(
    outcomes: Outcomes,
    *,
    confidence: float = 0.95,
    delta: float = 0.0,
    statistic: Statistic | None = None,
) -> DistinguishingResult:
    """Return the lower bound of `distinguish_outcomes` with the scores and the event behind it."""
    half = len(outcomes.data) // 2
    first = Outcomes(outcomes.data[:half], outcomes.neighbour[:half])
    score = statistic or _discriminant(first)
    learn = score(first.data), score(first.neighbour)
    test = score(outcomes.data[half:]), score(outcomes.neighbour[half:])
    # The event may be more likely on either side; the two candidate events share the error.
    share = 1 - (1 - confidence) / 2
    best: tuple[float, int, tuple[float, float]] = (-1.0, 1, (1.0, 0.0))
    for sign, (likely, unlikely), (likely_test, unlikely_test) in (
        (1, learn, test),
        (-1, learn[::-1], test[::-1]),
    ):
        cut = _best_cut(sign * likely, sign * unlikely, delta, error=min(0.025, 10 * (1 - share)))
        hits, false = (
            int((sign * likely_test >= cut).sum()),
            int((sign * unlikely_test >= cut).sum()),
        )
        bound = epsilon_from_rates(
            hits, len(likely_test), false, len(unlikely_test), confidence=share, delta=delta
        )
        if bound > best[0]:
            low, _ = clopper_pearson(hits, len(likely_test), error=(1 - share) / 2)
            _, high = clopper_pearson(false, len(unlikely_test), error=(1 - share) / 2)
            best = bound, sign, (high, low)
    epsilon, sign, rates = best
    name = "black box, given statistic" if statistic else "black box, linear discriminant"
    guilty, innocent = test if sign > 0 else test[::-1]
    return DistinguishingResult(
        audited=Audited(
            epsilon=epsilon, confidence=confidence, attack=name, trials=2 * len(outcomes.data)
        ),
        guilty=sign * guilty,
        innocent=sign * innocent,
        rates=rates,
    )


def _best_cut(likely: Floats, unlikely: Floats, delta: float, *, error: float) -> float:
    """Return the threshold with the largest lower bound on the trials that choose it.

    The bound is computed at an `error` close to that of the measurement, because a bound that must
    nearly always hold needs an event that happens often.
    """
    cuts = np.unique(np.concatenate([likely, unlikely]))
    if cuts.size > 400:
        cuts = np.quantile(cuts, np.linspace(0, 1, 400))
    hits, false = _at_least(cuts, likely), _at_least(cuts, unlikely)
    # Clopper-Pearson at all cuts at once; the quantile does not exist where there is no hit, or
    # where every false trial is a hit.
    low = np.where(hits > 0, stats.beta.ppf(error, hits, len(likely) - hits + 1), 0.0)
    high = np.where(
        false < len(unlikely), stats.beta.ppf(1 - error, false + 1, len(unlikely) - false), 1.0
    )
    promised = np.where(low > delta, (low - delta) / high, -1.0)
    return float(cuts[promised.argmax() if promised.max() > 0 else -1])


def _at_least(cuts: Floats, scores: Floats) -> Ints:
    finite = np.sort(scores[~np.isnan(scores)])
    return len(finite) - np.searchsorted(finite, cuts)


def _discriminant(outcomes: Outcomes) -> Statistic:
    """Return a ridge-regularised linear discriminant, fitted on these outcomes."""
    rows = np.concatenate([_flat(outcomes.data), _flat(outcomes.neighbour)])
    centre, spread = rows.mean(axis=0), rows.std(axis=0) + 1e-12
    labels = np.repeat([1.0, -1.0], [len(outcomes.data), len(outcomes.neighbour)])
    scaled = (rows - centre) / spread
    if scaled.shape[1] > len(scaled):  # more coordinates than runs: the mean difference alone
        weights = scaled[labels > 0].mean(axis=0) - scaled[labels < 0].mean(axis=0)
    else:
        gram = scaled.T @ scaled + 1e-3 * len(scaled) * np.eye(scaled.shape[1])
        weights = np.linalg.solve(gram, scaled.T @ labels)
    return lambda outputs: ((_flat(outputs) - centre) / spread) @ weights


def _flat(outputs: Array) -> Floats:
    return np.asarray(outputs, np.float64).reshape(len(outputs), -1)


def _forked(function: Callable[[Any], Any], jobs: list[Any], workers: int) -> list[Any]:
    """Map over forked processes, which inherit `function`, so that it need not be pickled."""
    global _inherited
    _inherited = function
    try:
        with multiprocessing.get_context("fork").Pool(workers) as pool:
            return pool.map(_call, jobs, chunksize=1)
    finally:
        _inherited = None


_inherited: Callable[[Any], Any] | None = None


def _call(job: object) -> Any:
    assert _inherited is not None  # noqa: S101  (set before the fork)
    return _inherited(job)


#: The confidence of bounds on a user's own files: at most one audit in a hundred refutes a sound
#: release by mistake.
CONFIDENCE = 0.99
Pair = tuple[Array, Array]


@dataclass(frozen=True, kw_only=True)
class Attack:
    """One attack: a description of what was attacked, and its result.

    `steps` is the number of neighbour steps between the two inputs: the bound in `audited` is for
    one step, while `result` is for the two inputs. `delta` is the promised delta between the two
    inputs.
    """

    what: str
    result: DistinguishingResult
    steps: int = 1
    delta: float = 0.0

    @property
    def audited(self) -> Audited:
        """The lower bound on epsilon between neighbours."""
        bound = self.result.audited
        return dataclasses.replace(bound, epsilon=bound.epsilon / self.steps, attack=self.what)


def worst_inputs(mechanism: Mechanism, *, unit: str | None = None) -> Pair:
    """Return the two inputs, one unit apart, that are easiest to distinguish.

    Where the unit is a bit, they differ in one bit.
    """
    if isinstance(mechanism, BitFlip):
        return _codes(
            mechanism.n_bits, 1 if (unit or mechanism.unit) == "bit" else mechanism.n_bits
        )
    if isinstance(
        mechanism, NoisyTopK
    ):  # half of the scores one sensitivity up, the other half down
        k, reach = mechanism.k, mechanism.sensitivity
        return np.repeat([reach, 0.0], k), np.repeat([0.0, reach], k)
    if not hasattr(mechanism, "worst_pair"):
        raise InvalidData(
            f"no attack is known for {type(mechanism).__name__}: give it a worst_pair()."
        )
    first, second = mechanism.worst_pair()
    return (
        (first[0], second[0])
        if isinstance(mechanism, (KaryResponse, SubsetSelection))
        else (first, second)
    )


def attack_mechanism(
    mechanism: Mechanism,
    *,
    unit: str | None = None,
    trials: int = 200_000,
    seed: int = 0,
    what: str | None = None,
) -> Attack:
    """Release the two worst inputs many times and distinguish them by the likelihood ratio."""
    pair = worst_inputs(mechanism, unit=unit)
    # At least a thousand releases, at most a hundred million numbers.
    width = max(pair[0].size, getattr(mechanism, "k", 1))
    count = max(1000, min(trials, 100_000_000 // width))
    outcomes = collect_at_once(
        lambda x, rng: mechanism.release(x, rng=rng), *pair, trials=count, seed=seed
    )
    return attack_outcomes(
        outcomes,
        what=what or f"likelihood ratio of {type(mechanism).__name__} on its two worst inputs",
        delta=mechanism.cost.delta,
        statistic=lambda released: likelihood_ratio(mechanism, released, *pair),
    )


def attack_release(
    release: Callable[[Array], Array],
    pair: Pair,
    *,
    what: str,
    trials: int,
    seed: int,
    delta: float = 0.0,
    confidence: float = CONFIDENCE,
) -> Attack:
    """Attack an estimator's own release function, which takes one input per row.

    Nothing that the mechanism states about its own distribution is used.
    """

    def run(values: Array, rng: np.random.Generator) -> Array:
        with drawing_from(rng):
            released = np.asarray(release(values))
        return released.reshape(len(values), -1)

    # At least a thousand releases, but so few numbers in all that the attack takes seconds.
    count = max(1000, min(trials, 50_000_000 // max(1, np.size(pair[0]))))
    outcomes = collect_at_once(run, *pair, trials=count, seed=seed)
    return attack_outcomes(outcomes, what=what, delta=delta, confidence=confidence)


def attack_outcomes(
    outcomes: Outcomes,
    *,
    what: str,
    delta: float = 0.0,
    steps: int = 1,
    statistic: Callable[[Array], Floats] | None = None,
    confidence: float = CONFIDENCE,
) -> Attack:
    """Return the attack on outcomes of two inputs that are `steps` neighbour steps apart."""
    result = tell_apart(outcomes, confidence=confidence, delta=delta, statistic=statistic)
    return Attack(what=what, result=result, steps=steps, delta=delta)


def _codes(n_bits: int, differing: int) -> Pair:
    zeros: Array = np.zeros(n_bits, np.uint8)
    changed = zeros.copy()
    changed[:differing] = 1
    return zeros, changed


def clopper_pearson(hits: int, trials: int, *, error: float) -> tuple[float, float]:
    """Return lower and upper bounds on a probability, each wrong with probability `error`."""
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
    """Return the least epsilon that is consistent with an event's counts on two neighbours.

    (epsilon, delta)-privacy requires P(event | D) <= e^epsilon P(event | D') + delta. Each
    probability is bounded with half of the error, so the result is wrong with probability at most
    1 - confidence. The event must have been chosen without looking at these trials.
    """
    error = (1 - checks.probability("confidence", confidence)) / 2
    low, _ = clopper_pearson(true_hits, true_trials, error=error)
    _, high = clopper_pearson(false_hits, false_trials, error=error)
    return max(0.0, math.log((low - delta) / high)) if low > delta else 0.0


def epsilon_from_guesses(
    correct: int, guesses: int, *, canaries: int, confidence: float, delta: float = 0.0
) -> float:
    """Return the least epsilon that is consistent with these correct guesses after one run.

    Each guess says whether one canary, included by an independent fair coin, is in the data.
    Steinke, Nasr and Jagielski (2023), Theorem 5.2: under (epsilon, delta)-privacy the number of
    correct guesses is stochastically dominated by Binomial(guesses, e^eps/(1 + e^eps)), up to a
    term in delta and the number of canaries.
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
    """Bound the probability of at least `correct` correct guesses under (epsilon, delta)."""
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
    """Return the largest |ln Pr(o | x) - ln Pr(o | neighbour)| over the given outcomes.

    The probabilities are those of the mechanism's `log_prob`. Outcomes are stacked along the first
    axis; the log-probabilities of a vector's coordinates are added.
    """
    listed = np.asarray(outcomes)
    if not len(listed):
        raise InvalidParameter("outcomes must hold at least one outcome, got none.")
    with np.errstate(invalid="ignore"):
        ratio = np.abs(_whole(mechanism, listed, x) - _whole(mechanism, listed, neighbour))
    # An outcome that is impossible for both inputs (-inf minus -inf) never happens: ignore it.
    largest = float(np.nanmax(np.nan_to_num(ratio, nan=0.0, posinf=np.inf)))
    return Audited(
        epsilon=largest, confidence=1.0, attack="exact likelihood ratio", trials=len(listed)
    )


def likelihood_ratio(
    mechanism: Mechanism, released: ArrayLike, x: ArrayLike, neighbour: ArrayLike
) -> Floats:
    """Return ln Pr(released | x) - ln Pr(released | neighbour) of every release.

    By the Neyman-Pearson lemma no other statistic distinguishes the two inputs better.
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
    """Audit a training by one run.

    Parameters:
        train: called with a mask of the canaries to include and a generator; returns the model.
        score: returns one score per canary for a model, larger where the canary fits better.
        canaries: the number of canaries, each included with probability one half.
        seed: of the coins and of the training's generator.
        confidence: the probability with which the bound holds.
        delta: the delta of the promise.

    Returns:
        The lower bound on epsilon.
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
    """Return the one-run bound from the canaries' scores and whether each was included.

    Several numbers of guesses are tried; the error is divided among them.
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
