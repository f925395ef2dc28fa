"""Who sent this: 64-byte signatures over messages, in two kinds of the same size.

`Ed25519` (from `cryptography`, extra `cluster`) is for runs across machines: everybody can check, only the owner can
sign. `Hmac` (HMAC-SHA-512 under a key shared with those who check) needs nothing beyond Python and is for simulation
and for parties under one roof: whoever can check can also forge, so under it a dishonest aggregator is held only by
the tags inside the ciphertexts (`blindsight.federated.packing`), which it can't read. The core must run without
`cryptography`, hence both.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Any, NoReturn, Protocol

from blindsight.core.checks import optional_module
from blindsight.core.errors import InvalidData

__all__ = ["SIGNATURE_BYTES", "Ed25519", "Hmac", "Identity", "Verifier", "load_identity", "load_verifier"]

SIGNATURE_BYTES = 64
_HMAC, _ED25519 = b"H", b"E"


class Verifier(Protocol):
    """Checks one party's signatures."""

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Whether this party signed the message."""
        ...

    def dump(self) -> bytes:
        """33 bytes to hand to those who check."""
        ...


class Identity(Protocol):
    """Signs as one party; its secret is shown by nothing but `dump`."""

    @property
    def verifier(self) -> Verifier:
        """What others need to check."""
        ...

    def sign(self, message: bytes) -> bytes:
        """A 64-byte signature."""
        ...

    def dump(self) -> bytes:
        """33 bytes, secret."""
        ...


class _Secret:
    def __repr__(self) -> str:
        return f"{type(self).__name__}(secret)"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("an identity is never pickled or copied: use dump() and keep the bytes to their owner.")


class Hmac(_Secret):
    """HMAC-SHA-512 under a 32-byte key: identity and verifier in one."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = secrets.token_bytes(32) if key is None else bytes(key)
        if len(self._key) != 32:
            raise InvalidData("an HMAC identity needs a key of 32 bytes.")

    @property
    def verifier(self) -> Hmac:
        """Itself: the key is shared."""
        return self

    def sign(self, message: bytes) -> bytes:
        """The 64-byte authentication code."""
        return hmac.digest(self._key, message, hashlib.sha512)

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Compared in constant time."""
        return hmac.compare_digest(self.sign(message), signature)

    def dump(self) -> bytes:
        """The kind and the key."""
        return _HMAC + self._key


class _Ed25519Verifier:
    def __init__(self, key: bytes) -> None:
        ed25519 = optional_module("cryptography.hazmat.primitives.asymmetric.ed25519", extra="cluster")
        self._raw = bytes(key)
        self._key = ed25519.Ed25519PublicKey.from_public_bytes(self._raw)

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Whether the owner of the private key signed."""
        invalid = optional_module("cryptography.exceptions", extra="cluster").InvalidSignature
        try:
            self._key.verify(bytes(signature), bytes(message))
        except invalid:
            return False
        return True

    def dump(self) -> bytes:
        """The kind and the public key."""
        return _ED25519 + self._raw


class Ed25519(_Secret):
    """An Ed25519 key pair; `verifier` is its public half."""

    def __init__(self, key: bytes | None = None) -> None:
        ed25519 = optional_module("cryptography.hazmat.primitives.asymmetric.ed25519", extra="cluster")
        self._raw = secrets.token_bytes(32) if key is None else bytes(key)
        self._key = ed25519.Ed25519PrivateKey.from_private_bytes(self._raw)

    @property
    def verifier(self) -> _Ed25519Verifier:
        """The public half."""
        return _Ed25519Verifier(self._key.public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        """RFC 8032's signature."""
        return self._key.sign(bytes(message))

    def dump(self) -> bytes:
        """The kind and the private seed."""
        return _ED25519 + self._raw


def load_identity(data: bytes) -> Identity:
    """Read what an identity's `dump` wrote."""
    return _load(data, {_HMAC: Hmac, _ED25519: Ed25519})


def load_verifier(data: bytes) -> Verifier:
    """Read what a verifier's `dump` wrote."""
    return _load(data, {_HMAC: Hmac, _ED25519: _Ed25519Verifier})


def _load(data: bytes, kinds: dict[bytes, Any]) -> Any:
    data = bytes(data)
    if len(data) != 33 or data[:1] not in kinds:
        raise InvalidData("a stored identity must be one letter for its kind and 32 bytes.")
    return kinds[data[:1]](data[1:])
