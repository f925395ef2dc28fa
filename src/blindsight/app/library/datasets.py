"""The data sets on this machine: a private folder for each, and releases that may be shared.

    STATE/vaults/ID/      the names behind random numbers, thumbnails, features: never leaves
    STATE/releases/NAME/  codes under random numbers, the public model, the card: no name, no path
                          and no time of a photo

A private folder is for the owner only. The key of the noise is in the vault that all data sets
share (`app.library.accounts`). Files are replaced atomically: after a crash there is the old or
the new one.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Protocol

from blindsight.core import durable
from blindsight.core.errors import HostileFile, InvalidParameter, MissingData
from blindsight.core.storage import write_atomically

__all__ = [
    "DataSet",
    "DataSetPhoto",
    "DataSets",
    "LibrarySettings",
    "Release",
    "inside",
    "lock_state",
    "today",
]

_ID, _RECORD = re.compile(r"[0-9a-f]{12}"), re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class DataSetPhoto:
    """A photo of a data set: its random id, which may be shared, and its name, for the owner."""

    id: str
    name: str


@dataclass(frozen=True)
class Release:
    """A release of a data set.

    Parameters:
        id: the first 12 digits of its number in the vault.
        kind: "search", "tags", "published", "statistics" or "metric".
        folder: the name of its folder.
        epsilon: the privacy limit per photo (per answer for "metric").
        photos: number of photos in it (of pairs for "metric").
        made: when it was made, in UTC.
        looked: whether epsilon was chosen after measuring on these photos.
        attack: the result of the last attack, for the owner.
        left_out: number of photos that were left out by the bound per person.
        figures: utility and risk of the release (`app.library.risks.measure_release`).
    """

    id: str
    kind: str
    folder: str
    epsilon: float
    photos: int
    made: str
    looked: bool
    attack: dict[str, Any] | None = None
    left_out: int = 0
    figures: dict[str, Any] | None = None


@dataclass(frozen=True)
class DataSet:
    """A data set of photos, as its file `about.json` describes it.

    Parameters:
        id: its random number.
        name: the owner's name for it.
        source: the folder of the photos.
        made: when it was added, in UTC.
        dropped: whether the photos were uploaded, and lie in the private folder.
        photos: number of photos that could be read.
        refused: name and reason of each photo that could not be read.
        files: the rows of the table of files that were read and skipped.
        scanned: whether the photos have been read.
        looked: whether the owner has seen measurements on these photos.
        features: the name of the encoder that read the photos, or its folder.
        encoder: the encoder that the owner chose; "" for the default.
        own_names: public words for what the photos show.
        person: the rule that says whose photos they are; "" if photos are protected.
        most: the largest number of photos of one person; 0 if photos are protected.
        people: number of people on the photos.
        vault: the number of the vault that the photos were read with.
        releases: everything that was released from it.
    """

    id: str
    name: str
    source: str
    made: str
    dropped: bool = False
    photos: int = 0
    refused: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, ...], ...] = ()
    scanned: bool = False
    looked: bool = False
    features: str = ""
    encoder: str = ""
    own_names: tuple[str, ...] = ()
    person: str = ""
    most: int = 0
    people: int = 0
    vault: str = ""
    releases: tuple[Release, ...] = field(default=())

    @property
    def account(self) -> str:
        """The name of its account in the ledger, which differs between data sets of one name."""
        return f"{self.name} ({self.id[:4]})"

    @property
    def unit(self) -> str:
        """The unit of protection: "photo", or "person" with at most `most` photos each."""
        return "person" if self.most else "photo"

    def price(self, epsilon: float) -> float:
        """Return the epsilon per unit of a release with this epsilon per photo."""
        return epsilon * max(1, self.most)

    def release(self, number: str) -> Release:
        """Return the release with this number.

        Raises:
            MissingData: the data set has no such release.
        """
        for release in self.releases:
            if release.id == number:
                return release
        raise MissingData(f"the data set {self.name} has no release {number}.")


class LibrarySettings(Protocol):
    """Settings of a library: where its state and ledger are, and which photos it may read."""

    @property
    def state(self) -> Path:
        """The folder for the vault, the private folders of the data sets and the releases."""

    @property
    def ledger_place(self) -> str:
        """The ledger's file or URL."""

    @property
    def photos(self) -> tuple[Path, ...]:
        """Folders whose photos may be read."""

    @property
    def public(self) -> str:
        """Public pictures for previews: a folder, the name of a known data set, or ""."""

    @property
    def drop_files(self) -> int:
        """The largest number of photos of one data set."""

    @property
    def photo_budget(self) -> float:
        """First budget of a data set, in epsilon per photo."""

    @property
    def person_budget(self) -> float:
        """First budget of a data set, in epsilon per person."""


class DataSets:
    """All data sets of a state folder.

    Parameters:
        settings: the settings of the library.
    """

    def __init__(self, settings: LibrarySettings) -> None:
        self.settings = settings
        self.vaults, self.given = settings.state / "vaults", settings.state / "releases"

    def listed(self) -> list[DataSet]:
        """Return all data sets, the newest first."""
        data_sets = [self.get(path.parent.name) for path in self.vaults.glob("*/about.json")]
        return sorted(data_sets, key=lambda data_set: data_set.made, reverse=True)

    def get(self, number: str) -> DataSet:
        """Read one data set.

        Raises:
            MissingData: if there is none with this number.
        """
        if not _ID.fullmatch(number) or not (self.vaults / number / "about.json").is_file():
            raise MissingData(f"there is no data set {number[:20]!r} in {self.vaults}.")
        try:
            fields = json.loads((self.vaults / number / "about.json").read_bytes())
            fields["refused"] = tuple((str(name), str(why)) for name, why in fields["refused"])
            fields["files"] = tuple(tuple(map(str, row)) for row in fields.get("files", ()))
            fields["own_names"] = tuple(str(name) for name in fields.pop("about", ()))
            fields["releases"] = tuple(Release(**release) for release in fields["releases"])
            return DataSet(**fields)
        except (ValueError, TypeError, KeyError) as error:
            raise HostileFile(
                f"the description of the data set {number} is damaged. Restore it from a copy."
            ) from error

    def add(
        self,
        name: str,
        source: Path | None,
        *,
        person: str = "",
        most: int = 0,
        encoder: str = "",
        own_names: tuple[str, ...] = (),
    ) -> DataSet:
        """Add a data set.

        Parameters:
            name: the owner's name for it.
            source: the folder of the photos; None if they will be uploaded.
            person: the rule that says whose photos they are; "" if photos are protected.
            most: the largest number of photos of one person.
            encoder: the encoder that reads the photos: a built-in name, or a folder of ONNX files;
                "" for the default.
            own_names: public words for what the photos show.
        """
        name = " ".join(name.split())[:60] or "Photos"
        if not name.isprintable():
            raise InvalidParameter("a data set's name must be printable.")
        number = secrets.token_hex(6)
        vault = self.vaults / number
        vault.mkdir(parents=True, mode=0o700)
        (vault / "thumbnails").mkdir(mode=0o700)
        if source is None:
            (vault / "photos").mkdir(mode=0o700)
        folder = vault / "photos" if source is None else source
        return self.save(
            DataSet(
                number,
                name,
                str(folder),
                today(),
                dropped=source is None,
                person=person,
                most=most,
                encoder=encoder,
                own_names=own_names,
            )
        )

    def save(self, data_set: DataSet) -> DataSet:
        """Write the description of a data set to its private folder, and return it."""
        fields = asdict(data_set)
        fields["about"] = fields.pop("own_names")  # the key in files of all versions
        write_atomically(self.vault(data_set) / "about.json", json.dumps(fields, indent=1).encode())
        return data_set

    def keep_release(self, data_set: DataSet, release: Release) -> DataSet:
        """Store a release of a data set, in place of one with the same id."""
        with durable.only_writer(self.vault(data_set)):
            data_set = self.get(data_set.id)
            others = tuple(earlier for earlier in data_set.releases if earlier.id != release.id)
            return self.save(replace(data_set, releases=(*others, release)))

    def change(self, data_set: DataSet, **fields: Any) -> DataSet:
        """Change fields of the stored data set; what others stored meanwhile stays."""
        with durable.only_writer(self.vault(data_set)):
            return self.save(replace(self.get(data_set.id), **fields))

    def vault(self, data_set: DataSet) -> Path:
        """Return the private folder of a data set."""
        return self.vaults / data_set.id

    def photos(self, data_set: DataSet) -> list[DataSetPhoto]:
        """Return all photos that could be read, in a fixed order."""
        return [DataSetPhoto(*row) for row in self.read_private(data_set, "photos.json") or ()]

    def read_private(self, data_set: DataSet, name: str) -> Any:
        """Return the content of a JSON file in the private folder; None if there is no file."""
        path = self.vault(data_set) / name
        return json.loads(path.read_bytes()) if path.exists() else None

    def write_private(self, data_set: DataSet, name: str, content: object) -> None:
        """Write a JSON file in the private folder."""
        write_atomically(self.vault(data_set) / name, json.dumps(content).encode())

    def thumbnail(self, data_set: DataSet, photo: str) -> Path:
        """Return the path of a photo's thumbnail, which is for the owner only."""
        if not _RECORD.fullmatch(photo):
            raise MissingData(f"there is no photo {photo[:40]!r} in the data set {data_set.name}.")
        return self.vault(data_set) / "thumbnails" / f"{photo}.jpg"

    def folder(self, release: Release) -> Path:
        """Return the folder of a release, which may be shared."""
        return self.given / release.folder

    def release_numbered(
        self, data_set: DataSet, number: str, kind: str, epsilon: float, photos: int = 0
    ) -> Release:
        """Return the stored release with this number in the vault, or a new one."""
        for release in self.get(data_set.id).releases:
            if release.id == number[:12]:
                return release
        folder = self.named(data_set, "compare" if kind == "metric" else kind, epsilon, number)
        return Release(number[:12], kind, folder, epsilon, photos, today(), False)

    def named(self, data_set: DataSet, kind: str, epsilon: float, number: str) -> str:
        """Return the folder name of a release: the data set's name, kind and epsilon.

        Digits of the release's number keep two releases of the same kind apart.
        """
        word = re.sub(r"[^a-z0-9]+", "-", f"{data_set.name}-{kind}-{epsilon:g}".lower()).strip("-")
        return f"{word}-{number[:6]}"

    def allowed(self, path: str) -> Path:
        """Return a folder with its links resolved.

        Raises:
            MissingData: the folder is not inside one of the folders that the owner allowed.
        """
        for root in self.settings.photos:
            folder = inside(root, path)
            if folder is not None and folder.is_dir():
                return folder
        raise MissingData(f"{path[:200]!r} is not a folder that this library may read.")


def inside(root: Path, path: str) -> Path | None:
    """Return a path with its links resolved, or None if it is outside `root` or does not exist.

    A path that the operating system refuses (a NUL byte, a name that is too long) does not exist.
    """
    try:
        resolved = (root / path).resolve()
        resolved.lstat()
    except (OSError, ValueError):
        return None
    return resolved if resolved.is_relative_to(root.resolve()) else None


def today() -> str:
    """Return the present time in UTC, in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def lock_state(state: Path) -> IO[str]:
    """Lock a state folder for this process, because a second workbench would run its jobs again.

    Returns:
        The lock, which is held until this file is closed.

    Raises:
        InvalidParameter: another process holds the lock.
    """
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = (state / "lock").open("a", encoding="ascii")
    try:
        durable.lock(file.fileno(), wait=False)
    except OSError:
        file.close()
        raise InvalidParameter(
            f"another workbench uses {state}. Choose another folder with --state."
        ) from None
    return file
