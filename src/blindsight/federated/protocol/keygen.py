"""The key generator: opens one summed key per round, of a set of users that enough users confirmed.

It sees one product of ciphertexts, never a vector and never one user's key. Before it decrypts: the
round goes on from the last sum it opened, the set is large enough and made of whole groups, each of
its users signed a contribution to this round, and so many users confirmed this set and no other
that no second set can have as many. After: the checks in the plaintexts hold for exactly these
users (`blindsight.federated.transport.slots`). A check that does not hold spends the round, and
nothing of it is told; the 64th ends the federation.
"""

from __future__ import annotations

import hashlib

from blindsight.federated.enrolment import KeygenEnrolment
from blindsight.federated.messages import (
    AGGREGATOR,
    KEYGEN,
    Code,
    Header,
    Kind,
    Message,
    Outgoing,
    Proof,
    Purpose,
    Refused,
)
from blindsight.federated.protocol import rules
from blindsight.federated.protocol.bodies import KeySum, SumRequest, sum_id
from blindsight.federated.role import Role
from blindsight.federated.wire import Writer, seal, unseal

__all__ = ["MOST_FORGERIES", "KeyGenerator"]

MOST_FORGERIES = (
    64  # each passes with at most 2^-45; a search for who sends nonsense takes log2(groups)
)


class KeyGenerator(Role):
    """Key generator G of Algorithm 1, after `enrol` did lines 1 and 2. Never shows its key."""

    number = KEYGEN

    def __init__(self, enrolment: KeygenEnrolment, *, workers: int = 2) -> None:
        super().__init__()
        self.enrolment, self.workers = enrolment, workers
        self.settings, self.agreement, self.identity = (
            enrolment.settings,
            enrolment.agreement,
            enrolment.identity,
        )
        self._last_round = self._forgeries = 0
        self._parent = bytes(32)
        self._voters = b""  # the set of the last sum, where that was one of votes
        self._last_request = b""
        self._answer = b""
        public = enrolment.private.public
        key = rules.slots(self.settings, public, 8192).blocks * public.ciphertext_bytes
        self.largest_message = 65_536 + key + 256 * self.settings.users

    def __repr__(self) -> str:
        return (
            f"KeyGenerator({self.enrolment.private.public.bits} bits, last round "
            f"{self._last_round})"
        )

    def _at(self) -> int:
        return self._last_round

    def _handle(self, message: Message) -> list[Outgoing]:
        message.require(Kind.SUM_REQUEST, self.agreement)
        header = message.header
        if header.sender != AGGREGATOR:
            raise Refused(Code.TURN, "only the aggregator asks for sums.")
        message.require_signature(self.enrolment.verifiers)
        digest = hashlib.sha256(header.encode(0) + message.body).digest()
        if digest == self._last_request and self._answer:
            return [
                Outgoing(AGGREGATOR, self._answer)
            ]  # the very same question: the very same answer
        if header.round <= self._last_round:
            raise Refused(
                Code.ROUND, f"round {header.round} was opened already: a round is opened once."
            )
        if self._forgeries >= MOST_FORGERIES:
            raise Refused(
                Code.TAG, f"{MOST_FORGERIES} forged sums were asked for: nothing more is opened."
            )
        if header.parent != self._parent:
            raise Refused(Code.CHAIN, "the round does not go on from the last sum that was opened.")
        body = SumRequest.decode(message.body, users=self.settings.users)
        users = rules.checked_members(self.settings, body.members)
        rules.require_voters(self.settings, header, body.members, self._voters)
        which = sum_id(header.context, body.members)
        self._require_proofs(header, body, users)
        self._require_confirmations(header, body, which)
        answer = self._send(AGGREGATOR, Kind.SUM, self._opened(header, body, users), header)
        self._last_round, self._parent = header.round, which
        self._voters = body.members if header.purpose is Purpose.VOTES else b""
        self._last_request, self._answer = digest, answer.data
        return [answer]

    def _require_proofs(self, header: Header, body: SumRequest, users: tuple[int, ...]) -> None:
        if tuple(proof.user for proof in body.proofs) != users:
            raise Refused(Code.PROOFS, "there must be one proof for each user of the set.")
        for proof in body.proofs:
            if not proof.holds(header, Kind.CONTRIBUTION, self.enrolment.verifiers):
                raise Refused(
                    Code.PROOFS,
                    f"user {proof.user} did not contribute this to round {header.round}.",
                )

    def _require_confirmations(self, header: Header, body: SumRequest, which: bytes) -> None:
        digest = hashlib.sha256(which).digest()
        confirmed = {
            user
            for user, signature in body.confirmed
            if 1 <= user <= self.settings.users
            and Proof(user, len(which), digest, signature).holds(
                header, Kind.CONFIRM, self.enrolment.verifiers
            )
        }
        if len(confirmed) < self.settings.confirmations:
            raise Refused(
                Code.CONFIRM,
                f"{self.settings.confirmations} users must confirm the set, {len(confirmed)} did.",
            )

    def _opened(self, header: Header, body: SumRequest, users: tuple[int, ...]) -> bytes:
        private = self.enrolment.private
        layout = rules.slots(
            self.settings, private.public, rules.round_pad(self.settings, header).degree
        )
        ciphertexts = private.public.from_bytes(body.ciphertexts)
        if len(ciphertexts) != layout.blocks:
            raise Refused(
                Code.SHARES,
                f"a key takes {layout.blocks} ciphertexts here, got {len(ciphertexts)}.",
            )
        sums = layout.unpack(
            private.decrypt_many(ciphertexts, workers=self.workers),
            shared=self.enrolment.shared_seed,
            owners=(self.enrolment.own_seeds[user] for user in users),
            context=header.context,
        )
        if sums is None:
            self._last_round, self._forgeries = header.round, self._forgeries + 1
            raise Refused(Code.TAG, "the sum is not that of the users named. The round is spent.")
        try:
            rules.from_key(sums, len(users))
        except Refused:
            self._last_round = header.round  # nothing of it is told, but it was looked into
            raise
        return KeySum(body.members, sums).encode(width=layout.slot_bits)

    def dump(self) -> bytes:
        """Key, secrets and the rounds opened, sealed; secret above all others."""
        writer = (
            Writer()
            .field(self.enrolment.dump())
            .number("Q", self._last_round)
            .number("B", self._forgeries)
        )
        writer.raw(self._parent).field(self._voters).field(self._last_request).field(self._answer)
        return seal(b"KGST", bytes(writer))

    @classmethod
    def load(cls, data: bytes, *, workers: int = 2) -> KeyGenerator:
        """Go on where `dump` was: a round that was opened stays opened."""
        reader = unseal(b"KGST", data)
        role = cls(KeygenEnrolment.load(reader.field()), workers=workers)
        role._last_round, role._forgeries, role._parent = (
            reader.number("Q"),
            reader.number("B"),
            reader.raw(32),
        )
        role._voters, role._last_request, role._answer = (reader.field() for _ in range(3))
        reader.end()
        return role
