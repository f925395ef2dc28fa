"""Who makes the shards: this process, or the workers of a Ray cluster.

Both give them back one by one.
"""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from blindsight.core import checks
from blindsight.core.errors import BlindsightError, InvalidParameter
from blindsight.index.bulk.spool import Contents, Spool

__all__ = ["HERE", "Here", "OnRay", "Pool", "Work", "pool_at"]

Work = Callable[[Any], Contents]


class Pool(Protocol):
    """Makes shards of `parts`, which are (key, what the work takes), and gives each back when it is
    finished.

    A shard counts as taken in when the next one is asked for.
    """

    @property
    def shard(self) -> int: ...

    @property
    def threads(self) -> int | None: ...

    def run(
        self, work: Work, parts: Iterable[tuple[str, Any]], spool: Spool
    ) -> Iterator[Contents]: ...


@dataclass(frozen=True)
class Here:
    """This process, one shard after the other; a shard goes straight to where it belongs."""

    shard: int = 64
    threads: int | None = None

    def run(self, work: Work, parts: Iterable[tuple[str, Any]], spool: Spool) -> Iterator[Contents]:
        """Make each shard when it is asked for."""
        for _, part in parts:
            yield work(part)


HERE = Here()


@dataclass(frozen=True)
class OnRay:
    """Workers of a Ray cluster, one core each, a few shards ahead of what has been taken in.

    Parameters:
        address: "local" starts workers on this machine; "auto", "HOST:6379" or "ray://HOST:10001"
        use a cluster. workers: how many at a time; None for as many as there are cores. retries:
        how often a shard whose worker died is given to another. shard: images a shard, where the
        work itself does not say. threads: a worker's, one per core.
    """

    address: str = "local"
    workers: int | None = None
    retries: int = 10
    shard: int = 512
    threads: int | None = 1

    def __post_init__(self) -> None:
        if self.workers is not None:
            checks.whole("workers", self.workers)
        checks.whole("retries", self.retries, least=0)
        checks.whole("shard", self.shard)

    def run(self, work: Work, parts: Iterable[tuple[str, Any]], spool: Spool) -> Iterator[Contents]:
        """Shards in the order in which they are finished; what leaves a worker is on the disk
        first.
        """
        with self._connected() as ray:
            ahead = self.workers or 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
            make = ray.remote(num_cpus=1, max_retries=self.retries)(_make)
            shared, queue = ray.put(work), iter(parts)
            waiting: dict[Any, str] = {}
            try:
                while True:
                    while len(waiting) < ahead and (following := next(queue, None)) is not None:
                        key, part = following
                        waiting[make.remote(shared, key, part, spool)] = key
                    if not waiting:
                        return
                    ready, _ = ray.wait(list(waiting), num_returns=1)
                    key = waiting.pop(ready[0])
                    _result(ray, ready[0], key)
                    yield spool.read(key)
                    spool.taken(key)
            finally:
                for reference in waiting:
                    ray.cancel(reference)

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """A cluster for the time of a job; one that the caller has connected to already is used and
        left alone.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ray: Any = checks.optional_module("ray", extra="cluster")
        if ray.is_initialized():
            yield ray
            return
        reach(self.address)
        local = self.address == "local"
        options: dict[str, Any] = (
            {"num_cpus": self.workers, "include_dashboard": False} if local else {}
        )
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", ResourceWarning
            )  # Ray leaves /dev/null open while it starts
            try:
                ray.init(
                    address=self.address, log_to_driver=False, logging_level="ERROR", **options
                )
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise InvalidParameter(
                    f"no Ray cluster answers at {self.address!r}: {error}"
                ) from error
        try:
            yield ray
        finally:
            ray.shutdown()


def reach(address: str, *, seconds: float = 5.0) -> None:
    """Refuse an address where nothing listens: Ray itself would knock for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address in ("local", "auto"):
        return
    if not host or not port.isdigit():
        raise InvalidParameter(
            f"a Ray address is local, auto, HOST:6379 or ray://HOST:10001, got {address!r}."
        )
    try:
        socket.create_connection((host, int(port)), timeout=seconds).close()
    except (OSError, OverflowError) as error:
        raise InvalidParameter(
            f"no Ray cluster answers at {address!r}: {error}. Start one with: ray start --head"
        ) from error


def pool_at(address: str | None) -> Pool:
    """`Here` for None, else `OnRay` at that address: what a command's --ray option means."""
    return HERE if address is None else OnRay(address)


def _make(work: Work, key: str, part: Any, spool: Spool) -> None:
    """The task of a worker.

    A retry of one that died after writing finds the shard there and leaves it.
    """
    if not spool.has(key):
        spool.publish(key, *work(part))


def _result(ray: Any, reference: Any, key: str) -> None:
    """Wait for a task; its own errors come through, a shard that keeps killing its workers is
    named.
    """
    try:
        ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, BlindsightError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        raise BlindsightError(
            f"shard {key} was given up: its workers died again and again ({type(error).__name__}), "
            "perhaps of too "
            "little memory. What is finished is kept: run the same command again to continue."
        ) from error
