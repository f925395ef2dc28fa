"""What words are taken to mean, with a class list and vectors of the test's own."""

from __future__ import annotations

import numpy as np
import pytest

from blindsight.core.errors import InvalidParameter
from blindsight.encoders import words


@pytest.fixture(autouse=True)
def three_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Violin, cello and zebra at right angles; a text is the vector that its letters name."""
    texts = {
        "a violin": (0.95, 0.3, 0.08),
        "strings": (0.7, 0.7, 0.1),
        "a giraffe": (0.3, 0.29, 0.45),
    }
    monkeypatch.setattr(words, "class_names", lambda: ("violin", "cello", "zebra"))
    monkeypatch.setattr(words, "_class_vectors", lambda: np.eye(3, dtype=np.float32))
    monkeypatch.setattr(
        words, "sentence_vectors", lambda given: np.array([texts[t] for t in given], np.float32)
    )


def test_the_classes_that_carry_the_weight_are_named_best_first() -> None:
    assert words.understood("a violin") == words.Understood(("violin",), known=True)
    assert set(words.understood("strings").names) == {"violin", "cello"}
    assert words.class_weights("strings").sum() == pytest.approx(1)


def test_words_that_no_class_says_are_told_so() -> None:
    found = words.understood("a giraffe")
    assert found.names == ("zebra",)
    assert not found.known
    assert "no class of that name" in found.line()
    assert "no class" not in words.understood("a violin").line()


def test_an_empty_text_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="must say something"):
        words.understood("  ")
