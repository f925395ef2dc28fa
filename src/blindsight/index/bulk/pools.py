"""Who makes the shards of a job (this process or a Ray cluster), and the folder of finished shards.

    SPOOL/job.json   the job's number in the ledger, what it works on, and which run may write
    SPOOL/KEY.shard  a finished shard: its noise is drawn, so it is a release; empty once it has
    been taken in

A retry must not draw the noise of a shard again: two noisy copies of one image tell more than one.
A shard is therefore written under a temporary name and then linked to its own, which only one
writer can do; a second writer discards its copy. Files that a worker left unfinished are deleted.
The folder needs a file system with hard links that all workers see.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from blindsight.core import checks, durable, storage
from blindsight.core.errors import BlindsightError, HostileFile, InvalidData, InvalidParameter

__all__ = ["HERE", "Contents", "Here", "OnRay", "Pool", "Spool", "Work", "pool_at"]

Contents = tuple[dict[str, NDArray[Any]], dict[str, Any]]
_KIND = "shard"
_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{16}(\.part)?")


@dataclass(frozen=True)
class Spool:
    """One run's hold on the folder. Plain values, so that it travels to the workers.

    Parameters:
        path: the folder, which every worker must see.
        about: what the job works on; a folder begun for something else is refused.
        number: by which the ledger knows the job; kept over all its runs.
        run: this run's; a straggler of an earlier run may no longer write.
    """

    path: Path
    about: str
    number: str
    run: str

    @classmethod
    def begin(cls, path: str | Path, about: str) -> Spool:
        """Open the folder for a run, or make it; what an earlier run finished stays, what it left
        half-done goes.
        """
        folder = Path(path).resolve()
        durable.make_folder(folder)  # shards hold names: nobody else's business
        job = folder / "job.json"
        number = secrets.token_hex(8)
        if job.exists():
            found = _read(job)
            if found["about"] != about:
                raise InvalidData(
                    f"{folder} was begun from other images or with other parameters. Delete it."
                )
            number = found["number"]
        elif not all(_left_over(path) for path in folder.iterdir()):
            raise InvalidData(f"{folder} is not a folder of shards. Move it away.")
        spool = cls(folder, about, number, secrets.token_hex(8))
        fields = {"about": about, "number": number, "run": spool.run}
        storage.write_atomically(job, json.dumps(fields).encode())
        for left in folder.iterdir():
            if left != job and (left.suffix != ".shard" or not left.stat().st_size):
                left.unlink(missing_ok=True)
        return spool

    def has(self, key: str) -> bool:
        """Whether the shard was made; refuses a worker that looks at another folder, or comes too
        late.
        """
        job = self.path / "job.json"
        if not job.exists() or _read(job)["run"] != self.run:
            raise InvalidData(
                f"this worker does not see the run's folder {self.path}, or another run has taken "
                "it over. Put the "
                "output on a file system that all workers share, and run one job at a time."
            )
        return self._place(key).exists()

    def publish(
        self, key: str, arrays: Mapping[str, NDArray[Any]], fields: Mapping[str, Any]
    ) -> bool:
        """Put a finished shard in its place, on the disk; False if another was first, and this one
        is gone.
        """
        written = self.path / f".{key}.{secrets.token_hex(8)}"
        storage.save(written, kind=_KIND, arrays=arrays, fields=fields)
        try:
            if self.has(key):
                return False
            durable.link_new(written, self._place(key))
        except FileExistsError:
            return False
        finally:
            written.unlink(missing_ok=True)
        return True

    def finished(self) -> Iterator[str]:
        """The keys of shards that were made and not yet taken in."""
        for place in sorted(self.path.glob("*.shard")):
            if place.stat().st_size:
                yield place.stem

    def read(self, key: str) -> Contents:
        """A finished shard."""
        return storage.load(self._place(key), kind=_KIND)

    def taken(self, key: str) -> None:
        """The shard is safe elsewhere: keep only its name, so that no straggler can make it
        again.
        """
        storage.write_atomically(self._place(key), b"")

    def close(self) -> None:
        """The job is done: remove the folder."""
        shutil.rmtree(self.path)

    def _place(self, key: str) -> Path:
        return self.path / f"{key}.shard"


def _left_over(path: Path) -> bool:
    """What a run leaves that was killed as it began or as it ended: unfinished files, and names of
    shards taken in.
    """
    return bool(_UNFINISHED.fullmatch(path.name)) or (
        path.suffix == ".shard" and not path.stat().st_size
    )


def _read(job: Path) -> dict[str, str]:
    try:
        fields = json.loads(job.read_bytes())
        return {name: str(fields[name]) for name in ("about", "number", "run")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HostileFile(
            f"{job} is not what it should be. Delete its folder to start anew."
        ) from error


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
            use a cluster.
        workers: how many at a time; None for as many as there are cores.
        retries: how often a shard whose worker died is given to another.
        shard: images a shard, where the work itself does not say.
        threads: a worker's, one per core.
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
