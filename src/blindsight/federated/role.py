"""What the roles have in common: an address, an agreement, an identity, and a polite way to
refuse.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from blindsight.core.errors import ProtocolError
from blindsight.federated.messages import Code, Header, Kind, Message, Outgoing, Refusal, Refused
from blindsight.federated.settings import Settings
from blindsight.federated.signatures import Identity
from blindsight.federated.wire import write_sealed

__all__ = ["Durable", "Role", "Stateful"]

_log = logging.getLogger(__name__)


class Role:
    """A party that takes messages and returns messages.

    `receive` never raises on what comes from outside: a message that breaks the rules is refused
    with a code and a reason, the refusal goes back, signed, to the message's sender and to the log,
    and the round goes on.
    """

    number: int
    settings: Settings
    agreement: bytes
    identity: Identity
    largest_message: int

    def __init__(self) -> None:
        self.refusals: list[str] = []

    def receive(self, data: bytes) -> list[Outgoing]:
        """Handle one message; what comes back is to be sent, after the state was saved."""
        try:
            message = Message.decode(data, largest=self.largest_message)
        except ProtocolError as error:
            self._note(str(error))
            return []
        try:
            if message.header.kind is Kind.REFUSED:
                return self._refused_by(message)
            return self._handle(message)
        except ProtocolError as error:
            self._note(str(error))
            code = error.code if isinstance(error, Refused) else Code.MALFORMED
            body = Refusal(code, str(error), self._at()).encode()
            return [self._send(message.header.sender, Kind.REFUSED, body, message.header)]

    def _handle(self, message: Message) -> list[Outgoing]:
        raise AssertionError("each role handles its own messages")

    def _at(self) -> int:
        """The last round this party knows the end of."""
        return 0

    def _refused_by(self, message: Message) -> list[Outgoing]:
        """Note that somebody refused ours; unsigned gossip changes nothing."""
        self._note(f"refused by {message.header.sender}: {Refusal.decode(message.body).reason}")
        return []

    def _note(self, reason: str) -> None:
        if len(self.refusals) < 10_000:  # a flood must not fill the memory
            self.refusals.append(reason)
        _log.info("party %d refused a message: %s", self.number, reason)

    def _send(self, to: int, kind: Kind, body: bytes, about: Header) -> Outgoing:
        header = replace(about, kind=kind, agreement=self.agreement, sender=self.number)
        return Outgoing(to, Message.make(header, body, self.identity).encode())


class Stateful(Protocol):
    """A role that can be saved."""

    def receive(self, data: bytes) -> list[Outgoing]:
        """Handle one message."""
        ...

    def dump(self) -> bytes:
        """All of its state as sealed bytes."""
        ...


class Durable:
    """A role whose state is on disk before any answer leaves: kill it at any moment and load the
    file again.
    """

    def __init__(self, role: Stateful, path: Path) -> None:
        self.role = role
        self.path = Path(path)
        self.save()

    def receive(self, data: bytes) -> list[Outgoing]:
        """Handle, save, answer: in that order."""
        return self.act(lambda: self.role.receive(data))

    def act(self, step: Callable[[], list[Outgoing]]) -> list[Outgoing]:
        """Do one step of the role (`open_round`, `contribute`, `close`), save, and only then hand
        out its messages.
        """
        answers = step()
        self.save()
        return answers

    def save(self) -> None:
        """Write the state; atomic and synced."""
        write_sealed(self.path, self.role.dump())
