"""A folder of photos as a private index, filled in a stream, continued where it stopped.

    INDEX/codes.index   the released codes under the photos' names: what may be given away
    INDEX/about.json    how they were made, from which folder, and the number the ledger knows the index by

A photo is released once. What is in the index already is neither released nor charged again when the work is
continued: a second code of the same photo with fresh noise would cost its epsilon a second time, for the two together
tell more than one. That is also why one charge covers the folder: every photo pays its own epsilon, once.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blindsight.core import storage
from blindsight.core.decoding import MatchModel
from blindsight.core.errors import HostileFile, InvalidData
from blindsight.index.hamming import HammingIndex
from blindsight.privacy import Guarantee, Ledger

__all__ = ["PhotoFolder", "Progress", "Released", "charge_once", "photo_names"]

Progress = Callable[[int, int], None]

_LARGEST_ABOUT = 1 << 20


@dataclass(frozen=True)
class PhotoFolder:
    """The folder an index lives in.

    Parameters
    ----------
    path: the folder.
    recipe: how photos become codes, as plain values; whoever continues must use the same.
    source: where the photos were, for showing them beside the hits.
    number: a random number by which the ledger knows this index.
    """

    path: Path
    recipe: dict[str, Any]
    source: str
    number: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def codes(self) -> Path:
        """The file of released codes."""
        return self.path / "codes.index"

    def write(self) -> None:
        """Put about.json in place: it holds nothing of the photos."""
        about = {
            "format": "blindsight photos 1",
            "number": self.number,
            "recipe": self.recipe,
            "source": self.source,
        }
        storage.write_atomically(self.path / "about.json", json.dumps(about, indent=2).encode() + b"\n")

    def forget(self) -> None:
        """Undo `write` for an index that never came to be (its charge was refused)."""
        (self.path / "about.json").unlink(missing_ok=True)
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()

    @classmethod
    def find(cls, path: Path) -> PhotoFolder | None:
        """The index in a folder, None where there is nothing; anything else there is refused."""
        about = path / "about.json"
        if not about.exists():
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                raise InvalidData(f"{path} is not an index of photos. Choose another --out.")
            return None
        return cls.read(path)

    @classmethod
    def read(cls, path: Path) -> PhotoFolder:
        """The index in a folder; `HostileFile` where about.json is not what it should be."""
        about = path / "about.json"
        if not about.is_file():
            raise InvalidData(f"{path} is not an index of photos: make one with blindsight hash FOLDER --out {path}.")
        try:
            if about.stat().st_size > _LARGEST_ABOUT:
                raise HostileFile(f"{about} is too large to be true.")
            fields = json.loads(about.read_bytes())
            if fields["format"] != "blindsight photos 1" or not isinstance(fields["recipe"], dict):
                raise HostileFile(f"{about} is not in a format this version reads.")
            return cls(path, fields["recipe"], str(fields["source"]), str(fields["number"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise HostileFile(f"{about} is not what it should be. Restore it from a copy.") from error

    def open(self, *, n_bits: int, guarantee: Guarantee, decoding: MatchModel | None) -> HammingIndex:
        """The codes, for adding to them; a new file where there is none yet."""
        if not self.codes.exists():
            return HammingIndex.create(self.codes, n_bits, names=True, guarantee=guarantee, decoding=decoding)
        index = HammingIndex.open(self.codes)
        if index.n_bits != n_bits or not index.names or index.guarantee != guarantee:
            index.close()
            raise HostileFile(f"{self.codes} was not made as {self.path / 'about.json'} says. Restore it from a copy.")
        return index


@dataclass(frozen=True)
class Released:
    """What one run did: photos released now, those that were there before, and those that could not be read."""

    released: int
    known: int
    refused: tuple[tuple[str, str], ...]


def photo_names(folder: Path, suffixes: frozenset[str], *, leave_out: Path | None = None) -> Iterator[str]:
    """The photos of a folder and its subfolders as relative names, in order; links are not followed."""
    if not folder.is_dir():
        raise InvalidData(f"{folder} is not a folder. Check the path.")
    hidden = None if leave_out is None else leave_out.resolve()
    for root, folders, files in os.walk(folder):
        here = Path(root)
        folders[:] = sorted(name for name in folders if (here / name).resolve() != hidden)
        for name in sorted(files):
            path = here / name
            if path.suffix.lower() in suffixes and not path.is_symlink():
                yield path.relative_to(folder).as_posix()


def charge_once(folder: PhotoFolder, guarantee: Guarantee, ledger: Ledger) -> bool:
    """Charge the index's guarantee unless the ledger has it already; True if it was charged now."""
    mark = f"index {folder.number}"
    if any(entry.kind == "charge" and entry.what.endswith(mark) for entry in ledger.entries()):
        return False
    ledger.charge(guarantee.cost, what=f"codes of photos, each released once, {mark}")
    return True
