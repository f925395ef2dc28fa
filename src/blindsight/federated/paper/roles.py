"""The roles of Algorithm 1: messages in, messages out, everybody following the protocol."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from gmpy2 import mpz
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData, ProtocolError
from blindsight.federated.enrolment import AggregatorEnrolment, KeygenEnrolment, UserEnrolment
from blindsight.federated.messages import (
    AGGREGATOR,
    KEYGEN,
    Code,
    Header,
    Kind,
    Message,
    Outgoing,
    Purpose,
    Refused,
)
from blindsight.federated.opened import Opened
from blindsight.federated.paillier import PublicKey
from blindsight.federated.paper import algorithm
from blindsight.federated.paper.bodies import EncryptedSum, Shard
from blindsight.federated.permutation import inverse
from blindsight.federated.randomisers import RandomiserPool
from blindsight.federated.role import Role
from blindsight.federated.settings import Settings
from blindsight.federated.wire import Writer, seal, unseal
from blindsight.privacy.entropy import Rng

__all__ = ["PaperAggregator", "PaperKeyGenerator", "PaperUser"]

Phase = Literal["idle", "open", "closed", "done"]
_PHASES: tuple[Phase, ...] = ("idle", "open", "closed", "done")


def _largest(settings: Settings, public: PublicKey) -> int:
    return int(65_536 + settings.dimension * (public.ciphertext_bytes + 12))


def _require(public: PublicKey | None) -> PublicKey:
    if public is None:
        raise ProtocolError("the paper's protocol has one key generator.")
    return public


class PaperUser(Role):
    """User n: lines 3 and 4."""

    def __init__(
        self,
        enrolment: UserEnrolment,
        *,
        pool: RandomiserPool | None = None,
        workers: int = 2,
        rng: Rng | None = None,
    ) -> None:
        super().__init__()
        self.enrolment, self.number, self.settings = enrolment, enrolment.number, enrolment.settings
        self.agreement, self.identity = enrolment.agreement, enrolment.identity
        self.pool, self.workers = pool, workers
        self._open: Header | None = None
        self._last_round = 0
        self._sent: list[Outgoing] = []
        self.mask: NDArray[np.bool_] | None = None
        self.largest_message = 65_536

    def __repr__(self) -> str:
        return f"PaperUser({self.number}, last round {self._last_round})"

    @property
    def waiting(self) -> bool:
        """Whether a round is open that this user has not contributed to."""
        return self._open is not None

    @property
    def open_round(self) -> Header | None:
        """The round that waits for this user's update."""
        return self._open

    def expect(self, model: bytes) -> None:
        """The paper's users take the model as it comes."""

    def _handle(self, message: Message) -> list[Outgoing]:
        message.require(Kind.OPEN, self.agreement)
        if message.header.sender != AGGREGATOR:
            raise Refused(Code.TURN, "only the aggregator opens rounds.")
        message.require_signature(self.enrolment.verifiers)
        number = message.header.round
        if number <= self._last_round:
            if self._sent:
                previous = Message.decode(
                    self._sent[0].data, largest=len(self._sent[0].data)
                ).header
                if previous.context == message.header.context:
                    return list(self._sent)
            raise Refused(Code.ROUND, f"round {number} is not after round {self._last_round}.")
        self._open = message.header
        return []

    def contribute(
        self, update: ArrayLike, *, support: NDArray[np.bool_] | None = None
    ) -> list[Outgoing]:
        """Encrypt an update for the open round: one message a shard."""
        if self._open is None:
            raise ProtocolError(f"user {self.number} has no open round to contribute to.")
        numbers, chosen = self.encode(update, support)
        bodies = algorithm.contributions(
            self.enrolment, numbers, chosen, pool=self.pool, workers=self.workers
        )
        self._sent = [
            self._send(AGGREGATOR, Kind.CONTRIBUTION, body.encode(), self._open) for body in bodies
        ]
        self._last_round, self._open = self._open.round, None
        return list(self._sent)

    def encode(
        self, update: ArrayLike, support: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The whole numbers that go into the ciphertexts, and which coordinates count."""
        values = checks.finite_array("update", update, ndim=1)
        if len(values) != self.settings.dimension:
            raise InvalidData(
                f"an update must have {self.settings.dimension} weights, got {len(values)}."
            )
        chosen = values != 0 if support is None else np.asarray(support, dtype=bool)
        if chosen.shape != values.shape or (values[~chosen] != 0).any():
            raise InvalidData(
                "support must have one entry a weight and be true wherever the update is not zero."
            )
        return self.settings.code.encode(values), chosen

    def dump(self) -> bytes:
        """Enrolment, open round, last round and what was sent in it, sealed; secret."""
        writer = Writer().field(self.enrolment.dump()).number("Q", self._last_round)
        writer.field(b"" if self._open is None else self._open.encode(0) + bytes(64)).number(
            "I", len(self._sent)
        )
        for message in self._sent:
            writer.field(message.data)
        return seal(b"PUST", bytes(writer))

    @classmethod
    def load(
        cls,
        data: bytes,
        *,
        pool: RandomiserPool | None = None,
        workers: int = 2,
        rng: Rng | None = None,
    ) -> PaperUser:
        """Go on where `dump` was."""
        reader = unseal(b"PUST", data)
        user = cls(UserEnrolment.load(reader.field()), pool=pool, workers=workers)
        user._last_round, opened = reader.number("Q"), reader.field()
        user._open = Message.decode(opened, largest=1 << 20).header if opened else None
        user._sent = [Outgoing(AGGREGATOR, reader.field()) for _ in range(reader.number("I"))]
        return user


class PaperAggregator(Role):
    """Aggregator A: line 5."""

    number = AGGREGATOR
    purpose = Purpose.VALUES
    spoilt = False

    def __init__(self, enrolment: AggregatorEnrolment) -> None:
        super().__init__()
        self.enrolment, self.settings = enrolment, enrolment.settings
        self.agreement, self.identity = enrolment.agreement, enrolment.identity
        self.public = _require(enrolment.public)
        self.largest_message = _largest(self.settings, self.public)
        self._begin(0, bytes(32))
        self.phase: Phase = "idle"

    def __repr__(self) -> str:
        return (
            f"PaperAggregator(round {self.round}, {self.phase}, {len(self.contributors)} users in)"
        )

    def _begin(self, number: int, model: bytes) -> None:
        self._header = Header(
            kind=Kind.OPEN,
            agreement=self.agreement,
            round=number,
            model=model,
            sender=AGGREGATOR,
            length=self.settings.dimension,
        )
        self._products: dict[int, mpz] = {}  # by φ-permuted place
        self._counts = np.zeros(self.settings.dimension, dtype=np.int64)
        self._shards: dict[int, tuple[int, list[int]]] = {}
        self._asked: list[Outgoing] = []
        self.result: Opened | None = None

    @property
    def round(self) -> int:
        """The current round's number; 0 before the first."""
        return self._header.round

    @property
    def model(self) -> bytes:
        """The current round's model hash."""
        return self._header.model

    @property
    def contributors(self) -> tuple[int, ...]:
        """Users whose whole contribution is in."""
        return tuple(sorted(u for u, (total, seen) in self._shards.items() if len(seen) == total))

    @property
    def pending(self) -> tuple[int, ...]:
        """Users of whom some shards are missing."""
        return tuple(sorted(u for u, (total, seen) in self._shards.items() if len(seen) < total))

    @property
    def enough(self) -> bool:
        """Whether the round can be closed."""
        return len(self.contributors) >= self.settings.least_users and not self.pending

    def open_round(
        self,
        number: int,
        model: bytes,
        *,
        length: int | None = None,
        purpose: Purpose = Purpose.VALUES,
    ) -> list[Outgoing]:
        """Start a round for the model with this 32-byte hash; one message a user."""
        if checks.whole("number", number) <= self.round:
            raise InvalidData(f"rounds must go up: {number} is not after {self.round}.")
        if len(model) != 32:
            raise InvalidData(f"a model hash must have 32 bytes, got {len(model)}.")
        self._begin(number, bytes(model))
        self.phase = "open"
        return self.reopen()

    def reopen(self) -> list[Outgoing]:
        """The openings again, for users who are not in."""
        if self.phase != "open":
            raise ProtocolError("there is no open round.")
        data = self._send(0, Kind.OPEN, b"", self._header).data
        return [
            Outgoing(n, data)
            for n in range(1, self.settings.users + 1)
            if n not in self.contributors
        ]

    def _handle(self, message: Message) -> list[Outgoing]:
        kind = Kind.SUM if message.header.kind is Kind.SUM else Kind.CONTRIBUTION
        message.require(kind, self.agreement)
        message.require_context(self._header)
        message.require_signature(self.enrolment.verifiers)
        if kind is Kind.SUM:
            self._take_sum(message)
        elif self.phase != "open":
            raise Refused(Code.TURN, "too late: the round is closed.")
        else:
            self._add(message)
        return []

    def _add(self, message: Message) -> None:
        user, size = message.header.sender, self.settings.dimension
        if user not in self.enrolment.user_seeds:
            raise Refused(Code.COHORT, "only users contribute.")
        body = Shard.decode(message.body, width=self.public.ciphertext_bytes, size=size)
        if body.count != self.settings.m or body.shards > -(-size // self.settings.m):
            raise ProtocolError(f"malformed: a shard has exactly {self.settings.m} values.")
        total, seen = self._shards.get(user, (body.shards, []))
        if body.shards != total or body.shard in seen:
            raise Refused(Code.ROUND, f"user {user} has contributed to round {self.round} already.")
        ciphertexts = self.public.from_bytes(body.ciphertexts)
        own = algorithm.user_places(self.settings, self.enrolment.user_seeds[user])
        permuted = inverse(own)[body.places.astype(np.intp)]  # Equation 8: φK = φ^(n)^T Φ(K)
        for place, ciphertext in zip(permuted.tolist(), ciphertexts, strict=True):
            previous = self._products.get(place)
            self._products[place] = (
                ciphertext if previous is None else previous * ciphertext % self.public.modulus
            )
        self._counts[permuted] += 1
        self._shards[user] = (total, [*seen, body.shard])

    def close(self) -> list[Outgoing]:
        """End the round and ask for the sum; asking again repeats the same bytes."""
        if self.phase == "closed":
            return list(self._asked)
        if self.phase != "open":
            raise ProtocolError("there is no open round to close.")
        self._asked = [self._send(KEYGEN, Kind.SUM_REQUEST, self.request().encode(), self._header)]
        self.phase = "closed"
        return list(self._asked)

    def awaited(self) -> list[int]:
        """Whose answer the closed round needs."""
        return [KEYGEN]

    def ask(self, address: int) -> list[Outgoing]:
        """The question to it."""
        return self.close()

    def request(self) -> EncryptedSum:
        """What to ask for: the product of everything that came."""
        if self.pending:
            raise ProtocolError(
                f"user {self.pending[0]}'s shards are not all in yet: wait for them."
            )
        if not self.enough:
            raise Refused(
                Code.FEW,
                f"{self.settings.least_users} contributors are needed, {len(self.contributors)} "
                "are in. "
                "Wait for more users.",
            )
        messages = sum(len(seen) for _, seen in self._shards.values())
        total = algorithm.combine(
            self.settings, self.public, self._products, self._counts, messages
        )
        return EncryptedSum(len(self.contributors), self.public.to_bytes(total))

    def _take_sum(self, message: Message) -> None:
        if self.phase not in ("closed", "done") or message.header.sender != KEYGEN:
            raise Refused(Code.TURN, "no sum was asked for.")
        if self.phase == "closed":
            # The key generator is only told how many users there are.
            self.result = replace(
                Opened.decode(message.body, users=self.settings.users),
                contributors=self.contributors,
            )
            self.phase = "done"

    def results(self, *users: int, after: int | None = None) -> list[Outgoing]:
        """The paper's users are not shown the sum but the model."""
        return []

    def dump(self) -> bytes:
        """Everything, sealed: after a kill the round goes on with the contributions that were
        saved.
        """
        writer = Writer().field(self.enrolment.dump()).number("Q", self.round).raw(self.model)
        writer.number("B", _PHASES.index(self.phase)).field(
            b"" if self.result is None else self.result.encode()
        )
        writer.number("I", len(self._asked))
        for message in self._asked:
            writer.field(message.data)
        writer.raw(self._counts.astype("<i8").tobytes()).number("I", len(self._shards))
        for user, (total, seen) in self._shards.items():
            writer.number("I", user).number("H", total).field(np.array(seen, dtype="<u2").tobytes())
        writer.number("I", len(self._products))
        for place, product in self._products.items():
            writer.number("I", place).raw(product.to_bytes(self.public.ciphertext_bytes, "little"))
        return seal(b"PAST", bytes(writer))

    @classmethod
    def load(cls, data: bytes) -> PaperAggregator:
        """Go on where `dump` was."""
        reader = unseal(b"PAST", data)
        role = cls(AggregatorEnrolment.load(reader.field()))
        role._begin(reader.number("Q"), reader.raw(32))
        role.phase, result = _PHASES[reader.number("B")], reader.field()
        role.result = Opened.decode(result, users=role.settings.users) if result else None
        role._asked = [Outgoing(KEYGEN, reader.field()) for _ in range(reader.number("I"))]
        role._counts = np.frombuffer(reader.raw(8 * role.settings.dimension), dtype="<i8").astype(
            np.int64
        )
        for _ in range(reader.number("I")):
            user, total, seen = reader.number("I"), reader.number("H"), reader.field()
            role._shards[user] = (total, np.frombuffer(seen, dtype="<u2").tolist())
        for _ in range(reader.number("I")):
            place = reader.number("I")
            role._products[place] = mpz.from_bytes(
                reader.raw(role.public.ciphertext_bytes), "little"
            )
        reader.end()
        return role


class PaperKeyGenerator(Role):
    """Key generator G: line 6. It decrypts what it is asked to; N >= 3 is all that it asks."""

    number = KEYGEN

    def __init__(self, enrolment: KeygenEnrolment, *, workers: int = 2) -> None:
        super().__init__()
        self.enrolment, self.settings, self.workers = enrolment, enrolment.settings, workers
        self.agreement, self.identity = enrolment.agreement, enrolment.identity
        self.largest_message = _largest(self.settings, enrolment.private.public)

    def __repr__(self) -> str:
        return f"PaperKeyGenerator({self.enrolment.private.public.bits} bits)"

    def _handle(self, message: Message) -> list[Outgoing]:
        message.require(Kind.SUM_REQUEST, self.agreement)
        if message.header.sender != AGGREGATOR:
            raise Refused(Code.TURN, "only the aggregator asks for sums.")
        message.require_signature(self.enrolment.verifiers)
        body = EncryptedSum.decode(message.body)
        if not 3 <= body.users <= self.settings.users:
            raise Refused(Code.FEW, f"N >= 3 is needed, got {body.users}.")
        private = self.enrolment.private
        if len(body.ciphertexts) != self.settings.dimension * private.public.ciphertext_bytes:
            raise ProtocolError(
                "malformed: the encrypted sum must have every coordinate, in order."
            )
        plaintexts = private.decrypt_many(
            private.public.from_bytes(body.ciphertexts), workers=self.workers
        )
        opened = algorithm.open_sum(self.enrolment, tuple(range(1, body.users + 1)), plaintexts)
        return [self._send(AGGREGATOR, Kind.SUM, opened.encode(), message.header)]

    def dump(self) -> bytes:
        """Key and secrets, sealed; secret above all others."""
        return seal(b"PKST", bytes(Writer().field(self.enrolment.dump())))

    @classmethod
    def load(cls, data: bytes, *, workers: int = 2) -> PaperKeyGenerator:
        """Go on where `dump` was."""
        reader = unseal(b"PKST", data)
        role = cls(KeygenEnrolment.load(reader.field()), workers=workers)
        reader.end()
        return role
