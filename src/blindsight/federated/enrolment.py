"""Lines 1 and 2 of Algorithm 1: whoever makes the keys hands each party its secrets.

What is shared with whom:

    secret                                            users   aggregator   key generator   key holders
    the seed of the vectors' tags                     all     -            made, not kept  -
    the seed of the slots' checks (φ in `paper`)      all     -            yes             -
    user n's own seed of checks                       n       -            yes             -
    φ^(n)'s seed (`paper` only)                       n       yes          made, not kept  -
    the factors of the Paillier modulus               -       -            yes             -
    holder j's X25519 key                             -       -            -               j

Each enrolment is a value with a sealed binary form. All of them are secret: send them over a protected channel. The
*agreement* is a digest of settings, keys and everybody's signature keys; every message carries it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from blindsight.core.errors import InvalidParameter
from blindsight.federated import keys
from blindsight.federated.messages import AGGREGATOR, KEYGEN, holder
from blindsight.federated.paillier import PrivateKey, PublicKey
from blindsight.federated.settings import Settings
from blindsight.federated.signatures import Ed25519, Identity, Verifier, load_identity, load_verifier
from blindsight.federated.transport.shares import public_of
from blindsight.federated.wire import Reader, Writer, seal, unseal

__all__ = ["AggregatorEnrolment", "HolderEnrolment", "KeygenEnrolment", "Setup", "UserEnrolment", "enrol", "parties"]


class _Sealed:
    """Secret fields never show in repr (`field(repr=False)`) and never go into a pickle."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("an enrolment is never pickled or copied: use dump() and keep the bytes to their owner.")


@dataclass(frozen=True, kw_only=True)
class UserEnrolment(_Sealed):
    """What user n gets. `public` is None where key holders open the sums, `holders` empty where one key generator does.

    `verifiers`: of the aggregator and of who opens the sums.
    """

    number: int
    settings: Settings
    agreement: bytes
    public: PublicKey | None
    tag_seed: bytes = field(repr=False)
    shared_seed: bytes = field(repr=False)
    own_seed: bytes = field(repr=False)
    aggregator_seed: bytes = field(repr=False)
    holders: Mapping[int, bytes] = field(repr=False)
    verifiers: Mapping[int, Verifier] = field(repr=False)
    identity: Identity = field(repr=False)

    def dump(self) -> bytes:
        """Sealed bytes; secret."""
        writer = Writer().number("I", self.number).field(self.settings.encode()).raw(self.agreement)
        writer.field(_public(self.public))
        for seed in (self.tag_seed, self.shared_seed, self.own_seed, self.aggregator_seed):
            writer.raw(seed)
        _write_map(writer, self.holders)
        _write_verifiers(writer, self.verifiers)
        return seal(b"USER", bytes(writer.field(self.identity.dump())))

    @classmethod
    def load(cls, data: bytes) -> UserEnrolment:
        """Read what `dump` wrote."""
        reader = unseal(b"USER", data)
        return cls(
            number=reader.number("I"),
            settings=Settings.decode(reader.field()),
            agreement=reader.raw(32),
            public=_load_public(reader.field()),
            tag_seed=reader.raw(32),
            shared_seed=reader.raw(32),
            own_seed=reader.raw(32),
            aggregator_seed=reader.raw(32),
            holders=_read_map(reader),
            verifiers=_read_verifiers(reader),
            identity=load_identity(reader.field()),
        )


@dataclass(frozen=True, kw_only=True)
class AggregatorEnrolment(_Sealed):
    """What the aggregator gets: public keys, whose signatures to expect, and in `paper` mode all φ^(n)."""

    settings: Settings
    agreement: bytes
    public: PublicKey | None
    user_seeds: Mapping[int, bytes] = field(repr=False)
    verifiers: Mapping[int, Verifier] = field(repr=False)
    identity: Identity = field(repr=False)

    def dump(self) -> bytes:
        """Sealed bytes; secret."""
        writer = Writer().field(self.settings.encode()).raw(self.agreement).field(_public(self.public))
        _write_map(writer, self.user_seeds)
        _write_verifiers(writer, self.verifiers)
        return seal(b"AGGR", bytes(writer.field(self.identity.dump())))

    @classmethod
    def load(cls, data: bytes) -> AggregatorEnrolment:
        """Read what `dump` wrote."""
        reader = unseal(b"AGGR", data)
        return cls(
            settings=Settings.decode(reader.field()),
            agreement=reader.raw(32),
            public=_load_public(reader.field()),
            user_seeds=_read_map(reader),
            verifiers=_read_verifiers(reader),
            identity=load_identity(reader.field()),
        )


@dataclass(frozen=True, kw_only=True)
class KeygenEnrolment(_Sealed):
    """What opens sums: the private key, the checks' seeds, and whose signatures to expect."""

    settings: Settings
    agreement: bytes
    private: PrivateKey
    shared_seed: bytes = field(repr=False)
    own_seeds: Mapping[int, bytes] = field(repr=False)
    verifiers: Mapping[int, Verifier] = field(repr=False)
    identity: Identity = field(repr=False)

    def dump(self) -> bytes:
        """Sealed bytes; secret."""
        writer = Writer().field(self.settings.encode()).raw(self.agreement).field(keys.dump_private(self.private))
        _write_map(writer.raw(self.shared_seed), self.own_seeds)
        _write_verifiers(writer, self.verifiers)
        return seal(b"KEYG", bytes(writer.field(self.identity.dump())))

    @classmethod
    def load(cls, data: bytes) -> KeygenEnrolment:
        """Read what `dump` wrote."""
        reader = unseal(b"KEYG", data)
        return cls(
            settings=Settings.decode(reader.field()),
            agreement=reader.raw(32),
            private=keys.load_private(reader.field()),
            shared_seed=reader.raw(32),
            own_seeds=_read_map(reader),
            verifiers=_read_verifiers(reader),
            identity=load_identity(reader.field()),
        )


@dataclass(frozen=True, kw_only=True)
class HolderEnrolment(_Sealed):
    """What key holder `index` gets: the key its shares are encrypted to, and whose signatures to expect."""

    index: int
    settings: Settings
    agreement: bytes
    private: bytes = field(repr=False)
    verifiers: Mapping[int, Verifier] = field(repr=False)
    identity: Identity = field(repr=False)

    def dump(self) -> bytes:
        """Sealed bytes; secret."""
        writer = Writer().number("B", self.index).field(self.settings.encode()).raw(self.agreement).raw(self.private)
        _write_verifiers(writer, self.verifiers)
        return seal(b"HOLD", bytes(writer.field(self.identity.dump())))

    @classmethod
    def load(cls, data: bytes) -> HolderEnrolment:
        """Read what `dump` wrote."""
        reader = unseal(b"HOLD", data)
        return cls(
            index=reader.number("B"),
            settings=Settings.decode(reader.field()),
            agreement=reader.raw(32),
            private=reader.raw(32),
            verifiers=_read_verifiers(reader),
            identity=load_identity(reader.field()),
        )


@dataclass(frozen=True)
class Setup(_Sealed):
    """Everybody's enrolment. `keygen` is None where there are holders."""

    aggregator: AggregatorEnrolment
    users: tuple[UserEnrolment, ...]
    keygen: KeygenEnrolment | None
    holders: tuple[HolderEnrolment, ...]


def parties(settings: Settings) -> tuple[int, ...]:
    """Everybody's address."""
    openers = (KEYGEN,) if settings.holders is None else tuple(holder(j) for j in range(1, settings.holders[1] + 1))
    return (AGGREGATOR, *openers, *range(1, settings.users + 1))


def enrol(
    settings: Settings, key: PrivateKey | None = None, *, identities: Mapping[int, Identity] | None = None
) -> Setup:
    """Make every party's enrolment. A key generator needs a `key`; key holders need none.

    `identities` maps every address of `parties(settings)` to its signing identity; without it they are made here.
    """
    everybody = parties(settings)
    signing: Mapping[int, Identity] = {n: Ed25519() for n in everybody} if identities is None else identities
    missing = [n for n in everybody if n not in signing]
    if missing:
        raise InvalidParameter(f"identities must name every party; {missing[0]} is missing.")
    if (key is None) != (settings.holders is not None):
        raise InvalidParameter("one key generator needs a Paillier key, and key holders go without.")
    numbers = range(1, settings.users + 1)
    indices = range(1, settings.holders[1] + 1) if settings.holders else range(0)
    private = {j: secrets.token_bytes(32) for j in indices}
    public = {j: public_of(raw) for j, raw in private.items()}
    verifiers = {n: signing[n].verifier for n in everybody}
    paillier = None if key is None else key.public
    agreement = _agreement(settings, paillier, public, verifiers)
    tags, shared = secrets.token_bytes(32), secrets.token_bytes(32)
    own, places = ({n: secrets.token_bytes(32) for n in numbers} for _ in range(2))
    not_users = {n: v for n, v in verifiers.items() if n not in numbers}
    users = tuple(
        UserEnrolment(
            number=n,
            settings=settings,
            agreement=agreement,
            public=paillier,
            tag_seed=tags,
            shared_seed=shared,
            own_seed=own[n],
            aggregator_seed=places[n],
            holders=public,
            verifiers=not_users,
            identity=signing[n],
        )
        for n in numbers
    )
    common: dict[str, Any] = {"settings": settings, "agreement": agreement, "verifiers": verifiers}
    aggregator = AggregatorEnrolment(
        **common,
        public=paillier,
        user_seeds=places if settings.mode == "paper" else {},
        identity=signing[AGGREGATOR],
    )
    keygen = None
    if key is not None:
        keygen = KeygenEnrolment(**common, private=key, shared_seed=shared, own_seeds=own, identity=signing[KEYGEN])
    holders = tuple(
        HolderEnrolment(**common, index=j, private=private[j], identity=signing[holder(j)]) for j in indices
    )
    return Setup(aggregator, users, keygen, holders)


def _agreement(
    settings: Settings, public: PublicKey | None, holders: Mapping[int, bytes], verifiers: Mapping[int, Verifier]
) -> bytes:
    writer = Writer().field(settings.encode()).field(_public(public))
    _write_map(writer, holders)
    _write_verifiers(writer, verifiers)
    return hashlib.sha256(b"blindsight federation" + bytes(writer)).digest()


def _public(public: PublicKey | None) -> bytes:
    return b"" if public is None else keys.dump_public(public)


def _load_public(data: bytes) -> PublicKey | None:
    return keys.load_public(data) if data else None


def _write_verifiers(writer: Writer, verifiers: Mapping[int, Verifier]) -> None:
    _write_map(writer, {number: verifier.dump() for number, verifier in verifiers.items()})


def _read_verifiers(reader: Reader) -> dict[int, Verifier]:
    return {number: load_verifier(value) for number, value in _read_map(reader).items()}


def _write_map(writer: Writer, values: Mapping[int, bytes]) -> None:
    writer.number("I", len(values))
    for number, value in values.items():
        writer.number("I", number).field(value)


def _read_map(reader: Reader) -> dict[int, bytes]:
    return {reader.number("I"): reader.field() for _ in range(reader.number("I"))}
