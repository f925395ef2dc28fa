"""The key generator: opens one sum a round, and only a sum of enough signed contributions.

In `block` mode a request must carry, for at least N_min different enrolled users, the signature over their
contribution, bound to this key, round and model. That alone would not stop an aggregator from collecting N signatures
and sending one user's ciphertexts as the "sum". The tags do: each block of user n carries a secret 56-bit number that
only n and the key generator know. All an aggregator can do with ciphertexts is to form Π c_n^(a_n) and to add a
plaintext of its own; the tags' slot must then hold exactly the sum of the claimed users' tags. With any subset,
repetition or single user in place of the claimed users it has to guess at least one uniform 56-bit number. What
is left to a dishonest aggregator is to guess all the weights of one user's block and to have the guess confirmed or
the block refused, once; key holders who multiply the ciphertexts themselves
(`blindsight.federated.protocol.holders`) close that too. A wrong block is withheld, and the round is spent either way.
"""

from __future__ import annotations

import hashlib

import numpy as np

from blindsight.core.errors import ProtocolError
from blindsight.federated.messages import AGGREGATOR, KEYGEN, Header, Kind, Message, Outgoing, Proof, Sum, SumRequest
from blindsight.federated.protocol import block, paper
from blindsight.federated.protocol.enrolment import KeygenEnrolment
from blindsight.federated.protocol.role import Role
from blindsight.federated.wire import Writer, seal, unseal

__all__ = ["KeyGenerator", "checked_contributors"]


def checked_contributors(enrolment: KeygenEnrolment, header: Header, proofs: tuple[Proof, ...]) -> tuple[int, ...]:
    """The users behind the proofs, all different, all enrolled, all signed for this round, at least N_min."""
    users = tuple(proof.user for proof in proofs)
    if len(set(users)) != len(users):
        raise ProtocolError("a contributor is named twice.")
    for proof in proofs:
        if not 1 <= proof.user <= enrolment.settings.users:
            raise ProtocolError("unknown contributor: nobody of that number is enrolled.")
        bound = Header(
            kind=Kind.CONTRIBUTION,
            key_id=header.key_id,
            round=header.round,
            model=header.model,
            sender=proof.user,
        )
        if not enrolment.verifiers[proof.user].verify(bound.signed(proof.length, proof.digest), proof.signature):
            raise ProtocolError(f"wrong signature: user {proof.user} did not contribute this to round {header.round}.")
    least = enrolment.settings.least_users
    if len(users) < least:
        raise ProtocolError(f"too few contributors: at least {least} are needed, got {len(users)}.")
    return users


class KeyGenerator(Role):
    """Key generator G of Algorithm 1, after `enrol` did lines 1 and 2. Never shows its key."""

    number = KEYGEN

    def __init__(self, enrolment: KeygenEnrolment, *, workers: int = 2) -> None:
        super().__init__()
        if enrolment.private is None:
            raise ProtocolError("this enrolment has no private key: its key is shared among holders.")
        self.enrolment, self.workers = enrolment, workers
        self._private = enrolment.private
        self.settings, self.public, self.identity = enrolment.settings, enrolment.public, enrolment.identity
        self._last_round = 0
        self._last_request = b""
        self._answer = b""

    def __repr__(self) -> str:
        return f"KeyGenerator({self.public.bits} bits, last round {self._last_round})"

    def _handle(self, message: Message) -> list[Outgoing]:
        message.require(kind=Kind.SUM_REQUEST, key_id=self.public.key_id, round=None, model=None)
        if message.header.sender != AGGREGATOR:
            raise ProtocolError("out of turn: only the aggregator asks for sums.")
        message.require_signature(self.enrolment.verifiers.get(AGGREGATOR))
        body = SumRequest.decode(
            message.body,
            width=self.public.ciphertext_bytes,
            size=self.settings.places(self.public),
            users=self.settings.users,
        )
        if self.settings.mode == "paper":
            result = self._open_as_told(body)
        else:
            digest = hashlib.sha256(message.header.encode(0) + message.body).digest()
            if digest == self._last_request and self._answer:
                return [Outgoing(AGGREGATOR, self._answer)]  # the very same question: the very same answer
            if message.header.round <= self._last_round:
                raise ProtocolError(f"round {message.header.round} was opened already: a round is opened once.")
            result = self._open_checked(message.header, body)
            self._last_round, self._last_request = message.header.round, digest
        answer = self._send(AGGREGATOR, Kind.SUM, result.encode(), message.header)
        if self.settings.mode == "block":
            self._answer = answer.data
        return [answer]

    def _open_checked(self, header: Header, body: SumRequest) -> Sum:
        users = checked_contributors(self.enrolment, header, body.proofs)
        # Blocks with fewer than t contributors are not even decrypted.
        enough = body.members.sum(axis=1) >= self.settings.least_per_coordinate
        everything = self.public.from_bytes(body.ciphertexts)
        plaintexts = self._private.decrypt_many(
            [c for c, keep in zip(everything, enough.tolist(), strict=True) if keep], workers=self.workers
        )
        context = block.round_context(header.round, header.model)
        return block.open_sum(self.enrolment, context, users, body.places[enough], body.members[enough], plaintexts)

    def _open_as_told(self, body: SumRequest) -> Sum:
        """Line 6 of Algorithm 1, where everybody follows the protocol: N >= 3 is all that is asked."""
        if body.users < 3:
            raise ProtocolError(f"too few contributors: N >= 3 is needed, got {body.users}.")
        if len(body.places) != self.settings.dimension or (np.diff(body.places.astype(np.int64)) != 1).any():
            raise ProtocolError("malformed: the encrypted sum must have every coordinate, in order.")
        plaintexts = self._private.decrypt_many(self.public.from_bytes(body.ciphertexts), workers=self.workers)
        return paper.open_sum(self.enrolment, tuple(range(1, body.users + 1)), plaintexts)

    def dump(self) -> bytes:
        """Key, secrets and the rounds opened, sealed; secret above all others."""
        writer = Writer().field(self.enrolment.dump()).number("Q", self._last_round)
        return seal(b"KGST", bytes(writer.field(self._last_request).field(self._answer)))

    @classmethod
    def load(cls, data: bytes, *, workers: int = 2) -> KeyGenerator:
        """Go on where `dump` was: a round that was opened stays opened."""
        reader = unseal(b"KGST", data)
        role = cls(KeygenEnrolment.load(reader.field()), workers=workers)
        role._last_round, role._last_request, role._answer = reader.number("Q"), reader.field(), reader.field()
        reader.end()
        return role
