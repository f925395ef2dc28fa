"""Public knowledge: labels find the classes or texts that speak for them, and nothing that was
fetched is ever executed.
"""

from __future__ import annotations

import numpy as np
import pytest

from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.encoders import words
from blindsight.encoders.base import Classes
from blindsight.tagging import Prior, encoder_prior
from blindsight.tagging.prior import spaced

NAMES = ("tabby cat", "pickup truck", "pizza", "golden retriever")
NOUNS = {"cat": 0, "truck": 1, "pizza": 2, "retriever": 3, "dog": 3}


class FourClasses:
    """An encoder with four classes and six dimensions."""

    name, dimensions = "four", 6

    def texts(self, texts):
        return None

    def classes(self):
        return Classes(NAMES, np.eye(4, 6, dtype=np.float32))

    def identity(self):
        return {"kind": "test", "name": "four"}


class Texts(FourClasses):
    """An encoder with a text tower whose texts lie far from its images."""

    def texts(self, texts):
        vectors = np.zeros((len(texts), 6), np.float32)
        for row, text in enumerate(texts):
            vectors[row, NOUNS.get(text, 4)] = 0.3
            vectors[row, 5] = 1.0  # the part that all texts share
        return vectors

    def classes(self):
        return None


@pytest.fixture
def sentence_vectors(monkeypatch):
    """Sentence vectors in which each class is near to its noun."""

    def likeness(text, names=None):
        return np.array([0.9 if noun_in(text, c) else 0.1 for c in range(4)], np.float32)

    def noun_in(text, number):
        return any(word in text.split() for word, c in NOUNS.items() if c == number)

    def weights(text, names=None):
        return likeness(text) / likeness(text).sum()

    def meant(text, names=None):
        known = any(word in text.split() for word in NOUNS)
        return words.Understood(("x",) if known else (), known, unknown=() if known else (text,))

    monkeypatch.setattr(words, "class_likeness", likeness)
    monkeypatch.setattr(words, "class_weights", weights)
    monkeypatch.setattr(words, "understood", meant)


def test_a_label_is_scored_by_the_classes_whose_names_are_near(sentence_vectors):
    prior = encoder_prior(["cat", "truck", "pizza", "retriever"], FourClasses())
    scores = prior(7 * np.eye(4, 6))  # one image per class, of any length
    assert scores.argmax(axis=0).tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(scores, prior(np.eye(4, 6)))
    assert prior.meaning.sum(axis=1) == pytest.approx(1)
    assert prior.directions.shape == (6, 3)  # four centred rows span three directions


def test_a_word_that_nobody_knows_has_no_score_and_a_synonym_helps(sentence_vectors):
    alone = encoder_prior(["qqxzyq", "cat"], FourClasses())
    assert alone.weights.any(axis=1).tolist() == [False, True]
    helped = encoder_prior(["qqxzyq"], FourClasses(), synonyms={"qqxzyq": ["pizza"]})
    assert helped.weights[0].argmax() == 2


def test_a_text_tower_gives_scores_and_directions_by_itself():
    images = np.eye(4, 6) + np.random.default_rng(0).normal(size=(4, 6)) / 100
    prior = encoder_prior(["cat", "truck", "pizza", "dog"], Texts(), public=images)
    scores = prior(images)
    assert scores.argmax(axis=0).tolist() == [0, 1, 2, 3]
    # What all texts share says nothing about an image.
    assert np.abs(prior.weights[:, 5]).max() < 0.1 * np.abs(prior.weights).max()
    assert prior.directions.shape[1] >= 3


def test_an_encoder_without_words_is_refused():
    class Nothing(FourClasses):
        def classes(self):
            return None

    with pytest.raises(InvalidParameter, match="neither a text tower nor classes"):
        encoder_prior(["cat"], Nothing())


def test_made_scenes_show_labels_as_often_as_they_occur(sentence_vectors):
    prior = encoder_prior(["cat", "truck", "pizza"], FourClasses())
    centre, rates = np.full(6, 0.2), np.array([0.5, 0.1, 0.01])
    made = prior.scenes(rates, centre, 4000, rng=np.random.default_rng(0))
    means = prior(made).mean(axis=0)
    assert means[0] > means[1] > means[2]
    np.testing.assert_allclose(
        np.linalg.norm(made - centre, axis=1), np.sqrt(1 - centre @ centre), rtol=1e-6
    )
    unknown = encoder_prior(["qqxzyq"], FourClasses())
    assert unknown.scenes([0.5], centre, 10, rng=np.random.default_rng(0)) is None


def test_names_are_read_as_words():
    assert spaced("tvmonitor") == "tv monitor"
    assert spaced("Sports_ball") == "sports ball"


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
    with pytest.raises(InvalidData, match="rows"):
        Prior(np.eye(2), np.zeros(2), directions=np.eye(3))
    with pytest.raises(InvalidData, match="neither"):
        Prior(np.eye(2), np.zeros(2), things=np.eye(2))
    with pytest.raises(InvalidData, match="shapes"):
        Prior(np.eye(2), np.zeros(2), things=np.eye(2), meaning=np.eye(3))
