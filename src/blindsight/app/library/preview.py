"""What others would find in a release, and find out: measured on public photos, or on these very
photos.

Everything here is computed and kept on this machine, for the owner alone.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from blindsight.app import defaults
from blindsight.app.library.datasets import DataSet, DataSets
from blindsight.app.library.photos import (
    book_of,
    coding,
    directions,
    encoder,
    keep_thumbnail,
    rows_of,
)
from blindsight.app.result import Progress, no_progress
from blindsight.core import storage
from blindsight.core.errors import HostileFile, InvalidData, MissingData, UnchargedRelease

if TYPE_CHECKING:
    from blindsight.index.encoder import PhotoEncoder

__all__ = ["kinds", "look_at_own", "look_at_public", "measure", "seen"]

_MOST_PUBLIC = 1000
_ASKED = 60


def look_at_own(datasets: DataSets, data_set: DataSet, progress: Progress = no_progress) -> None:
    """Measure on these very photos; the caller writes down that the owner looked."""
    rows = rows_of(datasets, data_set)
    photos = datasets.photos(data_set)
    found = _look(rows, kinds(datasets, data_set, rows)[0], data_set.features, progress)
    _name(found, [photo.id for photo in photos])
    storage.write_atomically(_place(datasets, data_set, "own"), json.dumps(found).encode())


def look_at_public(datasets: DataSets, data_set: DataSet, progress: Progress = no_progress) -> None:
    """Measure on public photos, where there are some on this machine: epsilon can be chosen before
    looking.
    """
    public = _public(datasets.settings.public, Path(data_set.source))
    if public is None:
        return
    progress(f"reading public photos of {public.name}", 0, len(public.shows))
    rows = _public_rows(datasets, public, data_set.features, progress)
    found = _look(rows, public.shows, data_set.features, progress)
    ids = [
        hashlib.sha256(f"public {public.name} {i}".encode()).hexdigest()[:32]
        for i in range(len(rows))
    ]
    for row in {row for each in found.values() for row, _ in each["film"]}:
        keep_thumbnail(public.read(row), datasets.thumbnail(data_set, ids[row]))
    _name(found, ids)
    found["public"] = {"name": public.name, "photos": len(rows)}
    storage.write_atomically(_place(datasets, data_set, "public"), json.dumps(found).encode())


def seen(datasets: DataSets, data_set: DataSet, where: str) -> dict[str, Any] | None:
    """What was measured on "own" or on "public" photos; None where nothing was."""
    path = _place(datasets, data_set, where)
    return json.loads(path.read_bytes()) if path.exists() else None


def _place(datasets: DataSets, data_set: DataSet, where: str) -> Path:
    return datasets.vault(data_set) / f"preview-{where}.json"


def _look(
    rows: NDArray[Any], shows: NDArray[np.int64], features: str, progress: Progress
) -> dict[str, Any]:
    asked = np.random.default_rng().permutation(len(rows))[:_ASKED]
    points = directions(rows)
    # The pictures are of a question that has an answer: else they would show nothing that
    # protection takes away.
    alike = [np.mean(shows[np.argsort(-points @ points[row])[1:11]] == shows[row]) for row in asked]
    asked = asked[np.argsort(-np.array(alike), kind="stable")]
    found: dict[str, Any] = {"plain": measure_plain(rows, shows, asked)}
    for done, epsilon in enumerate(defaults.EPSILONS_OFFERED):
        progress(f"measuring at ε {epsilon:g}", done, len(defaults.EPSILONS_OFFERED))
        found[f"{epsilon:g}"] = measure(encoder(epsilon, features), rows, shows, asked=asked)
    return found


def _name(found: dict[str, Any], ids: list[str]) -> None:
    """Films by the numbers of their photos, not by rows that another scan would move."""
    for each in found.values():
        each["film"] = [[ids[row], hit] for row, hit in each["film"]]


@dataclass(frozen=True)
class _Public:
    """Photos that are nobody's secret: what each shows, and how to read it."""

    name: str
    shows: NDArray[np.int64]
    read: Callable[[int], NDArray[np.uint8]]


def _public(place: str, photos: Path) -> _Public | None:
    """A folder with one subfolder for each kind, or a set that is known by name; None where it is
    not there.
    """
    from blindsight.data import load, read_image
    from blindsight.data.listing import list_photos
    from blindsight.index.public_images import refuse_private

    folder, draw = Path(place).expanduser(), np.random.default_rng(0)
    if not place:
        return None
    if folder.is_dir():
        names = list(list_photos(folder).photos)
        try:
            refuse_private(str(folder), photos, list_photos(photos).photos)
        except InvalidData:
            return None  # what is protected is not public, whatever the folder is called
        names = [names[i] for i in draw.permutation(len(names))[:_MOST_PUBLIC]]
        shows = np.unique([name.rpartition("/")[0] for name in names], return_inverse=True)[1]
        return _Public(folder.name, shows.astype(np.int64), lambda i: read_image(folder / names[i]))
    try:
        found = load(place)
    except MissingData:
        return None
    some = draw.permutation(len(found))[:_MOST_PUBLIC]
    return _Public(place, found.labels[some], lambda i: found.images[int(some[i])])


def _public_rows(
    datasets: DataSets, public: _Public, features: str, progress: Progress
) -> NDArray[np.float32]:
    """Their features, computed once for this machine."""
    from blindsight.encoders import feature_recipe

    recipe, n = feature_recipe(features), len(public.shows)
    key = hashlib.sha256(f"{public.name} {features} {n}".encode()).hexdigest()[:12]
    path = datasets.settings.state / "public" / f"{key}.safetensors"
    try:
        kept: NDArray[np.float32] = storage.load(path, kind="public-features")[0]["rows"]
        return kept
    except (HostileFile, MissingData):
        path.parent.mkdir(exist_ok=True, mode=0o700)
    blocks = []
    for start in range(0, n, 32):
        progress("reading public photos", start, n)
        images = [recipe.prepare(public.read(i)) for i in range(start, min(n, start + 32))]
        blocks.append(recipe.rows(np.stack(images)).astype(np.float32))
    rows = np.concatenate(blocks)
    storage.save(path, kind="public-features", arrays={"rows": rows}, fields={})
    return rows


def kinds(
    datasets: DataSets, data_set: DataSet, rows: NDArray[Any]
) -> tuple[NDArray[np.int64], bool]:
    """What each photo shows: by the folders it lies in where there are several, else as the public
    network sees it.
    """
    folders = [photo.name.rpartition("/")[0] for photo in datasets.photos(data_set)]
    names, found = np.unique(folders, return_inverse=True)
    if data_set.person != "folder" and 2 <= len(names) <= len(folders) // 2:
        return found.astype(np.int64), True
    return book_of(encoder(4.0, data_set.features)).assign(rows).astype(np.int64), False


def measure(
    made: PhotoEncoder,
    rows: NDArray[Any],
    shows: NDArray[np.int64],
    cells: NDArray[np.int64] | None = None,
    *,
    asked: NDArray[np.int64] | None = None,
) -> dict[str, Any]:
    """What others find and find out, on these very photos: computed here, and kept here.

    Without released cells they are drawn anew, as a release would draw them. `asked` are the rows
    to search with.
    """
    n, rng = len(rows), np.random.default_rng()
    released = _drawn(made, rows) if cells is None else cells
    true = book_of(made).assign(rows)
    same = np.bincount(released, minlength=int(true.max(initial=0)) + 1)[
        true
    ]  # entries that name a photo's true cell
    found = np.where(same > 0, (released == true) / np.maximum(same, 1), 1 / max(1, n))
    asked = rng.permutation(n)[:60] if asked is None else asked
    near = int(np.clip(n // 20, min(10, n - 1), 100))
    alike, ranked = (
        _plain_first(rows, asked, near),
        _protected_first(made, rows, released, asked, rng),
    )
    met = [[row in true for row in first] for true, first in zip(alike, ranked, strict=True)]
    return {
        "hits": round(float(np.mean([sum(flags) for flags in met])), 1),
        "hits_luck": round(10 * near / max(1, n - 1), 1),
        "near": near,
        "guess": round(100 * _guessed(made, rows, released, shows)),
        "luck": round(100 * float(np.bincount(shows).max(initial=0) / max(1, n))),
        "singled": float(found.mean()),
        "film": [[int(row), bool(flag)] for row, flag in zip(ranked[0], met[0], strict=True)]
        if ranked
        else [],
    }


def measure_plain(
    rows: NDArray[Any], shows: NDArray[np.int64], asked: NDArray[np.int64]
) -> dict[str, Any]:
    """The same without protection: a stranger who holds the features guesses by the nearest other
    photo.
    """
    points = directions(rows)
    alike = points @ points.T
    np.fill_diagonal(alike, -np.inf)
    first = np.argsort(-alike[asked[0]])[:10].tolist() if len(asked) else []
    guess = shows[alike.argmax(axis=1)] == shows if len(rows) > 1 else np.zeros(0)
    return {
        "guess": round(100 * float(np.mean(guess))),
        "film": [[int(row), True] for row in first],
    }


def _drawn(made: PhotoEncoder, rows: NDArray[Any]) -> NDArray[np.int64]:
    """Cells as a release would draw them, for a look that stays here."""
    from blindsight.index.cell_index import from_codes

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnchargedRelease)  # nothing of it leaves this machine
        return from_codes(made.hasher.transform(rows)).astype(np.int64)


def _guessed(
    made: PhotoEncoder, rows: NDArray[Any], released: NDArray[np.int64], shows: NDArray[np.int64]
) -> float:
    """How often the better of two strangers names what a photo shows, who know all of the others.

    One counts which kinds the others of a cell are: P(kind | r) is proportional to right * n(r,
    kind) + wrong * (n(kind) - n(r, kind)). The other takes the kind of the photo that is nearest to
    the middle of the cell.
    """
    book, says = book_of(made), coding(made)
    true, each = book.assign(rows), np.arange(len(rows))
    present, inverse = np.unique(np.concatenate([true, released]), return_inverse=True)
    table = np.zeros((len(present), int(shows.max(initial=0)) + 1))
    np.add.at(table, (inverse[: len(rows)], shows), 1.0)
    weights = (says.right * table + says.wrong * (table.sum(axis=0) - table))[inverse[len(rows) :]]
    weights[each, shows] -= np.where(true == released, says.right, says.wrong)  # not itself
    some = each[: _ASKED * 5]
    near = np.asarray(book.cells.middle(released[some]) @ book.embedding(rows).T)
    near[some, some] = -np.inf
    counted, nearest = weights.argmax(axis=1) == shows, shows[near.argmax(axis=1)] == shows[some]
    return float(max(counted.mean(), nearest.mean()))


def _plain_first(rows: NDArray[Any], asked: NDArray[Any], near: int) -> list[set[int]]:
    points = directions(rows)
    alike = points[asked] @ points.T
    alike[np.arange(len(asked)), asked] = -np.inf
    return [set(np.argsort(-row)[:near].tolist()) for row in alike]


def _protected_first(
    made: PhotoEncoder,
    rows: NDArray[Any],
    cells: NDArray[np.int64],
    asked: NDArray[Any],
    rng: np.random.Generator,
) -> list[list[int]]:
    """The first ten by code alone; equal codes come in random order, for theirs means nothing."""
    book = book_of(made)
    by_cell = book.reading(np.bincount(cells, minlength=book.k)).scores(
        book.similarity(rows[asked])
    )
    scores = np.asarray(by_cell, np.float64)[:, cells]
    ranked = []
    for row, own in zip(scores, asked, strict=True):
        order = np.lexsort((rng.random(len(row)), -row))
        ranked.append([int(i) for i in order if i != own][:10])
    return ranked
