"""What a cheating party tries against the real roles, and the rule that stops it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from blindsight.federated.agreement import agree
from blindsight.federated.messages import AGGREGATOR, KEYGEN, Code, Kind, Message, Outgoing, Proof
from blindsight.federated.pad import PadSum, bits
from blindsight.federated.protocol import KeyGenerator, Simulation, keygen, rules
from blindsight.federated.protocol.bodies import (
    Contribution,
    Result,
    SumRequest,
    sum_id,
    to_members,
)
from federated.protocol.conftest import MODEL, Started, decoded, refusal, resigned


def asked(
    started: Started, users: tuple[int, ...], confirmers: tuple[int, ...] = (1, 2, 3, 4, 5, 6)
) -> SumRequest:
    """A sum request for a set of users whose keys a cheating aggregator multiplied, confirmed by
    whoever will.
    """
    simulation, header = started.simulation, started.header
    public = simulation.key.public
    members = to_members(users, simulation.settings.users)
    product: list = []
    for user in users:
        own = Contribution.decode(decoded(started.sent[user][0].data).body, most=1)
        keys = public.from_bytes(own.keys[0])
        product = (
            keys
            if not product
            else [a * b % public.modulus for a, b in zip(product, keys, strict=True)]
        )
    request = simulation.aggregator._send(0, Kind.CONFIRM_REQUEST, members, header).data
    confirmed = []
    for user in confirmers:
        [answer] = simulation.users[user].receive(request)
        if answer.data[5] == Kind.CONFIRM:
            confirmed.append((user, decoded(answer.data).signature))
    proofs = tuple(Proof.of(decoded(started.sent[user][0].data)) for user in users)
    return SumRequest(members, proofs, tuple(confirmed), public.to_bytes(product))


def ask(started: Started, body: SumRequest) -> list[Outgoing]:
    simulation = started.simulation
    message = simulation.aggregator._send(KEYGEN, Kind.SUM_REQUEST, body.encode(), started.header)
    return simulation.keygen.receive(message.data)


def opened(answers: list[Outgoing]) -> bool:
    return answers[0].data[5] == Kind.SUM


def test_an_honest_request_is_opened_and_once(start: Callable) -> None:
    started = start()
    body = asked(started, (1, 2, 3, 4, 5, 6))
    first = ask(started, body)
    assert opened(first)
    assert ask(started, body) == first  # the very same question: the very same answer
    # Another set in the same round: no user confirms a second one, and the key generator opens no
    # second one.
    other = replace(asked(started, (1, 2, 3)), confirmed=body.confirmed)
    assert refusal(ask(started, other)) is Code.ROUND


@pytest.mark.parametrize("model", ["the same", "a hair away"])
def test_two_rounds_on_one_model(start: Callable, model: str) -> None:
    """{1..6} and {1..5} on the same weights would differ by user 6's update."""
    started = start(group=1)
    for user in started.simulation.users.values():
        user.expect(MODEL)
    started.deliver()
    started.finish()
    aggregator = started.simulation.aggregator
    for user in started.simulation.users.values():
        user.expect(bytes(32))  # what the owner computed from the sum it checked
    wanted = MODEL if model == "the same" else bytes([1]) + MODEL[1:]
    [first, *_] = aggregator.open_round(2, wanted)
    assert refusal(started.simulation.users[1].receive(first.data)) is Code.CHAIN
    # Leaving the first sum out of the chain does not help, either.
    aggregator._parent = bytes(32)
    [second, *_] = aggregator.open_round(3, wanted)
    assert refusal(started.simulation.users[1].receive(second.data)) is Code.CHAIN


def test_a_round_that_does_not_go_on_from_the_last_sum(start: Callable) -> None:
    started = start(group=1)
    started.deliver()
    started.finish()
    aggregator = started.simulation.aggregator
    aggregator._parent = bytes(32)
    aggregator.open_round(2, MODEL)
    body = SumRequest(to_members((1, 2, 3, 4, 5, 6), 6), (), (), b"")
    assert refusal(ask(started, body)) is Code.CHAIN


def test_a_set_that_leaves_one_user_out(start: Callable) -> None:
    started = start()
    assert (
        refusal(
            ask(started, replace(asked(started, (1, 2, 3)), members=to_members((1, 2, 3, 4, 5), 6)))
        )
        is Code.GROUP
    )
    assert (
        refusal(ask(started, replace(asked(started, (1, 2, 3)), members=to_members((1, 2), 6))))
        is Code.FEW
    )
    # Nor does a user confirm it.
    request = started.simulation.aggregator._send(
        0, Kind.CONFIRM_REQUEST, to_members((1, 2, 3, 4, 5), 6), started.header
    )
    assert refusal(started.simulation.users[1].receive(request.data)) is Code.GROUP


def test_thirty_proofs_and_three_ciphertexts(start: Callable) -> None:
    """Six signatures shown, three users' keys multiplied: fewer users and less noise than it
    says.
    """
    started = start()
    whole = asked(started, (1, 2, 3, 4, 5, 6))
    few = asked(started, (1, 2, 3), confirmers=())
    assert refusal(ask(started, replace(whole, ciphertexts=few.ciphertexts))) is Code.TAG
    assert refusal(ask(started, whole)) is Code.ROUND  # the round is spent


@pytest.mark.parametrize(
    "change", ["one user for all", "one twice", "a slot raised", "its tag raised"]
)
def test_products_that_are_not_the_sum(start: Callable, change: str) -> None:
    started = start()
    public = started.simulation.key.public
    whole = asked(started, (1, 2, 3, 4, 5, 6))
    keys = public.from_bytes(whole.ciphertexts)
    own = public.from_bytes(
        Contribution.decode(decoded(started.sent[1][0].data).body, most=1).keys[0]
    )
    if change == "one user for all":
        keys = [pow(c, 6, public.modulus) for c in own]
    elif change == "one twice":
        keys = [a * b % public.modulus for a, b in zip(keys, own, strict=True)]
    elif change == "a slot raised":
        keys[0] = keys[0] * public.raw(1) % public.modulus
    else:
        layout = rules.slots(started.simulation.settings, public, 4096)
        keys[-1] = keys[-1] * public.raw(1 << (layout.slot_bits * 3)) % public.modulus
    assert refusal(ask(started, replace(whole, ciphertexts=public.to_bytes(keys)))) is Code.TAG


def test_too_many_forgeries_end_the_federation(
    start: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keygen, "MOST_FORGERIES", 3)
    started = start()
    public = started.simulation.key.public
    for number in (1, 2, 3, 4):
        if number > 1:
            started.again(number)
        whole = asked(started, (1, 2, 3, 4, 5, 6))
        keys = public.from_bytes(whole.ciphertexts)
        keys[0] = keys[0] * public.raw(1) % public.modulus
        assert refusal(ask(started, replace(whole, ciphertexts=public.to_bytes(keys)))) is Code.TAG
    started.again(5)
    assert refusal(ask(started, asked(started, (1, 2, 3, 4, 5, 6)))) is Code.TAG


def test_a_key_generator_put_back_in_time(start: Callable) -> None:
    """Its state file restored: it would open round 1 again, but users confirm one set a round."""
    started = start(group=1)
    before = started.simulation.keygen.dump()
    body = asked(started, (1, 2, 3, 4, 5, 6))
    assert opened(ask(started, body))
    started.simulation.keygen = KeyGenerator.load(before)
    second = asked(started, (1, 2, 3, 4, 5))
    assert second.confirmed == ()
    assert refusal(ask(started, second)) is Code.CONFIRM
    assert (
        refusal(ask(started, replace(second, confirmed=body.confirmed))) is Code.CONFIRM
    )  # another set's signatures


def test_too_few_confirmations(start: Callable) -> None:
    started = start()
    assert refusal(ask(started, asked(started, (1, 2, 3), confirmers=(1, 2, 3)))) is Code.CONFIRM
    whole = asked(started, (1, 2, 3), confirmers=(4,))
    assert refusal(ask(started, replace(whole, confirmed=whole.confirmed * 4))) is Code.CONFIRM


def test_borrowed_and_missing_proofs(start: Callable) -> None:
    started = start()
    whole = asked(started, (1, 2, 3, 4, 5, 6))
    forged = replace(whole.proofs[0], digest=bytes(32))
    for proofs in (
        whole.proofs[:-1],
        whole.proofs[::-1],
        (*whole.proofs[:-1], whole.proofs[0]),
        (forged, *whole.proofs[1:]),
    ):
        assert refusal(ask(started, replace(whole, proofs=proofs))) is Code.PROOFS
    assert opened(ask(started, whole))  # none of these spent the round


def test_a_user_whose_ciphertext_cancels_the_others(start: Callable) -> None:
    """User 6 sends the inverse of everybody else's but user 1's: the "sum" would be user 1's
    key.
    """
    started = start()
    public = started.simulation.key.public
    parts = {
        user: public.from_bytes(
            Contribution.decode(decoded(started.sent[user][0].data).body, most=1).keys[0]
        )
        for user in started.sent
    }
    evil = [
        pow(int(np.prod([1])) * b * c * d * e, -1, public.modulus)
        for b, c, d, e in zip(*(parts[u] for u in (2, 3, 4, 5)), strict=True)
    ]
    message = decoded(started.sent[6][0].data)
    body = Contribution.decode(message.body, most=1)
    bad = Contribution((public.to_bytes(evil),), body.padded).encode()
    started.sent[6] = [
        Outgoing(AGGREGATOR, resigned(message, started.simulation.users[6].identity, bad))
    ]
    started.deliver()
    seen = started.route(started.simulation.aggregator.close())
    assert started.simulation.aggregator.result is None
    assert refusal(seen[-1:]) is Code.TAG


@pytest.mark.parametrize("holders", [None, (3, 5)])
def test_a_sum_that_is_off_by_one_step(start: Callable, holders) -> None:
    started = start(holders=holders)
    started.deliver()
    aggregator = started.simulation.aggregator
    started.route(aggregator.close())
    [result, *_] = aggregator.results()
    message = decoded(result.data)
    body = Result.decode(message.body, holders=5)
    width = aggregator._size.slot_bits
    raw = np.empty(message.header.length, dtype=np.uint64)
    bits.unpack(body.packed, width, raw)
    raw[7] += 1
    for bad in (
        replace(body, packed=bits.pack(raw, width)),
        replace(body, members=to_members((1, 2, 3), 6)),
    ):
        data = resigned(message, aggregator.identity, bad.encode())
        assert refusal(started.simulation.users[2].receive(data)) is Code.SUM
    assert started.simulation.users[2].receive(result.data) == []
    assert started.simulation.users[2].ended == 1


@pytest.mark.parametrize("holders", [None, (3, 5)])
def test_a_sum_is_signed_by_whoever_opened_it(start: Callable, holders) -> None:
    """The aggregator cannot put sums into the mouth of the key generator or of the key holders."""
    started = start(holders=holders)
    started.deliver()
    aggregator = started.simulation.aggregator
    started.route(aggregator.close())
    [result, *_] = aggregator.results()
    message = decoded(result.data)
    body = Result.decode(message.body, holders=5)
    forged = tuple(resigned(decoded(proof), aggregator.identity) for proof in body.proofs)
    data = resigned(message, aggregator.identity, replace(body, proofs=forged).encode())
    assert refusal(started.simulation.users[2].receive(data)) is Code.SIGNATURE


def test_rounds_are_counted(start: Callable) -> None:
    started = start(rounds=2)
    started.deliver()
    started.finish()
    started.again(2)
    started.deliver()
    started.finish()
    [opening, *_] = started.simulation.aggregator.open_round(3, MODEL)
    assert refusal(started.simulation.users[1].receive(opening.data)) is Code.ROUND


@pytest.mark.parametrize("epsilon", [None, 50.0], ids=["exact", "noisy"])
def test_as_many_rounds_as_were_agreed_on_and_no_more(small_key, epsilon) -> None:
    """Also without noise: a round that gave no sum is none of them there, and with noise it is
    one.
    """
    settings = agree(dimension=20, users=6, rounds=1, epsilon=epsilon, least_users=3).settings
    simulation = Simulation(settings, key=small_key)
    started = Started(simulation, [np.zeros(20)] * 6, {})
    started.again(1)  # and nobody asks for its sum
    [opening, *_] = simulation.aggregator.open_round(2, MODEL)
    if epsilon is not None:
        assert refusal(simulation.users[1].receive(opening.data)) is Code.ROUND
        return
    started.again(3)
    started.deliver()
    started.finish()
    [opening, *_] = simulation.aggregator.open_round(4, MODEL)
    assert {refusal(user.receive(opening.data)) for user in simulation.users.values()} == {
        Code.ROUND
    }


def test_votes_cannot_be_raised_by_the_aggregator(start: Callable, small_key) -> None:
    """One user's weight, and counters raised so that it would be sent: the users see that the
    counts are wrong.
    """
    started = start(users=4, dimension=40, least_per_coordinate=1)  # only for its key
    del started
    from blindsight.federated.protocol import Settings, Simulation

    simulation = Simulation(Settings(dimension=40, users=4, least_per_coordinate=3), key=small_key)
    from blindsight.federated.messages import Purpose

    updates = np.zeros((4, 40))
    updates[0, 5] = 0.5
    for opening in simulation.aggregator.open_round(1, MODEL, purpose=Purpose.VOTES):
        simulation.users[opening.to].receive(opening.data)
    for n, user in simulation.users.items():
        simulation.aggregator.receive(user.contribute(updates[n - 1])[0].data)
    running = Started(simulation, list(updates), {})
    running.route(simulation.aggregator.close())
    [result, *_] = simulation.aggregator.results()
    message = decoded(result.data)
    body = Result.decode(message.body, holders=0)
    width = simulation.aggregator._size.slot_bits
    raw = np.empty(40, dtype=np.uint64)
    bits.unpack(body.packed, width, raw)
    raw[5] = 3
    data = resigned(
        message,
        simulation.aggregator.identity,
        replace(body, packed=bits.pack(raw, width)).encode(),
    )
    assert refusal(simulation.users[1].receive(data)) is Code.SUM
    assert simulation.users[1].mask is None
    # And without a round of votes there is no round of values.
    [opening, *_] = simulation.aggregator.open_round(2, MODEL)
    assert refusal(simulation.users[1].receive(opening.data)) is Code.CHAIN


def test_the_aggregator_alone_reads_no_vector(start: Callable) -> None:
    started = start()
    simulation = started.simulation
    size = simulation.aggregator._size
    total = PadSum(size, 120)
    total.add(Contribution.decode(decoded(started.sent[1][0].data).body, most=1).padded)
    guess = total.open(started.header.context, np.zeros(size.degree, dtype=np.int64))
    truth = simulation.settings.code.encode(started.updates[0]) + (1 << 15)
    assert np.mean(guess == truth) < 0.05
    assert abs(np.corrcoef(guess, truth)[0, 1]) < 0.5


def test_the_same_parent_needs_the_same_set() -> None:
    context = bytes(32)
    assert sum_id(context, to_members((1, 2, 3), 6)) != sum_id(context, to_members((4, 5, 6), 6))


def test_a_message_of_another_federation(start: Callable) -> None:
    one, other = start(), start()
    assert refusal(one.simulation.aggregator.receive(other.sent[1][0].data)) is Code.AGREEMENT
    [opening, *_] = other.simulation.aggregator.reopen()
    assert refusal(one.simulation.users[1].receive(opening.data)) is Code.AGREEMENT


def test_contributions_are_signed_timely_and_once(start: Callable) -> None:
    started = start()
    aggregator, users = started.simulation.aggregator, started.simulation.users
    message = decoded(started.sent[1][0].data)
    assert refusal(aggregator.receive(resigned(message, users[2].identity))) is Code.SIGNATURE
    assert (
        refusal(aggregator.receive(resigned(message, users[1].identity, sender=77))) is Code.COHORT
    )
    assert refusal(aggregator.receive(resigned(message, users[1].identity, round=2))) is Code.ROUND
    assert (
        refusal(aggregator.receive(resigned(message, users[1].identity, model=bytes(32))))
        is Code.CHAIN
    )
    assert (
        refusal(aggregator.receive(resigned(message, users[1].identity, kind=Kind.OPEN)))
        is Code.TURN
    )
    started.deliver()
    assert refusal(aggregator.receive(message.encode())) is Code.ROUND
    started.finish()
    assert refusal(aggregator.receive(message.encode())) is Code.TURN


def test_only_the_aggregator_opens_and_asks(start: Callable) -> None:
    started = start()
    simulation = started.simulation
    [opening, *_] = simulation.aggregator.reopen()
    message = Message.decode(opening.data, largest=10_000)
    forged = resigned(message, simulation.users[2].identity, sender=2, round=9)
    assert refusal(simulation.users[1].receive(forged)) is Code.TURN
    assert (
        refusal(
            simulation.users[1].receive(resigned(message, simulation.users[2].identity, round=9))
        )
        is Code.SIGNATURE
    )
    request = simulation.aggregator._send(
        KEYGEN, Kind.SUM_REQUEST, asked(started, (1, 2, 3)).encode(), started.header
    )
    forged = resigned(decoded(request.data), simulation.users[1].identity, sender=1)
    assert refusal(simulation.keygen.receive(forged)) is Code.TURN
