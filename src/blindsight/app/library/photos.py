"""Read the photos of a data set, and release their codes.

Whatever is computed here from photos stays in the private folder, or goes through `protect` and the
ledger into a release.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from blindsight.app import defaults
from blindsight.app.library.accounts import (
    has_own_vault,
    join_account,
    name_release,
    require_agreement,
    vault_of,
)
from blindsight.app.library.datasets import DataSet, DataSets, Photo, Release, inside, today
from blindsight.app.result import Progress, no_progress
from blindsight.core import storage
from blindsight.core.errors import HostileFile, InvalidData
from blindsight.data.listing import Inventory, list_photos, valid_text
from blindsight.privacy import Ledger

if TYPE_CHECKING:
    from blindsight.codebooks import Codebook
    from blindsight.index.encoder import CodeRecipe, PhotoEncoder
    from blindsight.index.release_folder import Scan
    from blindsight.privacy import Guarantee

__all__ = [
    "Coding",
    "book_of",
    "coding",
    "codings",
    "columns",
    "directions",
    "encoder",
    "keep_dropped",
    "keep_thumbnail",
    "person_rule",
    "points_of",
    "release_photos",
    "released_cells",
    "rows_of",
    "scan",
    "word_point",
]

_THUMBNAIL = 320
_naming = threading.Lock()
# The names of the drop that goes on: by file, all of them, and the size of the list on the disk.
_dropping: dict[Path, tuple[dict[str, str], set[str], int]] = {}
_BATCH = 32
_NOBODYS = "nobody is known whose it is"
_WORDS = {
    2.0: "says very little",
    4.0: "a rough idea",
    8.0: "the kind of photo",
    16.0: "nearly the photo itself",
}


def scan(
    datasets: DataSets,
    data_set: DataSet,
    progress: Progress = no_progress,
    *,
    actor: str | None = None,
) -> DataSet:
    """Read every photo once: keep thumbnails and features, and list what could not be read.

    What other data sets released of these photos before is charged to this one's account.
    """
    from blindsight.data import read_image
    from blindsight.encoders import feature_recipe
    from blindsight.index.encoder import default_features

    folder, features = Path(data_set.source), default_features(fast=True)
    recipe = feature_recipe(features)
    shown = _dropped_names(datasets, data_set)
    found, nobodys = _recognised(datasets, data_set)
    records = found.records
    photos: list[Photo] = []
    refused = [
        (valid_text(shown.get(name, name)), valid_text(_why(why, name)))
        for name, why in found.refused
    ]
    refused += [(shown.get(name, name), _NOBODYS) for name in nobodys]
    waiting: list[NDArray[np.uint8]] = []
    blocks: list[NDArray[Any]] = []
    for done, (record, names) in enumerate(records.items()):
        progress("reading photos", done, len(records))
        name = valid_text(shown.get(names[0], names[0]))
        try:
            pixels = read_image(folder / names[0])
        except HostileFile as error:
            refused.append((name, _why(str(error), names[0])))
            continue
        photos.append(Photo(record, name))
        keep_thumbnail(pixels, datasets.thumbnail(data_set, record))
        waiting.append(recipe.prepare(pixels))
        if len(waiting) == _BATCH:
            blocks.append(recipe.rows(np.stack(waiting)).astype(np.float32))
            waiting = []
    if waiting:
        blocks.append(recipe.rows(np.stack(waiting)).astype(np.float32))
    # In the order of their random numbers: a release in this order tells nothing of folders and
    # dates.
    order = sorted(range(len(photos)), key=lambda i: photos[i].id)
    rows = np.concatenate(blocks)[order] if blocks else np.zeros((0, 1), np.float32)
    vault = datasets.vault(data_set)
    storage.save(
        vault / "features.safetensors", kind="workbench-features", arrays={"rows": rows}, fields={}
    )
    listed = [[photos[i].id, photos[i].name] for i in order]
    storage.write_atomically(vault / "photos.json", json.dumps(listed).encode())
    progress("learning the models from public data", 0, 0)
    says = [asdict(coding(encoder(epsilon, features))) for epsilon in defaults.EPSILONS_OFFERED]
    storage.write_atomically(vault / "coding.json", json.dumps(says).encode())
    read = {photo.id for photo in photos}
    people = (
        len({photo.person for photo in found.photos if photo.record in read})
        if data_set.most
        else 0
    )
    number = "" if has_own_vault(datasets, data_set) else vault_of(datasets, data_set).number
    copies = sum(len(names) for names in records.values()) - len(records)
    files = _inventory(datasets, data_set).files_read(
        read=len(photos), copies=copies, damaged=refused
    )
    known = replace(
        datasets.get(data_set.id),
        photos=len(photos),
        refused=tuple(refused),
        files=tuple(files.rows()),
        people=people,
    )
    known = datasets.save(replace(known, scanned=True, features=features, vault=number))
    with Ledger(datasets.settings.ledger_place, dataset=data_set.account) as ledger:
        if number and ledger.balances():
            join_account(datasets, known, ledger, actor=actor)
    return known


def rows_of(datasets: DataSets, data_set: DataSet) -> NDArray[np.float32]:
    """The photos' features, in the order of `datasets.photos`; read once while the file stays as it
    is.
    """
    path = datasets.vault(data_set) / "features.safetensors"
    return _rows(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _rows(path: Path, _changed: int) -> NDArray[np.float32]:
    rows: NDArray[np.float32] = storage.load(path, kind="workbench-features")[0]["rows"]
    rows.flags.writeable = False
    return rows


def points_of(datasets: DataSets, data_set: DataSet) -> NDArray[np.float32]:
    """The photos' features as directions, computed once while they stay as they are."""
    path = datasets.vault(data_set) / "features.safetensors"
    return _points(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _points(path: Path, changed: int) -> NDArray[np.float32]:
    points = directions(_rows(path, changed))
    points.flags.writeable = False
    return points


def directions(rows: NDArray[Any]) -> NDArray[np.float32]:
    """Features as unit vectors about their own mean: their products say how alike photos are
    without protection.
    """
    centred = rows - rows.mean(axis=1, keepdims=True)
    unit: NDArray[np.float32] = centred / np.maximum(
        np.linalg.norm(centred, axis=1, keepdims=True), 1e-12
    )
    return unit.astype(np.float32)


def columns(rows: NDArray[Any], count: int) -> NDArray[np.float64]:
    """Few columns, by directions that no photo was asked about: drawn once, the same for
    everybody.
    """
    points = directions(rows)
    basis = np.linalg.qr(np.random.default_rng(12).normal(size=(points.shape[1], 4 * count)))[0]
    return np.asarray(points @ basis[:, :count] * np.sqrt(points.shape[1] / count), np.float64)


@dataclass(frozen=True)
class Coding:
    """What one code says, whatever the photos: known before any is looked at.

    cells: how many kinds there are. right: how often a code names the true one. wrong: how often a
    given other one.
    """

    epsilon: float
    cells: int
    right: float
    wrong: float

    @property
    def word(self) -> str:
        """In three words."""
        return _WORDS.get(self.epsilon, "")

    def singled_out(self, photos: int) -> float:
        """How often somebody with a copy of one photo finds its entry, if the photos are spread
        evenly over kinds.
        """
        same = 1 + (photos - 1) / self.cells
        return self.right / (same * self.right + (photos - same) * self.wrong) if photos else 0.0


@lru_cache(maxsize=16)
def encoder(epsilon: float, features: str) -> PhotoEncoder:
    """The public model for a budget: learned from public data only, so it is the same for
    everybody.
    """
    from blindsight.index.encoder import make_encoder

    return make_encoder(_recipe(epsilon, features))


def coding(made: PhotoEncoder) -> Coding:
    """What its codes say."""
    book = book_of(made)
    right = float(book.mechanism.truth_probability)
    return Coding(made.recipe.epsilon, book.k, right, (1 - right) / (book.k - 1))


def word_point(made: PhotoEncoder, words: str) -> NDArray[np.float32]:
    """Where words lie in the codebook's space (1, m): a mixture of the public network's classes."""
    from blindsight.codebooks.cells import head_space, unit_rows
    from blindsight.encoders.words import class_weights

    network = made.recipe.image.network
    assert network is not None  # noqa: S101  (asked before)
    _, classes = head_space(network)
    found: NDArray[np.float32] = book_of(made).embedding.moved(
        unit_rows(class_weights(words)[None] @ classes)
    )
    return found


def codings(datasets: DataSets, data_set: DataSet) -> list[Coding]:
    """What codes would say at each budget on offer, as the scan left it."""
    return [
        Coding(**fields)
        for fields in json.loads((datasets.vault(data_set) / "coding.json").read_bytes())
    ]


def release_photos(
    datasets: DataSets,
    data_set: DataSet,
    release: Release,
    progress: Progress = no_progress,
    *,
    actor: str | None = None,
) -> DataSet:
    """Charge once, then release each photo's code under its random number.

    Run again after a crash, it goes on where it was stopped.
    """
    from blindsight.app.library.preview import measure_release
    from blindsight.app.protect import protect
    from blindsight.encoders import feature_recipe
    from blindsight.release.contents import PHOTO_CODES
    from blindsight.release.manifest import Signer, write_manifest

    with Ledger(datasets.settings.ledger_place, dataset=data_set.account) as ledger:
        require_agreement(datasets, data_set, ledger)
    contents, _ = _recognised(datasets, data_set)
    # Those that were read and shown: one that cannot be must not take a place among those that a
    # person may give.
    read = {photo.id for photo in datasets.photos(data_set)}
    files = [photo.name for photo in contents.photos if photo.record in read]
    folder, vault = datasets.folder(release), vault_of(datasets, data_set)
    made = protect(
        data_set.source,
        folder,
        epsilon=release.epsilon,
        ledger=datasets.settings.ledger_place,
        dataset=data_set.account,
        actor=actor,
        vault=vault.path,
        vault_dataset=data_set.id,
        encoder=feature_recipe(data_set.features),
        files=files,
        people=_persons(datasets, data_set, files) if data_set.most else None,
        max_per_person=data_set.most or None,
        progress=progress,
    )
    name_release(datasets, data_set, release, made.release_id, made.guarantee.costs)
    (folder / "card.txt").write_text(
        _card(
            release, encoder(release.epsilon, data_set.features), made.guarantee, made.counts.stored
        ),
        encoding="utf-8",
    )
    # The card and the note for the ledger came after `protect` had signed the folder: sign it anew.
    signed = Signer(vault.signing_seed(made.release_id))
    write_manifest(
        folder,
        signed,
        kind=PHOTO_CODES,
        release=made.release_id,
        facts={
            "entries": made.counts.stored,
            "encoder": feature_recipe(data_set.features).identity(),
        },
    )
    counts = made.counts
    done = replace(release, photos=counts.stored, left_out=counts.left_out, made=today())
    datasets.keep_release(data_set, done)
    progress("measuring what it is good for", 0, 0)
    figures = measure_release(datasets, data_set, done)
    return datasets.keep_release(data_set, replace(done, figures=figures))


def released_cells(
    datasets: DataSets, release: Release
) -> tuple[list[str], NDArray[np.int64], PhotoEncoder]:
    """The numbers, cells and model of a release: what somebody has who was given it."""
    from blindsight.index.cell_index import from_codes
    from blindsight.index.encoder import CodeRecipe, load_encoder
    from blindsight.index.release_folder import ReleaseFolder

    place = ReleaseFolder.read(datasets.folder(release))
    made = load_encoder(CodeRecipe.from_fields(place.recipe), place.path, None)
    ids: list[str] = []
    cells: list[NDArray[np.int64]] = []
    for names, codes in made.load(place.codes).items():
        ids += [str(name) for name in names]
        cells.append(from_codes(codes).astype(np.int64))
    return ids, np.concatenate(cells) if cells else np.zeros(0, np.int64), made


def _recognised(datasets: DataSets, data_set: DataSet) -> tuple[Scan, list[str]]:
    """The photos of the folder by what they show: copies are one record, and a moved photo is the
    same.

    Beside them those that nobody is known for, where persons are protected: they could not be
    counted.
    """
    from blindsight.index.release_folder import scan

    folder = Path(data_set.source)
    vault = vault_of(datasets, data_set)
    # A vault of one data set, of an earlier version, knows its photos under no name.
    name = "" if has_own_vault(datasets, data_set) else data_set.id
    names = list(_inventory(datasets, data_set).photos)
    if not data_set.most:
        return scan(folder, names, vault, dataset=name), []
    whose = _persons(datasets, data_set, names)
    known = [photo for photo in names if photo in whose]
    return scan(folder, known, vault, persons=whose, dataset=name), [
        photo for photo in names if photo not in whose
    ]


def _inventory(datasets: DataSets, data_set: DataSet) -> Inventory:
    """The photos of a data set's folder, and everything else in it by kind."""
    hidden = () if data_set.dropped else (datasets.settings.state,)
    return list_photos(Path(data_set.source), leave_out=hidden)


def person_rule(folder: Path | None, protect: str, table: str, column: str) -> str:
    """Return how a data set keeps whose photos are whose: "folder", "dicom" or "TABLE:COLUMN".

    Parameters:
        folder: the folder of the photos.
        protect: "photo" (nobody is known), "folder", "dicom" or "table".
        table: the table's path within the folder.
        column: the column with the persons.

    Raises:
        InvalidData: if there is no such table inside the folder, or it has no such column.
    """
    from blindsight.index.release_folder import persons_of

    if protect != "table":
        return "" if protect == "photo" else protect
    path = None if folder is None else inside(folder, table)
    if folder is None or path is None or not path.is_file():
        raise InvalidData(f"there is no table {table[:100]!r} in the folder.")
    persons_of(folder, [], f"{path}:{column}")
    return f"{table}:{column}"


def _persons(datasets: DataSets, data_set: DataSet, names: list[str]) -> dict[str, str]:
    """Whose each photo is; dropped files lie under numbers, so the folders are those of the names
    they came with.
    """
    from blindsight.index.release_folder import persons_of

    folder = Path(data_set.source)
    if data_set.dropped:
        shown = _dropped_names(datasets, data_set)
        return {name: shown[name].partition("/")[0] for name in names if "/" in shown.get(name, "")}
    rule = (
        data_set.person if data_set.person in ("folder", "dicom") else str(folder / data_set.person)
    )
    return persons_of(folder, names, rule, all_known=False)


def _recipe(epsilon: float, features: str) -> CodeRecipe:
    from blindsight.index.encoder import CodeRecipe, default_bits

    return CodeRecipe(
        epsilon=epsilon, features=features, bits=default_bits("codebook", "record", epsilon)
    )


def _card(release: Release, made: PhotoEncoder, guarantee: Guarantee, stored: int) -> str:
    says = coding(made)
    looked = (
        "Epsilon was chosen after looking at measurements on these very photos."
        if release.looked
        else "Epsilon was chosen before anything was measured on these photos, but for how they "
        "spread over the groups."
    )
    return (
        f"Search index of {stored:,} photos\n\n"
        f"For each photo: one of {says.cells:,} kinds, the true one {100 * says.right:.0f} times "
        "in 100; "
        "under a random number, without name, path or date.\n"
        f"{looked}\n\n{guarantee.card()}\n"
    )


def book_of(made: PhotoEncoder) -> Codebook:
    """The cells and how they are released."""
    book = made.codebook
    assert book is not None  # noqa: S101  (every recipe here is a codebook's)
    return book


def keep_thumbnail(pixels: NDArray[np.uint8], path: Path) -> None:
    """A small picture for the owner."""
    from PIL import Image

    if not path.exists():
        small = Image.fromarray(pixels).convert("RGB")
        small.thumbnail((_THUMBNAIL, _THUMBNAIL))
        small.save(path, "JPEG", quality=82)
        path.chmod(0o600)


def _why(words: str, name: str) -> str:
    """The reader's reason, for the owner, without the name that stands beside it."""
    for begins in (f"{name} cannot be read: ", f"{Path(name).name} ", "the image "):
        words = words.removeprefix(begins)
    return words.rstrip(".")


def _dropped_names(datasets: DataSets, data_set: DataSet) -> dict[str, str]:
    """Files of a drop lie under numbers; these are the names they came with."""
    return _read_names(datasets.vault(data_set)) if data_set.dropped else {}


def _read_names(vault: Path) -> dict[str, str]:
    """The names in a vault's list: one line for each dropped file, appended when it came."""
    earlier, path = vault / "names.json", vault / "names.jsonl"
    names: dict[str, str] = json.loads(earlier.read_bytes()) if earlier.exists() else {}
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        with contextlib.suppress(ValueError):  # a crash may have cut the last line
            file, name = json.loads(line)
            names.setdefault(str(file), str(name))
    return names


def keep_dropped(
    datasets: DataSets, data_set: DataSet, name: str, pixels: NDArray[np.uint8]
) -> None:
    """Pixels of a dropped photo under a number of their own; its name goes into the vault's
    list.
    """
    from PIL import Image

    vault = datasets.vault(data_set)
    file = hashlib.sha256(pixels.tobytes()).hexdigest()[:32] + ".png"
    path = vault / "photos" / file
    if not path.exists():
        Image.fromarray(pixels).save(path, "PNG", compress_level=1)
        path.chmod(0o600)
    with _naming:
        known = vault / "names.jsonl"
        size = known.stat().st_size if known.exists() else 0
        listed, taken, seen = _dropping.get(vault, ({}, set(), -1))
        if seen != size:  # the first photo of this process, or another process wrote
            listed = _read_names(vault)
            taken = set(listed.values())
        if file not in listed:
            listed[file] = _plain_name(name, taken)
            taken.add(listed[file])
            size += _append_line(known, json.dumps([file, listed[file]]).encode())
        _dropping.clear()  # one drop at a time is remembered
        _dropping[vault] = (listed, taken, size)


def _append_line(path: Path, line: bytes) -> int:
    """Append a line and flush it to the disk; an unfinished one before it is ended first."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        end = os.lseek(descriptor, 0, os.SEEK_END)
        cut = end > 0 and os.pread(descriptor, 1, end - 1) != b"\n"
        text = (b"\n" if cut else b"") + line + b"\n"
        os.write(descriptor, text)
        os.fsync(descriptor)
        return len(text)
    finally:
        os.close(descriptor)


def _plain_name(name: str, taken: set[str]) -> str:
    """The last two parts of a name, printable; a second of the same name gets a number."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".", "..")][
        -2:
    ]
    base = "/".join("".join(c for c in part if c.isprintable())[:80] for part in parts) or "photo"
    found, n = base, 2
    while found in taken:
        found, n = f"{base} ({n})", n + 1
    return found
