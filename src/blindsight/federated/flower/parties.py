"""User and key generator as durable services: a message in, messages out, the state on disk in between."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import ProtocolError
from blindsight.federated.flower.homes import Home
from blindsight.federated.flower.plan import read_rows
from blindsight.federated.learning import Participant, model_digest
from blindsight.federated.messages import Outgoing
from blindsight.federated.protocol import Durable, KeyGenerator, User
from blindsight.federated.protocol.enrolment import KeygenEnrolment, UserEnrolment
from blindsight.federated.wire import Reader, Writer, read_sealed, seal, unseal, write_sealed

__all__ = ["Announcement", "KeygenService", "UserService", "alone"]


@contextmanager
def alone(home: Home) -> Iterator[None]:
    """Only one process of a party at a time; the lock goes with the process, however it ends."""
    with (home.path / "lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class Announcement:
    """What goes to every user with an opening: the model, and what became of the last round."""

    weights: NDArray[np.float64]
    last_round: int
    contributors: tuple[int, ...]
    revealed: NDArray[np.bool_]

    def encode(self) -> bytes:
        """u64 round, u32 count and numbers, weights as float64, one bit a coordinate."""
        writer = Writer().number("Q", self.last_round).number("I", len(self.contributors))
        for user in self.contributors:
            writer.number("I", user)
        writer.field(self.weights.astype("<f8").tobytes())
        return bytes(writer.field(np.packbits(self.revealed, bitorder="little").tobytes()))

    @classmethod
    def decode(cls, data: bytes, *, dimension: int, users: int) -> Announcement:
        """Read it; whoever sent it is not trusted."""
        reader = Reader(data)
        last, count = reader.number("Q"), reader.number("I")
        if count > users:
            raise ProtocolError(f"malformed: at most {users} users are enrolled.")
        contributors = tuple(reader.number("I") for _ in range(count))
        weights, bits = reader.field(), reader.field()
        reader.end()
        if len(weights) != 8 * dimension or len(bits) != -(-dimension // 8):
            raise ProtocolError(f"malformed: a model of {dimension} weights was expected.")
        revealed = np.unpackbits(np.frombuffer(bits, dtype=np.uint8), count=dimension, bitorder="little")
        model = np.frombuffer(weights, dtype="<f8").astype(np.float64)
        if not np.isfinite(model).all():
            raise ProtocolError("malformed: a model's weights must be finite.")
        return cls(model, last, contributors, revealed.astype(bool))


class UserService:
    """User n on its own machine: trains on its own rows, encrypts, remembers.

    Protocol state, unsent changes and the strength found are one file, written before an answer leaves. Killed at any
    moment it comes back with the old state or the new one; asked again for a round it has answered, it sends the very
    same bytes.
    """

    def __init__(self, home: Home, data: str | Path, *, workers: int = 2) -> None:
        self.home = home.require("user")
        plan = home.plan
        X, y = read_rows(data)
        self.trainer = plan.trainer(X, y, user=home.number)
        if home.state.exists():
            reader = unseal(b"FLUS", read_sealed(home.state))
            self.user = User.load(reader.field(), workers=workers)
            memory, self.trainer.strength = reader.field(), reader.real()
        else:
            self.user, memory = User(UserEnrolment.load(home.enrolment), workers=workers), b""
        self.participant = Participant(self.trainer, plan.sending, self.user.settings.code)
        if memory:
            self.participant.restore(memory)

    def handle(self, opening: bytes, announced: bytes) -> list[Outgoing]:
        """Answer an opening with a contribution, or with the reason why not."""
        answers = self.user.receive(opening)
        header = self.user.open_round
        if header is None:
            self._save()
            return answers
        settings = self.user.settings
        news = Announcement.decode(announced, dimension=settings.dimension, users=settings.users)
        if model_digest(news.weights) != header.model:
            raise ProtocolError("wrong model: the weights announced are not those the round was opened for.")
        included = self.user.number in news.contributors
        self.participant.settle(news.last_round, included=included, revealed=news.revealed)
        vector, support = self.participant.step(news.weights, header.round)
        sent = self.user.contribute(vector, support=support)
        self._save()
        return sent

    def _save(self) -> None:
        writer = Writer().field(self.user.dump()).field(self.participant.dump())
        write_sealed(self.home.state, seal(b"FLUS", bytes(writer.number("d", self.trainer.strength))))


class KeygenService:
    """The key generator on its own machine; a round that was opened stays opened, whatever is killed."""

    def __init__(self, home: Home, *, workers: int = 2) -> None:
        self.home = home.require("keygen")
        if home.state.exists():
            role = KeyGenerator.load(read_sealed(home.state), workers=workers)
        else:
            role = KeyGenerator(KeygenEnrolment.load(home.enrolment), workers=workers)
        self._durable = Durable(role, home.state)

    def handle(self, request: bytes) -> list[Outgoing]:
        """Answer a request for a sum."""
        return self._durable.receive(request)
