"""One rule for the cells of every encoder: what they are made from, and what they can tell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from blindsight.codebooks import (
    Codebook,
    PublicKnowledge,
    build_codebook,
    cell_source,
    predict_use,
    text_points,
)
from blindsight.codebooks.cells import Embedding, class_points
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.encoders import words
from blindsight.encoders.base import Classes, unit_rows

D = 24
RNG = np.random.default_rng(1)
NOUNS = tuple(f"noun{number}" for number in range(300))
_MEANING = {name: RNG.normal(size=D) for name in NOUNS}
_GAP = 4.0 * np.eye(D)[0]  # images and texts lie far apart, as in models of the CLIP kind


class Pair:
    """An encoder whose vectors are given: what it offers is chosen by each test."""

    name, dimensions = "pair", D

    def __init__(self, *, texts: bool = True, classes: bool = False) -> None:
        self._texts, self._classes = texts, classes

    def read(self, source: object) -> NDArray[np.uint8]:
        raise NotImplementedError

    def prepare(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return image[:8, :8]

    def images(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        seeds = pixels.reshape(len(pixels), -1).sum(axis=1, dtype=np.int64)
        return image_vectors([NOUNS[int(seed) % 300] for seed in seeds])

    def texts(self, texts: Sequence[str]) -> NDArray[np.float32] | None:
        if not self._texts:
            return None
        return unit_rows(np.stack([_MEANING.get(text, _MEANING["noun0"]) - _GAP for text in texts]))

    def classes(self) -> Classes | None:
        W = np.stack([_MEANING[name] for name in NOUNS[:40]]).astype(np.float32)
        return Classes(NOUNS[:40], W) if self._classes else None

    def identity(self) -> dict[str, object]:
        return {"kind": "test", "name": "pair"}


def image_vectors(names: Sequence[str]) -> NDArray[np.float32]:
    noise = np.random.default_rng(2).normal(size=(len(names), D)) * 0.2
    return unit_rows(np.stack([_MEANING[name] + _GAP for name in names]) + noise)


@pytest.fixture(autouse=True)
def nouns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "general_nouns", lambda: NOUNS)


ROWS = image_vectors(NOUNS)


@pytest.mark.parametrize(
    ("encoder", "public", "source"),
    [
        (Pair(), PublicKnowledge(ROWS, ["a", "b"] * 150, ("x", "y")), "labelled pictures"),
        (Pair(), PublicKnowledge(ROWS, names=("x", "y")), "pictures"),
        (Pair(), PublicKnowledge(ROWS[:99], names=("x", "y")), "names"),
        (Pair(classes=True), PublicKnowledge(names=("x", "y")), "names"),
        (Pair(classes=True), PublicKnowledge(), "classes"),
        (Pair(), PublicKnowledge(), "general names"),
        (Pair(texts=False), PublicKnowledge(ROWS), "public vectors"),
    ],
)
def test_the_best_public_knowledge_makes_the_cells(
    encoder: Pair, public: PublicKnowledge, source: str
) -> None:
    assert cell_source(encoder, public) == source
    book = build_codebook(encoder, 4.0, public)
    assert 2 <= book.k <= 300
    assert book.assign(ROWS).max() < book.k


def test_vectors_alone_are_refused_with_what_is_needed() -> None:
    with pytest.raises(InvalidParameter, match="public vectors"):
        build_codebook(Pair(texts=False), 8.0)
    with pytest.raises(InvalidData, match="at least 100"):
        build_codebook(Pair(texts=False), 8.0, PublicKnowledge(ROWS[:50]))


def test_images_and_texts_are_each_centred_by_their_own_mean() -> None:
    """With one shared mean nearly all images would lie in a few cells."""
    book = build_codebook(Pair(), 8.0)
    used = len(set(book.assign(ROWS).tolist()))
    assert used > book.k / 2
    points = text_points(Pair(), book.embedding, NOUNS)
    assert (book.cells.assign(points) == book.assign(ROWS)).mean() > 0.8


def test_own_names_are_cells_of_their_own_at_a_small_budget() -> None:
    names = NOUNS[10:16]
    book = build_codebook(Pair(), 3.0, PublicKnowledge(names=names))
    assert book.k == 6 and book.source == "names"
    assert (book.assign(image_vectors(names)) == np.arange(6)).all()
    large = build_codebook(Pair(), 8.0, PublicKnowledge(names=names))
    assert large.k > 100
    with pytest.raises(InvalidParameter, match="2 to"):
        build_codebook(Pair(), 3.0, PublicKnowledge(names=("sea", "sea ")))


def test_a_codebook_with_texts_is_saved_and_read_back(tmp_path: Path) -> None:
    book = build_codebook(Pair(), 8.0)
    book.save(tmp_path / "book.safetensors")
    again = Codebook.load(tmp_path / "book.safetensors")
    np.testing.assert_array_equal(again.assign(ROWS), book.assign(ROWS))
    texts = Pair().texts(["noun3"])
    assert texts is not None and again.digest == book.digest
    np.testing.assert_allclose(again.embedding.texts(texts), book.embedding.texts(texts))


def test_photos_that_use_few_cells_are_seen_before_anything_is_charged() -> None:
    book = build_codebook(Pair(), 8.0)
    alike = predict_use(book, image_vectors(["noun3"] * 200))
    assert alike.at_chance and alike.used < 12 and "little more than chance" in alike.line()
    apart = predict_use(book, ROWS)
    assert not apart.at_chance and apart.used > 100
    assert not predict_use(book, ROWS[:3]).at_chance  # three pictures say nothing


def test_class_points_are_computed_once_and_anew_for_another_classifier() -> None:
    rng = np.random.default_rng(0)
    embedding = Embedding.plain(6)
    first, second = (rng.normal(size=(4, 6)).astype(np.float32) for _ in range(2))
    points = class_points(embedding, first)
    assert class_points(embedding, first) is points and not points.flags.writeable
    assert not np.allclose(class_points(embedding, second), points)
    np.testing.assert_array_equal(class_points(embedding, first), points)
