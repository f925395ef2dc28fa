"""Rounds over real messages: exact sums, dropouts, sampling, restarts, liars, and no dealer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from blindsight.core.errors import (
    HostileFile,
    InvalidData,
    InvalidParameter,
    ProtocolError,
)
from blindsight.federated.noise import GaussianShares
from blindsight.federated.sums import (
    Aggregator,
    Durable,
    Enrolment,
    KeyHolder,
    Outgoing,
    PartyKeys,
    Role,
    Roster,
    Settings,
    Simulation,
    User,
    field,
)
from blindsight.federated.sums.messages import Kind, Message, contribution_bytes, holder
from blindsight.federated.sums.store import FileStore

DIMENSION = 90


def updates(users: int, seed: int = 0, scale: float = 0.5) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).uniform(-scale, scale, (users, DIMENSION)))


def expected(settings: Settings, vectors: list[np.ndarray], users: tuple[int, ...]) -> np.ndarray:
    return settings.code.decode(sum(settings.code.encode(vectors[u - 1]) for u in users))


@pytest.mark.parametrize(("users", "options"), [(3, {}), (5, {}), (20, {}), (24, {"holders": 5})])
def test_sums_are_exact_over_several_rounds(users: int, options: dict) -> None:
    settings = Settings(dimension=DIMENSION, users=users, **options)
    simulation = Simulation(settings)
    for number in range(3 if users < 20 else 2):
        vectors = updates(users, number)
        result = simulation.round(vectors, model=bytes([number]))
        everybody = tuple(range(1, users + 1))
        assert result.contributors == everybody
        assert np.array_equal(result.total, expected(settings, vectors, everybody))
        assert set(result.bytes_per_user.values()) == {contribution_bytes(settings, DIMENSION)}


def test_plain_simulation_gives_the_same_sums_and_sets() -> None:
    settings = Settings(dimension=DIMENSION, users=12, holders=3)
    real, plain = Simulation(settings), Simulation(settings, encrypt=False)
    for number, absent in enumerate([(), (3, 4, 5), (1,), (2, 9)]):
        vectors = updates(12, number)
        one, two = (s.round(vectors, model=bytes([number]), dropouts=absent) for s in (real, plain))
        assert one.contributors == two.contributors
        assert np.array_equal(one.total, two.total)
        assert one.bytes_per_user == two.bytes_per_user


def test_dropouts_cost_nobody_elses_work_in_a_first_round() -> None:
    settings = Settings(dimension=DIMENSION, users=30, holders=3)
    vectors, absent = updates(30), (4, 9, 17)
    result = Simulation(settings).round(vectors, dropouts=absent)
    assert result.contributors == tuple(u for u in range(1, 31) if u not in absent)
    assert np.array_equal(result.total, expected(settings, vectors, result.contributors))


def test_dropouts_cost_nobody_elses_work_with_noise() -> None:
    noise = GaussianShares.calibrate(
        8.0, delta=1e-5, clip=1.0, dimension=DIMENSION, shares=19, rounds=4
    )
    code = noise.code()
    settings = Settings(
        dimension=DIMENSION, users=30, holders=3, noise=noise, least_users=20, bound=code.bound,
        bits=code.bits, rounds=4,
    )  # fmt: skip
    simulation = Simulation(settings)
    for number, absent in enumerate([(1, 2, 3), (4,), (5, 6, 7, 8, 9)]):
        result = simulation.round(updates(30, number), model=bytes([number]), dropouts=absent)
        assert len(result.contributors) == 30 - len(absent)


def test_a_round_without_enough_users_is_refused() -> None:
    settings = Settings(dimension=DIMENSION, users=30, holders=3)
    for encrypt in (True, False):
        with pytest.raises(ProtocolError, match="10 users in an admissible set"):
            Simulation(settings, encrypt=encrypt).round(updates(9))


def test_sampling_uses_pads_for_the_sample_only() -> None:
    """A larger cohort costs no bytes when at most 16 users are in a round."""
    small = Settings(dimension=50_000, users=16, holders=5)
    large = Settings(dimension=50_000, users=10_000, holders=5, most_users=16)
    assert contribution_bytes(small, 50_000) == contribution_bytes(large, 50_000)
    settings = Settings(dimension=DIMENSION, users=40, holders=3, most_users=9)
    simulation = Simulation(settings)
    vectors, invited = updates(40), range(11, 20)
    aggregator = simulation.aggregator
    for opening in aggregator.open_round(1, bytes(32), users=invited):
        simulation.users[opening.to].receive(opening.data)
        sent = simulation.users[opening.to].contribute(vectors[opening.to - 1])
        simulation._route(sent, opening.to, range(1, 41))
    simulation._deliver(aggregator.close(), range(1, 41))
    assert aggregator.result is not None and aggregator.result.contributors == tuple(invited)


@pytest.mark.parametrize(("users", "bits"), [(64, 28), (8, 28)])
def test_wide_sums_are_accepted_by_users(users: int, bits: int) -> None:
    settings = Settings(dimension=40, users=users, bits=bits, holders=3)
    vectors = [np.full(40, 1.0)] * users
    result = Simulation(settings).round(vectors)
    assert np.array_equal(result.total, np.full(40, float(users)))


def test_a_simulation_fails_when_a_user_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(Settings(dimension=DIMENSION, users=5))
    simulation.users[3]._seed = b"another seed".ljust(32)
    with pytest.raises(ProtocolError, match=r"users refuse the sum"):
        simulation.round(updates(5))


def test_settings_that_do_not_fit_are_refused() -> None:
    for options, words in [
        ({"users": 2}, "subtracting its own"),
        ({"users": 5, "holders": 2}, "holders"),
        ({"users": 30, "holders": 21}, "holders"),
        ({"users": 5, "colluders": 4}, "colluders"),
        ({"users": 30, "least_users": 5}, "least_users"),
        ({"users": 5, "bits": 29}, "bits"),
        ({"users": 30, "most_users": 31}, "most_users"),
        ({"users": 5, "clip": 0.0}, "clip"),
    ]:
        with pytest.raises(InvalidParameter, match=words):
            Settings(dimension=10, **options)
    settings = Settings(dimension=10, users=7, clip=2.0, rounds=3)
    assert Settings.decode(settings.encode()) == settings


@pytest.mark.parametrize(("n", "needed", "faulty"), [(3, 3, 1), (5, 4, 2), (20, 15, 9)])
def test_threshold_lets_no_two_sets_be_opened(n: int, needed: int, faulty: int) -> None:
    settings = Settings(dimension=10, users=max(3, n), holders=n)
    assert (settings.needed, settings.faulty_holders) == (needed, faulty)
    assert 2 * needed > n + faulty


def lying(role: KeyHolder, place: int) -> None:
    honest = role._summed

    def lie(*arguments: object) -> object:
        shares, unread = honest(*arguments)  # type: ignore[arg-type]
        shares[place] = field.add(int(shares[place]), 1)
        return shares, unread

    role._summed = lie  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize("place", [0, -1])
def test_one_liar_of_five_does_not_stop_a_round(place: int) -> None:
    """A wrong share of the key or of the tag; in the latter case users refuse a first result."""
    settings = Settings(dimension=DIMENSION, users=6, holders=5)
    simulation = Simulation(settings)
    lying(simulation.holders[holder(1)], place)
    vectors = updates(6)
    result = simulation.round(vectors)
    assert np.array_equal(result.total, expected(settings, vectors, result.contributors))


def test_one_absent_holder_of_five_does_not_stop_a_round_and_comes_back() -> None:
    settings = Settings(dimension=DIMENSION, users=6, holders=5)
    simulation = Simulation(settings)
    for number in (1, 2, 3):
        for opening in simulation.aggregator.open_round(number, bytes(32)):
            simulation.users[opening.to].receive(opening.data)
            sent = simulation.users[opening.to].contribute(updates(6)[opening.to - 1])
            simulation.aggregator.receive(sent[0].data)
        asked = simulation.aggregator.close()
        lost = []
        for question in asked:
            if number == 1 and question.to == holder(2):
                lost = simulation.holders[question.to].receive(question.data)
                continue  # its answer, with the key of the next round, is lost
            for answer in simulation.holders[question.to].receive(question.data):
                simulation.aggregator.receive(answer.data)
        assert simulation.aggregator.result is not None and (lost or number > 1)
        if number == 2:  # it could not read this round, and has told its new key
            assert 2 not in simulation.aggregator._parts
        for result in simulation.aggregator.results():
            simulation.users[result.to].receive(result.data)
    assert 2 in simulation.aggregator._parts


def test_a_user_who_was_away_catches_up() -> None:
    settings = Settings(dimension=DIMENSION, users=6, holders=3, across_rounds=False)
    simulation = Simulation(settings)
    away = 6
    vectors = updates(6)
    for number in (1, 2, 3):
        there = range(1, 7) if number == 3 else range(1, 6)
        simulation._deliver(simulation.aggregator.open_round(number, bytes([number]) * 32), there)
        for user in there:
            role = simulation.users[user]
            assert role.waiting, role.refusals
            simulation._route(role.contribute(vectors[user - 1]), user, there)
        simulation._deliver(simulation.aggregator.close(), there)
        simulation._deliver(simulation.aggregator.results(), there)
    assert simulation.users[away].ended == 3
    assert simulation.aggregator.members == (1, 2, 3, 4, 5, 6)


def run_one(
    roles: dict[int, object], vectors: list[np.ndarray], number: int, reload: Callable
) -> object:
    """A round in which every party is stored and loaded again before every message."""

    def route(messages: list[Outgoing]) -> None:
        for message in messages:
            role = roles[message.to] = reload(roles[message.to])
            route(role.receive(message.data))  # type: ignore[attr-defined]

    route(roles[0].open_round(number, bytes([number]) * 32))  # type: ignore[attr-defined]
    for user in range(1, len(vectors) + 1):
        roles[user] = reload(roles[user])
        route(roles[user].contribute(vectors[user - 1]))  # type: ignore[attr-defined]
    roles[0] = reload(roles[0])
    route(roles[0].close())  # type: ignore[attr-defined]
    route(roles[0].results())  # type: ignore[attr-defined]
    return roles[0]


@pytest.mark.parametrize("in_files", [False, True])
def test_every_role_continues_from_its_state(tmp_path: Path, in_files: bool) -> None:
    settings = Settings(dimension=DIMENSION, users=5)
    simulation = Simulation(settings)
    store = FileStore(tmp_path, 5) if in_files else None
    first = Aggregator(simulation.aggregator.enrolment, store=store)
    roles: dict[int, object] = {0: first, **simulation.users, **simulation.holders}

    def reload(role: object) -> object:
        path = tmp_path / "state"
        Durable(role, path)  # type: ignore[arg-type]
        data = path.read_bytes()
        if isinstance(role, Aggregator):
            return Aggregator.load(data, store=FileStore(tmp_path, 5) if in_files else None)
        return type(role).load(data)  # type: ignore[attr-defined]

    for number in (1, 2):
        vectors = updates(5, number)
        aggregator = run_one(roles, vectors, number, reload)
        total = settings.code.decode(aggregator.result.values)  # type: ignore[attr-defined]
        assert np.array_equal(total, expected(settings, vectors, (1, 2, 3, 4, 5)))
    if in_files:
        assert (tmp_path / "contributions.log").stat().st_size == 0


def joined(users: int = 3) -> tuple[Roster, list[PartyKeys], list]:
    keys = [PartyKeys.generate() for _ in range(users)]
    roles = [Role.USER | Role.HOLDER] * (users - 1) + [Role.USER | Role.HOLDER | Role.AGGREGATOR]
    requests = [k.request(f"site {i}", r) for i, (k, r) in enumerate(zip(keys, roles, strict=True))]
    return (
        Roster(Settings(dimension=DIMENSION, users=users), bytes(32), tuple(requests)),
        keys,
        requests,
    )


def test_sites_enrol_without_a_dealer_and_hand_round_the_seed() -> None:
    """Each site makes its own keys; the tag seed travels sealed, and the first round waits."""
    roster, keys, requests = joined()
    again = Roster.decode(roster.encode())
    assert again.agreement == roster.agreement and again.fingerprint == roster.fingerprint
    enrolments = [Enrolment(key, again) for key in keys]
    for enrolment, request in zip(enrolments, requests, strict=True):
        enrolment.check(request)
    users = {e.number(Role.USER): User(e) for e in enrolments}
    holders = {e.number(Role.HOLDER): KeyHolder(e) for e in enrolments}
    aggregator = Aggregator(enrolments[2])
    roles = {0: aggregator, **users, **holders}
    vectors = updates(3)

    def route(messages: list[Outgoing]) -> None:
        for message in messages:
            answers = roles[message.to].receive(message.data)
            role = users.get(message.to)
            if role is not None and role.waiting:
                answers = [*answers, *role.contribute(vectors[message.to - 1])]
            route(answers)

    route([message for message in aggregator.open_round(1, bytes(32)) if message.to != 1])
    assert aggregator.contributors == () and any("SEED" in r for r in users[2].refusals)
    route(users[1].seeds())
    route([message for message in aggregator.reopen() if message.to == 1])
    assert aggregator.contributors == (1, 2, 3)
    route(aggregator.close())
    route(aggregator.results())
    assert [user.ended for user in users.values()] == [1, 1, 1]
    assert users[2].result is not None
    got = again.settings.code.decode(users[2].result.values)
    assert np.array_equal(got, expected(again.settings, vectors, (1, 2, 3)))


def test_a_roster_that_changes_a_request_is_refused() -> None:
    roster, keys, requests = joined()
    stranger = PartyKeys.generate()
    changed = stranger.request("site 0", requests[0].roles)
    other = Roster(roster.settings, roster.plan, (changed, *requests[1:]))
    with pytest.raises(InvalidData, match="does not hold this party's request"):
        Enrolment(keys[0], other).check(requests[0])
    assert other.fingerprint != roster.fingerprint
    with pytest.raises(InvalidData, match="same"):
        Roster(roster.settings, roster.plan, (requests[0], requests[0], requests[2]))
    forged = replace(requests[0], name="somebody else")
    data = Roster(roster.settings, roster.plan, (forged, *requests[1:])).encode()
    with pytest.raises(HostileFile, match="not signed"):
        Roster.decode(data)


def test_keys_are_erased_once_they_are_not_needed() -> None:
    """A holder's first key and a user's seed key are gone after the first round."""
    simulation = Simulation(Settings(dimension=DIMENSION, users=3))
    secrets = [e.enrolment.keys.private.dump() for e in simulation.holders.values()]
    simulation.round(updates(3))
    states = [role.dump() for role in (*simulation.holders.values(), *simulation.users.values())]
    assert not any(secret in state for secret in secrets for state in states)


def test_messages_are_of_seven_kinds_and_bound_to_their_round() -> None:
    simulation = Simulation(Settings(dimension=DIMENSION, users=3))
    result = simulation.round(updates(3))
    messages = [Message.decode(d, largest=len(d)) for _, _, d in result.transcript.messages]
    kinds = {m.header.kind for m in messages}
    assert kinds == {Kind.OPEN, Kind.CONTRIBUTION, Kind.COLLECT, Kind.PART, Kind.RESULT}
    assert len({m.header.context for m in messages}) == 1


def test_damaged_messages_are_refused_and_change_nothing() -> None:
    """Every byte of a contribution flipped in turn, in steps, and every truncation."""
    simulation = Simulation(Settings(dimension=10, users=3))
    for opening in simulation.aggregator.open_round(1, bytes(32)):
        simulation.users[opening.to].receive(opening.data)
    [sent] = simulation.users[1].contribute(np.zeros(10))
    for place in [*range(0, 400, 7), *range(400, len(sent.data), 997)]:
        damaged = bytearray(sent.data)
        damaged[place] ^= 1
        simulation.aggregator.receive(bytes(damaged))
        simulation.aggregator.receive(sent.data[:place])
    assert simulation.aggregator.contributors == ()
    simulation.aggregator.receive(sent.data)
    assert simulation.aggregator.contributors == (1,)
