"""Answers that were drawn for images, by content, and a ledger that charges nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from blindsight.privacy.cost import Cost

__all__ = ["AnswerStore", "NoCharge"]


class AnswerStore:
    """The noisy answer that was drawn for each distinct image, so that none is drawn twice.

    An image is identified by its features, not by a name that the caller chooses: asking about one
    image under many names gives one answer, and its noise cannot be averaged away. One charge
    therefore covers every image. As in a vault, the number of distinct images is public.
    """

    def __init__(self) -> None:
        self._released: dict[bytes, NDArray[np.generic]] = {}

    def __len__(self) -> int:
        """The number of distinct images that were answered."""
        return len(self._released)

    def answers(
        self,
        rows: NDArray[np.float32],
        draw: Callable[[NDArray[np.int64]], NDArray[np.generic]],
    ) -> NDArray[np.generic]:
        """The stored answer of each row.

        Parameters:
            rows: features, one row per image.
            draw: draws the answers of the rows with these numbers; called once, for the first row
                of each image that has no answer yet.
        """
        digests = [sha256(np.ascontiguousarray(row).tobytes()).digest() for row in rows]
        first = {digest: row for row, digest in reversed(list(enumerate(digests)))}
        missing = np.array(
            sorted(row for digest, row in first.items() if digest not in self._released), np.int64
        )
        if len(missing):
            drawn = draw(missing)
            for row, answer in zip(missing, drawn, strict=True):
                self._released[digests[row]] = answer
        return np.stack([self._released[digest] for digest in digests])


class NoCharge:
    """A ledger that charges nothing: an earlier charge covers these answers."""

    def charge(
        self, cost: Sequence[Cost], *, what: str, key: str | None = None, **details: str
    ) -> None:
        """Charge nothing."""
