"""The aggregator's HTTPS server: a mailbox for each party, and enrolment by invitation.

    GET  /v1/messages?as=A&boot=B&after=I   waits up to 20 s; the messages of address A above I (or
                                            all, where boot is another); with &leave=1 it only
                                            acknowledges, and is answered at once; with
                                            &leave=done the party also needs nothing more
    POST /v1/answers?as=A                   messages of the party at address A
    GET  /v1/metrics                        counters in Prometheus' text format
    POST /v1/requests                       an invited site's request
    GET  /v1/roster                         the roster, once all requests are there

All need `Authorization: Bearer TOKEN`. A token is valid for its owner's addresses only; the server
stores digests of tokens. Messages stay in a mailbox until they are acknowledged by the next
request. Mailboxes are kept in memory: after a restart the coordinator fills them again.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from blindsight.core.checks import optional_module
from blindsight.core.errors import ProtocolError
from blindsight.federated.deploy.folders import PartyFolder, token_digests
from blindsight.federated.sums.messages import Outgoing, sent_by
from blindsight.federated.sums.wire import Reader, Writer

__all__ = ["MailboxLink", "SiteEnrolment", "application", "mailboxes", "serve"]

_WAIT = 20.0
_MOST_MESSAGES = 64  # in one answer to a request, and of one party before they are read
_MOST_WAITING = 256  # messages in a mailbox
_WAITING_BYTES = 1 << 28  # of all parties before they are read, whatever a message's size
_LARGEST_REQUEST = 1 << 17


class MailboxLink:
    """A mailbox for each address; thread-safe.

    Parameters:
        addresses: the addresses that have a mailbox.
        largest: the size in bytes of the largest message that a party may send.
    """

    def __init__(self, addresses: Iterable[int], *, largest: int = 1 << 28) -> None:
        self.boot = secrets.token_hex(8)
        self.seen: dict[int, float] = {}
        self.counts = {"requests": 0, "messages_in": 0, "messages_out": 0, "refused": 0}
        self._boxes: dict[int, deque[tuple[int, bytes]]] = {
            number: deque(maxlen=_MOST_WAITING) for number in addresses
        }
        self._arrived: deque[tuple[int, bytes]] = deque()
        self._waiting: dict[int, int] = {}
        self._most_bytes = max(_WAITING_BYTES, 2 * largest)
        self._lock = threading.Lock()
        self._next = 1
        self._closed = self.over = False
        self.connected: Callable[[], bool] = lambda: False  # whether anybody is, while it is served
        self._told: set[int] = set()
        self._done: set[int] = set()  # parties that left and need nothing more
        self._loop: asyncio.AbstractEventLoop | None = None
        self._filled: dict[int, asyncio.Event] = {}

    def push(self, messages: Iterable[Outgoing]) -> None:
        """Put messages into their mailboxes, once each, in this order.

        A message that waits already moves behind those that came after it: its party may have
        fetched it and refused it, because it lacked one of them.
        """
        for message in messages:
            with self._lock:
                box = self._boxes.get(message.to)
                if box is None or (box and box[-1][1] == message.data):
                    continue
                for waiting in [waiting for waiting in box if waiting[1] == message.data]:
                    box.remove(waiting)
                box.append((self._next, message.data))
                self._next += 1
                self.counts["messages_out"] += 1
            self._wake(message.to)

    def pull(self) -> list[bytes]:
        """Return what parties sent since the last call.

        Raises:
            ProtocolError: the link is closed, so that nothing will arrive any more.
        """
        if self._closed:
            raise ProtocolError("the aggregator was stopped.")
        with self._lock:
            arrived = [data for _, data in self._arrived]
            self._arrived.clear()
            self._waiting.clear()
        return arrived

    def put(self, number: int, answers: Iterable[bytes]) -> bool:
        """Accept a party's messages; return False if too many unread messages are waiting."""
        accepted = [data for data in answers if sent_by(data, number)]
        size = sum(map(len, accepted))
        with self._lock:
            few = sum(sender == number for sender, _ in self._arrived) < _MOST_MESSAGES
            if not few or sum(self._waiting.values()) + size > self._most_bytes:
                self.counts["refused"] += 1
                return False
            self._waiting[number] = self._waiting.get(number, 0) + size
            self._arrived.extend((number, data) for data in accepted)
            self.counts["messages_in"] += len(accepted)
        return True

    def unread(self) -> set[int]:
        """Addresses with unread messages, except those of parties that left for good.

        A result may be put into a mailbox again after its user has fetched it and left.
        """
        with self._lock:
            return {number for number, box in self._boxes.items() if box} - self._done

    def leave(self, number: int) -> None:
        """Record that a party needs nothing more, until it connects again."""
        with self._lock:
            self._done.add(number)

    def take(self, number: int, boot: str, after: int) -> list[tuple[int, bytes]]:
        """Delete acknowledged messages and return the others."""
        with self._lock:
            box = self._boxes[number]
            while box and boot == self.boot and box[0][0] <= after:
                box.popleft()
            return list(box)[:_MOST_MESSAGES]

    async def fetch(self, number: int, boot: str, after: int) -> list[tuple[int, bytes]]:
        """Return messages for an address; if there is none, wait for one up to 20 seconds."""
        self._loop = asyncio.get_running_loop()
        self.seen[number] = self._loop.time()
        self._done.discard(number)
        filled = self._filled.setdefault(number, asyncio.Event())
        filled.clear()
        waiting = self.take(number, boot, after)
        if not waiting and not self._closed and not self.over:
            with suppress(TimeoutError):
                await asyncio.wait_for(filled.wait(), _WAIT)
            waiting = self.take(number, boot, after)
        return waiting

    def hear(self, number: int) -> None:
        """Record that a party is told that the federation is over."""
        self._told.add(number)

    def finish(self) -> None:
        """Tell everybody that the federation is over."""
        self.over = True
        for number in list(self._filled):
            self._wake(number)

    def told(self) -> bool:
        """Whether all parties that were in contact know that the federation is over, or left."""
        return set(self.seen) <= self._told | self._done

    def close(self) -> None:
        """Wake all requests that wait for messages."""
        self._closed = True
        for number in list(self._filled):
            self._wake(number)

    def metrics(self) -> str:
        """Counters and gauges in Prometheus' text format."""
        with self._lock:
            values = {f"{name}_total": value for name, value in self.counts.items()}
            values["waiting_bytes"] = sum(self._waiting.values())
            values["mailbox_messages"] = sum(map(len, self._boxes.values()))
        values["parties_seen"] = len(self.seen)
        return "".join(f"blindsight_federation_{k} {v}\n" for k, v in values.items())

    def _wake(self, number: int) -> None:
        loop, filled = self._loop, self._filled.get(number)
        if loop is not None and filled is not None and not loop.is_closed():
            loop.call_soon_threadsafe(filled.set)


class SiteEnrolment:
    """The requests of invited sites, and the roster once all requests have arrived.

    Parameters:
        invitations: site numbers by the digest of their invitation's token.
        submit: called with a site's number and its request; raises `ProtocolError` to refuse it.
    """

    def __init__(
        self, invitations: Mapping[str, int], submit: Callable[[int, bytes], None]
    ) -> None:
        self.invitations, self.submit = invitations, submit
        self.roster: bytes | None = None


def application(
    link: MailboxLink,
    tokens: Mapping[str, Iterable[int]],
    *,
    largest: int,
    enrolment: SiteEnrolment | None = None,
) -> Any:
    """Return the routes as an ASGI application, which refuses bodies above `largest` bytes."""
    starlette = optional_module("starlette.applications", extra="federated")
    responses = optional_module("starlette.responses", extra="federated")
    routing = optional_module("starlette.routing", extra="federated")

    def digest_of(request: Any) -> str:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        return hashlib.sha256(token.encode()).hexdigest() if scheme == "Bearer" else ""

    def sender(request: Any) -> int | None:
        """Return the address that the request names, if its token is valid for it."""
        link.counts["requests"] += 1
        numbers = tokens.get(digest_of(request), ())
        named = request.query_params.get("as", "")
        return int(named) if named.isdecimal() and int(named) in numbers else None

    async def body_of(request: Any, most: int) -> bytes | None:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                return None
        return bytes(body)

    async def messages(request: Any) -> Any:
        number = sender(request)
        if number is None:
            return responses.Response(status_code=401)
        try:
            after = int(request.query_params.get("after", "0"))
        except ValueError:
            return responses.Response(status_code=400)
        boot = request.query_params.get("boot", "")
        leave = request.query_params.get("leave")
        if leave in ("1", "done"):
            link.take(number, boot, after)
            if leave == "done":
                link.leave(number)
            return responses.Response(status_code=204)
        waiting = await link.fetch(number, boot, after)
        over = link.over and not waiting
        if over and not await request.is_disconnected():  # a killed party may come back
            link.hear(number)
        writer = Writer().text(link.boot).number("B", over)
        writer.number("I", len(waiting))
        for position, data in waiting:
            writer.number("Q", position).field(data)
        return responses.Response(bytes(writer), media_type="application/octet-stream")

    async def answers(request: Any) -> Any:
        number = sender(request)
        if number is None:
            return responses.Response(status_code=401)
        body = await body_of(request, largest)
        if body is None:
            return responses.Response(status_code=413)
        try:
            reader = Reader(body)
            count = min(reader.number("I"), 1 << 17)
            messages = [reader.field() for _ in range(count)]
            reader.end()
        except ProtocolError:
            return responses.Response(status_code=400)
        return responses.Response(status_code=204 if link.put(number, messages) else 429)

    async def metrics(request: Any) -> Any:
        if digest_of(request) not in tokens:
            return responses.Response(status_code=401)
        return responses.PlainTextResponse(link.metrics())

    async def requests(request: Any) -> Any:
        site = None if enrolment is None else enrolment.invitations.get(digest_of(request))
        if enrolment is None or site is None:
            return responses.Response(status_code=401)
        body = await body_of(request, _LARGEST_REQUEST)
        if body is None:
            return responses.Response(status_code=413)
        try:
            await asyncio.to_thread(enrolment.submit, site, body)
        except (ProtocolError, ValueError):
            return responses.Response(status_code=400)
        return responses.Response(status_code=204)

    async def roster(request: Any) -> Any:
        if enrolment is None or digest_of(request) not in enrolment.invitations:
            return responses.Response(status_code=401)
        if enrolment.roster is None:
            return responses.Response(status_code=204)
        return responses.Response(enrolment.roster, media_type="application/octet-stream")

    routes = [
        routing.Route("/v1/messages", messages),
        routing.Route("/v1/answers", answers, methods=["POST"]),
        routing.Route("/v1/metrics", metrics),
        routing.Route("/v1/requests", requests, methods=["POST"]),
        routing.Route("/v1/roster", roster),
    ]
    return starlette.Starlette(routes=routes)


@contextmanager
def mailboxes(
    folder: PartyFolder,
    *,
    largest: int,
    bind: str | None = None,
    enrolment: SiteEnrolment | None = None,
) -> Iterator[MailboxLink]:
    """Serve mailboxes to the parties while the context lasts, and yield the link to them."""
    tokens = token_digests(folder.roster)
    link = MailboxLink({n for numbers in tokens.values() for n in numbers}, largest=largest)
    app = application(link, tokens, largest=largest, enrolment=enrolment)
    with serve(folder, app, link, bind=bind):
        yield link


@contextmanager
def serve(
    folder: PartyFolder, app: Any, link: MailboxLink, *, bind: str | None = None
) -> Iterator[None]:
    """Serve an application over TLS, in its own thread, while the context lasts."""
    uvicorn = optional_module("uvicorn", extra="federated")
    host, _, port = str(folder.about["address"]).rpartition(":")
    config = uvicorn.Config(
        app,
        host=bind or host,
        port=int(port),
        ssl_certfile=str(folder.path / "server.pem"),
        ssl_keyfile=str(folder.path / "server.key"),
        log_level="warning",
        access_log=False,
        ws="none",
        loop="asyncio",
        lifespan="off",
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None
    thread = threading.Thread(target=server.run, name="mailboxes", daemon=True)
    thread.start()
    link.connected = lambda: bool(server.server_state.connections)
    while not server.started:
        if not thread.is_alive():
            raise ProtocolError(
                f"nothing can listen at {bind or host}:{port}: is another aggregator running there?"
            )
        thread.join(0.05)
    try:
        yield
    finally:
        link.close()
        server.should_exit = True
        thread.join(10)
