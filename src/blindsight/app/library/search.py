"""Search a data set's release, and for the owner among the photos behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from blindsight.app.library.datasets import DataSet, DataSets, Release
from blindsight.app.library.photos import (
    Coding,
    book_of,
    coding,
    directions,
    released_cells,
    rows_of,
    word_point,
)
from blindsight.audit.release.album import Kinds, folder_kinds

if TYPE_CHECKING:
    from blindsight.encoders.words import Understood
    from blindsight.index.encoder import PhotoEncoder

__all__ = ["Question", "SearchIndex", "open_index", "words_can_be_asked"]


def words_can_be_asked(features: str) -> bool:
    """Return whether words can be a query to photos that were read with these features."""
    from blindsight.app.library.photos import image_encoder
    from blindsight.encoders.words import words_available

    made = image_encoder(features)
    if made.network is not None:
        return words_available()
    return made.texts(["photo"]) is not None


@dataclass(frozen=True)
class Question:
    """What was asked: how it fits the cells, the nearest of them, and how it fits each photo, for
    the owner.
    """

    dataset: str
    similarity: NDArray[np.float32]
    cell: int
    likeness: NDArray[np.float32]
    own: str | None = None
    words: str | None = None


@dataclass(frozen=True)
class SearchIndex:
    """A release as its receivers have it, with the owner's features and names beside it."""

    data_set: DataSet
    ids: list[str]
    cells: NDArray[np.int64]
    made: PhotoEncoder
    rows: NDArray[np.float32]
    names: dict[str, str]
    place: dict[str, int]

    @cached_property
    def says(self) -> Coding:
        """What one code says."""
        return coding(self.made)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """How many codes name each cell."""
        return np.bincount(self.cells, minlength=self.says.cells)

    @cached_property
    def reading(self) -> Any:
        """How to read the codes as they stand."""
        return book_of(self.made).reading(self.counts)

    @cached_property
    def points(self) -> NDArray[np.float32]:
        """The photos' features as directions: for the owner's own order."""
        return directions(self.rows)

    @property
    def takes_words(self) -> bool:
        """Whether words can be asked: what they need is on this machine, and a network read the
        photos.
        """
        return words_can_be_asked(self.data_set.features)

    def meant(self, words: str) -> Understood | None:
        """Return which words are searched for and which are ignored.

        None where the encoder has a text tower, which takes any sentence as it is.
        """
        from blindsight.encoders.words import understood

        return None if self.made.recipe.image.network is None else understood(words)

    def asked(self, row: NDArray[np.float32], own: str | None = None) -> Question:
        """A picture as a question."""
        book = book_of(self.made)
        cell = int(book.assign(row[None])[0])
        likeness = self.points @ directions(row[None])[0]
        return Question(self.data_set.id, book.similarity(row[None]), cell, likeness, own)

    def asked_words(self, words: str) -> Question:
        """Words as a question: a mixture of the network's classes, compared with photos in the
        codebook's space.
        """
        book, point = book_of(self.made), word_point(self.made, words)
        likeness = np.asarray(book.embedding(self.rows) @ point[0], np.float32)
        cell = int(book.cells.assign(point)[0])
        return Question(self.data_set.id, book.cells.similarity(point), cell, likeness, words=words)

    def row_of(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """A picture's features, as the photos' were made."""
        prepared = self.made.recipe.image.prepare(pixels)
        row: NDArray[np.float32] = self.made.rows(prepared[None])[0].astype(np.float32)
        return row

    @cached_property
    def kinds(self) -> Kinds | None:
        """What the photos show by their folders, for the owner; None where these say nothing."""
        return folder_kinds([self.names[name] for name in self.place])

    def mix(self, rows: Sequence[int]) -> list[tuple[str, int]]:
        """Return what these entries' photos show and how many of them, the most frequent first."""
        if self.kinds is None:
            return []
        shown = Counter(
            self.kinds.names[self.kinds.shows[self.place[self.ids[row]]]]
            for row in rows
            if self.ids[row] in self.place
        )
        return shown.most_common()

    def by_noise(self) -> tuple[int, int]:
        """Return how many entries noise alone puts into any one group, in 95 of 100 groups."""
        low, high = stats.binom.interval(0.95, len(self.ids), self.says.wrong)
        return int(low), int(high)

    def expected(self, cell: int) -> tuple[int, float, float]:
        """How many codes name a cell, how many would by chance alone, and how many photos are of it
        by estimate.

        Each photo of the cell is named with probability `right`, each other one with `wrong`: solve
        for their number.
        """
        says, n = self.says, len(self.ids)
        count = int(self.counts[cell])
        true = (count - n * says.wrong) / max(1e-9, says.right - says.wrong)
        return count, n * says.wrong, float(np.clip(true, 0, n))


def open_index(datasets: DataSets, data_set: DataSet, release: Release) -> SearchIndex:
    """Read a release, with the owner's features and names beside it."""
    ids, cells, made = released_cells(datasets, data_set, release)
    photos = datasets.photos(data_set)
    place = {photo.id: row for row, photo in enumerate(photos)}
    names = {photo.id: photo.name for photo in photos}
    return SearchIndex(data_set, ids, cells, made, rows_of(datasets, data_set), names, place)
