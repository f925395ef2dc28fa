"""Why copies share one code: exact probabilities of everything that can be released, for small
alphabets.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import pytest

# e^epsilon as a fraction, so that every ratio is exact.
ODDS = [Fraction(2), Fraction(7, 2), Fraction(20)]


def response(k: int, odds: Fraction) -> list[list[Fraction]]:
    """Row x: the law of k-ary response on x."""
    return [[(odds if y == x else 1) / (odds + k - 1) for y in range(k)] for x in range(k)]


def multiset_law(laws: list[list[Fraction]], k: int) -> Counter:
    """The law of the released multiset: codes come under random ids, so their order says
    nothing.
    """
    found: Counter = Counter()
    for outcome in itertools.product(range(k), repeat=len(laws)):
        found[tuple(sorted(outcome))] += math.prod(
            law[y] for law, y in zip(laws, outcome, strict=True)
        )
    return found


def largest_ratio(one: Counter, other: Counter) -> Fraction:
    assert set(one) == set(other)
    return max(max(one[y] / other[y], other[y] / one[y]) for y in one)


def labelled_law(laws: list[list[Fraction]], k: int) -> Counter:
    """The same for an attacker who knows which code is whose."""
    return Counter(
        {
            outcome: math.prod(law[y] for law, y in zip(laws, outcome, strict=True))
            for outcome in itertools.product(range(k), repeat=len(laws))
        }
    )


@pytest.mark.parametrize("odds", ODDS)
@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("law", [multiset_law, labelled_law])
def test_one_code_per_distinct_image_costs_epsilon(k, odds, law):
    """Sets of three distinct images, of which one is replaced; images may share a cell."""
    rows = response(k, odds)
    worst = Fraction(1)
    for cells in itertools.product(range(k), repeat=3):
        for new in range(k):
            here = law([rows[x] for x in cells], k)
            there = law([rows[x] for x in (new, *cells[1:])], k)
            worst = max(worst, largest_ratio(here, there))
    assert worst <= odds
    if law is labelled_law:
        assert worst == odds, "and no less"


@pytest.mark.parametrize("odds", ODDS)
@pytest.mark.parametrize("k", [2, 3, 4])
def test_a_code_for_each_copy_costs_twice(k, odds):
    """An image that is there twice, replaced by another that is there twice: both codes move."""
    rows = response(k, odds)
    worst = max(
        largest_ratio(multiset_law([rows[a], rows[a]], k), multiset_law([rows[b], rows[b]], k))
        for a in range(k)
        for b in range(k)
    )
    assert worst == odds**2


@pytest.mark.parametrize("odds", ODDS)
@pytest.mark.parametrize("k", [3, 4])
def test_dummies_for_copies_cost_more_than_epsilon(k, odds):
    """Files [a, a]: the first has a's code, its copy a uniform one. Replace the first file by b:
    now the second file is the first of its content and has a's code, while the first has b's. Both
    codes move.
    """
    rows = response(k, odds)
    uniform = [Fraction(1, k)] * k
    worst = max(
        largest_ratio(labelled_law([rows[a], uniform], k), labelled_law([rows[b], rows[a]], k))
        for a in range(k)
        for b in range(k)
        if a != b
    )
    assert worst > odds, "one file was replaced, and epsilon is exceeded"
    truth, uniform_odds = odds / (odds + k - 1), odds * k / (odds + k - 1)
    assert worst == max(odds * uniform_odds, odds / (k * (1 - truth) / (k - 1)))
    # With many cells the second factor nears e^epsilon as well: twice epsilon.
    limit = math.log(float(odds * (odds * 10**9 / (odds + 10**9 - 1)))) / math.log(float(odds))
    assert limit == pytest.approx(2, abs=1e-6)
