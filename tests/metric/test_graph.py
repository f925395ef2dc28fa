"""The pair graph refuses what its public structure forbids, whatever the labels say."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.metric.drawing import draw, layout
from blindsight.core.errors import InvalidData
from blindsight.metric import PairGraph, pair_labels


def graph(pairs, y, **keywords):
    return PairGraph.from_pairs(np.asarray(pairs), y, **keywords)


def test_both_label_conventions_mean_the_same():
    assert (
        pair_labels([1, 0]).tolist()
        == pair_labels([1, -1]).tolist()
        == pair_labels([True, False]).tolist()
    )


@pytest.mark.parametrize("y", [[2, 0], [0.5, 1], ["same", "different"], [np.nan, 1]])
def test_other_labels_are_refused(y):
    with pytest.raises(InvalidData):
        pair_labels(y)


def test_a_pair_given_twice_counts_once():
    assert len(graph([[0, 1], [1, 0], [1, 2]], [1, 1, 0])) == 2


def test_self_pairs_are_refused():
    with pytest.raises(InvalidData, match="1 self-pairs"):
        graph([[0, 1], [2, 2]], [1, 0])


def test_a_pair_labelled_both_ways_keeps_its_first_label():
    made = graph([[0, 1], [1, 0], [1, 2]], [1, 0, 0])
    assert made.edges.tolist() == [[0, 1], [1, 2]] and made.similar.tolist() == [True, False]


def test_unknown_records_are_refused():
    with pytest.raises(InvalidData, match="2 unknown records"):
        graph([[0, 1], [7, 9]], [1, 0], n_nodes=5)


def test_empty_and_misshapen_pairs_are_refused():
    with pytest.raises(InvalidData, match="empty"):
        graph(np.empty((0, 2), dtype=int), [])
    with pytest.raises(InvalidData, match="shape"):
        graph([[0, 1, 2]], [1])
    with pytest.raises(InvalidData, match="labels"):
        graph([[0, 1]], [1, 0])
    with pytest.raises(InvalidData, match="negative"):
        graph([[0, -1]], [1])


def test_batches_partition_the_edges_and_stay_within_components_where_they_fit():
    pairs = np.array([[2 * i + j, 2 * i + j + 1] for i in range(0, 40, 10) for j in range(8)])
    made = graph(pairs, np.ones(len(pairs)))
    batches = list(made.batches(8, rng=np.random.default_rng(1)))
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(made)))
    component = made.components()
    assert all(len(set(component[made.edges[batch, 0]])) == 1 for batch in batches)


def test_the_layout_keeps_joined_records_nearer_than_others():
    pairs = np.array([[i, i + 1] for i in range(9)] + [[i, i + 1] for i in range(10, 19)])
    points = layout(graph(pairs, np.ones(len(pairs))))
    assert points.shape == (20, 2) and points.min() >= 0 and points.max() <= 1
    joined = np.linalg.norm(points[pairs[:, 0]] - points[pairs[:, 1]], axis=1).mean()
    apart = np.linalg.norm(points[:, None] - points[None, :], axis=2).sum() / (20 * 19)
    assert joined < apart / 2
    assert layout(graph(pairs, np.ones(len(pairs)))).tolist() == points.tolist()


def test_the_drawing_shows_both_kinds_of_pairs(tmp_path):
    pairs = np.array([[0, 1], [1, 2], [2, 3], [3, 0], [4, 5]])
    path = draw(graph(pairs, [1, 0, 1, 0, 1]), tmp_path / "graph.svg")
    text = path.read_text()
    assert text.lstrip().startswith("<?xml") and "stroke-dasharray" in text


def test_a_large_graph_is_drawn_by_its_largest_components(tmp_path):
    pairs = np.column_stack([np.arange(0, 1000, 2), np.arange(1, 1000, 2)])
    path = draw(graph(pairs, np.ones(500)), tmp_path / "graph.svg", max_nodes=50)
    assert path.stat().st_size < 200_000
