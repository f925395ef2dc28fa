"""What every encoder offers: images (and perhaps texts) to vectors, and an identity.

Everything that is made from an encoder's vectors (an index, a tagger, a metric, a federation)
keeps the encoder's identity and refuses another one, because vectors of two encoders cannot be
compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import HostileFile, InvalidParameter
from blindsight.data.limits import regular_file
from blindsight.encoders.preparation import Source

__all__ = [
    "Classes",
    "Encoder",
    "Floats",
    "Identity",
    "Images",
    "file_digest",
    "identity_digest",
    "require_same_encoder",
    "unit_rows",
]

Floats = NDArray[np.float32]
Images = NDArray[np.uint8]
#: Plain JSON values by which two encoders are told apart.
Identity = dict[str, object]

_BLOCK = 1 << 20


class Classes(NamedTuple):
    """A public classifier's classes: their names, and one weight vector (row) for each."""

    names: tuple[str, ...]
    weights: Floats


@runtime_checkable
class Encoder(Protocol):
    """Images, and perhaps texts, to vectors of one space.

    `texts` and `classes` return None where the encoder does not offer them. No vector depends on
    any other image of the call, and nothing is written to disk.
    """

    @property
    def name(self) -> str:
        """A short name for messages; the identity decides whether two encoders are the same."""

    @property
    def dimensions(self) -> int:
        """The length of a vector."""

    def read(self, source: Source) -> Images:
        """Read an image file (a path or its bytes) into the pixels that `images` takes."""

    def prepare(self, image: NDArray[np.uint8]) -> Images:
        """Resize decoded pixels, grey or RGB, into the pixels that `images` takes."""

    def images(self, pixels: Images) -> Floats:
        """Unit vectors (n, dimensions) of prepared pixels (n, side, side, 3)."""

    def texts(self, texts: Sequence[str]) -> Floats | None:
        """Unit vectors (n, dimensions) of texts in the space of the images, or None."""

    def classes(self) -> Classes | None:
        """A public classifier on top of the vectors, or None."""

    def identity(self) -> Identity:
        """Plain values that tell this encoder from every other one."""


def unit_rows(rows: NDArray[np.floating]) -> Floats:
    """Scale every row to norm 1; rows of zeros stay."""
    norm = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(norm > 0, norm, 1), dtype=np.float32)


def identity_digest(identity: Mapping[str, object]) -> str:
    """The SHA-256 of an identity: the same on every machine.

    Examples:
        >>> identity_digest({"name": "a", "dimensions": 3})[:8]
        'ae0bbfc3'
    """
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def require_same_encoder(
    stored: Mapping[str, object], encoder: Encoder | Mapping[str, object], *, what: str
) -> None:
    """Refuse an encoder that did not make what was stored.

    Parameters:
        stored: The identity that was saved.
        encoder: The encoder (or its identity) that is to be used now.
        what: What was saved and where, for the message: "the index release/".

    Raises:
        InvalidParameter: The identities differ; the message names both encoders and the first
            difference.
    """
    now = dict(encoder) if isinstance(encoder, Mapping) else encoder.identity()
    if identity_digest(stored) == identity_digest(now):
        return
    for key in sorted({*stored, *now}, key=lambda key: (key not in ("kind", "name"), key)):
        if stored.get(key) != now.get(key):
            raise InvalidParameter(
                f"{what} was made with the encoder {stored.get('name', 'unknown')!r}, and this is "
                f"{now.get('name', 'unknown')!r}: their {key} differs ({_short(stored.get(key))}, "
                f"not {_short(now.get(key))}). Use the encoder that made it, or make it again."
            )


def file_digest(path: Path, *, largest: int) -> str:
    """The SHA-256 of an ordinary file of at most `largest` bytes, read in pieces."""
    digest = hashlib.sha256()
    total = 0
    with regular_file(path, largest=largest).open("rb") as stream:
        while piece := stream.read(_BLOCK):
            total += len(piece)
            if total > largest:
                raise HostileFile(f"{path.name} has more than {largest:,} bytes.")
            digest.update(piece)
    return digest.hexdigest()


def _short(value: object) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 60 else f"{text[:57]}..."
