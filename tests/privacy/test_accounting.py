"""Composition: never below dp-accounting or the exact law, and rounding toward privacy."""

from __future__ import annotations

import math

import dp_accounting
import mpmath
import pytest
from dp_accounting.pld import PLDAccountant
from scipy import stats

from blindsight.core.errors import BlindsightError, InvalidParameter, NotProven, UnitMismatch
from blindsight.privacy import Cost, accounting
from blindsight.privacy.accounting import Plan, Planned, plan_from_fields, plan_to_fields
from blindsight.privacy.ledger.amounts import epsilon_of
from blindsight.privacy.mechanisms import Gaussian, KaryResponse
from blindsight.privacy.mechanisms.gaussian import _log_cdf

PRESENCE = "add or remove one"


def steps_of(sigma: float, steps: int) -> Plan:
    noise = Gaussian(sigma=sigma, sensitivity=1.0, delta=1e-5, unit="record", neighbours=PRESENCE)
    return (Planned(what="gradient", mechanism=noise, count=steps),)


def test_basic_composition_adds_and_refuses_mixed_units() -> None:
    total = accounting.compose([Cost(epsilon=0.1, delta=1e-6, unit="pair")] * 10)
    assert total.epsilon == pytest.approx(1.0)
    assert total.delta == pytest.approx(1e-5)
    with pytest.raises(UnitMismatch):
        accounting.compose([Cost(epsilon=1, unit="pair"), Cost(epsilon=1, unit="record")])
    with pytest.raises(BlindsightError):
        accounting.compose([])


@pytest.mark.parametrize(
    "epsilon, count, delta", [(0.1, 100, 1e-3), (0.5, 40, 1e-5), (0.02, 2000, 1e-6)]
)
def test_pure_releases_add_and_their_rho_covers_the_exact_binomial(
    epsilon: float, count: int, delta: float
) -> None:
    # Flips are the worst case of pure privacy: their composition is a binomial, summed exactly
    # here.
    flips = Planned(
        what="bits", mechanism=KaryResponse(epsilon=epsilon, k=2, unit="record"), count=count
    )
    cost = accounting.price((flips,))
    assert cost.epsilon == pytest.approx(count * epsilon) and cost.delta == 0
    assert _binomial_delta(epsilon, count, epsilon_of(count * epsilon**2 / 2, delta)) <= delta


def _binomial_delta(epsilon: float, count: int, total: float) -> float:
    truth = 1 / (1 + math.exp(-epsilon))
    spill = 0.0
    for k in range(count + 1):
        loss = (2 * k - count) * epsilon
        if loss > total:
            spill += stats.binom.pmf(k, count, truth) * -math.expm1(total - loss)
    return spill


@pytest.mark.parametrize("sigma, steps", [(0.7, 1), (4.0, 300), (20.0, 1000)])
def test_gaussian_steps_are_never_below_dp_accounting(sigma: float, steps: int) -> None:
    event = dp_accounting.GaussianDpEvent(sigma)
    fine = PLDAccountant().compose(event, steps).get_epsilon(1e-5)
    ours = accounting.price(steps_of(sigma, steps), delta=1e-5).epsilon
    assert ours >= fine - 1e-3
    assert ours <= max(fine * 1.05, fine + 0.1)


@pytest.mark.parametrize("epsilon, steps", [(1.0, 200), (4.0, 50), (0.5, 1)])
def test_the_least_noise_spends_epsilon_and_not_more(epsilon: float, steps: int) -> None:
    sigma = accounting.least_noise(epsilon, lambda noise: steps_of(noise, steps), delta=1e-5)
    spent = accounting.price(steps_of(sigma, steps), delta=1e-5).epsilon
    assert 0.98 * epsilon <= spent <= epsilon


def test_bad_questions_are_refused() -> None:
    for delta in (0.0, -1e-5, 1.0):
        with pytest.raises(InvalidParameter):
            accounting.price(steps_of(1.0, 10), delta=delta)
    with pytest.raises(InvalidParameter):
        accounting.price((), delta=1e-5)
    with pytest.raises(InvalidParameter):
        steps_of(1.0, 0)
    replaced = Gaussian(sigma=1.0, sensitivity=1.0, delta=1e-5, unit="record")
    sampled = {**plan_to_fields(steps_of(1.0, 10))[0], "rate": 0.5}
    with pytest.raises(NotProven, match=r"0\.5"):
        plan_from_fields([sampled])
    with pytest.raises(UnitMismatch):
        accounting.price(
            (*steps_of(1.0, 1), Planned(what="counts", mechanism=replaced)), delta=1e-5
        )


@pytest.mark.parametrize("x", [-1e6, -200.0, -36.0, -35.0, -34.9, -5.0, -1e-9, 0.0, 0.5, 7.0, 40.0])
def test_the_normal_distribution_function_is_exact_in_plain_python(x: float) -> None:
    with mpmath.workdps(60):
        exact = mpmath.log(mpmath.erfc(-mpmath.mpf(x) / mpmath.sqrt(2)) / 2)
        assert abs(mpmath.mpf(_log_cdf(x)) - exact) <= abs(exact) * mpmath.mpf(1e-14)
