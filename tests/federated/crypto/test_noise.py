"""Distributed noise: the lemma holds, shares add up, and the guarantee says what it costs."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindsight.core.errors import InvalidParameter
from blindsight.federated.agreement import agree
from blindsight.federated.fixedpoint import FixedPoint
from blindsight.federated.noise import (
    DistributedGaussian,
    clipped_numbers,
    divergence,
    noise_share,
    sum_discloses,
)
from blindsight.federated.paillier import PrivateKey
from blindsight.federated.protocol import Settings, Simulation
from blindsight.privacy import Cost

CODE = FixedPoint(bound=32.0, bits=20)


def pmf(variance: float, reach: int) -> np.ndarray:
    x = np.arange(-reach, reach + 1)
    weights = np.exp(-x * x / (2 * variance))
    return weights / weights.sum()


@pytest.mark.parametrize("variance", [0.3, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("shares", [2, 3, 5, 8])
def test_the_sum_of_shares_is_as_near_to_one_discrete_gaussian_as_the_lemma_says(variance: float, shares: int) -> None:
    total = pmf(variance, 40)
    for _ in range(shares - 1):
        total = np.convolve(total, pmf(variance, 40))
    exact = pmf(variance * shares, len(total) // 2)
    middle = slice(len(total) // 2 - 12, len(total) // 2 + 13)
    ratio = np.abs(np.log(total[middle] / exact[middle])).max()
    assert ratio <= divergence(variance, shares) + 1e-9
    if variance <= 0.5:
        assert ratio > 1e-6  # it really is not one


def test_shares_of_two_steps_are_one_gaussian_for_all_purposes() -> None:
    assert divergence(4.0, 100) < 1e-16
    assert divergence(0.01, 3) == math.inf


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=40), st.floats(0.01, 3))
def test_clipped_numbers_never_exceed_the_sensitivity(values: list[float], clip: float) -> None:
    numbers = clipped_numbers(np.array(values), clip, CODE).astype(object)
    assert sum(int(x) ** 2 for x in numbers) <= (Fraction(clip) / Fraction(CODE.grid)) ** 2


def test_calibration_meets_its_target_and_not_by_far() -> None:
    for epsilon, rounds, colluders in [(1.0, 1, 0), (4.0, 10, 0), (8.0, 3, 2)]:
        noise = DistributedGaussian.calibrate(
            epsilon,
            delta=1e-5,
            clip=0.5,
            code=CODE,
            dimension=1000,
            users=10,
            contributors=8,
            colluders=colluders,
            rounds=rounds,
        )
        assert 0.995 * epsilon < noise.epsilon(rounds) <= epsilon
        assert noise.epsilon(rounds + 1) > noise.epsilon(rounds)


def test_colluders_make_everybody_elses_share_larger() -> None:
    def variance(colluders: int) -> Fraction:
        return DistributedGaussian.calibrate(
            2.0, delta=1e-5, clip=0.5, code=CODE, dimension=100, users=5, contributors=5, colluders=colluders
        ).variance

    assert float(variance(4) / variance(0)) == pytest.approx(5, rel=1e-3)


def test_guarantee_names_user_and_record_and_what_it_assumes() -> None:
    noise = DistributedGaussian.calibrate(2.0, delta=1e-5, clip=0.5, code=CODE, dimension=100, users=5, contributors=4)
    guarantee = noise.guarantee()
    assert guarantee.unit == "user"
    assert guarantee.neighbours == "replace one"
    assert guarantee.epsilon <= 2.0
    assert guarantee.sampler == "exact"
    assert guarantee.also == (Cost(epsilon=guarantee.epsilon, delta=1e-5, unit="record"),)
    assert "at least 4 users" in guarantee.assumptions[0]


def test_noise_that_does_not_fit_its_slots_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="larger bound"):
        DistributedGaussian.calibrate(
            0.1,
            delta=1e-5,
            clip=1.0,
            code=FixedPoint(bound=2.0, bits=16),
            dimension=10,
            users=3,
            contributors=3,
        )
    with pytest.raises(InvalidParameter, match="colluders"):
        DistributedGaussian(
            variance=Fraction(4), clip=1.0, code=CODE, dimension=3, users=3, contributors=3, colluders=3
        )


def test_a_noisy_round_has_the_variance_it_promises(small_key: PrivateKey) -> None:
    """6,000 coordinates; the sample variance lies within 10%, 5.4 standard deviations (1e-7 false alarms)."""
    noise = DistributedGaussian.calibrate(3.0, delta=1e-5, clip=0.5, code=CODE, dimension=6000, users=4, contributors=4)
    agreed = Settings(
        dimension=6000, users=4, bound=CODE.bound, bits=20, support="hidden", clip=0.5, noise_variance=noise.variance
    )
    update = np.full(6000, 0.5 / math.sqrt(6000))
    result = Simulation(agreed, key=small_key, encrypt=False).round([update] * 4)
    error = (result.total - 4 * update) / agreed.code.grid
    expected = 4 * float(noise.variance)
    assert abs(error.var() / expected - 1) < 0.1
    assert result.revealed.all()


def test_noise_goes_through_the_ciphertexts(small_key: PrivateKey) -> None:
    agreed = Settings(
        dimension=40, users=3, bound=32.0, bits=20, support="hidden", clip=0.5, noise_variance=Fraction(10**6)
    )
    rng = np.random.default_rng(0)
    simulation = Simulation(agreed, key=small_key, rng=rng)
    first = simulation.round([np.zeros(40)] * 3)
    second = simulation.round([np.zeros(40)] * 3)
    assert (first.total != 0).mean() > 0.9
    assert (first.total != second.total).mean() > 0.9


def test_shares_are_cut_at_the_reach_of_their_slots() -> None:
    agreed = Settings(
        dimension=4, users=3, bound=1.0, bits=8, support="hidden", clip=0.5, noise_variance=Fraction(10**6)
    )
    share = noise_share(agreed.noise_variance, 500, agreed, rng=np.random.default_rng(0))
    assert np.abs(share).max() == agreed.code.largest - math.floor(0.5 / agreed.code.grid)


def test_without_noise_the_disclosure_says_that_the_sum_is_exact() -> None:
    for mode in ("paper", "block"):
        card = sum_discloses(Settings(dimension=4, users=3, mode=mode)).card()
        assert "no epsilon bounds" in card
        assert "no noise" in card


def test_advice_is_given_where_noise_drowns_the_updates_and_only_there() -> None:
    few = agree(dimension=650, users=5, rounds=3, epsilon=1.0)
    assert few.noise is not None and few.noise.share_of_clip > 1
    assert "users" in (few.advice() or "")
    many = agree(dimension=650, users=2000, rounds=3, epsilon=8.0)
    assert many.noise is not None and many.noise.share_of_clip < 1
    assert many.advice() is None
    assert agree(dimension=650, users=5, rounds=3).advice() is None


def test_the_share_of_the_clip_is_what_the_mean_of_shares_shows() -> None:
    noise = agree(dimension=400, users=6, rounds=1, epsilon=4.0).noise
    assert noise is not None
    rng = np.random.default_rng(0)
    shares = rng.normal(0, float(noise.variance) ** 0.5, (6, 400)) * noise.code.grid
    # 400 coordinates: the norm's relative deviation is 0.035, so 0.2 is over five of them.
    assert np.linalg.norm(shares.mean(axis=0)) / noise.clip == pytest.approx(noise.share_of_clip, rel=0.2)
