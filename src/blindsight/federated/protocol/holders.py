"""No single key holder: t of n holders each check a round for themselves before they help to open it.

A holder can't decrypt alone, so it may safely see every user's ciphertexts. It receives the signed contributions as the
users sent them, checks each signature and binding, multiplies them itself, and raises only those products to its share,
once a round. An aggregator that leaves out, repeats or isolates a user finds no holder to go along. The partial results
go to the opener, which has no share: it combines t of them, undoes φ, withholds what too few contributed to, and
publishes the sum. It learns what the key generator learns in one round, and can open nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations, islice

from gmpy2 import mpz

from blindsight.core.errors import InvalidParameter, ProtocolError
from blindsight.federated.messages import (
    AGGREGATOR,
    KEYGEN,
    Header,
    Kind,
    Message,
    Outgoing,
    Partial,
    PartialRequest,
    SumRequest,
    holder,
    is_holder,
)
from blindsight.federated.paillier import PrivateKey
from blindsight.federated.protocol import block
from blindsight.federated.protocol.accumulator import Accumulator
from blindsight.federated.protocol.enrolment import AggregatorEnrolment, KeygenEnrolment, UserEnrolment, enrol
from blindsight.federated.protocol.keygen import checked_contributors
from blindsight.federated.protocol.role import Role
from blindsight.federated.protocol.settings import Settings
from blindsight.federated.signatures import Hmac, Identity
from blindsight.federated.threshold import KeyShare, combine, deal
from blindsight.federated.wire import Writer, seal, unseal

__all__ = ["HolderEnrolment", "KeyHolder", "Opener", "ThresholdSetup", "enrol_holders"]


@dataclass(frozen=True, kw_only=True)
class HolderEnrolment:
    """A key share, and what is needed to check and multiply contributions (the aggregator's knowledge, no more)."""

    share: KeyShare
    view: AggregatorEnrolment = field(repr=False)

    def dump(self) -> bytes:
        """Sealed bytes; secret."""
        return seal(b"HOLD", bytes(Writer().field(self.share.dump()).field(self.view.dump())))

    @classmethod
    def load(cls, data: bytes) -> HolderEnrolment:
        """Read what `dump` wrote."""
        reader = unseal(b"HOLD", data)
        return cls(share=KeyShare.load(reader.field()), view=AggregatorEnrolment.load(reader.field()))


@dataclass(frozen=True)
class ThresholdSetup:
    """Everybody's enrolment where the key is shared."""

    opener: KeygenEnrolment
    holders: tuple[HolderEnrolment, ...]
    aggregator: AggregatorEnrolment
    users: tuple[UserEnrolment, ...]
    needed: int


def enrol_holders(
    settings: Settings,
    key: PrivateKey,
    *,
    needed: int,
    holders: int,
    identities: Mapping[int, Identity] | None = None,
) -> ThresholdSetup:
    """Deal the key to `holders`, any `needed` of whom open a round together. Forget `key` afterwards."""
    if settings.mode != "block":
        raise InvalidParameter('a shared key needs mode="block".')
    addresses = [holder(i) for i in range(1, holders + 1)]
    signing: dict[int, Identity] = dict(identities or {})
    for number in (AGGREGATOR, KEYGEN, *range(1, settings.users + 1), *addresses):
        if number not in signing:
            if identities is not None:
                raise InvalidParameter(f"identities must name every party; {number} is missing.")
            signing[number] = Hmac()
    shares = deal(key, needed=needed, holders=holders)
    setup = enrol(settings, key, identities=signing)
    verifiers = {number: identity.verifier for number, identity in signing.items()}
    aggregator = replace(setup.aggregator, verifiers=verifiers)
    dealt = tuple(
        HolderEnrolment(share=share, view=replace(aggregator, identity=signing[address]))
        for share, address in zip(shares, addresses, strict=True)
    )
    opener = replace(setup.keygen, private=None, verifiers=verifiers)
    return ThresholdSetup(opener, dealt, aggregator, setup.users, needed)


class KeyHolder(Role):
    """One of n: checks a round's contributions, multiplies them, and decrypts its part, once a round."""

    def __init__(self, enrolment: HolderEnrolment, *, workers: int = 2) -> None:
        super().__init__()
        self.enrolment, self.workers = enrolment, workers
        self.number = holder(enrolment.share.index)
        view = enrolment.view
        self.settings, self.public, self.identity = view.settings, view.public, view.identity
        self._last_round = 0
        self._last_request = b""
        self._answer = b""

    def __repr__(self) -> str:
        return f"KeyHolder({self.enrolment.share.index} of {self.enrolment.share.holders})"

    @property
    def largest_message(self) -> int:
        """All users' contributions in one message."""
        return 1024 + self.settings.users * super().largest_message

    def _handle(self, message: Message) -> list[Outgoing]:
        message.require(kind=Kind.PARTIAL_REQUEST, key_id=self.public.key_id, round=None, model=None)
        if message.header.sender != AGGREGATOR:
            raise ProtocolError("out of turn: only the aggregator asks for sums.")
        message.require_signature(self.enrolment.view.verifiers.get(AGGREGATOR))
        digest = hashlib.sha256(message.header.encode(0) + message.body).digest()
        if digest == self._last_request and self._answer:
            return [Outgoing(KEYGEN, self._answer)]
        if message.header.round <= self._last_round:
            raise ProtocolError(f"round {message.header.round} was opened already: a round is opened once.")
        request = self._own_sum(message)
        enough = request.members.sum(axis=1) >= self.settings.least_per_coordinate
        ciphertexts = self.public.from_bytes(request.ciphertexts)
        kept = [c for c, keep in zip(ciphertexts, enough.tolist(), strict=True) if keep]
        powers = self.enrolment.share.partial(kept, workers=self.workers)
        body = Partial(
            _identify(request),
            SumRequest(
                request.users,
                request.proofs,
                request.places[enough],
                request.members[enough],
                self.public.to_bytes(powers),
            ),
        )
        answer = self._send(KEYGEN, Kind.PARTIAL, body.encode(), message.header)
        self._last_round, self._last_request, self._answer = message.header.round, digest, answer.data
        return [answer]

    def _own_sum(self, message: Message) -> SumRequest:
        """The product of what the users signed: nobody else's word is taken for it."""
        header, view = message.header, self.enrolment.view
        sums = Accumulator(
            self.settings,
            self.public,
            seeds=view.user_seeds,
            verifiers=view.verifiers,
            context=block.round_context(header.round, header.model),
        )
        for data in PartialRequest.decode(message.body, users=self.settings.users).contributions:
            part = Message.decode(data, largest=super().largest_message)
            part.require(kind=Kind.CONTRIBUTION, key_id=self.public.key_id, round=header.round, model=header.model)
            sums.add(part)
        return sums.request()

    def dump(self) -> bytes:
        """Share and the rounds helped with, sealed; secret."""
        writer = Writer().field(self.enrolment.dump()).number("Q", self._last_round)
        return seal(b"HOST", bytes(writer.field(self._last_request).field(self._answer)))

    @classmethod
    def load(cls, data: bytes, *, workers: int = 2) -> KeyHolder:
        """Go on where `dump` was."""
        reader = unseal(b"HOST", data)
        role = cls(HolderEnrolment.load(reader.field()), workers=workers)
        role._last_round, role._last_request, role._answer = reader.number("Q"), reader.field(), reader.field()
        reader.end()
        return role


def _identify(request: SumRequest) -> bytes:
    return hashlib.sha256(request.encode()).digest()


class Opener(Role):
    """Combines the parts of t holders and publishes the sum. Holds φ's seed and the tags' keys, but no share."""

    number = KEYGEN

    def __init__(self, enrolment: KeygenEnrolment, *, needed: int, holders: int) -> None:
        super().__init__()
        self.enrolment, self.needed, self.holders = enrolment, needed, holders
        self.settings, self.public, self.identity = enrolment.settings, enrolment.public, enrolment.identity
        self._last_round = 0
        self._answer = b""
        self._parts: dict[bytes, dict[int, list[mpz]]] = {}  # by what was multiplied, then by holder
        self._about: Header | None = None

    def __repr__(self) -> str:
        return f"Opener({self.needed} of {self.holders} needed, last round {self._last_round})"

    def _handle(self, message: Message) -> list[Outgoing]:
        message.require(kind=Kind.PARTIAL, key_id=self.public.key_id, round=None, model=None)
        header = message.header
        if not is_holder(header.sender):
            raise ProtocolError("out of turn: only key holders send partial decryptions.")
        message.require_signature(self.enrolment.verifiers.get(header.sender))
        if header.round <= self._last_round:
            if header.round == self._last_round and self._answer:
                return [Outgoing(AGGREGATOR, self._answer)]  # a late holder: the sum is out already
            raise ProtocolError(f"round {header.round} was opened already: a round is opened once.")
        part = Partial.decode(
            message.body,
            width=self.public.ciphertext_bytes,
            size=self.settings.places(self.public),
            users=self.settings.users,
        )
        bound = (header.round, header.model)
        if self._about is None or (self._about.round, self._about.model) != bound:
            if self._about is not None and header.round < self._about.round:
                raise ProtocolError(f"wrong round: {self._about.round} was expected, got {header.round}.")
            self._about, self._parts = header, {}
        users = checked_contributors(self.enrolment, header, part.request.proofs)
        request = part.request
        about = part.digest + request.places.tobytes() + request.members.tobytes() + repr(users).encode()
        group = self._parts.setdefault(hashlib.sha256(about).digest(), {})
        newest = header.sender - holder(0)
        group[newest] = self.public.from_bytes(request.ciphertexts)
        if len(group) < self.needed:
            return []
        plaintexts = self._combine(group, newest)
        context = block.round_context(header.round, header.model)
        result = block.open_sum(self.enrolment, context, users, request.places, request.members, plaintexts)
        answer = self._send(AGGREGATOR, Kind.SUM, result.encode(), header)
        self._last_round, self._answer, self._parts, self._about = header.round, answer.data, {}, None
        return [answer]

    def _combine(self, group: dict[int, list[mpz]], newest: int) -> list[mpz]:
        """Try each set of t holders that has the newest: one wrong answer must not stop the others."""
        others = [i for i in sorted(group) if i != newest]
        for chosen in islice(combinations(others, self.needed - 1), 500):
            partials = {i: group[i] for i in (newest, *chosen)}
            try:
                return combine(self.public, partials, needed=self.needed, holders=self.holders)
            except ProtocolError as error:
                self._note(str(error))
        raise ProtocolError("a key holder's answer is wrong: waiting for another holder.")

    def dump(self) -> bytes:
        """Secrets and the rounds opened, sealed. Parts of an unfinished round are asked for again."""
        writer = Writer().field(self.enrolment.dump()).number("H", self.needed).number("H", self.holders)
        return seal(b"OPST", bytes(writer.number("Q", self._last_round).field(self._answer)))

    @classmethod
    def load(cls, data: bytes) -> Opener:
        """Go on where `dump` was."""
        reader = unseal(b"OPST", data)
        enrolment = KeygenEnrolment.load(reader.field())
        role = cls(enrolment, needed=reader.number("H"), holders=reader.number("H"))
        role._last_round, role._answer = reader.number("Q"), reader.field()
        reader.end()
        return role
