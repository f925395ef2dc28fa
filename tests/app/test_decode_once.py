"""A photo is decoded once, for its identity and for its code; a camera's raw file by its name."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from app.test_files import encoded, raw_file
from blindsight.app.protect import protect
from blindsight.data import confined
from blindsight.encoders.preparation import Preparation
from blindsight.index.bulk.hashing import PreparedPhotos
from blindsight.privacy.vault import Vault


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.png").write_bytes(encoded("PNG", number))
    (folder / "camera.nef").write_bytes(raw_file(encoded("JPEG", 9)))
    return folder


def test_protect_decodes_each_photo_once(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[str] = []
    real = confined.ConfinedReader.decode

    def counted(self: Any, data: bytes, *, name: str = "", **options: Any) -> Any:
        decoded.append(name)
        return real(self, data, name=name, **options)

    monkeypatch.setattr(confined.ConfinedReader, "decode", counted)
    made = protect(photos, tmp_path / "release", encoder="pixels", seed=1)
    assert made.counts.released == 6
    assert sorted(decoded) == sorted(path.name for path in photos.iterdir())


def test_codes_are_the_same_as_from_photos_that_are_decoded_twice(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = protect(photos, tmp_path / "once", encoder="pixels", seed=1)
    monkeypatch.setattr("blindsight.app.protect.prepared_photos", lambda *_, **__: None)
    twice = protect(photos, tmp_path / "twice", encoder="pixels", seed=1)
    codes = [sorted(Vault(made.vault).codes(made.release_id).values()) for made in (once, twice)]
    assert len(codes[0]) == 6 and codes[0] == codes[1]


def test_the_pictures_leave_nothing_on_the_disk_and_are_bounded(tmp_path: Path) -> None:
    preparation = Preparation(size=8)
    prepared = PreparedPhotos(tmp_path, preparation, most_bytes=2 * 3 * 64)
    pixels = np.asarray(Image.new("RGB", (20, 10), "red"))
    for content in (b"one", b"two", b"three"):
        prepared.keep(content, pixels)
    assert list(tmp_path.iterdir()) == []
    found = [
        prepared.find(hashlib.sha256(content).digest()) for content in (b"two", b"one", b"three")
    ]
    assert found[2] is None, "beyond the bound a photo is decoded again"
    for picture in found[:2]:
        np.testing.assert_array_equal(picture, preparation.prepare(pixels))
