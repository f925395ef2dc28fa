"""How much one caller may ask: a token bucket for each key or address, and counts for the metrics page."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator

__all__ = ["Buckets", "Metrics"]

_CALLERS = 10_000
_BOUNDS = (0.005, 0.025, 0.1, 0.25, 1.0, 5.0)


class Buckets:
    """`take` says whether a caller may go on. The least recently seen callers are forgotten first."""

    def __init__(self, per_minute: int, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._pace, self._burst, self._clock = per_minute / 60.0, float(burst), clock
        self._callers: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._guard = threading.Lock()

    def take(self, caller: str, cost: float = 1.0) -> bool:
        """Use up one request of a caller's allowance, if there is one left."""
        now = self._clock()
        with self._guard:
            left, seen = self._callers.pop(caller, (self._burst, now))
            left = min(self._burst, left + (now - seen) * self._pace)
            allowed = left >= cost
            self._callers[caller] = (left - cost if allowed else left, now)
            if len(self._callers) > _CALLERS:
                self._callers.popitem(last=False)
            return allowed

    def __len__(self) -> int:
        return len(self._callers)


class Metrics:
    """Counters in Prometheus' text format; labels are route templates, never paths or names."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._requests: dict[tuple[str, str, int], int] = defaultdict(int)
        self._seconds: dict[str, list[float]] = defaultdict(lambda: [0.0] * (len(_BOUNDS) + 2))
        self._counts: dict[str, int] = defaultdict(int)
        self._started = time.time()

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """One answered request."""
        with self._guard:
            self._requests[(method, route, status)] += 1
            cells = self._seconds[route]
            for i, bound in enumerate(_BOUNDS):
                cells[i] += seconds <= bound
            cells[-2] += 1
            cells[-1] += seconds

    def count(self, name: str) -> None:
        """One more of something: charges, refused images, killed decoders."""
        with self._guard:
            self._counts[name] += 1

    def lines(self, gauges: dict[str, float]) -> Iterator[str]:
        """The page."""
        with self._guard:
            requests, counts = dict(self._requests), dict(self._counts)
            seconds = {route: list(cells) for route, cells in self._seconds.items()}
        yield "# TYPE blindsight_requests_total counter"
        for (method, route, status), value in sorted(requests.items()):
            yield f'blindsight_requests_total{{method="{method}",route="{route}",status="{status}"}} {value}'
        yield "# TYPE blindsight_request_seconds histogram"
        for route, cells in sorted(seconds.items()):
            for bound, within in zip((*_BOUNDS, "+Inf"), cells[:-1], strict=True):
                yield f'blindsight_request_seconds_bucket{{route="{route}",le="{bound}"}} {within:g}'
            yield f'blindsight_request_seconds_sum{{route="{route}"}} {cells[-1]:.6f}'
            yield f'blindsight_request_seconds_count{{route="{route}"}} {cells[-2]:g}'
        for name, count in sorted(counts.items()):
            yield f"# TYPE blindsight_{name}_total counter"
            yield f"blindsight_{name}_total {count}"
        for name, gauge in sorted((gauges | {"up_seconds": time.time() - self._started}).items()):
            yield f"# TYPE blindsight_{name} gauge"
            yield f"blindsight_{name} {gauge:g}"
