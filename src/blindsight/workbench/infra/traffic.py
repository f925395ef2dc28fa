"""How much one caller may ask, how many may wait for the ledger, and counts for the metrics page.

The rate limit is our own: a token bucket of twenty lines with a bound on callers, which the
`limits` package does not keep (its memory grows with every address seen). The counts are
prometheus-client's.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import anyio
from anyio import to_thread
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

from blindsight.workbench.infra.problems import Problem

__all__ = ["Buckets", "Lane", "Metrics"]

T = TypeVar("T")
_CALLERS = 10_000
_BOUNDS = (0.005, 0.025, 0.1, 0.25, 1.0, 5.0)
_COUNTS = ("images_read", "images_refused", "decoders_ended", "sign_ins_refused")


class Buckets:
    """`take` says whether a caller may go on.

    The least recently seen callers are forgotten first.
    """

    def __init__(
        self, per_minute: int, burst: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pace, self._burst, self._clock = per_minute / 60.0, float(burst), clock
        self._callers: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._guard = threading.Lock()

    def take(self, caller: str, cost: float = 1.0) -> bool:
        """Use up one request of a caller's allowance, if there is one left; a negative cost gives
        it back.
        """
        now = self._clock()
        with self._guard:
            left, seen = self._callers.pop(caller, (self._burst, now))
            left = min(self._burst, left + (now - seen) * self._pace)
            allowed = left >= cost
            self._callers[caller] = (min(self._burst, left - cost) if allowed else left, now)
            if len(self._callers) > _CALLERS:
                self._callers.popitem(last=False)
            return allowed

    def __len__(self) -> int:
        return len(self._callers)


class Lane:
    """Threads of their own for work that may have to wait, such as a charge: who waits there holds
    up nobody else.
    """

    def __init__(self, threads: int, waiting: int) -> None:
        self._threads, self._most = threads, threads + waiting
        self._limiter: anyio.CapacityLimiter | None = None
        self._inside = 0

    async def run(self, work: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Run a blocking function; `Problem("busy")` where too many wait already."""
        if self._inside >= self._most:
            raise Problem("busy")
        if self._limiter is None:  # it belongs to the event loop, which is not there at birth
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
            "Their time.",
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
        """One answered request."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def count(self, name: str) -> None:
        """Count one more: an image read or refused, or a decoder that was ended."""
        self._counts[name].inc()

    def page(self, gauges: dict[str, float]) -> bytes:
        """All counts, and what is measured at this moment."""
        now = CollectorRegistry()
        found = [
            GaugeMetricFamily(f"blindsight_{name}", name.replace("_", " "), value=value)
            for name, value in sorted(
                (gauges | {"up_seconds": time.time() - self._started}).items()
            )
        ]
        now.register(_Once(found))
        return generate_latest(self._registry) + generate_latest(now)


class _Once:
    """Gauges as a collector."""

    def __init__(self, gauges: list[GaugeMetricFamily]) -> None:
        self._gauges = gauges

    def collect(self) -> list[GaugeMetricFamily]:
        return self._gauges
