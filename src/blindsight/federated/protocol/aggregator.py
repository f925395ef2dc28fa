"""The aggregator: opens rounds, multiplies ciphertexts, and asks for one sum. It can read none of them."""

from __future__ import annotations

from typing import Literal

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from blindsight import checks
from blindsight.errors import InvalidData, ProtocolError
from blindsight.federated.messages import (
    AGGREGATOR,
    KEYGEN,
    Contribution,
    Header,
    Kind,
    Message,
    Outgoing,
    Proof,
    Sum,
    SumRequest,
)
from blindsight.federated.permutation import inverse
from blindsight.federated.protocol import block, paper
from blindsight.federated.protocol.enrolment import AggregatorEnrolment
from blindsight.federated.protocol.role import Role
from blindsight.federated.wire import Writer, seal, unseal

__all__ = ["Aggregator"]

Phase = Literal["idle", "open", "closed", "done"]
_PHASES: tuple[Phase, ...] = ("idle", "open", "closed", "done")


class Aggregator(Role):
    """Aggregator A of Algorithm 1.

    `open_round`, `receive` contributions, `close`, `receive` the sum, read `result`. Users who drop out are simply
    missing: any least_users of them finish the round. Its state survives a kill by `dump` and `load`.
    """

    number = AGGREGATOR

    def __init__(self, enrolment: AggregatorEnrolment) -> None:
        super().__init__()
        self.enrolment = enrolment
        self.settings, self.public, self.identity = enrolment.settings, enrolment.public, enrolment.identity
        self.phase: Phase = "idle"
        self.result: Sum | None = None
        self._header = self._about(0, bytes(32))
        self._clear()

    def __repr__(self) -> str:
        return f"Aggregator(round {self._header.round}, {self.phase}, {len(self.contributors)} users in)"

    def _clear(self) -> None:
        self.result = None
        self._products: dict[int, mpz] = {}  # by φ-permuted place
        self._members: dict[int, set[int]] = {}
        self._counts = np.zeros(self.settings.places(self.public), dtype=np.int64)
        self._proofs: dict[int, list[Proof]] = {}  # one a shard
        self._shards: dict[int, tuple[int, set[int]]] = {}
        self._request = b""

    def _about(self, number: int, model: bytes) -> Header:
        return Header(kind=Kind.OPEN, key_id=self.public.key_id, round=number, model=model, sender=AGGREGATOR)

    @property
    def round(self) -> int:
        """The current round's number; 0 before the first."""
        return self._header.round

    @property
    def contributors(self) -> tuple[int, ...]:
        """Users whose whole contribution is in."""
        return tuple(sorted(u for u, (total, seen) in self._shards.items() if len(seen) == total))

    @property
    def messages(self) -> int:
        """Contributions received; in `paper` mode every shard is one."""
        return sum(len(seen) for _, seen in self._shards.values())

    def open_round(self, number: int, model: bytes) -> list[Outgoing]:
        """Start a round for the model with this 32-byte hash; one message a user."""
        if checks.whole("number", number) <= self._header.round:
            raise InvalidData(f"rounds must go up: {number} is not after {self._header.round}.")
        if len(model) != 32:
            raise InvalidData(f"a model hash must have 32 bytes, got {len(model)}.")
        self._header = self._about(number, bytes(model))
        self._clear()
        self.phase = "open"
        return self.reopen()

    def reopen(self) -> list[Outgoing]:
        """The openings again, for users who are not in: after a restart, or when one was lost."""
        if self.phase != "open":
            raise ProtocolError("there is no open round.")
        missing = sorted(set(self.enrolment.user_seeds) - set(self.contributors))
        return [self._send(user, Kind.OPEN, self.settings.digest, self._header) for user in missing]

    def _handle(self, message: Message) -> list[Outgoing]:
        kind = Kind.SUM if message.header.kind is Kind.SUM else Kind.CONTRIBUTION
        message.require(kind=kind, key_id=self.public.key_id, round=self._header.round, model=self._header.model)
        if kind is Kind.SUM:
            return self._take_sum(message)
        self._take_contribution(message)
        return []

    def _take_contribution(self, message: Message) -> None:
        user = message.header.sender
        if self.phase != "open":
            raise ProtocolError("too late: the round is closed.")
        if user not in self.enrolment.user_seeds:
            raise ProtocolError("unknown sender: nobody of that number is enrolled.")
        message.require_signature(self.enrolment.verifiers.get(user))
        size = self.settings.places(self.public)
        body = Contribution.decode(message.body, width=self.public.ciphertext_bytes, size=size)
        if self.settings.mode == "block" and body.shards != 1:
            raise ProtocolError("malformed: block mode has one message a user.")
        if self.settings.support == "hidden" and self.settings.mode == "block" and body.places is not None:
            raise ProtocolError("malformed: with a hidden support every block is sent.")
        if self.settings.mode == "paper" and body.count != self.settings.m:
            raise ProtocolError(f"malformed: a shard has exactly {self.settings.m} values.")
        total, seen = self._shards.get(user, (body.shards, set()))
        if body.shards != total or body.shard in seen:
            raise ProtocolError(f"replay: user {user} has contributed to round {self._header.round} already.")
        ciphertexts = self.public.from_bytes(body.ciphertexts)  # checks every one before any is used
        places = np.arange(size) if body.places is None else body.places.astype(np.intp)
        permuted = inverse(self._own_places(user))[places]  # Equation 8: φK = φ^(n)^T Φ(K)
        for place, ciphertext in zip(permuted.tolist(), ciphertexts, strict=True):
            previous = self._products.get(place)
            self._products[place] = ciphertext if previous is None else previous * ciphertext % self.public.modulus
            self._members.setdefault(place, set()).add(user)
        self._counts[permuted] += 1
        self._shards[user] = (total, seen | {body.shard})
        self._proofs.setdefault(user, []).append(Proof.of(message))

    def _own_places(self, user: int) -> NDArray[np.intp]:
        seed = self.enrolment.user_seeds[user]
        if self.settings.mode == "paper":
            return paper.user_places(self.settings, seed)
        context = block.round_context(self._header.round, self._header.model)
        return block.user_places(self.settings, self.public, seed, context)

    def close(self) -> list[Outgoing]:
        """End the round and ask the key generator for the sum; asking again repeats the same bytes."""
        if self.phase == "closed":
            return [Outgoing(KEYGEN, self._request)]
        if self.phase != "open":
            raise ProtocolError("there is no open round to close.")
        users = self.contributors
        if len(users) < self.settings.least_users:
            raise ProtocolError(
                f"too few contributors: {self.settings.least_users} are needed, {len(users)} are in. "
                "Wait for more users."
            )
        if len(users) != len(self._shards):
            raise ProtocolError("a user's shards are not all in yet: wait for them.")
        message = self._send(KEYGEN, Kind.SUM_REQUEST, self._sum_request(users).encode(), self._header)
        self._request, self.phase = message.data, "closed"
        return [message]

    def _sum_request(self, users: tuple[int, ...]) -> SumRequest:
        if self.settings.mode == "paper":
            total = paper.combine(self.settings, self.public, self._products, self._counts, self.messages)
            places = np.arange(self.settings.dimension, dtype=np.uint32)
            return SumRequest(
                len(users), (), places, np.zeros((len(places), 0), dtype=bool), self.public.to_bytes(total)
            )
        places = np.array(sorted(self._products), dtype=np.uint32)
        members = np.array([[u in self._members[p] for u in users] for p in places.tolist()], dtype=bool)
        data = self.public.to_bytes([self._products[p] for p in places.tolist()])
        return SumRequest(len(users), tuple(self._proofs[u][0] for u in users), places, members, data)

    def _take_sum(self, message: Message) -> list[Outgoing]:
        if self.phase != "closed" or message.header.sender != KEYGEN:
            raise ProtocolError("out of turn: no sum was asked for.")
        message.require_signature(self.enrolment.verifiers.get(KEYGEN))
        self.result = Sum.decode(message.body, dimension=self.settings.dimension, users=self.settings.users)
        self.phase = "done"
        return []

    def dump(self) -> bytes:
        """Everything, sealed: after a kill the round goes on with the contributions that were saved."""
        writer = Writer().field(self.enrolment.dump()).number("Q", self._header.round).raw(self._header.model)
        writer.number("B", _PHASES.index(self.phase)).field(b"" if self.result is None else self.result.encode())
        writer.field(self._request).raw(self._counts.astype("<i8").tobytes())
        writer.number("I", len(self._shards))
        for user, (total, seen) in self._shards.items():
            writer.number("I", user).number("H", total).number("H", len(seen))
            for shard, proof in zip(sorted(seen), self._proofs[user], strict=True):
                writer.number("H", shard).raw(proof.encode())
        writer.number("I", len(self._products))
        for place, product in self._products.items():
            writer.number("I", place).raw(product.to_bytes(self.public.ciphertext_bytes, "little"))
            writer.number("I", len(self._members[place]))
            for user in sorted(self._members[place]):
                writer.number("I", user)
        return seal(b"AGST", bytes(writer))

    @classmethod
    def load(cls, data: bytes) -> Aggregator:
        """Go on where `dump` was."""
        reader = unseal(b"AGST", data)
        role = cls(AggregatorEnrolment.load(reader.field()))
        role._header = role._about(reader.number("Q"), reader.raw(32))
        role.phase = _PHASES[reader.number("B")]
        result = reader.field()
        if result:
            role.result = Sum.decode(result, dimension=role.settings.dimension, users=role.settings.users)
        role._request = reader.field()
        role._counts = np.frombuffer(reader.raw(8 * len(role._counts)), dtype="<i8").astype(np.int64)
        for _ in range(reader.number("I")):
            user, total, count = reader.number("I"), reader.number("H"), reader.number("H")
            pairs = [(reader.number("H"), Proof.read(reader)) for _ in range(count)]
            role._shards[user] = (total, {shard for shard, _ in pairs})
            role._proofs[user] = [proof for _, proof in pairs]
        for _ in range(reader.number("I")):
            place = reader.number("I")
            role._products[place] = mpz.from_bytes(reader.raw(role.public.ciphertext_bytes), "little")
            role._members[place] = {reader.number("I") for _ in range(reader.number("I"))}
        reader.end()
        return role
