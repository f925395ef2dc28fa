"""Shares of noise: the sum has the law that is priced, nothing leaves its slot, and the price is
what composes.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindsight.core.errors import InvalidParameter
from blindsight.federated.agreement import agree
from blindsight.federated.noise import GaussianShares, RecordShares, clipped_sum, largest_share
from blindsight.federated.sums import Settings, Simulation
from blindsight.privacy.mechanisms import from_fields, to_fields
from blindsight.privacy.mechanisms.gaussian import convolved_gaussian, width


@given(
    epsilon=st.floats(0.2, 20),
    rounds=st.integers(1, 20),
    users=st.integers(3, 500),
    dimension=st.integers(1, 300_000),
)
@settings(max_examples=30, deadline=None)
def test_what_is_agreed_costs_no_more_than_asked(
    epsilon: float, rounds: int, users: int, dimension: int
) -> None:
    agreed = agree(dimension=dimension, users=users, rounds=rounds, epsilon=epsilon, clip=0.5)
    guarantee = agreed.guarantee(rounds)
    assert 0.98 * epsilon <= guarantee.epsilon <= epsilon * (1 + 1e-9)
    assert [cost.unit for cost in guarantee.costs] == ["user", "record"]
    noise = agreed.noise
    assert noise is not None
    assert noise.step <= noise.clip / (16 * math.sqrt(dimension))
    assert agreed.settings.code.grid == pytest.approx(noise.step, rel=1e-12)
    assert (
        noise.clip / agreed.settings.code.grid + largest_share(noise.levels)
        <= agreed.settings.code.largest
    )


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=40), st.floats(0.01, 10))
@settings(max_examples=100, deadline=None)
def test_clipped_numbers_never_exceed_the_sensitivity(values: list[float], clip: float) -> None:
    noise = GaussianShares(clip=clip, step=clip / 1000, levels=2, shares=2, delta=1e-5)
    numbers = noise.clipped(np.array(values))
    assert math.sqrt(sum(int(x) ** 2 for x in numbers)) <= clip / noise.step


def test_a_share_never_leaves_its_slot() -> None:
    class Extreme:
        """All ones: the last value of the table, every time."""

        def bytes(self, length: int) -> bytes:
            return b"\xff" * length

    for levels in (1, 3, 6):
        drawn = convolved_gaussian(levels, 4, rng=Extreme())
        assert np.abs(drawn).max() <= largest_share(levels)


def test_the_noise_in_a_real_sum_has_the_stated_spread(small_key) -> None:
    agreed = agree(dimension=3000, users=6, rounds=1, epsilon=3.0)
    result = Simulation(agreed.settings).round([np.zeros(3000)] * 6)
    steps = result.total / agreed.settings.code.grid
    expected = math.sqrt(6) * width(agreed.noise.levels)
    # A chi-squared of 3,000 degrees beyond 6 standard deviations: false alarms of both together
    # below 1e-8.
    assert abs(np.var(steps) / expected**2 - 1) < 6 * math.sqrt(2 / 3000)
    assert abs(np.mean(steps)) < 6 * expected / math.sqrt(3000)


def test_the_mechanism_draws_what_it_prices() -> None:
    noise = GaussianShares.calibrate(2.0, delta=1e-5, clip=1.0, dimension=100, shares=5)
    drawn = noise.release(np.zeros(40_000), rng=np.random.default_rng(0))
    assert abs(np.std(drawn) / noise.sigma - 1) < 0.025
    steps = drawn / noise.step
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-6)
    probability = np.exp(noise.log_prob(np.arange(-400_000, 400_001) * noise.step, 0.0)).sum()
    assert probability == pytest.approx(1, abs=1e-6)


def test_the_mechanism_survives_its_fields() -> None:
    noise = GaussianShares.calibrate(2.0, delta=1e-5, clip=1.0, dimension=100, shares=5)
    assert from_fields(to_fields(noise)) == noise


def test_more_users_or_colluders_change_the_noise_the_right_way() -> None:
    few, many = (
        agree(dimension=100, users=users, rounds=1, epsilon=2.0).noise for users in (10, 100)
    )
    assert few.step * width(few.levels) > many.step * width(many.levels)  # one share
    none, some = (
        agree(dimension=100, users=10, rounds=1, epsilon=2.0, colluders=c).noise for c in (0, 3)
    )
    assert some.shares == none.shares - 3
    with pytest.raises(InvalidParameter, match="colluders"):
        agree(dimension=100, users=4, rounds=1, epsilon=2.0, colluders=3)


def test_bound_and_bits_are_the_noises() -> None:
    with pytest.raises(InvalidParameter, match="leave them out"):
        agree(dimension=100, users=10, rounds=1, epsilon=2.0, bits=16)


@given(
    epsilon=st.floats(0.2, 20),
    rounds=st.integers(1, 40),
    users=st.integers(3, 500),
    dimension=st.integers(1, 300_000),
    records=st.integers(1, 100_000),
)
@settings(max_examples=30, deadline=None)
def test_noise_per_record_costs_no_more_than_asked(
    epsilon: float, rounds: int, users: int, dimension: int, records: int
) -> None:
    agreed = agree(
        dimension=dimension, users=users, rounds=rounds, epsilon=epsilon, clip=0.5, records=records
    )
    guarantee, noise = agreed.guarantee(rounds), agreed.noise
    assert isinstance(noise, RecordShares)
    assert 0.98 * epsilon <= guarantee.epsilon <= epsilon * (1 + 1e-9)
    assert [(cost.unit, cost.neighbours) for cost in guarantee.costs] == [
        ("record", "add or remove one")
    ]
    assert noise.reach + largest_share(noise.levels) <= agreed.settings.code.largest
    assert agreed.settings.bits <= 28
    assert Settings.decode(agreed.settings.encode()) == agreed.settings
    assert from_fields(to_fields(noise)) == noise


@given(
    st.lists(st.lists(st.floats(-1e300, 1e300), min_size=3, max_size=3), min_size=1, max_size=8),
    st.floats(0.01, 10),
)
@settings(max_examples=100, deadline=None)
def test_a_record_more_never_moves_a_clipped_sum_by_more_than_the_clip(
    rows: list[list[float]], clip: float
) -> None:
    given_rows = np.array(rows)
    change = clipped_sum(given_rows, clip) - clipped_sum(given_rows[:-1], clip)
    assert math.sqrt(sum(x * x for x in change)) <= clip


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_neighbouring_sums_of_records_differ_by_no_more_than_is_priced(data: st.DataObject) -> None:
    noise = RecordShares.calibrate(
        2.0, delta=1e-5, clip=1.0, dimension=3, shares=3, records=data.draw(st.integers(1, 50))
    )
    reals = st.floats(-100, 100)
    before = np.array(data.draw(st.lists(reals, min_size=3, max_size=3)))
    record = clipped_sum(np.array([data.draw(st.lists(reals, min_size=3, max_size=3))]), 1.0)
    steps = noise.clipped(before + record) - noise.clipped(before)
    distance = math.sqrt(sum(int(x) ** 2 for x in steps))
    assert distance <= noise.clip / noise.step + math.sqrt(3)
    priced = noise.mu * math.sqrt(noise.shares * width(noise.levels) ** 2 - 9)
    assert distance <= priced


def test_noise_for_records_must_fit_the_vectors_of_the_sum() -> None:
    agreed = agree(dimension=10, users=5, rounds=1, epsilon=1.0, records=10).settings
    with pytest.raises(InvalidParameter, match="10 weights"):
        Settings(
            dimension=11, users=5, noise=agreed.noise, bound=agreed.bound, bits=agreed.bits,
            least_users=agreed.least_users,
        )  # fmt: skip
