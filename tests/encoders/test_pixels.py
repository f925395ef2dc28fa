from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.decomposition import PCA
from sklearn.neighbors import KNeighborsClassifier

from blindsight import data
from blindsight.core import storage
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.encoders import PixelPCA, pixels

DIGITS = data.load("digits")


def test_pixels_are_numbers_from_zero_to_one() -> None:
    rows = pixels(DIGITS)
    assert rows.shape == (1797, 64) and rows.min() == 0 and rows.max() == 1
    np.testing.assert_array_equal(pixels(DIGITS.array()), rows)


@pytest.mark.parametrize("whiten", [False, True])
def test_components_are_those_of_scikit_learn(whiten: bool) -> None:
    ours = PixelPCA(8, whiten=whiten).fit_transform(DIGITS)
    theirs = PCA(8, whiten=whiten).fit_transform(pixels(DIGITS))
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs), atol=1e-4)


def test_components_remember_what_matters() -> None:
    train, test = data.load("digits", "train"), data.load("digits", "test")
    pca = PixelPCA(16).fit(train)
    score = (
        KNeighborsClassifier()
        .fit(pca.transform(train), train.labels)
        .score(pca.transform(test), test.labels)
    )
    assert score > 0.95


def test_photos_of_any_size_are_resized_first(tmp_path: Path) -> None:
    for i, shape in enumerate([(9, 7, 3), (12, 5), (6, 6, 3), (4, 4)]):
        Image.fromarray(np.full(shape, 40 * i, np.uint8)).save(tmp_path / f"{i}.png")
    photos = data.load_folder(tmp_path)
    assert PixelPCA(2, size=8).fit_transform(photos).shape == (4, 2)
    with pytest.raises(InvalidData, match="size="):
        PixelPCA(2).fit(photos)


def test_a_constant_set_does_not_divide_by_nothing() -> None:
    same = np.full((5, 4, 4), 7, np.uint8)
    with np.errstate(divide="raise", invalid="raise"):
        assert np.isfinite(PixelPCA(2, whiten=True).fit_transform(same)).all()


def test_nonsense_is_refused(tmp_path: Path) -> None:
    for count in (0, -1, 2.5, True):
        with pytest.raises(InvalidParameter, match="n_components"):
            PixelPCA(count).fit(DIGITS)
    path = tmp_path / "m.safetensors"
    storage.save(path, kind="pixel-pca", arrays={"mean": np.zeros(3)}, fields={})
    with pytest.raises(HostileFile, match="no saved PixelPCA"):
        PixelPCA.load(path)
    fields = {"n_components": 2, "whiten": False, "size": None}
    arrays = {"mean": np.zeros(3), "components": np.zeros((2, 4)), "scale": np.ones(2)}
    storage.save(path, kind="pixel-pca", arrays=arrays, fields=fields)
    with pytest.raises(HostileFile, match="shapes"):
        PixelPCA.load(path)
