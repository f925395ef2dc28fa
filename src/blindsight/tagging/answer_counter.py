"""Counts of the answers given about each image, and a ledger that charges nothing."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["AnswerCount", "NoCharge"]


@dataclass(frozen=True)
class AnswerCount:
    """How often images were asked about: each by its name, and all of them `anyhow`.

    Names and the number of calls are public; a charge follows them alone and tells nothing of what
    the images show. Names are the caller's, and one image may come under many. So that it gets no
    more independent answers than were charged, the j-th answer about an image is drawn once and
    handed out for the j-th question under every name: `given` holds the answers by the image's
    features. Unnamed calls count for all images, and equal images in one call share an answer.
    """

    named: Counter[Any] = field(default_factory=Counter)
    anyhow: int = 0
    given: dict[tuple[bytes, str], NDArray[Any]] = field(default_factory=dict)

    @property
    def most(self) -> int:
        """How often the most-asked one was."""
        return self.anyhow + max(self.named.values(), default=0)

    def plus(self, images: Sequence[Any] | None) -> AnswerCount:
        """After one more call."""
        if images is None:
            return AnswerCount(self.named, self.anyhow + 1, self.given)
        return AnswerCount(self.named + Counter(images), self.anyhow, self.given)

    def shared(
        self, features: NDArray[Any], images: Sequence[Any] | None, drawn: NDArray[Any]
    ) -> NDArray[Any]:
        """What to hand out of freshly drawn answers: those that were given about equal images.

        Parameters:
            features: the images' rows (n, D).
            images: their names, as in the question that follows what was counted so far.
            drawn: the new answers, one per row.
        """
        times = Counter(self.named)
        answers = drawn.copy()
        for row, values in enumerate(np.ascontiguousarray(features, np.float32)):
            if images is None:
                turn = f"call {self.anyhow}"
            else:
                turn = f"question {times[images[row]]}"
                times[images[row]] += 1
            key = hashlib.sha256(values.tobytes()).digest(), turn
            answers[row] = self.given.setdefault(key, drawn[row].copy())
        return answers


class NoCharge:
    """Stands where a ledger would: what was charged before covers these answers."""

    def charge(self, cost: Any, *, what: str, key: str | None = None) -> None:
        """Nothing is due."""
