"""Search a data set's release, with the photos behind it for the owner, and answer a request that a
receiver saved in `search.html`.

Nothing is sent. The owner sees the requested photos and may copy some of them into a new folder.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from blindsight.app.library.accounts import vault_of
from blindsight.app.library.datasets import DataSet, DataSetPhoto, DataSets, Release
from blindsight.app.library.photos import (
    Coding,
    book_of,
    coding,
    directions,
    released_cells,
    rows_of,
    word_point,
)
from blindsight.app.release import log_request
from blindsight.audit.release.album import Kinds, folder_kinds
from blindsight.core import durable
from blindsight.core.errors import InvalidParameter, MissingData

if TYPE_CHECKING:
    from blindsight.encoders.words import Understood
    from blindsight.index.encoder import PhotoEncoder

__all__ = [
    "Question",
    "RequestedPhotos",
    "SearchIndex",
    "copy_chosen",
    "open_index",
    "requested_photos",
    "words_can_be_asked",
]


def words_can_be_asked(features: str) -> bool:
    """Return whether words can be a query to photos that were read with these features."""
    from blindsight.app.library.photos import image_encoder
    from blindsight.encoders.words import words_available

    encoder = image_encoder(features)
    if encoder.network is not None:
        return words_available()
    return encoder.texts(["photo"]) is not None


@dataclass(frozen=True)
class Question:
    """A query to a search index.

    Parameters:
        dataset: the id of the data set.
        similarity: the similarity of the query to each cell (1, cells).
        cell: the cell that is most similar.
        point: the query as a vector that the owner's photos are compared with.
        own: the id of the photo, if the query is one of the data set's own photos.
        words: the words, if the query is words.
        meant: how the words were understood; None if the encoder has a text tower.
    """

    dataset: str
    similarity: NDArray[np.float32]
    cell: int
    point: NDArray[np.float32]
    own: str | None = None
    words: str | None = None
    meant: Understood | None = None


@dataclass(frozen=True)
class SearchIndex:
    """A release as its receivers have it, with the owner's features and names.

    Parameters:
        data_set: the data set.
        ids: the ids of the released photos.
        cells: the released cell of each id.
        encoder: the encoder of the release.
        rows: the features of the data set's photos.
        names: the name of each photo by its id.
        row_by_id: the row of each photo's features by its id.
    """

    data_set: DataSet
    ids: list[str]
    cells: NDArray[np.int64]
    encoder: PhotoEncoder
    rows: NDArray[np.float32]
    names: dict[str, str]
    row_by_id: dict[str, int]

    @cached_property
    def says(self) -> Coding:
        """What one released code reveals."""
        return coding(self.encoder)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """The number of codes that name each cell."""
        return np.bincount(self.cells, minlength=self.says.cells)

    @cached_property
    def reading(self) -> Any:
        """The posterior of the true cells, given the released counts."""
        return book_of(self.encoder).reading(self.counts)

    @property
    def takes_words(self) -> bool:
        """Whether the query can be words, for the encoder that read the photos."""
        return words_can_be_asked(self.data_set.features)

    def asked(self, row: NDArray[np.float32], own: str | None = None) -> Question:
        """Make a query of a picture.

        Parameters:
            row: the features of the picture.
            own: the id of the photo, if it is one of the data set's own.
        """
        book = book_of(self.encoder)
        cell = int(book.assign(row[None])[0])
        point = directions(row[None])[0]
        return Question(self.data_set.id, book.similarity(row[None]), cell, point, own)

    def asked_words(self, words: str) -> Question:
        """Make a query of words: a mixture of the network's classes, as a point of the codebook.

        An encoder with a text tower encodes any sentence, so `meant` is None.
        """
        from blindsight.encoders.words import understood

        book, point = book_of(self.encoder), word_point(self.encoder, words)
        meant = None if self.encoder.recipe.image.network is None else understood(words)
        return Question(
            self.data_set.id,
            book.cells.similarity(point),
            int(book.cells.assign(point)[0]),
            point[0],
            words=words,
            meant=meant,
        )

    def likeness(self, question: Question, ids: Sequence[str]) -> NDArray[np.float32]:
        """Return the similarity of a query to the photos with these ids, for the owner only."""
        rows = self.rows[[self.row_by_id[name] for name in ids]]
        points = book_of(self.encoder).embedding(rows) if question.words else directions(rows)
        return np.asarray(points @ question.point, np.float32)

    def row_of(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the features of a picture, computed as those of the photos."""
        prepared = self.encoder.recipe.image.prepare(pixels)
        row: NDArray[np.float32] = self.encoder.rows(prepared[None])[0].astype(np.float32)
        return row

    @cached_property
    def kinds(self) -> Kinds | None:
        """What the photos show by their folders, for the owner; None if these do not group them."""
        return folder_kinds([self.names[name] for name in self.row_by_id])

    def mix(self, rows: Sequence[int]) -> list[tuple[str, int]]:
        """Return what these entries' photos show and how many of them, the most frequent first."""
        if self.kinds is None:
            return []
        counts = Counter(
            self.kinds.names[self.kinds.shows[self.row_by_id[self.ids[row]]]]
            for row in rows
            if self.ids[row] in self.row_by_id
        )
        return counts.most_common()

    def by_noise(self) -> tuple[int, int]:
        """Return the 95% interval of the number of entries that noise alone puts into a group."""
        low, high = stats.binom.interval(0.95, len(self.ids), self.says.wrong)
        return int(low), int(high)

    def expected(self, cell: int) -> tuple[int, float, float]:
        """Return how many codes name a cell, how many would by noise alone, and an estimate of how
        many photos belong to it.

        A photo of the cell names it with probability `right`, any other photo with `wrong`; the
        estimate solves the expected count for the number of photos.
        """
        says, n = self.says, len(self.ids)
        count = int(self.counts[cell])
        true = (count - n * says.wrong) / max(1e-9, says.right - says.wrong)
        return count, n * says.wrong, float(np.clip(true, 0, n))


def open_index(datasets: DataSets, data_set: DataSet, release: Release) -> SearchIndex:
    """Read a release, with the owner's features and names."""
    ids, cells, encoder = released_cells(datasets, data_set, release)
    photos = datasets.photos(data_set)
    row_of = {photo.id: row for row, photo in enumerate(photos)}
    names = {photo.id: photo.name for photo in photos}
    return SearchIndex(data_set, ids, cells, encoder, rows_of(datasets, data_set), names, row_of)


@dataclass(frozen=True)
class RequestedPhotos:
    """What a request asks for, for the owner.

    Parameters:
        data_set: the data set of the release.
        release: the release that the request is about.
        photos: the requested photos that are in the release, in the order of the request.
        unknown: how many ids are not of the release.
    """

    data_set: DataSet
    release: Release
    photos: tuple[DataSetPhoto, ...]
    unknown: int


def requested_photos(
    datasets: DataSets, data_set: DataSet, number: str, ids: Sequence[str]
) -> RequestedPhotos:
    """Look up the photos of a request, and record the request in the vault's log.

    Parameters:
        datasets: the owner's library.
        data_set: the data set that the release must be of.
        number: the number of the release, as the request states it.
        ids: the ids that are asked for.

    Raises:
        MissingData: No release of the data set has this number.
    """
    requested = _looked_up(datasets, data_set, number, ids)
    vault = vault_of(datasets, requested.data_set).path
    log_request(vault, number, photos=len(requested.photos), unknown=requested.unknown)
    return requested


def copy_chosen(
    datasets: DataSets,
    data_set: DataSet,
    number: str,
    ids: Sequence[str],
    chosen: Sequence[str],
) -> tuple[Path, ...]:
    """Copy the photos that the owner chose into a new folder. Nothing is sent.

    Parameters:
        datasets: the owner's library.
        data_set: the data set that the release must be of.
        number: the number of the release, as the request states it.
        ids: the ids that are asked for.
        chosen: the ids that the owner decided to hand over.

    Returns:
        The copies, in a new folder below the library's state.

    Raises:
        InvalidParameter: A chosen id was not asked for, or is not of the release.
        MissingData: A photo was moved or deleted since it was read.
    """
    requested = _looked_up(datasets, data_set, number, ids)
    photo_of = {photo.id: photo for photo in requested.photos}
    if not chosen or not set(chosen) <= photo_of.keys():
        raise InvalidParameter("choose at least one photo, and only among the requested ones.")
    when = datetime.now(UTC).strftime("%Y-%m-%d %H%M%S.%f")
    target = datasets.settings.state / "handed over" / when
    durable.make_folder(target.parent)
    names = []
    with durable.staging_folder(target) as staging:
        for position, key in enumerate(dict.fromkeys(chosen), start=1):
            photo = Path(requested.data_set.source) / photo_of[key].name
            if not photo.is_file():
                raise MissingData(f"{photo} is not there any more. Read the folder again.")
            names.append(f"{position:03d}-{key[:12]}{photo.suffix.lower()}")
            shutil.copyfile(photo, staging / names[-1])
        durable.replace_folder(staging, target, last="")
    log_request(vault_of(datasets, requested.data_set).path, number, handed_over=len(names))
    return tuple(target / name for name in names)


def _looked_up(
    datasets: DataSets, data_set: DataSet, number: str, ids: Sequence[str]
) -> RequestedPhotos:
    from blindsight.index.release_folder import ReleaseFolder

    for release in data_set.releases:
        folder = datasets.folder(release)
        if release.kind != "search" or not (folder / "about.json").is_file():
            continue
        if ReleaseFolder.read(folder).release != number:
            continue
        released = set(vault_of(datasets, data_set).codes(number))
        photo_of = {photo.id: photo for photo in datasets.photos(data_set)}
        requested = dict.fromkeys(ids)
        photos = tuple(photo_of[key] for key in requested if key in released and key in photo_of)
        return RequestedPhotos(data_set, release, photos, len(requested) - len(photos))
    raise MissingData(
        f"no release of {data_set.name} has the number in the request. Choose the data set that "
        "was shared."
    )
