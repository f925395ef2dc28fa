"""The replay contract of a release of photos: the verb `protect`, from files to the release."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
from PIL import Image

from blindsight.app.library import photos as photo_library
from blindsight.app.library.datasets import DataSets, Release
from blindsight.audit.engine import Neighbour
from blindsight.cli.protect import protect
from blindsight.codebooks import Codebook
from blindsight.hashing import CodebookHasher
from blindsight.index import encoder
from blindsight.index.encoder import CellRelease
from blindsight.index.hamming import HammingIndex
from blindsight.privacy import Cost, Ledger
from blindsight.privacy.vault import Vault
from blindsight.workbench.infra.settings import WorkbenchSettings
from contracts.replay import ReplayContract

# A few large patches each, so that they fall into different cells.
PHOTOS = (
    np.random.default_rng(3)
    .integers(0, 256, (5, 2, 2, 3))
    .astype(np.uint8)
    .repeat(8, axis=1)
    .repeat(8, axis=2)
)
_MADE = cache(encoder.make_encoder)


@contextmanager
def _numbered() -> Iterator[None]:
    """Ids in the order in which photos are listed: under the vault's key they are random, and
    differ with the photo.
    """
    seen: dict[bytes, str] = {}
    number = lambda self, digest: seen.setdefault(digest, f"{len(seen):032x}")  # noqa: E731
    with (
        mock.patch.object(Vault, "record_of", number),
        mock.patch.object(encoder, "make_encoder", _MADE),
    ):
        yield


class TestPhotos(ReplayContract):
    """A codebook's cells; what the photos are called is as private as what they show.

    That they differ is public.
    """

    asked: ClassVar[dict[str, Any]] = {"epsilon": 4.0}
    folders = False
    named_by_content = True

    def data(self) -> Any:
        return PHOTOS

    def neighbours(self) -> list[Neighbour]:
        return [one for one in super().neighbours() if "copy" not in one.name]

    def unrelated(self) -> list[Any]:
        return [
            other for other in super().unrelated() if len(np.unique(other, axis=0)) == len(other)
        ]

    def write(self, data: Any, photos: Path) -> None:
        """The photos as files, called by what they show where names are private."""
        for number, pixels in enumerate(data):
            place = photos / f"person {number}" if self.folders else photos
            place.mkdir(exist_ok=True)
            content = f"-{int(pixels.sum())}" if self.named_by_content else ""
            Image.fromarray(pixels).save(place / f"{number}{content}.png")

    def run(self, data: Any, folder: Path) -> Any:
        with (
            tempfile.TemporaryDirectory() as kept,
            _numbered(),
            redirect_stdout(StringIO()) as said,
        ):
            photos = Path(kept) / "photos"
            photos.mkdir()
            self.write(data, photos)
            for _ in range(2):  # continued: nothing is released again
                protect(
                    folder / "out",
                    photos,
                    encoder="pixels",
                    vault=Path(kept) / "vault",
                    json=True,
                    **self.asked,
                )
            with HammingIndex.open(folder / "out" / "codes.index") as index:
                codes = index.codes_of(index.ids.tolist())
        return codes, said.getvalue().replace(kept, "").replace(str(folder), "")


class TestPhotosByFlips(TestPhotos):
    """Flipped codes."""

    asked: ClassVar[dict[str, Any]] = {"epsilon": 6.0, "method": "phashing-lsh", "bits": 4}


class TestThumbnails(TestPhotos):
    """Small pictures are kept in the vault, and none is in what is given away."""

    asked: ClassVar[dict[str, Any]] = {"epsilon": 4.0, "thumbnails": True, "prune": True}


class TestFewCells(TestPhotos):
    """Cells, prior and the size of the first page by hand."""

    asked: ClassVar[dict[str, Any]] = {
        "epsilon": 4.0,
        "cells": 6,
        "prior": 0.05,
        "first_page": True,
        "page": False,
    }


class TestPeople(TestPhotos):
    """Photos of people, one of each at most; a photo's folder names its person."""

    asked: ClassVar[dict[str, Any]] = {"epsilon": 4.0, "people": "folder", "max_per_person": 1}
    folders = True


class TestOwnNames(TestPhotos):
    """Photos keep their names, which are public then."""

    asked: ClassVar[dict[str, Any]] = {"epsilon": 4.0, "names": "keep", "link": True}
    named_by_content = False


SCENES_OF_PROTECT = (
    TestPhotos,
    TestPhotosByFlips,
    TestThumbnails,
    TestFewCells,
    TestPeople,
    TestOwnNames,
)


class TestWorkbench(TestPhotos):
    """The same by the workbench: what the page Protect does with a folder, and the folder that it
    gives away.
    """

    def run(self, data: Any, folder: Path) -> Any:
        with tempfile.TemporaryDirectory() as kept, _numbered():
            photos = Path(kept) / "photos"
            photos.mkdir()
            self.write(data, photos)
            where = Path(kept) / "ledger.db"
            datasets = DataSets(WorkbenchSettings(state=Path(kept) / "state", ledger=str(where)))
            with mock.patch.object(encoder, "default_features", lambda **_: "pixels"):
                one = photo_library.scan(datasets, datasets.add("holidays", photos))
            order = Release("0" * 12, "search", "given", 4.0, 0, "today", looked=False)
            with Ledger(where, dataset=one.account) as ledger:
                ledger.grant(Cost(epsilon=8.0, unit="record"))
            photo_library.release_photos(datasets, one, order)
            shutil.copytree(datasets.folder(order), folder / "given")
            with HammingIndex.open(folder / "given" / "codes.index") as index:
                return index.codes_of(index.ids.tolist())


@cache
def _cells() -> Codebook:
    rows = np.random.default_rng(8).normal(size=(60, 6))
    return CodebookHasher(epsilon=4.0, n_cells=6, learned_from="public").fit(rows).codebook_


class TestEmbeddings(ReplayContract):
    """Vectors of the owner's own in place of photos."""

    def data(self) -> Any:
        return np.random.default_rng(9).normal(size=(8, 6))

    def run(self, data: Any, folder: Path) -> Any:
        return CellRelease(_cells()).transform(data)
