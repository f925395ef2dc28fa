"""What people know from metric-learn: distances, predictions, thresholds, triplets."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.metric.baselines import InputPerturbation
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.metric import DPPMetric, EuclideanMetric
from blindsight.metric.linear import best_threshold
from blindsight.metric.paper import DPPDML, MendedDML


def world(n=200, d=4, seed=0):
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 2, n)
    X = rng.normal(size=(n, d))
    X[:, 0] += 4 * classes
    pairs = rng.integers(0, n, (3000, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    return X, pairs, classes[pairs[:, 0]] == classes[pairs[:, 1]]


X, PAIRS, SIMILAR = world()


@pytest.fixture(scope="module")
def metric():
    return DPPMetric(3, epsilon=4.0, preprocessor=X, random_state=0).fit(PAIRS, SIMILAR)


def test_distances_agree_whichever_way_they_are_asked(metric):
    distance = metric.pair_distance(PAIRS)
    np.testing.assert_allclose(distance, metric.pair_distance(X[PAIRS]))
    np.testing.assert_allclose(distance, metric.score_pairs(PAIRS))
    np.testing.assert_allclose(-distance, metric.decision_function(PAIRS))
    mapped = metric.transform(X)
    np.testing.assert_allclose(
        distance, np.linalg.norm(mapped[PAIRS[:, 0]] - mapped[PAIRS[:, 1]], axis=1)
    )
    function = metric.get_metric()
    assert function(X[PAIRS[0, 0]], X[PAIRS[0, 1]]) == pytest.approx(distance[0])
    assert (np.linalg.eigvalsh(metric.get_mahalanobis_matrix()) > -1e-9).all()
    assert metric.components_.shape == (3, 4)


def test_predictions_are_one_and_minus_one_by_the_threshold(metric):
    found = metric.predict(PAIRS)
    assert set(found) == {-1, 1}
    np.testing.assert_array_equal(found == 1, metric.pair_distance(PAIRS) <= metric.threshold_)
    assert ((found == 1) == SIMILAR).mean() > 0.7  # the threshold came with fit, within its budget


def test_triplets_are_predicted_without_a_threshold(metric):
    triplets = np.column_stack([PAIRS[:50], PAIRS[50:100, 1]])
    near, far = metric.pair_distance(triplets[:, :2]), metric.pair_distance(triplets[:, [0, 2]])
    np.testing.assert_array_equal(metric.predict(triplets) == 1, near <= far)
    np.testing.assert_allclose(metric.decision_function(triplets), far - near)
    np.testing.assert_array_equal(metric.predict(X[triplets]), metric.predict(triplets))
    assert metric.score(triplets) == pytest.approx((near <= far).mean())


def test_a_private_metric_is_not_calibrated_on_pairs_that_nobody_called_public(tmp_path):
    metric = DPPMetric(preprocessor=X, random_state=0).fit(PAIRS, SIMILAR)
    with pytest.raises(InvalidParameter, match="public=True"):
        metric.calibrate_threshold(PAIRS, SIMILAR)
    metric.calibrate_threshold(PAIRS, SIMILAR, public=True, strategy="balanced")
    metric.save(tmp_path / "metric.safetensors")
    assert DPPMetric.load(tmp_path / "metric.safetensors").threshold_ == metric.threshold_


@pytest.mark.parametrize("kind", [DPPDML, MendedDML, InputPerturbation])
def test_no_metric_with_a_guarantee_is_calibrated_on_private_pairs(kind):
    metric = kind(preprocessor=X, random_state=0).fit(PAIRS, SIMILAR)
    with pytest.raises(InvalidParameter, match="public=True"):
        metric.calibrate_threshold(PAIRS, SIMILAR)
    assert metric.calibrate_threshold(PAIRS, SIMILAR, public=True).threshold_ >= 0


def test_without_a_threshold_nothing_is_predicted():
    plain = EuclideanMetric().fit(X)
    with pytest.raises(InvalidParameter, match="calibrate_threshold"):
        plain.predict(X[PAIRS])
    assert (
        (plain.calibrate_threshold(X[PAIRS], SIMILAR).predict(X[PAIRS]) == 1) == SIMILAR
    ).mean() > 0.6
    assert plain.set_threshold(0.0).predict(X[PAIRS]).max() == -1
    with pytest.raises(InvalidParameter):
        plain.set_threshold(-1.0)


@pytest.mark.parametrize("strategy", ["accuracy", "balanced", "max_tpr", "max_tnr"])
def test_the_threshold_is_the_best_of_all_by_trying_them(strategy):
    rng = np.random.default_rng(1)
    similar = rng.random(60) < 0.3
    distance = np.round(rng.normal(np.where(similar, 1.0, 1.6), 0.5).clip(0), 1)  # with ties

    def worth(threshold):
        found, refused = (
            (distance <= threshold)[similar].mean(),
            (distance > threshold)[~similar].mean(),
        )
        return {
            "accuracy": ((distance <= threshold) == similar).mean(),
            "balanced": found + refused,
            "max_tpr": found if refused >= 0.8 else -1,
            "max_tnr": refused if found >= 0.8 else -1,
        }[strategy]

    chosen = best_threshold(distance, similar, strategy=strategy, min_rate=0.8)
    assert worth(chosen) == pytest.approx(max(worth(t) for t in [-1, *np.unique(distance)]))


def test_a_threshold_needs_both_kinds_and_a_known_strategy():
    with pytest.raises(InvalidData, match="single kind"):
        best_threshold(np.ones(3), np.ones(3, dtype=bool))
    with pytest.raises(InvalidParameter, match="strategy"):
        best_threshold(np.ones(2), np.array([True, False]), strategy="f_beta")


def test_a_score_needs_both_kinds(metric):
    with pytest.raises(InvalidData, match="single class"):
        metric.score(PAIRS, np.ones(len(PAIRS)))
