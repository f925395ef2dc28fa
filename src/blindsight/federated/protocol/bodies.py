"""The bodies of the messages of a round under a pad, and the sets of users that they speak of."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import ProtocolError
from blindsight.federated.messages import Proof
from blindsight.federated.pad import bits
from blindsight.federated.signatures import SIGNATURE_BYTES
from blindsight.federated.wire import Reader, Writer

__all__ = [
    "Collect",
    "Contribution",
    "KeySum",
    "Result",
    "ShareSum",
    "SumRequest",
    "members_of",
    "read_list",
    "sum_id",
    "to_members",
    "write_list",
]


def to_members(users: Sequence[int], total: int) -> bytes:
    """A set of users as bits, user 1 first."""
    row = np.zeros(total, dtype=np.uint8)
    row[np.asarray(users, dtype=np.intp) - 1] = 1
    return np.packbits(row, bitorder="little").tobytes()


def members_of(data: bytes, total: int) -> tuple[int, ...]:
    """The users of a set; bits past the last user are refused."""
    row = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
    if len(data) != -(-total // 8) or row[total:].any():
        raise ProtocolError("malformed: a set of users has one bit a user.")
    return tuple((np.flatnonzero(row) + 1).tolist())


def sum_id(context: bytes, members: bytes) -> bytes:
    """32 bytes that stand for the sum of one set of users in one round: the next round's parent."""
    return hashlib.sha256(b"blindsight sum" + context + members).digest()


def write_list(writer: Writer, items: Sequence[bytes]) -> Writer:
    """u32 count, then fields."""
    writer.number("I", len(items))
    for item in items:
        writer.field(item)
    return writer


def read_list(reader: Reader, most: int) -> tuple[bytes, ...]:
    """What `write_list` wrote, of at most that many."""
    count = reader.number("I")
    if count > most:
        raise ProtocolError(f"malformed: at most {most} parts are expected here, got {count}.")
    return tuple(reader.field() for _ in range(count))


@dataclass(frozen=True)
class Contribution:
    """Kind 2: the pad's key (ciphertexts, or one SHARE message a holder), then the padded
    vector.
    """

    keys: tuple[bytes, ...] = field(repr=False)
    padded: bytes = field(repr=False)

    def encode(self) -> bytes:
        """The body."""
        return bytes(write_list(Writer(), self.keys).raw(self.padded))

    @classmethod
    def decode(cls, body: bytes, *, most: int) -> Contribution:
        """Read a body."""
        reader = Reader(body)
        return cls(read_list(reader, most), reader.raw(reader.left))


@dataclass(frozen=True)
class SumRequest:
    """Kind 3: the set, its contributions' proofs, u32 count of confirmations (u32 user, signature),
    ciphertexts.
    """

    members: bytes
    proofs: tuple[Proof, ...]
    confirmed: tuple[tuple[int, bytes], ...]
    ciphertexts: bytes = field(repr=False)

    def encode(self) -> bytes:
        """The body."""
        writer = Writer().field(self.members).number("I", len(self.proofs))
        for proof in self.proofs:
            writer.raw(proof.encode())
        writer.number("I", len(self.confirmed))
        for user, signature in self.confirmed:
            writer.number("I", user).raw(signature)
        return bytes(writer.raw(self.ciphertexts))

    @classmethod
    def decode(cls, body: bytes, *, users: int) -> SumRequest:
        """Read a body."""
        reader = Reader(body)
        members = reader.field()
        count = reader.number("I")
        if count > users:
            raise ProtocolError(f"malformed: at most {users} users are enrolled.")
        proofs = tuple(Proof.read(reader) for _ in range(count))
        count = reader.number("I")
        if count > users:
            raise ProtocolError(f"malformed: at most {users} users are enrolled.")
        confirmed = tuple((reader.number("I"), reader.raw(SIGNATURE_BYTES)) for _ in range(count))
        return cls(members, proofs, confirmed, reader.raw(reader.left))


@dataclass(frozen=True)
class KeySum:
    """Kind 4: the set, the summed key and tag digits with `width` bits each."""

    members: bytes
    sums: NDArray[np.int64]

    def encode(self, *, width: int) -> bytes:
        """The body."""
        return bytes(
            Writer().field(self.members).raw(bits.pack(self.sums.astype(np.uint64), width))
        )

    @classmethod
    def decode(cls, body: bytes, *, length: int, width: int) -> KeySum:
        """Read a body."""
        reader = Reader(body)
        members = reader.field()
        sums = np.empty(length, dtype=np.uint64)
        bits.unpack(reader.raw(-(-length * width // 8)), width, sums)
        reader.end()
        return cls(members, sums.astype(np.int64))


@dataclass(frozen=True)
class Collect:
    """Kind 7: the set, its members' SHARE messages in order, the votes that opened the parent, and
    the parent's set.
    """

    members: bytes
    shares: tuple[bytes, ...] = field(repr=False)
    certificate: tuple[bytes, ...] = field(default=(), repr=False)
    before: bytes = b""

    def encode(self) -> bytes:
        """The body."""
        writer = write_list(Writer().field(self.members), self.shares)
        return bytes(write_list(writer, self.certificate).field(self.before))

    @classmethod
    def decode(cls, body: bytes, *, users: int, holders: int) -> Collect:
        """Read a body."""
        reader = Reader(body)
        found = cls(
            reader.field(), read_list(reader, users), read_list(reader, holders), reader.field()
        )
        reader.end()
        return found


@dataclass(frozen=True)
class ShareSum:
    """Kind 10: which sum, the holder's summed shares with `width` bits each, and whose shares did
    not open.
    """

    which: bytes
    sums: NDArray[np.int64]
    unread: tuple[int, ...] = ()

    def encode(self, *, width: int) -> bytes:
        """The body."""
        writer = Writer().raw(self.which).raw(bits.pack(self.sums.astype(np.uint64), width))
        writer.number("I", len(self.unread))
        for user in self.unread:
            writer.number("I", user)
        return bytes(writer)

    @classmethod
    def decode(cls, body: bytes, *, length: int, width: int, prime: int, users: int) -> ShareSum:
        """Read a body."""
        reader = Reader(body)
        which, sums = reader.raw(32), np.empty(length, dtype=np.uint64)
        if bits.unpack(reader.raw(-(-length * width // 8)), width, sums) >= prime:
            raise ProtocolError("malformed: summed shares must lie below the prime.")
        count = reader.number("I")
        if count > users:
            raise ProtocolError(f"malformed: at most {users} users are enrolled.")
        unread = tuple(reader.number("I") for _ in range(count))
        reader.end()
        return cls(which, sums.astype(np.int64), unread)


@dataclass(frozen=True)
class Result:
    """Kind 11: the set, who opened it (SUM or SHARE_SUM messages, or VOTEs), and the sum; empty
    where it is spoilt.
    """

    members: bytes
    proofs: tuple[bytes, ...] = field(repr=False)
    packed: bytes = field(repr=False)

    def encode(self) -> bytes:
        """The body."""
        return bytes(write_list(Writer().field(self.members), self.proofs).raw(self.packed))

    @classmethod
    def decode(cls, body: bytes, *, holders: int) -> Result:
        """Read a body."""
        reader = Reader(body)
        return cls(reader.field(), read_list(reader, max(1, holders)), reader.raw(reader.left))
