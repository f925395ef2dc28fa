"""What noisy steps cost: closed forms, an independent mixture, and the order of things."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from blindsight.core.errors import InvalidParameter
from blindsight.metric import descent_epsilon, descent_noise
from blindsight.privacy import Cost


def test_without_sampling_steps_compose_to_one_gaussian():
    epsilon = descent_epsilon(noise=20.0, steps=16, rate=1.0, group=3, delta=1e-5)
    mu = 3 * 4 / 20.0
    reached = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert reached == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.parametrize("group", [1, 4])
def test_calibration_keeps_its_target_and_wastes_little(group):
    noise = descent_noise(epsilon=1.0, delta=1e-5, steps=20, rate=1.0, group=group)
    spent = descent_epsilon(noise=noise, steps=20, rate=1.0, group=group, delta=1e-5)
    assert 0.999 < spent <= 1.0


def test_sampling_a_group_costs_between_one_pair_and_group_privacy():
    common = {"noise": 4.0, "steps": 40, "rate": 0.05}
    one = descent_epsilon(group=1, delta=1e-5, **common)
    later = Cost(epsilon=one, delta=1e-5, unit="pair").per("record", times=3)
    three = descent_epsilon(group=3, delta=later.delta, **common)
    assert one < three < later.epsilon


def test_a_mixture_step_has_the_delta_that_integration_gives():
    noise, rate, group, delta = 2.0, 0.3, 2, 1e-3
    epsilon = descent_epsilon(noise=noise, steps=1, rate=rate, group=group, delta=delta)
    x = np.linspace(-40, 44, 400_001)
    weight = [(1 - rate) ** 2, 2 * rate * (1 - rate), rate**2]
    mixed = sum(w * norm.pdf(x, loc=k, scale=noise) for k, w in enumerate(weight))
    plain = norm.pdf(x, scale=noise)
    for first, second in ((mixed, plain), (plain, mixed)):
        assert np.trapezoid(np.maximum(first - math.exp(epsilon) * second, 0), x) <= delta * 1.001
        wider = np.trapezoid(np.maximum(mixed - math.exp(epsilon - 0.02) * plain, 0), x)
    assert wider > delta  # not loose either


def test_a_rate_of_nothing_is_refused():
    with pytest.raises(InvalidParameter, match="above 0"):
        descent_epsilon(noise=1.0, steps=1, rate=0.0, group=1, delta=1e-5)
