"""The bodies of `paper` mode's messages: a shard of a user's vector, and the encrypted sum."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import ProtocolError
from blindsight.federated.wire import Reader, Writer

__all__ = ["EncryptedSum", "Shard"]


@dataclass(frozen=True)
class Shard:
    """u16 shard, u16 shards, u32 count, u32 places, ciphertexts."""

    places: NDArray[np.uint32]
    ciphertexts: bytes = field(repr=False)
    count: int
    shard: int = 0
    shards: int = 1

    def encode(self) -> bytes:
        """The body."""
        writer = Writer().number("H", self.shard).number("H", self.shards).number("I", self.count)
        return bytes(writer.raw(self.places.astype("<u4").tobytes()).raw(self.ciphertexts))

    @classmethod
    def decode(cls, body: bytes, *, width: int, size: int) -> Shard:
        """Read a body for ciphertexts of `width` bytes and `size` places."""
        reader = Reader(body)
        shard, shards, count = (reader.number(code) for code in "HHI")
        if not shard < shards or not 1 <= count <= size:
            raise ProtocolError("malformed: a shard's counts contradict each other.")
        places = np.frombuffer(reader.raw(4 * count), dtype="<u4")
        if int(places.max()) >= size or len(np.unique(places)) != count:
            raise ProtocolError(
                "malformed: a shard must name different places, all of them inside the vector."
            )
        ciphertexts = reader.raw(width * count)
        reader.end()
        return cls(places, ciphertexts, count, shard, shards)


@dataclass(frozen=True)
class EncryptedSum:
    """u32 users, ciphertexts of every coordinate in φ's order.

    The key generator believes what it is told.
    """

    users: int
    ciphertexts: bytes = field(repr=False)

    def encode(self) -> bytes:
        """The body."""
        return bytes(Writer().number("I", self.users).raw(self.ciphertexts))

    @classmethod
    def decode(cls, body: bytes) -> EncryptedSum:
        """Read a body."""
        reader = Reader(body)
        return cls(reader.number("I"), reader.raw(reader.left))
