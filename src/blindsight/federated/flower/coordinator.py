"""The aggregator's rounds: open, collect, close, ask for the sum, move the model on; on disk at every step.

Transport is a `Link`: push messages, pull what came. The same code runs over Flower's grid and over a list in tests.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from blindsight.core import storage
from blindsight.core.errors import ProtocolError
from blindsight.federated.flower.homes import Home
from blindsight.federated.flower.parties import Announcement
from blindsight.federated.learning import RoundLog, model_digest, sparsity
from blindsight.federated.messages import KEYGEN, Outgoing
from blindsight.federated.protocol import Aggregator
from blindsight.federated.protocol.enrolment import AggregatorEnrolment
from blindsight.federated.wire import Writer, read_sealed, seal, unseal, write_sealed

__all__ = ["Coordinator", "Link"]

_RESEND = 30.0  # seconds after which a message that nobody answered is sent again


class Link(Protocol):
    """How messages travel."""

    def push(self, messages: Iterable[Outgoing], announced: bytes) -> None:
        """Send; parties that are away are left out."""
        ...

    def pull(self) -> list[bytes]:
        """What came since the last call."""
        ...


class Coordinator:
    """The aggregator of one federation, durable: load it again after a kill and it goes on where it was."""

    def __init__(
        self,
        home: Home,
        *,
        test: tuple[NDArray[Any], NDArray[Any]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.home, self.plan, self.test = home.require("aggregator"), home.plan, test
        self._clock, self._pause = clock, pause
        self.log: list[RoundLog] = []
        self.history: list[tuple[int, ...]] = []
        if home.state.exists():
            self._load(read_sealed(home.state))
        else:
            self.role = Aggregator(AggregatorEnrolment.load(home.enrolment))
            self.weights = self.plan.initial.copy()
            self.announcement = Announcement(self.weights, 0, (), np.zeros(len(self.weights), dtype=bool))
            self._bytes = 0
            self.save()

    @property
    def finished(self) -> bool:
        """Whether every round of the plan is done."""
        return len(self.log) >= self.plan.rounds

    def run(self, link: Link) -> NDArray[np.float64]:
        """All rounds that are left."""
        while not self.finished:
            self.round(link)
        return self.weights

    def round(self, link: Link) -> RoundLog:
        """One round, or the rest of one that was interrupted."""
        start = self._clock()
        summed = self.role.phase == "done" and self.role.round > self.announcement.last_round
        if self.role.phase in ("idle", "done") and not summed:  # a sum that came before a kill is used first
            self.role.open_round(self.role.round + 1, model_digest(self.weights))
            self._bytes = 0
            self.save()
        if self.role.phase == "open":
            self._collect(link)
            self.role.close()
            self.save()
        self._ask(link)
        return self._finish(self._clock() - start)

    def _collect(self, link: Link) -> None:
        """Wait for everybody; once N_min users are in, only while somebody new comes within the plan's patience."""
        settings = self.role.settings
        last = asked = self._clock()
        self._push(link, self.role.reopen())
        while len(self.role.contributors) < settings.users:
            before = len(self.role.contributors)
            self._take(link.pull())
            now, enough = self._clock(), len(self.role.contributors) >= settings.least_users
            if len(self.role.contributors) > before:
                last = now
            if enough and now - last >= self.plan.patience:
                break
            if now - asked >= _RESEND:
                asked = now
                self._push(link, self.role.reopen())
            self._pause(0.2)

    def _ask(self, link: Link) -> None:
        """Ask for the sum until it comes; the same question has the same answer."""
        asked = -float("inf")
        while self.role.phase == "closed":
            if self._clock() - asked >= _RESEND:
                asked = self._clock()
                self._push(link, self.role.close())
            self._take(link.pull())
            self._pause(0.2)

    def _push(self, link: Link, messages: list[Outgoing]) -> None:
        link.push(messages, self.announcement.encode())

    def _take(self, messages: list[bytes]) -> None:
        for data in messages:
            before = self.role.contributors
            self.role.receive(data)
            if self.role.contributors != before:
                self._bytes += len(data)
        if messages:
            self.save()

    def _finish(self, seconds: float) -> RoundLog:
        result, settings = self.role.result, self.role.settings
        if result is None:
            raise ProtocolError("the round has no result.")
        mean = settings.code.decode(result.values) / len(result.contributors)
        self.weights = self.plan.sending.apply(self.weights, mean, result.revealed)
        self.announcement = Announcement(self.weights, self.role.round, result.contributors, result.revealed)
        entry = RoundLog(
            round=self.role.round,
            users=len(result.contributors),
            sparsity=sparsity(result.values),
            model_sparsity=sparsity(self.weights),
            revealed=float(result.revealed.mean()),
            bytes=self._bytes / len(result.contributors),
            seconds=seconds,
            accuracy=None if self.test is None else self.plan.accuracy(self.weights, *self.test),
        )
        self.log.append(entry)
        self.history.append(result.contributors)
        self.save()
        return entry

    def save(self) -> None:
        """State, model and status: the first is what counts, the others are for readers."""
        writer = Writer().field(self.role.dump()).field(self.announcement.encode()).number("Q", self._bytes)
        rounds = [{**asdict(entry), "contributors": who} for entry, who in zip(self.log, self.history, strict=True)]
        writer.field(json.dumps(rounds).encode())
        write_sealed(self.home.state, seal(b"COOR", bytes(writer)))
        status = {
            "round": self.role.round,
            "phase": self.role.phase,
            "users_in": len(self.role.contributors),
            "users": self.role.settings.users,
            "planned": self.plan.rounds,
            "rounds": rounds,
            "refused": len(self.role.refusals),
        }
        storage.write_atomically(self.home.path / "status.json", json.dumps(status).encode())
        storage.save(
            self.home.path / "model.safetensors",
            kind="federated weights",
            arrays={"weights": self.weights, "scale": self.plan.scale},
            fields={"round": len(self.log), "classes": self.plan.classes, "features": self.plan.features},
        )

    def _load(self, data: bytes) -> None:
        reader = unseal(b"COOR", data)
        self.role = Aggregator.load(reader.field())
        settings = self.role.settings
        self.announcement = Announcement.decode(reader.field(), dimension=settings.dimension, users=settings.users)
        self.weights, self._bytes = self.announcement.weights, reader.number("Q")
        rounds = json.loads(reader.field())
        self.history = [tuple(entry.pop("contributors")) for entry in rounds]
        self.log = [RoundLog(**entry) for entry in rounds]
        reader.end()

    def party(self, name: str) -> int:
        """The address of the party whose folder has that name."""
        return KEYGEN if name == "keygen" else int(name.removeprefix("user-"))
