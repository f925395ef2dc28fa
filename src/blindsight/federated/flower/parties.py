"""Users, key generator and holders as durable services: a message in, messages out, the state on
disk in between.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import ProtocolError
from blindsight.federated.agreement import Agreement
from blindsight.federated.enrolment import (
    AggregatorEnrolment,
    HolderEnrolment,
    KeygenEnrolment,
    UserEnrolment,
)
from blindsight.federated.flower.homes import Home
from blindsight.federated.flower.plan import read_rows
from blindsight.federated.learning import Participant, model_digest
from blindsight.federated.messages import Outgoing
from blindsight.federated.paper import PaperKeyGenerator, PaperUser
from blindsight.federated.protocol import Durable, KeyGenerator, KeyHolder, User
from blindsight.federated.settings import Settings
from blindsight.federated.wire import Reader, Writer, read_sealed, seal, unseal, write_sealed
from blindsight.privacy import Guarantee, Ledger
from blindsight.privacy.door import Door

__all__ = [
    "Announcement",
    "HolderService",
    "KeygenService",
    "Service",
    "UserService",
    "alone",
    "charge",
    "open_service",
    "settings_of",
]


@contextmanager
def alone(home: Home) -> Iterator[None]:
    """Only one process of a party at a time; the lock goes with the process, however it ends."""
    with (home.path / "lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Service(Protocol):
    """A party that answers messages."""

    @property
    def over(self) -> bool:
        """Whether all rounds are done and nothing more will be asked of it."""
        ...

    def handle(self, message: bytes, announced: bytes = b"") -> list[Outgoing]:
        """Answer one message."""
        ...


def open_service(home: Home, data: str | Path | None = None) -> Service:
    """The party whose folder this is."""
    role = home.about["role"]
    if role == "user":
        if data is None:
            raise ProtocolError("a user needs its rows.")
        return UserService(home, data)
    return KeygenService(home) if role == "keygen" else HolderService(home)


def settings_of(home: Home) -> Settings:
    """What this party agreed to."""
    kinds: dict[str, Any] = {
        "aggregator": AggregatorEnrolment,
        "keygen": KeygenEnrolment,
        "holder": HolderEnrolment,
        "user": UserEnrolment,
    }
    return kinds[home.about["role"]].load(home.enrolment).settings  # type: ignore[no-any-return]


def charge(home: Home, ledger: Ledger) -> Guarantee:
    """Charge a user's own ledger with what all its rounds cost, before the first; once, however
    often it joins.
    """
    enrolment = UserEnrolment.load(home.require("user").enrolment)
    guarantee = Agreement(enrolment.settings).guarantee(enrolment.settings.rounds)
    Door(
        guarantee,
        what="updates to a federation",
        ledger=ledger,
        key=f"federation {enrolment.agreement.hex()}",
    )
    return guarantee


@dataclass(frozen=True)
class Announcement:
    """What goes to every user with an opening in `paper` mode: the model, and what became of the
    last round.
    """

    weights: NDArray[np.float64]
    last_round: int
    contributors: tuple[int, ...]

    def encode(self) -> bytes:
        """u64 round, u32 count and numbers, weights as float64."""
        writer = Writer().number("Q", self.last_round).number("I", len(self.contributors))
        for user in self.contributors:
            writer.number("I", user)
        return bytes(writer.field(self.weights.astype("<f8").tobytes()))

    @classmethod
    def decode(cls, data: bytes, *, dimension: int, users: int) -> Announcement:
        """Read it; whoever sent it is not trusted."""
        reader = Reader(data)
        last, count = reader.number("Q"), reader.number("I")
        if count > users:
            raise ProtocolError(f"malformed: at most {users} users are enrolled.")
        contributors = tuple(reader.number("I") for _ in range(count))
        weights = reader.field()
        reader.end()
        if len(weights) != 8 * dimension:
            raise ProtocolError(f"malformed: a model of {dimension} weights was expected.")
        model = np.frombuffer(weights, dtype="<f8").astype(np.float64)
        if not np.isfinite(model).all():
            raise ProtocolError("malformed: a model's weights must be finite.")
        return cls(model, last, contributors)


class UserService:
    """User n on its own machine: trains on its own rows, pads, remembers, and computes the model
    for itself.

    Protocol state, model, unsent changes and the strength found are one file, written before an
    answer leaves. Killed at any moment it comes back with the old state or the new one; asked again
    for a round it has answered, it sends the very same bytes.
    """

    def __init__(self, home: Home, data: str | Path, *, workers: int = 1) -> None:
        self.home = home.require("user")
        self.plan = plan = home.plan
        enrolment = UserEnrolment.load(home.enrolment)
        self.trainer = plan.trainer(*read_rows(data), user=home.number)
        kind: Any = PaperUser if enrolment.settings.mode == "paper" else User
        self.weights, self.turn, memory = plan.initial.copy(), 1, b""
        self._update: tuple[NDArray[np.float64], NDArray[np.bool_]] | None = None
        if home.state.exists():
            reader = unseal(b"FLUS", read_sealed(home.state))
            self.user = kind.load(reader.field(), workers=workers)
            memory, self.trainer.strength, self.turn = (
                reader.field(),
                reader.real(),
                reader.number("Q"),
            )
            self.weights = np.frombuffer(reader.field(), dtype="<f8").astype(np.float64)
            vector, support = reader.field(), reader.field()
            if vector:
                row = np.unpackbits(np.frombuffer(support, dtype=np.uint8), count=len(self.weights))
                self._update = (
                    np.frombuffer(vector, dtype="<f8").astype(np.float64),
                    row.astype(bool),
                )
        else:
            self.user = kind(enrolment, workers=workers)
            self.user.expect(model_digest(self.weights))
        self.participant = Participant(self.trainer, plan.sending, self.user.settings.code)
        if memory:
            self.participant.restore(memory)

    @property
    def over(self) -> bool:
        """Whether the last round's sum was learned. The paper's users are not told of it."""
        return self.turn > self.plan.rounds and self.user.settings.mode == "pad"

    def handle(self, message: bytes, announced: bytes = b"") -> list[Outgoing]:
        """Answer an opening with a contribution, a result with silence, anything wrong with the
        reason.
        """
        before = getattr(self.user, "ended", 0)
        answers: list[Outgoing] = self.user.receive(message)
        if getattr(self.user, "ended", 0) != before:
            self._learn()
        header = self.user.open_round
        if header is not None:
            if self.user.settings.mode == "paper":
                self._believe(announced, header.model)
            if self._update is None:
                self._update = self.participant.step(self.weights, self.turn)
            vector, support = self._update
            free = (
                self.plan.sending.free(len(vector), self.turn)
                if self.user.settings.mode == "pad"
                else None
            )
            if free is not None and self.user.settings.least_per_coordinate == 1:
                vector, support = vector[free], support[free]
            answers = self.user.contribute(vector, support=support)
        self._save()
        return answers

    def _learn(self) -> None:
        """The model that a checked sum of values gives; a round of votes or one without a sum
        changes nothing.
        """
        opened = self.user.result
        if opened is None or self.user.mask is not None:
            return
        shown = self.user.revealed
        if shown is None:
            shown = self.plan.sending.free(len(self.weights), self.turn)
        if shown is None:
            shown = np.ones(len(self.weights), dtype=bool)
        mean = np.zeros(len(self.weights))
        mean[shown] = self.user.settings.code.decode(opened.values) / len(opened.contributors)
        self.weights = self.plan.sending.apply(self.weights, mean, shown)
        self.participant.settle(
            self.turn, included=self.user.number in opened.contributors, revealed=shown
        )
        self.turn, self._update = self.turn + 1, None
        self.user.expect(model_digest(self.weights))
        if self.over:  # until then the weights are in the state
            self.plan.classifier(self.weights, self.user.settings).save(self.home.model)

    def _believe(self, announced: bytes, model: bytes) -> None:
        """The paper's users take the model that they are given, if it is the one that the round was
        opened for.
        """
        settings = self.user.settings
        news = Announcement.decode(announced, dimension=settings.dimension, users=settings.users)
        if model_digest(news.weights) != model:
            raise ProtocolError(
                "wrong model: the weights announced are not those the round was opened for."
            )
        revealed = np.ones(len(news.weights), dtype=bool)
        self.participant.settle(
            self.turn, included=self.user.number in news.contributors, revealed=revealed
        )
        self.weights, self.turn, self._update = news.weights, news.last_round + 1, None

    def _save(self) -> None:
        vector, support = (
            self._update if self._update is not None else (np.zeros(0), np.zeros(0, dtype=bool))
        )
        writer = Writer().field(self.user.dump()).field(self.participant.dump())
        writer.number("d", self.trainer.strength).number("Q", self.turn).field(
            self.weights.astype("<f8").tobytes()
        )
        writer.field(vector.astype("<f8").tobytes()).field(np.packbits(support).tobytes())
        write_sealed(self.home.state, seal(b"FLUS", bytes(writer)))


class KeygenService:
    """The key generator on its own machine; a round that was opened stays opened, whatever is
    killed.
    """

    over = False

    def __init__(self, home: Home, *, workers: int = 2) -> None:
        self.home = home.require("keygen")
        enrolment = KeygenEnrolment.load(home.enrolment)
        kind: Any = PaperKeyGenerator if enrolment.settings.mode == "paper" else KeyGenerator
        role = (
            kind.load(read_sealed(home.state), workers=workers)
            if home.state.exists()
            else kind(enrolment)
        )
        self._durable = Durable(role, home.state)

    def handle(self, message: bytes, announced: bytes = b"") -> list[Outgoing]:
        """Answer a request for a sum."""
        return self._durable.receive(message)


class HolderService:
    """A key holder on its own machine; a vote that was given stays given, whatever is killed."""

    over = False

    def __init__(self, home: Home) -> None:
        self.home = home.require("holder")
        if home.state.exists():
            role = KeyHolder.load(read_sealed(home.state))
        else:
            role = KeyHolder(HolderEnrolment.load(home.enrolment))
        self._durable = Durable(role, home.state)

    def handle(self, message: bytes, announced: bytes = b"") -> list[Outgoing]:
        """Vote, or answer with a part of the sum."""
        return self._durable.receive(message)
