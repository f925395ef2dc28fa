"""Rules that several parties check for themselves: who may be in a sum, what fits a round, and the
key's layout.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import ProtocolError
from blindsight.federated.messages import (
    HEADER_BYTES,
    Code,
    Header,
    Kind,
    Message,
    Purpose,
    Refused,
    is_holder,
)
from blindsight.federated.pad import tag
from blindsight.federated.pad.parameters import CAPS, Parameters
from blindsight.federated.paillier import PublicKey
from blindsight.federated.protocol.bodies import members_of
from blindsight.federated.settings import Settings
from blindsight.federated.signatures import SIGNATURE_BYTES, Verifier
from blindsight.federated.transport import Sharing, Slots

__all__ = [
    "OFFSET",
    "checked_members",
    "contribution_bytes",
    "from_key",
    "largest_contribution",
    "raw_sum",
    "require_key",
    "require_voters",
    "round_pad",
    "sharing",
    "slots",
    "to_key",
    "voters",
]

OFFSET = 64  # a secret in [-63, 63] travels as a number in [1, 127]


def checked_members(settings: Settings, data: bytes) -> tuple[int, ...]:
    """The users of a set that may be summed: enough of them, and whole groups."""
    users = members_of(data, settings.users)
    if len(users) < settings.least_users:
        raise Refused(
            Code.FEW, f"at least {settings.least_users} contributors are needed, got {len(users)}."
        )
    if settings.whole_groups(set(users)) != users:
        raise Refused(
            Code.GROUP, f"only whole groups of at least {settings.group} users are summed."
        )
    return users


def require_voters(settings: Settings, header: Header, members: bytes, voters: bytes) -> None:
    """Values are summed of all whose votes were counted: of fewer, a coordinate may have one
    contributor.
    """
    if settings.least_per_coordinate == 1 or header.purpose is Purpose.VOTES:
        return
    if not voters:
        raise Refused(Code.CHAIN, "a round of votes must come before a round of values.")
    if any(voted & ~there for voted, there in zip(voters, members, strict=True)):
        raise Refused(Code.VOTERS, "users are missing who voted on what is summed.")


def round_pad(settings: Settings, header: Header) -> Parameters:
    """The pad of a round."""
    if not 1 <= header.length <= settings.dimension:
        raise Refused(Code.AGREEMENT, f"a round's vectors have 1 to {settings.dimension} weights.")
    return settings.pad(header.length, votes=header.purpose is Purpose.VOTES)


def slots(settings: Settings, public: PublicKey, degree: int) -> Slots:
    """How a key of that length goes into Paillier plaintexts."""
    return Slots(
        plaintext_bits=public.plaintext_bits, users=settings.users, length=degree + tag.DIGITS
    )


def sharing(settings: Settings, degree: int) -> Sharing:
    """How a key of that length is shared among the holders."""
    needed, total = settings.holders or (0, 0)
    return Sharing(needed=needed, holders=total, users=settings.users, length=degree + tag.DIGITS)


def to_key(s: NDArray[np.int8], value: int) -> NDArray[np.int64]:
    """Secret and tag as what travels: numbers in [0, 127]."""
    return np.concatenate([s.astype(np.int64) + OFFSET, tag.to_digits(value).astype(np.int64)])


def from_key(sums: NDArray[np.int64], contributors: int) -> tuple[NDArray[np.int64], int]:
    """The sum of the secrets and the sum of the tags; numbers that no honest users add up to are
    refused.
    """
    secret, digits = sums[: -tag.DIGITS], sums[-tag.DIGITS :]
    if (secret < contributors).any() or (sums > contributors * 127).any():
        raise Refused(Code.RANGE, "a summed key lies outside what its contributors can add up to.")
    return secret - OFFSET * contributors, tag.from_digits(digits)


def raw_sum(
    settings: Settings, header: Header, raw: NDArray[np.int64], contributors: int
) -> NDArray[np.int64]:
    """Grid steps, or counts of votes, from summed slots; what no honest users add up to is
    refused.
    """
    votes = header.purpose is Purpose.VOTES
    least, most = (0, 1) if votes else (1, (1 << settings.bits) - 1)
    if (raw < least * contributors).any() or (raw > most * contributors).any():
        raise Refused(Code.RANGE, "a sum lies outside what its contributors can add up to.")
    return raw if votes else raw - contributors * (1 << (settings.bits - 1))


def require_key(
    settings: Settings,
    public: PublicKey | None,
    header: Header,
    keys: tuple[bytes, ...],
    verifiers: Mapping[int, Verifier],
) -> None:
    """A key of the right form; what is in it only the key generator or the holders can see."""
    degree = round_pad(settings, header).degree
    if public is not None:
        wanted = slots(settings, public, degree).blocks * public.ciphertext_bytes
        if len(keys) != 1 or len(keys[0]) != wanted:
            raise ProtocolError(f"malformed: a key takes {wanted} bytes of ciphertexts here.")
        public.from_bytes(keys[0])
        return
    layout = sharing(settings, degree)
    if len(keys) != layout.holders:
        raise ProtocolError(f"malformed: a key takes {layout.holders} shares here.")
    for j, data in enumerate(keys, start=1):
        part = Message.decode(data, largest=1024 + layout.share_bytes(j))
        part.require(Kind.SHARE, header.agreement)
        part.require_context(header)
        part.require_signature(verifiers)
        if part.body[:1] != bytes([j]) or len(part.body) != 1 + layout.share_bytes(j):
            raise ProtocolError("malformed: a share for another holder, or of another length.")


def voters(
    votes: tuple[bytes, ...], which: bytes, verifiers: Mapping[int, Verifier], agreement: bytes
) -> dict[int, Message]:
    """The holders who voted for a sum, by address; anything else among the votes is refused."""
    found: dict[int, Message] = {}
    for data in votes:
        vote = Message.decode(data, largest=1024)
        vote.require(Kind.VOTE, agreement)
        if not is_holder(vote.header.sender) or vote.body != which:
            raise Refused(Code.VOTES, "a vote is for another sum.")
        vote.require_signature(verifiers)
        found[vote.header.sender] = vote
    return found


def contribution_bytes(
    settings: Settings, length: int, *, votes: bool = False, key_bits: int = 2048
) -> int:
    """The exact size of a contribution, known beforehand."""
    size, envelope = settings.pad(length, votes=votes), HEADER_BYTES + SIGNATURE_BYTES
    if settings.holders is None:
        layout = Slots(
            plaintext_bits=key_bits - 1, users=settings.users, length=size.degree + tag.DIGITS
        )
        key = 8 + layout.blocks * key_bits // 4
    else:
        shares = sharing(settings, size.degree)
        key = sum(8 + envelope + 1 + shares.share_bytes(j) for j in range(1, shares.holders + 1))
    return envelope + 4 + key + size.bytes(length)


def largest_contribution(settings: Settings, public: PublicKey | None) -> int:
    """More bytes than any contribution has: a shorter vector may take a little more than its
    share.
    """
    padded = settings.pad(settings.dimension).bytes(settings.dimension)
    if public is not None:
        key = slots(settings, public, max(CAPS)).blocks * public.ciphertext_bytes
    else:
        shares = sharing(settings, max(CAPS))
        key = sum(shares.share_bytes(j) + 256 for j in range(1, shares.holders + 1))
    return int(65_536 + key + padded + padded // 4)
