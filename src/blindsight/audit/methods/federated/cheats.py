"""Attacks by a cheating aggregator, user, holder or rollback on the real roles: how many are
stopped, and by what.

Each plays one party by real messages against all others as they are; stopped means that nothing was
opened that an honest round would not open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from blindsight.federated import keys
from blindsight.federated.messages import (
    KEYGEN,
    Kind,
    Message,
    Outgoing,
    Proof,
    Purpose,
    Refusal,
    holder,
)
from blindsight.federated.pad import bits
from blindsight.federated.protocol import KeyGenerator, KeyHolder, Settings, Simulation
from blindsight.federated.protocol.bodies import (
    Collect,
    Contribution,
    Result,
    SumRequest,
    to_members,
    write_list,
)
from blindsight.federated.wire import Writer

__all__ = ["CHEATS", "stopped_by"]

_USERS, _WEIGHTS = 6, 60
_ALL = tuple(range(1, _USERS + 1))


def _read(data: bytes) -> Message:
    return Message.decode(data, largest=len(data))


def _code(answers: list[Outgoing]) -> str:
    """The rule that refused, or nothing where the attack went through."""
    message = _read(answers[0].data)
    return Refusal.decode(message.body).code.name if message.header.kind is Kind.REFUSED else ""


class _Stage:
    """A round with every contribution in the hands of a cheating aggregator."""

    def __init__(self, **options: Any) -> None:
        settings = Settings(dimension=_WEIGHTS, users=_USERS, **options)
        key = None if settings.holders else keys.generate(512, insecure_for_tests=True)
        self.simulation = Simulation(settings, key=key)
        self.updates = np.random.default_rng(0).uniform(-1, 1, (_USERS, _WEIGHTS))
        self.open(1, purpose=Purpose.VOTES if settings.least_per_coordinate > 1 else Purpose.VALUES)

    def open(self, number: int, **options: Any) -> None:
        for opening in self.simulation.aggregator.open_round(number, bytes(32), **options):
            self.simulation.users[opening.to].receive(opening.data)
        self.sent = {
            n: user.contribute(self.updates[n - 1])[0].data
            for n, user in self.simulation.users.items()
            if user.waiting
        }

    @property
    def public(self) -> Any:
        """The key that keys are encrypted by."""
        return self.simulation.aggregator.public

    @property
    def header(self) -> Any:
        return self.simulation.aggregator._header

    def keys(self, user: int) -> list[Any]:
        found: list[Any] = self.public.from_bytes(
            Contribution.decode(_read(self.sent[user]).body, most=1).keys[0]
        )
        return found

    def request(self, claimed: tuple[int, ...], product: list[Any]) -> SumRequest:
        members = to_members(claimed, _USERS)
        asked = self.simulation.aggregator._send(0, Kind.CONFIRM_REQUEST, members, self.header)
        answers = {
            n: _read(user.receive(asked.data)[0].data) for n, user in self.simulation.users.items()
        }
        confirmed = tuple(
            (n, m.signature) for n, m in answers.items() if m.header.kind is Kind.CONFIRM
        )
        proofs = tuple(Proof.of(_read(self.sent[user])) for user in claimed)
        return SumRequest(members, proofs, confirmed, self.public.to_bytes(product))

    def product(self, users: tuple[int, ...]) -> list[Any]:
        modulus = self.public.modulus
        total = self.keys(users[0])
        for user in users[1:]:
            total = [a * b % modulus for a, b in zip(total, self.keys(user), strict=True)]
        return total

    def ask(self, body: SumRequest) -> list[Outgoing]:
        message = self.simulation.aggregator._send(
            KEYGEN, Kind.SUM_REQUEST, body.encode(), self.header
        )
        answers: list[Outgoing] = self.simulation.keygen.receive(message.data)
        return answers

    def finish(self) -> None:
        for data in self.sent.values():
            self.simulation.aggregator.receive(data)
        self.simulation._deliver(self.simulation.aggregator.close(), self.simulation.users)
        self.simulation._deliver(self.simulation.aggregator.results(), self.simulation.users)


def _second_round_on_one_model() -> str:
    """{1..6} and {1..5} on the same model: the difference would be user 6's update."""
    stage = _Stage(group=1)
    stage.finish()
    for user in stage.simulation.users.values():
        user.expect(b"1" * 32)  # what its owner computed
    [opening, *_] = stage.simulation.aggregator.open_round(2, bytes(32))
    return _code(stage.simulation.users[1].receive(opening.data))


def _second_set_in_one_round() -> str:
    stage = _Stage(group=1)
    stage.ask(stage.request(_ALL, stage.product(_ALL)))
    return _code(stage.ask(stage.request(_ALL[1:], stage.product(_ALL[1:]))))


def _one_user_left_out() -> str:
    stage = _Stage()
    return _code(stage.ask(stage.request(_ALL[1:], stage.product(_ALL[1:]))))


def _more_proofs_than_ciphertexts() -> str:
    stage = _Stage()
    return _code(stage.ask(stage.request(_ALL, stage.product((1, 2, 3)))))


def _one_user_passed_off_as_the_sum() -> str:
    stage = _Stage()
    modulus = stage.public.modulus
    return _code(stage.ask(stage.request(_ALL, [pow(c, _USERS, modulus) for c in stage.keys(1)])))


def _a_ciphertext_that_cancels_the_others() -> str:
    """User 6 sends the inverse of what users 2 to 5 sent: the product of all six is user 1's
    key.
    """
    stage = _Stage()
    public = stage.public
    inverse = [pow(c, -1, public.modulus) for c in stage.product((2, 3, 4, 5))]
    own = _read(stage.sent[6])
    forged = replace(
        Contribution.decode(own.body, most=1), keys=(public.to_bytes(inverse),)
    ).encode()
    stage.sent[6] = Message.make(own.header, forged, stage.simulation.users[6].identity).encode()
    return _code(stage.ask(stage.request(_ALL, stage.product(_ALL))))


def _key_generator_put_back() -> str:
    stage = _Stage(group=1)
    before = stage.simulation.keygen.dump()
    stage.ask(stage.request(_ALL, stage.product(_ALL)))
    stage.simulation.keygen = KeyGenerator.load(before)
    return _code(stage.ask(stage.request(_ALL[1:], stage.product(_ALL[1:]))))


def _another_round_on_one_model_after_it() -> str:
    """The first sum is shown to nobody; put back, the key generator is asked for a second round
    without user 6.
    """
    stage = _Stage(group=1)
    before = stage.simulation.keygen.dump()
    stage.ask(stage.request(_ALL, stage.product(_ALL)))
    stage.simulation.keygen = KeyGenerator.load(before)
    stage.open(2)
    return _code(stage.ask(stage.request(_ALL[:-1], stage.product(_ALL[:-1]))))


def _a_user_put_back() -> str:
    """It has contributed to all rounds that it agreed to, forgets that, and is asked again."""
    stage = _Stage(rounds=1)
    fresh = type(stage.simulation.users[1])(stage.simulation.users[1].enrolment)
    stage.finish()
    [result] = stage.simulation.aggregator.results(1)
    fresh.receive(result.data)
    [opening, *_] = stage.simulation.aggregator.open_round(2, bytes(32))
    answers = fresh.receive(opening.data)
    return _code(answers) if answers else ""


def _values_of_fewer_than_voted() -> str:
    """Three users voted for a weight; the values of one group of three would be one of them's
    weight.
    """
    stage = _Stage(least_per_coordinate=3)
    stage.updates[:] = 0
    stage.updates[[0, 3, 4], 5] = 0.5
    stage.open(2, purpose=Purpose.VOTES)
    stage.finish()
    stage.open(3, length=1)
    return _code(stage.ask(stage.request((1, 2, 3), stage.product((1, 2, 3)))))


def _raised_counters() -> str:
    """One user's weight, made to look as if enough users had it."""
    stage = _Stage(least_per_coordinate=3)
    stage.updates[:] = 0
    stage.updates[0, 5] = 0.5
    stage.open(2, purpose=Purpose.VOTES)
    for data in stage.sent.values():
        stage.simulation.aggregator.receive(data)
    stage.simulation._deliver(stage.simulation.aggregator.close(), stage.simulation.users)
    [result, *_] = stage.simulation.aggregator.results(1)
    message = _read(result.data)
    body, width = (
        Result.decode(message.body, holders=0),
        stage.simulation.aggregator._size.slot_bits,
    )
    raw = np.empty(_WEIGHTS, dtype=np.uint64)
    bits.unpack(body.packed, width, raw)
    raw[5] = 3
    forged = replace(body, packed=bits.pack(raw, width)).encode()
    data = Message.make(message.header, forged, stage.simulation.aggregator.identity).encode()
    return _code(stage.simulation.users[1].receive(data))


def _two_faced_holder() -> str:
    """A holder that votes for two sets: the second one must not get enough votes."""
    stage = _Stage(holders=(3, 5), group=1)
    holders = stage.simulation.holders
    faces = {5: KeyHolder.load(holders[holder(5)].dump())}

    def vote(role: KeyHolder, index: int, users: tuple[int, ...]) -> bytes:
        shares = tuple(
            Contribution.decode(_read(stage.sent[u]).body, most=5).keys[index - 1] for u in users
        )
        body = Collect(to_members(users, _USERS), shares, ()).encode()
        return role.receive(
            stage.simulation.aggregator._send(0, Kind.COLLECT, body, stage.header).data
        )[0].data

    for index in (1, 2, 3, 5):
        vote(holders[holder(index)], index, _ALL)
    second = (vote(holders[holder(4)], 4, _ALL[1:]), vote(faces[5], 5, _ALL[1:]))
    votes = bytes(write_list(Writer(), second))
    return _code(
        holders[holder(4)].receive(
            stage.simulation.aggregator._send(0, Kind.VOTES, votes, stage.header).data
        )
    )


def _a_false_sum() -> str:
    stage = _Stage()
    stage.finish()
    [result, *_] = stage.simulation.aggregator.results(1)
    message = _read(result.data)
    body, width = (
        Result.decode(message.body, holders=0),
        stage.simulation.aggregator._size.slot_bits,
    )
    raw = np.empty(_WEIGHTS, dtype=np.uint64)
    bits.unpack(body.packed, width, raw)
    raw[0] += 1
    fresh = type(stage.simulation.users[1])(stage.simulation.users[1].enrolment)
    forged = replace(body, packed=bits.pack(raw, width)).encode()
    return _code(
        fresh.receive(
            Message.make(message.header, forged, stage.simulation.aggregator.identity).encode()
        )
    )


#: what is tried, in words: each gives the rule that refused it, or nothing where it went through.
CHEATS: dict[str, Callable[[], str]] = {
    "two rounds on one model": _second_round_on_one_model,
    "two sets in one round": _second_set_in_one_round,
    "a set without one user": _one_user_left_out,
    "more proofs than ciphertexts": _more_proofs_than_ciphertexts,
    "one user passed off as the sum": _one_user_passed_off_as_the_sum,
    "a ciphertext that cancels the others": _a_ciphertext_that_cancels_the_others,
    "a key generator put back in time": _key_generator_put_back,
    "another round on one model after that": _another_round_on_one_model_after_it,
    "a user put back in time": _a_user_put_back,
    "raised counters": _raised_counters,
    "values of fewer users than voted": _values_of_fewer_than_voted,
    "a two-faced key holder": _two_faced_holder,
    "a false sum shown to users": _a_false_sum,
}


def stopped_by() -> dict[str, str]:
    """Every attack with the rule that stopped it; empty where none did."""
    return {name: cheat() for name, cheat in CHEATS.items()}
