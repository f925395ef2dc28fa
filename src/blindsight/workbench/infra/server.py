"""The HTTP server: uvicorn on h11 with deadlines for headers and bodies and a limit on connections,
and its log.

A request's line and headers must arrive within `header_seconds`, its body within `body_seconds` and
one further second for every 64 KB, and the client must read the answer. At most `connections` are
open: a further one closes the connection whose client is slowest to send or to read, so that
clients that only hold connections open cannot keep others out.

Log lines are text or JSON. A line contains the route, the status and the time of a request; never
the query of an address, a name, or the message of an error. Who did what is in the access log.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import json
import logging
import socket
import ssl
from datetime import UTC, datetime
from typing import Any, Literal

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from blindsight.core.errors import InvalidParameter
from blindsight.workbench.infra.settings import WorkbenchSettings

__all__ = [
    "JsonLines",
    "bound_memory",
    "bound_protocol",
    "check_certificate",
    "listening_socket",
    "serve",
    "start_logging",
]

_LOGGED_FIELDS = ("method", "route", "status", "milliseconds")
_LARGEST_HEAD = 32 * 1024
_SLOWEST_BODY = 64 * 1024  # bytes per second beyond the first seconds
_LENT = 1024
_M_ARENA_MAX = -8  # of glibc's malloc.h
_ARENAS = 2


def bound_protocol(settings: WorkbenchSettings) -> type[H11Protocol]:
    """Return uvicorn's protocol with the limits of the settings."""

    class Bounded(H11Protocol):
        """One connection; each phase has a deadline, which slowly arriving bytes do not extend."""

        _timer: asyncio.TimerHandle | None = None
        _phase: tuple[Any, int] = (None, 0)
        _begun, _received = 0.0, 0
        _unread: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            surplus = len(self.connections) - settings.connections
            if surplus > 0:
                others = (c for c in self.connections if isinstance(c, Bounded) and c is not self)
                held = sorted((c for c in others if c._is_the_clients_turn()), key=Bounded._pace)
                for slow in held[:surplus]:
                    slow.transport.abort()
                if not held and surplus > settings.connections:  # all are being answered
                    self.transport.abort()
            self._watch()

        def _is_the_clients_turn(self) -> bool:
            """Whether the server waits for the client to send or to read."""
            worked_on = self.cycle is not None and not self.cycle.response_started
            return not worked_on or self.conn.their_state is h11.SEND_BODY

        def _pace(self) -> float:
            """Return the bytes per second that arrived in this phase, plus a first kilobyte."""
            return (_LENT + self._received) / (self.loop.time() - self._begun + 0.5)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._unread = self.loop.call_later(settings.body_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._unread is not None:
                self._unread.cancel()
                self._unread = None

        def data_received(self, data: bytes) -> None:
            self._received += len(data)
            if self.timeout_keep_alive_task is not None:
                # The next request begins with its first byte, not with the pause before it.
                self._phase = (None, 0)
            super().data_received(data)
            self._watch()

        def handle_events(self) -> None:
            super().handle_events()
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel()
            if self._unread is not None:
                self._unread.cancel()
            super().connection_lost(exc)

        def _watch(self) -> None:
            """Start a deadline when a phase begins: waiting for headers, or for the body."""
            state = self.conn.their_state
            phase = (state, id(self.cycle))
            if phase == self._phase or self.transport is None:
                return
            self._phase, self._begun, self._received = phase, self.loop.time(), 0
            self._cancel()
            seconds = {h11.IDLE: settings.header_seconds, h11.SEND_BODY: settings.body_seconds}.get(
                state
            )
            if seconds is not None:
                self._timer = self.loop.call_later(seconds, self._late, seconds)

        def _late(self, seconds: float) -> None:
            state = self.conn.their_state
            if state is h11.IDLE and self.timeout_keep_alive_task is not None:
                return  # between two requests the keep-alive timeout applies
            spent = self.loop.time() - self._begun
            allowed = seconds + (self._received / _SLOWEST_BODY if state is h11.SEND_BODY else 0.0)
            if spent < allowed:
                self._timer = self.loop.call_later(allowed - spent + 0.05, self._late, seconds)
                return
            self.transport.abort()

        def _cancel(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Bounded


def listening_socket(settings: WorkbenchSettings) -> socket.socket:
    """Return a socket that listens on the port, before anything else is started.

    Connections wait until the server takes them: a browser that opens the printed address at once
    is not refused.

    Raises:
        InvalidParameter: if the port cannot be used.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise InvalidParameter(
            f"port {settings.port} on {settings.host} cannot be used ({error.strerror}). "
            "Is the workbench running already? Choose another with --port."
        ) from None
    return listener


def bound_memory() -> None:
    """Let all threads share two heaps; call it before the first thread starts.

    By default glibc gives each thread its own heap, which keeps the most memory that it ever used:
    with fifty clients the server's memory grew for minutes. Other C libraries ignore the call.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)


def check_certificate(settings: WorkbenchSettings) -> None:
    """Raise `InvalidParameter` if the certificate and its key cannot be used."""
    if settings.tls_cert is None or settings.tls_key is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidParameter(
            f"the certificate {settings.tls_cert} and the key {settings.tls_key} cannot be used "
            f"({error.strerror or type(error).__name__}). Both must be PEM files that belong "
            "together, and this user must be able to read them."
        ) from None


class _Server(uvicorn.Server):
    """uvicorn with a deadline for TLS handshakes, which come before the deadline for headers."""

    def __init__(self, config: uvicorn.Config, handshake_seconds: float) -> None:
        super().__init__(config)
        self._handshake_seconds = handshake_seconds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop: Any = asyncio.get_running_loop()
        create_server = loop.create_server
        loop.create_server = functools.partial(
            create_server, ssl_handshake_timeout=self._handshake_seconds
        )
        try:
            await super().startup(sockets=sockets)
        finally:
            loop.create_server = create_server


def serve(app: Any, settings: WorkbenchSettings, listener: socket.socket) -> None:
    """Serve the application until a signal ends it."""
    server = uvicorn.Server
    tls: dict[str, Any] = {}
    if settings.https:
        server = functools.partial(_Server, handshake_seconds=settings.header_seconds)  # type: ignore[assignment]
        tls = {
            "ssl_certfile": str(settings.tls_cert),
            "ssl_keyfile": str(settings.tls_key),
            "ssl_version": ssl.PROTOCOL_TLS_SERVER,
        }
    config = uvicorn.Config(
        app,
        http=bound_protocol(settings),
        ws="none",
        # Otherwise every malformed request is a line; the workbench counts them itself.
        log_level="error",
        access_log=False,  # it would contain queries; the workbench logs routes
        server_header=False,
        proxy_headers=bool(settings.proxies),
        forwarded_allow_ips=list(settings.proxies),
        # Closed connections are counted for a short time.
        limit_concurrency=4 * settings.connections,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=20,
        h11_max_incomplete_event_size=_LARGEST_HEAD,
        **tls,
    )
    server(config).run(sockets=[listener])


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the fields of a request.

    Examples:
        >>> record = logging.LogRecord("blindsight", 20, "", 0, "ready", None, None)
        >>> json.loads(JsonLines().format(record))["message"]
        'ready'
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record; of an exception it contains only the type."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in _LOGGED_FIELDS if hasattr(record, name)}
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
        return json.dumps(line, ensure_ascii=False, default=str)


def start_logging(kind: Literal["text", "json"]) -> None:
    """Write log lines to standard error: warnings as text, or warnings and requests as JSON."""
    handler = logging.StreamHandler()
    if kind == "json":
        handler.setFormatter(JsonLines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    if kind == "json":
        logging.getLogger("blindsight.workbench").setLevel(logging.INFO)
