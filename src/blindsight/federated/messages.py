"""The messages: one versioned binary format for all of them, with sizes known beforehand.

    bytes   field
    4       "BSFM"
    1       version (1)
    1       kind
    2       zero
    16      key id
    8       round
    32      model hash
    4       sender (0 the aggregator, 1..N users, 0xFFFFFFFF the key generator, 0xFFFFFF00 + i the i-th key holder)
    4       body length
    ...     body, by kind
    64      the sender's signature over the 72 bytes of header and SHA-256 of the body

Numbers are little-endian. The signature covers the body through its digest, so that a third party can check that a
user contributed without seeing the ciphertexts.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import ProtocolError
from blindsight.federated.signatures import SIGNATURE_BYTES, Identity, Verifier
from blindsight.federated.wire import Reader, Writer

__all__ = [
    "AGGREGATOR",
    "HEADER_BYTES",
    "KEYGEN",
    "VERSION",
    "Contribution",
    "Header",
    "Kind",
    "Message",
    "Outgoing",
    "Partial",
    "PartialRequest",
    "Proof",
    "Refusal",
    "Sum",
    "SumRequest",
    "holder",
    "is_holder",
]

VERSION = 1
_MAGIC = b"BSFM"
_HEADER = struct.Struct("<4sBBH16sQ32sII")
HEADER_BYTES = _HEADER.size
AGGREGATOR = 0
KEYGEN = 0xFFFFFFFF


def holder(index: int) -> int:
    """The address of the index-th key holder, from 1."""
    return 0xFFFFFF00 + index


def is_holder(number: int) -> bool:
    """Whether an address is a key holder's."""
    return 0xFFFFFF00 < number < KEYGEN


class Kind(IntEnum):
    """What a message is."""

    OPEN = 1
    CONTRIBUTION = 2
    SUM_REQUEST = 3
    SUM = 4
    REFUSED = 5
    PARTIAL_REQUEST = 6
    PARTIAL = 7


@dataclass(frozen=True)
class Outgoing:
    """A message and whom it is for."""

    to: int
    data: bytes


@dataclass(frozen=True, kw_only=True)
class Header:
    """What every message is bound to."""

    kind: Kind
    key_id: bytes
    round: int
    model: bytes
    sender: int

    def encode(self, body_length: int) -> bytes:
        """72 bytes."""
        return _HEADER.pack(
            _MAGIC, VERSION, self.kind, 0, self.key_id, self.round, self.model, self.sender, body_length
        )

    def signed(self, body_length: int, body_digest: bytes) -> bytes:
        """What the signature is over."""
        return self.encode(body_length) + body_digest


@dataclass(frozen=True)
class Message:
    """Header, body and signature, as received."""

    header: Header
    body: bytes
    signature: bytes

    @classmethod
    def make(cls, header: Header, body: bytes, identity: Identity) -> Message:
        """Sign a body."""
        digest = hashlib.sha256(body).digest()
        return cls(header, body, identity.sign(header.signed(len(body), digest)))

    def encode(self) -> bytes:
        """The bytes to send."""
        return self.header.encode(len(self.body)) + self.body + self.signature

    @classmethod
    def decode(cls, data: bytes, *, largest: int) -> Message:
        """Take a message apart; nothing is trusted yet."""
        if len(data) > largest:
            raise ProtocolError(f"oversized: at most {largest} bytes are expected here, got {len(data)}.")
        if len(data) < HEADER_BYTES + SIGNATURE_BYTES:
            raise ProtocolError(f"malformed: {len(data)} bytes are no message.")
        magic, version, kind, zero, key_id, number, model, sender, length = _HEADER.unpack_from(data)
        if magic != _MAGIC or zero != 0:
            raise ProtocolError("malformed: this is no Blindsight message.")
        if version != VERSION:
            raise ProtocolError(f"wrong version: {VERSION} was expected, got {version}.")
        if kind not in Kind._value2member_map_:
            raise ProtocolError(f"malformed: there is no message kind {kind}.")
        if len(data) != HEADER_BYTES + length + SIGNATURE_BYTES:
            raise ProtocolError("malformed: the length does not fit the header.")
        header = Header(kind=Kind(kind), key_id=key_id, round=number, model=model, sender=sender)
        return cls(header, bytes(data[HEADER_BYTES:-SIGNATURE_BYTES]), bytes(data[-SIGNATURE_BYTES:]))

    def require(self, *, kind: Kind, key_id: bytes, round: int | None, model: bytes | None) -> None:
        """Refuse what is bound to another key, round or model."""
        if self.header.kind is not kind:
            raise ProtocolError(f"out of turn: {kind.name} was expected, got {self.header.kind.name}.")
        if self.header.key_id != key_id:
            raise ProtocolError("wrong key: the message is bound to another public key.")
        if round is not None and self.header.round != round:
            raise ProtocolError(f"wrong round: {round} was expected, got {self.header.round}.")
        if model is not None and self.header.model != model:
            raise ProtocolError("wrong model: the message is bound to another model hash.")

    def require_signature(self, verifier: Verifier | None) -> None:
        """Refuse strangers and forgeries."""
        if verifier is None:
            raise ProtocolError("unknown sender: nobody of that number is enrolled.")
        digest = hashlib.sha256(self.body).digest()
        if not verifier.verify(self.header.signed(len(self.body), digest), self.signature):
            raise ProtocolError("wrong signature: the message was not signed by its sender.")


@dataclass(frozen=True)
class Contribution:
    """Kind 2: u8 dense, u16 shard, u16 shards, u32 count, then u32 places (unless dense), then ciphertexts."""

    places: NDArray[np.uint32] | None  # None: every place, in order
    ciphertexts: bytes
    count: int
    shard: int = 0
    shards: int = 1

    def encode(self) -> bytes:
        """The body."""
        writer = Writer().number("B", self.places is None).number("H", self.shard).number("H", self.shards)
        writer.number("I", self.count)
        if self.places is not None:
            writer.raw(self.places.astype("<u4").tobytes())
        return bytes(writer.raw(self.ciphertexts))

    @classmethod
    def decode(cls, body: bytes, *, width: int, size: int) -> Contribution:
        """Read a body for ciphertexts of `width` bytes and `size` places."""
        reader = Reader(body)
        dense, shard, shards, count = (reader.number(code) for code in "BHHI")
        if dense > 1 or not shard < shards or count > size or (dense and count != size):
            raise ProtocolError("malformed: a contribution's counts contradict each other.")
        places = None if dense else np.frombuffer(reader.raw(4 * count), dtype="<u4")
        if places is not None and (places.size == 0 or int(places.max()) >= size):
            raise ProtocolError("malformed: a contribution must name places, all of them inside the vector.")
        if places is not None and len(np.unique(places)) != count:
            raise ProtocolError("malformed: a contribution names a place twice.")
        ciphertexts = reader.raw(width * count)
        reader.end()
        return cls(places, ciphertexts, count, shard, shards)


@dataclass(frozen=True)
class Proof:
    """That a user contributed: what its signature was over, without the ciphertexts (104 bytes)."""

    user: int
    length: int
    digest: bytes
    signature: bytes

    def encode(self) -> bytes:
        """u32 user, u32 body length, 32 bytes of digest, 64 of signature."""
        return bytes(Writer().number("I", self.user).number("I", self.length).raw(self.digest).raw(self.signature))

    @classmethod
    def read(cls, reader: Reader) -> Proof:
        """Take one off a reader."""
        return cls(reader.number("I"), reader.number("I"), reader.raw(32), reader.raw(SIGNATURE_BYTES))

    @classmethod
    def of(cls, message: Message) -> Proof:
        """The proof that a received contribution carries."""
        digest = hashlib.sha256(message.body).digest()
        return cls(message.header.sender, len(message.body), digest, message.signature)


@dataclass(frozen=True)
class SumRequest:
    """Kind 3: u32 users, u32 proofs, the proofs, u32 count, u32 places, membership bits, ciphertexts.

    Bit u of a place's row says whether the u-th proof's user contributed to it. "paper" mode sends no proofs and no
    membership: there the key generator believes what it is told.
    """

    users: int
    proofs: tuple[Proof, ...]
    places: NDArray[np.uint32]
    members: NDArray[np.bool_]
    ciphertexts: bytes

    def encode(self) -> bytes:
        """The body."""
        writer = Writer().number("I", self.users).number("I", len(self.proofs))
        for proof in self.proofs:
            writer.raw(proof.encode())
        writer.number("I", len(self.places)).raw(self.places.astype("<u4").tobytes())
        writer.raw(np.packbits(self.members, axis=1, bitorder="little").tobytes())
        return bytes(writer.raw(self.ciphertexts))

    @classmethod
    def decode(cls, body: bytes, *, width: int, size: int, users: int) -> SumRequest:
        """Read a body for `size` places and at most `users` users."""
        reader = Reader(body)
        claimed, count = reader.number("I"), reader.number("I")
        if count > users or claimed > users:
            raise ProtocolError(f"malformed: at most {users} users are enrolled.")
        proofs = tuple(Proof.read(reader) for _ in range(count))
        blocks = reader.number("I")
        if blocks > size:
            raise ProtocolError(f"malformed: there are {size} places, not {blocks}.")
        places = np.frombuffer(reader.raw(4 * blocks), dtype="<u4")
        if blocks and (int(places.max()) >= size or len(np.unique(places)) != blocks):
            raise ProtocolError("malformed: a request must name different places inside the vector.")
        row = -(-count // 8)
        packed = np.frombuffer(reader.raw(row * blocks), dtype=np.uint8).reshape(blocks, row)
        members = np.unpackbits(packed, axis=1, count=count, bitorder="little").astype(bool)
        ciphertexts = reader.raw(width * blocks)
        reader.end()
        return cls(claimed, proofs, places, members, ciphertexts)


@dataclass(frozen=True)
class Sum:
    """Kind 4: u32 contributors, their u32 numbers, u32 refused blocks, one bit a coordinate, one int64 a coordinate.

    A coordinate whose bit is 0 is not revealed and its number is 0: nobody contributed, or too few.
    """

    contributors: tuple[int, ...]
    refused: int
    revealed: NDArray[np.bool_]
    values: NDArray[np.int64]

    def encode(self) -> bytes:
        """The body."""
        writer = Writer().number("I", len(self.contributors))
        for user in self.contributors:
            writer.number("I", user)
        writer.number("I", self.refused).raw(np.packbits(self.revealed, bitorder="little").tobytes())
        return bytes(writer.raw(self.values.astype("<i8").tobytes()))

    @classmethod
    def decode(cls, body: bytes, *, dimension: int, users: int) -> Sum:
        """Read a body for `dimension` coordinates."""
        reader = Reader(body)
        count = reader.number("I")
        if count > users:
            raise ProtocolError(f"malformed: at most {users} users are enrolled.")
        contributors = tuple(reader.number("I") for _ in range(count))
        refused = reader.number("I")
        bits = np.frombuffer(reader.raw(-(-dimension // 8)), dtype=np.uint8)
        values = np.frombuffer(reader.raw(8 * dimension), dtype="<i8").astype(np.int64)
        reader.end()
        revealed = np.unpackbits(bits, count=dimension, bitorder="little").astype(bool)
        return cls(contributors, refused, revealed, values)


@dataclass(frozen=True)
class PartialRequest:
    """Kind 6: u32 count, then whole contributions as they were received, each with its u32 length."""

    contributions: tuple[bytes, ...]

    def encode(self) -> bytes:
        """The body."""
        writer = Writer().number("I", len(self.contributions))
        for data in self.contributions:
            writer.field(data)
        return bytes(writer)

    @classmethod
    def decode(cls, body: bytes, *, users: int) -> PartialRequest:
        """Read a body for at most `users` users."""
        reader = Reader(body)
        count = reader.number("I")
        if count > users:
            raise ProtocolError(f"malformed: at most {users} users are enrolled.")
        contributions = tuple(reader.field() for _ in range(count))
        reader.end()
        return cls(contributions)


@dataclass(frozen=True)
class Partial:
    """Kind 7: 32 bytes that stand for the ciphertexts, then a sum request with partial decryptions in their place."""

    digest: bytes
    request: SumRequest

    def encode(self) -> bytes:
        """The body."""
        return self.digest + self.request.encode()

    @classmethod
    def decode(cls, body: bytes, *, width: int, size: int, users: int) -> Partial:
        """Read a body."""
        reader = Reader(body)
        digest = reader.raw(32)
        return cls(digest, SumRequest.decode(reader.raw(reader.left), width=width, size=size, users=users))


@dataclass(frozen=True)
class Refusal:
    """Kind 5: why a message was refused, as one sentence of at most 500 bytes."""

    reason: str

    def encode(self) -> bytes:
        """The body."""
        return bytes(Writer().field(self.reason.encode()[:500]))

    @classmethod
    def decode(cls, body: bytes) -> Refusal:
        """Read a body."""
        reader = Reader(body)
        data = reader.field()
        reader.end()
        if len(data) > 500:
            raise ProtocolError("malformed: a refusal has at most 500 bytes.")
        return cls(data.decode(errors="replace"))
