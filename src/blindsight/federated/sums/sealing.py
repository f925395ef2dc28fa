"""Encryption to one party, and signatures of one party.

Encryption is by X25519 and ML-KEM-768 together, then AES-256-GCM.

The key is HKDF-SHA256 over both shared secrets, so it stays secret while either of the two schemes
does: X25519 against today's computers, ML-KEM-768 (FIPS 203) against quantum computers.

    key = HKDF(ML-KEM secret ‖ X25519 secret,
               info = label ‖ SHA-256(KEM ciphertext ‖ ephemeral key ‖ receiver's key) ‖ bound)
    sealed = KEM ciphertext (1,088 bytes) ‖ AES-256-GCM(key, nonce 0, plain, associated data bound)

The nonce may be zero because every key encrypts once.

Messages carry Ed25519 signatures of 64 bytes: everybody can check them, only the owner can sign.
"""

from __future__ import annotations

import hashlib
import secrets
from functools import cached_property
from typing import Any, Final, NoReturn

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from blindsight.core.errors import InvalidData, ProtocolError

__all__ = [
    "OVERHEAD",
    "PUBLIC_BYTES",
    "SIGNATURE_BYTES",
    "Ephemeral",
    "HybridKey",
    "Identity",
    "Verifier",
]

SIGNATURE_BYTES = 64


class Verifier:
    """The public half of an identity: 32 bytes that check its signatures."""

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
        return self._raw


class Identity:
    """Signs as one party; only `dump` returns its secret of 32 bytes."""

    def __init__(self, key: bytes | None = None) -> None:
        self._raw = secrets.token_bytes(32) if key is None else _checked(key)

    @cached_property
    def _key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self._raw)

    def __repr__(self) -> str:
        return "Identity(secret)"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "an identity is never pickled or copied: use dump() and keep the bytes to their owner."
        )

    @property
    def verifier(self) -> Verifier:
        """The public half, which checks signatures."""
        return Verifier(self._key.public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        """Return the Ed25519 signature of a message (RFC 8032)."""
        return self._key.sign(bytes(message))

    def dump(self) -> bytes:
        """The private seed of 32 bytes; secret."""
        return self._raw


def _checked(data: bytes) -> bytes:
    if len(data) != 32:
        raise InvalidData("a stored identity must have 32 bytes.")
    return bytes(data)


PUBLIC_BYTES: Final = 32 + 1184
KEM_BYTES: Final = 1088
OVERHEAD: Final = KEM_BYTES + 16
_SECRET_BYTES: Final = 32 + 64


class HybridKey:
    """A hybrid key pair; `public` is the X25519 key (32 bytes) and the ML-KEM-768 key (1,184)."""

    def __init__(self, data: bytes | None = None) -> None:
        if data is None:
            self._x25519, self._mlkem = X25519PrivateKey.generate(), MLKEM768PrivateKey.generate()
        elif len(data) != _SECRET_BYTES:
            raise ProtocolError(f"malformed: a private key has {_SECRET_BYTES} bytes.")
        else:
            self._x25519 = X25519PrivateKey.from_private_bytes(data[:32])
            self._mlkem = MLKEM768PrivateKey.from_seed_bytes(data[32:])
        self.public = (
            self._x25519.public_key().public_bytes_raw()
            + self._mlkem.public_key().public_bytes_raw()
        )

    def __repr__(self) -> str:
        return "HybridKey(secret)"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a private key is never pickled or copied.")

    def dump(self) -> bytes:
        """The X25519 key and the ML-KEM seed, 96 bytes; secret."""
        return self._x25519.private_bytes_raw() + self._mlkem.private_bytes_raw()

    def open(self, ephemeral: bytes, sealed: bytes, label: bytes, bound: bytes) -> bytes:
        """Decrypt what `Ephemeral.seal` made for this key.

        Raises:
            ProtocolError: the ciphertext is damaged, or was made for another receiver or another
                `bound`.
        """
        if len(sealed) < OVERHEAD:
            raise ProtocolError("malformed: a sealed message is too short.")
        try:
            post_quantum = self._mlkem.decapsulate(sealed[:KEM_BYTES])
            classical = self._x25519.exchange(X25519PublicKey.from_public_bytes(ephemeral))
            key = _key(
                post_quantum + classical, sealed[:KEM_BYTES], ephemeral, self.public, label, bound
            )
            return AESGCM(key).decrypt(bytes(12), sealed[KEM_BYTES:], bound)
        except (InvalidTag, ValueError) as error:
            raise ProtocolError("malformed: a sealed message does not open.") from error


class Ephemeral:
    """One sender's X25519 key for one contribution; used for all receivers, then discarded."""

    def __init__(self) -> None:
        self._key = X25519PrivateKey.generate()
        self.public = self._key.public_key().public_bytes_raw()

    def seal(self, receiver: bytes, plain: bytes, label: bytes, bound: bytes) -> bytes:
        """Encrypt to a receiver's public key; `bound` is authenticated and not sent."""
        if len(receiver) != PUBLIC_BYTES:
            raise ProtocolError(f"malformed: a public key has {PUBLIC_BYTES} bytes.")
        try:
            post_quantum, ciphertext = MLKEM768PublicKey.from_public_bytes(
                receiver[32:]
            ).encapsulate()
            classical = self._key.exchange(X25519PublicKey.from_public_bytes(receiver[:32]))
        except ValueError as error:
            raise ProtocolError("malformed: a public key is not valid.") from error
        key = _key(post_quantum + classical, ciphertext, self.public, receiver, label, bound)
        return ciphertext + AESGCM(key).encrypt(bytes(12), plain, bound)


def _key(
    secret: bytes, ciphertext: bytes, ephemeral: bytes, receiver: bytes, label: bytes, bound: bytes
) -> bytes:
    digest = hashlib.sha256(ciphertext + ephemeral + receiver).digest()
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=label + digest + bound).derive(
        secret
    )
