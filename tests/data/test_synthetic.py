from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from scipy.spatial.distance import cdist

from blindsight import data
from blindsight.core.errors import InvalidParameter


def test_strips_are_the_paper_s_toy_example() -> None:
    strips = data.two_strips()
    assert strips.X.shape == (200, 2) and np.bincount(strips.y).tolist() == [100, 100]
    assert np.abs(strips.X).sum(axis=1).max() <= 1
    np.testing.assert_array_equal(strips.X, data.two_strips().X)
    assert not np.array_equal(strips.X, data.two_strips(seed=1).X)
    # One long and one short direction in each class, and the strips side by side along the long
    # one.
    for label in (0, 1):
        spread = np.linalg.eigvalsh(np.cov(strips.X[strips.y == label].T))
        assert spread[1] > 10 * spread[0]


def test_a_metric_across_the_strips_tells_them_apart() -> None:
    strips = data.two_strips()
    same = strips.y[:, None] == strips.y[None, :]

    def separation(X: np.ndarray) -> float:
        distances = cdist(X, X)
        return float(distances[~same].mean() / distances[same].mean())

    assert separation(strips.X) < 1.5  # the strips' length hides their distance
    assert separation(strips.X @ np.array([[1.0], [-1.0]])) > 3


def test_toy_pairs_form_a_forest_of_the_paper_s_size() -> None:
    strips = data.two_strips()
    pairs = data.acyclic_pairs(strips.y)
    assert len(pairs) == 150 and pairs.labels.sum() == 100
    graph = nx.empty_graph(200)
    graph.add_edges_from(pairs.indices.tolist())
    assert nx.number_connected_components(graph) == 200 - 150  # as many trees as a forest has
    same = strips.y[pairs.indices[:, 0]] == strips.y[pairs.indices[:, 1]]
    np.testing.assert_array_equal(same, pairs.labels == 1)
    with pytest.raises(InvalidParameter, match="without a cycle"):
        data.acyclic_pairs(strips.y[:10], similar=50)
    with pytest.raises(InvalidParameter, match="two classes"):
        data.acyclic_pairs(np.zeros(10, int), similar=2)


def test_scenes_hold_up_to_four_digits_and_their_labels() -> None:
    scenes = data.scenes(60, seed=3)
    assert scenes.array().shape == (60, 64, 64) and scenes.labels.shape == (60, 10)
    assert scenes.labels.sum(axis=1).min() >= 1 and scenes.labels.sum(axis=1).max() == 4
    quarters = scenes.array().reshape(60, 2, 32, 2, 32).max(axis=(2, 4)) > 0
    assert (quarters.sum(axis=(1, 2)) >= scenes.labels.sum(axis=1)).all()
    np.testing.assert_array_equal(scenes.array(), data.scenes(60, seed=3).array())
    assert (data.scenes(20, most=1).labels.sum(axis=1) == 1).all()
    with pytest.raises(InvalidParameter, match="most"):
        data.scenes(10, most=5)


def test_scenes_of_train_and_test_share_no_digit() -> None:
    parts = {
        split: data.scenes(100, split=split, most=1, seed=1).array() for split in ("train", "test")
    }
    prints = {
        split: {scene[scene > 0].tobytes() for scene in scenes} for split, scenes in parts.items()
    }
    assert not prints["train"] & prints["test"]
