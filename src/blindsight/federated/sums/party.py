"""The common base of users, holders and the aggregator: messages in, signed messages out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from blindsight.core.errors import ProtocolError
from blindsight.federated.sums.enrolment import Enrolment, Role
from blindsight.federated.sums.messages import (
    Code,
    Header,
    Kind,
    Message,
    Outgoing,
    Refusal,
    Refused,
)
from blindsight.federated.sums.wire import write_sealed

__all__ = ["Durable", "Party", "Stateful"]

_log = logging.getLogger(__name__)
_MOST_REFUSALS = 10_000


class Party:
    """A party that takes messages and returns messages, with no network inside.

    `receive` never raises on an untrusted message: one that breaks a rule is answered by a signed
    refusal with a code and a reason, and the round continues.
    """

    role: Role
    largest_message: int

    def __init__(self, enrolment: Enrolment) -> None:
        self.enrolment = enrolment
        self.settings, self.agreement = enrolment.settings, enrolment.roster.agreement
        self.identity, self.verifiers = enrolment.keys.identity, enrolment.roster.verifiers
        self.number = enrolment.number(self.role)
        self.refusals: list[str] = []

    def receive(self, data: bytes) -> list[Outgoing]:
        """Handle one message; the returned messages must be sent after the state was saved."""
        try:
            message = Message.decode(data, largest=self.largest_message)
        except ProtocolError as error:
            self._note(str(error))
            return []
        try:
            if message.header.agreement != self.agreement:
                raise Refused(Code.AGREEMENT, "the message is bound to another agreement.")
            message.require_signature(self.verifiers)
            if message.header.kind is Kind.REFUSED:
                return self._refused_by(message)
            return self._handle(message)
        except ProtocolError as error:
            self._note(str(error))
            if message.header.kind is Kind.REFUSED:  # a refusal is never answered by another
                return []
            code = error.code if isinstance(error, Refused) else Code.MALFORMED
            body = Refusal(code, str(error), self._at()).encode()
            return [self._send(message.header.sender, Kind.REFUSED, body, message.header)]

    def _handle(self, message: Message) -> list[Outgoing]:
        raise AssertionError("each role handles its own messages")

    def _at(self) -> int:
        """The last round whose end this party knows."""
        return 0

    def _refused_by(self, message: Message) -> list[Outgoing]:
        reason = Refusal.decode(message.body).reason
        self._note(f"refused by {message.header.sender}: {reason}")
        return []

    def _note(self, reason: str) -> None:
        if len(self.refusals) < _MOST_REFUSALS:
            self.refusals.append(reason)
        _log.info("party %d: %s", self.number, reason)

    def _send(self, to: int, kind: Kind, body: bytes, context: Header) -> Outgoing:
        header = replace(context, kind=kind, agreement=self.agreement, sender=self.number)
        return Outgoing(to, Message.make(header, body, self.identity).encode())


class Stateful(Protocol):
    """A role that can be saved."""

    def receive(self, data: bytes) -> list[Outgoing]: ...

    def dump(self) -> bytes:
        """The whole state as sealed bytes."""
        ...


class Durable:
    """A role whose state is written to disk before any answer is sent.

    The process may be killed at any moment; the file then holds the old state or the new one.
    """

    def __init__(self, role: Stateful, path: Path) -> None:
        self.role = role
        self.path = Path(path)
        self.save()

    def receive(self, data: bytes) -> list[Outgoing]:
        """Handle one message, save the state, and return the answers."""
        return self.act(lambda: self.role.receive(data))

    def act(self, step: Callable[[], list[Outgoing]]) -> list[Outgoing]:
        """Do one step of the role, save the state, and return the step's messages."""
        answers = step()
        self.save()
        return answers

    def save(self) -> None:
        """Replace the state file, atomically and synced."""
        write_sealed(self.path, self.role.dump())
