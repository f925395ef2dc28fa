"""The messages of a round, version 3: one signed binary format and seven kinds.

    bytes  field
        4  "BSFM"
        1  version, 3
        1  kind
        2  zero
       32  agreement: SHA-256 of the roster
        8  round
        8  length: how many weights the round's vectors have
       32  model: a digest of the model that the round starts from
       32  parent: the last sum that was accepted, zeros before the first
        8  parent's round
       32  digest of the labels
       32  digest of the holders' keys
        4  sender: 0 the aggregator, 1 to N the users, 0xFFFFFF00 + j the j-th key holder
        8  length of the body
           body
       64  Ed25519 signature over the 204 bytes above and SHA-256 of the body

Numbers are little-endian. The fields from agreement to holders' keys are the round's *context*, to
which all secret and random values of a round are bound. docs/federated-protocol.md specifies the
bodies byte by byte.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import ProtocolError
from blindsight.federated.sums.field import P
from blindsight.federated.sums.labels import Labels
from blindsight.federated.sums.sealing import (
    OVERHEAD,
    PUBLIC_BYTES,
    SIGNATURE_BYTES,
    Identity,
    Verifier,
)
from blindsight.federated.sums.settings import Settings
from blindsight.federated.sums.wire import Reader, Writer

__all__ = [
    "AGGREGATOR",
    "HEADER_BYTES",
    "VERSION",
    "Code",
    "Collect",
    "Contribution",
    "Header",
    "HolderKey",
    "Kind",
    "Message",
    "Outgoing",
    "Part",
    "Refusal",
    "Refused",
    "RoundSum",
    "ShownSum",
    "TagHead",
    "holder",
    "is_holder",
    "labels_digest",
    "pack_members",
    "sent_by",
    "sum_id",
    "unpack_members",
]

VERSION: Final = 3
AGGREGATOR: Final = 0
_MAGIC = b"BSFM"
_HEADER = struct.Struct("<4sBBH32sQQ32s32sQ32s32sIQ")
HEADER_BYTES: Final = _HEADER.size
_FIRST_HOLDER = 0xFFFFFF00
_REASON_BYTES = 500


def holder(index: int) -> int:
    """Return the address of the index-th key holder, from 1."""
    return _FIRST_HOLDER + index


def is_holder(number: int) -> bool:
    """Whether an address is a key holder's."""
    return number > _FIRST_HOLDER


def sent_by(data: bytes, number: int) -> bool:
    """Whether a message names that party as its sender.

    The transport drops messages that name another sender than the authenticated party.
    """
    return len(data) >= HEADER_BYTES and _HEADER.unpack_from(data)[-2] == number


class Kind(IntEnum):
    """The kind of a message: six kinds in a round, and SEED once before the first."""

    OPEN = 1
    CONTRIBUTION = 2
    COLLECT = 3
    PART = 4
    RESULT = 5
    REFUSED = 6
    SEED = 7


class Code(IntEnum):
    """The rule that a refused message breaks."""

    MALFORMED = 0
    AGREEMENT = 1
    ROUND = 2
    CHAIN = 3
    COHORT = 4
    SIGNATURE = 5
    SET = 6
    LABELS = 7
    SHARES = 8
    RANGE = 9
    SUM = 10
    TURN = 11
    SEED = 12
    KEYS = 13


class Refused(ProtocolError):
    """A message broke the rule that `code` names."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(f"{code.name}: {reason}")
        self.code = code


@dataclass(frozen=True)
class Outgoing:
    """A message and its receiver."""

    to: int
    data: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Header:
    """The fields to which a message is bound."""

    kind: Kind
    agreement: bytes
    round: int
    length: int
    model: bytes
    parent: bytes
    parent_round: int
    labels: bytes
    holder_keys: bytes
    sender: int = AGGREGATOR

    @cached_property
    def context(self) -> bytes:
        """The digest of all fields that are the same for every message of a round."""
        numbers = struct.pack("<QQ", self.round, self.length)
        parent = self.parent + struct.pack("<Q", self.parent_round)
        bound = self.agreement + numbers + self.model + parent + self.labels + self.holder_keys
        return hashlib.sha256(b"blindsight round 3" + bound).digest()

    def encode(self, body_bytes: int) -> bytes:
        """The 204 bytes before a body of that length."""
        return _HEADER.pack(
            _MAGIC,
            VERSION,
            self.kind,
            0,
            self.agreement,
            self.round,
            self.length,
            self.model,
            self.parent,
            self.parent_round,
            self.labels,
            self.holder_keys,
            self.sender,
            body_bytes,
        )


@dataclass(frozen=True)
class Message:
    """A header, a body and the sender's signature."""

    header: Header
    body: bytes = field(repr=False)
    signature: bytes = field(repr=False)

    @classmethod
    def make(cls, header: Header, body: bytes, identity: Identity) -> Message:
        """Sign a body under a header."""
        signed = header.encode(len(body)) + hashlib.sha256(body).digest()
        return cls(header, bytes(body), identity.sign(signed))

    def encode(self) -> bytes:
        return self.header.encode(len(self.body)) + self.body + self.signature

    @classmethod
    def decode(cls, data: bytes, *, largest: int) -> Message:
        """Read a message; anything longer than `largest` or of another form is refused."""
        if len(data) > largest:
            raise ProtocolError(f"malformed: at most {largest} bytes were expected.")
        if len(data) < HEADER_BYTES + SIGNATURE_BYTES:
            raise ProtocolError("malformed: a message is too short.")
        magic, version, kind, zero, *fields, sender, length = _HEADER.unpack_from(data)
        if magic != _MAGIC or version != VERSION or zero:
            raise ProtocolError(f"malformed: not a message of version {VERSION}.")
        if kind not in Kind._value2member_map_:
            raise ProtocolError(f"malformed: there is no message kind {kind}.")
        if len(data) != HEADER_BYTES + length + SIGNATURE_BYTES:
            raise ProtocolError("malformed: the length does not fit the header.")
        agreement, number, size, model, parent, parent_round, labels, holder_keys = fields
        header = Header(
            kind=Kind(kind),
            agreement=agreement,
            round=number,
            length=size,
            model=model,
            parent=parent,
            parent_round=parent_round,
            labels=labels,
            holder_keys=holder_keys,
            sender=sender,
        )
        body, signature = data[HEADER_BYTES:-SIGNATURE_BYTES], data[-SIGNATURE_BYTES:]
        return cls(header, bytes(body), bytes(signature))

    def require_context(self, expected: Header) -> None:
        """Refuse a message that is bound to another round, model, parent, labels or keys."""
        if self.header.round != expected.round:
            raise Refused(
                Code.ROUND, f"round {expected.round} was expected, got {self.header.round}."
            )
        if self.header.context != expected.context:
            raise Refused(Code.CHAIN, "the message is bound to another context.")

    def require_signature(self, verifiers: Mapping[int, Verifier]) -> None:
        """Refuse senders who are not enrolled, and invalid signatures."""
        verifier = verifiers.get(self.header.sender)
        if verifier is None:
            raise Refused(Code.COHORT, "nobody of that number is enrolled.")
        signed = self.header.encode(len(self.body)) + hashlib.sha256(self.body).digest()
        if not verifier.verify(signed, self.signature):
            raise Refused(Code.SIGNATURE, "the message was not signed by its sender.")


def pack_members(users: tuple[int, ...], total: int) -> bytes:
    """Encode a set as bits: user u is bit (u - 1) mod 8 of byte ⌊(u - 1) / 8⌋, lowest first."""
    row = np.zeros(total, dtype=np.uint8)
    row[np.array(users, dtype=np.int64) - 1] = 1
    return np.packbits(row, bitorder="little").tobytes()


def unpack_members(data: bytes, total: int) -> tuple[int, ...]:
    """Decode what `pack_members` wrote; bits beyond the last user are refused."""
    if len(data) != -(-total // 8):
        raise ProtocolError(f"malformed: a set of {total} users has {-(-total // 8)} bytes.")
    row = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
    if row[total:].any():
        raise ProtocolError(f"malformed: a set names more than {total} users.")
    return tuple((np.flatnonzero(row) + 1).tolist())


def sum_id(context: bytes, members: bytes) -> bytes:
    """Return the 32 bytes that identify one round's sum over one set."""
    return hashlib.sha256(b"blindsight sum 3" + context + members).digest()


def labels_digest(now: Labels, ever: Labels) -> bytes:
    """Return SHA-256 over both arrays, two little-endian bytes for each user."""
    data = now.astype("<u2").tobytes() + ever.astype("<u2").tobytes()
    return hashlib.sha256(b"blindsight labels 3" + data).digest()


@dataclass(frozen=True)
class HolderKey:
    """A holder's public key for the next round, signed: 1,288 bytes."""

    index: int
    sequence: int
    public: bytes = field(repr=False)
    signature: bytes = field(repr=False)

    SIZE = 8 + PUBLIC_BYTES + SIGNATURE_BYTES

    @staticmethod
    def _signed(agreement: bytes, index: int, sequence: int, public: bytes) -> bytes:
        numbers = bytes([index]) + struct.pack("<Q", sequence)
        return b"blindsight holder key 3" + agreement + numbers + public

    @classmethod
    def make(
        cls, agreement: bytes, index: int, sequence: int, public: bytes, identity: Identity
    ) -> HolderKey:
        """Sign a public key as holder `index`; `sequence` counts its keys."""
        return cls(
            index, sequence, public, identity.sign(cls._signed(agreement, index, sequence, public))
        )

    def holds(self, agreement: bytes, verifier: Verifier) -> bool:
        """Whether the holder signed this key."""
        return verifier.verify(
            self._signed(agreement, self.index, self.sequence, self.public), self.signature
        )

    def encode(self) -> bytes:
        """u64 sequence, X25519 key, ML-KEM key, signature."""
        return struct.pack("<Q", self.sequence) + self.public + self.signature

    @classmethod
    def read(cls, reader: Reader, index: int) -> HolderKey:
        """Take one off a reader."""
        return cls(index, reader.number("Q"), reader.raw(PUBLIC_BYTES), reader.raw(SIGNATURE_BYTES))

    @staticmethod
    def digest(keys: list[HolderKey]) -> bytes:
        """Return the digest of all holders' keys, to which a round is bound."""
        data = b"".join(key.encode() for key in keys)
        return hashlib.sha256(b"blindsight holder keys 3" + data).digest()


def share_bytes(settings: Settings, length: int) -> list[int]:
    """Return the size of each holder's sealed share in a round of this length."""
    layout = settings.sharing(length)
    return [OVERHEAD + layout.plain_bytes(j) for j in range(1, layout.holders + 1)]


def contribution_bytes(settings: Settings, length: int) -> int:
    """Return the exact size of a contribution message, which follows from the settings."""
    body = 32 + sum(share_bytes(settings, length)) + SIGNATURE_BYTES
    padded = settings.pad(length).bytes(length)
    return HEADER_BYTES + body + padded + SIGNATURE_BYTES


@dataclass(frozen=True)
class Contribution:
    """A user's sealed shares of its key, its signature over their digests, and the padded vector.

    The body has the ephemeral X25519 key (32 bytes), the n sealed shares, whose lengths follow from
    the settings, the signature over the digest list (64 bytes), and the padded vector.
    """

    ephemeral: bytes = field(repr=False)
    shares: tuple[bytes, ...] = field(repr=False)
    signature: bytes = field(repr=False)
    padded: bytes = field(repr=False)

    @property
    def digests(self) -> bytes:
        """SHA-256 of each sealed share, in the holders' order."""
        return b"".join(hashlib.sha256(share).digest() for share in self.shares)

    @staticmethod
    def signed(context: bytes, user: int, ephemeral: bytes, digests: bytes) -> bytes:
        """Return the bytes that the user signs for the holders."""
        number = struct.pack("<I", user)
        return b"blindsight shares 3" + context + number + ephemeral + digests

    def encode(self) -> bytes:
        return b"".join([self.ephemeral, *self.shares, self.signature, self.padded])

    @classmethod
    def decode(cls, body: bytes, settings: Settings, length: int) -> Contribution:
        """Read a body for vectors of this length."""
        reader = Reader(body)
        ephemeral = reader.raw(32)
        shares = tuple(reader.raw(size) for size in share_bytes(settings, length))
        signature = reader.raw(SIGNATURE_BYTES)
        padded = reader.raw(reader.left)
        if len(padded) != settings.pad(length).bytes(length):
            raise ProtocolError("malformed: a padded vector has another length.")
        return cls(ephemeral, shares, signature, padded)


@dataclass(frozen=True)
class Collect:
    """A request to a holder for its part of a sum.

    It has the set, the labels, and for each user of the set its ephemeral key, digest list,
    signature and the share for this holder.
    """

    members: bytes
    now: Labels = field(repr=False)
    ever: Labels = field(repr=False)
    entries: tuple[tuple[bytes, bytes, bytes, bytes], ...] = field(repr=False)

    def encode(self) -> bytes:
        parts = [self.members, self.now.astype("<u2").tobytes(), self.ever.astype("<u2").tobytes()]
        return b"".join([*parts, *(part for entry in self.entries for part in entry)])

    @classmethod
    def decode(cls, body: bytes, settings: Settings, length: int, index: int) -> Collect:
        """Read a body made for holder `index`."""
        reader = Reader(body)
        members = reader.raw(-(-settings.users // 8))
        now, ever = (
            np.frombuffer(reader.raw(2 * settings.users), dtype="<u2").astype(np.uint16)
            for _ in range(2)
        )
        size = share_bytes(settings, length)[index - 1]
        entries = tuple(
            (
                reader.raw(32),
                reader.raw(32 * settings.n_holders),
                reader.raw(SIGNATURE_BYTES),
                reader.raw(size),
            )
            for _ in unpack_members(members, settings.users)
        )
        reader.end()
        return cls(members, now, ever, entries)


@dataclass(frozen=True)
class TagHead:
    """A holder's signed share of the summed tag, the part of its answer that users need.

    It takes 137 bytes.
    """

    index: int
    tag_share: int
    others: bytes
    signature: bytes = field(repr=False)

    SIZE = 1 + 8 + 32 + SIGNATURE_BYTES

    @staticmethod
    def _signed(sum_label: bytes, index: int, tag_share: int, others: bytes) -> bytes:
        numbers = bytes([index]) + struct.pack("<Q", tag_share)
        return b"blindsight part 3" + sum_label + numbers + others

    @classmethod
    def make(
        cls, sum_label: bytes, index: int, tag_share: int, others: bytes, identity: Identity
    ) -> TagHead:
        """Sign the head of an answer about the sum `sum_label`."""
        return cls(
            index,
            tag_share,
            others,
            identity.sign(cls._signed(sum_label, index, tag_share, others)),
        )

    def holds(self, sum_label: bytes, verifier: Verifier) -> bool:
        """Whether the holder signed this head for that sum."""
        signed = self._signed(sum_label, self.index, self.tag_share, self.others)
        return self.tag_share < P and verifier.verify(signed, self.signature)

    def encode(self) -> bytes:
        """u8 holder, u64 share of the tag, digest of the other shares, signature."""
        return (
            bytes([self.index]) + struct.pack("<Q", self.tag_share) + self.others + self.signature
        )

    @classmethod
    def read(cls, reader: Reader) -> TagHead:
        """Take one off a reader."""
        return cls(
            reader.number("B"), reader.number("Q"), reader.raw(32), reader.raw(SIGNATURE_BYTES)
        )


@dataclass(frozen=True)
class Part:
    """A holder's answer.

    It has the head, the summed shares of the key, the users whose shares did not open, and the
    holder's key for the next round.
    """

    head: TagHead
    shares: NDArray[np.uint64] = field(repr=False)
    unread: tuple[int, ...]
    next_key: HolderKey

    def encode(self) -> bytes:
        writer = Writer().raw(self.head.encode()).raw(self.shares.astype("<u8").tobytes())
        writer.number("I", len(self.unread))
        for user in self.unread:
            writer.number("I", user)
        return bytes(writer.raw(self.next_key.encode()))

    @classmethod
    def decode(cls, body: bytes, settings: Settings, length: int, index: int) -> Part:
        """Read a body; the digest in the head must be that of the shares."""
        reader, count = Reader(body), settings.sharing(length).elements - 1
        head = TagHead.read(reader)
        data = reader.raw(8 * count)
        shares = np.frombuffer(data, dtype="<u8").astype(np.uint64)
        named = reader.number("I")
        if named > settings.largest_round:
            raise ProtocolError("malformed: more unread shares than users.")
        unread = tuple(reader.number("I") for _ in range(named))
        key = HolderKey.read(reader, index)
        reader.end()
        if head.index != index or hashlib.sha256(data).digest() != head.others:
            raise ProtocolError("malformed: a head does not fit its shares.")
        if (shares >= P).any() or head.tag_share >= P:
            raise ProtocolError("malformed: shares must lie below 2^61 - 1.")
        return cls(head, shares, unread, key)


@dataclass(frozen=True)
class ShownSum:
    """The result that users are shown: the set, t heads, and the packed sum of the vectors."""

    members: bytes
    heads: tuple[TagHead, ...]
    packed: bytes = field(repr=False)

    def encode(self) -> bytes:
        """The set, u8 number of heads, heads, the sum."""
        heads = b"".join(head.encode() for head in self.heads)
        return self.members + bytes([len(self.heads)]) + heads + self.packed

    @classmethod
    def decode(cls, body: bytes, settings: Settings) -> ShownSum:
        reader = Reader(body)
        members = reader.raw(-(-settings.users // 8))
        heads = tuple(TagHead.read(reader) for _ in range(reader.number("B")))
        return cls(members, heads, reader.raw(reader.left))


@dataclass(frozen=True)
class Refusal:
    """A refusal (kind 6).

    The body is the u8 code of the rule, the u64 number of the last round known to the sender, and a
    reason of at most 500 bytes.
    """

    code: Code
    reason: str
    at: int = 0

    def encode(self) -> bytes:
        reason = self.reason.encode()[:_REASON_BYTES]
        return bytes(Writer().number("B", self.code).number("Q", self.at).field(reason))

    @classmethod
    def decode(cls, body: bytes) -> Refusal:
        reader = Reader(body)
        code, at, data = reader.number("B"), reader.number("Q"), reader.field()
        reader.end()
        if len(data) > _REASON_BYTES or code not in Code._value2member_map_:
            raise ProtocolError(
                f"malformed: a refusal has a known code and at most {_REASON_BYTES} bytes."
            )
        return cls(Code(code), data.decode(errors="replace"), at)


@dataclass(frozen=True)
class RoundSum:
    """The outcome of a round: the users in the sum, and the sum in steps of the grid."""

    contributors: tuple[int, ...]
    values: NDArray[np.int64] = field(repr=False)

    def encode(self) -> bytes:
        """u32 contributors, their u32 numbers, one int64 for each coordinate."""
        writer = Writer().number("I", len(self.contributors))
        writer.raw(np.array(self.contributors, dtype="<u4").tobytes())
        return bytes(writer.raw(self.values.astype("<i8").tobytes()))

    @classmethod
    def decode(cls, data: bytes, *, users: int) -> RoundSum:
        """Read what `encode` wrote, for at most this many users."""
        reader = Reader(data)
        count = reader.number("I")
        if count > users or (reader.left - 4 * count) % 8:
            raise ProtocolError("malformed: a saved sum has another length.")
        contributors = tuple(np.frombuffer(reader.raw(4 * count), dtype="<u4").tolist())
        values = np.frombuffer(reader.raw(reader.left), dtype="<i8").astype(np.int64)
        return cls(contributors, values)
