"""Error curves: rates of the released counts, thresholds that keep a rate, and no rate that noise
hides.
"""

from __future__ import annotations

import numpy as np
import pytest

from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.metric import ErrorCurve, OperatingPoint

EDGES = np.linspace(0, 2, 41)


def counts(seed=0, n=2000, noise=0.0):
    """Histograms of two overlapping kinds, and the distances that were counted."""
    rng = np.random.default_rng(seed)
    near, far = rng.normal(0.7, 0.15, n), rng.normal(1.2, 0.15, n)
    made = [
        np.histogram(distance, EDGES)[0] + rng.normal(0, noise, len(EDGES) - 1)
        for distance in (near, far)
    ]
    return made[0], made[1], near, far


def curve(noise=0.0, **changes):
    similar, dissimilar, _, _ = counts(noise=noise)
    return ErrorCurve(
        **{
            "edges": EDGES,
            "similar": similar,
            "dissimilar": dissimilar,
            "noise": noise,
            "n_pairs": 4000,
            **changes,
        }
    )


def test_without_noise_the_rates_are_those_of_the_distances():
    _, _, near, far = counts()
    made = curve()
    for threshold, accept, reject in zip(
        made.thresholds, made.false_accept, made.false_reject, strict=True
    ):
        assert accept == pytest.approx((far <= threshold).mean(), abs=1e-3)
        assert reject == pytest.approx((near > threshold).mean(), abs=1e-3)


@pytest.mark.parametrize("noise", [0.0, 10.0, 30.0])
def test_the_threshold_errs_little_more_than_the_best_one(noise):
    _, _, near, far = counts()

    def error(threshold):
        return ((far <= threshold).mean() + (near > threshold).mean()) / 2

    best = min(error(threshold) for threshold in EDGES)
    for made in (curve(noise), curve(noise, similar=counts(3, noise=noise)[0])):
        assert error(made.best().threshold) < best + 0.02
        point = made.equal_error()
        assert abs(point.false_accept - point.false_reject) < 0.2


def test_rates_are_shares_and_monotone_whatever_the_noise():
    for seed in range(20):
        similar, dissimilar, _, _ = counts(seed, n=50, noise=100.0)
        made = ErrorCurve(EDGES, similar, dissimilar, noise=100.0, n_pairs=100)
        for rates, way in ((made.false_accept, 1), (made.false_reject, -1)):
            assert (way * np.diff(rates) >= -1e-12).all()
            assert rates.min() >= 0 and rates.max() <= 1


def test_an_operating_point_keeps_the_rate_that_was_asked_for():
    made = curve(5.0)
    strict, lenient = made.at(false_accept=0.05), made.at(false_reject=0.05)
    assert strict.false_accept <= 0.05 and lenient.false_reject <= 0.05
    assert strict.threshold <= lenient.threshold + 0.5
    following = made.at_threshold(strict.threshold + 0.05)
    assert following.false_accept > 0.05
    with pytest.raises(InvalidParameter, match="finer than the counts allow"):
        curve(30.0).at(false_accept=0.001)
    with pytest.raises(InvalidParameter, match="either"):
        made.at()


def test_the_stated_deviation_covers_the_error_of_the_rates():
    """At the middle threshold, over 200 draws: at most 5 standard deviations in each (1e-6)."""
    exact = curve().at_threshold(1.0)
    for seed in range(200):
        rng = np.random.default_rng(seed)
        similar, dissimilar, _, _ = counts()
        noisy = curve(
            15.0,
            similar=similar + rng.normal(0, 15.0, 40),
            dissimilar=dissimilar + rng.normal(0, 15.0, 40),
        ).at_threshold(1.0)
        assert abs(noisy.false_accept - exact.false_accept) < 5 * noisy.accept_deviation
        assert abs(noisy.false_reject - exact.false_reject) < 5 * noisy.reject_deviation


def test_an_answer_is_wrong_as_often_as_bayes_says():
    point = OperatingPoint(1.0, 0.1, 0.2, 0.0, 0.0)
    assert point.answer(0.5).same and not point.answer(1.5).same
    assert point.answer(0.5).wrong == pytest.approx(0.1 / (0.1 + 0.8))
    assert point.answer(1.5).wrong == pytest.approx(0.2 / (0.2 + 0.9))
    # Where same pairs are rare, "same" is wrong more often.
    assert point.answer(0.5, share_same=0.01).wrong > 0.9
    assert str(point.answer(0.5)) == "same, wrong in about 11 of 100"
    assert point.error == pytest.approx(0.15)


def test_counts_that_noise_hides_are_said_to_be_unknown():
    assert curve(1.0).known and not curve(1000.0).known
    assert not curve(1.0, similar=np.zeros(40), dissimilar=np.full(40, 100.0)).known


def test_a_curve_of_wrong_shape_is_refused():
    with pytest.raises(InvalidData, match="one cell"):
        curve(similar=np.zeros(3))
    with pytest.raises(InvalidData, match="must increase"):
        curve(edges=np.zeros(41))
