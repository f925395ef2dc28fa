"""A photo is decoded once, for its identity and for its code; a camera's raw file by its name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import pytest
from PIL import Image

from app.test_files import encoded, raw_file
from blindsight.app.defaults import no_progress
from blindsight.app.hosting import records_of
from blindsight.app.labelled_images import encode_images, list_images
from blindsight.app.learn_metric import learn_metric
from blindsight.app.protect import protect
from blindsight.app.sketch import sketch
from blindsight.app.train_together import read_labelled
from blindsight.data import DecodedPhotos, Files, confined
from blindsight.encoders import open_encoder
from blindsight.encoders.base import Preparation
from blindsight.index.release_folder import PreparedPhotos
from blindsight.privacy.vault import Vault
from blindsight.tagging.labels import read_labels
from blindsight.tagging.photos import Extractor, image_files


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.png").write_bytes(encoded("PNG", number))
    (folder / "camera.nef").write_bytes(raw_file(encoded("JPEG", 9)))
    return folder


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are decoded, in order."""
    decoded: list[str] = []
    real = confined.ConfinedReader.decode

    def counted(self: Any, data: bytes, *, name: str = "", **options: Any) -> Any:
        decoded.append(name)
        return real(self, data, name=name, **options)

    monkeypatch.setattr(confined.ConfinedReader, "decode", counted)
    return decoded


def test_protect_decodes_each_photo_once(photos: Path, tmp_path: Path, decoded: list[str]) -> None:
    made = protect(photos, tmp_path / "release", encoder="pixels", seed=1)
    assert made.counts.released == 6
    assert sorted(decoded) == sorted(path.name for path in photos.iterdir())


def test_every_other_verb_decodes_each_photo_once(
    photos: Path, tmp_path: Path, decoded: list[str]
) -> None:
    """With a vault, which recognises photos by their pixels, wherever the verb has one."""
    (photos / "dog").mkdir()
    for path in [path for path in photos.iterdir() if path.is_file()]:
        path.rename(photos / "dog" / path.name)
    (photos / "cat").mkdir()
    (photos / "cat" / "cat.png").write_bytes(encoded("PNG", 20))
    names = sorted(path.name for path in photos.rglob("*.*"))
    (tmp_path / "pairs.csv").write_text("dog/0.png,dog/1.png,1\ndog/1.png,cat/cat.png,0\n")
    jobs: dict[str, Callable[[], object]] = {
        "send": lambda: encode_images(
            list_images(str(photos), None, None, ("cat", "dog"), leave_out=None),
            open_encoder("pixels"),
            Vault.create(tmp_path / "sent.vault"),
            None,
            "photos",
            no_progress,
        ),
        "federate": lambda: read_labelled(photos, encoder="pixels"),
        "sketch": lambda: sketch(photos, tmp_path / "s", size=16, vault=tmp_path / "s.vault"),
        "metric": lambda: learn_metric(
            tmp_path / "pairs.csv",
            images=photos,
            out=tmp_path / "metric.safetensors",
            vault=tmp_path / "metric.vault",
        ),
        "labels": lambda: _labelled_features(photos, tmp_path / "labels.vault"),
        "tag": lambda: _tagged_features(photos, tmp_path / "tagged.vault"),
    }
    for verb, job in jobs.items():
        decoded.clear()
        job()
        assert sorted(decoded) == names, verb


def _labelled_features(photos: Path, vault: Path) -> None:
    labelled = read_labels("folders", photos).photos
    assert isinstance(labelled.images, Files)
    records_of(Vault.create(vault), labelled.images.paths, labelled.images.decoded)
    Extractor("pixels", 8)(labelled.images)


def _tagged_features(photos: Path, vault: Path) -> None:
    listed = image_files([photos])
    records_of(Vault.create(vault), listed.digests, listed.decoded)
    Extractor("pixels", 8)(Files(list(listed.digests), decoded=listed.decoded))


def test_pixels_in_memory_are_bounded_and_those_of_the_same_bytes() -> None:
    pixels = np.zeros((4, 5, 3), np.uint8)
    kept = DecodedPhotos(most_bytes=100)
    kept.keep(b"one", pixels)
    kept.keep(b"two", pixels)
    found = kept.find(b"one")
    assert found is not None and kept.find(b"two") is None and kept.find(b"three") is None
    found[:] = 9
    np.testing.assert_array_equal(kept.find(b"one"), pixels)


def test_codes_are_the_same_as_from_photos_that_are_decoded_twice(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = protect(photos, tmp_path / "once", encoder="pixels", seed=1)
    monkeypatch.setattr(PreparedPhotos, "find", lambda *_: None)
    twice = protect(photos, tmp_path / "twice", encoder="pixels", seed=1)
    codes = [sorted(Vault(made.vault).codes(made.release_id).values()) for made in (once, twice)]
    assert len(codes[0]) == 6 and codes[0] == codes[1]


def test_the_pictures_leave_nothing_on_the_disk_and_are_bounded(tmp_path: Path) -> None:
    preparation = Preparation(size=8)
    pixels = np.asarray(Image.new("RGB", (20, 10), "red"))
    with TemporaryFile(dir=tmp_path) as file:
        prepared = PreparedPhotos(file, preparation.prepare, most_bytes=2 * 3 * 64)
        for content in (b"one", b"two", b"three"):
            prepared.keep(content, pixels)
        assert list(tmp_path.iterdir()) == []
        found = [
            prepared.find(hashlib.sha256(content).digest())
            for content in (b"two", b"one", b"three")
        ]
    assert found[2] is None, "beyond the bound a photo is decoded again"
    for picture in found[:2]:
        np.testing.assert_array_equal(picture, preparation.prepare(pixels))
