"""Calibrations reach their target, from the private side."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.privacy.mechanisms import (
    BitFlip,
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    KaryResponse,
    Laplace,
    Staircase,
    SubsetSelection,
)

epsilons = st.floats(0.01, 30)


@given(epsilons, st.integers(1, 256), st.sampled_from(["bit", "record"]))
def test_proven_flips_spend_at_most_and_nearly_all(epsilon: float, n_bits: int, unit: str) -> None:
    cost = BitFlip.proven(epsilon, n_bits=n_bits, unit=unit).cost
    assert epsilon * (1 - 1e-6) <= cost.epsilon <= epsilon
    assert cost.unit == unit


def test_paper_flips_follow_theorem_4_and_cost_what_they_cost() -> None:
    flip = BitFlip.paper(1.0, n_bits=48, unit="record")
    assert flip.beta == math.exp(-1)
    # 48 bits at |ln((1-beta)/beta)| each, not 1
    assert flip.cost.epsilon == pytest.approx(48 * math.log(math.e - 1))


def test_theorem_4_holds_per_bit_from_the_golden_ratio_on() -> None:
    golden = math.log((1 + math.sqrt(5)) / 2)
    assert BitFlip.paper(golden, unit="bit").cost.epsilon == pytest.approx(golden)
    assert BitFlip.paper(golden - 0.01, unit="bit").cost.epsilon > golden - 0.01
    assert BitFlip.paper(golden + 0.01, unit="bit").cost.epsilon < golden + 0.01


@given(epsilons, st.floats(1e-3, 1e3))
def test_laplace_spends_at_most_epsilon(epsilon: float, sensitivity: float) -> None:
    found = Laplace.calibrate(epsilon, sensitivity=sensitivity, unit="record").cost.epsilon
    assert epsilon * (1 - 1e-12) <= found <= epsilon


@given(epsilons, st.floats(0.1, 100), st.integers(0, 20))
def test_discrete_laplace_counts_rounding(
    epsilon: float, sensitivity: float, dimensions: int
) -> None:
    found = DiscreteLaplace.calibrate(
        epsilon, sensitivity=sensitivity, grid=2**-6, dimensions=dimensions, unit="query"
    )
    assert epsilon * (1 - 1e-6) <= found.cost.epsilon <= epsilon
    assert found.sensitivity >= sensitivity * 64 + dimensions


@given(st.floats(0.05, 20), st.sampled_from([1e-9, 1e-5, 1e-2]))
def test_gaussians_spend_at_most_epsilon(epsilon: float, delta: float) -> None:
    smooth = Gaussian.calibrate(epsilon, delta=delta, sensitivity=2.0, unit="record")
    assert epsilon * (1 - 1e-6) <= smooth.cost.epsilon <= epsilon
    whole = DiscreteGaussian.calibrate(
        epsilon, delta=delta, sensitivity=2.0, dimensions=100, unit="record"
    )
    assert epsilon * (1 - 1e-3) <= whole.cost.epsilon <= epsilon
    # The continuous Gaussian bounds it: at least its sigma, and hardly more.
    assert smooth.sigma <= whole.sigma <= smooth.sigma * 1.002


def test_gaussian_matches_published_analytic_values() -> None:
    # Balle and Wang (2018): sigma for epsilon 1, delta 1e-5, sensitivity 1
    assert Gaussian.calibrate(
        1.0, delta=1e-5, sensitivity=1.0, unit="record"
    ).sigma == pytest.approx(3.7306, abs=1e-4)


def test_staircase_needs_less_noise_than_laplace_at_large_epsilon() -> None:
    rng = np.random.default_rng(5)
    stair = Staircase.calibrate(8.0, sensitivity=1.0, dimensions=2, unit="pair")
    assert stair.cost.epsilon == 8.0
    spread = stair.release(np.zeros(200_000), rng=rng).std()
    assert (
        spread
        < Laplace.calibrate(4.0, sensitivity=1.0, unit="pair")
        .release(np.zeros(200_000), rng=rng)
        .std()
    )


@given(st.floats(0.1, 8), st.integers(3, 60))
def test_best_subset_tells_at_least_as_much_as_k_ary(epsilon: float, k: int) -> None:
    def information(mechanism: SubsetSelection) -> float:
        truth, size = mechanism.truth_probability, mechanism.size
        return truth * math.log(truth * k / size) + (1 - truth) * math.log(
            max(1 - truth, 1e-300) * k / (k - size)
        )

    best = SubsetSelection(epsilon=epsilon, k=k, unit="record")
    single = SubsetSelection(epsilon=epsilon, k=k, size=1, unit="record")
    assert information(best) >= information(single) - 1e-12
    assert single.truth_probability == pytest.approx(
        KaryResponse(epsilon=epsilon, k=k, unit="record").truth_probability
    )


@pytest.mark.parametrize("beta, expected", [(0.0, 0.0), (1.0, 1.0)])
def test_never_and_always_are_exact_and_cost_infinity(beta: float, expected: float) -> None:
    flip = BitFlip(beta=beta)
    assert math.isinf(flip.cost.epsilon)
    assert (
        flip.release(np.zeros(100_000, np.uint8), rng=np.random.default_rng(0)).mean() == expected
    )


def test_signs_and_booleans_keep_their_alphabet() -> None:
    rng = np.random.default_rng(0)
    signs = BitFlip(beta=0.5).release(np.array([-1, 1] * 50), rng=rng)
    assert set(np.unique(signs)) == {-1, 1}
    assert BitFlip(beta=0.5).release(np.array([True, False]), rng=rng).dtype == np.bool_
    with pytest.raises(InvalidData, match="0 or 1"):
        BitFlip(beta=0.5).release(np.array([0, 2]), rng=rng)
    with pytest.raises(InvalidData, match="integers"):
        BitFlip(beta=0.5).release(np.array([0.0, 1.0]), rng=rng)


def test_too_fine_a_grid_is_refused_with_advice() -> None:
    with pytest.raises(InvalidParameter, match="coarser grid"):
        DiscreteLaplace.calibrate(1e-6, sensitivity=1e6, grid=2**-40, dimensions=1, unit="query")
    with pytest.raises(InvalidParameter, match="power of two"):
        DiscreteLaplace.calibrate(1.0, sensitivity=1.0, grid=0.1, dimensions=1, unit="query")


def test_discrete_output_lies_on_the_grid() -> None:
    mechanism = DiscreteLaplace.calibrate(
        1.0, sensitivity=1.0, grid=2**-4, dimensions=3, unit="query"
    )
    released = mechanism.release(np.array([0.123, 4.5, -7.77]), rng=np.random.default_rng(0))
    np.testing.assert_array_equal(released * 16, np.rint(released * 16))
