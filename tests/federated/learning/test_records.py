"""Epsilon per record: what a record adds to a site's sum is bounded, and the model is learned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from blindsight.core.errors import InvalidParameter
from blindsight.federated import FederatedClassifier, SumNoise
from blindsight.federated.learning import RecordDescent
from blindsight.privacy import Cost, Ledger


@pytest.mark.parametrize("classes", [2, 4])
@given(
    scale=st.sampled_from([0.0, 1.0, 1e3, 1e9]),
    label=st.integers(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=20, deadline=None)
def test_a_record_moves_a_contribution_by_at_most_the_norm_that_the_noise_covers(
    classes: int, scale: float, label: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    descent, width = RecordDescent(clip=0.3), 5
    weights = 50 * rng.normal(size=(1 if classes == 2 else classes) * (width + 1))
    X, y = rng.normal(size=(9, width)), rng.integers(0, classes, 9)
    X[-1], y[-1] = scale * X[-1], label
    with_it = descent.contribution(weights, X, y, classes=classes)
    without = descent.contribution(weights, X[:-1], y[:-1], classes=classes)
    assert np.linalg.norm(with_it - without) <= descent.record_norm


def test_the_mean_gradient_needs_nobodys_number_of_records() -> None:
    descent, weights = RecordDescent(clip=10.0, rate=1.0), np.zeros(12)
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(30, 3)), rng.integers(0, 3, 30)
    whole = descent.advanced(weights, descent.contribution(weights, X, y, classes=3))
    parts = [
        descent.contribution(weights, X[s], y[s], classes=3) for s in (slice(0, 4), slice(4, 30))
    ]
    np.testing.assert_allclose(descent.advanced(weights, sum(parts)), whole, rtol=1e-12)
    rows = np.column_stack([X, np.ones(30)])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    expected = (np.eye(3)[y] - 1 / 3).T @ rows / 30
    np.testing.assert_allclose(whole, expected.ravel(), rtol=1e-3)


def test_five_sites_learn_digits_with_epsilon_per_record_and_pay_for_it(tmp_path: Path) -> None:
    X, y = load_digits(return_X_y=True)
    model = FederatedClassifier(
        classes=list(range(10)),
        rounds=20,
        noise=SumNoise(epsilon=2.0, unit="record", records=400),
        encrypt=False,
        random_state=1,
    )
    with Ledger(tmp_path / "budget.db", dataset="digits") as ledger:
        budget = Cost(epsilon=3.0, delta=1e-4, unit="record", neighbours="add or remove one")
        ledger.grant(budget)
        model.fit(X[300:], y[300:], public=(X[:100], y[:100]), ledger=ledger)
        assert ledger.balance("record").spent.epsilon == pytest.approx(2.0, rel=0.02)
    # The noise is drawn from a fixed seed, so this is the same number every time.
    assert model.score(X[100:300], y[100:300]) > 0.8
    assert model.guarantee_.unit == "record"
    assert model.guarantee_.epsilon <= 2.0
    model.save(tmp_path / "model.safetensors")
    loaded = FederatedClassifier.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(loaded.predict(X[:50]), model.predict(X[:50]))
    assert loaded.guarantee_ == model.guarantee_


def test_options_that_do_not_belong_together_are_refused() -> None:
    X, y = np.random.default_rng(5).normal(size=(30, 2)), np.arange(30) % 2
    with pytest.raises(InvalidParameter, match="unit='record'"):
        FederatedClassifier(learner=RecordDescent(), classes=[0, 1]).fit(X, y)
    with pytest.raises(InvalidParameter, match="learner clips"):
        SumNoise(epsilon=1.0, unit="record", clip=1.0)
    from blindsight.federated.learning import SGD

    noise = SumNoise(epsilon=1.0, unit="record")
    with pytest.raises(InvalidParameter, match="RecordDescent"):
        FederatedClassifier(learner=SGD(), noise=noise, classes=[0, 1]).fit(X, y)
