"""PITQ: the paper's claim falls to an attack, the proven one stands."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats
from sklearn.datasets import load_digits

from blindsight.core.errors import InvalidParameter, NotProven
from blindsight.hashing import ITQ, PITQ
from blindsight.hashing.guarantee import Share, plan_for
from blindsight.privacy import Cost, Ledger
from blindsight.privacy.accounting import price

X = load_digits().data[:400] / 16.0


def audited_epsilon(make, trials=100, confidence=0.95) -> float:
    """A lower bound on epsilon: does the released code of a record equal what W and R say of one of
    two images?
    """
    inside, outside = X.copy(), X.copy()
    outside[0] = 1 - inside[0]
    hits = []
    for data, seed in itertools.product((inside, outside), range(trials)):
        hasher = make(seed).fit(data)
        released = hasher.transform(data[:1])
        hits.append(np.array_equal(released, hasher.query(inside[:1])))
    seen, false = sum(hits[:trials]), sum(hits[trials:])
    alpha = (1 - confidence) / 2
    least = stats.beta.ppf(alpha, seen, trials - seen + 1) if seen else 0.0
    most = stats.beta.ppf(1 - alpha, false + 1, trials - false) if false < trials else 1.0
    return max(0.0, math.log(least / most)) if least > 0 else 0.0


def test_the_papers_claim_is_refuted_by_an_attack():
    def make(seed):
        return PITQ(8, epsilon=1.0, calibration="paper", n_iterations=3, random_state=seed)

    hasher = make(0).fit(X)
    assert hasher.guarantee_.claimed == 1.0
    assert math.isinf(hasher.guarantee_.epsilon)
    assert audited_epsilon(make) > 1.0


def test_the_proven_promise_is_not_refuted_by_the_same_attack():
    def make(seed):
        return PITQ(8, epsilon=1.0, n_iterations=2, random_state=seed)

    assert make(0).fit(X).guarantee_.epsilon == pytest.approx(1.0, rel=1e-2)
    assert audited_epsilon(make) <= 1.0


def test_the_papers_rotation_only_follows_the_negated_codes():
    hasher = PITQ(8, epsilon=0.25, calibration="paper", random_state=0).fit(X)
    assert hasher.mechanism_.beta == pytest.approx(math.exp(-0.25 / 50))
    assert np.mean(hasher.turns_[10:]) < -0.95


def test_the_printed_procrustes_step_is_the_identity():
    hasher = PITQ(8, epsilon=1.0, calibration="paper", procrustes="printed", random_state=0).fit(X)
    np.testing.assert_allclose(hasher.rotation_, np.eye(8), atol=1e-12)
    with pytest.raises(InvalidParameter, match="printed"):
        PITQ(8, procrustes="printed").fit(X)


def test_public_learning_costs_nothing_and_equals_iterative_quantisation():
    hasher = PITQ(
        8, epsilon=4.0, learned_from="public", clip=100.0, n_iterations=20, random_state=0
    ).fit(X)
    assert hasher.guarantee_.epsilon == pytest.approx(4.0)
    assert hasher.guarantee_.delta == 0
    plain = ITQ(8, n_iterations=20, random_state=0).fit(X)
    assert (hasher.query(X) == plain.transform(X)).mean() > 0.99


def test_learning_and_codes_add_up_to_the_budget():
    guarantee = PITQ(8, epsilon=2.0, learning_share=0.5).fit(X).guarantee_
    assert 1.98 < guarantee.epsilon <= 2.0 and guarantee.delta == 1e-5
    assert guarantee.releases == PITQ(8, epsilon=2.0, learning_share=0.5).plan(
        n_features=X.shape[1]
    )


def test_what_leaves_is_drawn_exactly():
    hasher = PITQ(8, epsilon=2.0).fit(X)
    assert all(item.mechanism.sampler == "exact" for item in hasher.guarantee_.releases)
    (planned,) = (item for item in hasher.guarantee_.releases if item.what == "mean")
    steps = hasher.mean_ * len(X) / planned.mechanism.grid
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-3)


def test_algorithm_three_cannot_be_charged(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db", dataset="ward")
    ledger.grant(Cost(epsilon=10, unit="record"))
    with pytest.raises(NotProven):
        PITQ(8, calibration="paper").fit(X, ledger=ledger)


def test_replacing_one_row_moves_the_moments_by_at_most_their_sensitivity():
    rng = np.random.default_rng(0)
    unit = rng.normal(size=(500, 2, 5))
    unit /= np.linalg.norm(unit, axis=2, keepdims=True)
    y, z = unit[:, 0], unit[:, 1]
    assert np.linalg.norm(y - z, axis=1).max() <= 2
    second = np.linalg.norm(y[:, :, None] * y[:, None] - z[:, :, None] * z[:, None], axis=(1, 2))
    assert second.max() <= math.sqrt(2) + 1e-12
    u, w = np.sign(rng.normal(size=(2, 500, 7)))
    cross = np.linalg.norm(u[:, :, None] * y[:, None] - w[:, :, None] * z[:, None], axis=(1, 2))
    assert cross.max() <= 2 * math.sqrt(7) + 1e-12


def test_shares_of_noise_compose_to_the_whole_budget():
    shares = [Share("a", 0.1, 2.0, 50), Share("b", 0.5, 1.4, 900), Share("c", 0.4, 3.0, 64, 5)]
    plan = plan_for(shares, epsilon=1.0, delta=1e-5)
    assert 0.99 < price(plan, delta=1e-5).epsilon <= 1.0
    spent = [item.count * item.mechanism.mu**2 for item in plan]
    np.testing.assert_allclose(np.array(spent) / sum(spent), [0.1, 0.5, 0.4], atol=2e-3)


def test_noise_really_enters_what_is_learned():
    exact = PITQ(8, learned_from="public", random_state=0).fit(X)
    noisy = PITQ(8, epsilon=0.1, random_state=0).fit(X)
    assert np.linalg.norm(exact.mean_ - noisy.mean_) > 0.05
