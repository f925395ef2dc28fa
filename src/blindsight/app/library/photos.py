"""Read the photos of a data set, and release their codes.

Everything that is computed here from photos stays in the private folder, except the codes, which
`protect` charges to the ledger and writes into a release.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import secrets
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from blindsight.app import defaults
from blindsight.app.defaults import no_progress
from blindsight.app.library.accounts import (
    account_ledger,
    has_own_vault,
    join_account,
    release_note,
    require_agreement,
    vault_of,
)
from blindsight.app.library.datasets import DataSet, DataSetPhoto, DataSets, Release, inside, today
from blindsight.app.result import Progress
from blindsight.core import durable, storage
from blindsight.core.errors import HostileFile, InvalidData
from blindsight.data.listing import Inventory, list_photos, valid_text

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

    from blindsight.codebooks import Codebook
    from blindsight.encoders import BuiltIn, OnnxEncoder
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
    "encoder_label",
    "image_encoder",
    "keep_dropped",
    "keep_thumbnail",
    "people_likely",
    "person_rule",
    "points_of",
    "release_photos",
    "released_cells",
    "rows_of",
    "scan",
    "word_point",
]

_THUMBNAIL = 320  # pixels of the longer side
_BATCH = 32  # photos that are encoded together
_BARE_FILES = 50  # files without a suffix that are tested for DICOM
_naming = threading.Lock()
# For the current upload: the name of each file, the set of all names, and the size of the list on
# disk.
_dropping: dict[Path, tuple[dict[str, str], set[str], int]] = {}
_PERSON_NUMBER = re.compile(
    r"(patient|person|subject|sub|proband|participant|pupil|student|child|client)[-_ ]*\d+", re.I
)
_NO_PERSON = "the person it belongs to is not known"
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
    """Read every photo once, and store thumbnails, features and the files that cannot be read.

    What other data sets released of these photos before is charged to the account of this one.

    Parameters:
        datasets: all data sets.
        data_set: the data set to read.
        progress: called with (stage, done, total).
        actor: the name of the person who adds the data set, for the ledger.

    Returns:
        The data set with the numbers of photos, people and files.
    """
    from blindsight.data import read_image

    folder, features = Path(data_set.source), _features(data_set)
    recipe = image_encoder(features)
    original_names = _dropped_names(datasets, data_set)
    scanned, without_person = _recognised(datasets, data_set)
    records = scanned.records
    photos: list[DataSetPhoto] = []
    refused = [
        (valid_text(original_names.get(name, name)), valid_text(_why(why, name)))
        for name, why in scanned.refused
    ]
    refused += [(original_names.get(name, name), _NO_PERSON) for name in without_person]
    waiting: list[NDArray[np.uint8]] = []
    blocks: list[NDArray[Any]] = []
    for done, (record, names) in enumerate(records.items()):
        progress("reading photos", done, len(records))
        name = valid_text(original_names.get(names[0], names[0]))
        try:
            pixels = read_image(folder / names[0])
        except HostileFile as error:
            refused.append((name, _why(str(error), names[0])))
            continue
        photos.append(DataSetPhoto(record, name))
        keep_thumbnail(pixels, datasets.thumbnail(data_set, record))
        waiting.append(recipe.prepare(pixels))
        if len(waiting) == _BATCH:
            blocks.append(recipe.rows(np.stack(waiting)).astype(np.float32))
            waiting = []
    if waiting:
        blocks.append(recipe.rows(np.stack(waiting)).astype(np.float32))
    # Sorted by random ids: the order of a release reveals nothing about folders and dates.
    order = sorted(range(len(photos)), key=lambda i: photos[i].id)
    rows = np.concatenate(blocks)[order] if blocks else np.zeros((0, 1), np.float32)
    photos = [photos[i] for i in order]
    vault = datasets.vault(data_set)
    storage.save(
        vault / "features.safetensors",
        kind="workbench-features",
        arrays={"rows": rows},
        fields={"encoder": recipe.identity(), "photos": _ids_digest(photos)},
    )
    listed = [[photo.id, photo.name] for photo in photos]
    datasets.write_private(data_set, "photos.json", listed)
    progress("learning the models from public data", 0, 0)
    says = [
        asdict(coding(encoder(epsilon, features, data_set.own_names)))
        for epsilon in defaults.EPSILONS_OFFERED
    ]
    datasets.write_private(data_set, "coding.json", says)
    read = {photo.id for photo in photos}
    people = (
        len({photo.person for photo in scanned.photos if photo.record in read})
        if data_set.most
        else 0
    )
    number = "" if has_own_vault(datasets, data_set) else vault_of(datasets, data_set).number
    copies = sum(len(names) for names in records.values()) - len(records)
    files = _inventory(datasets, data_set).files_read(
        read=len(photos), copies=copies, damaged=refused
    )
    updated = datasets.change(
        data_set,
        photos=len(photos),
        refused=tuple(refused),
        files=tuple(files.rows()),
        people=people,
        scanned=True,
        features=features,
        vault=number,
    )
    with account_ledger(datasets, data_set) as ledger:
        if number and ledger.balances():
            join_account(datasets, updated, ledger, actor=actor)
    return updated


def rows_of(
    datasets: DataSets, data_set: DataSet, photos: Sequence[DataSetPhoto] | None = None
) -> NDArray[np.float32]:
    """Return the features of the photos, in the order of `datasets.photos`; cached until the file
    changes.

    Parameters:
        datasets: all data sets.
        data_set: the data set.
        photos: its photos, where a job may read them again meanwhile.

    Raises:
        InvalidParameter: the encoder's files have changed since the photos were read.
        InvalidData: the features are not those of `photos`.
    """
    from blindsight.encoders import require_same_encoder

    path = datasets.vault(data_set) / "features.safetensors"
    rows, fields = _rows(path, path.stat().st_mtime_ns)
    # A file of an earlier version names neither the photos nor the encoder.
    digest, identity = fields.get("photos"), fields.get("encoder")
    if photos is not None and digest not in (None, _ids_digest(photos)):
        raise InvalidData(f"the photos of {data_set.name} are being read again. Wait for its end.")
    if identity is not None:
        description = f"the list of features of {data_set.name} ({data_set.source})"
        require_same_encoder(identity, image_encoder(data_set.features), what=description)
    return rows


@lru_cache(maxsize=4)
def _rows(path: Path, _changed: int) -> tuple[NDArray[np.float32], dict[str, Any]]:
    arrays, fields = storage.load(path, kind="workbench-features")
    rows: NDArray[np.float32] = arrays["rows"]
    rows.flags.writeable = False
    return rows, fields


def _ids_digest(photos: Sequence[DataSetPhoto]) -> str:
    return hashlib.sha256("".join(photo.id for photo in photos).encode()).hexdigest()


def points_of(datasets: DataSets, data_set: DataSet) -> NDArray[np.float32]:
    """Return the features of the photos as `directions`, cached until the file changes."""
    path = datasets.vault(data_set) / "features.safetensors"
    return _points(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _points(path: Path, changed: int) -> NDArray[np.float32]:
    points = directions(_rows(path, changed)[0])
    points.flags.writeable = False
    return points


def directions(rows: NDArray[Any]) -> NDArray[np.float32]:
    """Return features as centred unit vectors, whose products are the similarities of photos."""
    centred = rows - rows.mean(axis=1, keepdims=True)
    unit: NDArray[np.float32] = centred / np.maximum(
        np.linalg.norm(centred, axis=1, keepdims=True), 1e-12
    )
    return unit.astype(np.float32)


def columns(rows: NDArray[Any], count: int) -> NDArray[np.float64]:
    """Reduce features to `count` columns by a fixed random projection, independent of photos."""
    points = directions(rows)
    basis = np.linalg.qr(np.random.default_rng(12).normal(size=(points.shape[1], 4 * count)))[0]
    return np.asarray(points @ basis[:, :count] * np.sqrt(points.shape[1] / count), np.float64)


@dataclass(frozen=True)
class Coding:
    """What a released code reveals, which does not depend on the photos.

    Parameters:
        epsilon: the privacy limit per photo.
        cells: number of groups.
        right: probability that a code names the photo's own group.
        wrong: probability that a code names any one of the other groups.
    """

    epsilon: float
    cells: int
    right: float
    wrong: float

    @property
    def word(self) -> str:
        """A few words for how much a code at an offered epsilon reveals."""
        return _WORDS.get(self.epsilon, "")

    def singled_out(self, photos: int) -> float:
        """Return the probability that somebody with a copy of one photo finds its entry, if the
        photos are spread evenly over the groups.
        """
        same = 1 + (photos - 1) / self.cells
        return self.right / (same * self.right + (photos - same) * self.wrong) if photos else 0.0


def _features(data_set: DataSet) -> str:
    """Return the encoder to read a data set with: the chosen one, else the one that read it before.

    Photos that were read as pixels are read by the default network as soon as it is installed.
    """
    from blindsight.encoders import BUILT_IN

    if data_set.encoder:
        chosen = data_set.encoder
        return BUILT_IN[chosen].name if chosen in BUILT_IN else chosen
    if data_set.features and not data_set.features.startswith("pixels"):
        return data_set.features
    return defaults.default_encoder()


@lru_cache(maxsize=4)
def image_encoder(features: str) -> BuiltIn | OnnxEncoder:
    """Open an encoder by its built-in name or by the path of a folder of ONNX files."""
    from blindsight.encoders import STORED, OnnxEncoder, feature_recipe

    return feature_recipe(features) if features in STORED else OnnxEncoder(features)


def encoder_label(features: str) -> str:
    """Return the encoder's name without a path, for other sites; with a digest if it is not built
    in.
    """
    from blindsight.encoders.base import identity_digest

    encoder = image_encoder(features)
    identity = encoder.identity()
    if identity["kind"] == "built-in":
        return features
    return f"{encoder.name[:40]} {identity_digest(identity)[:16]}"


@lru_cache(maxsize=16)
def encoder(epsilon: float, features: str, own_names: tuple[str, ...] = ()) -> PhotoEncoder:
    """Return the encoder of photos to codes at this epsilon, learned from public data only."""
    from blindsight.index.encoder import make_encoder

    return make_encoder(_recipe(epsilon, features, own_names))


def coding(photo_encoder: PhotoEncoder) -> Coding:
    """Return what the codes of an encoder reveal."""
    book = book_of(photo_encoder)
    right = float(book.mechanism.truth_probability)
    return Coding(photo_encoder.recipe.epsilon, book.k, right, (1 - right) / (book.k - 1))


def word_point(photo_encoder: PhotoEncoder, words: str) -> NDArray[np.float32]:
    """Return the point (1, m) of words in the codebook's space, by texts or classes."""
    from blindsight.codebooks import text_points

    return text_points(photo_encoder.recipe.image, book_of(photo_encoder).embedding, [words])


def codings(datasets: DataSets, data_set: DataSet) -> list[Coding]:
    """Return what codes would reveal at each epsilon on offer, as `scan` stored it."""
    return [Coding(**fields) for fields in datasets.read_private(data_set, "coding.json")]


def release_photos(
    datasets: DataSets,
    data_set: DataSet,
    release: Release,
    progress: Progress = no_progress,
    *,
    accept_chance: bool = False,
    actor: str | None = None,
) -> DataSet:
    """Charge once, then release each photo's code under its random id.

    If it is run again after a crash, it continues.

    Parameters:
        datasets: all data sets.
        data_set: the data set.
        release: the release to make, with its folder and epsilon.
        progress: called with (stage, done, total).
        accept_chance: release even if search would find hardly more than chance.
        actor: the name of the person who asks for the release, for the ledger.

    Returns:
        The data set with the release and its figures.

    Raises:
        InvalidParameter: search would find hardly more than chance, and `accept_chance` is False;
            nothing is charged.
    """
    from blindsight.app.library.risks import measure_release, refuse_chance
    from blindsight.app.protect import protect
    from blindsight.release.contents import amend_release
    from blindsight.release.manifest import NOTE_FILE, Signer

    folder, vault = datasets.folder(release), vault_of(datasets, data_set)
    with account_ledger(datasets, data_set, actor=actor) as ledger:
        require_agreement(datasets, data_set, ledger)
        if not accept_chance:
            refuse_chance(datasets, data_set, release.epsilon)
        contents, _ = _recognised(datasets, data_set)
        # A photo that cannot be read must not count towards the photos of its person.
        read = {photo.id for photo in datasets.photos(data_set)}
        files = [photo.name for photo in contents.photos if photo.record in read]
        protected = protect(
            data_set.source,
            folder,
            epsilon=release.epsilon,
            ledger=ledger,
            dataset=data_set.account,
            vault=vault.path,
            vault_dataset=data_set.id,
            encoder=image_encoder(data_set.features),
            own_names=data_set.own_names or None,
            accept_chance=True,  # `refuse_chance` has tested it on the photos themselves
            files=files,
            people=_persons(datasets, data_set, files) if data_set.most else None,
            max_per_person=data_set.most or None,
            progress=progress,
        )
    photo_encoder = encoder(release.epsilon, data_set.features, data_set.own_names)
    guarantee, counts = protected.guarantee, protected.counts
    files_to_add = {
        "card.txt": _card(release, photo_encoder, guarantee, counts.stored).encode(),
        NOTE_FILE: release_note(datasets, data_set, protected.release_id, guarantee.costs),
    }
    amend_release(folder, files_to_add, Signer(vault.signing_seed(protected.release_id)))
    done = replace(release, photos=counts.stored, left_out=counts.left_out, made=today())
    datasets.keep_release(data_set, done)
    progress("measuring what it is good for", 0, 0)
    figures = measure_release(datasets, data_set, done)
    return datasets.keep_release(data_set, replace(done, figures=figures))


def released_cells(
    datasets: DataSets, data_set: DataSet, release: Release
) -> tuple[list[str], NDArray[np.int64], PhotoEncoder]:
    """Return the ids, cells and encoder of a release, as its receivers have them."""
    from blindsight.core.codes import from_codes
    from blindsight.index.encoder import CodeRecipe, load_encoder
    from blindsight.index.release_folder import ReleaseFolder

    release_folder = ReleaseFolder.read(datasets.folder(release))
    recipe = CodeRecipe.from_fields(release_folder.recipe)
    if recipe.identity is not None:
        description = f"the release {release.id} of {data_set.name}"
        recipe = recipe.with_encoder(image_encoder(data_set.features), what=description)
    photo_encoder = load_encoder(recipe, release_folder.path, None)
    ids: list[str] = []
    cells: list[NDArray[np.int64]] = []
    for names, codes in photo_encoder.load(release_folder.codes).items():
        ids += [str(name) for name in names]
        cells.append(from_codes(codes).astype(np.int64))
    return ids, np.concatenate(cells) if cells else np.zeros(0, np.int64), photo_encoder


def _recognised(datasets: DataSets, data_set: DataSet) -> tuple[Scan, list[str]]:
    """Recognise the photos of the folder by their pixels: copies and moved photos are one record.

    Returns:
        The photos, and the names of those whose person is not known, if persons are protected:
        they cannot be bounded per person.
    """
    from blindsight.index.release_folder import scan

    folder = Path(data_set.source)
    vault = vault_of(datasets, data_set)
    # The vault of a data set of an earlier version stores its photos without a data set's name.
    name = "" if has_own_vault(datasets, data_set) else data_set.id
    names = list(_inventory(datasets, data_set).photos)
    if not data_set.most:
        return scan(folder, names, vault, dataset=name), []
    whose = _persons(datasets, data_set, names)
    with_person = [photo for photo in names if photo in whose]
    without_person = [photo for photo in names if photo not in whose]
    return scan(folder, with_person, vault, persons=whose, dataset=name), without_person


def _inventory(datasets: DataSets, data_set: DataSet) -> Inventory:
    """Return the photos of a data set's folder, and all other files in it by kind."""
    hidden = () if data_set.dropped else (datasets.settings.state,)
    return list_photos(Path(data_set.source), leave_out=hidden)


def people_likely(datasets: DataSets, folder: Path) -> str:
    """Return why people are likely to have several photos in a folder, without opening a photo.

    Returns:
        "dicom" if there are DICOM files, "folder" if most subfolders are named like people
        ("George_W_Bush", "patient 12"), else "".
    """
    from blindsight.data.reading import DICOM_SUFFIXES, unnamed_dicom

    names = list_photos(folder, leave_out=(datasets.settings.state,)).photos
    bare = [name for name in names if not Path(name).suffix][:_BARE_FILES]
    if any(Path(name).suffix.lower() in DICOM_SUFFIXES for name in names) or any(
        unnamed_dicom(folder / name) for name in bare
    ):
        return "dicom"
    folders = {name.partition("/")[0] for name in names if "/" in name}
    likely = sum(_named_like_a_person(name) for name in folders)
    return "folder" if len(folders) > 1 and 2 * likely >= len(folders) else ""


def _named_like_a_person(name: str) -> bool:
    """Return whether a name consists of two to four capitalised words, or numbers a person."""
    words = [word for word in re.split(r"[-_ ,.]+", name) if word]
    capitalised = all(word.isalpha() and word[0].isupper() for word in words)
    return (2 <= len(words) <= 4 and capitalised) or _PERSON_NUMBER.fullmatch(name) is not None


def person_rule(folder: Path | None, protect: str, table: str, column: str) -> str:
    """Return the rule that says whose photos they are: "folder", "dicom", "TABLE:COLUMN" or "".

    Parameters:
        folder: the folder of the photos.
        protect: "photo" (photos are protected, not people), "folder", "dicom" or "table".
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
    """Return the person of each photo.

    Uploaded files are stored under digests, so their folders are those of their original names.
    """
    from blindsight.index.release_folder import persons_of

    folder = Path(data_set.source)
    if data_set.dropped:
        original_names = _dropped_names(datasets, data_set)
        return {
            name: original_names[name].partition("/")[0]
            for name in names
            if "/" in original_names.get(name, "")
        }
    rule = (
        data_set.person if data_set.person in ("folder", "dicom") else str(folder / data_set.person)
    )
    return persons_of(folder, names, rule, all_known=False)


def _recipe(epsilon: float, features: str, own_names: tuple[str, ...]) -> CodeRecipe:
    from blindsight.encoders import OnnxEncoder
    from blindsight.index.encoder import CodeRecipe, default_bits

    image = image_encoder(features)
    own = image if isinstance(image, OnnxEncoder) else None
    return CodeRecipe(
        epsilon=epsilon,
        features=image.name,
        bits=default_bits("codebook", "record", epsilon),
        own_names=own_names,
        identity=None if own is None else own.identity(),
        opened=own,
    )


def _card(release: Release, photo_encoder: PhotoEncoder, guarantee: Guarantee, stored: int) -> str:
    says = coding(photo_encoder)
    looked = (
        "Epsilon was chosen after looking at measurements on these photos."
        if release.looked
        else "Epsilon was chosen before anything was measured on these photos, except how they are "
        "spread over the groups."
    )
    return (
        f"Search index of {stored:,} photos\n\n"
        f"Each photo has a random number, without name, path or date, and one of {says.cells:,} "
        f"groups, which is its own group {100 * says.right:.0f} times in 100.\n"
        f"{looked}\n\n{guarantee.card()}\n"
    )


def book_of(photo_encoder: PhotoEncoder) -> Codebook:
    """Return the codebook of an encoder: the cells and the noise with which they are released."""
    book = photo_encoder.codebook
    assert book is not None  # noqa: S101  (every recipe here is a codebook's)
    return book


def keep_thumbnail(pixels: NDArray[np.uint8], path: Path) -> None:
    """Write a thumbnail, which is for the owner only, unless there is one."""
    from PIL import Image

    if not path.exists():
        small = Image.fromarray(pixels).convert("RGB")
        small.thumbnail((_THUMBNAIL, _THUMBNAIL))
        _keep_picture(small, path, "JPEG", quality=82)


def _keep_picture(picture: Picture, path: Path, kind: str, **options: Any) -> None:
    """Write a picture in one step: it may be read meanwhile, and its writer may be stopped.

    It is not flushed, which would take longer than to read the photo.
    """
    content = io.BytesIO()
    picture.save(content, kind, **options)
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    with os.fdopen(durable.open_file(unfinished, os.O_WRONLY | os.O_CREAT), "wb") as file:
        file.write(content.getvalue())
    os.replace(unfinished, path)


def _why(words: str, name: str) -> str:
    """Return why a file was not read, without its name, which the page shows beside it."""
    for begins in (f"{name} cannot be read: ", f"{Path(name).name} ", "the image "):
        words = words.removeprefix(begins)
    return words.rstrip(".")


def _dropped_names(datasets: DataSets, data_set: DataSet) -> dict[str, str]:
    """Return the original name of each uploaded file, which is stored under a digest."""
    return _read_names(datasets.vault(data_set)) if data_set.dropped else {}


def _read_names(vault: Path) -> dict[str, str]:
    """Return the original names from their list, which has one line for each uploaded file."""
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
    """Store the pixels of an uploaded photo under their digest, and add its name to the list."""
    from PIL import Image

    vault = datasets.vault(data_set)
    file = hashlib.sha256(pixels.tobytes()).hexdigest()[:32] + ".png"
    path = vault / "photos" / file
    if not path.exists():
        _keep_picture(Image.fromarray(pixels), path, "PNG", compress_level=1)
    with _naming:
        name_list = vault / "names.jsonl"
        size = name_list.stat().st_size if name_list.exists() else 0
        listed, used, known_size = _dropping.get(vault, ({}, set(), -1))
        if known_size != size:  # nothing is cached yet, or another process has written
            listed = _read_names(vault)
            used = set(listed.values())
        if file not in listed:
            listed[file] = _plain_name(name, used)
            used.add(listed[file])
            size += _append_line(name_list, json.dumps([file, listed[file]]).encode())
        _dropping.clear()  # only the current upload is cached
        _dropping[vault] = (listed, used, size)


def _append_line(path: Path, line: bytes) -> int:
    """Append a line durably, and return the bytes written; an unfinished line is ended first."""
    descriptor = durable.open_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        end = os.lseek(descriptor, 0, os.SEEK_END)
        cut = end > 0 and durable.read_at(descriptor, 1, end - 1) != b"\n"
        text = (b"\n" if cut else b"") + line + b"\n"
        os.write(descriptor, text)
        os.fsync(descriptor)
        return len(text)
    finally:
        os.close(descriptor)


def _plain_name(name: str, used: set[str]) -> str:
    """Return the last two parts of a name, printable, with a number if the name is used already."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".", "..")][
        -2:
    ]
    base = "/".join("".join(c for c in part if c.isprintable())[:80] for part in parts) or "photo"
    unique, n = base, 2
    while unique in used:
        unique, n = f"{base} ({n})", n + 1
    return unique
