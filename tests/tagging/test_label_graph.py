"""The label graph: ML-GCN's equations by hand, and the noise on the counts with the right sensitivity."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.tagging.label_graph import (
    CountsRelease,
    LabelGraph,
    clip_labels,
    conditional,
    cooccurrence,
    correlation,
    normalise,
    reweight,
)

Y = np.array([[1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]])


def test_counts_are_images_that_have_both_labels():
    by_hand = [[sum(r[i] and r[j] for r in Y.tolist()) for j in range(4)] for i in range(4)]
    assert cooccurrence(Y).tolist() == by_hand


def test_conditional_probability_is_of_the_column_given_the_row():
    p = conditional(cooccurrence(Y))
    assert p[2, 0] == 1.0
    assert p[0, 2] == pytest.approx(1 / 3)
    assert (p[3] == 0).all()  # a label that never occurs
    assert (np.diag(p) == 0).all()


def test_reweighting_keeps_one_minus_p_for_the_label_itself():
    graph = LabelGraph.from_labels(Y, threshold=0.4, p=0.2)
    a = graph.adjacency
    # Label 0 has one neighbour (1, at 2/3); label 2 has one (0, at 1); label 3 has none.
    assert a[0].tolist() == pytest.approx([0.8, 0.2, 0, 0])
    assert a[2].tolist() == pytest.approx([0.2, 0, 0.8, 0])
    assert a[3].tolist() == [0, 0, 0, 1]
    assert a.sum(axis=1) == pytest.approx(np.ones(4))


def test_the_weight_is_shared_by_the_neighbours():
    a = reweight(np.ones((5, 5)), 0.2)
    assert a[0, 1] == pytest.approx(0.05)
    assert a[0, 0] == pytest.approx(0.8)


def test_threshold_keeps_edges_at_tau_itself():
    p = np.array([[0, 0.4], [0.39, 0]])
    assert correlation(p, 0.4).tolist() == [[0, 1], [0, 0]]


def test_normalisation_is_by_the_roots_of_the_row_sums():
    a = np.array([[4.0, 0], [5.0, 4.0]])
    np.testing.assert_allclose(normalise(a), [[1, 0], [5 / 6, 4 / 9]])


@given(st.integers(1, 4), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_no_record_keeps_more_than_its_share_of_labels(most, seed):
    rng = np.random.default_rng(seed)
    y = (rng.random((20, 6)) < 0.6).astype(int)
    kept = clip_labels(y, most, rng=rng)
    assert (kept <= y).all()
    assert (kept.sum(axis=1) == np.minimum(y.sum(axis=1), most)).all()


def test_sensitivity_found_by_search_is_what_the_noise_is_calibrated_to():
    # Every record of at most m of 5 labels, added to a fixed set: the largest change of the released vector.
    for m in (1, 2, 3):
        base = np.zeros((1, 5), int)
        worst1 = worst2 = 0.0
        for size in range(m + 1):
            for chosen in itertools.combinations(range(5), size):
                record = np.isin(np.arange(5), chosen).astype(int)[None]
                change = cooccurrence(np.vstack([base, record])) - cooccurrence(base)
                vector = change[np.triu_indices(5)]
                worst1, worst2 = max(worst1, np.abs(vector).sum()), max(worst2, np.linalg.norm(vector))
        laplace = CountsRelease(epsilon=1.0, max_labels=m).mechanism(5)
        gauss = CountsRelease(epsilon=1.0, delta=1e-6, max_labels=m).mechanism(5)
        assert laplace.sensitivity == worst1 == m * (m + 1) / 2
        assert math.sqrt(float(gauss.squared_sensitivity)) == pytest.approx(worst2)


def test_the_noise_has_the_scale_that_epsilon_needs():
    release = CountsRelease(epsilon=0.5, max_labels=2)
    rng = np.random.default_rng(0)
    y = np.tile(np.eye(3, dtype=int), (1000, 1))  # counts far from zero: nothing is cut off
    draws = np.array([np.diag(release.release(y, rng=rng)) for _ in range(500)]).ravel() - 1000
    # Discrete Laplace of scale 3 / 0.5 = 6: mean absolute value 1/sinh(1/6) = 5.97; 1,500 draws, 8 deviations.
    assert abs(np.abs(draws).mean() - 1 / math.sinh(1 / 6)) < 8 * 6 / math.sqrt(1500)
    assert release.cost(3).epsilon <= 0.5
    assert release.cost(3).unit == "record"
    assert release.cost(3).neighbours == "add or remove one"


def test_neighbouring_counts_differ_by_at_most_epsilon():
    release = CountsRelease(epsilon=0.7, max_labels=2)
    mechanism = release.mechanism(4)
    upper = np.triu_indices(4)
    y = np.array([[1, 0, 1, 0], [0, 1, 0, 0]])
    here = cooccurrence(y)[upper].astype(float)
    there = cooccurrence(np.vstack([y, [0, 1, 1, 0]]))[upper].astype(float)
    out = mechanism.release(np.tile(here, (500, 1)), rng=np.random.default_rng(1))
    loss = (mechanism.log_prob(out, here) - mechanism.log_prob(out, there)).sum(axis=1)
    assert np.abs(loss).max() <= 0.7 + 1e-9


def test_noisy_graph_nears_the_exact_one_as_epsilon_grows():
    rng = np.random.default_rng(0)
    y = (rng.random((3000, 8)) < 0.25).astype(int)
    exact = LabelGraph.from_labels(y).conditional
    error = [
        np.abs(LabelGraph(CountsRelease(epsilon=e, max_labels=8).release(y, rng=rng)).conditional - exact).mean()
        for e in (0.2, 2.0, 200.0)
    ]
    assert error[0] > error[1] > error[2]
    assert error[2] < 1e-3


def test_noisy_counts_are_a_valid_graph():
    rng = np.random.default_rng(3)
    counts = CountsRelease(epsilon=0.1).release(Y, rng=rng)
    graph = LabelGraph(counts)
    assert np.isfinite(graph.normalised).all()
    assert (graph.conditional <= 1).all()


@pytest.mark.parametrize("bad", [[[0, 2]], [1, 0], [[0.5]], np.zeros((0, 3)), [["x"]]])
def test_labels_that_are_not_zero_or_one_are_refused(bad):
    with pytest.raises(InvalidData):
        cooccurrence(bad)


def test_bad_parameters_are_refused():
    with pytest.raises(InvalidParameter):
        CountsRelease(epsilon=0.0)
    with pytest.raises(InvalidParameter):
        CountsRelease(epsilon=1.0, max_labels=0)
    with pytest.raises(InvalidData):
        LabelGraph(np.array([[1.0, 2.0], [0.0, 1.0]]))
