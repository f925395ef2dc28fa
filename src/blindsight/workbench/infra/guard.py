"""The guard before every request: it checks host, identity, rate, size and origin, and adds headers
to every answer. Also the rate limit, threads for work on the ledger, and the metrics.

The rate limit is a token bucket with a bound on the number of callers, which the `limits` package
does not have (its memory grows with every address). The metrics are prometheus-client's.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote

import anyio
from anyio import to_thread
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from starlette.routing import Match, Route

from blindsight.workbench.infra.database import PURPOSE, AccessLog
from blindsight.workbench.infra.identity import LOCAL, Keys, RequestIdentity
from blindsight.workbench.infra.problems import Problem
from blindsight.workbench.infra.settings import WorkbenchSettings

__all__ = [
    "CSRF_COOKIE",
    "CSRF_HEADER",
    "SESSION_COOKIE",
    "SIGN_ON_COOKIE",
    "Buckets",
    "Guard",
    "Lane",
    "Metrics",
]

CSRF_COOKIE, CSRF_HEADER, SESSION_COOKIE = "csrf", "x-csrf-token", "session"
SIGN_ON_COOKIE, PURPOSE_HEADER = "sign_on", "x-purpose"
_log = logging.getLogger("blindsight.workbench")
_SAFE = {"GET", "HEAD", "OPTIONS"}
_METHODS = _SAFE | {"POST", "PUT", "PATCH", "DELETE"}
_FREE = ("/static/", "/health")
_LONGEST_PATH = 2048
_LONGEST_SECRET = 200
_LONGEST_PURPOSE = 200
# Routes that are not in the access log: they concern no data set, or pages poll them every second.
_UNRECORDED = {
    *("/static", "unknown", "/metrics", "/docs", "/api/openapi.json", "/login", "/logout"),
    *("/login/oidc", "/login/oidc/callback"),
}
_POLLED = {"/api/jobs", "/api/jobs/{job}", "/api/together/{run}", "/api/access", "/access"}
_NUMBER = re.compile("[0-9a-f]{12}")
_FORWARDED = (
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-real-ip",
    "via",
)
_PAGE = (
    "default-src 'self'; img-src 'self' data: blob:; style-src {style}; script-src 'self'; "
    "object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=(), interest-cohort=()"),
]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Guard:
    """ASGI middleware around the whole workbench.

    Parameters:
        app: the application that answers.
        settings: limits, hosts and proxies.
        keys: the identities of keys and sessions.
        metrics: counts every request.
        access_log: gets a record of every request that concerns a data set.
        routes: the routes of the application, whose templates name requests in the log.
    """

    def __init__(
        self,
        app: Any,
        *,
        settings: WorkbenchSettings,
        keys: Keys,
        metrics: Metrics,
        access_log: AccessLog,
        routes: Any,
    ) -> None:
        self.app, self.settings, self.keys = app, settings, keys
        self.metrics, self.access_log, self.routes = metrics, access_log, routes
        self.buckets = Buckets(settings.rate, settings.burst)
        own = {settings.host, "localhost", "127.0.0.1", "[::1]", *settings.hosts}
        at_home = settings.open or settings.local
        self.hosts = {name.lower() for name in own} if at_home or settings.hosts else None
        self.forwarding = bool(settings.proxies) or not at_home
        self._reading: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, pass it on, add headers to the answer, and count it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.perf_counter()
        # Every page that answers GET answers HEAD; the answer's body is left out below.
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        answer = _Answer(scope, send, lambda status: self._record(inner, status))
        purpose = PURPOSE.set("")
        try:
            await self._admit(inner)
            await self.app(inner, self._measured(inner, receive), answer)
        except Problem as problem:
            await answer.refuse(problem)
        except Exception as error:
            # Only the type is logged: a message could contain pixels or keys.
            _log.error("an unexpected %s ended a request", type(error).__name__)
            await answer.refuse(Problem("failed"))
        finally:
            seconds, route = time.perf_counter() - start, self._route(inner)
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self.metrics.request(method, route, answer.status, seconds)
            PURPOSE.reset(purpose)
            _log.info(
                "%s %s %d %.1f ms",
                method,
                route,
                answer.status,
                1000 * seconds,
                extra={
                    "method": method,
                    "route": route,
                    "status": answer.status,
                    "milliseconds": round(1000 * seconds, 1),
                },
            )

    async def _admit(self, scope: Scope) -> None:
        headers = _headers(scope)
        if self.hosts is not None and _host(headers.get("host", "")) not in self.hosts:
            raise Problem("bad_request")
        if not self.forwarding and any(name in headers for name in _FORWARDED):
            raise Problem("forwarded")
        path = scope["path"]
        if len(path) > _LONGEST_PATH or "\x00" in path or "\\" in path or ".." in path.split("/"):
            raise Problem("not_found")
        cookies = _cookies(headers.get("cookie", ""))
        identity, bearer = None, False
        if not path.startswith(_FREE):
            # A valid key or session has its own rate limit, so that strangers at the same address
            # cannot use up the owner's. An invalid key costs no query (see Keys) and counts for
            # its address.
            identity, bearer = await self._who(headers, cookies)
            payer = self._payer(scope, identity)
            if not self.buckets.take(payer):
                raise Problem("too_many")
        session, csrf, sign_on = (
            cookies.get(self.settings.cookie(name))
            for name in (SESSION_COOKIE, CSRF_COOKIE, SIGN_ON_COOKIE)
        )
        scope.setdefault("state", {}).update(
            identity=identity, session=session, csrf=csrf, sign_on=sign_on
        )
        purpose = unquote(headers.get(PURPOSE_HEADER, "")).strip()
        if len(purpose) > _LONGEST_PURPOSE or not purpose.isprintable():
            raise Problem("bad_request")
        PURPOSE.set(purpose)
        # Cookies are read only here: inner code would parse them again, in another way.
        scope["headers"] = [(name, value) for name, value in scope["headers"] if name != b"cookie"]
        if scope["method"] not in _SAFE:
            if not bearer:
                _same_site(
                    headers, bool(cookies), "" if csrf is None else csrf, form=path == "/login"
                )
            length = headers.get("content-length", "0")
            if not length.isdecimal():
                raise Problem("bad_request")
            if int(length) > self._limit(scope):
                raise Problem("too_large")

    async def _who(
        self, headers: dict[str, str], cookies: dict[str, str]
    ) -> tuple[RequestIdentity | None, bool]:
        """Return the identity of a request, and whether a key in its header proved it.

        An unknown key counts as no key.
        """
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and key:
            identity = await self._looked_up(self.keys.known_key, key.strip())
            return (identity or (LOCAL if self.settings.open else None)), identity is not None
        if self.settings.open:
            return LOCAL, False
        token = cookies.get(self.settings.cookie(SESSION_COOKIE))
        return (await self._looked_up(self.keys.known_session, token) if token else None), False

    async def _looked_up(
        self, look: Callable[[str], RequestIdentity | None], secret: str
    ) -> RequestIdentity | None:
        """Return the identity of a secret, after reading the database once for all who wait."""
        if len(secret) > _LONGEST_SECRET:
            return None
        for _ in range(2):  # a reading under way may have begun before the last change
            if not self.keys.needs_reading(known=look(secret) is not None):
                break
            if self._reading is None:
                self._reading = asyncio.create_task(asyncio.to_thread(self.keys.read))
            try:
                # A caller that disconnects must not cancel it for the others.
                await asyncio.shield(self._reading)
            finally:
                if self._reading is not None and self._reading.done():
                    self._reading = None
        return look(secret)

    def _payer(self, scope: Scope, identity: RequestIdentity | None) -> str:
        """Return the name whose rate limit a request counts for."""
        if identity is not None and not self.settings.open:
            return f"key {identity.name}"
        query = scope.get("query_string", b"").decode("latin-1")
        token = query.removeprefix("token=") if scope["path"] == "/" else ""
        if 0 < len(token) <= _LONGEST_SECRET and self.keys.is_start_secret(token):
            return f"key {LOCAL.name}"
        # Signing in has its own rate limit, so that strangers at the same address who request other
        # pages cannot prevent it.
        return ("sign in " if scope["path"].startswith("/login") else "") + _address(scope)

    async def _record(self, scope: Scope, status: int) -> None:
        """Write a request of a signed-in person into the access log, before it is answered."""
        state = scope.get("state", {})
        identity: RequestIdentity | None = state.get("identity")
        route = self._route(scope)
        safe = scope["method"] in _SAFE
        if identity is None or route in _UNRECORDED or (safe and route in _POLLED):
            return
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        parameters = scope.get("path_params", {})
        names = {}
        for name in ("dataset", "release"):
            value = state.get(name) or parameters.get(name) or (query.get(name) or [""])[0]
            names[name] = value if _NUMBER.fullmatch(str(value)) else ""
        outcome = "done" if status < 400 else "refused" if status < 500 else "failed"
        await self.access_log.write(
            actor=identity.name,
            action=f"{scope['method']} {route}",
            outcome=outcome,
            purpose=PURPOSE.get(),
            **names,
        )

    def _limit(self, scope: Scope) -> int:
        path = scope["path"]
        if path.endswith("/drop"):
            return self.settings.drop_bytes
        return self.settings.upload_bytes if path.endswith("/upload") else self.settings.body_bytes

    def _measured(self, scope: Scope, receive: Receive) -> Receive:
        limit, read = self._limit(scope), 0

        async def measured() -> MutableMapping[str, Any]:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > limit:
                raise Problem("too_large")
            return message

        return measured

    def _route(self, scope: Scope) -> str:
        """Return the template of the address, so that logs and metrics contain no ids."""
        matched = scope.get("route")
        if isinstance(matched, Route):
            return matched.path
        for route in self.routes:
            if isinstance(route, Route) and route.matches(scope)[0] != Match.NONE:
                return route.path
        return "/static" if scope["path"].startswith("/static/") else "unknown"


class _Answer:
    """Sends an answer with added headers, and remembers whether it has begun.

    `record` is called before the first byte is sent; if it raises `Problem`, that is sent instead.
    """

    def __init__(self, scope: Scope, send: Send, record: Callable[[int], Awaitable[None]]) -> None:
        self.scope, self.send, self.status, self.begun = scope, send, 0, False
        self._record: Callable[[int], Awaitable[None]] | None = record
        self._replaced = False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if self._replaced:
            return
        if message["type"] == "http.response.start":
            record, self._record = self._record, None
            if record is not None:
                try:
                    await record(message["status"])
                except Problem as problem:
                    await self.refuse(problem)
                    self._replaced = True
                    return
            self.begun, self.status = True, message["status"]
            message = {**message, "headers": [*message.get("headers", ()), *self._extra(message)]}
        elif self.scope["method"] == "HEAD" and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await self.send(message)

    async def refuse(self, problem: Problem) -> None:
        if self.begun:
            return
        body = json.dumps(problem.body).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        headers += [
            (name.lower().encode(), value.encode())
            for name, value in (problem.headers or {}).items()
        ]
        await self(
            {"type": "http.response.start", "status": problem.status_code, "headers": headers}
        )
        await self.send(
            {"type": "http.response.body", "body": b"" if self.scope["method"] == "HEAD" else body}
        )

    def _extra(self, message: MutableMapping[str, Any]) -> list[tuple[bytes, bytes]]:
        present = {name.lower(): value for name, value in message.get("headers", ())}
        drawn = (
            present.get(b"content-type", b"").startswith(b"image/svg")
            or self.scope["path"] == "/docs"
        )
        policy = _PAGE.format(style="'self' 'unsafe-inline'" if drawn else "'self'")
        extra = list(_HEADERS)
        if b"content-security-policy" not in present:
            extra.append((b"content-security-policy", policy.encode()))
        if self.scope.get("scheme") == "https":
            extra.append((b"strict-transport-security", b"max-age=31536000"))
        if b"cache-control" not in present:
            caching = (
                b"public, max-age=3600"
                if self.scope["path"].startswith("/static/")
                else b"no-store"
            )
            extra.append((b"cache-control", caching))
        return extra


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _cookies(header: str) -> dict[str, str]:
    """Return the names and values of cookies without unquoting, which our cookies do not need.

    `http.cookies` may need seconds for a hostile header.
    """
    pairs = (part.strip().partition("=") for part in header.split(";"))
    return {name: value for name, _, value in pairs if name}


def _host(header: str) -> str:
    name, colon, port = header.rpartition(":")
    return (name if colon and port.isdecimal() else header).lower()


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return f"address {client[0]}" if client else "address unknown"


def _same_site(headers: dict[str, str], cookies: bool, token: str, *, form: bool) -> None:
    """Raise `Problem` unless a browser's request comes from our own page and carries its token.

    A program's request without cookies passes.
    """
    origin = headers.get("origin")
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Problem("cross_site")
    if origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower():
        raise Problem("cross_site")
    browser = origin is not None or "sec-fetch-site" in headers or cookies
    good = bool(token) and hmac.compare_digest(
        token.encode(), headers.get(CSRF_HEADER, "").encode()
    )
    if browser and not form and not good:  # the login form carries its token in its body
        raise Problem("cross_site")


T = TypeVar("T")
_CALLERS = 10_000
_BOUNDS = (0.005, 0.025, 0.1, 0.25, 1.0, 5.0)
_COUNTS = ("images_read", "images_refused", "decoders_ended", "sign_ins_refused")


class Buckets:
    """A rate limit per caller, by token buckets; the least recent callers are forgotten first.

    Parameters:
        per_minute: requests per minute.
        burst: requests at once.
        clock: returns the time in seconds.
    """

    def __init__(
        self, per_minute: int, burst: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pace, self._burst, self._clock = per_minute / 60.0, float(burst), clock
        self._callers: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._guard = threading.Lock()

    def take(self, caller: str) -> bool:
        """Take a token from a caller's bucket, and return whether it had one."""
        now = self._clock()
        with self._guard:
            tokens, updated = self._callers.pop(caller, (self._burst, now))
            tokens = min(self._burst, tokens + (now - updated) * self._pace)
            allowed = tokens >= 1
            self._callers[caller] = (tokens - allowed, now)
            if len(self._callers) > _CALLERS:
                self._callers.popitem(last=False)
            return allowed

    def __len__(self) -> int:
        return len(self._callers)


class Lane:
    """Separate threads for work that may wait, such as a charge, so that it delays nothing else.

    Parameters:
        threads: how much runs at once.
        waiting: how much more may wait.
    """

    def __init__(self, threads: int, waiting: int) -> None:
        self._threads, self._most = threads, threads + waiting
        self._limiter: anyio.CapacityLimiter | None = None
        self._inside = 0

    async def run(self, work: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Run a blocking function; raise `Problem("busy")` if too many calls wait already."""
        if self._inside >= self._most:
            raise Problem("busy")
        if self._limiter is None:  # it needs the event loop, so it is not made in __init__
            self._limiter = anyio.CapacityLimiter(self._threads)
        self._inside += 1
        try:
            return await to_thread.run_sync(
                partial(work, *arguments, **options), limiter=self._limiter
            )
        finally:
            self._inside -= 1


class Metrics:
    """Counters in Prometheus' text format; labels are route templates, never paths or names."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "blindsight_requests",
            "Answered requests.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "blindsight_request_seconds",
            "Seconds until requests were answered.",
            ("route",),
            buckets=_BOUNDS,
            registry=self._registry,
        )
        self._counts = {
            name: Counter(f"blindsight_{name}", name.replace("_", " "), registry=self._registry)
            for name in _COUNTS
        }
        self._started = time.time()

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request and its time."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def count(self, name: str) -> None:
        """Add one to a counter, such as "images_read"."""
        self._counts[name].inc()

    def page(self, gauges: dict[str, float]) -> bytes:
        """Return all counters and the given gauges in Prometheus' text format."""
        now = CollectorRegistry()
        families = [
            GaugeMetricFamily(f"blindsight_{name}", name.replace("_", " "), value=value)
            for name, value in sorted(
                (gauges | {"up_seconds": time.time() - self._started}).items()
            )
        ]
        now.register(_Gauges(families))
        return generate_latest(self._registry) + generate_latest(now)


class _Gauges:
    """A collector of gauges that are measured once."""

    def __init__(self, gauges: list[GaugeMetricFamily]) -> None:
        self._gauges = gauges

    def collect(self) -> list[GaugeMetricFamily]:
        return self._gauges
