"""The label graph: ML-GCN's equations by hand, and the noise on the counts with the right
sensitivity.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindsight.core.errors import BudgetExceeded, InvalidData, InvalidParameter
from blindsight.privacy import Cost, Ledger
from blindsight.privacy.door import Outer
from blindsight.tagging.gcn import (
    LabelGraph,
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


def test_the_published_code_s_graph_is_transposed_and_keeps_the_labels_themselves():
    # Label 0 always comes with label 1, not the other way round: one edge, 0 -> 1.
    graph = LabelGraph.from_labels([[1, 1], [0, 1], [0, 1]])
    a = np.array([[1.0, 0.25 / (1 + 1e-6)], [0.0, 1.0]])
    d = 1 / np.sqrt(a.sum(axis=1))
    np.testing.assert_allclose(graph.as_published, ((a * d[None, :]).T) * d[None, :])


@given(st.integers(1, 4), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_no_record_moves_the_counts_by_more_than_its_share(most, seed):
    y = (np.random.default_rng(seed).random((20, 6)) < 0.6).astype(float)
    rows = Outer(y, y)
    weights = np.minimum(1.0, most / np.maximum(rows.norms(2), 1e-300))
    for record in range(20):
        alone = np.eye(20)[record] * weights
        assert np.linalg.norm(rows.weighted_sum(alone)) <= most + 1e-9


def test_noisy_graph_nears_the_exact_one_as_epsilon_grows():
    y = (np.random.default_rng(0).random((3000, 8)) < 0.25).astype(int)
    exact = LabelGraph.from_labels(y).conditional
    error = [
        np.abs(
            LabelGraph.released(y, epsilon=e, delta=1e-6, max_labels=8, random_state=0).conditional
            - exact
        ).mean()
        for e in (0.2, 2.0, 200.0)
    ]
    assert error[0] > error[1] > error[2]
    assert error[2] < 2e-3


def test_noisy_counts_are_a_valid_graph():
    graph = LabelGraph.released(Y, epsilon=0.1, delta=1e-6, random_state=3)
    assert np.isfinite(graph.normalised).all()
    assert (graph.conditional <= 1).all()


def test_a_released_graph_is_charged_first(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db", dataset="photos")
    ledger.grant(Cost(epsilon=1.0, delta=1e-5, unit="record", neighbours="add or remove one"))
    LabelGraph.released(Y, epsilon=0.8, delta=1e-6, ledger=ledger)
    with pytest.raises(BudgetExceeded):
        LabelGraph.released(Y, epsilon=0.8, delta=1e-6, ledger=ledger)


@pytest.mark.parametrize("bad", [[[0, 2]], [1, 0], [[0.5]], np.zeros((0, 3)), [["x"]]])
def test_labels_that_are_not_zero_or_one_are_refused(bad):
    with pytest.raises(InvalidData):
        cooccurrence(bad)


def test_bad_parameters_are_refused():
    with pytest.raises(InvalidParameter):
        LabelGraph.released(Y, epsilon=0.0, delta=1e-6)
    with pytest.raises(InvalidParameter):
        LabelGraph.released(Y, epsilon=1.0, delta=1e-6, max_labels=0)
    with pytest.raises(InvalidData):
        LabelGraph(np.array([[1.0, 2.0], [0.0, 1.0]]))
