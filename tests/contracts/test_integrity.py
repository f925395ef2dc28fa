"""Every file that is written and read again refuses to be read with one flipped bit."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from blindsight.app.protect import protect
from blindsight.codebooks import Codebook
from blindsight.core import storage
from blindsight.core.errors import BlindsightError
from blindsight.federated import FederatedClassifier, SumNoise
from blindsight.hashing import LSH, CodebookHasher, PHashing
from blindsight.index import HammingIndex
from blindsight.index.bulk import sketch_to
from blindsight.index.release_folder import ReleaseFolder
from blindsight.metric import DPPMetric
from blindsight.privacy import Cost
from blindsight.privacy.charges import read_release_file, write_release_file
from blindsight.privacy.vault import Vault
from blindsight.sketching import FeatureStatistics, FlippedBits, SketchSet
from blindsight.tagging import Prior, PrivateTagger

FLIPS = 25
RNG = np.random.default_rng(0)

pytestmark = pytest.mark.filterwarnings("ignore::blindsight.core.errors.UnchargedRelease")


@dataclass(frozen=True)
class Stored:
    """A file, and how it is read."""

    file: Path
    read: Callable[[], Any]


def _estimator(folder: Path, fitted: Any) -> Stored:
    path = folder / "model.safetensors"
    fitted.save(path)
    return Stored(path, lambda: type(fitted).load(path))


def _codebook(folder: Path) -> Stored:
    rows = RNG.normal(size=(60, 6))
    hasher = CodebookHasher(epsilon=4.0, n_cells=6, learned_from="public").fit(rows)
    return _estimator(folder, hasher)


def _hash_function(folder: Path) -> Stored:
    return _estimator(folder, PHashing(LSH(n_bits=4), epsilon=4.0).fit(RNG.normal(size=(40, 6))))


def _metric(folder: Path) -> Stored:
    pairs = RNG.normal(size=(40, 2, 3))
    return _estimator(folder, DPPMetric(epsilon=4.0).fit(pairs, RNG.integers(0, 2, 40)))


def _tagger(folder: Path) -> Stored:
    prior = Prior(RNG.normal(size=(2, 4)), np.zeros(2))
    return _estimator(folder, PrivateTagger.from_public(["a", "b"], prior))


def _federated_model(folder: Path) -> Stored:
    model = FederatedClassifier(
        classes=[0, 1], rounds=1, noise=SumNoise(epsilon=8.0), encrypt=False
    )
    rows = RNG.normal(size=(20, 3))
    return _estimator(folder, model.fit(rows, np.arange(20) % 2, np.repeat(np.arange(5), 4)))


def _sketches(folder: Path) -> Stored:
    images = RNG.integers(0, 256, (6, 8, 8), dtype=np.uint8)
    path = folder / "sent.sketches"
    sketcher = FlippedBits(6.0, random_state=0).fit(images)
    sketch_to(path, images, sketcher, y=np.arange(6) % 2, block=2)
    return Stored(path, lambda: SketchSet.open(path))


def _message_of_sketches(folder: Path) -> Stored:
    stored = _sketches(folder)
    path = folder / "message"
    path.write_bytes(stored.read().to_bytes())
    return Stored(path, lambda: SketchSet.from_bytes(path.read_bytes()))


def _statistics(folder: Path) -> Stored:
    sender = FeatureStatistics(
        2.0, classes=("0", "1"), public=RNG.random((30, 6)), moments=0.5, refuse=False
    )
    return _estimator(folder, sender.fit(RNG.random((12, 6)), np.arange(12) % 2))


def _release(folder: Path) -> Path:
    photos = folder / "photos"
    photos.mkdir()
    for number in range(3):
        pixels = RNG.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(photos / f"{number}.png")
    protect(photos, folder / "release", encoder="pixels")
    return folder / "release"


def _about(release: Path) -> Stored:
    return Stored(release / "about.json", lambda: ReleaseFolder.read(release))


def _codebook_of_a_release(release: Path) -> Stored:
    path = release / "codebook.safetensors"
    return Stored(path, lambda: Codebook.load(path))


def _codes(release: Path) -> Stored:
    path = release / "codes.index"
    return Stored(path, lambda: [*HammingIndex.load(path).items()])


def _vault_key(release: Path) -> Stored:
    vault = Path(f"{release}.vault")
    return Stored(vault / "key", lambda: Vault(vault))


def _vault_function(release: Path) -> Stored:
    (path,) = Path(f"{release}.vault").glob("functions/*/decoding.json")
    return Stored(path, lambda: storage.open_json(path.read_bytes(), path))


def _release_file(folder: Path) -> Stored:
    out = folder / "tagger.safetensors"
    write_release_file(out, "a" * 16, "b" * 32, [Cost(epsilon=4, unit="record")])
    return Stored(Path(f"{out}.release.json"), lambda: read_release_file(out))


KINDS: dict[str, Callable[[Path], Stored]] = {
    "codebook": _codebook,
    "hash function": _hash_function,
    "metric": _metric,
    "tagger": _tagger,
    "federated model": _federated_model,
    "release file": _release_file,
    "sketches": _sketches,
    "message of sketches": _message_of_sketches,
    "statistics": _statistics,
}
PARTS_OF_A_RELEASE: dict[str, Callable[[Path], Stored]] = {
    "header of a release": _about,
    "codebook of a release": _codebook_of_a_release,
    "codes": _codes,
    "key of a vault": _vault_key,
    "function in a vault": _vault_function,
}


def refused(stored: Stored) -> int:
    """How many of the flipped bits are refused; every one is put back."""
    stored.read()
    content = stored.file.read_bytes()
    rng = np.random.default_rng(1)
    count = 0
    for place in rng.choice(8 * len(content), FLIPS, replace=False):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << (place % 8)
        stored.file.write_bytes(changed)
        try:
            stored.read()
        except BlindsightError:
            count += 1
    stored.file.write_bytes(content)
    stored.read()
    return count


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_refused(tmp_path: Path, kind: str) -> None:
    assert refused(KINDS[kind](tmp_path)) == FLIPS


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _release(tmp_path_factory.mktemp("integrity"))


@pytest.mark.parametrize("part", PARTS_OF_A_RELEASE)
def test_a_flipped_bit_in_a_release_or_its_vault_is_refused(release: Path, part: str) -> None:
    assert refused(PARTS_OF_A_RELEASE[part](release)) == FLIPS


def _changed_row(vault: Path, table: str, change: str) -> None:
    with closing(sqlite3.connect(vault / "records.db")) as connection, connection:
        connection.execute(f"UPDATE {table} SET {change}")  # noqa: S608


@pytest.mark.parametrize(
    "row",
    [
        ("codes", "code = zeroblob(length(code) + 1)"),  # another code, whatever the noise drew
        ("photos", "record = record || '0'"),
        ("releases", "state = 'charged'"),
        ("facts", "value = '1'"),
    ],
)
def test_a_changed_row_of_a_vault_is_refused(
    release: Path, tmp_path: Path, row: tuple[str, str]
) -> None:
    shutil.copytree(f"{release}.vault", tmp_path / "vault")
    change = partial(_changed_row, tmp_path / "vault", *row)
    Vault(tmp_path / "vault").verify()
    change()
    with pytest.raises(BlindsightError):
        Vault(tmp_path / "vault").verify()
