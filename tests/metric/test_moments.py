"""The closed form: what is released is bounded, read back exactly, and noise alone gives the plain
distance.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindsight.metric.moments import (
    BUCKETS,
    Comparisons,
    MomentRows,
    clipped,
    counted_stretch,
    map_of_moments,
    read_moments,
    release_size,
    worth_moments,
)

SEEDS = st.integers(0, 2**31)


def rows(seed, n=30, d=4, size=1.0):
    rng = np.random.default_rng(seed)
    return MomentRows(clipped(size * rng.normal(size=(n, d))), rng.random(n) < 0.4)


@given(SEEDS, st.floats(1e-3, 1e3))
@settings(max_examples=40, deadline=None)
def test_a_pair_moves_the_moments_by_at_most_the_stated_norm(seed, size):
    made = rows(seed, size=size)
    _, norm = release_size(4)
    everyone = made.weighted_sum(np.ones(30))
    for i in range(0, 30, 7):
        without = np.ones(30)
        without[i] = 0
        moved = np.linalg.norm(everyone - made.weighted_sum(without))
        assert moved == pytest.approx(made.norms(2)[i], rel=1e-6)
        assert moved <= norm * (1 + 1e-12)


def test_the_released_vector_holds_both_matrices_and_both_counts():
    made = rows(0)
    S, D, similar, dissimilar = read_moments(made.weighted_sum(np.ones(30)), 4, 30)
    for matrix, kind in ((S, made.similar), (D, ~made.similar)):
        np.testing.assert_allclose(matrix, made.differences[kind].T @ made.differences[kind])
    assert (similar, dissimilar) == pytest.approx((made.similar.sum(), (~made.similar).sum()))
    assert len(made.weighted_sum(np.ones(30))) == release_size(4)[0]


def test_without_noise_the_first_direction_is_that_of_the_classes():
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 2, 2000)
    X = 0.1 * rng.normal(size=(2000, 5)) @ np.diag([1, 3, 1, 1, 1])
    X[:, 0] += 0.3 * classes
    dx, alike = X[:1000] - X[1000:], classes[:1000] == classes[1000:]
    released = MomentRows(clipped(dx), alike).weighted_sum(np.ones(1000))
    W = map_of_moments(released, columns=5, n_pairs=1000, sigma=1e-6)
    assert abs(W[0, 0]) > 0.9 * np.linalg.norm(W[0])
    assert (np.linalg.norm(clipped(dx) @ W.T, axis=1) ** 2).mean() == pytest.approx(1.0, rel=1e-3)


def test_noise_alone_gives_the_plain_distance_not_a_random_one():
    rng = np.random.default_rng(0)
    coordinates, _ = release_size(8)
    W = map_of_moments(rng.normal(0, 1e4, coordinates), columns=8, n_pairs=100, sigma=1e4)
    values = np.linalg.eigvalsh(W.T @ W)
    assert values.max() / values.min() < 3


@pytest.mark.parametrize("released", [np.zeros(22), np.full(22, -5.0), np.full(22, 1e9)])
def test_any_release_gives_some_map(released):
    W = map_of_moments(released, columns=4, n_pairs=10, sigma=3.0)
    assert np.isfinite(W).all() and np.linalg.norm(W) > 0


def test_the_choice_of_learner_is_by_public_numbers():
    assert worth_moments(37_400, 123, 3.7) and worth_moments(16_928, 32, 3.7)
    assert not worth_moments(2_400, 64, 3.7)
    assert not worth_moments(37_400, 123, 3.7 * 15)  # per record of degree 15


@given(SEEDS, st.sampled_from([2, 3, 5]))
@settings(max_examples=40, deadline=None)
def test_rows_of_the_small_releases_keep_their_norms(seed, width):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(20, 3)) * 10.0 ** rng.integers(-30, 30, 3)
    numbers = np.array([rng.permutation(20)[:width] for _ in range(12)])
    alike = np.zeros((12, width - 1), dtype=bool)
    alike[:, 0] = rng.random(12) < 0.5 if width == 2 else True
    data = Comparisons(X, numbers, alike)
    assert (np.linalg.norm(data.far(), axis=1) <= np.sqrt(2) + 1e-12).all()
    assert (data.spread().norms(2) <= np.sqrt(3) + 1e-9).all()
    histograms = data.distances(np.eye(3), np.linspace(0, 3, 33))
    assert (histograms.norms(2) <= (1.0 if width == 2 else np.sqrt(2)) + 1e-9).all()
    whole = histograms.weighted_sum(np.ones(12))
    assert whole.sum() == pytest.approx(12 * (1 if width == 2 else 2))


def test_norms_and_sums_of_counts_are_those_of_the_rows_laid_out():
    rng = np.random.default_rng(0)
    data = Comparisons(
        rng.normal(size=(20, 3)), rng.integers(0, 20, (15, 3)), np.tile([True, False], (15, 1))
    )
    made = data.spread()
    laid_out = np.zeros((15, made.cells))
    np.add.at(laid_out, (made.row, made.cell), made.size)
    np.testing.assert_allclose(made.norms(2), np.linalg.norm(laid_out, axis=1))
    weights = rng.random(15)
    np.testing.assert_allclose(made.weighted_sum(weights), weights @ laid_out)


def test_counted_sizes_are_within_a_third_of_the_true_ones():
    rng = np.random.default_rng(0)
    widths = np.array([1e-4, 1.0, 700.0, 1e6])
    X = rng.normal(size=(4000, 4)) * widths
    data = Comparisons(X, np.arange(4000).reshape(-1, 2), np.ones((2000, 1), dtype=bool))
    counts = data.spread().weighted_sum(np.ones(2000)) + rng.normal(0, 5.0, 4 * BUCKETS)
    stretch = counted_stretch(counts, 4, noise=5.0)
    np.testing.assert_allclose(stretch * widths * np.sqrt(2) * np.sqrt(4), 1.0, rtol=0.33)


def test_columns_that_cannot_be_seen_stay_small_and_a_hopeless_budget_changes_nothing():
    counts = np.zeros((3, BUCKETS))
    counts[0, 30] = counts[1, 20] = 500
    stretch = counted_stretch(counts.ravel(), 3, noise=1.0)
    assert stretch[2] == stretch.min() and stretch[1] > stretch[0]
    assert np.ptp(counted_stretch(counts.ravel(), 3, noise=1e6)) == 0
