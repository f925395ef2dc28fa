"""Deep hashers: on features, on images, with many labels."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from blindsight.core import codes
from blindsight.core.errors import HostileFile, InvalidData
from blindsight.evaluation import retrieval
from blindsight.hashing import ADSH, DPSH, DSH, ITQ, KSH, SDH, HashNet, PHashing, load

DIGITS = load_digits()
IMAGES = (DIGITS.images * 255 / 16).astype(np.uint8)
X, Y = DIGITS.data.astype(np.float32), DIGITS.target
STORED, QUERIES = slice(300, None), slice(0, 300)
DEEP = {"n_epochs": 8, "hidden": 64, "batch_size": 64, "learning_rate": 3e-3, "random_state": 0}


def precision(hasher, inputs=X, labels=Y) -> float:
    query, stored = hasher.transform(inputs[QUERIES]), hasher.transform(inputs[STORED])
    return retrieval.mean_average_precision(query, stored, labels[QUERIES], labels[STORED])


@pytest.fixture(scope="module")
def unsupervised() -> float:
    return precision(ITQ(16, random_state=0).fit(X[STORED]))


@pytest.mark.parametrize("cls", [DPSH, DSH, HashNet, ADSH])
def test_labels_teach_a_head_on_features_more_than_iterative_quantisation_knows(cls, unsupervised):
    assert (
        precision(cls(16, **{**DEEP, "n_epochs": 25}).fit(X[STORED], Y[STORED]))
        > unsupervised + 0.15
    )


@pytest.mark.parametrize("cls", [KSH, SDH])
def test_labels_teach_kernels_more_than_iterative_quantisation_knows(cls, unsupervised):
    assert precision(cls(16, random_state=0).fit(X[STORED], Y[STORED])) > unsupervised + 0.15


@pytest.mark.parametrize("cls", [HashNet, ADSH])
def test_images_train_a_small_network(cls, tmp_path):
    seen = []
    parameters = {**DEEP, "n_epochs": 5}
    hasher = cls(12, **parameters)
    hasher.fit(IMAGES[STORED], Y[STORED], progress=lambda done, total: seen.append((done, total)))
    assert precision(hasher, IMAGES) > 0.6
    assert seen[-1] == (5, 5)
    hasher.save(tmp_path / "net")
    assert np.array_equal(
        load(tmp_path / "net").transform(IMAGES[:20]), hasher.transform(IMAGES[:20])
    )
    with pytest.raises(InvalidData, match="shape"):
        hasher.transform(np.zeros((2, 16, 16), np.uint8))


def test_many_labels_make_images_similar_that_share_one():
    labels = np.stack([Y % 2 == 0, Y < 5, Y >= 8], axis=1).astype(int)
    chance = ((labels[QUERIES] @ labels[STORED].T) > 0).mean()
    for cls in (HashNet, ADSH, SDH):
        parameters = DEEP if cls is not SDH else {"random_state": 0}
        hasher = cls(12, **parameters).fit(X[STORED], labels[STORED])
        assert precision(hasher, X, labels) > chance + 0.2


def test_learned_database_codes_are_little_more_than_labels():
    hasher = ADSH(16, **DEEP).fit(X[STORED], Y[STORED])
    assert len(np.unique(hasher.database_codes_, axis=0)) < 60
    assert codes.unpack(hasher.database_codes_, 16).shape == (len(X[STORED]), 16)


def test_images_in_colour_pass_through_phashing():
    colour = np.repeat(IMAGES[:200, :, :, None], 3, axis=3)
    hasher = PHashing(
        HashNet(8, **{**DEEP, "n_epochs": 1}), epsilon=2.0, random_state=0, learned_from="public"
    ).fit(colour, Y[:200])
    assert hasher.transform(colour[:5]).shape == (5, 1)


def test_a_network_file_that_does_not_fit_is_refused(tmp_path):
    from blindsight.core import storage

    hasher = DPSH(8, **{**DEEP, "n_epochs": 1}).fit(X[:100], Y[:100])
    hasher.save(tmp_path / "net")
    arrays, fields = storage.load(tmp_path / "net", kind="hasher")
    for damage in ({"input_shape": [63]}, {"input_shape": [10**9]}, {"input_shape": []}):
        storage.save(
            tmp_path / "bad", kind="hasher", arrays=arrays, fields={**fields, "learned": damage}
        )
        with pytest.raises(HostileFile):
            load(tmp_path / "bad")
    arrays["network.0.weight"] = np.full_like(arrays["network.0.weight"], np.nan)
    storage.save(tmp_path / "bad", kind="hasher", arrays=arrays, fields=fields)
    with pytest.raises(HostileFile):
        load(tmp_path / "bad")


@pytest.mark.parametrize(
    "bad", [np.zeros((10, 4, 4), np.uint8), np.zeros((10, 9, 9, 2)), np.zeros((10, 2, 3, 9, 9))]
)
def test_what_is_not_an_image_is_refused(bad):
    with pytest.raises(ValueError):
        DPSH(8).fit(bad, np.arange(10) % 2)


@pytest.mark.parametrize(("alike", "expected"), [(10, 0.1), (2, 0.5)])
def test_rare_similar_pairs_weigh_as_much_as_the_others(alike: int, expected: float) -> None:
    """One in ten is common, and counts as published; one in fifty is rare."""
    torch = pytest.importorskip("torch")
    from blindsight.hashing.deep import _mean_of_pairs

    similar = torch.zeros(100)
    similar[:alike] = 1
    assert float(_mean_of_pairs(similar.clone(), similar)) == pytest.approx(expected)
