"""Permanent noise: under one vault an image has one sketch, whenever and wherever it is asked for.

Two sketches of an image with noise of their own tell more of it than one. With a vault's key the
noise is a function of the image's content, the parameters and the shape: moved, renamed, copied, or
sent a second time, the image has the same sketch, and where a promise is charged for (flipped
bits), it is charged once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from blindsight.core.arrays import Array
from blindsight.privacy.entropy import EntropyName, RandomState, part_state
from blindsight.privacy.vault import RecordStream, Vault

if TYPE_CHECKING:
    from blindsight.privacy.ledger import Ledger

__all__ = ["Permanent", "state_of"]


@dataclass(frozen=True)
class Permanent:
    """A vault's key as a sketcher's `random_state`.

    It stays where it is: not copied, and not sent to workers.

    Parameters:
        vault: the owner's vault.
        records: ids in the vault of the photos behind the images; every account whose data set
            contains one of them is charged.
        out: where the sketches go (`Vault.charge`).
    """

    vault: Vault
    records: tuple[str, ...] = ()
    out: Path | None = None
    name: ClassVar[EntropyName] = "keyed"

    def names(self, images: Array) -> list[str]:
        """The record of each image (n, channels, h, w), by its pixels."""
        head = f"{images.shape[1:]} {images.dtype.str}/".encode()
        return [
            self.vault.record_of(
                hashlib.sha256(head + np.ascontiguousarray(image).tobytes()).digest()
            )
            for image in images
        ]

    def stream(self, label: str, *, exact: bool = True) -> RecordStream:
        """The stream of a label, which is a record's id, a slash, and what it is for."""
        record = label.partition("/")[0]
        return self.vault.source([record], about="sketch").stream(label, exact=exact)

    def key(self, law: str) -> str:
        """The name of a release by this law, which only this vault can tell."""
        return f"sketches {self.vault.release_of(law)}"

    def account(self, ledger: Ledger, law: str) -> Ledger:
        """What charges a ledger for a release by this law: through the vault, and once."""
        return self.vault.account(
            ledger, release=self.vault.release_of(law), records=self.records, out=self.out
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Permanent:
        return self


def state_of(random_state: RandomState | Permanent, part: int) -> Any:
    """The random state of one block of a job; permanent noise does not hang on blocks."""
    return random_state if isinstance(random_state, Permanent) else part_state(random_state, part)
