"""Bulk hashing: images of a set or a folder to noisy codes in an index, each image released once."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import BlindsightError
from blindsight.data import ImageSet, to_rgb
from blindsight.index import CodeIndex
from blindsight.index.bulk.pools import HERE, Pool
from blindsight.index.bulk.spool import Contents, Spool
from blindsight.index.photos import Progress, Released
from blindsight.privacy.entropy import part_state

__all__ = ["Release", "hash_to", "release_named"]

Release = Callable[[list[str], NDArray[np.uint8]], NDArray[np.uint8]]


def release_named(hasher: Any, names: list[str], rows: NDArray[Any]) -> NDArray[np.uint8]:
    """The noisy codes of feature rows. In a simulation each image's noise hangs on the seed and its name alone."""
    if hasher.random_state is None:
        return hasher.transform(rows)
    return np.concatenate([_own_dice(hasher, name).transform(row[None]) for name, row in zip(names, rows, strict=True)])


def hash_to(
    index: CodeIndex,
    images: ImageSet,
    release: Release,
    *,
    spool: str | Path,
    about: str = "",
    size: int | None = None,
    pool: Pool = HERE,
    progress: Progress | None = None,
) -> Released:
    """Release the codes of all images that are not in the index yet, under their names (row numbers without).

    Charge the ledger before you call this: one charge covers the set, because every image is released once, however
    often the job is stopped and continued, and whoever makes the shards.

    Parameters
    ----------
    release: names and images of a batch to noisy packed codes; it travels to the workers.
    spool: a folder for unfinished business, which the workers must see; it is gone when all is done.
    about: what distinguishes this job, so that another's leftovers are not taken for its own.
    size: images are made RGB of this side; None if they are of one shape already.
    pool: `Here()`, or `OnRay(...)`.
    """
    held = Spool.begin(spool, about)
    for key in list(held.finished()):
        _take_in(index, held.read(key))
        held.taken(key)
    named = _names(images)
    missing = np.array([i for i, name in enumerate(named) if name not in index], dtype=np.int64)
    known = done = len(named) - len(missing)
    released, refused = 0, []
    if progress is not None:
        progress(done, len(named))
    for contents in pool.run(_Encode(release, size), _parts(images, named, missing, pool.shard), held):
        released += _take_in(index, contents)
        refused += [(str(name), str(why)) for name, why in contents[1]["refused"]]
        done += len(contents[1]["names"]) + len(contents[1]["refused"])
        if progress is not None:
            progress(done, len(named))
    held.close()
    return Released(released, known, tuple(sorted(refused)))


@dataclass(frozen=True)
class _Encode:
    """The work on one shard: read, encode, draw the noise; what cannot be read is named and left out."""

    release: Release
    size: int | None

    def __call__(self, part: tuple[list[str], Any]) -> Contents:
        names, images = part
        kept: list[str] = []
        read: list[NDArray[np.uint8]] = []
        refused: list[tuple[str, str]] = []
        for i, name in enumerate(names):
            try:
                image = images[i]
                read.append(image if self.size is None else to_rgb(image, self.size))
                kept.append(name)
            except BlindsightError as error:
                refused.append((name, str(error)))
        codes = self.release(kept, np.stack(read)) if kept else np.empty((0, 1), np.uint8)
        return {"codes": codes}, {"names": kept, "refused": refused}


def _parts(
    images: ImageSet, named: list[str], missing: NDArray[np.int64], shard: int
) -> Iterator[tuple[str, tuple[list[str], Any]]]:
    for number, start in enumerate(range(0, len(missing), shard)):
        rows = missing[start : start + shard]
        yield f"{number:09d}", ([named[i] for i in rows], images.take(rows).images)


def _take_in(index: CodeIndex, contents: Contents) -> int:
    """Store a shard's codes, but for names that a crash left both in the index and in the shard."""
    arrays, fields = contents
    new = [i for i, name in enumerate(fields["names"]) if name not in index]
    if new:
        index.add(arrays["codes"][new], ids=[fields["names"][i] for i in new])
    return len(new)


def _names(images: ImageSet) -> list[str]:
    return [str(i) for i in range(len(images))] if images.names is None else images.names.tolist()


def _own_dice(hasher: Any, name: str) -> Any:
    own = copy.copy(hasher)
    number = int.from_bytes(hashlib.sha256(name.encode(errors="surrogateescape")).digest()[:8], "big")
    own.random_state = part_state(hasher.random_state, number)
    return own
