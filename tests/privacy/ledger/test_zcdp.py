"""Accounts in zCDP: the price against dp-accounting, and the filter under an adaptive spender."""

from __future__ import annotations

import math

import dp_accounting
import pytest
from dp_accounting import pld, rdp
from hypothesis import assume, given
from hypothesis import strategies as st

from blindsight.core.errors import BudgetExceeded
from blindsight.privacy.guarantee import Cost
from blindsight.privacy.ledger import Ledger
from blindsight.privacy.ledger.amounts import epsilon_of, largest_rho, rho_of


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
@pytest.mark.parametrize("releases", [1, 50])
def test_gaussians_that_use_up_a_budget_prove_its_epsilon(epsilon, delta, releases):
    rho = largest_rho(epsilon, delta)
    noise = math.sqrt(releases / (2 * rho))
    event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(noise), releases)
    exact = pld.PLDAccountant().compose(event).get_epsilon(delta)
    orders = [1 + 10 ** (i / 40) for i in range(-60, 120)]
    renyi = rdp.RdpAccountant(orders).compose(event).get_epsilon(delta)
    assert exact <= epsilon, "the true epsilon of what was bought is within the budget"
    assert renyi == pytest.approx(epsilon, rel=0.01), "and it is what Renyi accounting says"


@given(st.floats(1e-6, 50), st.floats(1e-12, 0.1))
def test_the_price_of_rho_and_its_inverse_agree_and_round_toward_privacy(rho, delta):
    epsilon = epsilon_of(rho, delta)
    assume(epsilon > 0)
    assert (
        epsilon <= rho + 2 * math.sqrt(rho * math.log(1 / delta)) + 1e-9
    )  # Bun and Steinke's simpler bound
    assert largest_rho(epsilon, delta) <= rho * (1 + 1e-6)
    assert epsilon_of(largest_rho(epsilon, delta), delta) <= epsilon


def test_a_pure_epsilon_counts_half_its_square():
    assert rho_of(Cost(epsilon=0.2, unit="record")) * 50 == 1


def test_an_adaptive_spender_stays_within_the_budget(tmp_path):
    """Noise chosen after each answer: whatever is chosen, what was charged in all is at most the
    granted rho.
    """
    epsilon, delta = 2.0, 1e-6
    with Ledger(tmp_path / "ledger.db", dataset="ward-7") as ledger:
        ledger.grant(Cost(epsilon=epsilon, delta=delta, unit="record"), composition="zcdp")
        events, step = [], 0.3
        for _ in range(60):
            try:
                ledger.charge(Cost(epsilon=step, unit="record"), what="answer")
                events.append(step)
            except BudgetExceeded:
                step /= 2
        assert ledger.balance("record").spent.rho <= largest_rho(epsilon, delta)
    # Randomised responses of these epsilons, composed exactly: below the granted epsilon.
    total = None
    for size in events[:60]:
        one = pld.privacy_loss_distribution.from_randomized_response(2 / (1 + math.exp(size)), 2)
        total = one if total is None else total.compose(one)
    assert total is not None and total.get_epsilon_for_delta(delta) <= epsilon
