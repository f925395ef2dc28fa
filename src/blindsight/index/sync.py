"""A folder of photos kept in step with its release: new photos added, vanished ones pruned, all
else left alone.

The records of a release may also be vectors that were computed elsewhere, recognised by their
numbers. A record is a distinct vector, as a photo is known by its pixels: two rows with equal
numbers are one record, under however many ids. A vector that was computed anew by another model, or
rounded in another way, is another record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import BlindsightError, InvalidData
from blindsight.data import read_image
from blindsight.data.listing import shown_name
from blindsight.data.sources import Files
from blindsight.encoders import Embeddings
from blindsight.encoders.base import Floats
from blindsight.index.bulk import HERE, Pool, Wanted, hash_wanted
from blindsight.index.contact_sheet import Thumbnails, thumbnail
from blindsight.index.hamming import HammingIndex
from blindsight.index.release_folder import ReleaseFolder, Scan, public_name
from blindsight.privacy import Guarantee
from blindsight.privacy.vault import Photo, Vault

__all__ = [
    "PreparedPhotos",
    "SyncResult",
    "VectorRows",
    "refuse_private_vectors",
    "scan_vectors",
    "sync_release",
    "sync_thumbnails",
    "vector_digest",
]

_PREFIX = b"blindsight vector 1\0"
_MOST_PREPARED = 2 << 30


def vector_digest(row: Floats) -> bytes:
    """The SHA-256 of a unit vector's numbers, before a vault's key makes it a secret."""
    return hashlib.sha256(_content(row)).digest()


@dataclass
class PreparedPhotos:
    """Photos at a network's size, which were decoded to be recognised.

    Their codes are made later, after the charge, without decoding the photos again.

    Parameters:
        file: where the pictures are stored. They are private, so it is a file without a name in
            the vault (`tempfile.TemporaryFile`), which is gone when the process ends.
        prepare: resizes decoded pixels to the network's size, which is the same for all photos.
        most_bytes: most bytes of the file; photos beyond it are decoded again.
    """

    file: IO[bytes]
    prepare: Callable[[NDArray[np.uint8]], NDArray[np.uint8]]
    most_bytes: int = _MOST_PREPARED
    _shape: tuple[int, ...] = ()
    _size: int = 0
    _rows: dict[bytes, int] = field(default_factory=dict)

    def keep(self, content: bytes, pixels: NDArray[np.uint8]) -> None:
        """Store the picture of a file, by the file's bytes and pixels."""
        digest = hashlib.sha256(content).digest()
        at = len(self._rows) * self._size
        if digest not in self._rows and at + self._size <= self.most_bytes:
            picture = self.prepare(pixels)
            self._shape, self._size = picture.shape, picture.nbytes
            self.file.seek(at)
            self.file.write(picture.tobytes())
            self._rows[digest] = len(self._rows)

    def find(self, digest: bytes) -> NDArray[np.uint8] | None:
        """Return the picture of the file whose bytes have this SHA-256, or None."""
        row = self._rows.get(digest)
        if row is None:
            return None
        self.file.seek(row * self._size)
        return np.frombuffer(self.file.read(self._size), np.uint8).reshape(self._shape)


class VectorRows:
    """Unit vectors in a file, read row by row where they are needed, here or on a worker.

    Parameters:
        file: a .npy file of unit float32 rows that nobody else writes to.
        rows: which rows, in order; by default all.
    """

    def __init__(self, file: Path, rows: NDArray[np.int64] | None = None) -> None:
        self.file = file
        self._mapped: NDArray[np.float32] | None = None
        self._rows = np.arange(len(self._open())) if rows is None else rows

    @classmethod
    def copied(cls, embeddings: Embeddings, file: Path) -> Self:
        """Copy the checked vectors of a file piece by piece, so that no later change is read."""
        shape = (len(embeddings), embeddings.dimensions)
        target = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=shape)
        start = 0
        for _, vectors in embeddings.pieces():
            target[start : start + len(vectors)] = vectors
            start += len(vectors)
        target.flush()
        return cls(file)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Floats:
        return np.array(self._open()[self._rows[index]], dtype=np.float32)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_mapped": None}  # workers open the file themselves

    def content(self, index: int) -> bytes:
        """The bytes by which a vector is known."""
        return _content(self[index])

    def take(self, indices: NDArray[np.int64]) -> VectorRows:
        """The chosen rows; nothing is read."""
        return VectorRows(self.file, self._rows[indices])

    def _open(self) -> NDArray[np.float32]:
        if self._mapped is None:
            self._mapped = np.load(self.file, mmap_mode="r", allow_pickle=False)
        return self._mapped

    def remove(self) -> None:
        """Delete the copy."""
        with suppress(FileNotFoundError):
            self.file.unlink()


def scan_vectors(
    rows: VectorRows,
    file: Path,
    ids: Sequence[str],
    vault: Vault,
    *,
    persons: Mapping[str, str] | None = None,
    dataset: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> Scan:
    """Recognise the vectors of a file, and note in the vault which id is which record.

    Parameters:
        rows: the vectors, as they will be released.
        file: where they came from, for messages.
        ids: the id of each.
        vault: the owner's vault.
        persons: whose each vector is, by id.
        dataset: under which name the vault keeps the ids.
        progress: called with (done, total).

    Raises:
        InvalidData: an id occurs twice, or has no person.
    """
    before = vault.photos(dataset)
    photos: dict[str, Photo] = {}
    for number, name in enumerate(ids):
        if name in photos:
            raise InvalidData(
                f"the id {name[:60]!r} of {file.name} occurs twice. Every vector needs an id of "
                "its own."
            )
        if persons is not None and name not in persons:
            raise InvalidData(f"the vector {name[:60]!r} has no person. Every one needs one.")
        person = "" if persons is None else vault.person_key(persons[name])
        photos[name] = Photo(name, vault.record_of(vector_digest(rows[number])), person)
        if progress is not None:
            progress(number + 1, len(ids))
    gone = tuple(before[name] for name in sorted(before.keys() - photos.keys()))
    changed = [photo for name, photo in photos.items() if before.get(name) != photo]
    if changed or gone:
        vault.keep_photos(changed, gone=[photo.name for photo in gone], dataset=dataset)
    return Scan(tuple(photos.values()), (), gone)


def refuse_private_vectors(public: Path, embeddings: Embeddings) -> None:
    """Refuse public vectors that are the protected ones, or share one with them.

    Raises:
        InvalidData: a vector is in both files; what is learned from it has no epsilon.
    """
    shared = public.resolve() == embeddings.file.resolve()
    if not shared:
        open_public = Embeddings(public)
        known = {vector_digest(row) for _, rows in open_public.pieces() for row in rows}
        shared = any(vector_digest(row) in known for _, rows in embeddings.pieces() for row in rows)
    if shared:
        raise InvalidData(
            f"{public} holds a vector of {embeddings.file}: what is protected is not public."
        )


def _content(row: Floats) -> bytes:
    return _PREFIX + np.ascontiguousarray(row, dtype="<f4").tobytes()


_AT_ONCE = 64


@dataclass(frozen=True)
class SyncResult:
    """What one run did, in distinct images unless it says otherwise.

    Parameters:
        released: new in the index now.
        restored: those of them that had been released before, and cost nothing.
        known: in the index before.
        refused: photos that could not be read, with the reason.
        copies: files that show what another file shows.
        left_out: not released because their person has enough images released.
        vanished: still in the index though no photo shows them any more; `prune` removes them.
        pruned: removed, from the file's bytes too.
        stored: in the index now.
    """

    released: int
    restored: int
    known: int
    refused: tuple[tuple[str, str], ...]
    copies: int
    left_out: int
    vanished: int
    pruned: int
    stored: int


def sync_release(
    place: ReleaseFolder,
    index: HammingIndex,
    folder: Path | VectorRows,
    found: Scan,
    vault: Vault,
    encoder: Any,
    guarantee: Guarantee,
    law: str,
    *,
    prune: bool = False,
    pool: Pool = HERE,
    prepared: PreparedPhotos | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SyncResult:
    """Bring the codes of a release up to date with what a folder, or a file of vectors, holds.

    Charge first. The vault notes every code before it is in the index, so that a run that is
    stopped loses no work: the next one takes the codes from the vault. The vault is held meanwhile:
    another run on it waits, or is refused with a sentence.

    Parameters:
        place: the release.
        index: its codes as they are shared, in memory; codes are added and removed.
        folder: where the photos are, or the vectors.
        found: what the folder holds.
        vault: the owner's vault.
        encoder: the encoder of the codes.
        guarantee: what is promised for each.
        law: mechanism and function as text (`mechanism_id`).
        prune: remove the codes of photos that are gone.
        pool: who encodes.
        prepared: pictures of photos that were decoded before.
        progress: called with (done, total).
    """
    with vault.running():
        names = [photo.name for photo in found.photos]
        rows = {name: row for row, name in enumerate(names)}
        records = found.records
        chosen = (
            set(records) if not place.most else vault.chosen(place.release, records, place.most)
        )
        keep = place.names == "keep"
        keys = _public_keys([records[record][0] for record in sorted(chosen)]) if keep else {}
        wanted = [
            Wanted(keys.get(records[record][0], record), record, rows[records[record][0]])
            for record in sorted(chosen)
        ]
        images: Files | VectorRows
        if isinstance(folder, VectorRows):
            images, release, preparation = folder, encoder.release_rows, None
        else:
            root, preparation = folder.resolve(), encoder.recipe.image.preparation
            images = Files([root / name for name in names], at_least=preparation.at_least)
            release = encoder.release
        there = set(index.ids.tolist())
        done = hash_wanted(
            index,
            images,
            names,
            wanted,
            release,
            vault,
            number=place.release,
            spool=vault.path / "shards",
            about=law,
            keyed=guarantee.entropy == "keyed",
            size=preparation,
            pool=pool,
            find=None if prepared is None else prepared.find,
            progress=progress,
        )
        renamed = {public_name(photo.name) for photo in found.gone if photo.record in chosen}
        stale = there - {each.key for each in wanted}
        if keep:  # earlier versions stored a name as the file system wrote it
            renamed |= {key for key in stale if public_name(key) in keys.values()}
        # A code under an old name stands under the new one.
        out = stale if prune else stale & (renamed if keep else set())
        ids = index.ids.tolist()
        if out or ids != sorted(ids):
            # The order of the codes says nothing of who came when.
            index.compact(without=out)
        refused, copies = _refused_files(found, done.refused)
        return SyncResult(
            released=done.released,
            restored=done.restored,
            known=done.known,
            refused=refused,
            copies=copies,
            left_out=len(records) - len(chosen),
            vanished=len(stale - out),
            pruned=len(out),
            stored=len(index),
        )


def _public_keys(names: Sequence[str]) -> dict[str, str]:
    """The key of each photo in a release that shows names; two names of one form stay apart."""
    keys: dict[str, str] = {}
    taken: set[str] = set()
    # A photo whose name has the form already keeps it, whatever else comes.
    for name in sorted(names, key=lambda name: (public_name(name) != name, name)):
        key = public_name(name)
        keys[name] = key if key not in taken else shown_name(name)
        taken.add(keys[name])
    return keys


def _refused_files(
    found: Scan, late: Sequence[tuple[str, str]]
) -> tuple[tuple[tuple[str, str], ...], int]:
    """Every file that gave no code with the reason, and how many of the others are copies.

    Parameters:
        late: files that were recognised, and could not be read when their code was to be made.
            Further files of such a record were not tried: they have its reason.
    """
    reasons = dict(late)
    refused = list(found.refused)
    copies = 0
    for names in found.records.values():
        reason = next((reasons[name] for name in names if name in reasons), None)
        if reason is None:
            copies += len(names) - 1
        else:
            refused += [(name, reasons.get(name, reason)) for name in names]
    return tuple(refused), copies


def sync_thumbnails(
    vault: Vault,
    folder: Path,
    found: Scan,
    *,
    prune: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Small pictures of all records that have none yet, into the vault; with `prune`, those of gone
    photos go.
    """
    kept = Thumbnails(vault.path)
    records = found.records
    there = kept.records()
    missing = sorted(records.keys() - there)
    for start in range(0, len(missing), _AT_ONCE):
        part = missing[start : start + _AT_ONCE]
        pictures = ((record, _small(folder / records[record][0])) for record in part)
        kept.keep((record, small) for record, small in pictures if small is not None)
        if progress is not None:
            progress(start + len(part), len(missing))
    if prune:
        kept.forget(sorted(there - records.keys()))
    return len(missing)


def _small(path: Path) -> bytes | None:
    try:
        return thumbnail(read_image(path))
    except (BlindsightError, OSError):
        return None
