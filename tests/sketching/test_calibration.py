from __future__ import annotations

import numpy as np
import pytest

from blindsight import data
from blindsight.errors import InvalidParameter
from blindsight.evaluation.reconstruction import mean_psnr
from blindsight.sketching import NegativeSketcher, QKParameters, leak_of
from blindsight.sketching.calibration import balanced_p, calibrate, expected_psnr, usefulness


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
    chosen = calibrate(max_psnr=goal, reference=reference)
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
    with pytest.raises(InvalidParameter, match="must be above"):
        calibrate(max_psnr=3.0, reference=reference)
