from __future__ import annotations

import numpy as np
import pytest

from blindsight import data
from blindsight.core.errors import InvalidParameter
from blindsight.evaluation.scores import mean_psnr
from blindsight.sketching import NegativeSketcher, QKParameters, leak_of
from blindsight.sketching.attackers import Suite, best_psnr, bound_of
from blindsight.sketching.calibration import (
    ImageStatistics,
    _histograms,
    _psnr,
    balanced_p,
    calibrate,
    usefulness,
)


def expected_psnr(parameters, reference):
    return _psnr(parameters, _histograms(reference, parameters.depth))


def informed_psnr(parameters, reference):
    return ImageStatistics.of(reference, parameters.depth).psnr(
        parameters.differing_rate, parameters.agreeing_rate
    )


@pytest.fixture(scope="module")
def reference():
    return data.load("mnist5k").array()[::50]


@pytest.mark.parametrize("name", ["Q1", "Q3", "Q6", "Q9"])
def test_the_expected_psnr_is_what_the_attacker_gets(reference, name):
    pictures = NegativeSketcher(name, random_state=0).fit(reference).sketch(reference).pictures()
    expected = expected_psnr(QKParameters.paper(name), reference)
    # The mean of logarithms is a little above the logarithm of the mean.
    assert mean_psnr(reference, pictures) == pytest.approx(expected, abs=0.35)


@pytest.mark.parametrize(("goal", "paper"), [(7.5, "Q3"), (10.5, "Q2")])
def test_a_psnr_goal_is_met_with_more_use_and_less_epsilon_than_the_papers(reference, goal, paper):
    chosen = calibrate(max_psnr=goal, reference=reference, attacker="mean")
    assert expected_psnr(chosen, reference) <= goal
    assert usefulness(chosen) > 1.3 * usefulness(QKParameters.paper(paper))
    assert leak_of(chosen).epsilon_pixel < leak_of(QKParameters.paper(paper)).epsilon_pixel


@pytest.mark.parametrize("goal", [1.0, 12.3])
def test_an_epsilon_goal_is_met(goal):
    chosen = calibrate(epsilon_per_pixel=goal)
    assert 0.93 * goal <= leak_of(chosen).epsilon_pixel <= goal


def test_an_epsilon_goal_beats_the_papers_q3():
    chosen = calibrate(epsilon_per_pixel=12.26)
    assert leak_of(chosen).bits_right[0] > leak_of(QKParameters.paper("Q3")).bits_right[0] + 0.1


def test_the_papers_p_and_other_depths_can_be_kept():
    chosen = calibrate(epsilon_per_pixel=20.0, depth=4, p=(0.7, 0.24, 0.06))
    assert chosen.p == (0.7, 0.24, 0.06) and chosen.depth == 4
    assert leak_of(chosen).epsilon_pixel <= 20


def test_balanced_types_leak_nothing_at_uniform_q():
    for K in (2, 3, 4, 5):
        assert QKParameters.k_hidden(8, p=balanced_p(K)).p_diff == pytest.approx(np.full(8, 0.5))


@pytest.mark.parametrize("goals", [{}, {"max_psnr": 10, "epsilon_per_pixel": 1}])
def test_exactly_one_goal_is_asked_for(goals):
    with pytest.raises(InvalidParameter, match="exactly one goal"):
        calibrate(**goals)


def test_a_psnr_below_a_blind_guess_is_refused(reference):
    for attacker in ("mean", "all"):
        with pytest.raises(InvalidParameter, match="must be above"):
            calibrate(max_psnr=3.0, reference=reference, attacker=attacker)


@pytest.mark.parametrize("name", ["Q1", "Q3", "Q6"])
def test_the_informed_attackers_psnr_is_what_the_best_linear_guess_gets(reference, name):
    sketches = NegativeSketcher(name, random_state=0).fit(reference).sketch(reference)
    counts = sketches.counts[:, 0].astype(float)
    seen = np.moveaxis(counts[:, :, 1] - counts[:, :, 0], 1, -1).reshape(-1, 8)
    seen, value = np.column_stack([seen, np.ones(len(seen))]), reference.ravel().astype(float)
    guess = seen @ np.linalg.lstsq(seen, value, rcond=None)[0]
    psnr = 10 * np.log10(255**2 / np.mean((guess - value) ** 2))
    assert informed_psnr(QKParameters.paper(name), reference) == pytest.approx(psnr, abs=0.15)


@pytest.mark.parametrize("paper", ["Q3", "Q2", "Q1"])
def test_the_informed_goal_keeps_more_of_the_shape_than_the_papers_setting_at_the_same_psnr(
    reference, paper
):
    kind, theirs = ImageStatistics.of(reference, 8), QKParameters.paper(paper)
    goal = informed_psnr(theirs, reference)
    chosen = calibrate(max_psnr=goal, reference=reference, attacker="informed")
    assert informed_psnr(chosen, reference) <= goal + 1e-6
    shared = [kind.shared(one.differing_rate, one.agreeing_rate) for one in (chosen, theirs)]
    assert shared[0] > shared[1]
    # It speaks through other bits than those that the paper's attacker listens to.
    assert expected_psnr(chosen, reference) < expected_psnr(theirs, reference)


def test_a_bit_that_neighbours_do_not_share_is_of_no_use():
    rng = np.random.default_rng(0)
    shape = np.kron(
        rng.integers(0, 2, (40, 4, 4)), np.ones((8, 8), int)
    )  # blocks in the first bit, noise in the second
    kind = ImageStatistics.of(2 * shape + rng.integers(0, 2, (40, 32, 32)), 2)
    loud, quiet = 3.0, 10.0
    assert kind.shared([loud, quiet], quiet) > 100 * kind.shared([quiet, loud], quiet)


def test_the_informed_attacker_wants_a_goal_it_can_miss_and_images_to_know(reference):
    with pytest.raises(InvalidParameter, match="must be above"):
        calibrate(max_psnr=7.5, reference=reference, attacker="informed")
    for options in ({"max_psnr": 12.0}, {"epsilon_per_pixel": 5.0, "reference": reference}):
        with pytest.raises(InvalidParameter, match="needs max_psnr and reference"):
            calibrate(attacker="informed", **options)
    for wrong in (
        reference.astype(float),
        reference[:, :1],
        np.zeros((3, 4, 4), np.uint8),
        reference.astype(int) + 256,
    ):
        with pytest.raises(InvalidParameter, match="reference must"):
            calibrate(max_psnr=12.0, reference=wrong, attacker="informed")
    with pytest.raises(InvalidParameter, match="attacker"):
        calibrate(max_psnr=12.0, attacker="omniscient")


def photos(n, seed):
    """Colour tiles of 32 x 32 pixels from the photos that come with scikit-learn."""
    from sklearn.datasets import load_sample_images

    rng = np.random.default_rng(seed)
    wholes = [image[::3, ::3] for image in load_sample_images().images]
    tiles = []
    for k in range(n):
        whole = wholes[k % 2]
        top, left = (int(rng.integers(side - 32)) for side in whole.shape[:2])
        tiles.append(whole[top : top + 32, left : left + 32])
    return np.stack(tiles)


def test_the_goal_is_held_by_every_attacker_on_photos_it_was_not_calibrated_on():
    goal = 24.0
    chosen = calibrate(max_psnr=goal, reference=photos(20, seed=0), steps=8)
    held_out = photos(20, seed=1)
    best = best_psnr(
        Suite(chosen, public=photos(24, seed=2), steps=15, width=8),
        held_out,
        rng=np.random.default_rng(0),
    )
    assert np.mean(best <= goal) >= 0.95
    # and the goal is used: the paper's attacker alone would have been let much further
    weak = calibrate(max_psnr=goal, reference=photos(20, seed=0), attacker="mean")
    fooled = best_psnr(Suite(weak), held_out[:6], rng=np.random.default_rng(0))
    assert np.mean(fooled <= goal) < 0.5


def test_a_goal_for_all_attackers_wants_images_like_yours(reference):
    with pytest.raises(InvalidParameter, match="size and kind of yours"):
        calibrate(max_psnr=12.0)
    with pytest.raises(InvalidParameter, match="at least 8 images"):
        calibrate(max_psnr=25.0, reference=reference[:5])


def test_the_bound_lies_above_what_was_seen():
    each = np.array([10.0, 11.0, 12.0])
    assert bound_of(each) > 12 and bound_of(each[:1]) == 10
