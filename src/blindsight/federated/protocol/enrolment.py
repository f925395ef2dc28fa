"""Lines 1 and 2 of Algorithm 1: the key generator makes keys and secrets, and hands each party its share.

What is shared with whom:

    secret                      users   aggregator   key generator
    φ's seed                    all     -            yes
    φ^(n)'s seed                n       yes          made by it, not kept
    the key of user n's tags    n       -            yes
    the factors of n            -       -            yes

Each enrolment is a value with a sealed binary form. All of them are secret: send them over a protected channel.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from blindsight.core.errors import InvalidParameter
from blindsight.federated import keys
from blindsight.federated.messages import AGGREGATOR, KEYGEN
from blindsight.federated.paillier import PrivateKey, PublicKey
from blindsight.federated.protocol.settings import Settings
from blindsight.federated.signatures import Hmac, Identity, Verifier, load_identity, load_verifier
from blindsight.federated.wire import Reader, Writer, seal, unseal

__all__ = ["AggregatorEnrolment", "KeygenEnrolment", "Setup", "UserEnrolment", "enrol"]


class _Sealed:
    """Secret fields never show in repr (`field(repr=False)`) and never go into a pickle."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("an enrolment is never pickled or copied: use dump() and keep the bytes to their owner.")


@dataclass(frozen=True, kw_only=True)
class UserEnrolment(_Sealed):
    """What user n gets: ζ(·), φ, φ^(n), M (line 2), and what it needs to sign and to tag."""

    number: int
    settings: Settings
    public: PublicKey
    shared_seed: bytes = field(repr=False)
    own_seed: bytes = field(repr=False)
    tag_key: bytes = field(repr=False)
    aggregator: Verifier = field(repr=False)
    identity: Identity = field(repr=False)

    def dump(self) -> bytes:
        """Sealed bytes; secret."""
        writer = Writer().number("I", self.number).field(self.settings.encode())
        writer.field(keys.dump_public(self.public)).raw(self.shared_seed).raw(self.own_seed).raw(self.tag_key)
        return seal(b"USER", bytes(writer.field(self.aggregator.dump()).field(self.identity.dump())))

    @classmethod
    def load(cls, data: bytes) -> UserEnrolment:
        """Read what `dump` wrote."""
        reader = unseal(b"USER", data)
        return cls(
            number=reader.number("I"),
            settings=Settings.decode(reader.field()),
            public=keys.load_public(reader.field()),
            shared_seed=reader.raw(32),
            own_seed=reader.raw(32),
            tag_key=reader.raw(32),
            aggregator=load_verifier(reader.field()),
            identity=load_identity(reader.field()),
        )


@dataclass(frozen=True, kw_only=True)
class AggregatorEnrolment(_Sealed):
    """What the aggregator gets: ζ(·), all φ^(n) (line 2), and whose signatures to expect."""

    settings: Settings
    public: PublicKey
    user_seeds: Mapping[int, bytes] = field(repr=False)
    verifiers: Mapping[int, Verifier] = field(repr=False)
    identity: Identity = field(repr=False)

    def dump(self) -> bytes:
        """Sealed bytes; secret."""
        writer = Writer().field(self.settings.encode()).field(keys.dump_public(self.public))
        _write_map(writer, self.user_seeds)
        _write_map(writer, {number: verifier.dump() for number, verifier in self.verifiers.items()})
        return seal(b"AGGR", bytes(writer.field(self.identity.dump())))

    @classmethod
    def load(cls, data: bytes) -> AggregatorEnrolment:
        """Read what `dump` wrote."""
        reader = unseal(b"AGGR", data)
        return cls(
            settings=Settings.decode(reader.field()),
            public=keys.load_public(reader.field()),
            user_seeds=_read_map(reader),
            verifiers={number: load_verifier(value) for number, value in _read_map(reader).items()},
            identity=load_identity(reader.field()),
        )


@dataclass(frozen=True, kw_only=True)
class KeygenEnrolment(_Sealed):
    """What opens sums: φ's seed, the tags' keys, whose signatures to expect, and the private key.

    `private` is None where the key is shared among holders (`blindsight.federated.protocol.holders`).
    """

    settings: Settings
    public: PublicKey
    private: PrivateKey | None
    shared_seed: bytes = field(repr=False)
    tag_keys: Mapping[int, bytes] = field(repr=False)
    verifiers: Mapping[int, Verifier] = field(repr=False)
    identity: Identity = field(repr=False)

    def dump(self) -> bytes:
        """Sealed bytes; secret."""
        writer = Writer().field(self.settings.encode()).field(keys.dump_public(self.public))
        writer.field(b"" if self.private is None else keys.dump_private(self.private)).raw(self.shared_seed)
        _write_map(writer, self.tag_keys)
        _write_map(writer, {number: verifier.dump() for number, verifier in self.verifiers.items()})
        return seal(b"KEYG", bytes(writer.field(self.identity.dump())))

    @classmethod
    def load(cls, data: bytes) -> KeygenEnrolment:
        """Read what `dump` wrote."""
        reader = unseal(b"KEYG", data)
        settings, public = Settings.decode(reader.field()), keys.load_public(reader.field())
        private = reader.field()
        return cls(
            settings=settings,
            public=public,
            private=keys.load_private(private) if private else None,
            shared_seed=reader.raw(32),
            tag_keys=_read_map(reader),
            verifiers={number: load_verifier(value) for number, value in _read_map(reader).items()},
            identity=load_identity(reader.field()),
        )


@dataclass(frozen=True)
class Setup(_Sealed):
    """Everybody's enrolment, as the key generator makes it."""

    keygen: KeygenEnrolment
    aggregator: AggregatorEnrolment
    users: tuple[UserEnrolment, ...]


def enrol(settings: Settings, key: PrivateKey, *, identities: Mapping[int, Identity] | None = None) -> Setup:
    """Make every party's enrolment.

    `identities` maps 0 (the aggregator), 1..N (users) and `messages.KEYGEN` to their signing identities; without it
    HMAC identities are made, which is right for a simulation (see `blindsight.federated.signatures`).
    """
    numbers = range(1, settings.users + 1)
    everybody = (AGGREGATOR, KEYGEN, *numbers)
    signing: Mapping[int, Identity] = {n: Hmac() for n in everybody} if identities is None else identities
    missing = [n for n in everybody if n not in signing]
    if missing:
        raise InvalidParameter(f"identities must name every party; {missing[0]} is missing.")
    shared = secrets.token_bytes(32)
    own = {n: secrets.token_bytes(32) for n in numbers}
    tags = {n: secrets.token_bytes(32) for n in numbers}
    verifiers = {n: signing[n].verifier for n in everybody}
    users = tuple(
        UserEnrolment(
            number=n,
            settings=settings,
            public=key.public,
            shared_seed=shared,
            own_seed=own[n],
            tag_key=tags[n],
            aggregator=verifiers[AGGREGATOR],
            identity=signing[n],
        )
        for n in numbers
    )
    aggregator = AggregatorEnrolment(
        settings=settings,
        public=key.public,
        user_seeds=own,
        verifiers=verifiers,
        identity=signing[AGGREGATOR],
    )
    keygen = KeygenEnrolment(
        settings=settings,
        public=key.public,
        private=key,
        shared_seed=shared,
        tag_keys=tags,
        verifiers=verifiers,
        identity=signing[KEYGEN],
    )
    return Setup(keygen, aggregator, users)


def _write_map(writer: Writer, values: Mapping[int, bytes]) -> None:
    writer.number("I", len(values))
    for number, value in values.items():
        writer.number("I", number).field(value)


def _read_map(reader: Reader) -> dict[int, bytes]:
    return {reader.number("I"): reader.field() for _ in range(reader.number("I"))}
