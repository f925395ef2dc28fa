"""A user: contributes one padded update per round, confirms one set per round, and checks every sum
it is shown.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData, ProtocolError
from blindsight.federated.enrolment import UserEnrolment
from blindsight.federated.messages import (
    AGGREGATOR,
    KEYGEN,
    Code,
    Header,
    Kind,
    Message,
    Outgoing,
    Purpose,
    Refused,
    holder,
    is_holder,
)
from blindsight.federated.opened import Opened
from blindsight.federated.pad import bits, new_secret, pad, tag
from blindsight.federated.protocol import rules
from blindsight.federated.protocol.bodies import Contribution, KeySum, Result, ShareSum, sum_id
from blindsight.federated.randomisers import RandomiserPool
from blindsight.federated.role import Role
from blindsight.federated.settings import Settings
from blindsight.federated.wire import Writer, seal, unseal
from blindsight.privacy.clipping import finite_rows
from blindsight.privacy.entropy import Rng, SystemEntropy

__all__ = ["User", "encode_update"]


def encode_update(
    settings: Settings, update: ArrayLike, length: int, *, rng: Rng, noisy: bool = False
) -> NDArray[np.int64]:
    """The whole numbers that go under the pad, clipped and with this user's share of noise where
    there is any.

    `noisy`: the share is in the update already, drawn at a door.
    """
    # An update that holds NaN counts as zeros: to refuse it would tell of the data behind it.
    values = finite_rows(checks.number_array("update", update, ndim=1)[None])[0]
    if len(values) != length:
        raise InvalidData(f"an update must have {length} weights, got {len(values)}.")
    if settings.noise is None or noisy:
        return settings.code.encode(values)
    return settings.noise.share(values, rng=rng)


class User(Role):
    """User n of Algorithm 1, under a pad.

    `receive` an opening, `contribute` an update (a vector of weights), `receive` the result. Where
    the owner computes the model itself, `expect` its hash: then no round on another model is
    joined. `mask` is set between a round of votes and its round of values, `revealed` after the
    latter.
    """

    def __init__(
        self,
        enrolment: UserEnrolment,
        *,
        pool: RandomiserPool | None = None,
        workers: int = 1,
        rng: Rng | None = None,
    ) -> None:
        super().__init__()
        self.enrolment = enrolment
        self.number, self.settings = enrolment.number, enrolment.settings
        self.agreement, self.identity = enrolment.agreement, enrolment.identity
        self.pool, self.workers = pool, workers
        self._rng: Rng = SystemEntropy() if rng is None else rng
        self._open: Header | None = None
        self._sent: bytes = b""
        self._last_round = self._contributed = self._ended = self._confirmed_round = 0
        self._confirmed = bytes(32)
        self._parent = bytes(32)
        self._expected: bytes | None = None
        self._voters = b""  # the set whose votes gave the mask
        self.mask: NDArray[np.bool_] | None = None
        self.revealed: NDArray[np.bool_] | None = None
        self.result: Opened | None = None
        needed = self.settings.holders[1] if self.settings.holders else 1
        self.largest_message = (
            65_536 + self.settings.users + 8 * self.settings.dimension + needed * 65_536
        )

    def __repr__(self) -> str:
        return f"User({self.number}, last round {self._last_round})"

    @property
    def waiting(self) -> bool:
        """Whether a round is open that this user has not contributed to."""
        return self._open is not None

    @property
    def open_round(self) -> Header | None:
        """The round that waits for this user's update."""
        return self._open

    @property
    def ended(self) -> int:
        """The last round whose sum this user has checked."""
        return self._ended

    def _at(self) -> int:
        return self._ended

    def expect(self, model: bytes) -> None:
        """Join rounds on the model with this hash only, until the next result."""
        self._expected = bytes(model)

    def _handle(self, message: Message) -> list[Outgoing]:
        kinds = {Kind.CONFIRM_REQUEST: self._confirm, Kind.RESULT: self._take_result}
        kind = message.header.kind if message.header.kind in kinds else Kind.OPEN
        message.require(kind, self.agreement)
        if message.header.sender != AGGREGATOR:
            raise Refused(Code.TURN, "only the aggregator says so.")
        message.require_signature(self.enrolment.verifiers)
        return kinds.get(kind, self._take_opening)(message)

    def _require_chain(self, header: Header) -> None:
        """The round must go on from the last sum that we checked, and on the model that we computed
        from it.
        """
        if header.parent != self._parent:
            raise Refused(
                Code.CHAIN,
                f"the last sum known here is that of round {self._ended}, not the round's parent.",
            )
        if self._expected is not None and header.model != self._expected:
            raise Refused(Code.CHAIN, "the round's model is not the one that the last sum gives.")
        votes = header.purpose is Purpose.VOTES
        if self.settings.least_per_coordinate > 1 and not votes:
            if self.mask is None or header.length != int(self.mask.sum()):
                raise Refused(Code.CHAIN, "a round of votes must come before a round of values.")
        elif votes and (
            self.settings.least_per_coordinate == 1 or header.length != self.settings.dimension
        ):
            raise Refused(Code.AGREEMENT, "there is nothing to vote on.")

    def _take_opening(self, message: Message) -> list[Outgoing]:
        header = message.header
        if header.round <= self._last_round:
            # The same bytes again: our message may have been lost, and a repeat tells nothing new.
            if (
                self._sent
                and Message.decode(self._sent, largest=len(self._sent)).header.context
                == header.context
            ):
                return [Outgoing(AGGREGATOR, self._sent)]
            raise Refused(
                Code.ROUND, f"round {header.round} is not after round {self._last_round}."
            )
        self._require_chain(header)
        rules.round_pad(self.settings, header)
        if self._contributed >= self.settings.rounds:
            raise Refused(
                Code.ROUND,
                f"{self.settings.rounds} rounds were agreed on, and that many were contributed to.",
            )
        self._open = header
        return []

    def contribute(
        self, update: ArrayLike, *, support: NDArray[np.bool_] | None = None, noisy: bool = False
    ) -> list[Outgoing]:
        """Pad an update for the open round. With votes, the whole vector both times: what is not
        sent is left out here.

        `support`: the coordinates counted as contributed; by default, where the update is not zero.
        `noisy`: it carries its share of noise already.
        """
        if self._open is None:
            raise ProtocolError(f"user {self.number} has no open round to contribute to.")
        header, settings = self._open, self.settings
        if settings.least_per_coordinate > 1:
            numbers = self._voted(np.asarray(update), support, header)
        else:
            numbers = encode_update(settings, update, header.length, rng=self._rng, noisy=noisy)
        if header.purpose is Purpose.VALUES:
            numbers = numbers + (1 << (settings.bits - 1))
            self._contributed += settings.noise is not None
        body = self._padded(header, numbers.astype(np.uint64))
        [sent] = [self._send(AGGREGATOR, Kind.CONTRIBUTION, body.encode(), header)]
        self._sent, self._last_round, self._open = sent.data, header.round, None
        return [sent]

    def _voted(
        self, update: NDArray[Any], support: NDArray[np.bool_] | None, header: Header
    ) -> NDArray[np.int64]:
        chosen = update != 0 if support is None else np.asarray(support, dtype=bool)
        if (
            chosen.shape != (self.settings.dimension,)
            or chosen.shape != update.shape
            or (update[~chosen] != 0).any()
        ):
            raise InvalidData(
                "support must have one entry a weight and be true wherever the update is not zero."
            )
        if header.purpose is Purpose.VOTES:
            return chosen.astype(np.int64)
        return encode_update(self.settings, update[self.mask], header.length, rng=self._rng)

    def _padded(self, header: Header, values: NDArray[np.uint64]) -> Contribution:
        enrolment, context = self.enrolment, header.context
        size = rules.round_pad(self.settings, header)
        s = new_secret(size)
        key = rules.to_key(s, tag.tag(enrolment.tag_seed, context, values))
        padded = pad(size, context, values, s)
        if enrolment.public is not None:
            plaintexts = rules.slots(self.settings, enrolment.public, size.degree).pack(
                key, shared=enrolment.shared_seed, own=enrolment.own_seed, context=context
            )
            ciphertexts = enrolment.public.encrypt_many(
                plaintexts, pool=self.pool, workers=self.workers
            )
            return Contribution((enrolment.public.to_bytes(ciphertexts),), padded)
        bound = context + self.number.to_bytes(4, "little")
        shares = rules.sharing(self.settings, size.degree).share(key, enrolment.holders, bound)
        messages = [
            self._send(holder(j), Kind.SHARE, bytes([j]) + data, header)
            for j, data in shares.items()
        ]
        return Contribution(tuple(message.data for message in messages), padded)

    def _confirm(self, message: Message) -> list[Outgoing]:
        header = message.header
        which = sum_id(header.context, message.body)
        if header.round <= self._ended or header.round < self._confirmed_round:
            raise Refused(Code.ROUND, f"round {header.round} is over.")
        self._require_chain(header)
        rules.checked_members(self.settings, message.body)
        rules.require_voters(self.settings, header, message.body, self._voters)
        # Without groups and noise one set for each sum that we know, not for each round: a key
        # generator whose state was put back would open a second round on the same model, and the
        # difference is one user's update.
        since = self._ended if self.settings.unguarded else header.round - 1
        if self._confirmed_round > since and which != self._confirmed:
            raise Refused(Code.CONFIRM, "another set of users was confirmed already.")
        self._confirmed_round, self._confirmed = header.round, which
        return [self._send(AGGREGATOR, Kind.CONFIRM, which, header)]

    def _take_result(self, message: Message) -> list[Outgoing]:
        header = message.header
        if header.round <= self._ended:
            return []
        self._require_chain(header)
        body = Result.decode(
            message.body, holders=self.settings.holders[1] if self.settings.holders else 0
        )
        users = rules.checked_members(self.settings, body.members)
        which = sum_id(header.context, body.members)
        if not body.packed:
            self._take_spoilt(header, body, which)
            self._count(header, users, summed=False)
            self._parent, self._ended, self.result, self._open = which, header.round, None, None
            self.mask, self._voters = None, b""
            return []
        rules.require_voters(self.settings, header, body.members, self._voters)
        size = rules.round_pad(self.settings, header)
        expected = self._summed_tag(header, body, which, len(users), size.degree)
        if len(body.packed) != -(-header.length * size.slot_bits // 8):
            raise Refused(Code.SUM, "a sum has another length.")
        raw = np.empty(header.length, dtype=np.uint64)
        bits.unpack(body.packed, size.slot_bits, raw)
        if tag.tag(self.enrolment.tag_seed, header.context, raw) != expected:
            raise Refused(Code.SUM, "the sum shown is not the sum of what users sent.")
        values = rules.raw_sum(self.settings, header, raw.astype(np.int64), len(users))
        self._count(header, users, summed=True)
        self._parent, self._ended, self._open = which, header.round, None
        if header.purpose is Purpose.VOTES:
            self.mask, self._voters = values >= self.settings.least_per_coordinate, body.members
        else:
            self._expected, self.mask, self.revealed, self._voters = None, None, self.mask, b""
        self.result = Opened(users, values)
        return []

    def _count(self, header: Header, users: tuple[int, ...], *, summed: bool) -> None:
        """One round less. With noise a contribution was one; so is one that we forgot when our
        state was put back.
        """
        if self.number not in users:
            return
        forgotten, self._last_round = (
            header.round > self._last_round,
            max(header.round, self._last_round),
        )
        if header.purpose is Purpose.VALUES:
            self._contributed += summed if self.settings.noise is None else forgotten

    def _take_spoilt(self, header: Header, body: Result, which: bytes) -> None:
        """A round that was opened and gave no sum.

        Only where another sum on the same model tells nothing new.
        """
        if self.settings.unguarded:
            raise Refused(
                Code.SUM, "without groups and noise no round follows on a sum that is not shown."
            )
        if self.settings.holders is None:
            self._key_sum(header, body, body.members)
        elif (
            len(rules.voters(body.proofs, which, self.enrolment.verifiers, self.agreement))
            < self.settings.votes
        ):
            raise Refused(Code.VOTES, f"{self.settings.votes} votes are needed.")

    def _key_sum(self, header: Header, body: Result, members: bytes) -> KeySum:
        [data] = body.proofs[:1] or (b"",)
        opened = Message.decode(data, largest=len(data))
        opened.require(Kind.SUM, self.agreement)
        opened.require_context(header)
        if opened.header.sender != KEYGEN or self.enrolment.public is None:
            raise Refused(Code.TURN, "only the key generator opens sums.")
        opened.require_signature(self.enrolment.verifiers)
        layout = rules.slots(
            self.settings, self.enrolment.public, rules.round_pad(self.settings, header).degree
        )
        found = KeySum.decode(opened.body, length=layout.length, width=layout.slot_bits)
        if found.members != members:
            raise Refused(Code.SUM, "the key generator opened the sum of other users.")
        return found

    def _summed_tag(
        self, header: Header, body: Result, which: bytes, contributors: int, degree: int
    ) -> int:
        if self.settings.holders is None:
            return rules.from_key(self._key_sum(header, body, body.members).sums, contributors)[1]
        layout = rules.sharing(self.settings, degree)
        digits = {}
        for data in body.proofs:
            part = Message.decode(data, largest=len(data))
            part.require(Kind.SHARE_SUM, self.agreement)
            part.require_context(header)
            if not is_holder(part.header.sender):
                raise Refused(Code.TURN, "only key holders open sums.")
            part.require_signature(self.enrolment.verifiers)
            found = ShareSum.decode(
                part.body,
                length=layout.length,
                width=layout.width,
                prime=layout.prime,
                users=self.settings.users,
            )
            if found.which != which:
                raise Refused(Code.SUM, "a key holder opened the sum of other users.")
            digits[part.header.sender - holder(0)] = found.sums[-tag.DIGITS :]
        agreed = replace(layout, length=tag.DIGITS).combine(digits)
        if agreed is None:
            raise Refused(Code.SHARES, f"{layout.needed + 1} key holders must agree.")
        return tag.from_digits(agreed[0])

    def dump(self) -> bytes:
        """Enrolment and everything since, sealed; secret."""
        writer = Writer().field(self.enrolment.dump())
        for number in (self._last_round, self._contributed, self._ended, self._confirmed_round):
            writer.number("Q", number)
        writer.raw(self._confirmed).raw(self._parent).field(self._expected or b"")
        writer.field(b"" if self._open is None else self._open.encode(0) + bytes(64)).field(
            self._sent
        )
        writer.field(b"" if self.mask is None else np.packbits(self.mask).tobytes()).field(
            self._voters
        )
        writer.field(b"" if self.result is None else self.result.encode())
        return seal(b"USST", bytes(writer))

    @classmethod
    def load(
        cls,
        data: bytes,
        *,
        pool: RandomiserPool | None = None,
        workers: int = 1,
        rng: Rng | None = None,
    ) -> User:
        """Go on where `dump` was."""
        reader = unseal(b"USST", data)
        user = cls(UserEnrolment.load(reader.field()), pool=pool, workers=workers, rng=rng)
        user._last_round, user._contributed = reader.number("Q"), reader.number("Q")
        user._ended, user._confirmed_round = reader.number("Q"), reader.number("Q")
        user._confirmed, user._parent, user._expected = (
            reader.raw(32),
            reader.raw(32),
            reader.field() or None,
        )
        opened, user._sent, mask, user._voters, result = (reader.field() for _ in range(5))
        user._open = Message.decode(opened, largest=1 << 20).header if opened else None
        if mask:
            row = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), count=user.settings.dimension)
            user.mask = row.astype(bool)
        user.result = Opened.decode(result, users=user.settings.users) if result else None
        reader.end()
        return user
