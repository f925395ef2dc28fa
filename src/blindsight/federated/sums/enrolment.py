"""Enrolment without a dealer: every party makes its own keys, and all agree on one public roster.

1. Each party makes its keys (`PartyKeys`) and a public, self-signed *request*.
2. One party collects the requests into a *roster*: settings, a digest of what is learned, and the
   requests in order. It holds no secret. The agreement is SHA-256 of the roster.
3. Each party checks that its own request is in the roster exactly once, and people compare the
   fingerprint by another channel.
4. User 1 draws the tag seed and seals it to every other user (`User.seeds`).

The party that makes the roster cannot read or forge messages, but it decides who is in the roster:
it could invent users or distribute different rosters. Only people who recognise the names and
compare the fingerprints prevent that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntFlag
from functools import cached_property, lru_cache
from typing import Any, NoReturn

from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter, ProtocolError
from blindsight.federated.sums.messages import AGGREGATOR, holder
from blindsight.federated.sums.sealing import (
    PUBLIC_BYTES,
    SIGNATURE_BYTES,
    HybridKey,
    Identity,
    Verifier,
)
from blindsight.federated.sums.settings import Settings
from blindsight.federated.sums.wire import Reader, Writer, seal, unseal

__all__ = ["Enrolment", "PartyKeys", "Request", "Role", "Roster", "enrol"]

_NAME_BYTES = 60
_EXTRA_BYTES = 1 << 16
_MOST_REQUESTS = (1 << 16) + 32


class Role(IntFlag):
    """What a party does; a site may be user and holder at once."""

    USER = 1
    HOLDER = 2
    AGGREGATOR = 4


@dataclass(frozen=True)
class Request:
    """A party's public, self-signed enrolment: name, roles, keys, and data for the transport.

    Parameters:
        name: the name by which people recognise the party, 1 to 60 bytes.
        roles: what the party does.
        verifier: the Ed25519 public key.
        public: the hybrid public key: for a holder the key of the first round, for a user the key
            to which the tag seed is sealed.
        extra: data for the transport, for example the digest of an access token; not interpreted
            here.
    """

    name: str
    roles: Role
    verifier: bytes = field(repr=False)
    public: bytes = field(repr=False)
    extra: bytes = field(repr=False)
    signature: bytes = field(repr=False)

    def _signed(self) -> bytes:
        return b"blindsight request 3" + self._content()

    def _content(self) -> bytes:
        writer = Writer().text(self.name).number("B", self.roles).raw(self.verifier)
        return bytes(writer.raw(self.public).field(self.extra))

    def encode(self) -> bytes:
        """The request as bytes; public."""
        return self._content() + self.signature

    @classmethod
    def read(cls, reader: Reader) -> Request:
        """Read a request and check its form and signature."""
        name, roles = reader.text(), reader.number("B")
        verifier, public = reader.raw(32), reader.raw(PUBLIC_BYTES)
        request = cls(
            name, Role(roles & 7), verifier, public, reader.field(), reader.raw(SIGNATURE_BYTES)
        )
        sound = (
            0 < len(name.encode()) <= _NAME_BYTES
            and name.isprintable()
            and 0 < roles <= 7
            and len(request.extra) <= _EXTRA_BYTES
        )
        if not sound or not Verifier(verifier).verify(request._signed(), request.signature):
            raise ProtocolError("malformed: a request is damaged or was not signed by its maker.")
        return request

    @classmethod
    def decode(cls, data: bytes) -> Request:
        reader = Reader(data)
        request = cls.read(reader)
        reader.end()
        return request


class PartyKeys:
    """A party's own secrets: an Ed25519 identity and the first hybrid key pair.

    A holder needs the hybrid key until it has answered its first round, and a user until it has the
    tag seed; afterwards only `without_private` is kept.
    """

    def __init__(self, identity: Identity, private: HybridKey | None) -> None:
        self.identity, self.private = identity, private

    @classmethod
    def generate(cls) -> PartyKeys:
        """Return fresh keys from the operating system's entropy."""
        return cls(Identity(), HybridKey())

    def __repr__(self) -> str:
        return "PartyKeys(secret)"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("keys are never pickled or copied: use dump() and keep the bytes private.")

    def request(self, name: str, roles: Role, extra: bytes = b"") -> Request:
        """Return the public request of a party with these keys."""
        if not 0 < len(name.encode()) <= _NAME_BYTES or not name.isprintable():
            raise InvalidParameter(
                f"name must have 1 to {_NAME_BYTES} printable bytes, got {name!r}."
            )
        if self.private is None:
            raise AssertionError("a request is made before the first key is erased")
        verifier, public = self.identity.verifier.dump(), self.private.public
        unsigned = Request(name, roles, verifier, public, extra, b"")
        return replace(unsigned, signature=self.identity.sign(unsigned._signed()))

    def without_private(self) -> PartyKeys:
        """The same identity without the hybrid key pair."""
        return PartyKeys(self.identity, None)

    def dump(self) -> bytes:
        """Identity and hybrid key as a sealed state; secret."""
        private = b"" if self.private is None else self.private.dump()
        return seal(b"KEYS", bytes(Writer().field(self.identity.dump()).field(private)))

    @classmethod
    def load(cls, data: bytes) -> PartyKeys:
        reader = unseal(b"KEYS", data)
        identity, private = Identity(reader.field()), reader.field()
        reader.end()
        return cls(identity, HybridKey(private) if private else None)


@dataclass(frozen=True)
class Roster:
    """What everybody agrees on: settings, a digest of what is learned, and all requests in order.

    Users and holders are numbered in the order of their requests.
    """

    settings: Settings
    plan: bytes
    requests: tuple[Request, ...]

    def __post_init__(self) -> None:
        if len(self.plan) != 32:
            raise InvalidData(f"plan must be a digest of 32 bytes, got {len(self.plan)}.")
        wanted = {
            Role.USER: self.settings.users,
            Role.HOLDER: self.settings.n_holders,
            Role.AGGREGATOR: 1,
        }
        for role, count in wanted.items():
            actual = sum(role in request.roles for request in self.requests)
            if actual != count:
                word = str(role.name).lower()
                raise InvalidData(f"{count} requests with role {word} were expected, got {actual}.")
        for attribute in ("name", "verifier", "public"):
            if len({getattr(request, attribute) for request in self.requests}) != len(
                self.requests
            ):
                raise InvalidData(
                    f"two requests have the same {attribute}: each party needs its own."
                )

    def encode(self) -> bytes:
        """The roster as bytes; public."""
        return self._encoded

    @cached_property
    def _encoded(self) -> bytes:
        writer = Writer().raw(b"BSRO\3").field(self.settings.encode()).raw(self.plan)
        writer.number("I", len(self.requests))
        for request in self.requests:
            writer.raw(request.encode())
        return bytes(writer)

    @classmethod
    @lru_cache(maxsize=4)  # parties read the same roster, with all its signatures, at each message
    def decode(cls, data: bytes) -> Roster:
        """Read an untrusted roster; the signature of every request is checked."""
        try:
            reader = Reader(data)
            if reader.raw(5) != b"BSRO\3":
                raise ProtocolError("malformed: not a roster of version 3.")
            settings, plan = Settings.decode(reader.field()), reader.raw(32)
            count = reader.number("I")
            if count > _MOST_REQUESTS:
                raise ProtocolError("malformed: a roster has too many requests.")
            requests = tuple(Request.read(reader) for _ in range(count))
            reader.end()
            return cls(settings, plan, requests)
        except (ProtocolError, InvalidParameter, InvalidData) as error:
            raise HostileFile(f"this is not a roster: {error}") from error

    @cached_property
    def agreement(self) -> bytes:
        """The digest that every message carries."""
        return hashlib.sha256(self.encode()).digest()

    @cached_property
    def fingerprint(self) -> str:
        """30 digits for people to compare over another channel, in groups of five.

        The maker of the roster could search for two rosters with the same digits, which takes about
        10^15 tries. Each try is therefore made slow: scrypt takes about 0.1 s and 32 MB.
        """
        slow = hashlib.scrypt(
            self.agreement, salt=b"blindsight fingerprint 3", n=1 << 15, r=8, p=1, maxmem=1 << 26
        )
        digits = f"{int.from_bytes(slow, 'big') % 10**30:030d}"
        return " ".join(digits[i : i + 5] for i in range(0, 30, 5))

    def _with(self, role: Role) -> list[Request]:
        return [request for request in self.requests if role in request.roles]

    @cached_property
    def users(self) -> dict[int, Request]:
        """The request of each user, by user number from 1."""
        return dict(enumerate(self._with(Role.USER), start=1))

    @cached_property
    def holders(self) -> dict[int, Request]:
        """The request of each holder, by holder number from 1."""
        return dict(enumerate(self._with(Role.HOLDER), start=1))

    @cached_property
    def aggregator(self) -> Request:
        """The request of the one aggregator."""
        return self._with(Role.AGGREGATOR)[0]

    @cached_property
    def verifiers(self) -> dict[int, Verifier]:
        """The signature key of every party, by address."""
        addressed = {
            AGGREGATOR: self.aggregator,
            **{holder(j): request for j, request in self.holders.items()},
            **self.users,
        }
        return {number: Verifier(request.verifier) for number, request in addressed.items()}

    @cached_property
    def _by_verifier(self) -> dict[bytes, Request]:
        return {request.verifier: request for request in self.requests}

    @cached_property
    def _numbers(self) -> dict[tuple[Role, bytes], int]:
        numbers = {(Role.AGGREGATOR, self.aggregator.verifier): AGGREGATOR}
        numbers |= {(Role.USER, r.verifier): n for n, r in self.users.items()}
        return numbers | {(Role.HOLDER, r.verifier): holder(j) for j, r in self.holders.items()}

    def own(self, verifier: bytes) -> Request:
        """Return the request with this signature key, which is unique."""
        request = self._by_verifier.get(verifier)
        if request is None:
            raise InvalidData(
                "the roster does not hold this party's request. Do not take part; ask who made it."
            )
        return request

    def number(self, role: Role, request: Request) -> int:
        """Return the address of a party in a role."""
        number = self._numbers.get((role, request.verifier))
        if number is None:
            raise InvalidParameter(f"{request.name!r} has no role {str(role.name).lower()}.")
        return number


@dataclass(frozen=True)
class Enrolment:
    """A party's keys and the roster that it accepted."""

    keys: PartyKeys
    roster: Roster = field(repr=False)
    tag_seed: bytes = field(default=b"", repr=False)

    @property
    def settings(self) -> Settings:
        """The settings of the federation."""
        return self.roster.settings

    @cached_property
    def own(self) -> Request:
        """This party's request in the roster."""
        return self.roster.own(self.keys.identity.verifier.dump())

    def number(self, role: Role) -> int:
        """Return this party's address in a role."""
        return self.roster.number(role, self.own)

    def check(self, request: Request) -> None:
        """Refuse a roster that changes this party's own request."""
        if self.own.encode() != request.encode():
            raise InvalidData(
                f"the roster changes the request of {request.name!r}. Do not take part; ask who "
                "made it."
            )

    def dump(self) -> bytes:
        """Keys, roster and tag seed, sealed; secret."""
        writer = Writer().field(self.keys.dump()).field(self.roster.encode())
        return seal(b"ENRL", bytes(writer.field(self.tag_seed)))

    @classmethod
    def load(cls, data: bytes) -> Enrolment:
        reader = unseal(b"ENRL", data)
        keys, roster = PartyKeys.load(reader.field()), Roster.decode(reader.field())
        enrolment = cls(keys, roster, reader.field())
        reader.end()
        return enrolment


def enrol(
    settings: Settings, *, plan: bytes = bytes(32), names: Sequence[str] = ()
) -> Mapping[Role, list[Enrolment]]:
    """Return the enrolments of all parties of a simulation, with one common tag seed.

    If there are as many holders as users, each user is its own holder.
    """
    shared = settings.n_holders == settings.users
    roles = [Role.USER | Role.HOLDER if shared else Role.USER] * settings.users
    if not shared:
        roles += [Role.HOLDER] * settings.n_holders
    roles.append(Role.AGGREGATOR)
    keys = [PartyKeys.generate() for _ in roles]
    requests = tuple(
        key.request(names[i] if i < len(names) else f"party {i + 1}", role)
        for i, (key, role) in enumerate(zip(keys, roles, strict=True))
    )
    roster = Roster(settings, plan, requests)
    seed = hashlib.sha256(b"simulation" + Identity().dump()).digest()
    enrolments = [Enrolment(key, roster, seed) for key in keys]
    return {
        role: [e for e, own in zip(enrolments, roles, strict=True) if role in own]
        for role in (Role.USER, Role.HOLDER, Role.AGGREGATOR)
    }
