"""The vault: what the owner keeps beside a release, so that a photo is released once whatever
happens to it.

A vault is a folder that only its owner may enter. It holds a secret key of 256 bits, and a small
database: which photo is which record, and what was released of it.

*A record is a distinct image.* It is known by its content: its id is a pseudo-random function
(HMAC-SHA-256) of the vault's key and a digest of the picture (`data.content`), so a photo that is
moved, renamed, copied, removed and put back, given other words or dates, or met by another worker,
has the same id. Its noise is a pseudo-random function of the key, the id, the mechanism and what
the mechanism is applied to (permanent randomised response): releasing it again tells nothing new.
Another mechanism or another epsilon draws other noise, is another release, and is charged as one.
Outsiders see ids and noise that they cannot tell from random ones unless they break HMAC or AES;
the card states this as an assumption.

Why copies share one id and one code. Neighbours are sets of distinct images that differ in one; how
many distinct images there are is public. Let k-ary response release one code for each distinct
image. Replacing an image changes the law of one code, and each of its outcomes by a factor of at
most e^epsilon: the release costs epsilon per image. Two other ways of treating copies cost more:

- a code of its own, with fresh noise, for each copy: an image that is there twice has two
  independent codes. Replacing the image replaces both, and outcomes in which both tell the truth
  change by e^(2 epsilon): the content pays for each copy;
- one code for the first copy and a dummy (a code of nothing, uniform) for every other: replacing
  the first copy makes the second one the first, whose law moves from uniform to a true code while
  the replaced one moves as well. Two codes move, up to e^(2 epsilon) again.

`tests/privacy/test_vault_argument.py` enumerates all outcomes for small k and finds these three
numbers. Pictures that are only nearly equal are different records: whoever is on several of them is
protected by the person's unit.

*Persons.* With a person given for each photo, at most `most` records of one person are released,
ever. Which ones is decided by the order of their ids, which is pseudo-random and not by arrival,
among those that were not released before; a record of several persons must be chosen for all of
them, so that nobody's photos decide over another's. The count is the vault's: two copies of a vault
at work on different photos of one person would each count for themselves.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks, durable
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter, MissingData
from blindsight.privacy.entropy import EntropyName, SystemEntropy

__all__ = ["Photo", "RecordSource", "RecordStream", "Vault"]

_HEAD = b"blindsight vault key 1 "
_TABLES = """
CREATE TABLE facts (name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE photos (name TEXT NOT NULL PRIMARY KEY, record TEXT NOT NULL, person TEXT NOT NULL, size INTEGER NOT NULL,
    changed INTEGER NOT NULL) STRICT;
CREATE TABLE codes (release TEXT NOT NULL, record TEXT NOT NULL, code BLOB NOT NULL, PRIMARY KEY (release, record))
    STRICT;
CREATE TABLE persons (record TEXT NOT NULL, person TEXT NOT NULL, PRIMARY KEY (record, person)) STRICT;
"""  # noqa: E501
_MANY = 500  # values per statement
_README = """This folder is a vault. KEEP it, and give it to nobody.

It holds the secret key behind the noise of a release, and which photo is which record. Whoever has it sees through the
noise. Without it the release can still be searched, but photos cannot be added to it, and their names are lost.
Include it in your backups.
"""  # noqa: E501


@dataclass(frozen=True)
class Photo:
    """One file that the vault knows: its record, its person ("" without one), and what `stat` said
    of it.
    """

    name: str
    record: str
    person: str = ""
    size: int = -1
    changed: int = -1


class RecordStream(SystemEntropy):
    """Random numbers of one record for one mechanism: AES-256 in counter mode under a key of their
    own.

    The methods are those of the operating system's numbers, defined by us on the stream's bytes:
    numpy may change how its generators use theirs from one release to the next, and permanent noise
    must not change with it.
    """

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        self._cipher = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def bytes(self, length: int) -> bytes:
        """The next bytes of the stream."""
        return self._cipher.update(bytes(length))

    def __repr__(self) -> str:
        return "RecordStream(a secret key)"


class RecordSource:
    """The noise of some records, for whoever draws it: it travels to workers without the vault's
    key.

    A source for the door (`Source`): a stream's label starts with its record's id.
    """

    name: EntropyName = "keyed"

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = dict(keys)

    def stream(self, label: str, *, exact: bool = True) -> RecordStream:
        """The stream of a label, which is a record's id, a slash, and the mechanism."""
        record, _, law = label.partition("/")
        if record not in self._keys or not law:
            raise InvalidParameter(
                "a label must be a record's id of this source, a slash, and the mechanism."
            )
        return RecordStream(_keyed(self._keys[record], "noise", law.encode()))

    def receipt(self, names: Sequence[str], values: NDArray[Any], law: str) -> str:
        """The ledger's key of one release: the same records with the same values under the same
        law, and no other.

        Made with the records' own keys, so that whoever reads the ledger cannot try out values.
        """
        if len(names) != len(values) or not self._keys.keys() >= set(names):
            raise InvalidParameter(
                "names must be ids of this source's records, one for each value."
            )
        seal = hashlib.sha256(law.encode())
        for name, value in zip(names, np.ascontiguousarray(values), strict=True):
            seal.update(_keyed(self._keys[name], "receipt", name.encode(), value.tobytes()))
        return seal.hexdigest()[:40]

    def __repr__(self) -> str:
        return f"RecordSource({len(self._keys)} records)"


class Vault:
    """A folder with the secret key of a release and the map from photos to records. See the
    module's text.

    Many processes may use one vault at once; what a method wrote is on the disk when it returns.
    The key never shows in `repr`, messages or pickles: workers get a `RecordSource` for their
    records only.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._key = _read_key(self.path / "key")
        durable.close_to_others(self.path, mode=0o700)
        self._database = self.path / "records.db"
        if not self._database.is_file():
            self._make_tables()
        with self._connected() as connection:
            found = connection.execute(
                "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL"
            ).fetchall()
        if set(found) != _expected():
            raise HostileFile(
                f"{self._database} is not what a vault holds. Restore the vault from a copy."
            )

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> Vault:
        """A new vault in a folder that is empty or not there yet."""
        folder = Path(path)
        if folder.exists() and any(folder.iterdir()):
            raise InvalidData(f"{folder} is not empty. A new vault needs a folder of its own.")
        durable.make_folder(folder)
        durable.write_file(folder / "KEEP-THIS-SECRET.txt", _README.encode())
        # Last: a folder with a key is a vault.
        durable.write_file(
            folder / "key", _HEAD + os.urandom(32).hex().encode() + b"\n", replace=False
        )
        return cls(folder)

    @classmethod
    def open_or_create(cls, path: str | os.PathLike[str]) -> Vault:
        """The vault in a folder; a new one where there is none, or where a crash left one without a
        key.
        """
        folder = Path(path)
        if (folder / "key").exists():
            return cls(folder)
        for left in (folder / "KEEP-THIS-SECRET.txt", *folder.glob(".*.part")):
            durable.remove(left)
        return cls.create(folder)

    @property
    def number(self) -> str:
        """Tells this vault from others; may be given away."""
        return _keyed(self._key, "number").hex()[:16]

    def record_of(self, digest: bytes) -> str:
        """The id of the record with this content (`data.content_digest`)."""
        return _keyed(self._key, "record", digest).hex()[:32]

    def release_of(self, law: str) -> str:
        """The number of the release by a mechanism applied to a function, given as text: a key for
        the ledger.

        The same law gives the same number, so that a release is charged once, whatever was lost or
        tried again.
        """
        return _keyed(self._key, "release", law.encode()).hex()[:32]

    def source(self, records: Iterable[str], *, about: str) -> RecordSource:
        """The noise of these records, to be drawn here or elsewhere.

        `about` says what the mechanism is applied to (a digest of the hash function, say). The same
        noise on two different values of a record would show how they differ, so another function
        must have other noise.
        """
        function = about.encode()
        return RecordSource(
            {record: _keyed(self._key, "noise of", record.encode(), function) for record in records}
        )

    def person_key(self, person: str) -> str:
        """A person's name or number as a keyed hash: the vault does not store it as it is."""
        return (
            _keyed(self._key, "person", person.encode(errors="surrogateescape")).hex()[:32]
            if person
            else ""
        )

    def photos(self) -> dict[str, Photo]:
        """Every photo that the vault knows, by name."""
        with self._connected() as connection:
            rows = connection.execute(
                "SELECT name, record, person, size, changed FROM photos"
            ).fetchall()
        return {row[0]: Photo(*row) for row in rows}

    def names_of(self, records: Iterable[str]) -> dict[str, list[str]]:
        """The files that show each record, in order of their names; nothing for a record that is
        not here.
        """
        found: dict[str, list[str]] = defaultdict(list)
        with self._connected() as connection:
            for part in _parts(list(records)):
                marks = ", ".join("?" * len(part))
                query = f"SELECT record, name FROM photos WHERE record IN ({marks}) ORDER BY name"  # noqa: S608
                for record, name in connection.execute(query, part):
                    found[record].append(name)
        return dict(found)

    def keep_photos(self, photos: Iterable[Photo], *, gone: Iterable[str] = ()) -> None:
        """Note which file is which record, and forget files that are gone."""
        with self._writing() as connection:
            connection.executemany("DELETE FROM photos WHERE name = ?", [(name,) for name in gone])
            listed = list(photos)
            connection.executemany(
                "INSERT OR REPLACE INTO photos VALUES (?, ?, ?, ?, ?)",
                [
                    (photo.name, photo.record, photo.person, photo.size, photo.changed)
                    for photo in listed
                ],
            )
            # Who was ever seen on a record stays on it: a file that moves must not free a place.
            connection.executemany(
                "INSERT OR IGNORE INTO persons VALUES (?, ?)",
                [(photo.record, photo.person) for photo in listed if photo.person],
            )

    def codes(self, release: str) -> dict[str, bytes]:
        """What was released of each record."""
        with self._connected() as connection:
            return dict(
                connection.execute("SELECT record, code FROM codes WHERE release = ?", (release,))
            )

    def keep_codes(
        self, release: str, records: Sequence[str], codes: NDArray[np.uint8]
    ) -> NDArray[np.uint8]:
        """Note codes before they leave, and return those that stand: of several makers of one code,
        the first's.

        A code that was released before is never replaced, also where a new library would compute
        another.
        """
        if len(records) != len(codes):
            raise InvalidParameter(
                f"got {len(records)} records for {len(codes)} codes: give one each."
            )
        with self._writing() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO codes VALUES (?, ?, ?)",
                [
                    (release, record, code.tobytes())
                    for record, code in zip(records, codes, strict=True)
                ],
            )
            kept: dict[str, bytes] = {}
            for part in _parts(list(records)):
                marks = ", ".join("?" * len(part))
                query = f"SELECT record, code FROM codes WHERE release = ? AND record IN ({marks})"  # noqa: S608
                kept.update(connection.execute(query, (release, *part)))
        standing = [np.frombuffer(kept[record], codes.dtype) for record in records]
        if any(code.shape != codes.shape[1:] for code in standing):
            raise HostileFile(
                "a code in the vault has another length than this release's. Restore it from a "
                "copy."
            )
        return np.stack(standing) if standing else codes

    def chosen(self, release: str, records: Iterable[str], most: int) -> set[str]:
        """Those of the records that may be released with at most `most` per person, ever, in this
        release.

        Persons of whom more was released already, when nobody said whose the photos were or others
        did, are refused: the bound that the release is about to promise is broken.
        """
        checks.whole("most", most)
        wanted, before = set(records), set(self.codes(release))
        with self._connected() as connection:
            pairs = connection.execute("SELECT person, record FROM persons").fetchall()
        by_person: dict[str, list[str]] = defaultdict(list)
        for person, record in pairs:
            by_person[person].append(record)
        refused: set[str] = set()
        crowded = []
        for owned in by_person.values():
            released = sum(record in before for record in owned)
            if released > most:
                crowded.append(released)
            waiting = sorted(
                record for record in owned if record in wanted and record not in before
            )
            refused.update(waiting[max(0, most - released) :])
        if crowded:
            raise InvalidData(
                f"{len(crowded)} {'person has' if len(crowded) == 1 else 'persons have'} more than "
                f"{most} "
                f"{'images' if most > 1 else 'image'} released by earlier runs with this vault, "
                "which did not know "
                f"whose they were or had it otherwise: up to {max(crowded)}. What was given away "
                "stays. Allow "
                f"{max(crowded)} in another --out, or make a new release with a new vault, charged "
                "again."
            )
        return wanted - refused

    def fact(self, name: str) -> Any:
        """A fact that was noted (the ledger's address, the photos' folder, a recipe), or None."""
        with self._connected() as connection:
            row = connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    def note(self, **facts: Any) -> None:
        """Note facts as JSON values."""
        with self._writing() as connection:
            rows = [(name, json.dumps(value)) for name, value in facts.items()]
            connection.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", rows)

    def __repr__(self) -> str:
        return f"Vault({str(self.path)!r}, number {self.number})"

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        raise InvalidParameter(
            "a vault cannot be copied or pickled: its key stays where it is. Hand out a source."
        )

    def _make_tables(self) -> None:
        """The database in one step: another process may be at it too, and then the first one's
        stays.
        """
        made = self.path / f".records.{os.urandom(8).hex()}.part"
        try:
            os.close(os.open(made, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
            with contextlib.closing(_connect(made)) as connection:
                connection.executescript(f"BEGIN; {_TABLES} COMMIT;")
            with contextlib.suppress(FileExistsError):
                durable.link_new(made, self._database)
        finally:
            durable.remove(made)

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        try:
            with contextlib.closing(_connect(self._database)) as connection:
                yield connection
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise InvalidData(
                    f"the vault {self.path} cannot be used ({error}). Nothing more is released."
                ) from None
            raise HostileFile(
                f"the vault {self.path} is damaged ({error}). Restore it from a copy."
            ) from None

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=60.0, isolation_level=None
    )
    try:
        # The plain rollback journal: one file at rest, nothing to lose beside it. EXTRA also
        # flushes the folder.
        connection.execute("PRAGMA synchronous=EXTRA")
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.execute("PRAGMA secure_delete=ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _expected() -> set[tuple[str, str, str]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_TABLES)
        return set(
            connection.execute("SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL")
        )


def _read_key(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError:
        raise MissingData(
            f"{path.parent} is not a vault: it holds no key. Check the path."
        ) from None
    try:
        key = bytes.fromhex(content.removeprefix(_HEAD).decode().strip())
    except ValueError:
        key = b""
    if not content.startswith(_HEAD) or len(key) != 32:
        raise HostileFile(f"{path} is not a vault's key. Restore the vault from a copy.") from None
    return key


def _keyed(key: bytes, purpose: str, *parts: bytes) -> bytes:
    """HMAC-SHA-256 over a purpose and parts, each with its length: no two ways to read one
    message.
    """
    message = b"".join(len(part).to_bytes(8, "big") + part for part in (purpose.encode(), *parts))
    return hmac.digest(key, message, "sha256")


def _parts(values: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(values), _MANY):
        yield values[start : start + _MANY]
