"""Small numbers in Paillier plaintexts, each plaintext with a check that only the right sum passes.

A plaintext holds, from the lowest bit up, k slots of 7 + g bits (g = ⌈log2 users⌉ spare bits for
the sum) and a check of 61 + g bits:

    check of user i, block b  =  ρ_ib + Σ_j κ_bj · slot_j   modulo 2^61 - 1

κ is known to users and to the key generator, ρ_i to user i and the key generator only. All that
somebody can do to ciphertexts is to multiply powers of them and to add plaintexts. The check of the
result must hold the sum of ρ_i over exactly the users claimed: whoever leaves one out, repeats one,
cancels one or changes a slot has to guess a number of 61 bits (of which carries between slots may
give away a few: at most 2^-45 a try is claimed).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter
from blindsight.federated.pad.stream import expand
from blindsight.federated.pad.tag import MODULUS, plus, product

__all__ = ["Slots"]

_ENTRY_BITS, _CHECK_BITS = 7, 61


def _numbers(key: bytes, what: bytes, context: bytes, count: int) -> NDArray[np.uint64]:
    """Pseudo-random numbers below 2^61 for one round."""
    stream = hashlib.sha256(b"blindsight slots " + what + key + context).digest()[:16]
    return np.frombuffer(expand(stream, b"", 8 * count), dtype="<u8") & np.uint64(MODULUS)


@dataclass(frozen=True, kw_only=True)
class Slots:
    """The layout for vectors of `length` numbers in [0, 127], summed over at most `users`."""

    plaintext_bits: int
    users: int
    length: int

    def __post_init__(self) -> None:
        checks.whole("users", self.users)
        checks.whole("length", self.length)
        if self.slots < 1:
            raise InvalidParameter(
                f"{self.plaintext_bits} plaintext bits hold no slot for {self.users} users."
            )

    @property
    def _guard(self) -> int:
        return (self.users - 1).bit_length()

    @property
    def slot_bits(self) -> int:
        """Bits of one slot."""
        return _ENTRY_BITS + self._guard

    @property
    def slots(self) -> int:
        """Numbers in one plaintext."""
        return (self.plaintext_bits - _CHECK_BITS - self._guard) // self.slot_bits

    @property
    def blocks(self) -> int:
        """Plaintexts of a vector."""
        return -(-self.length // self.slots)

    def _rows(self, vector: NDArray[np.integer]) -> NDArray[np.uint64]:
        whole = np.zeros(self.blocks * self.slots, dtype=np.uint64)
        whole[: self.length] = vector
        return whole.reshape(self.blocks, self.slots)

    def _products(self, rows: NDArray[np.uint64], shared: bytes, context: bytes) -> list[int]:
        """Σ_j κ_bj · slot_j of each block."""
        keys = _numbers(shared, b"shared", context, rows.size).reshape(rows.shape)
        return [product(key, row) for key, row in zip(keys, rows, strict=True)]

    def pack(
        self, vector: NDArray[np.integer], *, shared: bytes, own: bytes, context: bytes
    ) -> list[mpz]:
        """Plaintexts with their checks."""
        rows = self._rows(vector)
        masks = _numbers(own, b"own", context, self.blocks)
        body = self.slots * self.slot_bits
        plaintexts = []
        for row, checked, mask in zip(
            rows, self._products(rows, shared, context), masks, strict=True
        ):
            check = mpz(plus(checked, mask))
            bits = np.unpackbits(
                row.astype("<u8")[:, None].view(np.uint8),
                axis=1,
                count=self.slot_bits,
                bitorder="little",
            )
            slots = mpz.from_bytes(np.packbits(bits.ravel(), bitorder="little").tobytes(), "little")
            plaintexts.append(slots | check << body)
        return plaintexts

    def unpack(
        self, plaintexts: list[mpz], *, shared: bytes, owners: Iterable[bytes], context: bytes
    ) -> NDArray[np.int64] | None:
        """The summed vector; None where a check does not hold."""
        body = self.slots * self.slot_bits
        rows = np.zeros((self.blocks, self.slots), dtype=np.uint64)
        found = []
        for row, plaintext in zip(rows, plaintexts, strict=True):
            if plaintext.bit_length() > body + _CHECK_BITS + self._guard:
                return None
            slots = plaintext & ((mpz(1) << body) - 1)
            data = np.frombuffer(slots.to_bytes(-(-body // 8), "little"), dtype=np.uint8)
            bits = np.unpackbits(data, count=body, bitorder="little").reshape(
                self.slots, self.slot_bits
            )
            octets = np.zeros((self.slots, 8), dtype=np.uint8)
            packed = np.packbits(bits, axis=1, bitorder="little")
            octets[:, : packed.shape[1]] = packed
            row[:] = octets.view("<u8")[:, 0]
            found.append(int(plaintext >> body) % MODULUS)
        masks = np.zeros(self.blocks, dtype=object)
        for own in owners:
            masks += _numbers(own, b"own", context, self.blocks).astype(object)
        expected = [
            (checked + int(mask)) % MODULUS
            for checked, mask in zip(self._products(rows, shared, context), masks, strict=True)
        ]
        return rows.ravel()[: self.length].astype(np.int64) if found == expected else None
