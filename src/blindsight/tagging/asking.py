"""How often images were asked about, and what stands where a ledger would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Asked", "Paid"]


@dataclass(frozen=True)
class Asked:
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

    def plus(self, images: Sequence[Any] | None) -> Asked:
        """After one more call."""
        if images is None:
            return Asked(self.named, self.anyhow + 1)
        return Asked(self.named + Counter(images), self.anyhow)


class Paid:
    """Stands where a ledger would: what was charged before covers these answers."""

    def charge(self, cost: Any, *, what: str, key: str | None = None) -> None:
        """Nothing is due."""
