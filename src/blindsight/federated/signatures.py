"""Who sent this: 64-byte Ed25519 signatures over messages. Everybody can check, only the owner can sign."""

from __future__ import annotations

import secrets
from typing import Any, NoReturn, Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from blindsight.core.errors import InvalidData

__all__ = ["SIGNATURE_BYTES", "Ed25519", "Ed25519Verifier", "Identity", "Verifier", "load_identity", "load_verifier"]

SIGNATURE_BYTES = 64


class Verifier(Protocol):
    """Checks one party's signatures."""

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Whether this party signed the message."""
        ...

    def dump(self) -> bytes:
        """32 bytes to hand to those who check."""
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
        """32 bytes, secret."""
        ...


class Ed25519Verifier:
    """The public half of an identity."""

    def __init__(self, key: bytes) -> None:
        self._raw = bytes(key)
        self._key = Ed25519PublicKey.from_public_bytes(self._raw)

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Whether the owner of the private key signed."""
        try:
            self._key.verify(bytes(signature), bytes(message))
        except InvalidSignature:
            return False
        return True

    def dump(self) -> bytes:
        """The public key."""
        return self._raw


class Ed25519:
    """An Ed25519 key pair; `verifier` is its public half."""

    def __init__(self, key: bytes | None = None) -> None:
        self._raw = secrets.token_bytes(32) if key is None else bytes(key)
        self._key = Ed25519PrivateKey.from_private_bytes(self._raw)

    def __repr__(self) -> str:
        return "Ed25519(secret)"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("an identity is never pickled or copied: use dump() and keep the bytes to their owner.")

    @property
    def verifier(self) -> Ed25519Verifier:
        """The public half."""
        return Ed25519Verifier(self._key.public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        """RFC 8032's signature."""
        return self._key.sign(bytes(message))

    def dump(self) -> bytes:
        """The private seed."""
        return self._raw


def load_identity(data: bytes) -> Ed25519:
    """Read what an identity's `dump` wrote."""
    return Ed25519(_checked(data))


def load_verifier(data: bytes) -> Ed25519Verifier:
    """Read what a verifier's `dump` wrote."""
    return Ed25519Verifier(_checked(data))


def _checked(data: bytes) -> bytes:
    if len(data) != 32:
        raise InvalidData("a stored identity must have 32 bytes.")
    return bytes(data)
