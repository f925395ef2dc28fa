"""Less public knowledge than the product uses, for tests that make many encoders.

Every new pair of an image and a text network encodes 2,000 general nouns and hundreds of built-in
pictures once, which takes some 8 s of processor time. What the verbs and pages do with them does
not depend on their number; `tests/app/test_encoders.py` has a pair with all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from blindsight.app import labelled_images
from blindsight.core.errors import MissingData
from blindsight.encoders import words
from blindsight.release import page

__all__ = ["few_public_names_and_pictures"]


@contextmanager
def few_public_names_and_pictures(*names: str) -> Iterator[None]:
    """Use these names with a hundred general nouns instead of 2,000, and 40 built-in pictures (160
    without a classifier) instead of 300 (1,200). The pages of releases are written without words.
    """

    def without_words() -> None:
        raise MissingData("left out")

    nouns = tuple(dict.fromkeys((*names, *words.general_nouns()[::20])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "general_nouns", lambda: nouns)
        patch.setattr(labelled_images, "BUILT_IN_PICTURES", 40)
        patch.setattr(page, "_words_block", without_words)
        yield
