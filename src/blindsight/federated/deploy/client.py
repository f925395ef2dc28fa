"""A party's end of the mailboxes: fetch, answer, acknowledge; and enrolment by invitation."""

from __future__ import annotations

import contextlib
import http.client
import logging
import ssl
import time
from collections.abc import Callable
from urllib.parse import quote

from blindsight.core.errors import BlindsightError, InvalidParameter, ProtocolError
from blindsight.federated.deploy.folders import PartyFolder, accept
from blindsight.federated.deploy.services import (
    HolderService,
    Service,
    SiteRows,
    UserService,
    alone,
)
from blindsight.federated.sums.enrolment import Role
from blindsight.federated.sums.wire import Reader, Writer

__all__ = ["BATCH_BYTES", "Client", "Connection", "enrol_by_invitation", "keep_role"]

_log = logging.getLogger(__name__)
_PATIENCE = 40.0  # seconds for one request; the server answers after 20
_SAY = 5.0
_POLL = 0.3
BATCH_BYTES = 1 << 22  # bytes of answers that are sent in one request, unless one alone is longer


class Connection:
    """HTTPS to the aggregator, by one token; kept open between requests."""

    def __init__(self, address: str, ca: str, token: str, *, largest: int = 1 << 31) -> None:
        self._host, _, self._port = address.rpartition(":")
        self._token, self._largest = token, largest
        self._connection: http.client.HTTPSConnection | None = None
        self._tls = ssl.create_default_context(cadata=ca)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_3

    def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """One request; the status, 200 or 204, and the answer."""
        try:
            if self._connection is None:
                self._connection = http.client.HTTPSConnection(
                    self._host, int(self._port), timeout=_PATIENCE, context=self._tls
                )
            headers = {"Authorization": f"Bearer {self._token}"}
            self._connection.request(method, path, body, headers)
            answer = self._connection.getresponse()
            data = answer.read(self._largest + 1)
        except BaseException:
            self.forget()
            raise
        if answer.status == 401:
            raise ProtocolError(
                "the aggregator does not know this party's token: is this its roster?"
            )
        if answer.status not in (200, 204) or len(data) > self._largest:
            self.forget()
            raise ConnectionError(f"the aggregator answered {answer.status}.")
        return answer.status, data

    def forget(self) -> None:
        """Close; the next request makes another connection."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
        self._connection = None


class Client:
    """One role's connection to its mailbox."""

    def __init__(self, folder: PartyFolder, role: Role) -> None:
        ca = (folder.path / "ca.pem").read_text(encoding="ascii")
        self._connection = Connection(folder.address, ca, folder.token)
        self._number = folder.number(role)
        self._boot, self._after = "", 0
        self.over = False

    def fetch(self) -> list[tuple[int, bytes]]:
        """Messages in the mailbox, with their positions; earlier ones are acknowledged by this."""
        where = f"as={self._number}&boot={quote(self._boot)}&after={self._after}"
        reader = Reader(self._connection.request("GET", f"/v1/messages?{where}")[1])
        boot, over, count = reader.text(), reader.number("B"), reader.number("I")
        if boot != self._boot:
            self._boot, self._after = boot, 0
        self.over = bool(over)
        messages = [(reader.number("Q"), reader.field()) for _ in range(count)]
        reader.end()
        return messages

    def send(self, answers: list[bytes]) -> None:
        """Say something, in batches."""
        while answers:
            batch, size = [answers[0]], len(answers[0])
            for data in answers[1 : _most_in(answers)]:
                if size + len(data) > BATCH_BYTES:
                    break
                batch.append(data)
                size += len(data)
            writer = Writer().number("I", len(batch))
            for data in batch:
                writer.field(data)
            self._connection.request("POST", f"/v1/answers?as={self._number}", bytes(writer))
            answers = answers[len(batch) :]

    def answer(self, answers: list[bytes], position: int) -> None:
        """Say something, and then count a message as handled."""
        self.send(answers)
        self._after = position

    def close(self) -> None:
        """Say what was handled, so that nobody waits for this party, and leave."""
        if self._after:
            where = f"as={self._number}&boot={quote(self._boot)}&after={self._after}&leave=1"
            with contextlib.suppress(OSError, http.client.HTTPException, ProtocolError):
                self._connection.request("GET", f"/v1/messages?{where}")
        self._connection.forget()


def _most_in(answers: list[bytes]) -> int:
    return min(len(answers), 4096)


def keep_role(
    folder: PartyFolder,
    role: Role,
    *,
    data: SiteRows | None = None,
    say: Callable[[str], None] = _log.warning,
    stop: Callable[[], bool] = lambda: False,
    after: Callable[[Service, int], None] | None = None,
) -> None:
    """Serve one role until it is stopped or the federation is over.

    An aggregator that is away is waited for, and that is said now and then.

    Parameters:
        folder: the party's folder, with a roster.
        role: USER or HOLDER.
        data: a user's rows: a file, or arrays.
        after: called after every message that was handled, with the service and the bytes it
            answered.
    """
    if role is Role.USER and data is None:
        raise InvalidParameter("a user needs its rows: data=.")
    with alone(folder, role), contextlib.closing(Client(folder, role)) as client:
        service: Service = UserService(folder, data) if data is not None else HolderService(folder)
        said, wait, started = -_SAY, 0.1, False
        while not (stop() or service.over or client.over):
            try:
                if not started:
                    client.send([out.data for out in service.start()])
                    started = True
                for position, message in client.fetch():
                    answers = _handled(service, message)
                    client.answer(answers, position)
                    if after is not None:
                        after(service, sum(map(len, answers)))
                wait = 0.1
            except (OSError, http.client.HTTPException) as error:
                now = time.monotonic()
                if now - said >= _SAY:
                    said = now
                    say(
                        f"{folder.name}: the aggregator at {folder.address} is away ({error}); "
                        "trying again"
                    )
                time.sleep(wait)
                wait = min(2.0, 2 * wait)


def _handled(service: Service, message: bytes) -> list[bytes]:
    """The answers; a message that makes no sense is logged and answered with nothing."""
    try:
        return [out.data for out in service.handle(message)]
    except BlindsightError as error:
        _log.warning("a message of the aggregator was refused: %s", error)
        return []


def enrol_by_invitation(
    folder: PartyFolder,
    address: str,
    ca: str,
    token: str,
    *,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Send the party's request to the aggregator, and accept the roster when it is there.

    Parameters:
        folder: the party's folder, as `join` made it.
        address, ca, token: where the aggregator listens, the certificate authority that it is
            checked by, and the invitation's token.
    """
    connection, wait, sent = Connection(address, ca, token), 0.1, False
    try:
        while not stop() and not folder.agreed:
            try:
                if not sent:
                    connection.request(
                        "POST", "/v1/requests", (folder.path / "request").read_bytes()
                    )
                    sent = True
                status, data = connection.request("GET", "/v1/roster")
                if status == 200:
                    accept(folder, data)
                    return
                wait = _POLL
            except (OSError, http.client.HTTPException):
                wait = min(2.0, 2 * wait)
            time.sleep(wait)
    finally:
        connection.forget()
