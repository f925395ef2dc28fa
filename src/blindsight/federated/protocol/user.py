"""A user: is told that a round is open, contributes one update to it, and never a second one."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData, ProtocolError
from blindsight.federated.messages import AGGREGATOR, Header, Kind, Message, Outgoing
from blindsight.federated.noise import clipped_numbers, noise_share
from blindsight.federated.protocol import block, paper
from blindsight.federated.protocol.enrolment import UserEnrolment
from blindsight.federated.protocol.role import Role
from blindsight.federated.randomisers import RandomiserPool
from blindsight.federated.wire import Reader, Writer, seal, unseal
from blindsight.privacy.entropy import Rng, SystemEntropy

__all__ = ["User"]


class User(Role):
    """User n of Algorithm 1.

    `receive` an opening, then `contribute` an update (a vector of D weights). In `block` mode a coordinate counts as
    contributed where `support` is true: by default, where the update isn't zero.
    """

    def __init__(
        self, enrolment: UserEnrolment, *, pool: RandomiserPool | None = None, workers: int = 2, rng: Rng | None = None
    ) -> None:
        super().__init__()
        self.enrolment = enrolment
        self.number = enrolment.number
        self.settings, self.public, self.identity = enrolment.settings, enrolment.public, enrolment.identity
        self.pool, self.workers = pool, workers
        self._rng: Rng = SystemEntropy() if rng is None else rng
        self._open: Header | None = None
        self._last_round = 0
        self._sent: list[Outgoing] = []

    def __repr__(self) -> str:
        return f"User({self.number}, last round {self._last_round})"

    @property
    def waiting(self) -> bool:
        """Whether a round is open that this user has not contributed to."""
        return self._open is not None

    @property
    def open_round(self) -> Header | None:
        """The round that waits for this user's update."""
        return self._open

    def _handle(self, message: Message) -> list[Outgoing]:
        message.require(kind=Kind.OPEN, key_id=self.public.key_id, round=None, model=None)
        if message.header.sender != AGGREGATOR:
            raise ProtocolError("out of turn: only the aggregator opens rounds.")
        message.require_signature(self.enrolment.aggregator)
        if message.body != self.settings.digest:
            raise ProtocolError("wrong settings: the round is opened under another agreement.")
        number = message.header.round
        if number == self._last_round and self._sent:
            # The same bytes again: our message may have been lost, and a repeat tells nothing new.
            previous = Message.decode(self._sent[0].data, largest=self.largest_message)
            if previous.header.model == message.header.model:
                return list(self._sent)
        if number <= self._last_round:
            raise ProtocolError(f"replay: round {number} is not after round {self._last_round}.")
        self._open = message.header
        return []

    def contribute(self, update: ArrayLike, *, support: NDArray[np.bool_] | None = None) -> list[Outgoing]:
        """Encrypt an update for the open round: one message, or one a shard in `paper` mode."""
        if self._open is None:
            raise ProtocolError(f"user {self.number} has no open round to contribute to.")
        numbers, chosen = self.encode(update, support)
        header = self._open
        if self.settings.mode == "paper":
            bodies = paper.contributions(self.enrolment, numbers, chosen, pool=self.pool, workers=self.workers)
        else:
            context = block.round_context(header.round, header.model)
            bodies = [
                block.contribution(self.enrolment, context, numbers, chosen, pool=self.pool, workers=self.workers)
            ]
        self._sent = [self._send(AGGREGATOR, Kind.CONTRIBUTION, body.encode(), header) for body in bodies]
        self._last_round, self._open = header.round, None
        return list(self._sent)

    def encode(
        self, update: ArrayLike, support: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The whole numbers that go into the ciphertexts, noise included, and which coordinates count."""
        values = checks.finite_array("update", update, ndim=1)
        if len(values) != self.settings.dimension:
            raise InvalidData(f"an update must have {self.settings.dimension} weights, got {len(values)}.")
        if self.settings.clip is not None:
            numbers = clipped_numbers(values, self.settings.clip, self.settings.code)
            share = noise_share(self.settings.noise_variance, len(values), self.settings, rng=self._rng)
            return numbers + share, np.ones(len(values), dtype=bool)
        chosen = values != 0 if support is None else np.asarray(support, dtype=bool)
        if chosen.shape != values.shape or (values[~chosen] != 0).any():
            raise InvalidData("support must have one entry a weight and be true wherever the update is not zero.")
        return self.settings.code.encode(values), chosen

    def dump(self) -> bytes:
        """Enrolment, open round, last round and what was sent in it, sealed; secret."""
        writer = Writer().field(self.enrolment.dump()).number("Q", self._last_round)
        writer.field(b"" if self._open is None else self._open.encode(0) + bytes(64))
        writer.number("I", len(self._sent))
        for message in self._sent:
            writer.field(message.data)
        return seal(b"USST", bytes(writer))

    @classmethod
    def load(cls, data: bytes, *, pool: RandomiserPool | None = None, workers: int = 2, rng: Rng | None = None) -> User:
        """Go on where `dump` was."""
        reader: Reader = unseal(b"USST", data)
        user = cls(UserEnrolment.load(reader.field()), pool=pool, workers=workers, rng=rng)
        user._last_round = reader.number("Q")
        opened = reader.field()
        user._open = Message.decode(opened, largest=1 << 20).header if opened else None
        user._sent = [Outgoing(AGGREGATOR, reader.field()) for _ in range(reader.number("I"))]
        return user
