"""Retrieval figures: against every permutation of tied items, and against sorting."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.hashing.plots import lookup_curve
from blindsight.core import codes
from blindsight.core.errors import InvalidData
from blindsight.evaluation import retrieval


def ap(relevant) -> float:
    """Average precision of one strict ranking, by the definition."""
    relevant = np.asarray(relevant, dtype=float)
    precision = np.cumsum(relevant) / np.arange(1, len(relevant) + 1)
    return float((precision * relevant).sum() / relevant.sum())


def orders(distances, relevant):
    """Average precision of every order that the distances allow."""
    for order in itertools.permutations(range(len(distances))):
        if all(distances[a] <= distances[b] for a, b in itertools.pairwise(order)):
            yield ap([relevant[i] for i in order])


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6))
def test_tie_aware_precision_equals_the_average_over_all_permutations(items):
    distances, relevant = [d for d, _ in items], [r for _, r in items]
    counts = np.zeros((1, 2, 4), dtype=np.int64)
    for d, r in items:
        counts[0, 0, d] += 1
        counts[0, 1, d] += r
    found = retrieval.average_precisions(counts)
    ranked = retrieval.ranked_precisions(
        lambda rows: -np.array([distances], dtype=np.float32), [1], np.array(relevant, dtype=int)
    )
    if not any(relevant):
        assert np.isnan(found.expected[0])
        assert np.isnan(ranked[0])
        return
    every = list(orders(distances, relevant))
    assert found.expected[0] == pytest.approx(np.mean(every), abs=1e-12)
    assert found.least[0] == pytest.approx(min(every), abs=1e-12)
    assert found.most[0] == pytest.approx(max(every), abs=1e-12)
    assert ranked[0] == pytest.approx(np.mean(every), abs=1e-12)


@pytest.mark.parametrize("n_bits", [12, 64, 100])
@pytest.mark.parametrize("multilabel", [False, True])
def test_counts_equal_brute_force(n_bits, multilabel):
    rng = np.random.default_rng(n_bits)
    a, b = (rng.integers(0, 2, (n, n_bits)) for n in (7, 53))
    labels = (rng.integers(0, 2, (n, 70)) * (rng.random((n, 70)) < 0.1) for n in (7, 53))
    y, z = labels if multilabel else (rng.integers(0, 3, 7), rng.integers(0, 3, 53))
    counts = retrieval.distance_counts(codes.pack(a), codes.pack(b), y, z)
    for i in range(7):
        relevant = (y[i] * z).any(axis=1) if multilabel else y[i] == z
        distance = (a[i] != b).sum(axis=1)
        width = counts.shape[2]
        assert np.array_equal(counts[i, 0], np.bincount(distance, minlength=width))
        assert np.array_equal(counts[i, 1], np.bincount(distance[relevant], minlength=width))


def test_without_ties_it_equals_naive_argsort_to_nine_digits():
    rng = np.random.default_rng(4)
    n = 65  # one code at each distance 0..64 from the query
    stored = codes.pack(np.tril(np.ones((n, 64)), -1)[:, :64])
    order = rng.permutation(n)
    labels = rng.integers(0, 2, n)
    query = codes.pack(np.zeros((1, 64)))
    found = retrieval.mean_average_precision(query, stored[order], [1], labels)
    distance = codes.hamming(query, stored[order])[0]
    assert len(np.unique(distance)) == n
    assert found == pytest.approx(ap(labels[np.argsort(distance)]), abs=1e-9)
    bounds = retrieval.average_precisions(
        retrieval.distance_counts(query, stored[order], [1], labels)
    ).bounds
    assert bounds == (pytest.approx(found), pytest.approx(found))


def test_real_valued_scores_equal_naive_argsort():
    rng = np.random.default_rng(5)
    scores = rng.normal(size=(20, 300)).astype(np.float32)
    y, z = rng.integers(0, 4, 20), rng.integers(0, 4, 300)
    expected = [ap(z[np.argsort(-row)] == label) for row, label in zip(scores, y, strict=True)]
    found = retrieval.ranked_precisions(lambda rows: scores[rows], y, z, block=7)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_bounds_hold_the_expectation_and_random_codes_are_at_chance():
    rng = np.random.default_rng(6)
    a, b = (rng.integers(0, 256, (n, 2), dtype=np.uint8) for n in (100, 2000))
    found = retrieval.average_precisions(
        retrieval.distance_counts(a, b, rng.integers(0, 10, 100), rng.integers(0, 10, 2000))
    )
    assert found.bounds[0] < found.mean < found.bounds[1]
    assert found.mean == pytest.approx(0.1, abs=0.02)


def test_precision_recall_by_radius_is_hash_lookup():
    rng = np.random.default_rng(7)
    a, b = (rng.integers(0, 2, (n, 9)) for n in (12, 80))
    y, z = rng.integers(0, 2, 12), rng.integers(0, 2, 80)
    curve = lookup_curve(retrieval.distance_counts(codes.pack(a), codes.pack(b), y, z), 9)
    distance, relevant = (a[:, None] != b[None]).sum(axis=2), y[:, None] == z[None]
    for radius in range(10):
        within = distance <= radius
        recall = ((within & relevant).sum(axis=1) / relevant.sum(axis=1)).mean()
        some = within.any(axis=1)
        precision = ((within & relevant).sum(axis=1)[some] / within.sum(axis=1)[some]).mean()
        assert curve.recall[radius] == pytest.approx(recall)
        assert curve.precision[radius] == pytest.approx(precision)
    assert curve.recall[-1] == 1


def test_labels_that_do_not_fit_are_refused():
    one = np.zeros((2, 1), np.uint8)
    with pytest.raises(InvalidData, match="label for each"):
        retrieval.distance_counts(one, one, [0, 1, 2], [0, 1])
    with pytest.raises(InvalidData, match="both"):
        retrieval.distance_counts(one, one, [0, 1], np.eye(2))
    with pytest.raises(InvalidData, match="indicator"):
        retrieval.distance_counts(one, one, 2 * np.eye(2), np.eye(2))
    with pytest.raises(InvalidData, match="scores"):
        retrieval.ranked_precisions(lambda rows: np.zeros((1, 1)), [0, 1], [0, 1])


def test_progress_reaches_the_end():
    seen = []
    one = np.zeros((600, 1), np.uint8)
    retrieval.mean_average_precision(
        one, one, np.zeros(600), np.zeros(600), progress=lambda d, t: seen.append((d, t))
    )
    assert seen[-1] == (600, 600)
    assert len(seen) == 2
