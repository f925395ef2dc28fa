"""A user: pads its update, shares the pad's key among the holders, and checks the sum shown."""

from __future__ import annotations

import secrets
import struct

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData, ProtocolError
from blindsight.federated.sums import field
from blindsight.federated.sums.enrolment import Enrolment, Role
from blindsight.federated.sums.messages import (
    AGGREGATOR,
    HEADER_BYTES,
    Code,
    Contribution,
    Header,
    HolderKey,
    Kind,
    Message,
    Outgoing,
    Refused,
    RoundSum,
    ShownSum,
    TagHead,
    holder,
    sum_id,
    unpack_members,
)
from blindsight.federated.sums.pad import bits, new_secret, pad
from blindsight.federated.sums.party import Party
from blindsight.federated.sums.sealing import OVERHEAD, Ephemeral
from blindsight.federated.sums.settings import Settings
from blindsight.federated.sums.wire import Reader, Writer, seal, unseal
from blindsight.privacy.door import clip_norm, finite_rows
from blindsight.privacy.entropy import Rng, SystemEntropy

__all__ = [
    "MOST_RESULTS",
    "SHARE_LABEL",
    "User",
    "checked_sum",
    "encode_update",
    "share_binding",
]

MOST_RESULTS = 4  # results that a user checks in one round: each may be an attempt at a false sum
SHARE_LABEL = b"blindsight share 3"
_SEED_LABEL = b"blindsight seed 3"
_SEED_BYTES = 32
_ROUNDING = 1 + 1e-9


def share_binding(context: bytes, user: int, index: int) -> bytes:
    """Return the bytes to which a sealed share is bound: round, user and holder."""
    return context + struct.pack("<IB", user, index)


def encode_update(
    settings: Settings, update: ArrayLike, length: int, *, rng: Rng, noisy: bool = False
) -> NDArray[np.int64]:
    """Return an update in steps of the grid, clipped, with this user's share of the noise.

    Parameters:
        settings: the federation's settings.
        update: the user's update.
        length: how many weights the round sums.
        rng: where noise is drawn from.
        noisy: whether the update already contains its share of noise.
    """
    # An update with NaN counts as zeros: refusing it would reveal something about its data.
    vector = finite_rows(checks.number_array("update", update, ndim=1)[None])[0]
    if len(vector) != length:
        raise InvalidData(f"an update must have {length} weights here, got {len(vector)}.")
    if settings.noise is not None:
        if noisy:
            return settings.code.encode(vector)
        return settings.noise.share(vector, rng=rng)
    if settings.clip is not None:
        vector = clip_norm(vector[None, :], settings.clip / _ROUNDING)[0]
        return settings.code.encode(vector, toward_zero=True)
    return settings.code.encode(vector)


def checked_sum(settings: Settings, raw: NDArray[np.int64], users: int) -> NDArray[np.int64]:
    """Return a sum in steps of the grid from summed slots.

    Raises:
        Refused: the sum is outside the range of a sum of this many users, or longer than their
            clip allows.
    """
    most = (1 << settings.bits) - 1
    if (raw < users).any() or (raw > most * users).any():
        raise Refused(Code.RANGE, "a sum lies outside what its contributors can add up to.")
    values = raw - users * (1 << (settings.bits - 1))
    if settings.clip is not None:
        length = float(np.linalg.norm(values * settings.code.grid))
        if length > users * settings.clip * _ROUNDING:
            raise Refused(
                Code.RANGE,
                f"a sum of {users} updates of norm at most {settings.clip:g} is longer than they "
                "can add up to.",
            )
    return values


class User(Party):
    """User n, who joins rounds on the model that follows from the last sum it accepted.

    A round is: `receive` an opening, `contribute` an update, `receive` the result, read `result`. A
    user contributes once to each round number, and repeats the same bytes when asked again.

    Parameters:
        enrolment: keys and roster. Without a tag seed, user 1 draws one for all users, and other
            users wait for it.
        rng: where noise is drawn from; by default the operating system's entropy.
    """

    role = Role.USER

    def __init__(self, enrolment: Enrolment, *, rng: Rng | None = None) -> None:
        super().__init__(enrolment)
        self._rng: Rng = SystemEntropy() if rng is None else rng
        self._seed = enrolment.tag_seed
        self._private = None if self._seed else enrolment.keys.private
        if self.number == 1 and not self._seed:
            self._seed = secrets.token_bytes(_SEED_BYTES)
        self._open: Header | None = None
        self._holder_keys: list[HolderKey] = []
        self._sent = b""
        self._last_round = self._contributed = self.ended = self._sums = 0
        self._parent = bytes(32)
        self._expected: bytes | None = None
        self._tries = (0, 0)  # the round of the last result, and how many results were checked
        self.result: RoundSum | None = None
        settings = self.settings
        heads, keys = settings.n_holders * TagHead.SIZE, settings.n_holders * HolderKey.SIZE
        self.largest_message = 65_536 + settings.users + 8 * settings.dimension + heads + keys

    def __repr__(self) -> str:
        return f"User({self.number}, last round {self._last_round})"

    @property
    def waiting(self) -> bool:
        """Whether a round is open that this user has not contributed to."""
        return self._open is not None

    @property
    def open_round(self) -> Header | None:
        """The round that waits for this user's update, if there is one."""
        return self._open

    def _at(self) -> int:
        return self.ended

    @property
    def _due(self) -> int:
        """The group whose sum comes next."""
        return self._sums % self.settings.groups

    @property
    def expected(self) -> bytes | None:
        """The digest that `expect` was given, while it is valid."""
        return self._expected

    def expect(self, model: bytes) -> None:
        """Join only rounds on the model with this digest, until every group has a result."""
        self._expected = bytes(model)

    def _handle(self, message: Message) -> list[Outgoing]:
        kind, sender = message.header.kind, message.header.sender
        if kind is Kind.SEED:
            return self._take_seed(message)
        if sender != AGGREGATOR or kind not in (Kind.OPEN, Kind.RESULT):
            raise Refused(Code.TURN, f"nobody asked for {kind.name}.")
        return self._take_opening(message) if kind is Kind.OPEN else self._take_result(message)

    def _require_chain(self, header: Header) -> None:
        if header.parent != self._parent or header.parent_round != self.ended:
            raise Refused(
                Code.CHAIN,
                f"the last sum accepted here is of round {self.ended}, not the round's parent.",
            )
        if self._expected is not None and header.model != self._expected:
            raise Refused(Code.CHAIN, "the round's model is not the one that the last sum gives.")
        if not 1 <= header.length <= self.settings.dimension:
            raise Refused(
                Code.AGREEMENT, f"a round's vectors have 1 to {self.settings.dimension} weights."
            )

    def _take_opening(self, message: Message) -> list[Outgoing]:
        header = message.header
        if header.round <= self._last_round:
            sent = self._sent
            if sent and _context(sent) == header.context:
                return [Outgoing(AGGREGATOR, sent)]
            raise Refused(
                Code.ROUND, f"round {header.round} is not after round {self._last_round}."
            )
        self._require_chain(header)
        if not self._seed:
            raise Refused(Code.SEED, "the tag seed of user 1 has not come yet.")
        if self._due != self.settings.group(self.number):
            raise Refused(Code.COHORT, f"the next sum is that of group {self._due}.")
        if self._contributed >= self.settings.rounds:
            raise Refused(
                Code.ROUND,
                f"{self.settings.rounds} rounds were agreed on, and so many were contributed to.",
            )
        self._holder_keys = self._checked_keys(message)
        self._open = header
        return []

    def _checked_keys(self, message: Message) -> list[HolderKey]:
        reader, count = Reader(message.body), self.settings.n_holders
        keys = [HolderKey.read(reader, j) for j in range(1, count + 1)]
        reader.end()
        if HolderKey.digest(keys) != message.header.holder_keys:
            raise Refused(Code.KEYS, "the holders' keys are not those that the round is bound to.")
        for key in keys:
            first = self.enrolment.roster.holders[key.index].public
            signed = key.holds(self.agreement, self.verifiers[holder(key.index)])
            if key.public != first if key.sequence == 0 else not signed:
                raise Refused(Code.KEYS, f"the key of holder {key.index} was not signed by it.")
        # A holder that was restored from an older state offers a key that it used before, or
        # another key under an old number. It has forgotten which sums it opened.
        for key, before in zip(keys, self._holder_keys, strict=False):
            if key.sequence < before.sequence or (
                key.sequence == before.sequence and key.public != before.public
            ):
                raise Refused(
                    Code.KEYS,
                    f"holder {key.index} offers key {key.sequence} after key {before.sequence}: "
                    "its state was put back, or the aggregator repeats an old key.",
                )
        return keys

    def seeds(self) -> list[Outgoing]:
        """Return the tag seed, sealed by user 1 to each other user; empty for other users."""
        if self.number != 1:
            return []
        zero = bytes(32)
        header = Header(
            kind=Kind.SEED,
            agreement=self.agreement,
            round=0,
            length=0,
            model=zero,
            parent=zero,
            parent_round=0,
            labels=zero,
            holder_keys=zero,
            sender=1,
        )
        messages = []
        for number, request in self.enrolment.roster.users.items():
            if number != 1:
                ephemeral = Ephemeral()
                bound = self.agreement + struct.pack("<I", number)
                sealed = ephemeral.seal(request.public, self._seed, _SEED_LABEL, bound)
                body = struct.pack("<I", number) + ephemeral.public + sealed
                messages.append(self._send(AGGREGATOR, Kind.SEED, body, header))
        return messages

    def _take_seed(self, message: Message) -> list[Outgoing]:
        body = message.body
        if message.header.sender != 1:
            raise Refused(Code.TURN, "only user 1 hands out the tag seed.")
        if len(body) != 36 + _SEED_BYTES + OVERHEAD or body[:4] != struct.pack("<I", self.number):
            raise Refused(Code.MALFORMED, "a sealed seed is for another user or damaged.")
        if not self._seed and self._private is not None:
            bound = self.agreement + body[:4]
            self._seed = self._private.open(body[4:36], body[36:], _SEED_LABEL, bound)
            self._private = None
            keys = self.enrolment.keys.without_private()
            self.enrolment = Enrolment(keys, self.enrolment.roster, self._seed)
        return []

    def contribute(self, update: ArrayLike, *, noisy: bool = False) -> list[Outgoing]:
        """Pad an update for the open round.

        Parameters:
            update: as many weights as the round sums.
            noisy: whether the update already contains its share of noise.

        Returns:
            The contribution, which must be sent after the state was saved.
        """
        if self._open is None:
            raise ProtocolError(f"user {self.number} has no open round to contribute to.")
        header, settings = self._open, self.settings
        numbers = encode_update(settings, update, header.length, rng=self._rng, noisy=noisy)
        numbers += 1 << (settings.bits - 1)
        values = numbers.view(np.uint64)
        body = self._padded(header, values).encode()
        sent = self._send(AGGREGATOR, Kind.CONTRIBUTION, body, header)
        self._contributed += settings.noise is not None
        self._sent, self._last_round, self._open = sent.data, header.round, None
        return [sent]

    def _padded(self, header: Header, values: NDArray[np.uint64]) -> Contribution:
        context, size = header.context, self.settings.pad(header.length)
        secret = new_secret(size)
        layout = self.settings.sharing(header.length)
        plain = layout.share(layout.pack(secret, field.tag(self._seed, context, values)))
        ephemeral = Ephemeral()
        shares = tuple(
            ephemeral.seal(
                key.public,
                plain[key.index],
                SHARE_LABEL,
                share_binding(context, self.number, key.index),
            )
            for key in self._holder_keys
        )
        body = Contribution(ephemeral.public, shares, b"", pad(size, context, values, secret))
        signed = Contribution.signed(context, self.number, body.ephemeral, body.digests)
        return Contribution(body.ephemeral, shares, self.identity.sign(signed), body.padded)

    def _take_result(self, message: Message) -> list[Outgoing]:
        header, settings = message.header, self.settings
        if header.round <= self.ended:
            return []
        self._require_chain(header)
        if not self._seed:
            raise Refused(Code.SEED, "the tag seed of user 1 has not come yet.")
        looked = self._tries[1] if self._tries[0] == header.round else 0
        if looked >= MOST_RESULTS:
            raise Refused(Code.ROUND, f"{MOST_RESULTS} results of this round were looked at.")
        self._tries = (header.round, looked + 1)
        body = ShownSum.decode(message.body, settings)
        users = unpack_members(body.members, settings.users)
        if not settings.fewest <= len(users) <= settings.largest_round:
            raise Refused(Code.SET, f"a sum of {len(users)} users may not be opened.")
        if any(settings.group(user) != self._due for user in users):
            raise Refused(Code.SET, f"the sum has users who are not in group {self._due}.")
        sum_label = sum_id(header.context, body.members)
        shares = self._tag_shares(body, sum_label)
        size = settings.pad(header.length)
        if len(body.packed) != -(-header.length * size.slot_bits // 8):
            raise Refused(Code.SUM, "a sum has another length.")
        raw = np.empty(header.length, dtype=np.uint64)
        bits.unpack(body.packed, size.slot_bits, raw)
        value = field.tag(self._seed, header.context, raw, len(users))
        if not settings.sharing(header.length).some_fit(shares, value):
            raise Refused(Code.SUM, "the sum shown is not the sum of what users sent.")
        values = checked_sum(settings, raw.astype(np.int64), len(users))
        self._accept(header, sum_label, users)
        self.result = RoundSum(users, values)
        return []

    def _accept(self, header: Header, sum_label: bytes, users: tuple[int, ...]) -> None:
        if self.number in users:
            # Also count a contribution that was forgotten because an older state was restored.
            forgotten = header.round > self._last_round
            self._contributed += 1 if self.settings.noise is None else forgotten
        self._last_round = max(header.round, self._last_round)
        self._parent, self.ended, self._sums = sum_label, header.round, self._sums + 1
        self._open, self._sent = None, b""
        if self._due == 0:  # the last group's sum: the model changes
            self._expected = None

    def _tag_shares(self, body: ShownSum, sum_label: bytes) -> dict[int, int]:
        shares = {}
        for head in body.heads:
            verifier = self.verifiers.get(holder(head.index))
            if verifier is None or not head.holds(sum_label, verifier):
                raise Refused(Code.SHARES, "a head was not signed by a holder for this sum.")
            shares[head.index] = head.tag_share
        if len(shares) < self.settings.needed:
            raise Refused(
                Code.SHARES, f"{self.settings.needed} holders' heads are needed, got {len(shares)}."
            )
        return shares

    def dump(self) -> bytes:
        """Return the enrolment and the state since, sealed; secret."""
        keys = self.enrolment.keys
        needed = keys if self._private is not None else keys.without_private()
        enrolment = Enrolment(needed, self.enrolment.roster, self._seed)
        writer = Writer().field(enrolment.dump())
        counts = (self._last_round, self._contributed, self.ended, self._sums, *self._tries)
        for number in counts:
            writer.number("Q", number)
        writer.raw(self._parent).field(self._expected or b"")
        opened = b"" if self._open is None else self._open.encode(0) + bytes(64)
        writer.field(opened).field(b"".join(key.encode() for key in self._holder_keys))
        writer.field(self._sent).field(b"" if self.result is None else self.result.encode())
        return seal(b"USS3", bytes(writer))

    @classmethod
    def load(cls, data: bytes, *, rng: Rng | None = None) -> User:
        """Continue from what `dump` wrote."""
        reader = unseal(b"USS3", data)
        user = cls(Enrolment.load(reader.field()), rng=rng)
        user._last_round, user._contributed = reader.number("Q"), reader.number("Q")
        user.ended, user._sums = reader.number("Q"), reader.number("Q")
        user._tries = (reader.number("Q"), reader.number("Q"))
        user._parent, user._expected = reader.raw(32), reader.field() or None
        opened, keys = reader.field(), Reader(reader.field())
        user._open = Message.decode(opened, largest=HEADER_BYTES + 64).header if opened else None
        count = user.settings.n_holders if keys.left else 0
        user._holder_keys = [HolderKey.read(keys, j) for j in range(1, count + 1)]
        user._sent, result = reader.field(), reader.field()
        user.result = RoundSum.decode(result, users=user.settings.users) if result else None
        reader.end()
        return user


def _context(data: bytes) -> bytes:
    return Message.decode(data, largest=len(data)).header.context
