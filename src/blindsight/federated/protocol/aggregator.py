"""The aggregator: opens rounds, adds padded vectors, has the set confirmed, and asks for the sum of the keys.

It can read no vector and no key. What it learns is the sum of the keys, and with it the sum of the vectors, which it
shows to the users, who check it. Memory: one sum, and the contributions of groups that are not complete yet.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData, ProtocolError
from blindsight.federated.enrolment import AggregatorEnrolment
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
    Refusal,
    Refused,
    holder,
    is_holder,
)
from blindsight.federated.opened import Opened
from blindsight.federated.pad import PadSum, bits
from blindsight.federated.protocol import rules
from blindsight.federated.protocol.bodies import (
    Collect,
    Contribution,
    KeySum,
    Result,
    ShareSum,
    SumRequest,
    members_of,
    read_list,
    sum_id,
    to_members,
    write_list,
)
from blindsight.federated.role import Role
from blindsight.federated.wire import Reader, Writer, seal, unseal

__all__ = ["Aggregator"]

Phase = Literal["idle", "open", "closed", "done"]
_PHASES: tuple[Phase, ...] = ("idle", "open", "closed", "done")


class Aggregator(Role):
    """Aggregator A of Algorithm 1, under a pad.

    `open_round`, `receive` contributions, `close`, `receive` what comes back, read `result`, send `results`. Users who
    drop out are missing, and with them their groups: any N_min others finish the round.
    """

    number = AGGREGATOR

    def __init__(self, enrolment: AggregatorEnrolment) -> None:
        super().__init__()
        self.enrolment = enrolment
        self.settings, self.agreement, self.identity = enrolment.settings, enrolment.agreement, enrolment.identity
        self.public = enrolment.public
        self.largest_message = rules.largest_contribution(self.settings, self.public)
        self._groups = self.settings.groups()
        self._group = {user: i for i, group in enumerate(self._groups) for user in group}
        self._parent = bytes(32)
        self._certificate: tuple[bytes, ...] = ()  # the votes that opened the parent
        self._ended: list[tuple[int, bytes]] = []  # rounds and their RESULT messages
        self._begin(
            Header(kind=Kind.OPEN, agreement=self.agreement, round=0, model=bytes(32), sender=AGGREGATOR, length=1)
        )
        self.phase: Phase = "idle"

    def __repr__(self) -> str:
        return f"Aggregator(round {self.round}, {self.phase}, {len(self.contributors)} users in)"

    def _begin(self, header: Header) -> None:
        self._header = header
        self._size = rules.round_pad(self.settings, header)
        self._total = PadSum(self._size, header.length)
        self._product: list[mpz] = []
        self._shares: dict[int, tuple[bytes, ...]] = {}  # by user, for holders 1, 2, ...
        self._proofs: dict[int, Proof] = {}
        self._pending: dict[int, Contribution] = {}  # users whose groups are incomplete
        self._members = b""
        self._confirmed: dict[int, bytes] = {}
        self._votes: dict[int, bytes] = {}
        self._parts: dict[int, bytes] = {}
        self._doubts: set[int] = set()
        self._opened_by: tuple[bytes, ...] = ()
        self.result: Opened | None = None
        self.spoilt = False

    @property
    def round(self) -> int:
        """The current round's number; 0 before the first."""
        return self._header.round

    @property
    def model(self) -> bytes:
        """The current round's model hash."""
        return self._header.model

    @property
    def purpose(self) -> Purpose:
        """What the current round adds up."""
        return self._header.purpose

    @property
    def contributors(self) -> tuple[int, ...]:
        """Users whose contribution is in."""
        return tuple(sorted(self._proofs))

    @property
    def enough(self) -> bool:
        """Whether the round can be closed."""
        return len(self.settings.whole_groups(set(self._proofs))) >= self.settings.least_users

    def open_round(
        self, number: int, model: bytes, *, length: int | None = None, purpose: Purpose = Purpose.VALUES
    ) -> list[Outgoing]:
        """Start a round for the model with this 32-byte hash; the same message to every user."""
        if checks.whole("number", number) <= self.round:
            raise InvalidData(f"rounds must go up: {number} is not after {self.round}.")
        if len(model) != 32:
            raise InvalidData(f"a model hash must have 32 bytes, got {len(model)}.")
        self._begin(
            replace(
                self._header,
                round=number,
                model=bytes(model),
                parent=self._parent,
                length=self.settings.dimension if length is None else checks.whole("length", length),
                purpose=purpose,
            )
        )
        self.phase = "open"
        return self.reopen()

    def reopen(self) -> list[Outgoing]:
        """The opening again, for users who are not in: after a restart, or when one was lost."""
        if self.phase != "open":
            raise ProtocolError("there is no open round.")
        data = self._send(0, Kind.OPEN, b"", self._header).data
        return [Outgoing(user, data) for user in self._group if user not in self._proofs]

    def _handle(self, message: Message) -> list[Outgoing]:
        header = message.header
        if header.agreement != self.agreement:
            raise Refused(Code.AGREEMENT, "the message is bound to another agreement.")
        taking = {
            Kind.CONTRIBUTION: self._take_contribution,
            Kind.CONFIRM: self._take_confirmation,
            Kind.SUM: self._take_sum,
            Kind.VOTE: self._take_vote,
            Kind.SHARE_SUM: self._take_part,
        }.get(header.kind)
        if taking is None:
            raise Refused(Code.TURN, f"nobody asked for {header.kind.name}.")
        message.require_context(self._header)
        message.require_signature(self.enrolment.verifiers)
        return taking(message)

    def _take_contribution(self, message: Message) -> list[Outgoing]:
        user = message.header.sender
        if self.phase != "open":
            raise Refused(Code.TURN, "too late: the round is closed.")
        if user not in self._group:
            raise Refused(Code.COHORT, "only users contribute.")
        if user in self._proofs:
            raise Refused(Code.ROUND, f"user {user} has contributed to round {self.round} already.")
        body = Contribution.decode(message.body, most=max(1, (self.settings.holders or (0, 0))[1]))
        self._require_key(body)
        group = self._groups[self._group[user]]
        waiting = {u: self._pending[u] for u in group if u in self._pending}
        if len(waiting) + 1 < len(group):
            self._total.check(body.padded)
            self._pending[user] = body
        else:
            self._total.add(body.padded)
            for other, kept in waiting.items():
                self._total.add(kept.padded)
                self._add_key(other, kept)
                del self._pending[other]
            self._add_key(user, body)
        self._proofs[user] = Proof.of(message)
        return []

    def _require_key(self, body: Contribution) -> None:
        """A key of the right form; what is in it nobody here can see."""
        if self.public is not None:
            wanted = rules.slots(self.settings, self.public, self._size.degree).blocks * self.public.ciphertext_bytes
            if len(body.keys) != 1 or len(body.keys[0]) != wanted:
                raise ProtocolError(f"malformed: a key takes {wanted} bytes of ciphertexts here.")
            self.public.from_bytes(body.keys[0])
            return
        layout = rules.sharing(self.settings, self._size.degree)
        if len(body.keys) != layout.holders:
            raise ProtocolError(f"malformed: a key takes {layout.holders} shares here.")
        for j, data in enumerate(body.keys, start=1):
            part = Message.decode(data, largest=1024 + layout.share_bytes(j))
            part.require(Kind.SHARE, self.agreement)
            part.require_context(self._header)
            part.require_signature(self.enrolment.verifiers)
            if part.body[:1] != bytes([j]) or len(part.body) != 1 + layout.share_bytes(j):
                raise ProtocolError("malformed: a share for another holder, or of another length.")

    def _add_key(self, user: int, body: Contribution) -> None:
        if self.public is None:
            self._shares[user] = body.keys
            return
        ciphertexts, modulus = self.public.from_bytes(body.keys[0]), self.public.modulus
        if self._product:
            ciphertexts = [a * b % modulus for a, b in zip(self._product, ciphertexts, strict=True)]
        self._product = ciphertexts

    def close(self) -> list[Outgoing]:
        """End the round and ask for what is missing to its sum; asked again, it repeats what is still unanswered."""
        if self.phase == "open":
            users = self.settings.whole_groups(set(self._proofs))
            if len(users) < self.settings.least_users:
                raise Refused(
                    Code.FEW,
                    f"{self.settings.least_users} users in whole groups of {self.settings.group} are needed, "
                    f"{len(users)} of {len(self._proofs)} are. Wait for more users.",
                )
            self._members = to_members(users, self.settings.users)
            self._pending.clear()
            self.phase = "closed"
        if self.phase != "closed":
            raise ProtocolError("there is no open round to close.")
        return self._ask_keygen() if self.settings.holders is None else self._ask_holders()

    @property
    def _which(self) -> bytes:
        return sum_id(self._header.context, self._members)

    def _ask_keygen(self) -> list[Outgoing]:
        if len(self._confirmed) < self.settings.confirmations:
            data = self._send(0, Kind.CONFIRM_REQUEST, self._members, self._header).data
            return [Outgoing(user, data) for user in self._group if user not in self._confirmed]
        users = members_of(self._members, self.settings.users)
        body = SumRequest(
            self._members,
            tuple(self._proofs[user] for user in users),
            tuple(sorted(self._confirmed.items()))[: self.settings.confirmations],
            b"" if self.public is None else self.public.to_bytes(self._product),
        )
        return [self._send(KEYGEN, Kind.SUM_REQUEST, body.encode(), self._header)]

    def _ask_holders(self) -> list[Outgoing]:
        _, total = self.settings.holders or (0, 0)
        addresses = [holder(j) for j in range(1, total + 1)]
        enough = len(self._votes) >= self.settings.votes
        asked = []
        for j, address in enumerate(addresses):
            if address in self._parts:
                continue
            if address not in self._votes:
                users = members_of(self._members, self.settings.users)
                shares = tuple(self._shares[user][j] for user in users)
                body = Collect(self._members, shares, self._certificate).encode()
                asked.append(self._send(address, Kind.COLLECT, body, self._header))
            elif enough:
                asked.append(self._votes_for(address))
        return asked

    def _votes_for(self, address: int) -> Outgoing:
        body = bytes(write_list(Writer(), tuple(self._votes.values())))
        return self._send(address, Kind.VOTES, body, self._header)

    def _take_confirmation(self, message: Message) -> list[Outgoing]:
        if self.phase != "closed" or message.header.sender not in self._group or message.body != self._which:
            raise Refused(Code.CONFIRM, "no such set was put to the users.")
        before = len(self._confirmed)
        self._confirmed[message.header.sender] = message.signature
        return self._ask_keygen() if before < self.settings.confirmations <= len(self._confirmed) else []

    def _take_vote(self, message: Message) -> list[Outgoing]:
        if self.phase == "done":
            return []
        if self.phase != "closed" or not is_holder(message.header.sender) or message.body != self._which:
            raise Refused(Code.VOTES, "no such set was put to the holders.")
        before = len(self._votes)
        self._votes[message.header.sender] = message.encode()
        if len(self._votes) < self.settings.votes:
            return []
        new = [message.header.sender] if before >= self.settings.votes else list(self._votes)
        return [self._votes_for(address) for address in new]

    def _take_sum(self, message: Message) -> list[Outgoing]:
        if self.phase not in ("closed", "done") or message.header.sender != KEYGEN or self.public is None:
            raise Refused(Code.TURN, "no sum was asked for.")
        if self.phase == "done":
            return []  # asked for twice, answered twice
        layout = rules.slots(self.settings, self.public, self._size.degree)
        found = KeySum.decode(message.body, length=layout.length, width=layout.slot_bits)
        if found.members != self._members:
            raise Refused(Code.SUM, "the key generator opened the sum of other users.")
        self._finish(found.sums, (message.encode(),))
        return []

    def _take_part(self, message: Message) -> list[Outgoing]:
        if self.phase == "done":
            return []
        if self.phase != "closed" or not is_holder(message.header.sender):
            raise Refused(Code.TURN, "no sum was asked for.")
        if self._part(message.body).which != self._which:
            raise Refused(Code.SUM, "the key holder opened the sum of other users.")
        self._parts[message.header.sender] = message.encode()
        layout = rules.sharing(self.settings, self._size.degree)
        parts = {sender: Message.decode(data, largest=len(data)).body for sender, data in self._parts.items()}
        agreed = layout.combine({sender - holder(0): self._part(body).sums for sender, body in parts.items()})
        if agreed is not None:
            for liar in agreed[1]:
                self._note(f"SHARES: key holder {liar} does not agree with the others.")
            self._finish(agreed[0], tuple(self._parts.values()))
        elif len(self._parts) == layout.holders:
            self._note("SHARES: the key holders do not agree.")
            self._spoil()
        return []

    def _part(self, body: bytes) -> ShareSum:
        layout = rules.sharing(self.settings, self._size.degree)
        return ShareSum.decode(
            body, length=layout.length, width=layout.width, prime=layout.prime, users=self.settings.users
        )

    def _finish(self, sums: NDArray[np.int64], proofs: tuple[bytes, ...]) -> None:
        users = members_of(self._members, self.settings.users)
        self._opened_by = proofs
        try:
            secret, _ = rules.from_key(sums, len(users))
            raw = self._total.open(self._header.context, secret)
            values = rules.raw_sum(self.settings, self._header, raw, len(users))
        except Refused as error:
            self._note(str(error))
            self._spoil()
            return
        self.result = Opened(users, values)
        self._end(Result(self._members, proofs, bits.pack(raw.astype(np.uint64), self._size.slot_bits)))

    def _spoil(self) -> None:
        """Opened, and no sum in it: somebody sent nonsense. Users see that it was opened, and the chain goes on."""
        self.result, self.spoilt = None, True
        proofs = tuple(self._votes.values()) if self.settings.holders else self._opened_by
        if self._ended and self._ended[-1][0] == self.round:
            self._ended.pop()
        self._end(Result(self._members, proofs, b""))

    def _end(self, body: Result) -> None:
        self._ended.append((self.round, self._send(0, Kind.RESULT, body.encode(), self._header).data))
        self._parent, self._certificate, self.phase = self._which, tuple(self._votes.values()), "done"
        self._total, self._product, self._shares = PadSum(self._size, 1), [], {}

    def results(self, *users: int, after: int | None = None) -> list[Outgoing]:
        """The last result for every user, or all results after a round for those named."""
        since = self._ended[-1:] if after is None else [entry for entry in self._ended if entry[0] > after]
        return [Outgoing(user, data) for user in (users or self._group) for _, data in since]

    def _refused_by(self, message: Message) -> list[Outgoing]:
        """A user who is behind gets the results it lacks; sums that too many users find wrong are given up."""
        super()._refused_by(message)
        user, refusal = message.header.sender, Refusal.decode(message.body)
        if user not in self._group or message.header.agreement != self.agreement:
            return []
        message.require_signature(self.enrolment.verifiers)
        if refusal.code is Code.CHAIN and any(number > refusal.at for number, _ in self._ended):
            again = [Outgoing(user, self._send(0, Kind.OPEN, b"", self._header).data)] if self.phase == "open" else []
            return self.results(user, after=refusal.at) + again
        if refusal.code is Code.SUM and self.phase == "done" and message.header.context == self._header.context:
            self._doubts.add(user)
            if len(self._doubts) > self.settings.colluders and not self.spoilt:
                self._spoil()
                return self.results()
        return []

    def dump(self) -> bytes:
        """Everything, sealed: after a kill the round goes on with the contributions that were saved."""
        writer = Writer().field(self.enrolment.dump()).raw(self._header.encode(0) + bytes(64)).raw(self._parent)
        writer.number("B", _PHASES.index(self.phase)).number("B", self.spoilt).field(self._members)
        write_list(writer, self._certificate)
        write_list(writer, [number.to_bytes(8, "little") + data for number, data in self._ended])
        writer.field(b"" if self.result is None else self.result.encode())
        write_list(writer, [proof.encode() for proof in self._proofs.values()])
        write_list(writer, [user.to_bytes(4, "little") + body.encode() for user, body in self._pending.items()])
        for kept in (self._confirmed, self._votes, self._parts):
            write_list(writer, [number.to_bytes(4, "little") + data for number, data in kept.items()])
        write_list(writer, [_flat(user, parts) for user, parts in self._shares.items()])
        writer.field(b"" if self.public is None or not self._product else self.public.to_bytes(self._product))
        return seal(b"AGST", bytes(writer.field(self._total.write() if self.phase in ("open", "closed") else b"")))

    @classmethod
    def load(cls, data: bytes) -> Aggregator:
        """Go on where `dump` was."""
        reader = unseal(b"AGST", data)
        role = cls(AggregatorEnrolment.load(reader.field()))
        header = Message.decode(reader.raw(196), largest=196).header
        role._begin(header)
        role._parent = reader.raw(32)
        role.phase, role.spoilt, role._members = _PHASES[reader.number("B")], bool(reader.number("B")), reader.field()
        most = 1 << 32
        role._certificate = read_list(reader, most)
        role._ended = [(int.from_bytes(item[:8], "little"), item[8:]) for item in read_list(reader, most)]
        opened = reader.field()
        role.result = Opened.decode(opened, users=role.settings.users) if opened else None
        proofs = [Proof.read(Reader(item)) for item in read_list(reader, most)]
        role._proofs = {proof.user: proof for proof in proofs}
        holders = max(1, (role.settings.holders or (0, 0))[1])
        role._pending = {
            int.from_bytes(item[:4], "little"): Contribution.decode(item[4:], most=holders)
            for item in read_list(reader, most)
        }
        for kept in (role._confirmed, role._votes, role._parts):
            kept.update({int.from_bytes(item[:4], "little"): item[4:] for item in read_list(reader, most)})
        for item in read_list(reader, most):
            part = Reader(item)
            user = part.number("I")
            role._shares[user] = read_list(part, holders)
        product, total = reader.field(), reader.field()
        reader.end()
        role._product = role.public.from_bytes(product) if role.public is not None and product else []
        if total:
            role._total.read(total)
        return role


def _flat(user: int, parts: tuple[bytes, ...]) -> bytes:
    return bytes(write_list(Writer().number("I", user), parts))
