"""The messages: one versioned binary format for all of them, with sizes known beforehand.

    bytes   field 4       "BSFM" 1       version (2) 1       kind 1       purpose: 0 values, 1 votes
    1       zero 32      agreement: a digest of settings, keys and parties 8       round 8
    length: how many weights the round's vectors have 32      model hash 32      parent: which
    opened sum came before, zeros for the first round 4       sender (0 the aggregator, 1..N users,
    0xFFFFFFFF the key generator, 0xFFFFFF00 + i the i-th key holder) 8       body length
    ...     body, by kind
    64      the sender's Ed25519 signature over the 132 bytes of header and SHA-256 of the body

Numbers are little-endian. The signature covers the body through its digest, so that a third party
can check that a user contributed without seeing what. Agreement, purpose, round, length, model and
parent are a round's *context*: everything secret or random in a round is derived for it, so that
nothing of one round fits another.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property

from blindsight.core.errors import ProtocolError
from blindsight.federated.signatures import SIGNATURE_BYTES, Identity, Verifier
from blindsight.federated.wire import Reader, Writer

__all__ = [
    "AGGREGATOR",
    "HEADER_BYTES",
    "KEYGEN",
    "VERSION",
    "Code",
    "Header",
    "Kind",
    "Message",
    "Outgoing",
    "Proof",
    "Purpose",
    "Refusal",
    "Refused",
    "holder",
    "is_holder",
    "sent_by",
]

VERSION = 2
_MAGIC = b"BSFM"
_HEADER = struct.Struct("<4sBBBB32sQQ32s32sIQ")
HEADER_BYTES = _HEADER.size
AGGREGATOR = 0
KEYGEN = 0xFFFFFFFF
_REASON_BYTES = 500


def holder(index: int) -> int:
    """The address of the index-th key holder, from 1."""
    return 0xFFFFFF00 + index


def is_holder(number: int) -> bool:
    """Whether an address is a key holder's."""
    return 0xFFFFFF00 < number < KEYGEN


def sent_by(data: bytes, number: int) -> bool:
    """Whether a message says that it is of that party: a carrier that knows who spoke lets nobody
    speak for others.
    """
    return len(data) >= HEADER_BYTES and _HEADER.unpack_from(data)[-2] == number


class Kind(IntEnum):
    """What a message is."""

    OPEN = 1
    CONTRIBUTION = 2
    SUM_REQUEST = 3
    SUM = 4
    REFUSED = 5
    SHARE = 6
    COLLECT = 7
    VOTE = 8
    VOTES = 9
    SHARE_SUM = 10
    RESULT = 11
    CONFIRM_REQUEST = 12
    CONFIRM = 13


class Purpose(IntEnum):
    """What a round adds up."""

    VALUES = 0
    VOTES = 1


class Code(IntEnum):
    """Why a message was refused, by the rule that it breaks."""

    MALFORMED = 0
    AGREEMENT = 1
    ROUND = 2
    CHAIN = 3
    COHORT = 4
    PROOFS = 5
    SIGNATURE = 6
    FEW = 7
    GROUP = 8
    CONFIRM = 9
    VOTES = 10
    TAG = 11
    SHARES = 12
    RANGE = 13
    SUM = 14
    TURN = 15
    VOTERS = 16


class Refused(ProtocolError):
    """A message broke the rule that `code` names."""

    def __init__(self, code: Code, says: str) -> None:
        super().__init__(f"{code.name}: {says}")
        self.code = code


@dataclass(frozen=True)
class Outgoing:
    """A message and whom it is for."""

    to: int
    data: bytes


@dataclass(frozen=True, kw_only=True)
class Header:
    """What every message is bound to."""

    kind: Kind
    agreement: bytes
    round: int
    model: bytes
    sender: int
    parent: bytes = bytes(32)
    length: int = 0
    purpose: Purpose = Purpose.VALUES

    def encode(self, body_length: int) -> bytes:
        """132 bytes."""
        return _HEADER.pack(
            _MAGIC,
            VERSION,
            self.kind,
            self.purpose,
            0,
            self.agreement,
            self.round,
            self.length,
            self.model,
            self.parent,
            self.sender,
            body_length,
        )

    def signed(self, body_length: int, body_digest: bytes) -> bytes:
        """What the signature is over."""
        return self.encode(body_length) + body_digest

    @cached_property
    def context(self) -> bytes:
        """32 bytes that stand for the round, whoever sends what in it."""
        plain = replace(self, kind=Kind.OPEN, sender=AGGREGATOR)
        return hashlib.sha256(b"blindsight round" + plain.encode(0)).digest()


@dataclass(frozen=True)
class Message:
    """Header, body and signature, as received."""

    header: Header
    body: bytes = field(repr=False)
    signature: bytes = field(repr=False)

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
            raise ProtocolError(
                f"oversized: at most {largest} bytes are expected here, got {len(data)}."
            )
        if len(data) < HEADER_BYTES + SIGNATURE_BYTES:
            raise ProtocolError(f"malformed: {len(data)} bytes are no message.")
        (
            magic,
            version,
            kind,
            purpose,
            zero,
            agreement,
            number,
            size,
            model,
            parent,
            sender,
            length,
        ) = _HEADER.unpack_from(data)
        if magic != _MAGIC or zero != 0:
            raise ProtocolError("malformed: this is no Blindsight message.")
        if version != VERSION:
            raise ProtocolError(f"wrong version: {VERSION} was expected, got {version}.")
        if kind not in Kind._value2member_map_ or purpose not in Purpose._value2member_map_:
            raise ProtocolError(
                f"malformed: there is no message kind {kind} with purpose {purpose}."
            )
        if len(data) != HEADER_BYTES + length + SIGNATURE_BYTES:
            raise ProtocolError("malformed: the length does not fit the header.")
        header = Header(
            kind=Kind(kind),
            purpose=Purpose(purpose),
            agreement=agreement,
            round=number,
            length=size,
            model=model,
            parent=parent,
            sender=sender,
        )
        return cls(
            header, bytes(data[HEADER_BYTES:-SIGNATURE_BYTES]), bytes(data[-SIGNATURE_BYTES:])
        )

    def require(self, kind: Kind, agreement: bytes) -> None:
        """Refuse another kind and another federation."""
        if self.header.kind is not kind:
            raise Refused(Code.TURN, f"{kind.name} was expected, got {self.header.kind.name}.")
        if self.header.agreement != agreement:
            raise Refused(Code.AGREEMENT, "the message is bound to another agreement.")

    def require_context(self, about: Header) -> None:
        """Refuse what is bound to another round, model, length or parent."""
        if self.header.round != about.round:
            raise Refused(Code.ROUND, f"round {about.round} was expected, got {self.header.round}.")
        if self.header.context != about.context:
            raise Refused(Code.CHAIN, "the message is bound to another model or parent.")

    def require_signature(self, verifiers: Mapping[int, Verifier]) -> None:
        """Refuse strangers and forgeries."""
        verifier = verifiers.get(self.header.sender)
        if verifier is None:
            raise Refused(Code.COHORT, "nobody of that number is enrolled.")
        digest = hashlib.sha256(self.body).digest()
        if not verifier.verify(self.header.signed(len(self.body), digest), self.signature):
            raise Refused(Code.SIGNATURE, "the message was not signed by its sender.")


@dataclass(frozen=True)
class Proof:
    """That a user sent a message: what its signature was over, without the body (108 bytes)."""

    user: int
    length: int
    digest: bytes
    signature: bytes

    def encode(self) -> bytes:
        """u32 user, u64 body length, 32 bytes of digest, 64 of signature."""
        return bytes(
            Writer()
            .number("I", self.user)
            .number("Q", self.length)
            .raw(self.digest)
            .raw(self.signature)
        )

    @classmethod
    def read(cls, reader: Reader) -> Proof:
        """Take one off a reader."""
        return cls(
            reader.number("I"), reader.number("Q"), reader.raw(32), reader.raw(SIGNATURE_BYTES)
        )

    @classmethod
    def of(cls, message: Message) -> Proof:
        """The proof that a received message carries."""
        digest = hashlib.sha256(message.body).digest()
        return cls(message.header.sender, len(message.body), digest, message.signature)

    def holds(self, about: Header, kind: Kind, verifiers: Mapping[int, Verifier]) -> bool:
        """Whether that user signed such a message in that round."""
        bound = replace(about, kind=kind, sender=self.user)
        verifier = verifiers.get(self.user)
        return verifier is not None and verifier.verify(
            bound.signed(self.length, self.digest), self.signature
        )


@dataclass(frozen=True)
class Refusal:
    """Kind 5: the code of the rule, the round that the refuser is at, and one sentence of at most
    500 bytes.
    """

    code: Code
    reason: str
    at: int = 0

    def encode(self) -> bytes:
        """The body."""
        return bytes(
            Writer()
            .number("B", self.code)
            .number("Q", self.at)
            .field(self.reason.encode()[:_REASON_BYTES])
        )

    @classmethod
    def decode(cls, body: bytes) -> Refusal:
        """Read a body."""
        reader = Reader(body)
        code, at, data = reader.number("B"), reader.number("Q"), reader.field()
        reader.end()
        if len(data) > _REASON_BYTES or code not in Code._value2member_map_:
            raise ProtocolError(
                f"malformed: a refusal has a known code and at most {_REASON_BYTES} bytes."
            )
        return cls(Code(code), data.decode(errors="replace"), at)
