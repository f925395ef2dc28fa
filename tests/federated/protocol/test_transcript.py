"""What the parties see: no plaintext, no secret, uniformly permuted supports, the expected counts."""

from __future__ import annotations

import logging
import pickle

import numpy as np
import pytest
from scipy import stats

from blindsight.federated import keys
from blindsight.federated.messages import AGGREGATOR, HEADER_BYTES, KEYGEN, Contribution, Header, Kind, Message
from blindsight.federated.paillier import PrivateKey
from blindsight.federated.permutation import inverse
from blindsight.federated.protocol import Settings, Simulation, block
from blindsight.federated.protocol.user import User


def canaries(number: int, bits: int) -> list[bytes]:
    """Ways in which a whole number could show in a message."""
    return [
        number.to_bytes(8, "little", signed=True),
        number.to_bytes(8, "big", signed=True),
        (number + (1 << (bits - 1))).to_bytes(8, "little"),
        str(number).encode(),
    ]


@pytest.mark.parametrize("mode", ["block", "paper"])
def test_aggregator_and_eavesdroppers_see_no_plaintext(small_key: PrivateKey, mode: str) -> None:
    agreed = Settings(dimension=50, users=3, mode=mode, bits=40, least_per_coordinate=1, bound=1.0)
    simulation = Simulation(agreed, key=small_key, workers=1)
    updates = list(np.random.default_rng(7).uniform(0.2, 1, (3, 50)))
    result = simulation.round(updates)
    numbers = [int(x) for update in updates for x in agreed.code.encode(update)]
    seen = b"".join(result.transcript.seen_by(AGGREGATOR)[:-1])  # all but the sum itself
    for number in numbers:
        assert not any(canary in seen for canary in canaries(number, 40))
    published = result.transcript.seen_by(AGGREGATOR)[-1]
    for number in numbers:
        assert number.to_bytes(8, "little", signed=True) not in published


def test_no_secret_travels_and_none_is_shown(small_key: PrivateKey, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    simulation = Simulation(Settings(dimension=30, users=3), key=small_key, workers=1)
    result = simulation.round([np.full(30, 0.5)] * 3)
    simulation.aggregator.receive(result.transcript.messages[1][2])
    enrolments = [user.enrolment for user in simulation.users.values()]
    p, q = small_key.factors()
    secrets = [int(x).to_bytes(32, "little") for x in (p, q)]
    for enrolment in enrolments:
        secrets += [enrolment.shared_seed, enrolment.own_seed, enrolment.tag_key, enrolment.identity.dump()[1:]]
    roles = [simulation.aggregator, simulation.keygen, *simulation.users.values()]
    shown = " ".join([*(repr(x) for x in (*roles, *enrolments, result, simulation.keygen.enrolment)), caplog.text])
    wire = b"".join(data for _, _, data in result.transcript.messages)
    for secret in secrets:
        assert secret not in wire
        assert secret.hex() not in shown
        assert repr(secret) not in shown
        assert str(int.from_bytes(secret, "little")) not in shown
    assert "out of turn" in caplog.text
    for holder in (*enrolments, simulation.keygen.enrolment, simulation.aggregator.enrolment, simulation):
        with pytest.raises(TypeError, match="never pickled"):
            pickle.dumps(holder)


def test_hidden_support_makes_messages_of_one_size(small_key: PrivateKey) -> None:
    agreed = Settings(dimension=500, users=4, support="hidden")
    updates = [np.zeros(500), np.full(500, 0.1), np.eye(1, 500)[0], np.linspace(0, 1, 500)]
    result = Simulation(agreed, key=small_key, workers=1).round(updates)
    expected = agreed.contribution_bytes(small_key.public, agreed.places(small_key.public))
    assert set(result.bytes_per_user.values()) == {expected}


def test_ciphertext_counts_are_as_expected(small_key: PrivateKey) -> None:
    agreed = Settings(dimension=600, users=3, least_per_coordinate=1)
    packing = agreed.packing(small_key.public)
    updates = np.zeros((3, 600))
    updates[0, [0, 1, 599]] = updates[1, 5] = 0.3
    result = Simulation(agreed, key=small_key, workers=1).round(list(updates))
    counts = {}
    for data in result.transcript.seen_by(AGGREGATOR):
        if data[5] == Kind.CONTRIBUTION:
            message = Message.decode(data, largest=len(data))
            body = Contribution.decode(message.body, width=small_key.public.ciphertext_bytes, size=packing.blocks(600))
            counts[message.header.sender] = body.count
    assert counts == {1: 2, 2: 1, 3: 1}  # an empty update still sends one block


def test_every_role_message_is_signed_and_versioned(small_key: PrivateKey) -> None:
    result = Simulation(Settings(dimension=20, users=3), key=small_key, workers=1).round([np.full(20, 0.1)] * 3)
    kinds = []
    for sender, _, data in result.transcript.messages:
        message = Message.decode(data, largest=len(data))
        assert data[:5] == b"BSFM\x01"
        assert message.header.sender == sender
        kinds.append(message.header.kind)
    assert kinds == [Kind.OPEN] * 3 + [Kind.CONTRIBUTION] * 3 + [Kind.SUM_REQUEST, Kind.SUM]
    assert {sender for sender, _, _ in result.transcript.messages} == {AGGREGATOR, KEYGEN, 1, 2, 3}


def test_header_is_as_documented() -> None:
    header = Header(kind=Kind.CONTRIBUTION, key_id=b"k" * 16, round=258, model=b"m" * 32, sender=7)
    expected = b"BSFM\x01\x02\x00\x00" + b"k" * 16 + b"\x02\x01" + bytes(6) + b"m" * 32 + b"\x07\0\0\0" + b"\x05\0\0\0"
    assert header.encode(5) == expected
    assert len(expected) == HEADER_BYTES == 72


def test_places_are_uniform_whatever_the_support(small_key: PrivateKey) -> None:
    """One fixed weight, 2,000 rounds: the place the aggregator sees is uniform (chi-square, fixed secrets)."""
    slots = Settings(dimension=1, users=3).packing(small_key.public).slots
    agreed = Settings(dimension=10 * slots, users=3)
    public = small_key.public
    shared, own = b"s" * 32, b"o" * 32
    aggregator_sees, eavesdropper_sees = [], []
    for number in range(2000):
        context = block.round_context(number, bytes(32))
        place = block.shared_places(agreed, public, shared, context)[3]
        aggregator_sees.append(place)
        sent = block.user_places(agreed, public, own, context)[place]
        assert inverse(block.user_places(agreed, public, own, context))[sent] == place
        eavesdropper_sees.append(sent)
    for seen in (aggregator_sees, eavesdropper_sees):
        counts = np.bincount(seen, minlength=10)
        assert stats.chisquare(counts).pvalue > 1e-6


def test_two_users_places_are_independent_to_a_tapper(small_key: PrivateKey) -> None:
    """Two users with the same support look unrelated to whoever lacks their φ^(n)."""
    slots = Settings(dimension=1, users=3).packing(small_key.public).slots
    agreed = Settings(dimension=5 * slots, users=3)
    table = np.zeros((5, 5))
    for number in range(2000):
        context = block.round_context(number, bytes(32))
        first = block.user_places(agreed, small_key.public, b"1" * 32, context)[2]
        second = block.user_places(agreed, small_key.public, b"2" * 32, context)[2]
        table[first, second] += 1
    assert stats.chi2_contingency(table).pvalue > 1e-6


def test_order_within_a_message_follows_the_permuted_places(small_key: PrivateKey) -> None:
    slots = Settings(dimension=1, users=3).packing(small_key.public).slots
    simulation = Simulation(Settings(dimension=30 * slots, users=3), key=small_key, workers=1)
    update = np.zeros(30 * slots)
    update[:: 3 * slots] = 0.5
    result = simulation.round([update] * 3)
    for data in result.transcript.seen_by(AGGREGATOR)[:3]:
        message = Message.decode(data, largest=len(data))
        body = Contribution.decode(message.body, width=small_key.public.ciphertext_bytes, size=30)
        assert body.places is not None
        assert (np.diff(body.places.astype(int)) > 0).all()


def test_simulated_users_are_the_real_ones() -> None:
    simulation = Simulation(Settings(dimension=4, users=3), key=keys.generate(384, insecure_for_tests=True))
    assert all(isinstance(user, User) for user in simulation.users.values())
