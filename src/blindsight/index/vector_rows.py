"""Records that are vectors computed elsewhere, rather than photos.

A vector is recognised by its numbers, as a photo is by its pixels: two rows with equal numbers are
one record, under however many ids. A vector that was computed anew by another model, or rounded in
another way, is another record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import InvalidData
from blindsight.core.parsing import one_parser
from blindsight.encoders import Embeddings
from blindsight.encoders.base import Floats
from blindsight.index.release_folder import Scan
from blindsight.privacy.vault import Photo, Vault

__all__ = ["VectorRows", "refuse_private_vectors", "scan_vectors", "vector_digest"]

_PREFIX = b"blindsight vector 1\0"


def vector_digest(row: Floats) -> bytes:
    """The SHA-256 of a unit vector's numbers, before a vault's key makes it a secret."""
    return hashlib.sha256(_content(row)).digest()


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
            with one_parser():
                self._mapped = np.load(self.file, mmap_mode="r", allow_pickle=False)
        return self._mapped

    def remove(self) -> None:
        """Delete the file, if it is still there."""
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
