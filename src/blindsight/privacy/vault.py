"""The vault: what the owner keeps beside a release, so that a photo is released once whatever
happens to it.

A vault is a folder that only its owner may enter. It holds a secret key of 256 bits, and a small
database: which photo is which record, what was released of it, and what was charged for it. An
owner needs one vault, however many data sets there are.

*A record is a distinct image.* It is known by its decoded pixels: its id is a pseudo-random
function (HMAC-SHA-256) of the vault's key and a digest of the upright pixel array
(`data.content_digest`), so a photo that is moved, renamed, copied, compressed again without loss,
removed and put back, given other words or dates, or met by another worker, has the same id. The
digest of a file's bytes is kept beside it, so that a file that was seen before is not decoded
again. Its noise is a pseudo-random function of the key, the id, the mechanism and what
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
  change by e^(2 epsilon): the cost is multiplied by the number of copies;
- one code for the first copy and a dummy (a code of nothing, uniform) for every other: replacing
  the first copy makes the second one the first, whose law moves from uniform to a true code while
  the replaced one moves as well. Two codes move, up to e^(2 epsilon) again.

`tests/privacy/test_vault_argument.py` enumerates all outcomes for small k and finds these three
numbers. Pictures that are only nearly equal are different records: whoever is on several of them is
protected by the person's unit.

*Persons.* With a person given for each photo, at most `most` records of one person are released,
ever, whichever data sets they are in. Which ones is decided by the order of their ids, which is
pseudo-random and not by arrival, among those that were not released before; a record of several
persons must be chosen for all of them, so that nobody's photos decide over another's. The bound is
checked again in the transaction that keeps the codes, so that two runs at once cannot exceed it.

*Releases.* Every release has a number within the vault, its generation, which grows by one with
each. It is charged through `Vault.charge`, which writes down the intention in the vault, charges
the ledger with the vault's number and the generation, and keeps the ledger's head: a process that
is killed in between has charged at most once, and has released nothing uncharged. Whichever of
vault and ledger is an older copy is found by comparing them (`blindsight.privacy.reconcile`).

*Integrity.* The key file has a check value, every row of the database a message authentication
code, and the number of rows is kept: what was damaged or taken out is refused by name.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks, durable
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter, MissingData
from blindsight.privacy.entropy import RecordSource, RecordStream, ReleaseSource, keyed
from blindsight.privacy.vault_store import VaultStore

if TYPE_CHECKING:
    from blindsight.privacy.charges import ChargeOptions
    from blindsight.privacy.cost import Cost
    from blindsight.privacy.guarantee import Guarantee
    from blindsight.privacy.ledger import Ledger
    from blindsight.privacy.reconcile import Charged

__all__ = ["Photo", "RecordSource", "RecordStream", "ReleaseSource", "Vault", "VaultRelease"]

_FIRST_HEAD, _HEAD = b"blindsight vault key 1 ", b"blindsight vault key 2 "
_TOGETHER = 500  # files that are noted in one transaction
_WAIT = 60.0  # seconds to wait for another run on the same vault
_README = """This folder is a vault. KEEP it, and give it to nobody.

It holds the secret key behind the noise of a release, and which photo is which record. Whoever has it sees through the
noise. Without it the release can still be searched, but photos cannot be added to it, and their names are lost.
Include it in your backups, together with the ledger.
"""  # noqa: E501


@dataclass(frozen=True)
class Photo:
    """One file that the vault knows.

    Parameters:
        name: the file's name within its data set.
        record: the id of the picture that it shows.
        person: the keyed hash of whose it is, "" without one.
        size: its size in bytes when it was last looked at.
        changed: its time of change then, in nanoseconds.
    """

    name: str
    record: str
    person: str = ""
    size: int = -1
    changed: int = -1


@dataclass(frozen=True)
class VaultRelease:
    """A release that the vault knows.

    Parameters:
        release: its id (`Vault.release_of`), by which the ledger knows it.
        generation: its number within the vault.
        what: what was released, in words.
        costs: what it costs, as plain fields of `Cost`; empty where an earlier version made it.
        most: the most records of one person in it, 0 without a bound.
        state: "pending" (noted, perhaps not charged), "uncharged" (made without a ledger),
            "charged", "taken over" (known from the ledger or a release folder) or "earlier" (of an
            earlier version).
    """

    release: str
    generation: int
    what: str
    costs: tuple[dict[str, Any], ...]
    most: int
    state: str


class Vault:
    """A folder with the secret key of an owner's releases, what was released, and what it cost.

    Many processes may use one vault at once; what a method wrote is on the disk when it returns.
    The key never shows in `repr`, messages or pickles: workers get a `RecordSource` for their
    records only.

    Parameters:
        path: the vault's folder, which `Vault.create` made.

    Raises:
        MissingData: the folder holds no key, or its database is lost.
        HostileFile: the key or the database was damaged or changed.

    Examples:
        >>> import tempfile
        >>> from blindsight.privacy import Cost, Ledger
        >>> folder = tempfile.mkdtemp()
        >>> vault = Vault.create(f"{folder}/vault")
        >>> ledger = Ledger(f"{folder}/budget.db", dataset="holidays")
        >>> entry = ledger.grant(Cost(epsilon=8, unit="record"))
        >>> number = vault.release_of("codes with epsilon 4")
        >>> cost = Cost(epsilon=4, unit="record")
        >>> vault.charge(ledger, cost, release=number, what="codes").new
        True
        >>> vault.charge(ledger, cost, release=number, what="codes").new
        False
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._key = _read_key(self.path / "key")
        # Tells this vault from others; may be given away.
        self.number = keyed(self._key, "number").hex()[:16]
        durable.close_to_others(self.path, mode=0o700)
        self._store = VaultStore(self.path, keyed(self._key, "rows"))
        # Pictures whose records an earlier version named by their encoded bytes.
        self._encoded = self.fact("encoded identities") is not None

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> Vault:
        """A new vault in a folder that is empty or not there yet.

        The folder is made under another name and renamed, so that there is a whole vault or none.
        """
        folder = Path(path)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InvalidData(f"{folder} is not empty. A new vault needs a folder of its own.")
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = folder.with_name(f".{folder.name}.{os.urandom(8).hex()}.part")
        durable.make_folder(unfinished)
        try:
            key = os.urandom(32)
            durable.write_file(unfinished / "KEEP-THIS-SECRET.txt", _README.encode())
            VaultStore.create(unfinished, keyed(key, "rows"))
            durable.write_file(unfinished / "key", _key_file(key), replace=False)
            durable.rename(unfinished, folder)
        except OSError as problem:
            # Renaming onto a folder that is no longer empty is ENOTEMPTY or EEXIST, by system.
            if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise InvalidData(
                f"{folder} is not empty: another process made a vault there."
            ) from None
        finally:
            if unfinished.exists():
                shutil.rmtree(unfinished, ignore_errors=True)
        return cls(folder)

    @classmethod
    def open_or_create(cls, path: str | os.PathLike[str]) -> Vault:
        """The vault in a folder; a new one where there is none."""
        folder = Path(path)
        if not (folder / "key").exists() and not (folder / "records.db").exists():
            try:
                return cls.create(folder)
            except InvalidData:
                if not (folder / "key").exists():
                    raise  # it is not another process that was faster
        return cls(folder)

    @property
    def generation(self) -> int:
        """The number of the vault's last release."""
        return max((known.generation for known in self.releases()), default=0)

    def running(self, *, wait: float = _WAIT) -> AbstractContextManager[None]:
        """Hold the vault for one run: others wait, and are refused after `wait` seconds."""
        return self._store.turn(wait)

    def verify(self) -> None:
        """Check every row of the database against its authentication code; `charge` does it first.

        Raises:
            HostileFile: a row was changed, damaged, lost or added.
        """
        self._store.verify()

    # Records and photos

    def record_of(self, digest: bytes) -> str:
        """The id of the record with these pixels (`data.content_digest`)."""
        record = keyed(self._key, "record", digest).hex()[:32]
        if self._encoded:
            with self._store.reading() as connection:
                known = self._store.select(connection, "aliases", "picture = ?", (record,))
            return str(known[0][1]) if known else record
        return record

    @contextmanager
    def recognising(
        self, pixels: Callable[[bytes, str], bytes], encoded: Callable[[bytes], bytes]
    ) -> Iterator[Callable[[bytes, str], str]]:
        """A function from the bytes and the name of an image file to the id of its record.

        Files that were seen before are known by their bytes, and not decoded again. Higher layers
        call `data.sources.recognising(vault)`, which gives the two digests.

        Parameters:
            pixels: the digest of a file's decoded pixels, from its bytes and its name.
            encoded: the digest by which earlier versions knew a picture; for vaults of theirs.
        """
        files: dict[str, str] = {}
        aliases: dict[str, str] = {}

        def keep() -> None:
            with self._store.writing() as connection:
                self._store.insert(connection, "aliases", list(aliases.items()))
                self._store.insert(connection, "files", list(files.items()))
            files.clear()
            aliases.clear()

        def recognise(content: bytes, name: str) -> str:
            digest = hashlib.sha256(content).digest()
            file = keyed(self._key, "file", digest).hex()[:32]
            if file in files:
                return files[file]
            if known := find("files", "file = ?", (file,)):
                return str(known[0][1])
            picture = self.record_of(pixels(content, name))
            record = aliases.get(picture, picture)
            if self._encoded and record == picture:
                earlier = keyed(self._key, "record", encoded(content)).hex()[:32]
                if self._released(earlier):
                    record = aliases[picture] = earlier
            files[file] = record
            if len(files) >= _TOGETHER:
                keep()
            return record

        with self._store.lookups() as find:
            try:
                yield recognise
            finally:
                if files:
                    keep()

    def shows(self, digests: Sequence[bytes], records: Sequence[str]) -> list[bool]:
        """Whether each digest, of a file's bytes or of pixels, is known to be that of a record."""
        with self._store.lookups() as find:
            known = [
                find("files", "file = ?", (keyed(self._key, "file", digest).hex()[:32],))
                for digest in digests
            ]
        return [
            record == (str(rows[0][1]) if rows else None) or record == self.record_of(digest)
            for digest, record, rows in zip(digests, records, known, strict=True)
        ]

    def person_key(self, person: str) -> str:
        """A person's name or number as a keyed hash: the vault does not store it as it is."""
        return (
            keyed(self._key, "person", person.encode(errors="surrogateescape")).hex()[:32]
            if person
            else ""
        )

    def photos(self, dataset: str = "") -> dict[str, Photo]:
        """Every photo of a data set that the vault knows, by name."""
        with self._store.reading() as connection:
            rows = self._store.select(connection, "photos", "dataset = ?", (dataset,))
        photos = [Photo(_file_name(row[1]), *row[2:]) for row in rows]  # type: ignore[arg-type]
        return {photo.name: photo for photo in photos}

    def names_of(self, records: Iterable[str], dataset: str = "") -> dict[str, list[str]]:
        """The files of a data set that show each record, in order of their names; nothing for a
        record that is not here.
        """
        names: dict[str, list[str]] = defaultdict(list)
        with self._store.reading() as connection:
            rows = self._store.select_in(
                connection, "photos", "record", list(records), "dataset = ?", (dataset,)
            )
            for row in rows:
                names[str(row[2])].append(_file_name(row[1]))
        return {record: sorted(files) for record, files in names.items()}

    def keep_photos(
        self, photos: Iterable[Photo], *, gone: Iterable[str] = (), dataset: str = ""
    ) -> None:
        """Note which file of a data set is which record, and forget files that are gone."""
        listed = list(photos)
        rows = [
            (dataset, os.fsencode(p.name), p.record, p.person, p.size, p.changed) for p in listed
        ]
        with self._store.writing() as connection:
            self._store.delete(
                connection, "photos", [(dataset, os.fsencode(name)) for name in gone]
            )
            self._store.replace(connection, "photos", rows)
            # Who was ever seen on a record stays on it: a file that moves must not free a place.
            seen = sorted({(photo.record, photo.person) for photo in listed if photo.person})
            self._store.insert(connection, "persons", seen)

    # Releases

    def release_of(self, law: str) -> str:
        """The id of the release by a mechanism applied to a function, given as text: a key for the
        ledger.

        The same text gives the same id, so that a release is charged once, whatever was lost or
        tried again; after `start_anew` it gives another one.
        """
        epoch = self.fact("epoch")
        parts = (law.encode(), str(epoch).encode()) if epoch else (law.encode(),)
        return keyed(self._key, "release", *parts).hex()[:32]

    def start_anew(self) -> None:
        """Make every release from now on a new one, which is charged again.

        For an owner whose vault forgot what was released: the codes that were lost cannot be
        compared, so nothing may be released again under the old charges.
        """
        # By chance: a vault that is restored twice must not come back to the same ids.
        self.note(epoch=os.urandom(16).hex())

    def releases(self) -> list[VaultRelease]:
        """Every release that the vault knows, in the order of their generations."""
        with self._store.reading() as connection:
            return self._releases(connection)

    def charge(
        self,
        ledger: Ledger | None,
        cost: Guarantee | Cost | Sequence[Cost],
        *,
        release: str,
        what: str,
        **options: Unpack[ChargeOptions],
    ) -> Charged:
        """Charge a release, once, before anything of it leaves: the only way to charge for a vault.

        Parameters:
            ledger: the account of the data set; None notes a release that nobody is charged for.
            cost: a guarantee, or what the release costs in one or several units.
            release: its id (`release_of`).
            what: what is released, in words without private values.
            records: the ids of the records that the release is about. Every account whose data set
                contains one of them is charged, and this account is charged for earlier releases
                of them.
            most: the most records of one person in it, 0 without a bound.
            actor: who asks for it; by default the ledger's `actor`.
            purpose: what the release is for; by default the ledger's `purpose`.
            releases: the releases on disk, which must not be newer than vault and ledger.
            out: the file or folder that the release is written to. A file beside it,
                OUT.release.json, says which release it is; the one that is there is compared like
                `releases`.

        Returns:
            what was charged, with the release's generation and whether it is new.

        Raises:
            RolledBack: the vault or the ledger is an older copy; nothing was charged.
            BudgetExceeded: an account has too little left; nothing may be released.
        """
        from blindsight.privacy.reconcile import charge

        return charge(self, ledger, cost, release=release, what=what, **options)

    def account(
        self,
        ledger: Ledger | None,
        *,
        release: str,
        costs: Callable[[Sequence[Cost]], Sequence[Cost]] = tuple,
        **options: Unpack[ChargeOptions],
    ) -> Ledger:
        """What to pass as `ledger` to an estimator or a door, so that its charge goes through
        `charge`.

        It has a ledger's `charge`, and nothing else of a ledger.

        Parameters:
            ledger: as for `charge`; without one the release is noted in the vault, with a warning.
            release: the release's id, whatever key the door gives; "" makes the id from that key.
            costs: makes the costs to charge from those that the door states, such as the cost per
                person; by default they are charged as stated.
            options: further parameters of `charge`.
        """
        from blindsight.privacy.reconcile import VaultAccount

        return cast("Ledger", VaultAccount(self, ledger, release, costs, options))

    def source(self, records: Iterable[str], *, about: str) -> RecordSource:
        """The noise of these records, to be drawn here or elsewhere.

        `about` says what the mechanism is applied to (a digest of the hash function, say). The same
        noise on two different values of a record would show how they differ, so another function
        must have other noise.
        """
        function = about.encode()
        return RecordSource(
            {record: keyed(self._key, "noise of", record.encode(), function) for record in records}
        )

    def training_source(self, release: str) -> ReleaseSource:
        """The noise of a whole release, to be passed as `random_state`; see `ReleaseSource`.

        `release` must be an id that stands for all inputs and settings (`release_of`).
        """

        def note(label: str, digest: str) -> str:
            with self._store.writing() as connection:
                self._store.insert(connection, "outputs", [(release, label, digest)])
                ((_, _, stands),) = self._store.select(
                    connection, "outputs", "release = ? AND label = ?", (release, label)
                )
            return str(stands)

        return ReleaseSource(keyed(self._key, "release noise", release.encode()), note)

    def signing_seed(self, release: str | None) -> bytes:
        """The secret of an Ed25519 key that signs what is shared.

        Parameters:
            release: the release's number, for a key of its own; None for the key that all linked
                releases of this vault share.
        """
        parts = () if release is None else (release.encode(),)
        return keyed(self._key, "signature of a release" if parts else "signature", *parts)

    def codes(self, release: str) -> dict[str, bytes]:
        """What was released of each record."""
        with self._store.reading() as connection:
            rows = self._store.select(connection, "codes", "release = ?", (release,))
        return {str(row[1]): bytes(row[2]) for row in rows}  # type: ignore[arg-type]

    def keep_codes(
        self, release: str, records: Sequence[str], codes: NDArray[np.uint8], *, most: int = 0
    ) -> NDArray[np.uint8]:
        """Note codes before they leave, and return those that stand: of several makers of one code,
        the first's.

        A code that was released before is never replaced, also where a new library would compute
        another.

        Raises:
            InvalidData: with these codes more than `most` records of one person (by default as many
                as the release was charged with) would be released; none of them is noted.
        """
        if len(records) != len(codes):
            raise InvalidParameter(
                f"got {len(records)} records for {len(codes)} codes: give one each."
            )
        rows = [(release, r, code.tobytes()) for r, code in zip(records, codes, strict=True)]
        with self._store.writing() as connection:
            self._store.insert(connection, "codes", rows)
            noted = self._store.select(connection, "releases", "release = ?", (release,))
            bounds = [bound for bound in (most, int(noted[0][4]) if noted else 0) if bound]
            if bounds:
                self._check_persons(connection, release, records, min(bounds))
            standing = {
                str(row[1]): bytes(row[2])  # type: ignore[arg-type]
                for row in self._store.select_in(
                    connection, "codes", "record", list(records), "release = ?", (release,)
                )
            }
        stored = [np.frombuffer(standing[record], codes.dtype) for record in records]
        if any(code.shape != codes.shape[1:] for code in stored):
            raise HostileFile(
                "a code in the vault has another length than this release's. Restore it from a "
                "copy."
            )
        return np.stack(stored) if stored else codes

    def chosen(self, release: str, records: Iterable[str], most: int) -> set[str]:
        """Those of the records that may be released with at most `most` per person, ever, in this
        release.

        Persons of whom more was released already, when nobody said whose the photos were or others
        did, are refused: the bound that the release is about to promise is broken.
        """
        checks.whole("most", most)
        wanted, before = set(records), set(self.codes(release))
        with self._store.reading() as connection:
            by_person = self._persons(connection)
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

    # Facts

    def fact(self, name: str) -> Any:
        """A fact that was noted (the ledger's address, the photos' folder, a recipe), or None."""
        with self._store.reading() as connection:
            rows = self._store.select(connection, "facts", "name = ?", (name,))
        return json.loads(str(rows[0][1])) if rows else None

    def note(self, **facts: Any) -> None:
        """Note facts as JSON values."""
        with self._store.writing() as connection:
            rows = [(name, json.dumps(value)) for name, value in facts.items()]
            self._store.replace(connection, "facts", rows)

    def __repr__(self) -> str:
        return f"Vault({str(self.path)!r}, number {self.number})"

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        raise InvalidParameter(
            "a vault cannot be copied or pickled: its key stays where it is. Hand out a source."
        )

    def _released(self, record: str) -> bool:
        with self._store.reading() as connection:
            return bool(self._store.select(connection, "codes", "record = ? LIMIT 1", (record,)))

    def _releases(self, connection: sqlite3.Connection) -> list[VaultRelease]:
        known = [
            VaultRelease(str(r[0]), int(r[1]), str(r[2]), tuple(json.loads(str(r[3]))), *r[4:])  # type: ignore[arg-type]
            for r in self._store.select(connection, "releases")
        ]
        return sorted(known, key=lambda release: (release.generation, release.release))

    def _persons(self, connection: sqlite3.Connection) -> dict[str, list[str]]:
        by_person: dict[str, list[str]] = defaultdict(list)
        for record, person in self._store.select(connection, "persons"):
            by_person[str(person)].append(str(record))
        return by_person

    def _check_persons(
        self, connection: sqlite3.Connection, release: str, records: Sequence[str], most: int
    ) -> None:
        """Refuse codes by which somebody would have more than `most` records in the release."""
        touched = {
            str(row[1])
            for row in self._store.select_in(connection, "persons", "record", list(records))
        }
        of_them = self._store.select_in(connection, "persons", "person", sorted(touched))
        owned: dict[str, list[str]] = defaultdict(list)
        for record, person in of_them:
            owned[str(person)].append(str(record))
        everyone = sorted({record for held in owned.values() for record in held})
        released = {
            str(row[1])
            for row in self._store.select_in(
                connection, "codes", "record", everyone, "release = ?", (release,)
            )
        }
        beyond = [person for person, held in owned.items() if len(released & set(held)) > most]
        if beyond:
            raise InvalidData(
                f"{len(beyond)} {'person' if len(beyond) == 1 else 'persons'} would have more than "
                f"{most} {'image' if most == 1 else 'images'} released: another run released some "
                "meanwhile. Nothing of this part was released. Run the command again."
            )


def _read_key(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError:
        lost = ""
        if (path.parent / "records.db").exists():
            lost = " It holds records.db, so its key was lost: restore the vault from a backup."
        raise MissingData(
            f"{path.parent} is not a vault: it holds no key. Check the path.{lost}"
        ) from None
    first = content.startswith(_FIRST_HEAD)
    words = content.removeprefix(_FIRST_HEAD if first else _HEAD).split()
    try:
        key = bytes.fromhex(words[0].decode())
    except (ValueError, IndexError):
        key = b""
    if len(key) != 32 or (content != _key_file(key) and not (first and len(words) == 1)):
        raise HostileFile(
            f"{path} is not a vault's key, or was changed: its check value does not fit. Restore "
            "the vault from a copy."
        )
    if first:  # of a version that wrote no check value
        durable.write_file(path, _key_file(key))
    return key


def _key_file(key: bytes) -> bytes:
    """The file of a key: the key and its check value, in hexadecimal digits."""
    return _HEAD + f"{key.hex()} {keyed(key, 'check').hex()[:16]}\n".encode()


def _file_name(stored: object) -> str:
    """The name of a file, of the bytes in the vault; bytes that are no UTF-8 become surrogates."""
    return os.fsdecode(stored if isinstance(stored, bytes) else str(stored))
