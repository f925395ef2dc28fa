"""What breaks the rules is refused with a reason, changes nothing, and the round goes on."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import random
from collections.abc import Callable

import numpy as np
import pytest

from blindsight.core.errors import ProtocolError
from blindsight.federated import keys
from blindsight.federated.messages import (
    AGGREGATOR,
    HEADER_BYTES,
    KEYGEN,
    Contribution,
    Header,
    Kind,
    Message,
    Outgoing,
    Refusal,
    SumRequest,
)
from blindsight.federated.paillier import PrivateKey
from blindsight.federated.protocol import Settings, Simulation
from blindsight.federated.signatures import Hmac


def reason(answers: list[Outgoing]) -> str:
    assert len(answers) == 1
    message = Message.decode(answers[0].data, largest=10_000)
    assert message.header.kind is Kind.REFUSED
    return Refusal.decode(message.body).reason


def resigned(message: Message, identity: object, body: bytes | None = None, **changes: object) -> bytes:
    header = dataclasses.replace(message.header, **changes)
    return Message.make(header, message.body if body is None else body, identity).encode()


def test_each_kind_of_wrong_contribution_is_refused_by_name(start: Callable, small_key: PrivateKey) -> None:
    started = start()
    aggregator, users = started.simulation.aggregator, started.simulation.users
    data = started.sent[1][0].data
    message = Message.decode(data, largest=len(data))
    own = users[1].identity
    public = small_key.public
    body = Contribution.decode(message.body, width=public.ciphertext_bytes, size=aggregator.settings.places(public))
    p, _ = small_key.factors()
    width = public.ciphertext_bytes

    def with_first(number: int) -> bytes:
        changed = int(number).to_bytes(width, "little") + body.ciphertexts[width:]
        return resigned(message, own, dataclasses.replace(body, ciphertexts=changed).encode())

    wrong = {
        "wrong round": resigned(message, own, round=2),
        "wrong key": resigned(message, own, key_id=bytes(16)),
        "wrong model": resigned(message, own, model=bytes(32)),
        "wrong signature": resigned(message, users[2].identity),
        "unknown sender": resigned(message, own, sender=77),
        "out of turn": resigned(message, own, kind=Kind.SUM_REQUEST),
        "ends too early": resigned(message, own, message.body[:-1]),
        "too many": resigned(message, own, message.body + b"x"),
        "must lie in": with_first(0),
        "must lie in (0": with_first(public.modulus),
        "no factor with n": with_first(p),
    }
    for expected, bad in wrong.items():
        assert expected in reason(aggregator.receive(bad)), expected
    started.deliver()
    assert "replay" in reason(aggregator.receive(data))
    np.testing.assert_array_equal(started.finish(), started.expected())
    assert "too late" in reason(aggregator.receive(data))


def test_unreadable_and_oversized_messages_are_dropped_with_a_note(start: Callable) -> None:
    started = start()
    aggregator = started.simulation.aggregator
    data = started.sent[1][0].data
    for bad, word in [
        (b"", "malformed"),
        (b"GET / HTTP/1.1", "malformed"),
        (data[:-1], "malformed"),
        (b"XXXX" + data[4:], "malformed"),
        (data[:4] + b"\x09" + data[5:], "version"),
        (data[:5] + b"\xee" + data[6:], "kind"),
        (bytes(aggregator.largest_message + 1), "oversized"),
    ]:
        assert aggregator.receive(bad) == []
        assert word in aggregator.refusals[-1]


@pytest.mark.parametrize(
    "change",
    [
        {"places": np.array([0, 0], dtype=np.uint32)},
        {"places": np.array([0, 10**6], dtype=np.uint32)},
        {"shards": 2},
        {"shard": 1},
        {"count": 10**6},
    ],
)
def test_contradictory_contributions_are_refused(start: Callable, change: dict) -> None:
    started = start(density=0.01, dimension=300)
    aggregator, user = started.simulation.aggregator, started.simulation.users[1]
    public = aggregator.public
    message = Message.decode(started.sent[1][0].data, largest=10**9)
    two = Contribution(np.array([0, 1], dtype=np.uint32), public.to_bytes(public.encrypt_many([1, 2])), 2)
    bad = dataclasses.replace(two, **change)
    assert reason(aggregator.receive(resigned(message, user.identity, bad.encode())))
    assert aggregator.contributors == ()


def test_sparse_message_is_refused_where_the_support_is_hidden(start: Callable) -> None:
    started = start(support="hidden")
    aggregator, user = started.simulation.aggregator, started.simulation.users[1]
    message = Message.decode(started.sent[1][0].data, largest=10**9)
    public = aggregator.public
    body = Contribution(np.array([0], dtype=np.uint32), public.to_bytes([public.encrypt(1)]), 1)
    assert "every block" in reason(aggregator.receive(resigned(message, user.identity, body.encode())))


def test_users_answer_a_round_once_and_repeat_only_the_same_bytes(start: Callable) -> None:
    started = start()
    simulation = started.simulation
    user = simulation.users[1]
    opening = next(message for message in simulation.aggregator.reopen() if message.to == 1)
    assert user.receive(opening.data) == started.sent[1]
    with pytest.raises(ProtocolError, match="no open round"):
        user.contribute(started.updates[0])
    message = Message.decode(opening.data, largest=10**6)
    identity = simulation.aggregator.identity
    assert "replay" in reason(user.receive(resigned(message, identity, model=bytes(32))))
    assert "wrong settings" in reason(user.receive(resigned(message, identity, bytes(32), round=2)))
    assert "wrong signature" in reason(user.receive(resigned(message, Hmac(), round=2)))
    assert "only the aggregator" in reason(user.receive(resigned(message, identity, sender=3, round=2)))
    assert "wrong key" in reason(user.receive(resigned(message, identity, key_id=bytes(16), round=2)))


def sum_request(started: object) -> Message:
    [request] = started.simulation.aggregator.close()  # type: ignore[attr-defined]
    return Message.decode(request.data, largest=10**9)


def test_a_round_is_opened_once(start: Callable) -> None:
    started = start()
    simulation = started.simulation
    started.deliver(1, 2, 3, 4)
    request = sum_request(started)
    [first] = simulation.keygen.receive(request.encode())
    assert simulation.keygen.receive(request.encode()) == [first]  # the same question: the same answer
    other = start(seed=1)
    other.deliver(1, 2, 3)
    forged = resigned(sum_request(other), simulation.aggregator.identity)
    assert "opened already" in reason(simulation.keygen.receive(forged))


def changed_request(message: Message, simulation: Simulation, **changes: object) -> bytes:
    public, agreed = simulation.key.public, simulation.settings
    body = SumRequest.decode(
        message.body, width=public.ciphertext_bytes, size=agreed.places(public), users=agreed.users
    )
    return resigned(message, simulation.aggregator.identity, dataclasses.replace(body, **changes).encode())


def test_too_few_twice_named_or_unsigned_contributors_open_nothing(start: Callable) -> None:
    started = start()
    simulation = started.simulation
    started.deliver()
    message = sum_request(started)
    public = simulation.key.public
    body = SumRequest.decode(
        message.body,
        width=public.ciphertext_bytes,
        size=simulation.settings.places(public),
        users=5,
    )
    proofs = body.proofs
    stranger = dataclasses.replace(proofs[0], user=99)
    borrowed = dataclasses.replace(proofs[0], digest=hashlib.sha256(b"something else").digest())
    for expected, chosen in {
        "too few contributors": proofs[:2],
        "named twice": (*proofs[:4], proofs[0]),
        "unknown contributor": (*proofs[:4], stranger),
        "did not contribute": (borrowed, *proofs[1:]),
    }.items():
        bad = changed_request(message, simulation, proofs=chosen, members=body.members[:, : len(chosen)])
        assert expected in reason(simulation.keygen.receive(bad)), expected
    # None of these spent the round.
    np.testing.assert_array_equal(started.finish(), started.expected())


def test_signatures_of_another_round_open_nothing(start: Callable) -> None:
    started = start()
    started.deliver()
    message = sum_request(started)
    bad = resigned(message, started.simulation.aggregator.identity, round=7)
    assert "did not contribute" in reason(started.simulation.keygen.receive(bad))


@pytest.mark.parametrize("role", ["stranger", "user"])
def test_only_the_aggregator_may_ask(start: Callable, role: str) -> None:
    started = start()
    started.deliver()
    message = sum_request(started)
    sender = {"stranger": AGGREGATOR, "user": 1}[role]
    identity = {"stranger": Hmac(), "user": started.simulation.users[1].identity}[role]
    assert reason(started.simulation.keygen.receive(resigned(message, identity, sender=sender)))


def test_a_user_with_wrong_tags_or_overflowing_slots_spoils_only_its_blocks(start: Callable) -> None:
    """A dishonest user can ruin the sums it takes part in, as it could by sending nonsense weights: no others."""
    started = start(density=0.02, dimension=400)
    simulation = started.simulation
    user = simulation.users[1]
    public = simulation.key.public
    message = Message.decode(started.sent[1][0].data, largest=10**9)
    body = Contribution.decode(message.body, width=public.ciphertext_bytes, size=simulation.settings.places(public))
    if body.places is None:
        pytest.fail("this test needs a sparse contribution")
    noise = public.to_bytes(public.encrypt_many([public.plaintext_modulus // 3] * body.count))
    data = resigned(message, user.identity, dataclasses.replace(body, ciphertexts=noise).encode())
    assert simulation.aggregator.receive(data) == []
    started.deliver(2, 3, 4, 5)
    total = started.finish()
    result = simulation.aggregator.result
    assert result.refused == body.count
    honest = started.expected(2, 3, 4, 5)
    np.testing.assert_array_equal(total[result.revealed], honest[result.revealed])
    assert result.revealed.sum() > 0


def test_nonsense_weights_in_paper_mode_spoil_the_sum_with_a_reason(start: Callable) -> None:
    started = start(mode="paper", dimension=40)
    simulation = started.simulation
    public = simulation.key.public
    message = Message.decode(started.sent[1][0].data, largest=10**9)
    body = Contribution.decode(message.body, width=public.ciphertext_bytes, size=40)
    huge = public.to_bytes(public.encrypt_many([public.plaintext_modulus // 3] * body.count))
    bad = dataclasses.replace(body, ciphertexts=huge)
    assert simulation.aggregator.receive(resigned(message, simulation.users[1].identity, bad.encode())) == []
    for other in started.sent[1][1:]:
        simulation.aggregator.receive(other.data)
    started.deliver(2, 3, 4, 5)
    [request] = simulation.aggregator.close()
    assert "nonsense" in reason(simulation.keygen.receive(request.data))


def test_ten_thousand_hostile_messages_are_refused_and_the_round_ends_well(start: Callable) -> None:
    """Mutations of every real message, to every role: cut, flipped, spliced, relabelled, and plain noise."""
    started = start(dimension=60, users=4)
    simulation = started.simulation
    rng = random.Random(5)
    openings = simulation.aggregator.reopen()
    real = [m.data for messages in started.sent.values() for m in messages] + [m.data for m in openings]
    other = Simulation(simulation.settings, key=keys.generate(384, insecure_for_tests=True), workers=1)
    other_opening = other.aggregator.open_round(1, bytes(range(32)))
    for message in other_opening:
        other.users[message.to].receive(message.data)
    real += [m.data for m in other.users[1].contribute(started.updates[0])] + [m.data for m in other_opening]
    roles = [simulation.aggregator, simulation.keygen, *simulation.users.values()]
    before = [role.dump() for role in roles]
    for _ in range(10_000):
        data = bytearray(rng.choice(real))
        kind = rng.randrange(6)
        if kind == 0:
            data = data[: rng.randrange(len(data))]
        elif kind == 1:
            for _ in range(rng.randrange(1, 4)):
                data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
        elif kind == 2:
            data += os.urandom(rng.randrange(1, 50))
        elif kind == 3:
            data[rng.randrange(HEADER_BYTES)] ^= 1 << rng.randrange(8)
        elif kind == 4:
            data = bytearray(os.urandom(rng.randrange(300)))
        else:
            donor = rng.choice(real)
            cut = rng.randrange(HEADER_BYTES, min(len(donor), len(data)))
            data = data[:cut] + donor[cut:]
            if bytes(data) in real:
                data[-1] ^= 1
        for role in (rng.choice(roles), simulation.aggregator):
            for answer in role.receive(bytes(data)):
                assert Message.decode(answer.data, largest=10_000).header.kind is Kind.REFUSED
    assert [role.dump() for role in roles] == before
    started.deliver()
    np.testing.assert_array_equal(started.finish(), started.expected())


def test_an_enrolled_user_can_sign_nonsense_but_crash_nobody(start: Callable) -> None:
    """Insiders: bodies mutated and signed properly. Whatever is taken in, later rounds are sound."""
    started = start(dimension=60, users=4, density=0.02)
    simulation = started.simulation
    message = Message.decode(started.sent[1][0].data, largest=10**9)
    rng = random.Random(6)
    kinds = list(Kind)
    for _ in range(2_000):
        body = bytearray(message.body)
        for _ in range(rng.randrange(1, 4)):
            body[rng.randrange(min(len(body), 20))] = rng.randrange(256)
        if rng.random() < 0.3:
            body = body[: rng.randrange(len(body))]
        data = resigned(message, simulation.users[1].identity, bytes(body), kind=rng.choice(kinds))
        for role in (simulation.aggregator, simulation.keygen, simulation.users[2]):
            role.receive(data)
    for opening in simulation.aggregator.open_round(2, bytes(32)):
        simulation.users[opening.to].receive(opening.data)
    for number in (2, 3, 4):
        for out in simulation.users[number].contribute(started.updates[number - 1]):
            simulation.aggregator.receive(out.data)
    np.testing.assert_array_equal(started.finish(), started.expected(2, 3, 4))


def test_a_flood_of_refusals_does_not_fill_the_memory(start: Callable) -> None:
    aggregator = start().simulation.aggregator
    for _ in range(10_100):
        aggregator.receive(b"x")
    assert len(aggregator.refusals) == 10_000


def test_refusals_are_not_answered(start: Callable) -> None:
    started = start()
    simulation = started.simulation
    header = Header(kind=Kind.REFUSED, key_id=bytes(16), round=1, model=bytes(32), sender=KEYGEN)
    message = Message.make(header, Refusal("no").encode(), Hmac())
    assert simulation.aggregator.receive(message.encode()) == []
    assert "refused by" in simulation.aggregator.refusals[-1]


def test_rounds_and_models_are_checked_when_opened(start: Callable) -> None:
    aggregator = start().simulation.aggregator
    for number, model in [(1, bytes(32)), (2, b"short")]:
        with pytest.raises(ValueError, match=r"rounds must go up|32 bytes"):
            aggregator.open_round(number, model)


def test_settings_of_another_federation_do_not_mix(small_key: PrivateKey) -> None:
    first = Simulation(Settings(dimension=20, users=3), key=small_key, workers=1)
    second = Simulation(Settings(dimension=20, users=3), key=small_key, workers=1)
    [opening, *_] = first.aggregator.open_round(1, bytes(32))
    assert "wrong signature" in reason(second.users[1].receive(opening.data))
