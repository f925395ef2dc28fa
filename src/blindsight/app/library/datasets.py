"""The data sets on this machine: a private folder for each, and releases that may be shared.

    STATE/vaults/ID/      the names behind random numbers, thumbnails, features: never leaves
    STATE/releases/NAME/  codes under random numbers, the public model, the card: no name, no path
                          and no time of a photo

Everything in a private folder is for the owner; the key of the noise is in the one vault of all
data sets (`app.library.accounts`). Files are written in one piece, so that a crash leaves the old
or the new.
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
    """A photo of a data set: a random number for others, a name for the owner."""

    id: str
    name: str


@dataclass(frozen=True)
class Release:
    """Something that was made to be shared.

    Parameters:
        id: its number.
        kind: "search", "tags", "published" or "metric".
        folder: the name of its folder.
        epsilon: the privacy limit per photo (per pair for "metric").
        photos: how many photos are in it.
        made: when.
        looked: whether epsilon was chosen after measuring on these photos.
        attack: what the last attack measured, for the owner.
        left_out: photos that the bound per person left out.
        figures: what the release is good for and what strangers learn from it, as every page shows
            it (`app.library.risks.measure_release`).
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
    """What is known of a data set without opening a photo."""

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
        """Its name in the ledger; two data sets of one name have two accounts."""
        return f"{self.name} ({self.id[:4]})"

    @property
    def unit(self) -> str:
        """Who is protected: each photo, or each person with at most `most` photos of theirs."""
        return "person" if self.most else "photo"

    def price(self, epsilon: float) -> float:
        """What a release at so much per photo costs per unit."""
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
    """What a library is told: where its state and its ledger are, and which photos it may read."""

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
        """Public pictures for previews: a folder, the name of a known set, or empty."""

    @property
    def drop_files(self) -> int:
        """The most photos of one data set."""

    @property
    def photo_budget(self) -> float:
        """First budget of a data set, in epsilon per photo."""

    @property
    def person_budget(self) -> float:
        """First budget of a data set, in epsilon per person."""


class DataSets:
    """All data sets of a state folder.

    Parameters:
        settings: where the folder is, and which photos may be read.
    """

    def __init__(self, settings: LibrarySettings) -> None:
        self.settings = settings
        self.vaults, self.given = settings.state / "vaults", settings.state / "releases"

    def listed(self) -> list[DataSet]:
        """The newest first."""
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
                f"the vault {number} is not what it should be. Restore it from a copy."
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
        """Add a data set: of a folder, or of what will be dropped.

        Parameters:
            name: what the owner calls it.
            source: the folder; None for what will be dropped.
            person: the rule that says whose photos they are; empty where photos are protected.
            most: the most photos of one person.
            encoder: the encoder that reads the photos: a built-in name, or a folder of ONNX files;
                empty for the default.
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
        """Add a release, or replace what was known of it."""
        data_set = self.get(data_set.id)
        others = tuple(earlier for earlier in data_set.releases if earlier.id != release.id)
        return self.save(replace(data_set, releases=(*others, release)))

    def vault(self, data_set: DataSet) -> Path:
        """What is kept."""
        return self.vaults / data_set.id

    def photos(self, data_set: DataSet) -> list[DataSetPhoto]:
        """All photos that could be read, in a fixed order."""
        path = self.vault(data_set) / "photos.json"
        return (
            [DataSetPhoto(*row) for row in json.loads(path.read_bytes())] if path.exists() else []
        )

    def thumbnail(self, data_set: DataSet, photo: str) -> Path:
        """A small picture for the owner."""
        if not _RECORD.fullmatch(photo):
            raise MissingData(f"there is no photo {photo[:40]!r} in the data set {data_set.name}.")
        return self.vault(data_set) / "thumbnails" / f"{photo}.jpg"

    def folder(self, release: Release) -> Path:
        """The folder that is shared."""
        return self.given / release.folder

    def named(self, data_set: DataSet, kind: str, epsilon: float, number: str) -> str:
        """A release's folder, by its own number: two that wait together must not share one.

        It tells no more than the owner's own name for the set.
        """
        word = re.sub(r"[^a-z0-9]+", "-", f"{data_set.name}-{kind}-{epsilon:g}".lower()).strip("-")
        return f"{word}-{number[:6]}"

    def allowed(self, path: str) -> Path:
        """A folder under one of the roots that the owner allowed, links resolved; anything else is
        refused.
        """
        for root in self.settings.photos:
            folder = inside(root, path)
            if folder is not None and folder.is_dir():
                return folder
        raise MissingData(f"{path[:200]!r} is no folder that this library may read.")


def inside(root: Path, path: str) -> Path | None:
    """A path with its links resolved, or None where it lies outside `root` or cannot exist.

    A NUL byte, a name that is too long or a character that no file system knows are errors of the
    operating system, and no reason to fail.
    """
    try:
        resolved = (root / path).resolve()
        resolved.lstat()
    except (OSError, ValueError):
        return None
    return resolved if resolved.is_relative_to(root.resolve()) else None


def today() -> str:
    """The moment, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def lock_state(state: Path) -> IO[str]:
    """Hold a state folder for this process alone: a second workbench on it would run its jobs
    twice.
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
