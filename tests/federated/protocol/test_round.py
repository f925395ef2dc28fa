"""A round's sum is the plain sum, whoever takes part and however it is sent."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blindsight.core.errors import InvalidData, InvalidParameter, ProtocolError
from blindsight.federated import keys
from blindsight.federated.messages import AGGREGATOR, KEYGEN
from blindsight.federated.paillier import PrivateKey
from blindsight.federated.protocol import Settings, Simulation, simulate_round
from blindsight.federated.signatures import Ed25519

quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(data=st.data())
@quick
def test_decrypted_sum_equals_the_plain_sum_exactly(small_key: PrivateKey, data: st.DataObject) -> None:
    users = data.draw(st.integers(3, 7))
    agreed = Settings(
        dimension=data.draw(st.integers(1, 90)),
        users=users,
        mode=data.draw(st.sampled_from(["block", "paper"])),
        bits=data.draw(st.sampled_from([8, 16, 24])),
        bound=data.draw(st.sampled_from([0.01, 1.0, 300.0])),
        count=data.draw(st.sampled_from(["coordinate", "block"])),
        support=data.draw(st.sampled_from(["sparse", "hidden"])),
        least_per_coordinate=data.draw(st.integers(1, 3)),
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    shape = (users, agreed.dimension)
    extreme = rng.choice([-agreed.bound, agreed.bound, 0.0, agreed.bound / 3], shape)
    simulation = Simulation(agreed, key=small_key, workers=1)
    result = simulation.round(list(extreme))
    numbers = np.stack([agreed.code.encode(row) for row in extreme])
    expected = np.where(result.revealed, numbers.sum(axis=0), 0)
    np.testing.assert_array_equal(result.total, agreed.code.decode(expected))
    assert result.refused_blocks == 0
    if agreed.mode == "paper":
        assert result.revealed.all()
    elif agreed.count == "coordinate":
        np.testing.assert_array_equal(result.revealed, np.count_nonzero(extreme, axis=0) >= agreed.least_per_coordinate)


@pytest.mark.parametrize("mode", ["block", "paper"])
@pytest.mark.parametrize("count", ["block", "coordinate"])
def test_plain_simulation_gives_the_same_result_and_sizes(small_key: PrivateKey, mode: str, count: str) -> None:
    rng = np.random.default_rng(3)
    updates = np.where(rng.random((6, 300)) < 0.05, rng.uniform(-1, 1, (6, 300)), 0.0)
    options = {"mode": mode, "count": count, "least_per_coordinate": 2}
    real = simulate_round(list(updates), key=small_key, **options)
    plain = simulate_round(list(updates), key=small_key, encrypt=False, **options)
    np.testing.assert_array_equal(real.total, plain.total)
    np.testing.assert_array_equal(real.revealed, plain.revealed)
    assert real.bytes_per_user == plain.bytes_per_user
    assert real.contributors == plain.contributors


def test_a_thousand_users_at_the_extremes(small_key: PrivateKey) -> None:
    agreed = Settings(dimension=9, users=1000, support="hidden")
    updates = {n: np.full(9, 1.0 if n % 3 else -1.0) for n in range(1, 1001)}
    result = Simulation(agreed, key=small_key, workers=1).round(updates)
    plus = sum(1 for n in updates if n % 3)
    np.testing.assert_array_equal(result.total, agreed.code.decode(np.full(9, 32767 * (plus - (1000 - plus)))))


def test_any_subset_of_enough_users_finishes_the_round(start: Callable) -> None:
    for present in [(1, 2, 3), (2, 4, 5), (1, 2, 3, 4, 5)]:
        started = start()
        started.deliver(*present)
        np.testing.assert_array_equal(started.finish(), started.expected(*present))
        assert started.simulation.aggregator.result.contributors == present


@pytest.mark.parametrize("mode", ["block", "paper"])
def test_two_users_are_never_summed(start: Callable, mode: str) -> None:
    started = start(mode=mode)
    started.deliver(1, 2)
    with pytest.raises(ProtocolError, match="too few contributors"):
        started.simulation.aggregator.close()
    started.deliver(4)
    np.testing.assert_array_equal(started.finish(), started.expected(1, 2, 4))


def test_coordinates_of_too_few_contributors_are_withheld(small_key: PrivateKey) -> None:
    updates = np.zeros((5, 40))
    updates[0, :30] = updates[1, :20] = updates[2, :10] = 0.5
    result = simulate_round(list(updates), key=small_key)
    assert result.revealed.tolist() == [True] * 10 + [False] * 30
    assert (result.total[10:] == 0).all()


def test_a_round_of_disjoint_supports_reveals_nothing_and_ends(small_key: PrivateKey) -> None:
    slots = Settings(dimension=1, users=3).packing(small_key.public).slots
    updates = np.zeros((3, 60 * slots))
    for n in range(3):
        updates[n, n * 20 * slots] = 0.5
    result = simulate_round(list(updates), key=small_key)
    assert not result.revealed.any()
    assert result.refused_blocks == 0


def test_paper_rounds_name_who_really_took_part(small_key: PrivateKey) -> None:
    simulation = Simulation(Settings(dimension=20, users=5, mode="paper"), key=small_key, workers=1)
    assert simulation.round([np.full(20, 0.1)] * 5, dropouts=(1, 3)).contributors == (2, 4, 5)


def test_a_common_support_is_revealed_even_where_weights_are_zero(small_key: PrivateKey) -> None:
    mask = np.arange(40) < 25
    updates = [np.where(np.arange(40) == n, 0.5, 0.0) for n in range(4)]
    simulation = Simulation(Settings(dimension=40, users=4), key=small_key)
    result = simulation.round(updates, supports=dict.fromkeys(range(1, 5), mask))
    np.testing.assert_array_equal(result.revealed, mask)
    assert (result.total != 0).sum() == 4


def test_rounds_follow_each_other_with_dropouts(small_key: PrivateKey) -> None:
    simulation = Simulation(Settings(dimension=50, users=5, least_per_coordinate=1), key=small_key)
    rng = np.random.default_rng(0)
    for number, gone in enumerate([(), (2,), (1, 5)], start=1):
        updates = rng.uniform(-1, 1, (5, 50))
        result = simulation.round(list(updates), model=b"weights", dropouts=gone)
        stay = [n for n in range(1, 6) if n not in gone]
        assert result.round == number
        assert result.contributors == tuple(stay)
        code = simulation.settings.code
        np.testing.assert_array_equal(result.total, code.decode(sum(code.encode(updates[n - 1]) for n in stay)))
        np.testing.assert_allclose(result.mean, result.total / len(stay))


def test_paper_mode_splits_into_shards_of_exactly_m(start: Callable, small_key: PrivateKey) -> None:
    """Section 2.3: nz > M is sent as several shards, each as large as any other."""
    started = start(mode="paper", dimension=100, density=0.55, capacity=10)
    for user, messages in started.sent.items():
        nonzero = np.count_nonzero(started.updates[user - 1])
        assert len(messages) == max(1, -(-nonzero // 10))
        sizes = {len(message.data) for message in messages}
        assert sizes == {started.simulation.settings.contribution_bytes(small_key.public, 10)}
    started.deliver()
    np.testing.assert_array_equal(started.finish(), started.expected())


def test_paper_capacity_is_a_tenth_rounded_up() -> None:
    assert Settings(dimension=206_848, users=5, mode="paper").m == 20_685


def test_only_non_empty_blocks_are_sent_unless_all_are_cheaper_or_hidden(small_key: PrivateKey) -> None:
    public = small_key.public
    slots = Settings(dimension=1, users=5).packing(public).slots
    one = np.zeros(20 * slots)
    one[3 * slots] = one[7 * slots + 1] = 0.1
    full = np.full(20 * slots, 0.1)
    sent = {}
    for name, update, support in [("two", one, "sparse"), ("all", full, "sparse"), ("hidden", one, "hidden")]:
        agreed = Settings(dimension=len(one), users=5, support=support, least_per_coordinate=1)
        result = Simulation(agreed, key=small_key, workers=1).round([update] * 5)
        sent[name] = (result.bytes_per_user[1], agreed)
    assert sent["two"][0] == sent["two"][1].contribution_bytes(public, 2)
    assert sent["all"][0] == sent["hidden"][0] == sent["all"][1].contribution_bytes(public, 20)


def test_signed_with_ed25519_and_degree_three(any_degree: PrivateKey) -> None:
    identities = {n: Ed25519() for n in (AGGREGATOR, KEYGEN, 1, 2, 3)}
    agreed = Settings(dimension=30, users=3)
    result = Simulation(agreed, key=any_degree, identities=identities).round([np.full(30, 0.25)] * 3)
    np.testing.assert_array_equal(result.total, agreed.code.decode(3 * agreed.code.encode(np.full(30, 0.25))))


def test_a_round_under_a_real_key(real_key: PrivateKey) -> None:
    updates = list(np.random.default_rng(1).uniform(-1, 1, (3, 200)))
    seen: list[tuple[int, int]] = []
    simulation = Simulation(Settings(dimension=200, users=3), key=real_key)
    result = simulation.round(updates, progress=lambda done, total: seen.append((done, total)))
    np.testing.assert_allclose(result.total, sum(updates), atol=3 * simulation.settings.code.grid)
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert result.seconds["total"] > 0


def test_bad_updates_are_refused_before_anything_is_sent(start: Callable) -> None:
    simulation = start().simulation
    for opening in simulation.aggregator.open_round(2, bytes(32)):
        simulation.users[opening.to].receive(opening.data)
    for bad in (np.zeros(7), np.full(120, 1.5), np.full(120, np.nan)):
        with pytest.raises(InvalidData):
            simulation.users[1].contribute(bad)
    with pytest.raises(InvalidData, match="support"):
        simulation.users[1].contribute(np.ones(120), support=np.zeros(120, dtype=bool))
    assert simulation.users[1].waiting


@pytest.mark.parametrize(
    "wrong",
    [
        {"users": 2},
        {"least_users": 2},
        {"least_users": 9},
        {"least_per_coordinate": 9},
        {"mode": "other"},
        {"dimension": 0},
        {"clip": 1.0},
        {"capacity": 99},
        {"support": "some"},
        {"bits": 48, "users": 60_000},
    ],
)
def test_settings_that_cannot_protect_are_refused(wrong: dict) -> None:
    with pytest.raises(InvalidParameter):
        Settings(**{"dimension": 10, "users": 5, **wrong})


def test_settings_survive_their_bytes_and_differ_by_digest() -> None:
    first = Settings(dimension=10, users=5, capacity=4)
    assert Settings.decode(first.encode()) == first
    assert first.digest != Settings(dimension=10, users=5).digest


def test_simulations_need_users_one_to_n(small_key: PrivateKey) -> None:
    simulation = Simulation(Settings(dimension=4, users=3), key=small_key)
    with pytest.raises(InvalidParameter, match="numbered 1 to 3"):
        simulation.round({9: np.zeros(4)})
    with pytest.raises(InvalidData):
        simulate_round([])


def test_messages_need_not_be_kept(small_key: PrivateKey) -> None:
    agreed = Settings(dimension=20, users=3)
    kept = Simulation(agreed, key=small_key, workers=1).round([np.full(20, 0.1)] * 3)
    light = Simulation(agreed, key=small_key, workers=1, keep_messages=False).round([np.full(20, 0.1)] * 3)
    assert light.transcript.messages == ()
    assert light.bytes_per_user == kept.bytes_per_user
    np.testing.assert_array_equal(light.total, kept.total)


def test_default_key_is_a_real_one() -> None:
    assert keys.generate().public.bits == 2048
