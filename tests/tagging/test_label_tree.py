"""The Chow-Liu tree: exact on small cases, by enumeration."""

from __future__ import annotations

import itertools

import numpy as np

from blindsight.tagging.label_graph import cooccurrence
from blindsight.tagging.label_tree import LabelTree


def chain(n=20_000, seed=0):
    """Labels where each depends on the one before: 0 -> 1 -> 2 -> 3."""
    rng = np.random.default_rng(seed)
    y = np.zeros((n, 4), np.uint8)
    y[:, 0] = rng.random(n) < 0.4
    for j in range(1, 4):
        y[:, j] = rng.random(n) < np.where(y[:, j - 1] > 0, 0.8, 0.2)
    return y


def joint(tree, sets):
    total = np.zeros(len(sets))
    for i, row in enumerate(sets):
        p = 1.0
        for label in tree.order:
            up = tree.parent[label]
            on = tree.rate[label] if up < 0 else tree.table[label, row[up]]
            p *= on if row[label] else 1 - on
        total[i] = p
    return total


def test_a_chain_is_found():
    tree = LabelTree.from_counts(cooccurrence(chain()), 20_000)
    edges = {frozenset((int(c), int(p))) for c, p in enumerate(tree.parent) if p >= 0}
    assert edges == {frozenset((0, 1)), frozenset((1, 2)), frozenset((2, 3))}


def test_probabilities_sum_to_one_and_samples_follow_them():
    tree = LabelTree.from_counts(cooccurrence(chain()), 20_000)
    sets = np.array(list(itertools.product((0, 1), repeat=4)))
    p = joint(tree, sets)
    assert abs(p.sum() - 1) < 1e-9
    drawn = tree.sample(50_000, rng=np.random.default_rng(1))
    share = np.array([(drawn == row).all(axis=1).mean() for row in sets])
    np.testing.assert_allclose(share, p, atol=0.02)


def test_posterior_equals_enumeration():
    tree = LabelTree.from_counts(cooccurrence(chain()), 20_000)
    sets = np.array(list(itertools.product((0, 1), repeat=4)))
    evidence = np.random.default_rng(2).normal(size=(5, 4)) * 2
    weight = joint(tree, sets)[None] * np.exp(evidence @ sets.T)
    exact = (weight / weight.sum(axis=1, keepdims=True)) @ sets
    np.testing.assert_allclose(tree.posterior(evidence), exact, atol=1e-9)


def test_counts_full_of_noise_still_make_a_tree():
    rng = np.random.default_rng(0)
    noise = np.abs(rng.normal(size=(6, 6)) * 50)
    tree = LabelTree.from_counts(noise + noise.T, 10)
    assert np.isfinite(tree.posterior(rng.normal(size=(3, 6)) * 100)).all()
    assert tree.sample(10, rng=rng).shape == (10, 6)


def test_one_label_is_a_tree_too():
    tree = LabelTree.from_counts(np.array([[3.0]]), 10)
    assert tree.sample(5, rng=np.random.default_rng(0)).shape == (5, 1)
    np.testing.assert_allclose(tree.posterior(np.zeros((1, 1))), 0.3)
