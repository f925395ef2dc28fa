"""Bulk hashing: images of a set or a folder to noisy codes in an index, each distinct image
released once.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import BlindsightError
from blindsight.data import ImageSet, to_rgb
from blindsight.data.confined import decode_image
from blindsight.data.sources import pixel_digest, recognising
from blindsight.encoders.base import Preparation
from blindsight.index import CodeIndex
from blindsight.index.bulk.pools import HERE, Contents, Pool, Spool
from blindsight.privacy import Guarantee
from blindsight.privacy.entropy import Source
from blindsight.privacy.vault import RecordSource, Vault

__all__ = [
    "PreparedPhotos",
    "Release",
    "Released",
    "Wanted",
    "hash_to",
    "prepared_photos",
    "records_of",
    "release_named",
]

Release = Callable[[list[str], NDArray[np.uint8], RecordSource | None], NDArray[np.uint8]]
Progress = Callable[[int, int], None]
_MOST_PREPARED = 2 << 30


@dataclass(frozen=True)
class Wanted:
    """One code that an index should hold: under which id, of which record, and which image of the
    set shows it.
    """

    key: str
    record: str
    row: int


@dataclass(frozen=True)
class Released:
    """What one run did: records released now, those that were there before, and images that could
    not be read.
    """

    released: int
    known: int
    refused: tuple[tuple[str, str], ...]


def records_of(images: ImageSet, vault: Vault) -> list[str]:
    """The record of each image, by its pixels."""
    pixels: Any = images.images
    if not hasattr(pixels, "content"):
        return [vault.record_of(pixel_digest(pixels[row])) for row in range(len(images))]
    with recognising(vault, pixels.limits) as recognise:
        names = images.names if images.names is not None else [""] * len(images)
        return [recognise(pixels.content(row), str(names[row])) for row in range(len(images))]


class PreparedPhotos:
    """Pictures at a network's size, of photos that were decoded to be recognised.

    Their codes are made later, after the charge, and without decoding the photos again. The
    pictures lie in a file without a name, which is gone when the process ends, however it ends.

    Parameters:
        folder: where the file is made: the vault, for the pictures are private.
        prepare: brings decoded pixels to the network's size, which is the same for all pictures.
        most_bytes: most bytes of the file; photos beyond it are decoded again.
    """

    def __init__(
        self,
        folder: Path,
        prepare: Callable[[NDArray[np.uint8]], NDArray[np.uint8]],
        *,
        most_bytes: int = _MOST_PREPARED,
    ) -> None:
        self.prepare = prepare
        self._most_bytes = most_bytes
        self._shape: tuple[int, ...] = ()
        self._size = 0
        self._rows: dict[bytes, int] = {}
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  (closed with this object)

    def keep(self, content: bytes, pixels: NDArray[np.uint8]) -> None:
        """Keep the picture of a file for `find`."""
        digest = hashlib.sha256(content).digest()
        at = len(self._rows) * self._size
        if digest not in self._rows and at + self._size <= self._most_bytes:
            picture = self.prepare(pixels)
            self._shape, self._size = picture.shape, picture.nbytes
            self._file.seek(at)
            self._file.write(picture.tobytes())
            self._rows[digest] = len(self._rows)

    def find(self, digest: bytes) -> NDArray[np.uint8] | None:
        """The picture of the file whose bytes have this SHA-256, or None."""
        row = self._rows.get(digest)
        if row is None:
            return None
        self._file.seek(row * self._size)
        return np.frombuffer(self._file.read(self._size), np.uint8).reshape(self._shape)

    def __del__(self) -> None:
        self._file.close()


def prepared_photos(folder: Path, coder: Any, *, here: bool) -> PreparedPhotos | None:
    """A place for pictures between scan and release, so that a photo is decoded once.

    None where photos are not decoded here (workers decode them themselves), and for a network that
    takes photos decoded at a reduced scale: photos are recognised by other pixels.
    """
    if not here or coder.recipe.image.preparation.at_least is not None:
        return None
    return PreparedPhotos(folder, coder.recipe.image.preparation.prepare)


def release_named(
    hasher: Any, names: list[str], rows: NDArray[Any], source: Source | None = None
) -> NDArray[np.uint8]:
    """The noisy codes of feature rows: each one's noise depends on its name and a vault's source,
    or a seed, alone.

    With neither, every call draws fresh noise, and is a further release.
    """
    if source is None and hasher.random_state is None:
        fresh: NDArray[np.uint8] = hasher.transform(rows)
        return fresh
    own = copy.copy(hasher)
    if source is not None:
        own.random_state = source
        own.guarantee_ = _keyed(hasher.guarantee_)
    codes: NDArray[np.uint8] = own.transform(rows, names=names)
    return codes


@lru_cache(maxsize=4)
def _keyed(guarantee: Guarantee) -> Guarantee:
    """The same with a vault's noise; priced once, not with every shard."""
    return dataclasses.replace(guarantee, entropy="keyed")


def hash_to(
    index: CodeIndex,
    images: ImageSet,
    release: Release,
    vault: Vault,
    *,
    number: str,
    spool: str | Path,
    wanted: Sequence[Wanted] | None = None,
    about: str = "",
    keyed: bool = True,
    size: int | Preparation | None = None,
    pool: Pool = HERE,
    prepared: PreparedPhotos | None = None,
    progress: Progress | None = None,
) -> Released:
    """Release the codes of all records that are not in the index yet; what was released before is
    taken from the vault.

    Charge the ledger before you call this, under `number`: one charge covers the set, because every
    distinct image is released once, however often the job is stopped and continued, whoever makes
    the shards, and whatever is lost.

    Parameters:
        release: ids, images and a vault's source to noisy packed codes; it travels to the workers.
        number: the release's (`Vault.release_of`); another mechanism or function has another.
        spool: a folder for unfinished business, which the workers must see; it is gone when all is
            done.
        wanted: which codes the index should hold; by default one for each distinct image, under its
            record's id.
        about: what the mechanism is applied to, for the noise (`Vault.source`).
        keyed: draw the vault's permanent noise; False leaves the dice to `release` (a simulation's
            seed).
        size: images are made RGB of this side; None if they are of one shape already.
        pool: `Here()`, or `OnRay(...)`. Workers get the keys of their records' noise, never the
            vault's.
    """
    listed = (
        _distinct(records_of(images, vault))
        if wanted is None
        else sorted(wanted, key=lambda each: each.record)
    )
    held = Spool.begin(spool, number)
    kept = vault.codes(number)
    taking = _Taking(index, vault, number, {each.record: each for each in listed})
    for key in list(held.finished()):
        taking.take(held.read(key))
        held.taken(key)
    missing = [each for each in listed if each.key not in taking.stored]
    known = len(listed) - len(missing)
    taking.restore([each for each in missing if each.record in kept], kept)
    missing = [each for each in missing if each.key not in taking.stored]
    done = len(listed) - len(missing)
    report = progress or (lambda done, total: None)
    report(done, len(listed))
    names = images.names if images.names is not None else np.arange(len(images)).astype(str)
    parts = _parts(images, names, missing, pool.shard, vault, about if keyed else None)
    encode = _Encode(release, size, prepared if pool is HERE else None)
    for contents in pool.run(encode, parts, held):
        done += taking.take(contents)
        report(done, len(listed))
    held.close()
    return Released(len(listed) - known - len(taking.refused), known, tuple(sorted(taking.refused)))


class _Taking:
    """Takes finished shards in: checked, noted in the vault, and only then stored."""

    def __init__(
        self, index: CodeIndex, vault: Vault, number: str, wanted: Mapping[str, Wanted]
    ) -> None:
        self.index, self.vault, self.number, self.wanted = index, vault, number, wanted
        self.refused: list[tuple[str, str]] = []
        self.stored: set[int | str] = {key for ids, _ in index.items() for key in ids.tolist()}

    def take(self, contents: Contents) -> int:
        """Store a shard's codes; returns how many images it settles."""
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
        self.refused += [(str(name), str(why)) for name, why in fields["refused"]]
        records = [fields["records"][row] for row in rows]
        if records:
            codes = self.vault.keep_codes(self.number, records, arrays["codes"][rows])
            self._store(records, codes)
        return len(fields["records"]) + len(fields["refused"])

    def restore(self, missing: Sequence[Wanted], kept: Mapping[str, bytes]) -> None:
        """Put back what was released before and is not in the index: the same codes, at no further
        cost.
        """
        if missing:
            codes = np.stack([np.frombuffer(kept[each.record], np.uint8) for each in missing])
            self._store([each.record for each in missing], codes)

    def _store(self, records: Iterable[str], codes: NDArray[np.uint8]) -> None:
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
    """One shard of work: plain values that travel."""

    names: list[str]
    records: list[str]
    images: Any
    source: RecordSource | None


@dataclass(frozen=True)
class _Encode:
    """The work on one shard: read, encode, draw the noise; what cannot be read is named and left
    out.
    """

    release: Release
    size: int | Preparation | None
    prepared: PreparedPhotos | None = None

    def __call__(self, part: _Part) -> Contents:
        kept: list[int] = []
        digests: list[str] = []
        read: list[NDArray[np.uint8]] = []
        refused: list[tuple[str, str]] = []
        for row, name in enumerate(part.names):
            try:
                digest, image = self._picture(part, row, name)
                read.append(image)
                kept.append(row)
                digests.append(digest.hex())
            except BlindsightError as error:
                refused.append((name, str(error)))
        # A simulation goes by what an image shows, so that it is the same in every vault.
        labels = digests if part.source is None else [part.records[row] for row in kept]
        codes = (
            self.release(labels, np.stack(read), part.source)
            if kept
            else np.empty((0, 1), np.uint8)
        )
        names, records = [part.names[row] for row in kept], [part.records[row] for row in kept]
        return {"codes": codes}, {
            "names": names,
            "records": records,
            "digests": digests,
            "refused": refused,
        }

    def _picture(self, part: _Part, row: int, name: str) -> tuple[bytes, NDArray[np.uint8]]:
        """The digest of an image, and its picture at the network's size."""
        if self.prepared is not None and hasattr(part.images, "content"):
            digest = hashlib.sha256(part.images.content(row)).digest()
            picture = self.prepared.find(digest)
            if picture is not None:
                return digest, picture
        digest, image = _read(part.images, row, name)
        if isinstance(self.size, Preparation):
            return digest, self.size.prepare(image)
        return digest, image if self.size is None else to_rgb(image, self.size)


def _parts(
    images: ImageSet, names: Any, missing: list[Wanted], shard: int, vault: Vault, about: str | None
) -> Iterator[tuple[str, _Part]]:
    for number, start in enumerate(range(0, len(missing), shard)):
        chosen = missing[start : start + shard]
        records = [each.record for each in chosen]
        rows = np.array([each.row for each in chosen], np.int64)
        source = None if about is None else vault.source(records, about=about)
        named = [str(names[row]) for row in rows]
        pixels = images.images
        shown = pixels[rows] if isinstance(pixels, np.ndarray) else pixels.take(rows)
        yield f"{number:09d}", _Part(named, records, shown, source)


def _distinct(records: Sequence[str]) -> list[Wanted]:
    """One code for each distinct image, in the order of the ids: where a code stands says nothing
    of its image.
    """
    first: dict[str, int] = {}
    for row, record in enumerate(records):
        first.setdefault(record, row)
    return [Wanted(record, record, first[record]) for record in sorted(first)]


def _read(images: Any, row: int, name: str) -> tuple[bytes, NDArray[np.uint8]]:
    """An image (or vector) and a digest, of its bytes or of its pixels where it is in memory.

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
