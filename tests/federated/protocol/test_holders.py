"""A shared key: t holders open a round, fewer open nothing, and each checks for itself."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest

from blindsight.core.errors import InvalidParameter, ProtocolError
from blindsight.federated.messages import AGGREGATOR, Kind, Message, Outgoing, PartialRequest, Refusal, holder
from blindsight.federated.paillier import PrivateKey
from blindsight.federated.protocol import KeyHolder, Opener, Settings, Simulation, enrol_holders
from blindsight.federated.signatures import Ed25519

AGREED = Settings(dimension=80, users=4, least_per_coordinate=1)


def started(key: PrivateKey, **options: object) -> tuple[Simulation, list[Outgoing], np.ndarray]:
    """A round closed by an aggregator, with the requests to the holders not yet delivered."""
    simulation = Simulation(AGREED, key=key, workers=1, holders=(2, 3), **options)  # type: ignore[arg-type]
    updates = np.random.default_rng(0).uniform(-1, 1, (4, 80))
    for opening in simulation.aggregator.open_round(1, bytes(32)):
        simulation.users[opening.to].receive(opening.data)
    for number, user in simulation.users.items():
        for message in user.contribute(updates[number - 1]):
            simulation.aggregator.receive(message.data)
    expected = AGREED.code.decode(sum(AGREED.code.encode(u) for u in updates))
    return simulation, simulation.aggregator.close(), expected


def refused(answers: list[Outgoing]) -> str:
    [answer] = answers
    message = Message.decode(answer.data, largest=10_000)
    assert message.header.kind is Kind.REFUSED
    return Refusal.decode(message.body).reason


def test_any_two_of_three_holders_open_the_round(small_key: PrivateKey) -> None:
    for pair in [(0, 1), (0, 2), (1, 2)]:
        simulation, requests, expected = started(small_key)
        roles = list(simulation.holders.values())
        answers = []
        for i in pair:
            [part] = roles[i].receive(requests[i].data)
            answers += simulation.keygen.receive(part.data)
        [answer] = answers
        simulation.aggregator.receive(answer.data)
        np.testing.assert_array_equal(AGREED.code.decode(simulation.aggregator.result.values), expected)


def test_one_holder_opens_nothing(small_key: PrivateKey) -> None:
    simulation, requests, _ = started(small_key)
    [part] = next(iter(simulation.holders.values())).receive(requests[0].data)
    assert simulation.keygen.receive(part.data) == []
    assert simulation.keygen.receive(part.data) == []  # nor does the same one twice


def test_holders_help_only_with_enough_signed_contributions_and_once(small_key: PrivateKey) -> None:
    simulation, requests, _ = started(small_key)
    role = next(iter(simulation.holders.values()))
    message = Message.decode(requests[0].data, largest=10**9)
    identity = simulation.aggregator.identity
    parts = PartialRequest.decode(message.body, users=4).contributions

    def ask(*chosen: bytes, **changes: object) -> list[Outgoing]:
        header = dataclasses.replace(message.header, **changes)
        return role.receive(Message.make(header, PartialRequest(chosen).encode(), identity).encode())

    forged = bytearray(parts[1])
    forged[-1] ^= 1
    assert "too few" in refused(ask(parts[0]))
    assert "too few" in refused(ask(*parts[:2]))
    assert "replay" in refused(ask(parts[0], parts[0], parts[0]))
    assert "wrong signature" in refused(ask(parts[0], bytes(forged), parts[2]))
    assert "wrong round" in refused(ask(*parts, round=2))
    assert "only the aggregator" in refused(ask(*parts, sender=1))
    [answer] = role.receive(requests[0].data)
    assert role.receive(requests[0].data) == [answer]
    assert "opened already" in refused(ask(*parts[:3]))  # no second sum to subtract


def test_a_lying_holder_does_not_stop_two_honest_ones(small_key: PrivateKey) -> None:
    simulation, requests, expected = started(small_key)
    roles = list(simulation.holders.values())
    liar = roles[0].enrolment.share
    liar._value += 12345
    answers: list[Outgoing] = []
    for role, request in zip(roles, requests, strict=True):
        [part] = role.receive(request.data)
        answers += simulation.keygen.receive(part.data)
    sums = [a for a in answers if a.data[5] == Kind.SUM]
    simulation.aggregator.receive(sums[0].data)
    np.testing.assert_array_equal(AGREED.code.decode(simulation.aggregator.result.values), expected)
    assert any("wrong" in note for note in simulation.keygen.refusals)


def test_holders_and_opener_survive_a_restart(small_key: PrivateKey) -> None:
    simulation, requests, expected = started(small_key)
    roles = [KeyHolder.load(role.dump(), workers=1) for role in simulation.holders.values()]
    opener = Opener.load(simulation.keygen.dump())
    [first] = roles[0].receive(requests[0].data)
    assert KeyHolder.load(roles[0].dump()).receive(requests[0].data) == [first]
    opener.receive(first.data)
    [second] = roles[1].receive(requests[1].data)
    [answer] = opener.receive(second.data)
    again = Opener.load(opener.dump())
    assert again.receive(second.data) == [answer]
    simulation.aggregator.receive(answer.data)
    np.testing.assert_array_equal(AGREED.code.decode(simulation.aggregator.result.values), expected)


def test_the_opener_refuses_strangers_and_users(small_key: PrivateKey) -> None:
    simulation, requests, _ = started(small_key)
    [part] = simulation.holders[holder(1)].receive(requests[0].data)
    message = Message.decode(part.data, largest=10**9)
    for sender, identity in [(1, simulation.users[1].identity), (holder(2), simulation.users[1].identity)]:
        header = dataclasses.replace(message.header, sender=sender)
        assert refused(simulation.keygen.receive(Message.make(header, message.body, identity).encode()))


def test_a_whole_simulation_with_ed25519(small_key: PrivateKey) -> None:
    numbers = (AGGREGATOR, 0xFFFFFFFF, 1, 2, 3, 4, holder(1), holder(2), holder(3))
    simulation = Simulation(
        AGREED, key=small_key, workers=1, holders=(3, 3), identities={n: Ed25519() for n in numbers}
    )
    for _ in range(2):
        result = simulation.round([np.full(80, 0.25)] * 4, dropouts=(2,))
        np.testing.assert_array_equal(result.total, AGREED.code.decode(3 * AGREED.code.encode(np.full(80, 0.25))))


def test_shared_keys_need_block_mode_and_every_identity(small_key: PrivateKey) -> None:
    with pytest.raises(InvalidParameter, match="block"):
        enrol_holders(Settings(dimension=8, users=3, mode="paper"), small_key, needed=2, holders=3)
    with pytest.raises(InvalidParameter, match="missing"):
        enrol_holders(AGREED, small_key, needed=2, holders=3, identities={AGGREGATOR: Ed25519()})


def test_the_opener_has_no_key_and_holders_show_none(small_key: PrivateKey) -> None:
    simulation, _, _ = started(small_key)
    assert simulation.keygen.enrolment.private is None
    for role in simulation.holders.values():
        value = role.enrolment.share._value
        assert str(value) not in repr(role) + repr(role.enrolment) + repr(role.enrolment.share)
        with pytest.raises(TypeError, match="never pickled"):
            pickle.dumps(role.enrolment.share)


def test_hostile_requests_to_holders_change_nothing(small_key: PrivateKey) -> None:
    simulation, requests, _ = started(small_key)
    role = simulation.holders[holder(1)]
    before = role.dump()
    rng = np.random.default_rng(0)
    for _ in range(300):
        data = bytearray(requests[0].data)
        data[rng.integers(len(data))] ^= int(rng.integers(1, 256))
        for answer in role.receive(bytes(data)):
            assert answer.data[5] == Kind.REFUSED
    assert role.dump() == before


def test_too_few_contributors_never_reach_the_holders(small_key: PrivateKey) -> None:
    simulation = Simulation(AGREED, key=small_key, workers=1, holders=(2, 3))
    with pytest.raises(ProtocolError, match="too few"):
        simulation.round([np.zeros(80)] * 4, dropouts=(1, 2))
