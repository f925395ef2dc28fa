"""The settings of the paper's protocol."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter
from blindsight.federated.fixedpoint import FixedPoint
from blindsight.federated.sums.wire import Reader, Writer

__all__ = ["PaperSettings"]


@dataclass(frozen=True, kw_only=True)
class PaperSettings:
    """The settings of the paper's protocol.

    Parameters:
        dimension, users: the length of every update, and the number of users.
        bound, bits: fixed point: weights in [-bound, bound] as whole numbers of `bits` bits.
        capacity: m, how many ciphertexts a message holds; by default ceil(0.1 dimension) (Section
            3.1).
    """

    dimension: int
    users: int
    bound: float = 1.0
    bits: int = 16
    capacity: int | None = None
    noise: None = None

    def __post_init__(self) -> None:
        checks.whole("dimension", self.dimension)
        checks.whole("users", self.users, least=3)
        if self.capacity is not None and checks.whole("capacity", self.capacity) > self.dimension:
            raise InvalidParameter(
                f"capacity must be at most {self.dimension}, got {self.capacity}."
            )
        if self.code.bits + self.users.bit_length() > 62:
            raise InvalidParameter(
                f"the sum of {self.users:,} values of {self.bits} bits must fit 62 bits."
            )

    @cached_property
    def code(self) -> FixedPoint:
        """The fixed-point code."""
        return FixedPoint(bound=self.bound, bits=self.bits)

    @property
    def m(self) -> int:
        """M, the encryption capacity."""
        return -(-self.dimension // 10) if self.capacity is None else self.capacity

    def encode(self) -> bytes:
        """The settings as bytes."""
        writer = Writer().raw(b"P").number("Q", self.dimension).number("I", self.users)
        return bytes(writer.number("d", self.bound).number("B", self.bits).number("Q", self.m))

    @classmethod
    def decode(cls, data: bytes) -> PaperSettings:
        """The inverse of `encode`."""
        reader = Reader(data)
        reader.raw(1)
        settings = cls(
            dimension=reader.number("Q"),
            users=reader.number("I"),
            bound=reader.real(),
            bits=reader.number("B"),
            capacity=reader.number("Q"),
        )
        reader.end()
        return settings
