"""A round's sum is the plain sum, whoever takes part and however it is opened."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blindsight.core.errors import InvalidData, InvalidParameter, ProtocolError
from blindsight.federated import keys
from blindsight.federated.messages import Code, Refused
from blindsight.federated.noise import GaussianShares
from blindsight.federated.paillier import PrivateKey
from blindsight.federated.protocol import Settings, Simulation, simulate_round

NOISE = GaussianShares(clip=1.0, step=0.1, levels=1, shares=2, delta=1e-5)

quick = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
HOLDERS = {"one key generator": None, "3 of 5 holders": (3, 5)}


@given(data=st.data())
@quick
def test_the_opened_sum_is_the_plain_sum_exactly(
    small_key: PrivateKey, data: st.DataObject
) -> None:
    users = data.draw(st.integers(3, 7))
    agreed = Settings(
        dimension=data.draw(st.integers(1, 90)),
        users=users,
        mode=data.draw(st.sampled_from(["pad", "paper"])),
        bits=data.draw(st.sampled_from([8, 16, 24])),
        bound=data.draw(st.sampled_from([0.01, 1.0, 300.0])),
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    extreme = rng.choice(
        [-agreed.bound, agreed.bound, 0.0, agreed.bound / 3], (users, agreed.dimension)
    )
    result = Simulation(agreed, key=small_key).round(list(extreme))
    numbers = np.stack([agreed.code.encode(row) for row in extreme])
    np.testing.assert_array_equal(result.total, agreed.code.decode(numbers.sum(axis=0)))


@pytest.mark.parametrize("holders", HOLDERS.values(), ids=HOLDERS)
@pytest.mark.parametrize("least", [1, 2])
def test_plain_simulation_gives_the_same_results_and_sizes(
    small_key: PrivateKey, holders, least: int
) -> None:
    rng = np.random.default_rng(3)
    agreed = Settings(dimension=300, users=7, holders=holders, least_per_coordinate=least)
    real = Simulation(agreed, key=None if holders else small_key)
    plain = Simulation(agreed, encrypt=False, key_bits=512)
    for dropouts in ((), (2,), ()):
        updates = np.where(rng.random((7, 300)) < 0.2, rng.uniform(-1, 1, (7, 300)), 0.0)
        first, second = (s.round(list(updates), dropouts=dropouts) for s in (real, plain))
        np.testing.assert_array_equal(first.total, second.total)
        np.testing.assert_array_equal(first.revealed, second.revealed)
        assert first.bytes_per_user == second.bytes_per_user
        assert (
            first.contributors
            == second.contributors
            == ((4, 5, 6, 7) if dropouts else tuple(range(1, 8)))
        )


def test_two_hundred_users_at_the_extremes() -> None:
    agreed = Settings(dimension=9, users=200, least_users=190)
    updates = {n: np.full(9, 1.0 if n % 3 else -1.0) for n in range(1, 201)}
    simulation = Simulation(
        agreed, key=keys.generate(512, insecure_for_tests=True), keep_messages=False
    )
    result = simulation.round(updates)
    plus = sum(1 for n in updates if n % 3)
    np.testing.assert_array_equal(
        result.total, agreed.code.decode(np.full(9, 32767 * (plus - (200 - plus))))
    )


@pytest.mark.parametrize("holders", HOLDERS.values(), ids=HOLDERS)
def test_only_weights_that_enough_users_changed_are_sent_at_all(
    small_key: PrivateKey, holders
) -> None:
    agreed = Settings(dimension=40, users=4, least_per_coordinate=3, holders=holders)
    updates = np.zeros((4, 40))
    updates[:, 0], updates[:3, 1], updates[:2, 2], updates[0, 3] = 0.5, 0.25, 0.125, 0.7
    result = Simulation(agreed, key=None if holders else small_key).round(list(updates))
    assert np.flatnonzero(result.revealed).tolist() == [0, 1]
    np.testing.assert_array_equal(result.total[2:], 0)
    nothing = Simulation(agreed, key=None if holders else small_key).round(list(np.zeros((4, 40))))
    assert not nothing.revealed.any()


def test_users_left_over_join_the_last_group() -> None:
    agreed = Settings(dimension=4, users=8)
    assert [list(group) for group in agreed.groups()] == [[1, 2, 3], [4, 5, 6, 7, 8]]
    assert agreed.whole_groups({1, 2, 3, 4, 5, 6, 7}) == (1, 2, 3)
    assert Settings(dimension=4, users=8, group=1).whole_groups({7, 2}) == (2, 7)


@pytest.mark.parametrize("holders", HOLDERS.values(), ids=HOLDERS)
def test_whole_groups_finish_a_round_without_the_others(start: Callable, holders) -> None:
    started = start(holders=holders)
    started.deliver(1, 2, 3, 5)
    np.testing.assert_array_equal(started.finish(), started.expected(1, 2, 3))
    assert started.simulation.aggregator.result.contributors == (1, 2, 3)
    np.testing.assert_array_equal(
        started.simulation.users[6].result.values, started.simulation.aggregator.result.values
    )


def test_too_few_whole_groups_open_nothing(start: Callable) -> None:
    started = start()
    started.deliver(1, 2, 4, 5)
    with pytest.raises(Refused, match="whole groups") as error:
        started.simulation.aggregator.close()
    assert error.value.code is Code.FEW


def test_one_lying_holder_is_outvoted_and_named(start: Callable) -> None:
    started = start(holders=(3, 5))
    started.deliver()
    liar = next(iter(started.simulation.holders.values()))
    honest = liar._summed
    liar._summed = lambda *args: (np.roll(honest(*args)[0], 1), ())
    np.testing.assert_array_equal(started.finish(), started.expected())
    assert any(
        "key holder 1 does not agree" in note for note in started.simulation.aggregator.refusals
    )


def test_one_holder_may_be_away(start: Callable) -> None:
    started = start(holders=(3, 5))
    started.deliver()
    away = next(iter(started.simulation.holders))
    started.simulation.holders[away].receive = lambda data: []
    np.testing.assert_array_equal(started.finish(), started.expected())


def test_a_holder_who_was_away_goes_on_from_the_votes(start: Callable) -> None:
    started = start(holders=(3, 5))
    started.deliver()
    role = next(iter(started.simulation.holders.values()))
    real, role.receive = role.receive, lambda data: []
    started.finish()
    role.receive = real
    started.again(2)
    started.deliver()
    np.testing.assert_array_equal(started.finish(), started.expected())
    assert not role.refusals


def test_a_user_who_was_away_gets_the_results_it_lacks(start: Callable) -> None:
    started = start(group=1)
    late = started.simulation.users[6]
    real, late.receive = late.receive, lambda data: []
    started.deliver(1, 2, 3, 4, 5)
    started.finish()
    late.receive = real
    aggregator = started.simulation.aggregator
    [opening] = [m for m in aggregator.open_round(2, MODEL) if m.to == 6]
    seen = started.route([opening])
    assert late.ended == 1
    assert late.waiting
    assert len(seen) == 4  # opening, refusal, the missing result, and the opening again


def test_a_user_with_a_wrong_key_spoils_its_round_and_not_the_next(
    start: Callable, monkeypatch
) -> None:
    from blindsight.federated.protocol import user

    started = start()
    real = user.new_secret
    monkeypatch.setattr(
        user, "pad", lambda size, context, values, s: user_pad(size, context, values, real(size))
    )
    user_pad = __import__("blindsight.federated.pad", fromlist=["pad"]).pad
    for opening in started.simulation.aggregator.open_round(2, MODEL):
        started.simulation.users[opening.to].receive(opening.data)
    started.sent = {
        n: u.contribute(started.updates[n - 1]) for n, u in started.simulation.users.items()
    }
    started.deliver()
    aggregator = started.simulation.aggregator
    started.route(aggregator.close())
    assert aggregator.spoilt
    assert aggregator.result is None
    started.route(aggregator.results())
    monkeypatch.undo()
    started.again(3)
    started.deliver()
    np.testing.assert_array_equal(started.finish(), started.expected())


def test_messages_need_not_be_kept(small_key: PrivateKey) -> None:
    agreed = Settings(dimension=20, users=3)
    kept = Simulation(agreed, key=small_key).round([np.full(20, 0.1)] * 3)
    light = Simulation(agreed, key=small_key, keep_messages=False).round([np.full(20, 0.1)] * 3)
    assert light.transcript.messages == ()
    assert light.bytes_per_user == kept.bytes_per_user
    np.testing.assert_array_equal(light.total, kept.total)


def test_updates_are_checked(small_key: PrivateKey) -> None:
    simulation = Simulation(Settings(dimension=4, users=3), key=small_key)
    with pytest.raises(InvalidParameter, match="numbered 1 to 3"):
        simulation.round({9: np.zeros(4)})
    with pytest.raises(InvalidData, match="4 weights"):
        simulation.round([np.zeros(5)] * 3)
    # A refusal would tell of the values: numbers that are not finite count as zeros.
    spoiled = simulation.round([np.full(4, np.nan), np.ones(4), np.ones(4)])
    np.testing.assert_allclose(spoiled.total, 2.0, atol=1e-6)
    with pytest.raises(InvalidData, match="bound"):
        Simulation(Settings(dimension=4, users=3), key=small_key).round([np.full(4, 1.5)] * 3)
    with pytest.raises(InvalidData):
        simulate_round([])
    with pytest.raises(ProtocolError):
        Simulation(Settings(dimension=4, users=3), key=small_key).round(
            [np.zeros(4)] * 3, dropouts=(1,)
        )


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"dimension": 0}, "dimension"),
        ({"users": 2}, "users"),
        ({"mode": "block"}, "mode"),
        ({"least_users": 2}, "least_users"),
        ({"least_users": 9}, "least_users"),
        ({"group": 2}, "group"),
        ({"colluders": 2, "group": 3}, "group"),
        ({"colluders": 4}, "colluders"),
        ({"colluders": 2, "group": 1}, "at least two others"),
        ({"bits": 30}, "bits"),
        ({"bound": -1.0}, "bound"),
        ({"holders": (3, 4)}, "holders"),
        ({"holders": (1, 5)}, "holders"),
        ({"holders": (10, 20)}, "subsets"),
        ({"mode": "paper", "holders": (3, 5)}, "pad"),
        ({"noise": 1.0}, "noise"),
        ({"noise": NOISE}, "bound and bits"),
        (
            {
                "noise": NOISE,
                "bound": NOISE.code().bound,
                "bits": NOISE.code().bits,
                "colluders": 2,
            },
            "shares",
        ),
        ({"least_per_coordinate": 7}, "least_per_coordinate"),
        ({"capacity": 99}, "capacity"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict, word: str) -> None:
    with pytest.raises(InvalidParameter, match=word):
        Settings(**{"dimension": 10, "users": 5, **changes})


def test_settings_survive_their_bytes() -> None:
    for changes in (
        {},
        {"holders": (3, 5)},
        {"mode": "paper", "capacity": 3},
        {"group": 1, "rounds": 7},
    ):
        agreed = Settings(dimension=10, users=6, **changes)
        assert Settings.decode(agreed.encode()) == agreed


MODEL = bytes(range(32))
