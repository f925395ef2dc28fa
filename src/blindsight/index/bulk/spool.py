"""A folder where workers leave finished shards, each of them exactly once.

    SPOOL/job.json   the job's number in the ledger, what it works on, and which run may write
    SPOOL/KEY.shard  a finished shard: its noise is drawn, so it is a release; empty once it has
    been taken in

A retry must not draw the noise of a shard again: two noisy copies of one image tell more than one.
So a shard is written beside its place and then linked into it, which only one writer can; whoever
comes second throws its own away unseen. What a worker left half-written when it died is swept up.
Needs a file system with hard links, seen by all workers.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from blindsight.core import durable, storage
from blindsight.core.errors import HostileFile, InvalidData

__all__ = ["Contents", "Spool"]

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
