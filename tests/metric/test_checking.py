"""What the owner is told about contradictory labels, and `fit` never says."""

from __future__ import annotations

import numpy as np
import pytest

from blindsight.core.errors import InvalidData
from blindsight.metric import check_pairs


def test_labels_from_classes_are_fine():
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 2, 60)
    pairs = rng.integers(0, 60, (200, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    found = check_pairs(pairs, classes[pairs[:, 0]] == classes[pairs[:, 1]], n_classes=2)
    assert found.fine and found.pairs + found.repeated == len(pairs)


def test_a_chain_of_similar_pairs_contradicts_a_dissimilar_one():
    pairs, y = [[0, 1], [1, 2], [2, 0]], [1, 1, 0]
    found = check_pairs(pairs, y)
    assert found.chains == 1 and "chain of similar pairs" in found.problems()[0]
    assert check_pairs(pairs, y, transitive=False).fine


def test_a_pair_labelled_both_ways_is_counted_once():
    found = check_pairs([[0, 1], [1, 0], [0, 1], [1, 2], [1, 2]], [1, 0, 0, 0, 0])
    assert (found.both_ways, found.repeated, found.pairs) == (1, 3, 2)


def test_three_mutually_dissimilar_records_need_three_classes():
    pairs = [[0, 1], [1, 2], [2, 0], [3, 4]]
    assert check_pairs(pairs, [0, 0, 0, 1]).fine
    assert check_pairs(pairs, [0, 0, 0, 1], n_classes=2).circles == 1
    assert check_pairs(pairs, [0, 0, 1, 0], n_classes=2).circles == 0
    with pytest.raises(InvalidData, match="n_classes"):
        check_pairs(pairs, [0, 0, 1, 0], n_classes=1)


@pytest.mark.parametrize("label", [0, 1])
def test_labels_of_one_kind_are_pointed_out(label):
    assert "other kind" in check_pairs([[0, 1], [2, 3]], [label, label]).problems()[0]
