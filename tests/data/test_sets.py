from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from blindsight import data
from blindsight.core.errors import HostileFile, InvalidData
from blindsight.data import ImageSet, MultiLabelSet, PairSet, Table, ZipMembers
from blindsight.data.arrays import load_arrays


@pytest.fixture
def zipped(tmp_path: Path) -> ZipMembers:
    path = tmp_path / "images.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(6):
            Image.fromarray(np.full((10 + i, 8, 3), i * 20, np.uint8)).save(tmp_path / "one.png")
            archive.write(tmp_path / "one.png", f"c/{i}.png")
    return ZipMembers(path, [f"c/{i}.png" for i in range(6)])


def grey(n: int = 12) -> ImageSet:
    images = np.arange(n, dtype=np.uint8)[:, None, None] * np.ones((1, 4, 4), np.uint8)
    return ImageSet(
        images, np.arange(n) % 3, np.array([f"im{i}" for i in range(n)]), ("a", "b", "c"), "grey"
    )


def test_one_index_gives_an_image_and_its_label_and_a_slice_gives_a_set() -> None:
    images = grey()
    image, label = images[4]
    assert image.shape == (4, 4) and label == 1
    assert images[-1][1] == 2
    for chosen in (images[2:5], images[[2, 3, 4]], images[np.isin(np.arange(12), (2, 3, 4))]):
        assert isinstance(chosen, ImageSet)
        assert chosen.labels.tolist() == [2, 0, 1]
        assert chosen.names.tolist() == ["im2", "im3", "im4"]
        assert chosen.classes == images.classes
    with pytest.raises(IndexError):
        images[12]


def test_batches_cover_the_set_in_order() -> None:
    batches = list(grey().batches(5))
    assert [len(batch) for batch in batches] == [5, 5, 2]
    np.testing.assert_array_equal(
        np.concatenate([batch.array() for batch in batches]), grey().array()
    )


def test_lazy_images_are_read_on_demand_and_resized_to_one_array(zipped: ZipMembers) -> None:
    images = ImageSet(zipped, np.arange(6))
    assert images.lazy and images[3][0].shape == (13, 8, 3)
    assert images[4:].images.members == ["c/4.png", "c/5.png"]
    assert images.array(size=32).shape == (6, 32, 32, 3)
    with pytest.raises(InvalidData, match="size="):
        images.array()


def test_a_set_of_a_million_files_is_indexed_without_reading_one() -> None:
    many = ImageSet(
        data.Files([f"/nowhere/{i}.jpg" for i in range(100_000)]), np.zeros(100_000, int)
    )
    assert len(many[::2]) == 50_000
    assert [len(part) for part in many.partition(4)] == [25_000] * 4


def test_zip_members_that_lie_about_their_size_are_refused(tmp_path: Path, little_memory) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.png", bytes(100 << 20))
    with little_memory(), pytest.raises(HostileFile, match="limit"):
        ZipMembers(path, ["bomb.png"])[0]
    with pytest.raises(HostileFile, match="no member"):
        ZipMembers(path, ["other.png"])[0]
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(HostileFile):
        ZipMembers(path, ["bomb.png"])[0]


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_members_that_would_be_unpacked_without_a_bound_are_refused(
    tmp_path: Path, method: int
) -> None:
    """A few kilobytes of bzip2 are gigabytes, and zipfile makes all of them to hand out the
    first.
    """
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("a.npy", bytes(1 << 20))
    with pytest.raises(HostileFile, match="another method than deflate"):
        ZipMembers(path, ["a.npy"])[0]
    with pytest.raises(HostileFile, match="another method than deflate"):
        load_arrays(path)


@pytest.mark.parametrize(
    "images",
    [np.zeros((3, 4, 4)), np.zeros((3, 4), np.uint8), np.zeros((3, 4, 4, 4), np.uint8), [[1]]],
)
def test_wrongly_shaped_images_are_refused(images: object) -> None:
    with pytest.raises(InvalidData, match="uint8"):
        ImageSet(images)


def test_labels_that_do_not_fit_are_refused() -> None:
    images = np.zeros((3, 4, 4), np.uint8)
    for labels in (np.array([0, 1]), np.array([0.5, 1, 2]), np.array([0, 1, 7])):
        with pytest.raises(InvalidData, match="labels"):
            ImageSet(images, labels, classes=("a", "b", "c"))
    with pytest.raises(InvalidData, match="labels"):
        MultiLabelSet(np.array([[0, 2]]))
    with pytest.raises(InvalidData, match="classes"):
        MultiLabelSet(np.array([[0, 1]]), classes=("only",))
    with pytest.raises(InvalidData, match="features"):
        MultiLabelSet(np.array([[0, 1]]), features=np.zeros((2, 3)))


def test_multilabel_rows_keep_labels_features_and_sureness_together() -> None:
    labels = np.eye(4, dtype=np.uint8)
    rows = MultiLabelSet(labels, None, np.arange(8.0).reshape(4, 2), known=labels == 0)
    chosen = rows[[3, 1]]
    np.testing.assert_array_equal(chosen.labels, labels[[3, 1]])
    np.testing.assert_array_equal(chosen.features, [[6, 7], [2, 3]])
    np.testing.assert_array_equal(chosen.known, (labels == 0)[[3, 1]])
    with pytest.raises(InvalidData, match="no images"):
        rows.array()


def test_pairs_become_an_array_of_two_rows_each() -> None:
    pairs = PairSet(np.array([[0, 2], [1, 1]]), np.array([1, 0]))
    X = np.arange(6.0).reshape(3, 2)
    assert pairs.of(X).shape == (2, 2, 2)
    np.testing.assert_array_equal(pairs.of(X)[0], X[[0, 2]])
    with pytest.raises(InvalidData, match="row 2"):
        pairs.of(X[:2])
    for indices, labels in (
        ([[0, -1]], [1]),
        ([[0, 1, 2]], [1]),
        ([[0, 1]], [2]),
        ([[0.0, 1.0]], [1]),
    ):
        with pytest.raises(InvalidData):
            PairSet(np.array(indices), np.array(labels))


def test_tables_check_their_shape() -> None:
    with pytest.raises(InvalidData, match="columns"):
        Table(np.zeros((2, 3)), columns=("a", "b"))
    with pytest.raises(InvalidData, match="one entry per row"):
        Table(np.zeros((2, 3)), np.zeros(3, int))
    assert Table(np.arange(6.0).reshape(3, 2), np.array([0, 1, 1]))[1:].y.tolist() == [1, 1]


def test_printing_a_set_shows_no_values() -> None:
    assert repr(grey()) == "ImageSet(grey: 12 images, 3 classes)"
    assert repr(Table(np.full((1, 1), 42.5))) == "Table(table: 1 rows, 1 columns)"
    assert "read on demand" in repr(ImageSet(data.Files(["/secret/place.jpg"])))
    assert "secret" not in repr(ImageSet(data.Files(["/secret/place.jpg"])))
