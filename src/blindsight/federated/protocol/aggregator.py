"""The aggregator: opens rounds, adds padded vectors, has the set confirmed, and asks for the sum of
the keys.

It can read no vector and no key. What it learns is the sum of the keys, and with it the sum of the
vectors, which it shows to the users, who check it. Memory: one sum; what else is kept, and where,
is `kept`'s business.
"""

from __future__ import annotations

from collections.abc import Collection
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
from blindsight.federated.protocol import rules, saved
from blindsight.federated.protocol.bodies import (
    Collect,
    Contribution,
    KeySum,
    Result,
    ShareSum,
    SumRequest,
    members_of,
    sum_id,
    to_members,
    write_list,
)
from blindsight.federated.protocol.kept import InFiles, InMemory, Kept
from blindsight.federated.role import Role
from blindsight.federated.wire import Writer

__all__ = ["Aggregator"]

Phase = Literal["idle", "open", "closed", "done"]


class Aggregator(Role):
    """Aggregator A of Algorithm 1, under a pad.

    `open_round`, `receive` contributions, `close`, `receive` what comes back, read `result`, send
    `results`. Users who drop out are missing, and with them their groups: any N_min others finish
    the round.
    """

    number = AGGREGATOR

    def __init__(self, enrolment: AggregatorEnrolment, *, kept: Kept | None = None) -> None:
        super().__init__()
        self.enrolment = enrolment
        self.kept: Kept = InMemory() if kept is None else kept
        self.settings, self.agreement, self.identity = (
            enrolment.settings,
            enrolment.agreement,
            enrolment.identity,
        )
        self.public = enrolment.public
        self.largest_message = rules.largest_contribution(self.settings, self.public)
        self._groups = self.settings.groups()
        self._group = {user: i for i, group in enumerate(self._groups) for user in group}
        self._parent = bytes(32)
        self._certificate: tuple[bytes, ...] = ()  # the votes that opened the parent
        self._before = self._voters = (
            b""  # the parent's set, and the same where it was a sum of votes
        )
        self._doubts: set[int] = set()
        self._ended: list[tuple[int, int]] = []  # rounds, and where their RESULT messages are kept
        self._last = bytes(
            32
        )  # the context of the last of them, and that it gave no sum, should users find so
        self._no_sum = b""
        self.withdrawn = False
        self._begin(
            Header(
                kind=Kind.OPEN,
                agreement=self.agreement,
                round=0,
                model=bytes(32),
                sender=AGGREGATOR,
                length=1,
            )
        )
        self.phase: Phase = "idle"

    def _begin(self, header: Header) -> None:
        self._header = header
        self._size = rules.round_pad(self.settings, header)
        self._total = PadSum(self._size, header.length)
        self._product: list[mpz] = []
        self._proofs: dict[int, Proof] = {}
        self._pending: set[int] = set()  # users whose groups are incomplete
        self._members = b""
        self._confirmed: dict[int, bytes] = {}
        self._votes: dict[int, bytes] = {}
        self._parts: dict[int, bytes] = {}
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
        users = self.settings.whole_groups(set(self._proofs))
        return len(users) >= self.settings.least_users and set(self.voters) <= set(users)

    @property
    def voters(self) -> tuple[int, ...]:
        """Users who must be in this round's sum, because their votes were counted."""
        wanted = self._voters if self.purpose is Purpose.VALUES else b""
        return members_of(wanted, self.settings.users) if wanted else ()

    def open_round(
        self,
        number: int,
        model: bytes,
        *,
        length: int | None = None,
        purpose: Purpose = Purpose.VALUES,
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
                length=self.settings.dimension
                if length is None
                else checks.whole("length", length),
                purpose=purpose,
            )
        )
        self.kept.begin()
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
        rules.require_key(
            self.settings, self.public, self._header, body.keys, self.enrolment.verifiers
        )
        self._total.check(body.padded)
        self.kept.add(user, message.encode(), body)
        self._count_in(message, body)
        return []

    def _count_in(self, message: Message, body: Contribution) -> None:
        """Into the sum with it, or, while its group is not complete, among those that wait."""
        user = message.header.sender
        self._proofs[user] = Proof.of(message)
        self._pending.add(user)
        group = self._groups[self._group[user]]
        if self._pending.issuperset(group):
            for other in group:
                found = body if other == user else self.kept.get(other)
                self._total.add(found.padded)
                self._add_key(found)
                self.kept.summed(other, shares=self.public is None)
            self._pending.difference_update(group)

    def _add_key(self, body: Contribution) -> None:
        if self.public is None:
            return  # each holder is sent its shares when the round is closed
        ciphertexts, modulus = self.public.from_bytes(body.keys[0]), self.public.modulus
        if self._product:
            ciphertexts = [a * b % modulus for a, b in zip(self._product, ciphertexts, strict=True)]
        self._product = ciphertexts

    @property
    def complete(self) -> list[int]:
        """The groups all of whose users contributed, by their place in `settings.groups()`."""
        return [
            i for i, group in enumerate(self._groups) if all(user in self._proofs for user in group)
        ]

    def close(self) -> list[Outgoing]:
        """End the round and ask for what is missing to its sum; asked again, it repeats what is
        still unanswered.
        """
        if self.phase == "open":
            self.seal()
        if self.phase != "closed":
            raise ProtocolError("there is no open round to close.")
        return [message for address in self.awaited() for message in self.ask(address)]

    def seal(self, groups: Collection[int] | None = None) -> None:
        """Nobody else is in the round's sum.

        `groups`: these and no others; by default all that are complete.
        """
        if self.phase != "open":
            raise ProtocolError("there is no open round to close.")
        chosen = [i for i in self.complete if groups is None or i in groups]
        users = tuple(user for i in chosen for user in self._groups[i])
        if len(users) < self.settings.least_users:
            raise Refused(
                Code.FEW,
                f"{self.settings.least_users} users in whole groups of {self.settings.group} are "
                "needed, "
                f"{len(users)} of {len(self._proofs)} are. Wait for more users.",
            )
        members = to_members(users, self.settings.users)
        rules.require_voters(self.settings, self._header, members, self._voters)
        self._members = members
        if len(chosen) < len(self.complete):
            self._sum_again(users)
        self.phase = "closed"

    def _sum_again(self, users: tuple[int, ...]) -> None:
        """The sum of fewer than were added up."""
        if not self.kept.on_disk:
            raise ProtocolError("contributions that were added up are kept in files only.")
        self._total, self._product = PadSum(self._size, self._header.length), []
        for user in users:
            body = self.kept.get(user)
            self._total.add(body.padded)
            self._add_key(body)

    @property
    def groups_in(self) -> list[int]:
        """The groups of the set that was closed."""
        users = set(members_of(self._members, self.settings.users)) if self._members else set()
        return [i for i, group in enumerate(self._groups) if users.issuperset(group)]

    def awaited(self) -> list[int]:
        """Whose answer the closed round needs."""
        if self.settings.holders is None:
            confirmed = len(self._confirmed) >= self.settings.confirmations
            return (
                [KEYGEN]
                if confirmed
                else [user for user in self._group if user not in self._confirmed]
            )
        asked = [
            holder(j)
            for j in range(1, self.settings.holders[1] + 1)
            if holder(j) not in self._parts
        ]
        enough = len(self._votes) >= self.settings.votes
        return [address for address in asked if enough or address not in self._votes]

    def ask(self, address: int) -> list[Outgoing]:
        """The question to one of them: one at a time, because a holder's holds the shares of all
        users.
        """
        if address == KEYGEN:
            return self._ask_keygen()
        if not is_holder(address):
            return [self._send(address, Kind.CONFIRM_REQUEST, self._members, self._header)]
        if address in self._votes:
            return [self._votes_for(address)]
        users = members_of(self._members, self.settings.users)
        shares = tuple(self.kept.keys(user)[address - holder(1)] for user in users)
        body = Collect(self._members, shares, self._certificate, self._before).encode()
        return [self._send(address, Kind.COLLECT, body, self._header)]

    @property
    def _which(self) -> bytes:
        return sum_id(self._header.context, self._members)

    def _ask_keygen(self) -> list[Outgoing]:
        users = members_of(self._members, self.settings.users)
        body = SumRequest(
            self._members,
            tuple(self._proofs[user] for user in users),
            tuple(sorted(self._confirmed.items()))[: self.settings.confirmations],
            b"" if self.public is None else self.public.to_bytes(self._product),
        )
        return [self._send(KEYGEN, Kind.SUM_REQUEST, body.encode(), self._header)]

    def _votes_for(self, address: int) -> Outgoing:
        body = bytes(write_list(Writer(), tuple(self._votes.values())))
        return self._send(address, Kind.VOTES, body, self._header)

    def _take_confirmation(self, message: Message) -> list[Outgoing]:
        if (
            self.phase != "closed"
            or message.header.sender not in self._group
            or message.body != self._which
        ):
            raise Refused(Code.CONFIRM, "no such set was put to the users.")
        before = len(self._confirmed)
        self._confirmed[message.header.sender] = message.signature
        return (
            self._ask_keygen()
            if before < self.settings.confirmations <= len(self._confirmed)
            else []
        )

    def _take_vote(self, message: Message) -> list[Outgoing]:
        if self.phase == "done":
            return []
        if (
            self.phase != "closed"
            or not is_holder(message.header.sender)
            or message.body != self._which
        ):
            raise Refused(Code.VOTES, "no such set was put to the holders.")
        before = len(self._votes)
        self._votes[message.header.sender] = message.encode()
        if len(self._votes) < self.settings.votes:
            return []
        new = [message.header.sender] if before >= self.settings.votes else list(self._votes)
        return [self._votes_for(address) for address in new]

    def _take_sum(self, message: Message) -> list[Outgoing]:
        if (
            self.phase not in ("closed", "done")
            or message.header.sender != KEYGEN
            or self.public is None
        ):
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
        part = self._part(message.body)
        if part.which != self._which:
            raise Refused(Code.SUM, "the key holder opened the sum of other users.")
        if part.unread:
            self._note(
                f"SHARES: key holder {message.header.sender - holder(0)} could not open those of "
                f"{part.unread}."
            )
        self._parts[message.header.sender] = message.encode()
        layout = rules.sharing(self.settings, self._size.degree)
        parts = {
            sender: Message.decode(data, largest=len(data)).body
            for sender, data in self._parts.items()
        }
        agreed = layout.combine(
            {sender - holder(0): self._part(body).sums for sender, body in parts.items()}
        )
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
            body,
            length=layout.length,
            width=layout.width,
            prime=layout.prime,
            users=self.settings.users,
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
        self._end(
            Result(self._members, proofs, bits.pack(raw.astype(np.uint64), self._size.slot_bits))
        )

    def _spoil(self) -> None:
        """Opened, and no sum in it: somebody sent nonsense.

        Users see that it was opened, and the chain goes on.
        """
        self.result, self.spoilt = None, True
        self._end(Result(self._members, self._openers, b""))

    @property
    def _openers(self) -> tuple[bytes, ...]:
        return tuple(self._votes.values()) if self.settings.holders else self._opened_by

    def _end(self, body: Result) -> None:
        def message(result: Result) -> bytes:
            return self._send(0, Kind.RESULT, result.encode(), self._header).data

        self._ended.append((self.round, self.kept.add_result(message(body))))
        self._last, self._no_sum = (
            self._header.context,
            message(Result(self._members, self._openers, b"")),
        )
        self._doubts, self.withdrawn = set(), False
        self._parent, self._certificate, self.phase = (
            self._which,
            tuple(self._votes.values()),
            "done",
        )
        self._before = self._members
        self._voters = (
            self._members if self.purpose is Purpose.VOTES and self.result is not None else b""
        )
        self._total, self._product = PadSum(self._size, 1), []

    def _doubted(self, user: int) -> list[Outgoing]:
        """More users than may lie find the last sum wrong: it counts as none, and so does a round
        that went on from it.

        Which of them sent nonsense nobody sees. The chain is where it was; the model is the one
        from before.
        """
        self._doubts.add(user)
        if len(self._doubts) <= self.settings.colluders or self.spoilt or self.withdrawn:
            return []
        self._ended[-1] = (self._ended[-1][0], self.kept.add_result(self._no_sum))
        self.result, self.withdrawn, self.phase, self._voters = None, True, "done", b""
        return self.results()

    def results(self, *users: int, after: int | None = None) -> list[Outgoing]:
        """The last result for every user, or all results after a round for those named."""
        since = (
            self._ended[-1:]
            if after is None
            else [entry for entry in self._ended if entry[0] > after]
        )
        messages = [self.kept.result(place) for _, place in since]
        return [Outgoing(user, data) for user in (users or self._group) for data in messages]

    def _refused_by(self, message: Message) -> list[Outgoing]:
        """A user who is behind gets the results it lacks; sums that too many users find wrong are
        given up.
        """
        super()._refused_by(message)
        user, refusal = message.header.sender, Refusal.decode(message.body)
        if user == KEYGEN and message.header.agreement == self.agreement:
            message.require_signature(self.enrolment.verifiers)
            here = self.phase == "closed" and message.header.context == self._header.context
            if here and refusal.code in (Code.TAG, Code.RANGE):
                # Nothing was opened, and the chain is where it was: the round is over, and another
                # may follow.
                self.result, self.phase = None, "done"
            return []
        if user not in self._group or message.header.agreement != self.agreement:
            return []
        message.require_signature(self.enrolment.verifiers)
        if refusal.code is Code.CHAIN and any(number > refusal.at for number, _ in self._ended):
            again = (
                [Outgoing(user, self._send(0, Kind.OPEN, b"", self._header).data)]
                if self.phase == "open"
                else []
            )
            return self.results(user, after=refusal.at) + again
        if (
            refusal.code is Code.SUM
            and self.phase in ("done", "open")
            and message.header.context == self._last
        ):
            return self._doubted(user)
        return []

    def dump(self) -> bytes:
        """What a restart needs, sealed; without what is kept on disk, where it is."""
        return saved.dump(self)

    @classmethod
    def load(cls, data: bytes, *, kept: InFiles | None = None) -> Aggregator:
        """Go on where `dump` was: with the contributions that are in the files, if there are
        any.
        """
        return saved.load(cls, data, kept)
