"""Training the linear head: against an independent optimiser, and what each part of the plan
costs.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from blindsight.privacy.accounting import price
from blindsight.tagging import DPTraining
from blindsight.tagging.labels import log_odds, sigmoid
from blindsight.tagging.prior import Inputs, private_rows
from blindsight.tagging.training import (
    COUNTS,
    GRADIENT,
    LinearHead,
    TrainingFacts,
    descend,
    forecast,
    noise_variance,
    trusted_share,
)

FACTS = {"n_records": 500, "n_labels": 7, "n_features": 30, "width": 31}


def test_without_noise_descent_reaches_ridge_logistic_regression():
    rng = np.random.default_rng(0)
    x, ridge = rng.normal(size=(200, 3)) / 2, 0.01
    y = (rng.random((200, 1)) < sigmoid(2 * x[:, :1])).astype(float)
    rate = y.mean(axis=0)
    weight = LinearHead(rate, 1.0, power=0.0).weights

    def loss(w):
        logits = log_odds(rate) + x @ w
        return weight[0] * np.mean(np.logaddexp(0, logits) - y[:, 0] * logits) + ridge / 2 * w @ w

    best = minimize(loss, np.zeros(3)).x
    found = descend(
        LinearHead(rate, 1.0, power=0.0, ridge=ridge),
        x,
        y,
        np.broadcast_to(log_odds(rate), y.shape),
        steps=3000,
        n_records=len(x),
        total=lambda residuals, rows: residuals.T @ rows,
    )
    np.testing.assert_allclose(found[0], best, atol=1e-3)


@given(
    st.floats(0.05, 20),
    st.floats(1e-9, 1e-3),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.one_of(st.none(), st.integers(1, 60)),
)
@settings(max_examples=25, deadline=None)
def test_the_whole_plan_costs_the_stated_total_and_no_more(
    epsilon, delta, centred, spread, informed, steps
):
    training = DPTraining(epsilon=epsilon, delta=delta, steps=steps)
    facts = TrainingFacts(**FACTS, centred=centred, spread=spread, informed=informed)
    plan = training.plan(facts)
    due = price(plan, delta=delta)
    assert 0.98 * epsilon < due.epsilon <= epsilon
    assert len(plan) == 2 + centred + spread


def test_the_noise_of_the_weights_is_what_the_noise_of_the_gradients_makes_it():
    rng, sigma, steps, n = np.random.default_rng(0), 2.0, 12, 50
    head = LinearHead(np.full(200, 0.5), 3.0)
    found = descend(
        head,
        np.zeros((n, 30)),
        np.zeros((n, 200)),
        np.zeros((n, 200)),
        steps=steps,
        n_records=n,
        total=lambda residuals, rows: sigma * rng.standard_normal((200, 30)),
    )
    expected = noise_variance(steps=steps, step=3.0, sigma=sigma, n_records=n)
    assert found.var() == pytest.approx(expected, rel=0.1)  # 6,000 numbers: 0.1 is 5 deviations
    assert trusted_share(found, expected, 1000) == 0.0
    assert trusted_share(3 * found, expected, 1000) == 1.0
    assert trusted_share(3 * found, expected, 100) == pytest.approx(0.1)


def test_more_photos_more_epsilon_and_fewer_labels_pay_sooner():
    few, many = (forecast(DPTraining(epsilon=2), n, n_labels=20) for n in (100, 1000))
    assert (few.pays, many.pays) == (False, True)
    assert "free start is used unchanged" in few.line()
    assert forecast(DPTraining(epsilon=8), 100, n_labels=20).least < few.least
    assert forecast(DPTraining(epsilon=2), 100, n_labels=80).least > 2 * few.least


def test_a_tenth_of_the_account_goes_to_the_counts():
    facts = TrainingFacts(**FACTS, centred=False, spread=False, informed=True)
    parts = {item.what: item.count * item.mechanism.mu**2 for item in DPTraining().plan(facts)}
    assert parts[COUNTS] / sum(parts.values()) == pytest.approx(0.1, rel=0.01)
    assert parts[GRADIENT] / sum(parts.values()) == pytest.approx(0.9, rel=0.01)


def test_rare_labels_weigh_more_and_a_usual_residual_has_length_one():
    head = LinearHead(np.array([0.5, 0.05, 0.01]), 1.0, power=0.3)
    assert (np.diff(head.weights) > 0).all()
    rates = head.rates
    assert math.sqrt((head.weights**2 * rates * (1 - rates)).sum()) == pytest.approx(1.0)


@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-30, 1.0, 1e30]))
@settings(max_examples=30, deadline=None)
def test_every_input_has_the_same_length_whatever_the_record(seed, scale):
    rng = np.random.default_rng(seed)
    inputs = Inputs.from_public(rng.random((40, 6)), components=4)
    rows = inputs(scale * rng.normal(size=(5, 6)))
    np.testing.assert_allclose(np.linalg.norm(rows[:, :-1], axis=1), 1.0)


def test_rows_that_are_not_finite_count_as_zeros():
    rows, spoiled = private_rows([[1.0, 2.0], [np.nan, 1.0], [np.inf, 0.0], [1e300, 0.0]])
    assert spoiled == 3
    assert rows.tolist() == [[1.0, 2.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
