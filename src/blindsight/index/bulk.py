"""Hashing of sets too large for one machine: the same work, in this process or on a Ray cluster.

A set is cut into shards. Whatever makes them, this process (`Here`) or many (`OnRay`), the output
is the same: a photo's noise comes from the owner's vault, or from a seed in a simulation; a block
of sketches (`sketch_to`) without a seed asks the operating system. A shard of a worker is on the
disk, once, before anyone hears of it, so a worker that dies loses nothing and nothing is drawn a
second time:

    SPOOL/job.json   the job's number in the ledger, what it works on, and which run may write
    SPOOL/KEY.shard  a finished shard: its noise is drawn, so it is a release; empty once it has
    been taken in

A retry must not draw the noise of a shard again: two noisy copies of one image tell more than one.
A shard is therefore written under a temporary name and then linked to its own, which only one
writer can do; a second writer discards its copy. Files that a worker left unfinished are deleted.
The folder needs a file system with hard links that all workers see.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks, durable, storage
from blindsight.core.errors import BlindsightError, HostileFile, InvalidData, InvalidParameter
from blindsight.data import ImageSet, to_rgb
from blindsight.data.confined import decode_image
from blindsight.data.sources import pixel_digest, recognising
from blindsight.encoders.base import Preparation
from blindsight.index import CodeIndex
from blindsight.index.encoder import release_named
from blindsight.privacy.vault import RecordSource, Vault

if TYPE_CHECKING:
    from blindsight.index.bulk_sketching import sketch_to

__all__ = [
    "HERE",
    "Here",
    "OnRay",
    "Pool",
    "Released",
    "Spool",
    "Wanted",
    "hash_to",
    "pool_at",
    "records_of",
    "release_named",
    "sketch_to",
]

Contents = tuple[dict[str, NDArray[Any]], dict[str, Any]]
_KIND = "shard"
_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{16}(\.part)?")


@dataclass(frozen=True)
class Spool:
    """The folder of shards as one run uses it; plain values, so that workers can receive it.

    Parameters:
        path: the folder, which every worker must see.
        subject: what the job works on; a folder begun for something else is refused.
        number: by which the ledger knows the job; kept over all its runs.
        run: this run's; a straggler of an earlier run may no longer write.
    """

    path: Path
    subject: str
    number: str
    run: str

    @classmethod
    def begin(cls, path: str | Path, subject: str) -> Spool:
        """Open or make the folder for a run; shards that an earlier run did not finish go."""
        folder = Path(path).resolve()
        durable.make_folder(folder)  # shards hold names: nobody else's business
        job = folder / "job.json"
        number = secrets.token_hex(8)
        if job.exists():
            earlier = _read(job)
            if earlier["about"] != subject:
                raise InvalidData(
                    f"{folder} was begun from other images or with other parameters. Delete it."
                )
            number = earlier["number"]
        elif not all(_left_over(path) for path in folder.iterdir()):
            raise InvalidData(f"{folder} is not a folder of shards. Move it away.")
        spool = cls(folder, subject, number, secrets.token_hex(8))
        fields = {"about": subject, "number": number, "run": spool.run}
        storage.write_atomically(job, json.dumps(fields).encode())
        for left in folder.iterdir():
            if left != job and (left.suffix != ".shard" or not left.stat().st_size):
                left.unlink(missing_ok=True)
        return spool

    def has(self, key: str) -> bool:
        """Whether the shard was made; refuses a worker of another folder or of an earlier run."""
        job = self.path / "job.json"
        if not job.exists() or _read(job)["run"] != self.run:
            raise InvalidData(
                f"this worker does not see the run's folder {self.path}, or another run has taken "
                "it over. Put the output on a file system that all workers share, and run one job "
                "at a time."
            )
        return self._place(key).exists()

    def publish(
        self, key: str, arrays: Mapping[str, NDArray[Any]], fields: Mapping[str, Any]
    ) -> bool:
        """Publish a finished shard on the disk; return False if another worker was first."""
        written = self.path / f".{key}.{secrets.token_hex(8)}"
        content = storage.to_bytes(kind=_KIND, arrays=arrays, fields=fields)
        try:
            durable.write_file(written, content)  # which does not make the folder anew
            if self.has(key):
                return False
            durable.link_new(written, self._place(key))
        except FileExistsError:
            return False
        except FileNotFoundError:
            self.has(key)  # says that the folder is gone
            raise
        finally:
            written.unlink(missing_ok=True)
        return True

    def finished(self) -> Iterator[str]:
        """Yield the keys of shards that were made and not yet stored."""
        for shard in sorted(self.path.glob("*.shard")):
            if shard.stat().st_size:
                yield shard.stem

    def read(self, key: str) -> Contents:
        """Return the arrays and fields of a finished shard."""
        return storage.load(self._place(key), kind=_KIND)

    def taken(self, key: str) -> None:
        """Empty a shard that was stored elsewhere; its name stops workers from making it again."""
        storage.write_atomically(self._place(key), b"")

    def close(self) -> None:
        """Remove the folder, when the job is done."""
        durable.remove(self.path / "job.json")
        while self.path.exists():  # a straggler may make and delete a file before it misses the job
            try:
                shutil.rmtree(self.path)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                    raise

    def _place(self, key: str) -> Path:
        return self.path / f"{key}.shard"


def _left_over(path: Path) -> bool:
    """Whether a file was left by a killed run: unfinished, or the empty file of a stored shard."""
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
    """Makes a shard of each of the `parts` (key, input of the work), and yields it when finished.

    A shard counts as stored when the next one is asked for.
    """

    @property
    def shard(self) -> int: ...

    @property
    def threads(self) -> int | None: ...

    def run(
        self, work: Work, parts: Iterable[tuple[str, Any]], spool: Spool | None
    ) -> Iterator[Contents]: ...


@dataclass(frozen=True)
class Here:
    """Makes the shards in this process, one after the other."""

    shard: int = 64
    threads: int | None = None

    def run(
        self, work: Work, parts: Iterable[tuple[str, Any]], spool: Spool | None
    ) -> Iterator[Contents]:
        """Make each shard when it is asked for."""
        for _, part in parts:
            yield work(part)


HERE = Here()


@dataclass(frozen=True)
class OnRay:
    """Makes the shards on workers of a Ray cluster, one core each, a few shards ahead of those
    stored.

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

    def run(
        self, work: Work, parts: Iterable[tuple[str, Any]], spool: Spool | None
    ) -> Iterator[Contents]:
        """Yield shards in the order in which they are finished; each is on the disk first."""
        if spool is None:
            raise InvalidParameter("workers need a folder for their shards, which all of them see.")
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
        """Connect to a cluster for one job; a connection that the caller made is used and left
        open.
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
    """Refuse an address where nothing listens; Ray itself would try for minutes."""
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
    """Return `Here` for None, else `OnRay` at that address, as the option --ray means it."""
    return HERE if address is None else OnRay(address)


def _make(work: Work, key: str, part: Any, spool: Spool) -> None:
    """Make one shard on a worker.

    A retry of one that died after writing finds the shard there and leaves it.
    """
    if not spool.has(key):
        spool.publish(key, *work(part))


def _result(ray: Any, reference: Any, key: str) -> None:
    """Wait for a task and raise its error; name a shard whose workers died again and again."""
    try:
        ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, BlindsightError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        raise BlindsightError(
            f"shard {key} was given up: its workers died again and again ({type(error).__name__}), "
            "perhaps of too little memory. What is finished is kept: run the same command again to "
            "continue."
        ) from error


Release = Callable[[list[str], NDArray[np.uint8], RecordSource | None], NDArray[np.uint8]]
Progress = Callable[[int, int], None]
Find = Callable[[bytes], NDArray[np.uint8] | None]


class LazyRows(Protocol):
    """Images in files, or vectors in a file, that are read when they are needed."""

    def __getitem__(self, index: int) -> NDArray[Any]: ...
    def content(self, index: int) -> bytes: ...
    def take(self, indices: NDArray[np.int64]) -> LazyRows: ...


Pictures = NDArray[np.uint8] | LazyRows


@dataclass(frozen=True)
class Wanted:
    """A code that an index should hold: its key, its record, and the row of an image of it."""

    key: str
    record: str
    row: int


@dataclass(frozen=True)
class Released:
    """What one run did.

    Parameters:
        released: records whose codes are in the index now and were not before.
        restored: those of them that had been released before, and cost nothing.
        known: records whose codes were in the index before.
        refused: the images that could not be read, with the reason.
    """

    released: int
    restored: int
    known: int
    refused: tuple[tuple[str, str], ...]


def records_of(images: ImageSet, vault: Vault) -> list[str]:
    """Return the record of each image, which its pixels determine."""
    pixels: Any = images.images
    if not hasattr(pixels, "content"):
        return [vault.record_of(pixel_digest(pixels[row])) for row in range(len(images))]
    with recognising(vault, pixels.limits) as recognise:
        names = images.names if images.names is not None else [""] * len(images)
        return [recognise(pixels.content(row), str(names[row])) for row in range(len(images))]


class WorkOptions(TypedDict, total=False):
    """Further arguments of `hash_to` and `hash_wanted`."""

    mechanism_id: str
    keyed: bool
    size: int | Preparation | None
    pool: Pool
    progress: Progress | None


def hash_to(
    index: CodeIndex,
    images: ImageSet,
    release: Release,
    vault: Vault,
    *,
    number: str,
    spool: str | Path,
    wanted: Sequence[Wanted] | None = None,
    **options: Unpack[WorkOptions],
) -> Released:
    """Release the codes of all records that are not in the index yet; codes that were released
    before are taken from the vault.

    Charge the ledger before you call this, under `number`: one charge covers the set, because every
    distinct image is released once, however often the job is stopped and continued, whoever makes
    the shards, and whatever is lost.

    Parameters:
        index: where the codes go.
        images: the set.
        release: ids, images and a vault's source to noisy packed codes; it travels to the workers.
        vault: the owner's vault.
        number: the release's (`Vault.release_of`); another mechanism or function has another.
        spool: a folder for unfinished business, which the workers must see; it is gone when all is
            done.
        wanted: which codes the index should hold; by default one for each distinct image, under its
            record's id.
        mechanism_id: what the mechanism is applied to, for the noise (`Vault.source`).
        keyed: draw the vault's permanent noise; False leaves the dice to `release` (a simulation's
            seed).
        size: images are made RGB of this side; None if they are of one shape already.
        pool: `Here()`, or `OnRay(...)`. Workers get the keys of their records' noise, never the
            vault's.
        progress: called with (done, total).
    """
    if wanted is None:
        wanted = _distinct(records_of(images, vault))
    names = images.names if images.names is not None else np.arange(len(images))
    named = [str(name) for name in names]
    return hash_wanted(
        index,
        images.images,
        named,
        wanted,
        release,
        vault,
        number=number,
        spool=spool,
        **options,
    )


def hash_wanted(
    index: CodeIndex,
    images: Pictures,
    names: Sequence[str],
    wanted: Sequence[Wanted],
    release: Release,
    vault: Vault,
    *,
    number: str,
    spool: str | Path,
    mechanism_id: str = "",
    keyed: bool = True,
    size: int | Preparation | None = None,
    pool: Pool = HERE,
    find: Find | None = None,
    progress: Progress | None = None,
) -> Released:
    """Release the codes of the wanted records that are not in the index yet; see `hash_to`.

    Parameters:
        images: pixels (n, h, w, 3), or files or vectors that are read when their turn comes.
        names: what each image is called in messages.
        wanted: which codes the index should hold.
        find: the picture of a file that was decoded before, by its SHA-256; None where it was not.
    """
    listed = sorted(wanted, key=attrgetter("record"))
    # This process needs no folder of shards, unless workers of an earlier run left one.
    held = (
        None if isinstance(pool, Here) and not Path(spool).exists() else Spool.begin(spool, number)
    )
    before = vault.codes(number)
    stored = {key for ids, _ in index.items() for key in ids.tolist()}
    restored = sum(each.record in before and each.key not in stored for each in listed)
    taking = _Taking(index, vault, number, {each.record: each for each in listed}, stored)
    if held is not None:
        for key in list(held.finished()):
            taking.take(held.read(key))
            held.taken(key)
    missing = [each for each in listed if each.key not in taking.stored]
    known = len(listed) - len(missing)
    # What was released before and is not in the index: the same codes, at no further cost.
    again = [each.record for each in missing if each.record in before]
    if again:
        taking.store(again, np.stack([np.frombuffer(before[each], np.uint8) for each in again]))
    missing = [each for each in missing if each.key not in taking.stored]
    done = len(listed) - len(missing)
    report = progress or (lambda done, total: None)
    report(done, len(listed))
    parts = _parts(images, names, missing, pool.shard, vault, mechanism_id if keyed else None)
    encode = _Encode(release, size, find if pool is HERE else None)
    for contents in pool.run(encode, parts, held):
        done += taking.take(contents)
        report(done, len(listed))
    if held is not None:
        held.close()
    released = len(listed) - known - len(taking.refused)
    return Released(released, restored, known, tuple(sorted(taking.refused)))


@dataclass(frozen=True)
class _Taking:
    """Stores finished shards: checks them, notes their codes in the vault, then adds them to the
    index.
    """

    index: CodeIndex
    vault: Vault
    number: str
    wanted: Mapping[str, Wanted]
    stored: set[int | str]  # keys in the index
    refused: list[tuple[str, str]] = field(default_factory=list)

    def take(self, contents: Contents) -> int:
        """Store a shard's codes; return how many images it accounts for."""
        arrays, fields = contents
        rows = []
        # The noise belongs to what the file held when it was listed; on other content it would be
        # used twice.
        same = self.vault.shows(
            [bytes.fromhex(each) for each in fields["digests"]], fields["records"]
        )
        for row, (name, unchanged) in enumerate(zip(fields["names"], same, strict=True)):
            if unchanged:
                rows.append(row)
            else:
                self.refused.append(
                    (str(name), f"{name} changed while it was read. Run the command again.")
                )
        self.refused.extend((str(name), str(why)) for name, why in fields["refused"])
        records = [fields["records"][row] for row in rows]
        if records:
            codes = self.vault.keep_codes(self.number, records, arrays["codes"][rows])
            self.store(records, codes)
        return len(fields["records"]) + len(fields["refused"])

    def store(self, records: Iterable[str], codes: NDArray[np.uint8]) -> None:
        """Add the wanted codes that the index does not hold yet."""
        new = [
            (self.wanted[record].key, row)
            for row, record in enumerate(records)
            if record in self.wanted and self.wanted[record].key not in self.stored
        ]
        if new:
            keys = [key for key, _ in new]
            self.index.add(codes[[row for _, row in new]], ids=keys)
            self.stored.update(keys)


@dataclass(frozen=True)
class _Part:
    """One shard of work as plain values, which can be sent to a worker."""

    names: list[str]
    records: list[str]
    images: Any
    source: RecordSource | None


@dataclass(frozen=True)
class _Encode:
    """The work on one shard: read, encode and draw the noise; files that cannot be read are named
    and left out.
    """

    release: Release
    size: int | Preparation | None
    find: Find | None = None

    def __call__(self, part: _Part) -> Contents:
        readable: list[int] = []
        digests: list[str] = []
        read: list[NDArray[np.uint8]] = []
        refused: list[tuple[str, str]] = []
        for row, name in enumerate(part.names):
            try:
                digest, image = self._picture(part, row, name)
                read.append(image)
                readable.append(row)
                digests.append(digest.hex())
            except BlindsightError as error:
                refused.append((name, str(error)))
        # A simulation goes by what an image shows, so that it is the same in every vault.
        labels = digests if part.source is None else [part.records[row] for row in readable]
        codes = (
            self.release(labels, np.stack(read), part.source)
            if readable
            else np.empty((0, 1), np.uint8)
        )
        names, records = (
            [part.names[row] for row in readable],
            [part.records[row] for row in readable],
        )
        return {"codes": codes}, {
            "names": names,
            "records": records,
            "digests": digests,
            "refused": refused,
        }

    def _picture(self, part: _Part, row: int, name: str) -> tuple[bytes, NDArray[np.uint8]]:
        """Return the digest of an image, and its picture at the network's size."""
        if self.find is not None and hasattr(part.images, "content"):
            digest = hashlib.sha256(part.images.content(row)).digest()
            picture = self.find(digest)
            if picture is not None:
                return digest, picture
        digest, image = _read_image(part.images, row, name)
        if isinstance(self.size, Preparation):
            return digest, self.size.prepare(image)
        return digest, image if self.size is None else to_rgb(image, self.size)


def _parts(
    images: Pictures,
    names: Sequence[str],
    missing: list[Wanted],
    shard: int,
    vault: Vault,
    mechanism_id: str | None,
) -> Iterator[tuple[str, _Part]]:
    for number, start in enumerate(range(0, len(missing), shard)):
        chosen = missing[start : start + shard]
        records = [each.record for each in chosen]
        rows = np.array([each.row for each in chosen], np.int64)
        source = None if mechanism_id is None else vault.source(records, about=mechanism_id)
        named = [names[row] for row in rows]
        shown = images[rows] if isinstance(images, np.ndarray) else images.take(rows)
        yield f"{number:09d}", _Part(named, records, shown, source)


def _distinct(records: Sequence[str]) -> list[Wanted]:
    """Return one code to hold for each distinct image, ordered by id, so that the order tells
    nothing.
    """
    first: dict[str, int] = {}
    for row, record in enumerate(records):
        first.setdefault(record, row)
    return [Wanted(record, record, first[record]) for record in sorted(first)]


def _read_image(images: Any, row: int, name: str) -> tuple[bytes, NDArray[np.uint8]]:
    """Return a digest (of the file's bytes, or of pixels in memory) and the image or vector itself.

    Both are of the same bytes: a file may change between two looks at it.
    """
    if not hasattr(images, "content"):
        return pixel_digest(images[row]), images[row]
    content = images.content(row)
    if not hasattr(images, "limits"):  # vectors, which need no decoding
        return hashlib.sha256(content).digest(), images[row]
    scale = getattr(images, "at_least", None)
    return hashlib.sha256(content).digest(), decode_image(
        content, name=Path(name).name, limits=images.limits, at_least=scale
    )


def __getattr__(name: str) -> Any:
    # Sketching brings seconds of imports that hashing has no use for.
    if name == "sketch_to":
        from blindsight.index.bulk_sketching import sketch_to

        return sketch_to
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
