"""Lower bounds are lower bounds: they hold at their confidence and grow with the evidence."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from blindsight.audit.engine.blackbox import (
    audit_in_one_run,
    clopper_pearson,
    collect,
    distinguish,
    epsilon_from_guesses,
    epsilon_from_rates,
    exact_epsilon,
    likelihood_ratio,
)
from blindsight.core.errors import InvalidParameter
from blindsight.privacy.mechanisms import BitFlip, Gaussian, KaryResponse, Laplace
from contracts.mechanisms import CASES

# False alarms of this page, each with its own fixed seed: at most 1e-6 a test.
SURE = 1 - 1e-6


def test_clopper_pearson_covers_exactly() -> None:
    trials, p, error = 40, 0.3, 0.025
    missed = sum(
        stats.binom.pmf(hits, trials, p)
        for hits in range(trials + 1)
        if not clopper_pearson(hits, trials, error=error)[0]
        <= p
        <= clopper_pearson(hits, trials, error=error)[1]
    )
    assert missed <= 2 * error


def test_rates_bound_is_right_in_the_limit_and_zero_without_evidence() -> None:
    bound = epsilon_from_rates(750_000, 10**6, 250_000, 10**6, confidence=0.95)
    assert math.log(3) - 0.02 < bound < math.log(3)
    assert epsilon_from_rates(50, 100, 50, 100, confidence=0.95) == 0
    assert epsilon_from_rates(10, 1000, 0, 1000, confidence=0.95, delta=0.5) == 0


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.mechanism.cost.delta == 0], ids=lambda c: c.name
)
def test_no_sound_mechanism_is_refuted(case) -> None:
    audited = distinguish(
        lambda x, rng: case.mechanism.release(x, rng=rng),
        case.x,
        case.neighbour,
        trials=4000,
        seed=11,
        confidence=SURE,
    )
    assert audited.epsilon <= case.mechanism.cost.epsilon


@pytest.mark.parametrize("workers", [1, 2])
def test_outcomes_do_not_depend_on_the_number_of_workers(workers: int) -> None:
    noise = Laplace(scale=1.0, sensitivity=1.0, unit="record")
    outcomes = collect(
        lambda x, rng: noise.release(x, rng=rng),
        np.zeros(2),
        np.ones(2),
        trials=600,
        seed=3,
        workers=workers,
    )
    assert outcomes.data.shape == (600, 2)
    assert outcomes.data.sum() == pytest.approx(
        collect(
            lambda x, rng: noise.release(x, rng=rng), np.zeros(2), np.ones(2), trials=600, seed=3
        ).data.sum()
    )


def test_a_broken_mechanism_is_refuted() -> None:
    """The deliberately broken one: it says epsilon 1 and draws half the noise."""
    honest = Laplace.calibrate(1.0, sensitivity=1.0, unit="record")
    broken = Laplace(scale=honest.scale / 2, sensitivity=1.0, unit="record")
    audited = distinguish(
        lambda x, rng: broken.release(x, rng=rng),
        np.zeros(1),
        np.ones(1),
        trials=20_000,
        seed=2,
        confidence=SURE,
    )
    assert audited.epsilon > honest.cost.epsilon


def test_the_papers_flips_are_refuted_per_record() -> None:
    flip = BitFlip.paper(1.0, n_bits=48, unit="record")
    zeros = np.zeros(48, np.uint8)
    audited = distinguish(
        lambda x, rng: flip.release(x, rng=rng),
        zeros,
        1 - zeros,
        trials=2000,
        seed=0,
        confidence=SURE,
        statistic=lambda released: likelihood_ratio(flip, released, zeros, 1 - zeros),
    )
    assert 1 < audited.epsilon < flip.cost.epsilon


def test_exact_ratios_equal_the_cost() -> None:
    response = KaryResponse(epsilon=1.3, k=4, unit="record")
    assert exact_epsilon(
        response, np.array([0]), np.array([1]), np.arange(4)[:, None]
    ).epsilon == pytest.approx(1.3)
    never = BitFlip(beta=0.0, n_bits=2)
    outcomes = np.array([[0, 0], [1, 1]], np.uint8)
    assert math.isinf(exact_epsilon(never, np.array([0, 0]), np.array([1, 1]), outcomes).epsilon)
    with pytest.raises(InvalidParameter):
        exact_epsilon(response, np.array([0]), np.array([1]), np.empty((0, 1)))


def test_guesses_bound_matches_the_binomial() -> None:
    # 100 of 100 right at 95%: the least p with p^100 = 0.05
    p = 0.05 ** (1 / 100)
    bound = epsilon_from_guesses(100, 100, canaries=100, confidence=0.95)
    assert bound == pytest.approx(math.log(p / (1 - p)), abs=1e-6)
    assert epsilon_from_guesses(50, 100, canaries=100, confidence=0.95) == 0
    assert epsilon_from_guesses(100, 100, canaries=100, confidence=0.95, delta=1e-3) < bound
    with pytest.raises(InvalidParameter):
        epsilon_from_guesses(5, 4, canaries=10, confidence=0.95)


def test_one_run_finds_an_unprotected_sum_and_spares_a_protected_one() -> None:
    directions = np.random.default_rng(0).standard_normal((400, 4000)) / math.sqrt(4000)

    def audited(sigma: float, delta: float) -> float:
        noise = Gaussian(
            sigma=sigma, sensitivity=1.0, delta=1e-5, unit="record", neighbours="add or remove one"
        )

        def train(included, rng):
            return noise.release(directions[included].sum(axis=0), rng=rng)

        return audit_in_one_run(
            train,
            lambda total: directions @ total,
            canaries=400,
            seed=1,
            confidence=SURE,
            delta=delta,
        ).epsilon

    strong = Gaussian.calibrate(1.0, delta=1e-5, sensitivity=1.0, unit="record")
    assert audited(strong.sigma, 1e-5) <= 1.0
    assert audited(0.01, 0.0) > 2.0
