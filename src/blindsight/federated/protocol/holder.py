"""A key holder: sums the shares of one set of users per round, after enough holders voted for that
set.

It votes once per round; its summed shares leave only with so many votes for the same set that no
second set can have as many while fewer than `needed` holders cheat. Having voted for a sum it goes
on from that sum and no other, unless it is shown the votes that opened another: so there is one
chain of sums, and every round on it was opened once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import ProtocolError
from blindsight.federated.enrolment import HolderEnrolment
from blindsight.federated.messages import (
    AGGREGATOR,
    HEADER_BYTES,
    Code,
    Header,
    Kind,
    Message,
    Outgoing,
    Purpose,
    Refused,
    holder,
)
from blindsight.federated.pad.parameters import CAPS
from blindsight.federated.protocol import rules
from blindsight.federated.protocol.bodies import Collect, ShareSum, read_list, sum_id
from blindsight.federated.role import Role
from blindsight.federated.wire import Reader, Writer, seal, unseal

__all__ = ["KeyHolder"]


class KeyHolder(Role):
    """One of several: collects, votes, and answers with its part of the summed key."""

    def __init__(self, enrolment: HolderEnrolment) -> None:
        super().__init__()
        self.enrolment = enrolment
        self.number = holder(enrolment.index)
        self.settings, self.agreement, self.identity = (
            enrolment.settings,
            enrolment.agreement,
            enrolment.identity,
        )
        self._round = 0  # of the last vote
        self._voted = bytes(32)
        self._vote = self._members = b""
        self._sums: NDArray[np.int64] | None = None
        self._unread: tuple[int, ...] = ()
        self._header: Header | None = None
        share = rules.sharing(self.settings, max(CAPS)).share_bytes(enrolment.index)
        self.largest_message = 65_536 + (share + HEADER_BYTES + 128) * self.settings.users

    def __repr__(self) -> str:
        return (
            f"KeyHolder({self.enrolment.index} of {(self.settings.holders or (0, 0))[1]}, last "
            f"round {self._round})"
        )

    def _at(self) -> int:
        return self._round

    def _handle(self, message: Message) -> list[Outgoing]:
        kind = Kind.VOTES if message.header.kind is Kind.VOTES else Kind.COLLECT
        message.require(kind, self.agreement)
        if message.header.sender != AGGREGATOR:
            raise Refused(Code.TURN, "only the aggregator asks for sums.")
        message.require_signature(self.enrolment.verifiers)
        return self._answer(message) if kind is Kind.VOTES else self._collect(message)

    def _collect(self, message: Message) -> list[Outgoing]:
        header, total = message.header, (self.settings.holders or (0, 0))[1]
        body = Collect.decode(message.body, users=self.settings.users, holders=total)
        which = sum_id(header.context, body.members)
        if header.round == self._round and which == self._voted:
            return [Outgoing(AGGREGATOR, self._vote)]
        if header.round <= self._round:
            raise Refused(Code.ROUND, f"a vote was given in round {self._round}: one per round.")
        self._require_chain(header, body)
        users = rules.checked_members(self.settings, body.members)
        rules.require_voters(self.settings, header, body.members, self._voters(header, body))
        sums, unread = self._summed(header, body, users)
        vote = self._send(AGGREGATOR, Kind.VOTE, which, header)
        self._round, self._voted, self._vote, self._header = header.round, which, vote.data, header
        self._sums, self._unread, self._members = sums, unread, body.members
        return [vote]

    def _require_chain(self, header: Header, body: Collect) -> None:
        if header.parent == self._voted:
            return
        found = rules.voters(
            body.certificate, header.parent, self.enrolment.verifiers, self.agreement
        )
        if len([v for v in found.values() if v.header.round >= self._round]) < self.settings.votes:
            raise Refused(
                Code.CHAIN, "the round does not go on from the last sum that was voted for."
            )

    def _voters(self, header: Header, body: Collect) -> bytes:
        """The set of the parent where that was a sum of votes, by our own vote or by those of the
        others.
        """
        if header.parent == self._voted:
            about, members = ([self._header] if self._header is not None else []), self._members
        else:
            votes = (Message.decode(data, largest=1024) for data in body.certificate)
            about, members = [vote.header for vote in votes], body.before
        # Which sum it was is a digest of its round and its set: nobody has another pair for it.
        found = any(
            sum_id(h.context, members) == header.parent and h.purpose is Purpose.VOTES
            for h in about
        )
        return members if found else b""

    def _summed(
        self, header: Header, body: Collect, users: tuple[int, ...]
    ) -> tuple[NDArray[np.int64], tuple[int, ...]]:
        """Each user's share once, as that user signed it.

        What does not open counts as zero and is named.
        """
        layout = rules.sharing(self.settings, rules.round_pad(self.settings, header).degree)
        if len(body.shares) != len(users):
            raise Refused(Code.SHARES, "there must be one share for each user of the set.")
        total, unread = np.zeros(layout.length, dtype=np.int64), []
        for user, data in zip(users, body.shares, strict=True):
            part = Message.decode(data, largest=len(data))
            part.require(Kind.SHARE, self.agreement)
            part.require_context(header)
            if part.header.sender != user or part.body[:1] != bytes([self.enrolment.index]):
                raise Refused(
                    Code.SHARES,
                    "there must be one share for each user of the set, in order, for this holder.",
                )
            part.require_signature(self.enrolment.verifiers)
            bound = header.context + user.to_bytes(4, "little")
            try:
                total += layout.receive(
                    self.enrolment.index, self.enrolment.private, part.body[1:], bound
                )
                total -= layout.prime * (total >= layout.prime)  # reduced without a division
            except ProtocolError:
                unread.append(user)
        return total, tuple(unread)

    def _answer(self, message: Message) -> list[Outgoing]:
        if self._sums is None or self._header is None or message.header.round != self._round:
            raise Refused(Code.TURN, "no vote was given in this round.")
        message.require_context(self._header)
        reader = Reader(message.body)
        votes = read_list(reader, (self.settings.holders or (0, 0))[1])
        reader.end()
        found = rules.voters(votes, self._voted, self.enrolment.verifiers, self.agreement)
        if len(found) < self.settings.votes:
            raise Refused(
                Code.VOTES,
                f"{self.settings.votes} holders must vote for the set, {len(found)} did.",
            )
        layout = rules.sharing(self.settings, rules.round_pad(self.settings, self._header).degree)
        body = ShareSum(self._voted, self._sums, self._unread).encode(width=layout.width)
        return [self._send(AGGREGATOR, Kind.SHARE_SUM, body, self._header)]

    def dump(self) -> bytes:
        """Key, the last vote and what goes with it, sealed; secret."""
        writer = (
            Writer()
            .field(self.enrolment.dump())
            .number("Q", self._round)
            .raw(self._voted)
            .field(self._vote)
        )
        writer.field(b"" if self._header is None else self._header.encode(0) + bytes(64)).field(
            self._members
        )
        writer.field(b"" if self._sums is None else self._sums.astype("<i8").tobytes())
        writer.field(np.array(self._unread, dtype="<u4").tobytes())
        return seal(b"HOST", bytes(writer))

    @classmethod
    def load(cls, data: bytes) -> KeyHolder:
        """Go on where `dump` was: a vote that was given stays given."""
        reader = unseal(b"HOST", data)
        role = cls(HolderEnrolment.load(reader.field()))
        role._round, role._voted, role._vote = reader.number("Q"), reader.raw(32), reader.field()
        header, role._members, sums, unread = (reader.field() for _ in range(4))
        role._header = Message.decode(header, largest=1 << 20).header if header else None
        role._sums = np.frombuffer(sums, dtype="<i8").astype(np.int64) if sums else None
        role._unread = tuple(np.frombuffer(unread, dtype="<u4").tolist())
        reader.end()
        return role
