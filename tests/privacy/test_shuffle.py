"""The central epsilon of shuffled answers: against enumeration, simulation and published bounds."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter

import numpy as np
import pytest

from blindsight.audit.engine.blackbox import epsilon_from_rates
from blindsight.core.errors import InvalidParameter
from blindsight.privacy.accounting import ShuffleStatement, _Counts, shuffled_epsilon
from blindsight.privacy.mechanisms import KaryResponse


def shuffled_delta(epsilon: float, local_epsilon: float, cells: int, records: int) -> float:
    """Our upper bound on delta at a central epsilon, from which `shuffled_epsilon` is found."""
    return _Counts(local_epsilon, cells, records, 1e-9).delta(epsilon)


def law(values: tuple[int, ...], epsilon: float, k: int) -> Counter[tuple[int, ...]]:
    """The exact law of the counts when these records answer by k-ary response."""
    true = math.exp(epsilon) / (math.exp(epsilon) + k - 1)
    other = 1 / (math.exp(epsilon) + k - 1)
    counts: Counter[tuple[int, ...]] = Counter()
    for answers in itertools.product(range(k), repeat=len(values)):
        chance = math.prod(
            true if answer == value else other
            for answer, value in zip(answers, values, strict=True)
        )
        counts[tuple(answers.count(cell) for cell in range(k))] += chance
    return counts


def hockey_stick(first: Counter, second: Counter, epsilon: float) -> float:
    return sum(max(0.0, p - math.exp(epsilon) * second[key]) for key, p in first.items())


@pytest.mark.parametrize(("n", "k", "local"), [(2, 2, 1.0), (4, 3, 2.0), (6, 2, 3.0), (5, 3, 1.0)])
def test_the_bound_holds_for_every_data_set(n: int, k: int, local: float) -> None:
    """All values of the other records, all neighbours, several epsilons: exact enumeration."""
    for others in itertools.combinations_with_replacement(range(k), n - 1):
        first, second = law((0, *others), local, k), law((1, *others), local, k)
        for epsilon in (0.0, 0.3 * local, 0.7 * local):
            assert hockey_stick(first, second, epsilon) <= shuffled_delta(epsilon, local, k, n)


def test_the_bound_is_attained_by_an_observer_who_knows_who_lied() -> None:
    """With two records and the other's lie known, enumeration gives the same number."""
    local, k, epsilon = 1.5, 3, 0.4
    gamma = k / (math.exp(local) + k - 1)
    exact = 0.0
    for lied, chance in ((0, 1 - gamma), (1, gamma)):
        laws: list[Counter] = [Counter(), Counter()]
        for number in range(2):
            for own in range(k):
                p = gamma / k + (1 - gamma) * (own == number)
                for other in range(k) if lied else [None]:
                    counts = Counter([own] if other is None else [own, other])
                    key = tuple(counts[cell] for cell in range(k))
                    laws[number][key] += p / (k if lied else 1)
        exact += chance * hockey_stick(laws[0], laws[1], epsilon)
    assert shuffled_delta(epsilon, local, k, 2) == pytest.approx(exact, rel=1e-5)


def test_a_simulation_agrees() -> None:
    """200,000 draws of the counts; the error is below 6 standard deviations (1e-9)."""
    rng = np.random.default_rng(0)
    local, k, n, epsilon = 4.0, 29, 1000, 0.5
    gamma = k / (math.exp(local) + k - 1)
    blanket = rng.binomial(n - 1, gamma, 200_000)
    both = rng.binomial(blanket + 1, 2 / k)
    first = rng.binomial(both, 0.5)
    gain = (1 - gamma) * k / (blanket + 1) * (first - math.exp(epsilon) * (both - first))
    gain = np.maximum(gain - (math.exp(epsilon) - 1) * gamma, 0.0)
    error = gain.std() / math.sqrt(len(gain))
    bound = shuffled_delta(epsilon, local, k, n)
    assert gain.mean() - 6 * error <= bound
    assert bound <= 1.05 * gain.mean() + 6 * error, "grouping costs little"


@pytest.mark.parametrize("n", [10_000, 100_000])
@pytest.mark.parametrize("local", [0.4, 1.0, 4.0])
def test_published_bounds_are_not_beaten_by_us_upwards(local: float, n: int) -> None:
    """Feldman, McMillan and Talwar (2021, Theorem III.1), and Erlingsson and others (2019)."""
    delta, k = 1 / (10 * n), 29
    ours = shuffled_epsilon(local, k, n, delta)
    e = math.exp(local)
    if local <= math.log(n / (16 * math.log(2 / delta))):
        inside = 8 * math.sqrt(e * math.log(4 / delta)) / math.sqrt(n) + 8 * e / n
        assert ours <= math.log(1 + (e - 1) / (e + 1) * inside)
    if local < 0.5:
        assert ours <= 12 * local * math.sqrt(math.log(1 / delta) / n)


def test_more_records_and_smaller_local_epsilon_help() -> None:
    by_n = [shuffled_epsilon(4.0, 29, n, 1e-6) for n in (1_000, 10_000, 100_000)]
    assert by_n == sorted(by_n, reverse=True)
    by_local = [shuffled_epsilon(local, 29, 10_000, 1e-6) for local in (1.0, 2.0, 4.0)]
    assert by_local == sorted(by_local)
    assert shuffled_epsilon(8.0, 414, 2, 1e-9) == 8.0, "never more than the local epsilon"


def test_the_statement_says_both_numbers_and_what_it_assumes() -> None:
    statement = ShuffleStatement.of_batch(4.0, 29, 100_000)
    assert 0 < statement.epsilon < 0.2
    assert "ε = 4" in str(statement) and "one batch" in str(statement)
    assert len(statement.assumptions) == 3
    assert "adds no protection" in str(ShuffleStatement(8.0, 1e-3, 8.0, 414, 2))
    with pytest.raises(InvalidParameter, match="at least 2"):
        shuffled_epsilon(1.0, 1, 10, 1e-6)


def epsilon_of_shuffled_counts(
    statement: ShuffleStatement, *, trials: int = 20_000, rng: np.random.Generator
) -> float:
    """A central epsilon that the release exceeds, with confidence 1 - 1e-6; 0 where none is seen.

    The attacker knows the cell of every photo but one and sees how often each cell occurs. It must
    tell which of two cells the remaining photo has. Every other photo lies in a third cell where
    there is one, so that nothing but noise falls into the two. The threshold of the guess is chosen
    on one half of the trials and evaluated on the other.
    """
    differences = [_differences(statement, own, trials, rng) for own in (0, 1)]
    half = trials // 2
    best, threshold = 0.0, 0
    for candidate in np.unique(differences[0][:half]):
        bound = _bound(differences, candidate, slice(0, half), statement.delta)
        if bound > best:
            best, threshold = bound, int(candidate)
    return _bound(differences, threshold, slice(half, trials), statement.delta)


def _differences(
    statement: ShuffleStatement, own: int, runs: int, rng: np.random.Generator
) -> np.ndarray:
    """How much more often cell 0 occurs than cell 1, in each run."""
    mechanism = KaryResponse(epsilon=statement.local_epsilon, k=statement.cells, unit="record")
    values = np.full(statement.records, min(2, statement.cells - 1), np.int64)
    values[0] = own
    answers = mechanism.release(np.tile(values, runs), rng=rng).reshape(runs, -1)
    return (answers == 0).sum(axis=1) - (answers == 1).sum(axis=1)


def _bound(differences: list[np.ndarray], threshold: int, part: slice, delta: float) -> float:
    first, second = (int((each[part] >= threshold).sum()) for each in differences)
    count = len(differences[0][part])
    return epsilon_from_rates(first, count, second, count, confidence=1 - 1e-6, delta=delta)


@pytest.mark.parametrize(("local", "k", "n"), [(3.0, 4, 200), (4.0, 29, 300), (2.0, 2, 100)])
def test_the_audit_of_counts_does_not_refute_the_statement(local: float, k: int, n: int) -> None:
    """By fixed draws; under fresh ones it would be refuted wrongly in one run of a million."""
    statement = ShuffleStatement.of_batch(local, k, n)
    found = epsilon_of_shuffled_counts(statement, rng=np.random.default_rng(n))
    assert 0 < found <= statement.epsilon < local


def test_the_audit_of_counts_refutes_a_statement_that_forgets_most_of_the_noise() -> None:
    """The central epsilon of ten times as many photos, claimed for these."""
    claimed = ShuffleStatement.of_batch(3.0, 4, 3_000)
    forged = dataclasses.replace(claimed, records=100)
    found = epsilon_of_shuffled_counts(forged, rng=np.random.default_rng(0))
    assert found > forged.epsilon
