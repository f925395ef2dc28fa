"""Ten thousand mutated messages of every kind, to every role: refused or dropped, nothing changed,
nobody crashed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import numpy as np
import pytest

from blindsight.federated.messages import (
    HEADER_BYTES,
    Header,
    Kind,
    Message,
    Outgoing,
    Purpose,
    Refusal,
)
from blindsight.federated.protocol import Settings, Simulation
from blindsight.federated.signatures import Identity
from federated.protocol.conftest import Started


def everything(simulation: Simulation, started: Started) -> list[bytes]:
    """One round to its end, every message of it kept."""
    seen: list[bytes] = [m.data for sent in started.sent.values() for m in sent]
    seen += [m.data for m in simulation.aggregator.reopen()]
    queue: list[Outgoing] = [m for sent in started.sent.values() for m in sent]
    for message in queue:
        simulation.aggregator.receive(message.data)
    seen += [m.data for m in started.route(simulation.aggregator.close())]
    return seen + [m.data for m in simulation.aggregator.results()]


def mutated(rng: random.Random, real: list[bytes]) -> bytes:
    data = bytearray(rng.choice(real))
    kind = rng.randrange(6)
    if kind == 0:
        return bytes(data[: rng.randrange(len(data))])
    if kind == 1:
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
    elif kind == 2:
        data += os.urandom(rng.randrange(1, 50))
    elif kind == 3:
        data[rng.randrange(HEADER_BYTES)] ^= 1 << rng.randrange(8)
    elif kind == 4:
        return os.urandom(rng.randrange(300))
    else:
        donor = rng.choice(real)
        cut = rng.randrange(HEADER_BYTES, min(len(donor), len(data)))
        data = data[:cut] + donor[cut:]
        if bytes(data) in real:
            data[-1] ^= 1
    return bytes(data)


@pytest.mark.parametrize("holders", [None, (3, 5)], ids=["one key generator", "3 of 5 holders"])
def test_mutated_messages_of_every_kind_change_nothing(start: Callable, holders) -> None:
    old, started = (start(users=3, dimension=20, holders=holders) for _ in range(2))
    simulation = started.simulation
    real = [data for data in everything(old.simulation, old) if len(data) < 40_000]
    real += [m.data for sent in started.sent.values() for m in sent]
    kinds = {data[5] for data in real}
    needed = {1, 2, 7, 8, 9, 10, 11} if holders else {1, 2, 3, 4, 11, 12, 13}
    assert needed <= kinds
    openers = list(simulation.holders.values()) or [simulation.keygen]
    roles = [simulation.aggregator, *openers, *simulation.users.values()]
    before = [role.dump() for role in roles]
    rng = random.Random(5)
    for _ in range(5_000):
        data = mutated(rng, real)
        for role in (rng.choice(roles), simulation.aggregator):
            for answer in role.receive(data):
                assert answer.data[5] in (Kind.REFUSED, Kind.CONTRIBUTION)
    assert [role.dump() for role in roles] == before
    started.deliver()
    np.testing.assert_array_equal(started.finish(), started.expected())


@pytest.mark.parametrize("holders", [None, (3, 5)], ids=["one key generator", "3 of 5 holders"])
def test_insiders_who_sign_nonsense_crash_nobody(start: Callable, holders) -> None:
    """Bodies and headers mutated and signed properly, by the aggregator and by a user; later rounds
    are sound.
    """
    started = start(users=3, dimension=20, holders=holders)
    simulation = started.simulation
    real = [data for data in everything(simulation, started) if len(data) < 40_000]
    started.route(simulation.aggregator.results())
    openers = list(simulation.holders.values()) or [simulation.keygen]
    roles = [simulation.aggregator, *openers, *simulation.users.values()]
    rng = random.Random(6)
    for _ in range(1_500):
        message = Message.decode(rng.choice(real), largest=1 << 20)
        body = bytearray(message.body)
        for _ in range(rng.randrange(1, 4) if body else 0):
            body[rng.randrange(min(len(body), 60))] = rng.randrange(256)
        body = body[: rng.randrange(len(body) + 1)] if rng.random() < 0.3 else body
        header = Header(
            kind=rng.choice(list(Kind)),
            agreement=message.header.agreement,
            round=rng.choice([1, 1, 2]),
            model=message.header.model,
            parent=rng.choice([message.header.parent, simulation.aggregator._parent]),
            length=rng.choice([message.header.length, 0, 1, 1 << 40]),
            purpose=rng.choice(list(Purpose)),
            sender=(sender := rng.choice([0, 1])),
        )
        identity = simulation.users[1].identity if sender else simulation.aggregator.identity
        data = Message.make(header, bytes(body), identity).encode()
        for role in roles:
            role.receive(data)
    for user in simulation.users.values():
        assert user.ended == 1  # nothing forged was believed


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


def test_a_flood_of_refusals_does_not_fill_the_memory(start: Callable) -> None:
    aggregator = start().simulation.aggregator
    for _ in range(10_100):
        aggregator.receive(b"x")
    assert len(aggregator.refusals) == 10_000


def test_refusals_are_signed_and_not_answered(start: Callable) -> None:
    simulation = start().simulation
    header = Header(
        kind=Kind.REFUSED,
        agreement=simulation.aggregator.agreement,
        round=1,
        model=bytes(32),
        sender=1,
    )
    message = Message.make(header, Refusal(code=3, reason="no").encode(), Identity())
    assert simulation.keygen.receive(message.encode()) == []


def test_no_secret_travels_and_none_is_shown(small_key, caplog: pytest.LogCaptureFixture) -> None:
    simulation = Simulation(Settings(dimension=30, users=3), key=small_key)
    result = simulation.round([np.full(30, 0.5)] * 3)
    enrolments = [user.enrolment for user in simulation.users.values()]
    secrets = [int(x).to_bytes(32, "little") for x in small_key.factors()]
    for enrolment in enrolments:
        secrets += [
            enrolment.tag_seed,
            enrolment.shared_seed,
            enrolment.own_seed,
            enrolment.identity.dump(),
        ]
    roles = [simulation.aggregator, simulation.keygen, *simulation.users.values()]
    shown = " ".join(
        [
            *(repr(x) for x in (*roles, *enrolments, result, simulation.keygen.enrolment)),
            caplog.text,
        ]
    )
    wire = b"".join(data for _, _, data in result.transcript.messages)
    for secret in secrets:
        assert secret not in wire
        assert secret.hex() not in shown
        assert repr(secret) not in shown
