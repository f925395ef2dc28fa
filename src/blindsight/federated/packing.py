"""Many weights in one plaintext, with room for the sum of N users.

A block of k weights is one plaintext. From the lowest bit up it holds k slots and then a tag:

    slot = [ value + 2^(bits-1) | 1 if this user contributes to the coordinate ]      tag = PRF of user, round, block

The value is shifted to be positive; `guard` spare bits above it take the sum of N users without a carry into the
neighbour. The counter (present with `count="coordinate"`) adds up to the number of contributors of that coordinate,
which nobody but the decryptor sees. The tags' sum tells the decryptor whose ciphertexts were multiplied
(`blindsight.federated.protocol.keygen` says how far that goes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData, InvalidParameter

__all__ = ["TAG_BITS", "Count", "Packing", "Unpacked"]

Count = Literal["coordinate", "block"]
TAG_BITS = 56


class Unpacked(NamedTuple):
    """What one decrypted sum of blocks holds: one row a block."""

    values: NDArray[np.int64]  # still shifted: minus contributors * 2^(bits-1) gives the sum
    counts: NDArray[np.int64]  # contributors per coordinate; all 0 with count="block"
    tags: NDArray[np.uint64]  # the tags' sum, modulo 2^64 where it could be larger
    clean: NDArray[np.bool_]  # nothing beyond the layout's last bit


@dataclass(frozen=True, kw_only=True)
class Packing:
    """The layout of a block: value bits, the most users whose sum must fit, and whether coordinates are counted."""

    plaintext_bits: int
    value_bits: int
    users: int
    count: Count = "coordinate"

    def __post_init__(self) -> None:
        checks.whole("users", self.users)
        checks.whole("value_bits", self.value_bits, least=2)
        checks.one_of("count", self.count, get_args(Count))
        if self.slot_bits > 62:
            raise InvalidParameter(f"a slot must take at most 62 bits, got {self.slot_bits}: use fewer bits a value.")
        if self.slots < 1:
            raise InvalidParameter(f"{self.plaintext_bits} plaintext bits hold no slot of {self.slot_bits} bits.")

    @property
    def guard(self) -> int:
        """Spare bits for the sum of `users` values."""
        return (self.users - 1).bit_length()

    @property
    def count_bits(self) -> int:
        """Bits of the counter of contributors in each slot."""
        return self.users.bit_length() if self.count == "coordinate" else 0

    @property
    def slot_bits(self) -> int:
        """Bits of a slot: value, guard, counter."""
        return self.value_bits + self.guard + self.count_bits

    @property
    def slots(self) -> int:
        """k, the weights in one plaintext."""
        return (self.plaintext_bits - TAG_BITS - self.guard) // self.slot_bits

    def blocks(self, dimension: int) -> int:
        """Plaintexts that a vector of `dimension` weights takes."""
        return -(-dimension // self.slots)

    def pack(
        self, values: NDArray[np.int64], support: NDArray[np.bool_], tags: NDArray[np.uint64], which: NDArray[np.intp]
    ) -> list[mpz]:
        """Plaintexts of the blocks `which` of a vector; `tags` has one entry for each of them."""
        half = 1 << (self.value_bits - 1)
        if values.size and int(np.abs(values).max()) >= half:
            raise InvalidData(f"values must have at most {self.value_bits} bits, sign included.")
        slots = np.where(support, values, 0) + half
        if self.count_bits:
            slots += support.astype(np.int64) << (self.value_bits + self.guard)
        whole = np.full(self.blocks(len(values)) * self.slots, half, dtype=np.int64)
        whole[: len(values)] = slots
        chosen = whole.reshape(-1, self.slots)[which]
        bits = np.zeros((len(which), self._bits), dtype=np.uint8)
        body = self.slots * self.slot_bits
        bits[:, :body] = _to_bits(chosen.astype(np.uint64), self.slot_bits).reshape(len(which), body)
        bits[:, body : body + TAG_BITS] = _to_bits(tags, TAG_BITS)
        rows = np.packbits(bits, axis=1, bitorder="little")
        return [mpz.from_bytes(row.tobytes(), "little") for row in rows]

    def unpack(self, plaintexts: list[mpz]) -> Unpacked:
        """Slots of decrypted sums."""
        body, width = self.slots * self.slot_bits, (self._bits + 7) // 8
        clean = np.array([x.bit_length() <= self._bits for x in plaintexts], dtype=bool)
        data = b"".join((x % (mpz(1) << self._bits)).to_bytes(width, "little") for x in plaintexts)
        rows = np.frombuffer(data, dtype=np.uint8).reshape(len(plaintexts), width)
        bits = np.unpackbits(rows, axis=1, bitorder="little")
        slots = _from_bits(bits[:, :body].reshape(len(plaintexts), self.slots, self.slot_bits)).astype(np.int64)
        low = self.value_bits + self.guard
        tags = _from_bits(bits[:, body : body + min(64, TAG_BITS + self.guard)])
        counts = slots >> low if self.count_bits else np.zeros_like(slots)
        return Unpacked(slots & ((1 << low) - 1), counts, tags, clean)

    @property
    def _bits(self) -> int:
        return self.slots * self.slot_bits + TAG_BITS + self.guard


def _to_bits(numbers: NDArray[np.uint64], width: int) -> NDArray[np.uint8]:
    """The lowest `width` bits of each number, along a new last axis."""
    octets = numbers.astype("<u8", copy=False)[..., None].view(np.uint8)
    return np.unpackbits(octets, axis=-1, count=width, bitorder="little")


def _from_bits(bits: NDArray[np.uint8]) -> NDArray[np.uint64]:
    octets = np.packbits(bits, axis=-1, bitorder="little")
    padded = np.zeros((*octets.shape[:-1], 8), dtype=np.uint8)
    padded[..., : octets.shape[-1]] = octets
    return padded.view("<u8")[..., 0].astype(np.uint64)
