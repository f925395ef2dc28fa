"""What a round ends with."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import ProtocolError
from blindsight.federated.wire import Reader, Writer

__all__ = ["Opened"]


@dataclass(frozen=True)
class Opened:
    """Who is in the sum, and the sum in grid steps; of a round of votes, the counts."""

    contributors: tuple[int, ...]
    values: NDArray[np.int64] = field(repr=False)

    def encode(self) -> bytes:
        """u32 contributors, their u32 numbers, one int64 a coordinate."""
        writer = Writer().number("I", len(self.contributors))
        writer.raw(np.array(self.contributors, dtype="<u4").tobytes())
        return bytes(writer.raw(self.values.astype("<i8").tobytes()))

    @classmethod
    def decode(cls, data: bytes, *, users: int) -> Opened:
        """The inverse of `encode`, for at most that many users."""
        reader = Reader(data)
        count = reader.number("I")
        if count > users:
            raise ProtocolError(f"malformed: at most {users} users are enrolled.")
        contributors = tuple(np.frombuffer(reader.raw(4 * count), dtype="<u4").tolist())
        if reader.left % 8:
            raise ProtocolError("malformed: a sum has eight bytes a coordinate.")
        return cls(
            contributors, np.frombuffer(reader.raw(reader.left), dtype="<i8").astype(np.int64)
        )
