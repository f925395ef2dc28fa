"""A key holder: sums the shares of one admissible set of users per round, and answers once.

With its answer it stores the new labels and a fresh key pair, in one write. The old private key is
erased, so that an attacker who seizes the machine later cannot open a past round.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import ProtocolError
from blindsight.federated.sums import field
from blindsight.federated.sums.enrolment import Enrolment, Role
from blindsight.federated.sums.labels import Labels, admissible, refines, split, unopened
from blindsight.federated.sums.messages import (
    AGGREGATOR,
    Code,
    Collect,
    Contribution,
    Header,
    HolderKey,
    Kind,
    Message,
    Outgoing,
    Part,
    Refused,
    TagHead,
    holder,
    labels_digest,
    share_bytes,
    sum_id,
    unpack_members,
)
from blindsight.federated.sums.party import Party
from blindsight.federated.sums.sealing import HybridKey
from blindsight.federated.sums.user import SHARE_LABEL, share_binding
from blindsight.federated.sums.wire import Writer, seal, unseal

__all__ = ["KeyHolder"]

Elements = NDArray[np.uint64]


class KeyHolder(Party):
    """Holder j: answers each round's COLLECT with its part of the summed key."""

    role = Role.HOLDER

    def __init__(self, enrolment: Enrolment) -> None:
        super().__init__(enrolment)
        self.index = self.number - holder(0)
        self._private = enrolment.keys.private
        self._sequence = 0
        self._round = self._parent_round = 0
        self._parent = bytes(32)
        self._answered, self._answer = bytes(32), b""
        self._now, self._ever = (unopened(self.settings.users) for _ in range(2))
        settings = self.settings
        share = share_bytes(settings, settings.dimension)[self.index - 1]
        each = 32 + 32 * settings.n_holders + 64 + share
        self.largest_message = 65_536 + 5 * settings.users + each * settings.largest_round

    def __repr__(self) -> str:
        return f"KeyHolder({self.index} of {self.settings.n_holders}, last round {self._round})"

    def _at(self) -> int:
        return self._round

    def _handle(self, message: Message) -> list[Outgoing]:
        header, settings = message.header, self.settings
        if header.kind is not Kind.COLLECT or header.sender != AGGREGATOR:
            raise Refused(Code.TURN, "only the aggregator asks for sums.")
        if not 1 <= header.length <= settings.dimension:
            raise Refused(Code.AGREEMENT, f"vectors have 1 to {settings.dimension} weights.")
        body = Collect.decode(message.body, settings, header.length, self.index)
        sum_label = sum_id(header.context, body.members)
        if sum_label == self._answered:
            return [Outgoing(AGGREGATOR, self._answer)]
        if header.round <= self._round:
            raise Refused(Code.ROUND, f"round {self._round} was answered: one set a round.")
        users = unpack_members(body.members, settings.users)
        self._require_admissible(header, body, users)
        shares, unread = self._summed(header, body, users)
        if len(unread) == len(users) and self._answer:
            # The round was opened with an erased key; our last answer has the new one.
            return [Outgoing(AGGREGATOR, self._answer)]
        return [self._answer_with(header, body, users, sum_label, shares, unread)]

    def _require_admissible(self, header: Header, body: Collect, users: tuple[int, ...]) -> None:
        settings = self.settings
        if not settings.fewest <= len(users) <= settings.largest_round:
            raise Refused(
                Code.SET,
                f"a set has {settings.fewest} to {settings.largest_round} users, got {len(users)}.",
            )
        if header.parent_round < self._parent_round or header.parent_round >= header.round:
            raise Refused(Code.CHAIN, "the round of the last accepted sum never shrinks.")
        if header.parent_round == self._parent_round and header.parent != self._parent:
            raise Refused(Code.CHAIN, "another sum was accepted in that round.")
        if labels_digest(body.now, body.ever) != header.labels:
            raise Refused(Code.LABELS, "the labels are not those that the round is bound to.")
        own = self._now if header.parent_round == self._parent_round else unopened(settings.users)
        for received, remembered, floor in (
            (body.now, own, settings.floor_now),
            (body.ever, self._ever, settings.floor_ever),
        ):
            if not floor:
                continue
            if not refines(received, remembered):
                raise Refused(Code.LABELS, "the labels leave out sums that were opened.")
            if not admissible(received, users, floor):
                raise Refused(
                    Code.SET, f"the set would expose a combination of fewer than {floor} users."
                )

    def _summed(
        self, header: Header, body: Collect, users: tuple[int, ...]
    ) -> tuple[Elements, tuple[int, ...]]:
        """Return the sum of the shares, and the users whose shares do not open (they count 0)."""
        layout = self.settings.sharing(header.length)
        total, unread = np.zeros(layout.elements, dtype=np.uint64), []
        for user, (ephemeral, digests, signature, sealed) in zip(users, body.entries, strict=True):
            signed = Contribution.signed(header.context, user, ephemeral, digests)
            own = digests[32 * (self.index - 1) : 32 * self.index]
            if not self.verifiers[user].verify(signed, signature):
                raise Refused(Code.SIGNATURE, f"user {user} did not sign its shares.")
            if hashlib.sha256(sealed).digest() != own:
                raise Refused(Code.SHARES, f"the share of user {user} is not the one it signed.")
            values = self._opened(header.context, user, ephemeral, sealed, layout)
            if values is None:
                unread.append(user)
            else:
                field.fold_sum(total, values)
        return total, tuple(unread)

    def _opened(
        self, context: bytes, user: int, ephemeral: bytes, sealed: bytes, layout: field.KeySharing
    ) -> Elements | None:
        if self._private is None:
            raise ProtocolError("this holder's key is gone.")
        bound = share_binding(context, user, self.index)
        try:
            plain = self._private.open(ephemeral, sealed, SHARE_LABEL, bound)
        except ProtocolError:
            return None
        return layout.read(self.index, plain)

    def _answer_with(
        self,
        header: Header,
        body: Collect,
        users: tuple[int, ...],
        sum_label: bytes,
        shares: Elements,
        unread: tuple[int, ...],
    ) -> Outgoing:
        private, sequence = HybridKey(), self._sequence + 1
        key = HolderKey.make(self.agreement, self.index, sequence, private.public, self.identity)
        others = hashlib.sha256(shares[:-1].astype("<u8").tobytes()).digest()
        head = TagHead.make(sum_label, self.index, int(shares[-1]), others, self.identity)
        part = Part(head, shares[:-1], unread, key)
        answer = self._send(AGGREGATOR, Kind.PART, part.encode(), header)
        self._private, self._sequence = private, sequence
        self._round, self._answered, self._answer = header.round, sum_label, answer.data
        self._parent, self._parent_round = header.parent, header.parent_round
        self._now = split(body.now, users) if self.settings.floor_now else self._now
        self._ever = split(body.ever, users) if self.settings.floor_ever else self._ever
        return answer

    def dump(self) -> bytes:
        """Return the key of the next round, the labels and the last answer, sealed; secret."""
        keys = self.enrolment.keys.without_private()
        writer = Writer().field(Enrolment(keys, self.enrolment.roster).dump())
        writer.field(b"" if self._private is None else self._private.dump())
        for number in (self._sequence, self._round, self._parent_round):
            writer.number("Q", number)
        writer.raw(self._parent).raw(self._answered).field(self._answer)
        for labels in (self._now, self._ever):
            writer.field(labels.astype("<u2").tobytes())
        return seal(b"HOS3", bytes(writer))

    @classmethod
    def load(cls, data: bytes) -> KeyHolder:
        """Continue from the state that `dump` returned."""
        reader = unseal(b"HOS3", data)
        role = cls(Enrolment.load(reader.field()))
        private = reader.field()
        role._private = HybridKey(private) if private else None
        role._sequence, role._round = reader.number("Q"), reader.number("Q")
        role._parent_round, role._parent = reader.number("Q"), reader.raw(32)
        role._answered, role._answer = reader.raw(32), reader.field()
        role._now, role._ever = (_labels(reader.field(), role.settings.users) for _ in range(2))
        reader.end()
        return role


def _labels(data: bytes, users: int) -> Labels:
    if len(data) != 2 * users:
        raise ProtocolError(f"malformed: {users} labels were expected.")
    return np.frombuffer(data, dtype="<u2").astype(np.uint16)
