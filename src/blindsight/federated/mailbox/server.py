"""The boxes, as a `Link` for the coordinator, and the HTTPS server that lets parties at theirs.

    GET  /v1/messages?boot=B&after=I    waits up to 20 s; boot, and messages above I (or all, where
    boot is another);
                                        with &leave=1 it only acknowledges, and is answered at once
    POST /v1/answers                    what a party has to say

Both need `Authorization: Bearer TOKEN`; a box is its token's owner's. Messages stay in the box
until they are acknowledged by the next request. Boxes live in memory: after a restart the
coordinator fills them anew.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from blindsight.core.checks import optional_module
from blindsight.core.errors import HostileFile, ProtocolError
from blindsight.federated.flower.coordinator import party
from blindsight.federated.flower.homes import Home
from blindsight.federated.messages import Outgoing, sent_by
from blindsight.federated.wire import Reader, Writer

__all__ = ["MailboxLink", "application", "boxes", "read_tokens", "serve"]

_WAIT = 20.0
_MOST = 64  # messages in one answer to a request, and of one party before they are read
# messages in a box; for a party that is away longer than that the oldest go, and it asks for what
# it lacks
_BOX = 256


class MailboxLink:
    """A box for each party; thread-safe.

    `seen` says when a party was last heard of, on the loop's clock.
    """

    def __init__(self, parties: Iterable[int]) -> None:
        self.boot = secrets.token_hex(8)
        self.seen: dict[int, float] = {}
        self._boxes: dict[int, deque[tuple[int, bytes]]] = {
            number: deque(maxlen=_BOX) for number in parties
        }
        self._arrived: deque[tuple[int, bytes]] = deque()
        self._lock = threading.Lock()
        self._next = 1
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._filled: dict[int, asyncio.Event] = {}

    def push(self, messages: Iterable[Outgoing], announced: bytes) -> None:
        """Put messages into their boxes; the same message is not put there twice, and nothing for
        strangers.
        """
        last, data = b"", b""
        for message in messages:
            if message.data is not last:  # what goes to all users is in memory once
                last, data = message.data, bytes(Writer().field(message.data).field(announced))
            with self._lock:
                box = self._boxes.get(message.to)
                if box is None or any(waiting == data for _, waiting in box):
                    continue
                box.append((self._next, data))
                self._next += 1
            self._wake(message.to)

    def pull(self) -> list[bytes]:
        """What parties sent since the last call."""
        with self._lock:
            found = [data for _, data in self._arrived]
            self._arrived.clear()
        return found

    def put(self, number: int, answers: Iterable[bytes]) -> bool:
        """Take in what a party says for itself; no more where too much of it waits to be read
        already.
        """
        with self._lock:
            if sum(sender == number for sender, _ in self._arrived) >= _MOST:
                return False
            self._arrived.extend((number, data) for data in answers if sent_by(data, number))
        return True

    def back(self) -> set[int]:
        """Nobody has to be asked again: messages wait in their boxes."""
        return set()

    def unread(self) -> set[int]:
        """Parties in whose boxes something waits."""
        with self._lock:
            return {number for number, box in self._boxes.items() if box}

    def take(self, number: int, boot: str, after: int) -> list[tuple[int, bytes]]:
        """Drop what was acknowledged, and hand out what is left."""
        with self._lock:
            box = self._boxes[number]
            while box and boot == self.boot and box[0][0] <= after:
                box.popleft()
            return list(box)[:_MOST]

    async def fetch(self, number: int, boot: str, after: int) -> list[tuple[int, bytes]]:
        """As `take`, but waits for something to be there."""
        self._loop = asyncio.get_running_loop()
        self.seen[number] = self._loop.time()
        filled = self._filled.setdefault(number, asyncio.Event())
        filled.clear()
        found = self.take(number, boot, after)
        if not found and not self._closed:
            try:
                await asyncio.wait_for(filled.wait(), _WAIT)
            except TimeoutError:
                return []
            found = self.take(number, boot, after)
        return found

    def close(self) -> None:
        """Nobody waits any longer."""
        self._closed = True
        for number in list(self._filled):
            self._wake(number)

    def _wake(self, number: int) -> None:
        loop, filled = self._loop, self._filled.get(number)
        if loop is not None and filled is not None and not loop.is_closed():
            loop.call_soon_threadsafe(filled.set)


def read_tokens(home: Home) -> dict[str, int]:
    """Addresses by the digest of their tokens, from the aggregator's folder."""
    try:
        found = json.loads((home.path / "tokens.json").read_text(encoding="utf-8"))
        return {str(digest): party(str(name)) for name, digest in found.items()}
    except (OSError, ValueError, AttributeError) as error:
        raise HostileFile(f"{home.path} has no list of tokens: make the folders again.") from error


def application(link: MailboxLink, tokens: Mapping[str, int], *, largest: int) -> Any:
    """The two routes as an ASGI app; a body above `largest` bytes is refused while it comes in."""
    starlette = optional_module("starlette.applications", extra="federated")
    responses = optional_module("starlette.responses", extra="federated")
    routing = optional_module("starlette.routing", extra="federated")

    def sender(request: Any) -> int | None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        digest = hashlib.sha256(token.encode()).hexdigest()
        found = None
        for known, number in tokens.items():  # all of them are looked at, whichever it is
            if hmac.compare_digest(known, digest):
                found = number
        return found if scheme == "Bearer" else None

    async def messages(request: Any) -> Any:
        number = sender(request)
        if number is None:
            return responses.Response(status_code=401)
        try:
            after = int(request.query_params.get("after", "0"))
        except ValueError:
            return responses.Response(status_code=400)
        boot = request.query_params.get("boot", "")
        if request.query_params.get("leave") == "1":
            link.take(number, boot, after)
            return responses.Response(status_code=204)
        found = await link.fetch(number, boot, after)
        writer = Writer().text(link.boot).number("I", len(found))
        for place, data in found:
            writer.number("Q", place).field(data)
        return responses.Response(bytes(writer), media_type="application/octet-stream")

    async def answers(request: Any) -> Any:
        number = sender(request)
        if number is None:
            return responses.Response(status_code=401)
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > largest:
                return responses.Response(status_code=413)
        try:
            reader = Reader(bytes(body))
            given = [reader.field() for _ in range(min(reader.number("I"), _MOST))]
            reader.end()
        except ProtocolError:
            return responses.Response(status_code=400)
        return responses.Response(status_code=204 if link.put(number, given) else 429)

    routes = [
        routing.Route("/v1/messages", messages),
        routing.Route("/v1/answers", answers, methods=["POST"]),
    ]
    return starlette.Starlette(routes=routes)


@contextmanager
def boxes(home: Home, *, largest: int, bind: str | None) -> Iterator[MailboxLink]:
    """A link over boxes that parties reach, for as long as the context lasts."""
    link = MailboxLink(read_tokens(home).values())
    with serve(home, link, largest=largest, bind=bind):
        yield link


@contextmanager
def serve(
    home: Home, link: MailboxLink, *, largest: int, bind: str | None = None
) -> Iterator[None]:
    """A server with TLS, in a thread of its own, for as long as the context lasts."""
    uvicorn = optional_module("uvicorn", extra="federated")
    host, _, port = home.about["address"].rpartition(":")
    config = uvicorn.Config(
        application(link, read_tokens(home), largest=largest),
        host=bind or host,
        port=int(port),
        ssl_certfile=str(home.path / "server.pem"),
        ssl_keyfile=str(home.path / "server.key"),
        log_level="warning",
        access_log=False,
        ws="none",
        loop="asyncio",
        lifespan="off",
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None
    thread = threading.Thread(target=server.run, name="mailbox", daemon=True)
    thread.start()
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
