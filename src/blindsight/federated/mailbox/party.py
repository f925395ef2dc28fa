"""A party's end: fetch, handle, answer, again; whatever happens to the network or to the
aggregator.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from blindsight.core.errors import BlindsightError, HostileFile, ProtocolError
from blindsight.federated.flower.homes import Home
from blindsight.federated.flower.parties import Service, alone, open_service
from blindsight.federated.flower.processes import prepare
from blindsight.federated.wire import Reader, Writer

__all__ = ["Client", "Connection", "connect", "keep_party"]

_log = logging.getLogger(__name__)
_PATIENCE = 40.0  # seconds for one request; the server answers after 20
_SAY = 5.0


class Client:
    """One party's connection to its box."""

    def __init__(self, home: Home, *, largest: int = 1 << 31) -> None:
        self.home, self._largest = home, largest
        self._boot, self._after = "", 0
        self._connection: http.client.HTTPSConnection | None = None
        try:
            self._token = (home.path / "token").read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise HostileFile(f"{home.path} has no token: ask for a new invitation.") from error
        self._tls = ssl.create_default_context(cafile=str(home.path / "ca.pem"))
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_3

    def fetch(self) -> list[tuple[int, bytes, bytes]]:
        """Messages in the box: place, message, announcement.

        What came before is acknowledged by this.
        """
        reader = Reader(
            self._request("GET", f"/v1/messages?boot={quote(self._boot)}&after={self._after}")
        )
        boot, count = reader.text(), reader.number("I")
        if boot != self._boot:
            self._boot, self._after = boot, 0
        found = []
        for _ in range(count):
            place, inside = reader.number("Q"), Reader(reader.field())
            found.append((place, inside.field(), inside.field()))
        reader.end()
        return found

    def answer(self, answers: list[bytes], place: int) -> None:
        """Say something, and then count the message as handled."""
        if answers:
            writer = Writer().number("I", len(answers))
            for data in answers:
                writer.field(data)
            self._request("POST", "/v1/answers", bytes(writer))
        self._after = place

    def _request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        try:
            if self._connection is None:
                host, _, port = self.home.about["address"].rpartition(":")
                self._connection = http.client.HTTPSConnection(
                    host, int(port), timeout=_PATIENCE, context=self._tls
                )
            self._connection.request(method, path, body, {"Authorization": f"Bearer {self._token}"})
            answer = self._connection.getresponse()
            data = answer.read(self._largest + 1)
        except BaseException:
            self._forget()
            raise
        if answer.status == 401:
            raise ProtocolError(
                "the aggregator does not know this party's token: ask for a new invitation."
            )
        if answer.status not in (200, 204) or len(data) > self._largest:
            self._forget()
            raise ConnectionError(f"the aggregator answered {answer.status}.")
        return data

    def close(self) -> None:
        """Say what was handled, so that nobody waits for this party, and leave."""
        if self._connection is not None and self._after:
            with contextlib.suppress(OSError, http.client.HTTPException, ProtocolError):
                self._request(
                    "GET", f"/v1/messages?boot={quote(self._boot)}&after={self._after}&leave=1"
                )
        self._forget()

    def _forget(self) -> None:
        """The next request makes another connection."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
        self._connection = None


class Connection(Protocol):
    """A party's end of a carrier. An aggregator that is away shows as an `OSError`."""

    def fetch(self) -> list[tuple[int, bytes, bytes]]:
        """Messages that wait: place, message, announcement; nothing after a while."""
        ...

    def answer(self, answers: list[bytes], place: int) -> None:
        """Say something, and count the message as handled."""
        ...

    def close(self) -> None:
        """Leave."""
        ...


def connect(home: Home) -> Connection:
    """Over the carrier that the federation chose."""
    if home.about["carrier"] == "mailbox":
        return Client(home)
    prepare(home)
    from blindsight.federated.flower.node import NodeClient

    return NodeClient(home)


def keep_party(
    home: Home,
    *,
    data: str | Path | None = None,
    say: Callable[[str], None] = _log.warning,
    stop: Callable[[], bool] = lambda: False,
    after: Callable[[Service, int], None] | None = None,
) -> None:
    """Serve one party until it is stopped, or a user until it has learned the last round.

    An aggregator that is away is waited for, and that is said now and then.

    `after` is told of every message that was handled: the party as it is now, and how many bytes it
    answered.
    """
    with alone(home), contextlib.closing(connect(home)) as client:
        service: Service = open_service(home, data)
        said, wait = -_SAY, 0.1
        while not (stop() or service.over):
            try:
                for place, message, announced in client.fetch():
                    answers = _handled(service, message, announced)
                    client.answer(answers, place)
                    if after is not None:
                        after(service, sum(map(len, answers)))
                wait = 0.1
            except (OSError, http.client.HTTPException) as error:
                now = time.monotonic()
                if now - said >= _SAY:
                    said = now
                    say(
                        f"{home.name}: the aggregator at {home.about['address']} is away "
                        f"({error}); trying again"
                    )
                time.sleep(wait)
                wait = min(2.0, 2 * wait)


def _handled(service: Service, message: bytes, announced: bytes) -> list[bytes]:
    """The answers; a message that makes no sense is logged and answered with nothing."""
    try:
        return [out.data for out in service.handle(message, announced)]
    except BlindsightError as error:
        _log.warning("a message of the aggregator was refused: %s", error)
        return []
