"""Lines 1 and 2 of Algorithm 1: whoever makes the keys hands each party its secrets.

What is shared with whom:

    secret                                            users   aggregator   key generator   key
    holders the seed of the vectors' tags                     all     -            made, not kept  -
    the seed of the slots' checks (φ in `paper`)      all     -            yes             - user
    n's own seed of checks                       n       -            yes             - φ^(n)'s seed
    (`paper` only)                       n       yes          made, not kept  - the factors of the
    Paillier modulus               -       -            yes             - holder j's X25519 key
    -       -            -               j

Each enrolment is a value with a sealed binary form. All of them are secret: send them over a
protected channel. The
*agreement* is a digest of settings, keys and everybody's signature keys; every message carries it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NoReturn, Self

from blindsight.core.errors import InvalidParameter
from blindsight.federated import keys
from blindsight.federated.messages import AGGREGATOR, KEYGEN, holder
from blindsight.federated.paillier import PrivateKey, PublicKey
from blindsight.federated.settings import Settings
from blindsight.federated.signatures import Identity, Verifier
from blindsight.federated.transport.shares import public_of
from blindsight.federated.wire import Reader, Writer, seal, unseal

__all__ = [
    "AggregatorEnrolment",
    "HolderEnrolment",
    "KeygenEnrolment",
    "Setup",
    "UserEnrolment",
    "enrol",
    "parties",
]


class _Secret:
    """Secret fields never show in repr (`field(repr=False)`) and never go into a pickle."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "an enrolment is never pickled or copied: use dump() and keep the bytes to their owner."
        )


class _Sealed(_Secret):
    """Its sealed form is one field after the other, each as its type is written."""

    _kind: ClassVar[bytes]

    def dump(self) -> bytes:
        """Sealed bytes; secret."""
        writer = Writer()
        for each in fields(self):  # type: ignore[arg-type]
            _FORMS[str(each.type)][0](writer, getattr(self, each.name))
        return seal(self._kind, bytes(writer))

    @classmethod
    def load(cls, data: bytes) -> Self:
        """Read what `dump` wrote."""
        reader = unseal(cls._kind, data)
        found = {each.name: _FORMS[str(each.type)][1](reader) for each in fields(cls)}  # type: ignore[arg-type]
        reader.end()
        return cls(**found)


@dataclass(frozen=True, kw_only=True)
class UserEnrolment(_Sealed):
    """What user n gets. `public` is None where key holders open the sums, `holders` empty where one
    key generator does.

    `verifiers`: of the aggregator and of who opens the sums.
    """

    _kind: ClassVar[bytes] = b"USER"
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


@dataclass(frozen=True, kw_only=True)
class AggregatorEnrolment(_Sealed):
    """What the aggregator gets: public keys, whose signatures to expect, and in `paper` mode all
    φ^(n).
    """

    _kind: ClassVar[bytes] = b"AGGR"
    settings: Settings
    agreement: bytes
    public: PublicKey | None
    user_seeds: Mapping[int, bytes] = field(repr=False)
    verifiers: Mapping[int, Verifier] = field(repr=False)
    identity: Identity = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class KeygenEnrolment(_Sealed):
    """What opens sums: the private key, the checks' seeds, and whose signatures to expect."""

    _kind: ClassVar[bytes] = b"KEYG"
    settings: Settings
    agreement: bytes
    private: PrivateKey
    shared_seed: bytes = field(repr=False)
    own_seeds: Mapping[int, bytes] = field(repr=False)
    verifiers: Mapping[int, Verifier] = field(repr=False)
    identity: Identity = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class HolderEnrolment(_Sealed):
    """What key holder `index` gets: the key its shares are encrypted to, and whose signatures to
    expect.
    """

    _kind: ClassVar[bytes] = b"HOLD"
    index: int
    settings: Settings
    agreement: bytes
    private: bytes = field(repr=False)
    verifiers: Mapping[int, Verifier] = field(repr=False)
    identity: Identity = field(repr=False)


@dataclass(frozen=True)
class Setup(_Secret):
    """Everybody's enrolment. `keygen` is None where there are holders."""

    aggregator: AggregatorEnrolment
    users: tuple[UserEnrolment, ...]
    keygen: KeygenEnrolment | None
    holders: tuple[HolderEnrolment, ...]


def parties(settings: Settings) -> tuple[int, ...]:
    """Everybody's address."""
    openers = (
        (KEYGEN,)
        if settings.holders is None
        else tuple(holder(j) for j in range(1, settings.holders[1] + 1))
    )
    return (AGGREGATOR, *openers, *range(1, settings.users + 1))


def enrol(settings: Settings, key: PrivateKey | None = None) -> Setup:
    """Make every party's enrolment. A key generator needs a `key`; key holders need none."""
    signing = {n: Identity() for n in parties(settings)}
    if (key is None) != (settings.holders is not None):
        raise InvalidParameter(
            "one key generator needs a Paillier key, and key holders go without."
        )
    numbers = range(1, settings.users + 1)
    indices = range(1, settings.holders[1] + 1) if settings.holders else range(0)
    private = {j: secrets.token_bytes(32) for j in indices}
    public = {j: public_of(raw) for j, raw in private.items()}
    verifiers = {n: identity.verifier for n, identity in signing.items()}
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
        keygen = KeygenEnrolment(
            **common, private=key, shared_seed=shared, own_seeds=own, identity=signing[KEYGEN]
        )
    holders = tuple(
        HolderEnrolment(**common, index=j, private=private[j], identity=signing[holder(j)])
        for j in indices
    )
    return Setup(aggregator, users, keygen, holders)


def _agreement(
    settings: Settings,
    public: PublicKey | None,
    holders: Mapping[int, bytes],
    verifiers: Mapping[int, Verifier],
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


def _write_map(writer: Writer, values: Mapping[int, bytes]) -> None:
    writer.number("I", len(values))
    for number, value in values.items():
        writer.number("I", number).field(value)


def _read_map(reader: Reader) -> dict[int, bytes]:
    return {reader.number("I"): reader.field() for _ in range(reader.number("I"))}


# How a field of an enrolment is written and read, by its type. Plain bytes are seeds and digests:
# 32 of them.
_FORMS: dict[str, tuple[Callable[[Writer, Any], Any], Callable[[Reader], Any]]] = {
    "int": (lambda writer, value: writer.number("I", value), lambda reader: reader.number("I")),
    "bytes": (lambda writer, value: writer.raw(value), lambda reader: reader.raw(32)),
    "Settings": (
        lambda writer, value: writer.field(value.encode()),
        lambda reader: Settings.decode(reader.field()),
    ),
    "PublicKey | None": (
        lambda writer, value: writer.field(_public(value)),
        lambda reader: _load_public(reader.field()),
    ),
    "PrivateKey": (
        lambda writer, value: writer.field(keys.dump_private(value)),
        lambda reader: keys.load_private(reader.field()),
    ),
    "Identity": (
        lambda writer, value: writer.field(value.dump()),
        lambda reader: Identity(reader.field()),
    ),
    "Mapping[int, bytes]": (_write_map, _read_map),
    "Mapping[int, Verifier]": (
        _write_verifiers,
        lambda reader: {number: Verifier(value) for number, value in _read_map(reader).items()},
    ),
}
