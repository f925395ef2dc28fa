"""Who sent this: 64-byte Ed25519 signatures over messages.

Everybody can check, only the owner can sign.
"""

from __future__ import annotations

import secrets
from typing import Any, NoReturn

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from blindsight.core.errors import InvalidData

__all__ = ["SIGNATURE_BYTES", "Identity", "Verifier"]

SIGNATURE_BYTES = 64


class Verifier:
    """The public half of an identity: 32 bytes to hand to those who check."""

    def __init__(self, key: bytes) -> None:
        self._raw = _checked(key)
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


class Identity:
    """Signs as one party; its secret, 32 bytes, is shown by nothing but `dump`."""

    def __init__(self, key: bytes | None = None) -> None:
        self._raw = secrets.token_bytes(32) if key is None else _checked(key)
        self._key = Ed25519PrivateKey.from_private_bytes(self._raw)

    def __repr__(self) -> str:
        return "Identity(secret)"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "an identity is never pickled or copied: use dump() and keep the bytes to their owner."
        )

    @property
    def verifier(self) -> Verifier:
        """The public half."""
        return Verifier(self._key.public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        """RFC 8032's signature."""
        return self._key.sign(bytes(message))

    def dump(self) -> bytes:
        """The private seed."""
        return self._raw


def _checked(data: bytes) -> bytes:
    if len(data) != 32:
        raise InvalidData("a stored identity must have 32 bytes.")
    return bytes(data)
