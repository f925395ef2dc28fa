"""The aggregator's rounds: open, collect, close, have the sum opened, move the model on; on disk at every step.

Transport is a `Link`: push messages, pull what came. The same code runs over any carrier and over a list in tests.
While contributions come in, the state is written every few seconds: what a kill loses, users send again, byte for byte.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from blindsight.core import storage
from blindsight.core.errors import ProtocolError
from blindsight.federated.enrolment import AggregatorEnrolment
from blindsight.federated.flower.homes import Home
from blindsight.federated.flower.parties import Announcement
from blindsight.federated.learning import RoundLog, model_digest, sparsity
from blindsight.federated.messages import KEYGEN, Outgoing, Purpose, holder
from blindsight.federated.paper import PaperAggregator
from blindsight.federated.protocol import Aggregator
from blindsight.federated.wire import Writer, read_sealed, seal, unseal, write_sealed

__all__ = ["Coordinator", "Link", "party"]

_log = logging.getLogger(__name__)
_RESEND = 30.0  # seconds after which a message that nobody answered is sent again
_SAVE = 2.0  # seconds between two states while contributions come in
_SAY = 5.0  # seconds between two words about who is missing


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
        self.mask: NDArray[np.bool_] | None = None  # between a round of votes and its round of values
        self._used = self._bytes = 0  # the last round of the protocol that was made use of; bytes of this one
        self.waiting = ""
        if home.state.exists():
            self._load(read_sealed(home.state))
        else:
            enrolment = AggregatorEnrolment.load(home.enrolment)
            self.role: Any = _kind(enrolment)(enrolment)
            self.weights = self.plan.initial.copy()
            self.save()
        self._saved = self._clock()

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
        """One round, or the rest of one that was interrupted; with votes, the two that belong together."""
        start = self._clock()
        while True:
            self._advance(link)
            votes, self._used = self.role.purpose is Purpose.VOTES, self.role.round
            if self.role.result is None:
                _log.warning("round %d was opened and gave no sum; it is tried again", self.role.round)
                self.save()
            elif votes:
                self.mask = self.role.result.values >= self.role.settings.least_per_coordinate
                self.save()
                if not self.mask.any():
                    return self._finish(self._clock() - start)
            else:
                return self._finish(self._clock() - start)

    def _advance(self, link: Link) -> None:
        """One round of the protocol to its end."""
        if self.role.phase in ("idle", "done") and self.role.round <= self._used:
            self._open()
        if self.role.phase == "open":
            self._collect(link)
            self.role.close()
            self.save()
        self._ask(link)
        self.save()
        self._push(link, self.role.results())

    def _open(self) -> None:
        settings, length, purpose = self.role.settings, len(self.weights), Purpose.VALUES
        free = self.plan.sending.free(length, len(self.log) + 1) if settings.mode == "pad" else None
        if settings.least_per_coordinate > 1:
            if self.mask is None:
                purpose = Purpose.VOTES
            else:
                length = int(self.mask.sum())
        elif free is not None:
            length = int(free.sum())
        self.role.open_round(self.role.round + 1, model_digest(self.weights), length=length, purpose=purpose)
        if self.mask is None:
            self._bytes = 0
        self.save()

    def _collect(self, link: Link) -> None:
        """Wait for everybody; once enough are in, only while somebody new comes within the plan's patience."""
        settings = self.role.settings
        last = asked = said = self._clock()
        self._push(link, self.role.reopen())
        while len(self.role.contributors) < settings.users:
            before = len(self.role.contributors)
            self._take(link)
            now = self._clock()
            if len(self.role.contributors) > before:
                last = now
            if self.role.enough and now - last >= self.plan.patience:
                break
            if now - asked >= _RESEND:
                asked = now
                self._push(link, self.role.reopen())
            if now - said >= _SAY:
                said = now
                self._say(sorted(set(range(1, settings.users + 1)) - set(self.role.contributors)), "contribution")
            self._pause(0.05)

    def _ask(self, link: Link) -> None:
        """Ask for what the sum needs until it is there; the same question has the same answer."""
        asked = said = -float("inf")
        while self.role.phase == "closed":
            now = self._clock()
            if now - asked >= _RESEND:
                asked = now
                self._push(link, self.role.close())
            if now - said >= _SAY:
                said = now
                self._say(sorted({m.to for m in self.role.close()}), "answer")
            self._take(link)
            self._pause(0.05)

    def _say(self, missing: list[int], what: str) -> None:
        """Whom the round waits for: in the log, and in the status that `watch` shows."""
        self.waiting = f"waiting for the {what} of {', '.join(map(_name, missing[:8]))}" if missing else ""
        if len(missing) > 8:
            self.waiting += f" and {len(missing) - 8} others"
        _log.info("%s", self.waiting)
        self._status()

    def _push(self, link: Link, messages: list[Outgoing]) -> None:
        announced = b""
        if self.role.settings.mode == "paper":
            contributors = self.history[-1] if self.history else ()
            announced = Announcement(self.weights, len(self.log), contributors).encode()
        link.push(messages, announced)

    def _take(self, link: Link) -> None:
        arrived = link.pull()
        for data in arrived:
            before, phase = self.role.contributors, self.role.phase
            answers = self.role.receive(data)
            if self.role.contributors != before:
                self._bytes += len(data)
            if self.role.phase != phase:
                self.save()
            if answers:
                self._push(link, answers)
        if arrived and self._clock() - self._saved >= _SAVE:
            self.save()

    def _finish(self, seconds: float) -> RoundLog:
        result, settings = self.role.result, self.role.settings
        if result is None:
            raise ProtocolError("the round has no result.")
        shown = self.mask if self.mask is not None else None
        if shown is None and settings.mode == "pad":
            shown = self.plan.sending.free(len(self.weights), len(self.log) + 1)
        if shown is None:
            shown = np.ones(len(self.weights), dtype=bool)
        values = np.zeros(len(self.weights), dtype=np.int64)
        if shown.any():
            values[shown] = result.values
        mean = settings.code.decode(values) / len(result.contributors)
        self.weights = self.plan.sending.apply(self.weights, mean, shown)
        entry = RoundLog(
            round=len(self.log) + 1,
            users=len(result.contributors),
            sparsity=sparsity(values),
            model_sparsity=sparsity(self.weights),
            revealed=float(shown.mean()),
            bytes=self._bytes / len(result.contributors),
            seconds=seconds,
            accuracy=None if self.test is None else self.plan.accuracy(self.weights, *self.test),
        )
        self.log.append(entry)
        self.history.append(result.contributors)
        self.mask, self.waiting = None, ""
        self.save()
        return entry

    def _rounds(self) -> list[dict[str, Any]]:
        return [{**asdict(entry), "contributors": who} for entry, who in zip(self.log, self.history, strict=True)]

    def save(self) -> None:
        """State, model and status: the first is what counts, the others are for readers."""
        writer = Writer().field(self.role.dump()).field(self.weights.astype("<f8").tobytes())
        writer.field(b"" if self.mask is None else np.packbits(self.mask).tobytes())
        writer.number("Q", self._used).number("Q", self._bytes)
        write_sealed(self.home.state, seal(b"COOR", bytes(writer.field(json.dumps(self._rounds()).encode()))))
        self._saved = self._clock()
        self._status()
        storage.save(
            self.home.path / "model.safetensors",
            kind="federated weights",
            arrays={"weights": self.weights, "scale": self.plan.scale},
            fields={"round": len(self.log), "classes": self.plan.classes, "features": self.plan.features},
        )

    def _status(self) -> None:
        status = {
            "round": len(self.log) + 1,
            "phase": self.role.phase,
            "users_in": len(self.role.contributors),
            "users": self.role.settings.users,
            "planned": self.plan.rounds,
            "rounds": self._rounds(),
            "refused": len(self.role.refusals),
            "waiting": self.waiting,
        }
        storage.write_atomically(self.home.path / "status.json", json.dumps(status).encode())

    def _load(self, data: bytes) -> None:
        reader = unseal(b"COOR", data)
        dumped = reader.field()
        self.role = _kind(AggregatorEnrolment.load(self.home.enrolment)).load(dumped)
        self.weights = np.frombuffer(reader.field(), dtype="<f8").astype(np.float64)
        mask = reader.field()
        if mask:
            self.mask = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), count=len(self.weights)).astype(bool)
        self._used, self._bytes = reader.number("Q"), reader.number("Q")
        rounds = json.loads(reader.field())
        self.history = [tuple(entry.pop("contributors")) for entry in rounds]
        self.log = [RoundLog(**entry) for entry in rounds]
        reader.end()


def _kind(enrolment: AggregatorEnrolment) -> type[Aggregator] | type[PaperAggregator]:
    return PaperAggregator if enrolment.settings.mode == "paper" else Aggregator


def party(name: str) -> int:
    """The address of the party whose folder has that name."""
    if name == "keygen":
        return KEYGEN
    role, _, number = name.rpartition("-")
    return holder(int(number)) if role == "holder" else int(number)


def _name(address: int) -> str:
    if address == KEYGEN:
        return "keygen"
    return f"holder-{address - holder(0)}" if address > holder(0) else f"user-{address}"
