"""A folder of photos and what is released of it: one folder to share, one to keep private.

    OUT/codes.index    the released codes, each under a random id               share
    OUT/about.json     how they were made                                       share
    OUT/...            the hash function, which is public                       share
    OUT.vault/         key, names, what was released (`blindsight.privacy.vault`)  keep private

Nothing in OUT names a photo, says where it lay or when it was taken, unless the owner asks for
names. A record is a distinct image, and is released once: what was moved, renamed, copied, removed
and put back, or lost with the index, has the same code as before, and the ledger is charged by the
release's number, once.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks, durable, storage
from blindsight.core.codes import MatchModel
from blindsight.core.errors import BlindsightError, HostileFile, InvalidData
from blindsight.data.label_tables import read_column
from blindsight.data.limits import LIMITS, read_bytes
from blindsight.data.listing import compared_name, shown_name
from blindsight.data.reading import patient_of
from blindsight.data.sources import Files, recognising
from blindsight.index.bulk import HERE, LazyRows, Pool, Wanted, hash_wanted
from blindsight.index.hamming import HammingIndex
from blindsight.index.index_file import IndexHeader
from blindsight.privacy import Guarantee
from blindsight.privacy.accounting import plan_to_fields
from blindsight.privacy.guarantee import Assumption
from blindsight.privacy.vault import Photo, Vault

__all__ = [
    "PreparedPhotos",
    "ReleaseFolder",
    "Scan",
    "SyncResult",
    "encoder_in_vault",
    "folder_guarantee",
    "mechanism_id",
    "open_vault",
    "persons_of",
    "public_name",
    "scan",
    "sync_release",
    "unused_path",
    "vault_beside",
]

Names = Literal["random", "keep"]
_FORMAT = "blindsight photos 3"
_WITHOUT_DIGEST = "blindsight photos 2"  # of an earlier version, read with a warning
_LARGEST_ABOUT = 1 << 20
_DISTINCT_IMAGES = Assumption(
    "distinct images",
    "a record is a distinct image: copies share one id and one code, whatever is said in "
    "the files about them, "
    "and how many distinct images there are is public; a picture that is edited or saved "
    "anew is another, and "
    "whoever is on several different images is protected per person only",
)
_DISTINCT_VECTORS = Assumption(
    "distinct vectors",
    "a record is a distinct vector: equal vectors share one id and one code, and how many distinct "
    "vectors there are is public; a vector that was computed anew with other numbers is another, "
    "and whoever is behind several vectors is protected per person only",
)


@dataclass(frozen=True)
class ReleaseFolder:
    """The folder that is shared.

    Parameters:
        path: the folder.
        recipe: how photos become codes, as plain values without paths; whoever continues must use
            the same.
        vault: the number of the vault that was kept.
        release: the release's number, by which the ledger knows it.
        names: "random" ids, or "keep" for the photos' own names.
        most: the most records of one person that are released, 0 where persons are not known.
    """

    path: Path
    recipe: dict[str, Any]
    vault: str
    release: str
    names: Names = "random"
    most: int = 0

    @property
    def codes(self) -> Path:
        """The file of released codes."""
        return self.path / "codes.index"

    def write(self) -> None:
        """Write about.json, which holds nothing of the photos."""
        fields = {
            "format": _FORMAT,
            "vault": self.vault,
            "release": self.release,
            "names": self.names,
            "most": self.most,
            # A folder of one's own public images is not named.
            "recipe": {
                name: "own images" if isinstance(value, str) and os.path.isabs(value) else value
                for name, value in self.recipe.items()
            },
        }
        durable.write_file(self.path / "about.json", storage.seal_json(fields))

    @classmethod
    def find(cls, path: Path) -> ReleaseFolder | None:
        """Return the release in a folder, or None where the folder is empty or missing; refuse
        anything else.
        """
        about_file = path / "about.json"
        if not about_file.exists():
            if path.exists() and (
                not path.is_dir() or set(path.iterdir()) - set(_unfinished(path))
            ):
                raise InvalidData(f"{path} is not an index of photos. Choose another --out.")
            return None
        return cls.read(path)

    @classmethod
    def read(cls, path: Path) -> ReleaseFolder:
        """Read the release in a folder; raise `HostileFile` where about.json is damaged."""
        about_file = path / "about.json"
        if not about_file.is_file():
            raise InvalidData(
                f"{path} is not an index of photos: make one with blindsight protect FOLDER --out "
                "INDEX, and search that."
            )
        try:
            if about_file.stat().st_size > _LARGEST_ABOUT:
                raise HostileFile(f"{about_file} is too large to be true.")
            content = about_file.read_bytes()
            if b'"blindsight photos 1"' in content:
                raise InvalidData(
                    f"{path} was made by an earlier version: it holds the photos' names and where "
                    "they lay, and has no "
                    "vault. Make a new release with another --out, and do not give this one away."
                )
            fields = storage.open_json(content, about_file, earlier={"format": _WITHOUT_DIGEST})
            if fields["format"] not in (_FORMAT, _WITHOUT_DIGEST) or not isinstance(
                fields["recipe"], dict
            ):
                raise HostileFile(f"{about_file} is not in a format this version reads.")
            names = checks.one_of("names", fields["names"], ("random", "keep"))
            most = checks.whole("most", fields["most"], least=0)
            return cls(
                path, fields["recipe"], str(fields["vault"]), str(fields["release"]), names, most
            )
        except InvalidData:
            raise
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise HostileFile(
                f"{about_file} is not what it should be. Restore it from a copy."
            ) from error

    def stored(self, expected: HammingIndex) -> HammingIndex:
        """Load the shared codes into memory.

        Parameters:
            expected: an index with the length of codes and the guarantee that they must have.

        Raises:
            HostileFile: the codes in the folder were made in another way.
        """
        index = HammingIndex.load(self.codes)
        if (index.n_bits, index.names, index.guarantee) != (
            expected.n_bits,
            expected.names,
            expected.guarantee,
        ):
            raise HostileFile(
                f"{self.codes} was not made as {self.path / 'about.json'} says. Restore it from a "
                "copy."
            )
        return index


def _unfinished(folder: Path) -> list[Path]:
    """Return the files that a crash left under temporary names."""
    return [path for end in ("part", "compact") for path in folder.glob(f".*.{end}")]


def vault_beside(out: Path) -> Path:
    """Return the path of a release's vault, where the owner gives no other."""
    return out.with_name(out.name + ".vault")


def unused_path(path: Path) -> Path:
    """Return a path for a new vault: an earlier vault is never written over."""
    candidate, number = path, 2
    while candidate.exists():
        candidate, number = path.with_name(f"{path.name}-{number}"), number + 1
    return candidate


def open_vault(path: Path, folder: ReleaseFolder | None) -> Vault:
    """Open the vault of a release; make a new one only where there is no release yet.

    A release whose vault is lost cannot be continued: its photos would not be recognised, and each
    would be released a second time.
    """
    if folder is None:
        return Vault.open_or_create(path)
    if (path / "key").exists() and (vault := Vault(path)).number == folder.vault:
        return vault
    raise InvalidData(
        f"{folder.path} was made with vault {folder.vault}, which is not at {path}. Without it no "
        "photo can be "
        "recognised, so every one would be released again. Restore the vault (--vault says where "
        "it is), or make a new "
        "release of all photos, charged again: --new-release, which deletes the codes here, or "
        "another --out. Copies "
        "that were given away stay what they are."
    )


def public_name(name: str) -> str:
    """Return a photo's name as a release shows it: valid text, the same on every system."""
    return shown_name(compared_name(name))


def folder_guarantee(
    guarantee: Guarantee, *, names: Names, most: int = 0, of_vectors: bool = False
) -> Guarantee:
    """Return an encoder's guarantee as it holds for a folder, with its assumptions about records,
    keyed noise and persons.
    """
    rests_on = [_DISTINCT_VECTORS if of_vectors else _DISTINCT_IMAGES]
    if guarantee.entropy != "seed":
        rests_on.append(
            Assumption(
                "keyed noise",
                "ids and noise come from a secret key by HMAC-SHA-256 and AES-256, which nobody "
                "can tell from random; "
                "the vault that holds the key is not given away",
            )
        )
    if names == "keep":
        rests_on.append(
            Assumption("names", "names of photos are stored as they are, by the owner's wish")
        )
    also = guarantee.also
    if most:
        also += tuple(
            cost.per("person", times=most) for cost in guarantee.costs if cost.unit == "record"
        )
        rests_on.append(
            Assumption(
                "persons",
                f"every photo's person is known, and at most {most} images of one are released",
            )
        )
    entropy = guarantee.entropy if guarantee.entropy == "seed" else "keyed"
    return dataclasses.replace(
        guarantee, assumptions=(*guarantee.assumptions, *rests_on), also=also, entropy=entropy
    )


def encoder_in_vault(
    vault: Vault,
    recipe: Any,
    make: Callable[[Any], Any],
    load: Callable[[Any, Path, MatchModel | None], Any],
) -> Any:
    """Return the encoder of a recipe, which is learned once and stored in the vault.

    Learning again may give another function, and the codes of two functions are two releases.
    """
    text = json.dumps(recipe.to_fields(), sort_keys=True)
    folder = vault.path / "functions" / hashlib.sha256(text.encode()).hexdigest()[:16]
    if not folder.is_dir():
        encoder = make(recipe)
        durable.make_folder(folder.parent)
        unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix="."))
        encoder.save(unfinished)
        header = IndexHeader(n_bits=encoder.n_bits, names=True, decoding=encoder.decoding)
        durable.write_file(unfinished / "decoding.json", storage.seal_json(header.to_fields()))
        try:
            os.rename(unfinished, folder)
            durable.sync_folder(folder.parent)
        except OSError:  # another process was faster: its function stands
            shutil.rmtree(unfinished)
        else:
            if encoder.codebook is not None:  # the same as it would be read back, bit by bit
                return encoder
    try:
        path, earlier = folder / "decoding.json", folder / "header.json"
        if earlier.exists():  # in a vault of an earlier version, without a digest
            fields = json.loads(earlier.read_bytes())
        else:
            fields = storage.open_json(path.read_bytes(), path)
    except (OSError, ValueError) as error:
        raise HostileFile(
            f"{folder} does not hold a hash function. Restore the vault from a copy."
        ) from error
    return load(recipe, folder, IndexHeader.from_fields(fields).decoding)


def mechanism_id(encoder: Any, guarantee: Guarantee) -> str:
    """Describe mechanism and hash function as text; another text is another release.

    The function is known by the name and the bytes of its file.
    """
    name, content = encoder.file()
    digest = hashlib.sha256(name.encode() + b"\0" + hashlib.sha256(content).digest())
    recipe = {
        name: value
        for name, value in encoder.recipe.to_fields().items()
        if name not in ("prior", "public")
    }
    fields = {
        "function": digest.hexdigest(),
        "recipe": recipe,
        "mechanism": guarantee.mechanism,
        "releases": plan_to_fields(guarantee.releases),
        "epsilon": repr(guarantee.epsilon),
        "unit": guarantee.unit,
    }
    return json.dumps(fields, sort_keys=True)


@dataclass(frozen=True)
class Scan:
    """What a folder holds: photos with their records, files that cannot be read, and photos that
    are gone.
    """

    photos: tuple[Photo, ...]
    refused: tuple[tuple[str, str], ...]
    gone: tuple[Photo, ...]

    @cached_property
    def records(self) -> dict[str, list[str]]:
        """The names of each distinct image, in order."""
        names: dict[str, list[str]] = {}
        for photo in self.photos:
            names.setdefault(photo.record, []).append(photo.name)
        return names


def scan(
    folder: Path,
    names: Sequence[str],
    vault: Vault,
    *,
    persons: Mapping[str, str] | None = None,
    dataset: str = "",
    decoded: Callable[[bytes, NDArray[np.uint8]], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Scan:
    """Recognise the photos of a folder, and note in the vault which file is which record.

    Names are the data set's own: an owner's vault may know several folders, each under `dataset`.

    `decoded` is called with the bytes and pixels of every file that had to be decoded.

    A file whose size and time of change are as they were is taken for what it was; when a code is
    made of it, its bytes are looked at again.
    """
    before = vault.photos(dataset)
    # "é" may be one letter or two: a folder copied between systems holds the same photos.
    by_form = {compared_name(name): photo for name, photo in before.items()}
    photos: list[Photo] = []
    refused: list[tuple[str, str]] = []
    with recognising(vault, decoded=decoded) as recognise:
        for number, name in enumerate(names):
            person = "" if persons is None else vault.person_key(persons[name])
            try:
                facts = (folder / name).stat()
                size, changed_at = facts.st_size, facts.st_mtime_ns
                known = before.get(name) or by_form.get(compared_name(name))
                if known is not None and (known.size, known.changed) == (size, changed_at):
                    record = known.record
                else:
                    content = read_bytes(folder / name, largest=LIMITS.image_bytes)
                    record = recognise(content, name)
                photos.append(Photo(name, record, person, size, changed_at))
            except (OSError, BlindsightError) as error:
                words = str((isinstance(error, OSError) and error.strerror) or error)
                unnamed = words.removeprefix("the image ").removeprefix(f"{name} ")
                whole = (
                    f"{name} cannot be read: {words}" if unnamed == words else f"{name} {unnamed}"
                )
                refused.append((name, whole))
            if progress is not None:
                progress(number + 1, len(names))
    seen = {photo.name for photo in photos} | {name for name, _ in refused}
    forms = {compared_name(name) for name in seen}
    absent = [before[name] for name in sorted(before.keys() - seen)]
    gone = tuple(photo for photo in absent if compared_name(photo.name) not in forms)
    changed = [photo for photo in photos if before.get(photo.name) != photo]
    if changed or absent:
        vault.keep_photos(changed, gone=[photo.name for photo in absent], dataset=dataset)
    return Scan(tuple(photos), tuple(refused), gone)


_NAMED = 3
_NO_PERSON = {
    "folder": "they are in no subfolder",
    "dicom": "their PatientID is empty, or they are not DICOM files",
}


def persons_of(
    folder: Path, names: Sequence[str], rule: str, *, all_known: bool = True
) -> dict[str, str]:
    """Return each photo's person by a rule: "folder" (its first subfolder), "dicom" (PatientID), or
    FILE:COLUMN.

    FILE is a table with the photos' names (`data.label_tables.read_column`). A photo without a
    person could not be counted: it is refused, or left out where not `all_known` are asked for.
    """
    if rule == "folder":
        persons = {name: name.partition("/")[0] if "/" in name else "" for name in names}
    elif rule == "dicom":
        persons = {name: _patient(folder / name) for name in names}
    else:
        persons = read_column(rule, names, option="--people")
    missing = [name for name in names if not persons.get(name)]
    if missing and all_known:
        first = ", ".join(missing[:_NAMED]) + (", ..." if len(missing) > _NAMED else "")
        raise InvalidData(
            f"{len(missing)} of {len(names)} photos have no person by --people {rule} ({first}): "
            f"{_NO_PERSON.get(rule, 'the table does not name one')}. Every photo needs one. Move "
            "these files out of the folder, or name the people in a table (--people "
            "FILE.csv:COLUMN)."
        )
    return {name: persons[name] for name in names if persons.get(name)}


def _patient(path: Path) -> str:
    try:
        return patient_of(path) or ""
    except (OSError, HostileFile):
        return ""


_MOST_PREPARED = 2 << 30


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


@dataclass(frozen=True)
class SyncResult:
    """Counts of what one run did, in distinct images unless stated otherwise.

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
    release_folder: ReleaseFolder,
    index: HammingIndex,
    folder: Path | LazyRows,
    scanned: Scan,
    vault: Vault,
    encoder: Any,
    guarantee: Guarantee,
    mechanism: str,
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
        release_folder: the release.
        index: its codes as they are shared, in memory; codes are added and removed.
        folder: where the photos are, or the vectors.
        scanned: what the folder holds.
        vault: the owner's vault.
        encoder: the encoder of the codes.
        guarantee: what is promised for each.
        mechanism: mechanism and function as text (`mechanism_id`).
        prune: remove the codes of photos that are gone.
        pool: who encodes.
        prepared: pictures of photos that were decoded before.
        progress: called with (done, total).
    """
    with vault.running():
        names = [photo.name for photo in scanned.photos]
        rows = {name: row for row, name in enumerate(names)}
        records = scanned.records
        chosen = (
            set(records)
            if not release_folder.most
            else vault.chosen(release_folder.release, records, release_folder.most)
        )
        keep = release_folder.names == "keep"
        keys = _public_keys([records[record][0] for record in sorted(chosen)]) if keep else {}
        wanted = [
            Wanted(keys.get(records[record][0], record), record, rows[records[record][0]])
            for record in sorted(chosen)
        ]
        images: LazyRows
        if not isinstance(folder, Path):
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
            number=release_folder.release,
            spool=vault.path / "shards",
            mechanism_id=mechanism,
            keyed=guarantee.entropy == "keyed",
            size=preparation,
            pool=pool,
            find=None if prepared is None else prepared.find,
            progress=progress,
        )
        renamed = {public_name(photo.name) for photo in scanned.gone if photo.record in chosen}
        stale = there - {each.key for each in wanted}
        if keep:  # earlier versions stored a name as the file system wrote it
            renamed |= {key for key in stale if public_name(key) in keys.values()}
        # A code under an old name stands under the new one.
        out = stale if prune else stale & (renamed if keep else set())
        ids = index.ids.tolist()
        if out or ids != sorted(ids):
            # The order of the codes says nothing of who came when.
            index.compact(without=out)
        refused, copies = _refused_files(scanned, done.refused)
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
    """Return the key of each photo in a release that shows names; no two photos share a key."""
    keys: dict[str, str] = {}
    taken: set[str] = set()
    # A photo whose name has the form already keeps it, whatever else comes.
    for name in sorted(names, key=lambda name: (public_name(name) != name, name)):
        key = public_name(name)
        keys[name] = key if key not in taken else shown_name(name)
        taken.add(keys[name])
    return keys


def _refused_files(
    scanned: Scan, late: Sequence[tuple[str, str]]
) -> tuple[tuple[tuple[str, str], ...], int]:
    """Return every file without a code, with the reason, and the number of copies among the others.

    Parameters:
        late: files that were recognised, and could not be read when their code was to be made.
            Further files of such a record were not tried: they have its reason.
    """
    reasons = dict(late)
    refused = list(scanned.refused)
    copies = 0
    for names in scanned.records.values():
        reason = next((reasons[name] for name in names if name in reasons), None)
        if reason is None:
            copies += len(names) - 1
        else:
            refused += [(name, reasons.get(name, reason)) for name in names]
    return tuple(refused), copies
