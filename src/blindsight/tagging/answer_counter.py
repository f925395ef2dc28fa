"""Counts of the answers given about each image, and a ledger that charges nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["AnswerCount", "NoCharge"]


@dataclass(frozen=True)
class AnswerCount:
    """How often images were asked about: each by its name, and all of them `anyhow`.

    Names and the number of calls are public; what the images show is not looked at, so that a
    charge tells nothing.
    """

    named: Counter[Any] = field(default_factory=Counter)
    anyhow: int = 0

    @property
    def most(self) -> int:
        """How often the most-asked one was."""
        return self.anyhow + max(self.named.values(), default=0)

    def plus(self, images: Sequence[Any] | None) -> AnswerCount:
        """After one more call."""
        if images is None:
            return AnswerCount(self.named, self.anyhow + 1)
        return AnswerCount(self.named + Counter(images), self.anyhow)


class NoCharge:
    """Stands where a ledger would: what was charged before covers these answers."""

    def charge(self, cost: Any, *, what: str, key: str | None = None) -> None:
        """Nothing is due."""
