"""The aggregator: opens rounds, multiplies ciphertexts, and asks for one sum. It can read none of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from blindsight.core import checks
from blindsight.core.errors import InvalidData, ProtocolError
from blindsight.federated.messages import (
    AGGREGATOR,
    KEYGEN,
    Header,
    Kind,
    Message,
    Outgoing,
    PartialRequest,
    Sum,
    is_holder,
)
from blindsight.federated.protocol import block
from blindsight.federated.protocol.accumulator import Accumulator
from blindsight.federated.protocol.enrolment import AggregatorEnrolment
from blindsight.federated.protocol.role import Role
from blindsight.federated.wire import Writer, seal, unseal

__all__ = ["Aggregator"]

Phase = Literal["idle", "open", "closed", "done"]
_PHASES: tuple[Phase, ...] = ("idle", "open", "closed", "done")


class Aggregator(Role):
    """Aggregator A of Algorithm 1.

    `open_round`, `receive` contributions, `close`, `receive` the sum, read `result`. Users who drop out are simply
    missing: any least_users of them finish the round. Its state survives a kill by `dump` and `load`. Where the key is
    shared among holders, it keeps the contributions as they came and passes them on: holders multiply for themselves.
    """

    number = AGGREGATOR

    def __init__(self, enrolment: AggregatorEnrolment) -> None:
        super().__init__()
        self.enrolment = enrolment
        self.settings, self.public, self.identity = enrolment.settings, enrolment.public, enrolment.identity
        self._holders = tuple(sorted(number for number in enrolment.verifiers if is_holder(number)))
        self._begin(0, bytes(32))
        self.phase: Phase = "idle"

    def __repr__(self) -> str:
        return f"Aggregator(round {self.round}, {self.phase}, {len(self.contributors)} users in)"

    def _begin(self, number: int, model: bytes) -> None:
        self._header = Header(kind=Kind.OPEN, key_id=self.public.key_id, round=number, model=model, sender=AGGREGATOR)
        self._sums = Accumulator(
            self.settings,
            self.public,
            seeds=self.enrolment.user_seeds,
            verifiers=self.enrolment.verifiers,
            context=block.round_context(number, model),
        )
        self._received: list[bytes] = []
        self._asked: list[Outgoing] = []
        self.result: Sum | None = None

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
        return self._sums.contributors

    def open_round(self, number: int, model: bytes) -> list[Outgoing]:
        """Start a round for the model with this 32-byte hash; one message a user."""
        if checks.whole("number", number) <= self.round:
            raise InvalidData(f"rounds must go up: {number} is not after {self.round}.")
        if len(model) != 32:
            raise InvalidData(f"a model hash must have 32 bytes, got {len(model)}.")
        self._begin(number, bytes(model))
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
        message.require(kind=kind, key_id=self.public.key_id, round=self.round, model=self.model)
        if kind is Kind.SUM:
            self._take_sum(message)
        elif self.phase != "open":
            raise ProtocolError("too late: the round is closed.")
        else:
            self._sums.add(message)
            if self._holders:
                self._received.append(message.encode())
        return []

    def close(self) -> list[Outgoing]:
        """End the round and ask for the sum; asking again repeats the same bytes."""
        if self.phase == "closed":
            return list(self._asked)
        if self.phase != "open":
            raise ProtocolError("there is no open round to close.")
        request = self._sums.request()
        if self._holders:
            body = PartialRequest(tuple(self._received)).encode()
            self._asked = [self._send(to, Kind.PARTIAL_REQUEST, body, self._header) for to in self._holders]
        else:
            self._asked = [self._send(KEYGEN, Kind.SUM_REQUEST, request.encode(), self._header)]
        self.phase = "closed"
        return list(self._asked)

    def _take_sum(self, message: Message) -> None:
        if self.phase not in ("closed", "done") or message.header.sender != KEYGEN:
            raise ProtocolError("out of turn: no sum was asked for.")
        message.require_signature(self.enrolment.verifiers.get(KEYGEN))
        if self.phase == "done":
            return  # asked for twice, answered twice
        total = Sum.decode(message.body, dimension=self.settings.dimension, users=self.settings.users)
        # In `paper` mode the key generator is only told how many users there are.
        self.result = replace(total, contributors=self.contributors)
        self.phase = "done"

    def dump(self) -> bytes:
        """Everything, sealed: after a kill the round goes on with the contributions that were saved."""
        writer = Writer().field(self.enrolment.dump()).number("Q", self.round).raw(self.model)
        writer.number("B", _PHASES.index(self.phase))
        writer.field(b"" if self.result is None else self.result.encode())
        writer.number("I", len(self._asked))
        for message in self._asked:
            writer.number("I", message.to).field(message.data)
        writer.number("I", len(self._received))
        for data in self._received:
            writer.field(data)
        self._sums.write(writer)
        return seal(b"AGST", bytes(writer))

    @classmethod
    def load(cls, data: bytes) -> Aggregator:
        """Go on where `dump` was."""
        reader = unseal(b"AGST", data)
        role = cls(AggregatorEnrolment.load(reader.field()))
        role._begin(reader.number("Q"), reader.raw(32))
        role.phase = _PHASES[reader.number("B")]
        result = reader.field()
        if result:
            role.result = Sum.decode(result, dimension=role.settings.dimension, users=role.settings.users)
        role._asked = [Outgoing(reader.number("I"), reader.field()) for _ in range(reader.number("I"))]
        role._received = [reader.field() for _ in range(reader.number("I"))]
        role._sums.read(reader)
        reader.end()
        return role
