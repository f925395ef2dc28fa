"""Reading flipped codes: against enumeration of every flip pattern."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from blindsight.core import codes
from blindsight.core.errors import InvalidData, InvalidParameter


def patterns(n_bits: int, beta: float):
    """Every flip pattern with its probability."""
    for flips in itertools.product((0, 1), repeat=n_bits):
        ones = sum(flips)
        yield np.array(flips, dtype=np.uint8), beta**ones * (1 - beta) ** (n_bits - ones)


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.3, 0.5])
def test_flip_kernel_equals_enumeration_of_all_flips(beta):
    n_bits = 5
    for d in range(n_bits + 1):
        difference = np.array([1] * d + [0] * (n_bits - d), dtype=np.uint8)
        expected = np.zeros(n_bits + 1)
        for flips, probability in patterns(n_bits, beta):
            expected[(difference ^ flips).sum()] += probability
        np.testing.assert_allclose(codes.flip_kernel(n_bits, beta)[d], expected, atol=1e-12)


def test_debiased_distance_is_unbiased():
    n_bits, beta = 7, 0.2
    kernel = codes.flip_kernel(n_bits, beta)
    estimates = codes.debias(np.arange(n_bits + 1), n_bits, beta)
    np.testing.assert_allclose(kernel @ estimates, np.arange(n_bits + 1), atol=1e-12)


def test_debiasing_keeps_the_ranking():
    assert (np.diff(codes.debias(np.arange(33), 32, 0.4)) > 0).all()


def test_asymmetric_score_is_the_expected_inner_product():
    rng = np.random.default_rng(0)
    z, bits, betas = (
        rng.normal(size=(3, 4)),
        rng.integers(0, 2, (2, 4)),
        np.array([0.0, 0.1, 0.2, 0.45]),
    )
    averaged = np.zeros((3, 2))
    for flips in itertools.product((0, 1), repeat=4):
        mask = np.array(flips)
        weight = np.prod(np.where(mask, betas, 1 - betas))
        averaged += weight * (z @ (2 * (bits ^ mask) - 1).T)
    expected = z @ ((1 - 2 * betas) * (2 * bits - 1)).T
    np.testing.assert_allclose(
        codes.asymmetric_scores(z, codes.pack(bits), betas), expected, rtol=1e-5
    )
    np.testing.assert_allclose(
        averaged, expected, atol=1e-12
    )  # E[released sign] = (1 - 2 beta) sign


def test_sharp_scores_are_log_likelihoods():
    z, beta, sharpness = np.array([[0.4, -1.2]]), 0.2, 2.0
    every = np.array(list(itertools.product((0, 1), repeat=2)))
    scores = codes.asymmetric_scores(z, codes.pack(every), beta, sharpness=sharpness)
    assert np.exp(scores).sum() == pytest.approx(1, abs=1e-5)
    ones = 1 / (1 + np.exp(-sharpness * z[0]))
    seen = ones * (1 - beta) + (1 - ones) * beta
    expected = np.log(np.where(every, seen, 1 - seen)).sum(axis=1)
    np.testing.assert_allclose(scores[0], expected, rtol=1e-5)


def test_match_posterior_is_bayes_rule_on_simulated_pairs():
    rng = np.random.default_rng(1)
    n_bits, beta, prior, n = 16, 0.2, 0.3, 200_000
    similar = rng.random(n) < prior
    true = np.where(similar, rng.binomial(n_bits, 0.1, n), rng.binomial(n_bits, 0.5, n))
    seen = rng.binomial(true, 1 - beta) + rng.binomial(n_bits - true, beta)
    model = codes.MatchModel.independent_bits(n_bits, beta, prior=prior)
    for d in (2, 5, 7):
        hits = seen == d
        share, count = similar[hits].mean(), hits.sum()
        assert abs(share - model.posterior(d)) < 5 / np.sqrt(
            count
        )  # five deviations and more: below 1e-6
    learned = codes.MatchModel.from_pairs(true, similar, n_bits=n_bits, beta=beta)
    np.testing.assert_allclose(learned.curve()[:9], model.curve()[:9], atol=0.02)


def test_threshold_keeps_only_hits_that_are_sure_enough():
    model = codes.MatchModel.independent_bits(32, 0.1, prior=0.01)
    radius = model.threshold(0.9)
    assert model.posterior(np.arange(radius + 1)).min() >= 0.9 > model.posterior(radius + 1)
    assert codes.MatchModel.independent_bits(8, 0.5, prior=0.01).threshold(0.9) == -1


def test_the_furthest_codes_are_not_taken_for_matches_because_no_pair_was_so_far_apart():
    rng = np.random.default_rng(3)
    near, far = rng.binomial(64, 0.05, 200), rng.binomial(64, 0.5, 20_000)
    model = codes.MatchModel.from_pairs(
        np.r_[near, far], np.arange(20_200) < 200, n_bits=64, beta=0.02
    )
    curve = model.curve()
    assert (np.diff(curve) <= 0).all()
    assert curve[0] > 0.9 and curve[-1] < 1e-3


def test_without_information_the_posterior_is_the_prior():
    model = codes.MatchModel.independent_bits(8, 0.5, prior=0.25)
    np.testing.assert_allclose(model.curve(), 0.25)


@pytest.mark.parametrize("subset", [1, 2])
def test_cell_posterior_is_bayes_rule_over_all_releases(subset):
    k, epsilon = 4, 1.3
    prior = np.array([0.1, 0.2, 0.3, 0.4])
    sets = np.array([[v in c for v in range(k)] for c in itertools.combinations(range(k), subset)])
    likelihood = np.where(sets, np.exp(epsilon), 1.0)
    likelihood /= likelihood.sum(axis=0)  # P(set | cell)
    expected = likelihood * prior
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(codes.cell_posterior(sets, epsilon, prior), expected, rtol=1e-5)


@pytest.mark.parametrize("beta", [0.6, -0.1, [0.1, 0.2]])
def test_flip_probabilities_above_one_half_or_of_another_length_are_refused(beta):
    with pytest.raises((InvalidParameter, InvalidData)):
        codes.log_odds(beta, 3)
