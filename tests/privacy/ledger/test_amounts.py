"""Amounts are exact and round toward privacy."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindsight.core.errors import InvalidParameter, NotProven
from blindsight.privacy.guarantee import Cost
from blindsight.privacy.ledger.amounts import ATTO, MICRO, Amount, budget_amount, cost_amount

epsilons = st.floats(0, 1e9, allow_subnormal=True)
deltas = st.floats(0, 1, exclude_max=True)


@given(epsilon=epsilons, delta=deltas)
def test_costs_round_up_and_budgets_down_by_less_than_one_unit(epsilon, delta):
    value = Cost(epsilon=epsilon, delta=delta, unit="record")
    cost, budget = cost_amount(value), budget_amount(value)
    for up, down, scale, number in [
        (cost.micro_epsilon, budget.micro_epsilon, MICRO, epsilon),
        (cost.atto_delta, budget.atto_delta, ATTO, delta),
    ]:
        exact = Decimal(repr(number)) * scale
        assert down <= exact <= up and up - down <= 1
        assert (up == down) == (exact == exact.to_integral_value())


@given(st.integers(0, 10**12))
def test_whole_micro_epsilons_survive_the_way_through_a_float(micro):
    assert cost_amount(Cost(epsilon=micro / MICRO, unit="record")).micro_epsilon == micro


def test_any_positive_cost_costs_something():
    smallest = Cost(epsilon=math.ulp(0.0), delta=math.ulp(0.0), unit="record")
    assert cost_amount(smallest) == Amount(1, 1)
    assert budget_amount(smallest) == Amount(0, 0)


def test_infinite_costs_and_budgets_are_refused():
    unproven = Cost(epsilon=math.inf, unit="record")
    with pytest.raises(NotProven, match="no budget can cover it"):
        cost_amount(unproven)
    with pytest.raises(InvalidParameter, match="finite"):
        budget_amount(unproven)
    with pytest.raises(InvalidParameter, match="at most"):
        cost_amount(Cost(epsilon=1e300, unit="record"))


def test_amounts_read_as_decimals():
    assert str(Amount(1_500_000, 0)) == "ε = 1.5"
    assert str(Amount(1_234_000_001, 10**12)) == "ε = 1,234.000001, δ = 1e-06"
