"""The aggregator's rounds: open, collect, close, have the sum opened, move the model on; on disk at
every step.

Transport is a `Link`: push messages, pull what came. The same code runs over any carrier and over a
list in tests. A contribution is appended to a file when it comes; the state is written when a round
opens, closes and ends.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from blindsight.core import storage
from blindsight.core.errors import ProtocolError
from blindsight.federated.enrolment import AggregatorEnrolment
from blindsight.federated.flower.homes import Home
from blindsight.federated.flower.parties import Announcement
from blindsight.federated.flower.suspicion import Suspicion
from blindsight.federated.learning import RoundLog, model_digest, sparsity
from blindsight.federated.messages import KEYGEN, Outgoing, Purpose, holder
from blindsight.federated.paper import PaperAggregator
from blindsight.federated.protocol import Aggregator
from blindsight.federated.protocol.kept import InFiles
from blindsight.federated.wire import Writer, read_sealed, seal, unseal, write_sealed

__all__ = ["Coordinator", "Link", "party"]

_log = logging.getLogger(__name__)
_RESEND = 30.0  # seconds after which a message that nobody answered is sent again
_TOLD = "told.json"
_COMPLAINTS = 1.5  # seconds after the last round in which users may say that its sum is wrong
_SAY, _SOON = 5.0, 2.0  # seconds between two words about who is missing, and before the first


class Link(Protocol):
    """How messages travel."""

    @property
    def seen(self) -> Collection[int]:
        """Parties that have been there."""
        ...

    def push(self, messages: Iterable[Outgoing], announced: bytes) -> None:
        """Send; parties that are away are left out."""
        ...

    def pull(self) -> list[bytes]:
        """What came since the last call."""
        ...

    def back(self) -> set[int]:
        """Parties that came back and may have lost what they were sent."""
        ...

    def unread(self) -> Collection[int]:
        """Parties that have not yet handled all that was sent to them."""
        ...


class Coordinator:
    """The aggregator of one federation, durable: load it again after a kill and it goes on where it
    was.
    """

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
        self.mask: NDArray[np.bool_] | None = (
            None  # between a round of votes and its round of values
        )
        self._used = self._bytes = (
            0  # the last round of the protocol that was made use of; bytes of this one
        )
        self.waiting = ""
        self.suspicion = Suspicion()
        self._tried: list[int] = []  # the groups in the last sum
        self._before: NDArray[np.float64] | None = (
            None  # the model before the last sum, should users find it wrong
        )
        if home.state.exists():
            self._load(read_sealed(home.state))
        else:
            enrolment = AggregatorEnrolment.load(home.enrolment)
            self.role: Any = (
                PaperAggregator(enrolment)
                if enrolment.settings.mode == "paper"
                else Aggregator(enrolment, kept=InFiles(home.path))
            )
            self.weights = self.plan.initial.copy()
            self.save()

    @property
    def _withdrawn(self) -> bool:
        """Whether users found the last sum wrong."""
        return bool(self.role.settings.mode == "pad" and self.role.withdrawn)

    @property
    def excluded(self) -> list[int]:
        """Users who are left out: their groups spoil sums."""
        if not self.suspicion.excluded:
            return []
        groups = self.role.settings.groups()
        return [user for i in sorted(self.suspicion.excluded) for user in groups[i]]

    @property
    def finished(self) -> bool:
        """Whether every round of the plan is done."""
        return len(self.log) >= self.plan.rounds

    def run(self, link: Link, linger: float = 3.0) -> NDArray[np.float64]:
        """All rounds that are left; then, for at most `linger` seconds, be there for users who lack
        the last result.
        """
        if self.finished:  # started again after the end: boxes are empty
            told = self._told()
            self._push(link, [message for message in self.role.results() if message.to not in told])
        while True:
            while not self.finished:
                self.round(link)
            self._settle(link, linger)
            if self.finished:
                return self.weights

    def round(self, link: Link) -> RoundLog:
        """One round, or the rest of one that was interrupted; with votes, the two that belong
        together.
        """
        start = self._clock()
        while True:
            self._advance(link)
            votes, self._used = self.role.purpose is Purpose.VOTES, self.role.round
            if self.role.result is None:
                self._failed()
                self.save()
            elif votes:
                self._tried = self.role.groups_in
                self.mask = self.role.result.values >= self.role.settings.least_per_coordinate
                self.save()
                if not self.mask.any():
                    return self._finish(self._clock() - start)
            else:
                return self._finish(self._clock() - start)

    def _advance(self, link: Link) -> None:
        """One round of the protocol to its end."""
        if self._withdrawn:
            return
        if self.role.phase in ("idle", "done") and self.role.round <= self._used:
            self._open()
        if self.role.phase == "open":
            self._collect(link)
        if self.role.phase == "open":
            self._close()
        self._ask(link)
        self.save()
        self._push(link, self.role.results())

    def _close(self) -> None:
        settings = self.role.settings
        if settings.mode == "paper":
            self.role.close()
        else:
            sizes = [len(group) for group in settings.groups()]
            chosen = self.suspicion.choose(self.role.complete, sizes, settings.least_users)
            self.role.seal(
                chosen if self.mask is None else self._tried
            )  # values of those who voted
        self.save()

    def _failed(self) -> None:
        """The last round of the protocol gave no sum, or one that users find wrong: somebody sent
        nonsense.
        """
        settings = self.role.settings
        if settings.mode == "paper":
            raise ProtocolError("the round has no result.")
        tried = self._tried if self.role.withdrawn else self.role.groups_in
        if self.role.withdrawn and self.mask is None and self._before is not None:
            self.weights, self._before = self._before, None
            del self.log[-1], self.history[-1]
        self.role.withdrawn, self.mask = (
            False,
            None,
        )  # fewer users may be next, and they vote for themselves
        if settings.unguarded:
            raise ProtocolError(
                "a round gave no sum, and without groups and noise none follows: set it up again."
            )
        found = self.suspicion.failed(tried)
        _log.warning("round %d gave no sum; it is tried again with fewer users", self.role.round)
        if found is not None:
            _log.warning("left out from now on, one of them spoils sums: users %s", self.excluded)
            if settings.users - len(self.excluded) < settings.least_users:
                raise ProtocolError(
                    f"too few users are left without {self.excluded}, one of whom spoils every sum."
                )

    def late(self, link: Link) -> list[int]:
        """Users who have not fetched the last result."""
        return sorted(
            set(link.unread()) & set(range(1, self.role.settings.users + 1)) - set(self.excluded)
        )

    def _told(self) -> set[int]:
        """Users who had fetched the last result before a stop."""
        path = self.home.path / _TOLD
        return set(json.loads(path.read_bytes())) if self.finished and path.exists() else set()

    def _settle(self, link: Link, linger: float) -> None:
        """After the last round: a moment for users to say that its sum is wrong, and time for those
        who are late.
        """
        start, everybody, told = (
            self._clock(),
            set(range(1, self.role.settings.users + 1)),
            self._told(),
        )
        while not self._withdrawn:
            late = self.late(link)
            self._take(
                link
                # after the look: a user who is not late may have said that it lacks an earlier
                # result
            )
            late = late or self.late(link)
            if everybody - set(late) != told:
                told = everybody - set(late)
                storage.write_atomically(self.home.path / _TOLD, json.dumps(sorted(told)).encode())
            if self._clock() - start >= (linger if late else _COMPLAINTS):
                break
            self._pause(0.05)
        if self._withdrawn:
            self._failed()
            self.save()

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
        self.role.open_round(
            self.role.round + 1, model_digest(self.weights), length=length, purpose=purpose
        )
        if self.mask is None:
            self._bytes = 0
        self.save()

    def _collect(self, link: Link) -> None:
        """Wait for everybody; once enough are in, only while somebody new comes within the plan's
        patience.
        """
        settings = self.role.settings
        last = asked = self._clock()
        said = last - _SAY + _SOON
        self._push(link, self.role.reopen())
        while self.role.phase == "open" and len(self._here()) < settings.users - len(self.excluded):
            before = len(self.role.contributors)
            self._take(link)
            now = self._clock()
            if len(self.role.contributors) > before:
                last = now
            if now - last >= self.plan.patience and self._enough():
                break
            if now - last >= self.plan.patience and self.mask is not None and self._whole():
                self.mask, last, asked = (
                    None,
                    now,
                    now,
                )  # one who voted does not come back: the others vote again
                self._open()
                self._push(link, self.role.reopen())
            returned = link.back()
            if self.role.phase != "open":
                break
            if now - asked >= _RESEND:
                asked = now
                self._push(link, self.role.reopen())
            elif returned:
                self._push(link, [m for m in self.role.reopen() if m.to in returned])
            if now - said >= _SAY:
                said = now
                away = set(range(1, settings.users + 1)) - self._here() - set(self.excluded)
                self._say(sorted(away), "contribution")
            self._pause(0.05)

    def _here(self) -> set[int]:
        """Who has contributed, of those who count."""
        return set(self.role.contributors) - set(self.excluded)

    def _enough(self) -> bool:
        settings = self.role.settings
        if settings.mode == "paper":
            return bool(self.role.enough)
        return self._whole() and self._here().issuperset(self.role.voters)

    def _whole(self) -> bool:
        """Whether enough users are here, in whole groups."""
        settings = self.role.settings
        return len(settings.whole_groups(self._here())) >= int(settings.least_users)

    def _ask(self, link: Link) -> None:
        """Ask for what the sum needs until it is there; the same question has the same answer."""
        asked, said = -float("inf"), self._clock() - _SAY + _SOON
        while self.role.phase == "closed":
            now, returned = self._clock(), link.back()
            missing = self.role.awaited()
            again = (
                missing
                if now - asked >= _RESEND
                else [address for address in missing if address in returned]
            )
            asked = now if now - asked >= _RESEND else asked
            for address in again:
                self._push(link, self.role.ask(address))
            if now - said >= _SAY:
                said = now
                self._say(missing, "answer")
            self._take(link)
            self._pause(0.05)

    def _say(self, missing: list[int], what: str) -> None:
        """Whom the round waits for: in the log, and in the status that `watch` shows."""
        self.waiting = (
            f"waiting for the {what} of {', '.join(map(_name, missing[:8]))}" if missing else ""
        )
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
        if arrived:
            self._status()

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
        if settings.mode == "pad":
            self._tried = self.role.groups_in
            self.suspicion.succeeded(self._tried)
        self._before = self.weights
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
        return [
            {**asdict(entry), "contributors": who}
            for entry, who in zip(self.log, self.history, strict=True)
        ]

    def save(self) -> None:
        """State, model and status: the first is what counts, the others are for readers."""
        writer = Writer().field(self.role.dump()).field(self.weights.astype("<f8").tobytes())
        writer.field(b"" if self.mask is None else np.packbits(self.mask).tobytes())
        writer.number("Q", self._used).number("Q", self._bytes)
        writer.field(b"" if self._before is None else self._before.astype("<f8").tobytes())
        for groups in (self.suspicion.excluded, self.suspicion.suspects, self._tried):
            writer.field(np.array(sorted(groups), dtype="<u4").tobytes())
        write_sealed(
            self.home.state, seal(b"COOR", bytes(writer.field(json.dumps(self._rounds()).encode())))
        )
        self._status()
        self.plan.classifier(self.weights, self.role.settings).save(self.home.model)

    def _status(self) -> None:
        status = {
            "round": len(self.log) + 1,
            "phase": self.role.phase,
            "users_in": len(self.role.contributors),
            "users": self.role.settings.users,
            "planned": self.plan.rounds,
            "rounds": self._rounds(),
            "refused": len(self.role.refusals),
            "excluded": self.excluded,
            "waiting": self.waiting,
        }
        storage.write_atomically(self.home.path / "status.json", json.dumps(status).encode())

    def _load(self, data: bytes) -> None:
        reader = unseal(b"COOR", data)
        dumped = reader.field()
        paper = AggregatorEnrolment.load(self.home.enrolment).settings.mode == "paper"
        self.role = (
            PaperAggregator.load(dumped)
            if paper
            else Aggregator.load(dumped, kept=InFiles(self.home.path))
        )
        self.weights = np.frombuffer(reader.field(), dtype="<f8").astype(np.float64)
        mask = reader.field()
        if mask:
            self.mask = np.unpackbits(
                np.frombuffer(mask, dtype=np.uint8), count=len(self.weights)
            ).astype(bool)
        self._used, self._bytes = reader.number("Q"), reader.number("Q")
        before = reader.field()
        self._before = np.frombuffer(before, dtype="<f8").astype(np.float64) if before else None
        if self.role.phase in ("open", "closed") and not paper:
            self._bytes += self.role.kept.size  # what came in before the kill
        excluded, suspects, self._tried = (
            np.frombuffer(reader.field(), dtype="<u4").tolist() for _ in range(3)
        )
        self.suspicion = Suspicion(excluded=excluded, suspects=suspects)
        rounds = json.loads(reader.field())
        self.history = [tuple(entry.pop("contributors")) for entry in rounds]
        self.log = [RoundLog(**entry) for entry in rounds]
        reader.end()


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
