"""Thumbnails of the owner's photos, and search results as one HTML file that loads nothing else.

`OwnerPhotos` is what only the owner of an index can do, with the vault and the photos: names,
dates, thumbnails, near-duplicates.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import html
import io
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks, durable
from blindsight.core.checks import core_module
from blindsight.core.errors import BlindsightError, HostileFile, InvalidData
from blindsight.data import read_image
from blindsight.index.base import Hit, Hits
from blindsight.index.encoder import PhotoEncoder
from blindsight.index.release_folder import ReleaseFolder, Scan, public_name, vault_beside
from blindsight.privacy import Guarantee
from blindsight.privacy.vault import Vault

__all__ = [
    "ALIKE",
    "OwnerNames",
    "OwnerPhotos",
    "Sheet",
    "Thumbnails",
    "contact_sheet",
    "groups_alike",
    "percent",
    "shown",
    "standing",
    "sync_thumbnails",
    "thumbnail",
]


@dataclass(frozen=True)
class Sheet:
    """One query's part: its name, its hits, JPEG thumbnails by name (missing ones are drawn empty),
    and whether anything like the query is there.
    """

    query: str
    query_thumbnail: bytes | None
    hits: Sequence[Hit]
    thumbnails: dict[str, bytes]
    present: bool = True


_STYLE = """
:root { color-scheme: light dark; --paper: #fbfaf8; --ink: #1d1f21; --soft: #6b6f76; --line: #e3e0da;
  --card: #ffffff; --bar: #2f6f8f; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181a; --ink: #e8e6e3; --soft: #9aa0a6;
  --line: #2c3034; --card: #1e2124; --bar: #6cb3d1; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 32px 24px 64px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 22px; font-weight: 600; margin: 0 0 4px; }
h2 { font-size: 16px; font-weight: 600; margin: 0; overflow-wrap: anywhere; }
p { margin: 0; color: var(--soft); }
section { margin-top: 32px; }
.query { display: flex; gap: 18px; align-items: center; padding-bottom: 18px; border-bottom: 1px solid var(--line); }
.query img, .query .none { width: 132px; height: 132px; object-fit: cover; border-radius: 8px; }
ol { list-style: none; margin: 18px 0 0; padding: 0; display: grid; gap: 16px;
  grid-template-columns: repeat(auto-fill, minmax(168px, 1fr)); }
li { background: var(--card); border: 1px solid var(--line); border-radius: 10px; overflow: hidden; }
li img, li .none { width: 100%; aspect-ratio: 1; object-fit: cover; display: block; }
.none { display: grid; place-items: center; background: var(--line); color: var(--soft); font-size: 13px; }
.text { padding: 10px 12px 12px; }
.name { font-size: 13px; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.figures { display: flex; flex-wrap: wrap; justify-content: space-between; font-size: 12px; color: var(--soft);
  font-variant-numeric: tabular-nums; white-space: nowrap; column-gap: 10px; }
.bar { height: 4px; margin-top: 7px; border-radius: 2px; background: var(--line); overflow: hidden; }
.bar i { display: block; height: 100%; background: var(--bar); }
table { margin-top: 10px; border-collapse: collapse; font-size: 13px; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line); }
th { font-weight: 500; color: var(--soft); white-space: nowrap; width: 1%; }
@media print { body { max-width: none; padding: 0; } li { break-inside: avoid; } }
"""  # noqa: E501


def contact_sheet(
    sheets: Sequence[Sheet],
    guarantee: Guarantee | None,
    *,
    stored: int,
    word: str = "match",
    meaning: str = "",
) -> str:
    """The whole page. `stored`: the index's size; `word` names what the probabilities are of,
    `meaning` explains it.
    """
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">",
        f"<title>Search results</title><style>{_STYLE}</style></head><body>",
        f"<h1>Search results</h1><p>{stored:,} photos in the index, known only by their noisy "
        "codes. ",
        "Pictures on this page are thumbnails of the originals: keep it as private as they are.</p>",  # noqa: E501
    ]
    parts += [_section(sheet, word) for sheet in sheets]
    if meaning:
        parts.append(
            f'<section><h2>What "{html.escape(word)}" '
            f"means</h2><p>{html.escape(meaning)}</p></section>"
        )
    if guarantee is not None:
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
            for name, value in guarantee.rows()
        )
        parts.append(f"<section><h2>Privacy card of the index</h2><table>{rows}</table></section>")
    return "".join([*parts, "</body></html>\n"])


def _section(sheet: Sheet, word: str) -> str:
    count = f"{len(sheet.hits)} hit{'' if len(sheet.hits) == 1 else 's'}, best first"
    if not sheet.present:
        count = f"Nothing like this here, as far as the noisy cells tell. The nearest: {count}"
    cards = "".join(
        _card(rank, hit, sheet.thumbnails, word) for rank, hit in enumerate(sheet.hits, start=1)
    )
    return (
        f'<section><div class="query">{_picture(sheet.query_thumbnail, sheet.query)}'
        f"<div><h2>{html.escape(sheet.query)}</h2><p>{count}</p></div></div><ol>{cards}</ol></section>"
    )


def _card(rank: int, hit: Hit, thumbnails: dict[str, bytes], word: str) -> str:
    name = html.escape(str(hit.id))
    chance, bar = "", ""
    number = shown(hit)
    if number is not None:
        chance = f"<span>{html.escape(word)} {percent(number)}</span>"
        bar = f'<div class="bar"><i style="width:{100 * number:.1f}%"></i></div>'
    score = " ".join(reversed(standing(hit)) if hit.cell is not None else standing(hit))
    return (
        f'<li>{_picture(thumbnails.get(str(hit.id)), str(hit.id))}<div class="text">'
        f'<div class="name" title="{name}">{rank}. {name}</div>'
        f'<div class="figures"><span>{score}</span>{chance}</div>{bar}</div></li>'
    )


def _picture(jpeg: bytes | None, name: str) -> str:
    if jpeg is None:
        return '<div class="none">original not here</div>'
    return (
        f'<img alt="{html.escape(name)}" '
        f'src="data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}">'
    )


def shown(hit: Hit) -> float | None:
    """The number that may stand beside a hit: its probability where it is calibrated, else trust in
    its cell.
    """
    return hit.trust if hit.probability is None else hit.probability


def standing(hit: Hit) -> tuple[str, str]:
    """Describe what a hit's rank is based on: its distance, its cell, or its likeness by the
    photos.
    """
    if hit.distance is not None:
        return "distance", str(hit.distance)
    if hit.cell is None:
        return "likeness", f"{hit.score:.3f}"
    others = hit.tied - 1
    return (
        "in its cell",
        f"with {others:,} other{'' if others == 1 else 's'}" if others else "alone",
    )


def percent(probability: float) -> str:
    """Format a probability for people; never as a false 0% or 100%."""
    if 0 < probability < 0.001:
        return "< 0.1%"
    if 0.999 < probability < 1:
        return "> 99.9%"
    return f"{100 * probability:.1f}%"


_SIDE, _QUALITY = 320, 82
_LARGEST = 1 << 20
_TABLE = (
    "CREATE TABLE IF NOT EXISTS thumbnails (record TEXT NOT NULL PRIMARY KEY, jpeg BLOB NOT NULL) "
    "STRICT"
)


def thumbnail(pixels: NDArray[Any]) -> bytes:
    """A picture as a small JPEG."""
    from PIL import Image

    picture = Image.fromarray(pixels).convert("RGB")
    picture.thumbnail((_SIDE, _SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=_QUALITY)
    return buffer.getvalue()


class Thumbnails:
    """The thumbnails in a vault, by record.

    Only the owner may read the file; no verb copies it anywhere.
    """

    def __init__(self, vault: Path) -> None:
        self.path = vault / "thumbnails.db"

    def of(self, records: Iterable[str]) -> dict[str, bytes]:
        """Return the thumbnails that are stored."""
        if not self.path.is_file():
            return {}
        with self._connected() as connection:
            query = "SELECT jpeg FROM thumbnails WHERE record = ? AND length(jpeg) <= ?"
            rows = (
                (record, connection.execute(query, (record, _LARGEST)).fetchone())
                for record in records
            )
            return {record: bytes(row[0]) for record, row in rows if row is not None}

    def records(self) -> set[str]:
        """Return the records whose thumbnails are stored."""
        if not self.path.is_file():
            return set()
        with self._connected() as connection:
            return {row[0] for row in connection.execute("SELECT record FROM thumbnails")}

    def keep(self, pictures: Iterable[tuple[str, bytes]]) -> None:
        """Store thumbnails, all or none."""
        os.close(durable.open_file(self.path, os.O_CREAT | os.O_RDWR))
        with self._connected() as connection, connection:
            connection.execute(_TABLE)
            connection.executemany("INSERT OR REPLACE INTO thumbnails VALUES (?, ?)", pictures)

    def forget(self, records: Iterable[str]) -> None:
        """Delete thumbnails, from the file's bytes too."""
        gone = [(record,) for record in records]
        if gone and self.path.is_file():
            with self._connected() as connection:
                with connection:
                    connection.executemany("DELETE FROM thumbnails WHERE record = ?", gone)
                connection.execute("VACUUM")

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        try:
            with contextlib.closing(sqlite3.connect(self.path)) as connection:
                connection.execute("PRAGMA secure_delete = ON")
                yield connection
        except sqlite3.DatabaseError as error:
            raise HostileFile(
                f"{self.path} cannot be used ({error}). Delete it: they can be made again."
            ) from None


_AT_ONCE = 64  # photos whose thumbnails are made and stored together


def sync_thumbnails(
    vault: Vault,
    folder: Path,
    scanned: Scan,
    *,
    prune: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Store thumbnails of all records that have none in the vault; `prune` removes those of photos
    that are gone.
    """
    thumbnails = Thumbnails(vault.path)
    records = scanned.records
    there = thumbnails.records()
    missing = sorted(records.keys() - there)
    for start in range(0, len(missing), _AT_ONCE):
        part = missing[start : start + _AT_ONCE]
        pictures = ((record, _small(folder / records[record][0])) for record in part)
        thumbnails.keep((record, small) for record, small in pictures if small is not None)
        if progress is not None:
            progress(start + len(part), len(missing))
    if prune:
        thumbnails.forget(sorted(there - records.keys()))
    return len(missing)


def _small(path: Path) -> bytes | None:
    try:
        return thumbnail(read_image(path))
    except (BlindsightError, OSError):
        return None


# : cosine of two photos' features from which they count as nearly the same: of 300 photos three in
# four are found again
# : cropped, brightened and compressed anew, and 4 of 44,850 pairs of different photos are taken for
# the same.
ALIKE = 0.8
_TAKEN, _CAMERA = (
    0x9003,
    0x8769,
)  # Exif: when the photo was taken, and where the camera's fields are
_BLOCK = 1024


class OwnerNames:
    """The owner's names for the records of an index: from its vault where that is present, else the
    ids.
    """

    def __init__(self, folder: ReleaseFolder, vault: Path | None = None) -> None:
        at = vault or vault_beside(folder.path)
        opened = Vault(at) if vault is not None or (at / "key").exists() else None
        if vault is not None and opened is not None and opened.number != folder.vault:
            raise InvalidData(
                f"{vault} is not the vault of {folder.path}: that one has number {folder.vault}."
            )
        owned = opened if opened is not None and opened.number == folder.vault else None
        self.vault = None if owned is None else owned.path
        self.source = (
            None if owned is None or owned.fact("source") is None else Path(owned.fact("source"))
        )
        self._changed: dict[str, int] = {}
        self._names: dict[str, list[str]] = {}
        self._records: dict[str, str] = {}
        for name, photo in sorted(owned.photos().items()) if owned is not None else ():
            key = photo.record if folder.names == "random" else public_name(name)
            self._changed.setdefault(key, photo.changed)
            self._names.setdefault(key, []).append(name)
            self._records[name] = key

    def changed(self, key: object) -> int | None:
        """When a record's file last changed, in nanoseconds, as the vault saw it; None where it is
        not known.
        """
        return self._changed.get(str(key))

    def of(self, key: object) -> list[str]:
        """The files that show a record, or its id where they are not known."""
        return self._names.get(str(key), [str(key)])

    def record(self, name: str) -> str:
        """Return the id under which a photo is stored; an unknown name is returned as it is."""
        return self._records.get(name, name)


class OwnerPhotos:
    """The photos behind an index, as far as they are available.

    Parameters:
        names: what the owner calls the records.
        folder: where the photos are; None where nobody knows.
        encoder: how photos are described.
    """

    def __init__(self, names: OwnerNames, folder: Path | None, encoder: PhotoEncoder) -> None:
        self.names, self.folder, self.encoder = names, folder, encoder

    def original(self, key: Any) -> NDArray[np.uint8] | None:
        """A record's photo as pixels; None where it is gone."""
        path = self._path(key)
        if path is None:
            return None
        try:
            return read_image(path)
        except (BlindsightError, OSError):
            return None

    def squeezed(self, key: Any) -> NDArray[np.uint8] | None:
        """Return a record's photo at the network's size; None where it is gone."""
        image = self.original(key)
        return None if image is None else self.encoder.recipe.image.prepare(image)

    def thumbnails(self, keys: Iterable[Any]) -> dict[str, bytes]:
        """Small JPEGs by record: the vault's, or made from the photos."""
        wanted = {str(key) for key in keys}
        vault = self.names.vault
        jpegs = {} if vault is None else Thumbnails(vault).of(sorted(wanted))
        for key in wanted - jpegs.keys():
            picture = self.original(key)
            if picture is not None:
                jpegs[key] = thumbnail(picture)
        return jpegs

    def inside(self, hits: Hits, begins: str) -> NDArray[np.bool_]:
        """Return a mask of the hits whose photos' names begin with this text."""
        known = {
            key: any(name.startswith(begins) for name in self.names.of(key))
            for key in set(hits.ids.tolist())
        }
        if not any(known.values()):
            raise InvalidData(
                f"no photo's name begins with {begins!r}. blindsight index show lists the names."
            )
        return np.array([known[key] for key in hits.ids], dtype=bool)

    def taken(self, key: Any) -> datetime.date | None:
        """Return when a photo was taken: the camera's date, else the date of the file; None where
        unknown.
        """
        path = self._path(key)
        if path is not None and (date := _exif_date(path)) is not None:
            return date
        changed = self.names.changed(key)
        return None if changed is None else datetime.datetime.fromtimestamp(changed / 1e9).date()

    def between(
        self, hits: Hits, since: datetime.date | None, until: datetime.date | None
    ) -> NDArray[np.bool_]:
        """Which hits were taken between two days, both included; those of an unknown day are
        not.
        """
        known = {key: self.taken(key) for key in set(hits.ids.tolist())}
        if not any(known.values()):
            raise InvalidData(
                "no dates are known: they come from the owner's vault and photos, which are not "
                "here."
            )
        first, last = since or datetime.date.min, until or datetime.date.max
        return np.array(
            [(day := known[key]) is not None and first <= day <= last for key in hits.ids],
            dtype=bool,
        )

    def duplicates(self, keys: Sequence[Any], *, alike: float = ALIKE) -> list[list[Any]]:
        """Groups of records whose photos are nearly the same, the largest first."""
        checks.probability("alike", alike)
        pictures = [(key, image) for key in keys if (image := self.squeezed(key)) is not None]
        if not pictures:
            raise InvalidData("none of the photos are here: say where they are (--folder).")
        described = self.encoder.described(np.stack([image for _, image in pictures]))
        return [[pictures[row][0] for row in group] for group in groups_alike(described, alike)]

    def _path(self, key: Any) -> Path | None:
        """The photo's file, where its name does not lead out of the folder."""
        if self.folder is None:
            return None
        path = self.folder / self.names.of(key)[0]
        return path if path.resolve().is_relative_to(self.folder.resolve()) else None


def groups_alike(rows: NDArray[Any], alike: float) -> list[list[int]]:
    """Groups of unit rows (n, d) that are connected by cosines of at least `alike`, the largest
    first.
    """
    coo_array = core_module("scipy.sparse").coo_array
    connected_components = core_module("scipy.sparse.csgraph").connected_components

    part = np.arange(len(rows))
    for start in range(0, len(rows), _BLOCK):
        left, right = np.nonzero(rows[start : start + _BLOCK] @ rows.T >= alike)
        # Parts that were joined before count as one: many copies are as quick as few.
        pairs = (np.ones(len(left), bool), (part[start + left], part[right]))
        part = connected_components(coo_array(pairs, shape=(len(rows), len(rows))), directed=False)[
            1
        ][part]
    groups: dict[int, list[int]] = {}
    for row, number in enumerate(part.tolist()):
        groups.setdefault(number, []).append(row)
    return sorted(
        (group for group in groups.values() if len(group) > 1),
        key=lambda group: (-len(group), group),
    )


def _exif_date(path: Path) -> datetime.date | None:
    from PIL import Image

    try:
        with Image.open(path) as picture:
            stated = picture.getexif().get_ifd(_CAMERA).get(_TAKEN)
        return (
            datetime.date(*(int(part) for part in str(stated)[:10].split(":"))) if stated else None
        )
    except (OSError, ValueError, TypeError, SyntaxError, Image.DecompressionBombError):
        return None
