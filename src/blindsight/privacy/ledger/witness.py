"""Heads kept elsewhere: a file that grows by a line for each head it is shown, signed where there
is a key.

Whoever can write to a ledger's database can rewrite all of it, or put back an old copy. A witness
on another disk, in another folder or on another host, which that person cannot write to, shows it:
the chain must pass through every head that the witness holds. A signature (Ed25519: the ledger's
keeper holds the private key, everyone may have the public one) shows that nobody else wrote a line.
Lines that were taken away it does not show.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from blindsight.core import durable
from blindsight.core.errors import HostileFile, InvalidParameter, LedgerTampered
from blindsight.privacy.ledger.book import Ledger
from blindsight.privacy.ledger.chain import Head

__all__ = ["SigningKey", "make_key", "read_witness", "witness"]

NAME = "ledger-witness.jsonl"
_PURPOSE = b"blindsight ledger head 1\n"
_FIELDS = {"dataset", "sequence", "hash", "time", "key", "signature"}
_LARGEST = 1 << 28


class SigningKey:
    """An Ed25519 key that signs heads, or only checks them where it is a public one.

    The secret never shows.
    """

    def __init__(
        self, secret: ed25519.Ed25519PrivateKey | None, public: ed25519.Ed25519PublicKey
    ) -> None:
        self._secret, self._public = secret, public

    @classmethod
    def read(cls, path: str | Path) -> SigningKey:
        """A key from a file that `make_key` wrote."""
        try:
            content = Path(path).read_bytes()[:4096]
        except OSError as error:
            raise InvalidParameter(f"the key {path} cannot be read: {error.strerror}.") from None
        try:
            if b"PRIVATE KEY" not in content:
                return cls(None, _ed25519(serialization.load_pem_public_key(content)))
            secret = serialization.load_pem_private_key(content, password=None)
            return cls(secret, _ed25519(secret.public_key()))  # type: ignore[arg-type]
        except (ValueError, TypeError):
            raise InvalidParameter(
                f"{path} is not a key that blindsight ledger key makes."
            ) from None

    @property
    def fingerprint(self) -> str:
        """Which key it is, for the witness; says nothing of the secret."""
        return f"ed25519:{hashlib.sha256(b'fingerprint' + self._public.public_bytes_raw()).hexdigest()[:16]}"  # noqa: E501

    def sign(self, message: bytes) -> str:
        """A signature as text."""
        if self._secret is None:
            raise InvalidParameter("this is a public key: it can check heads, not sign them.")
        return self._secret.sign(message).hex()

    def holds(self, message: bytes, signature: str) -> bool:
        """Whether the signature is this key's."""
        try:
            self._public.verify(bytes.fromhex(signature), message)
        except (InvalidSignature, ValueError):
            return False
        return True

    def __repr__(self) -> str:
        return f"SigningKey({self.fingerprint})"


def _ed25519(key: object) -> ed25519.Ed25519PublicKey:
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise TypeError("a key of another kind")
    return key


def make_key(path: str | Path) -> SigningKey:
    """A new key in a file of its own, readable by its owner only, and its public half in
    PATH.pub.
    """
    target = Path(path)
    if target.exists():
        raise InvalidParameter(
            f"{target} exists already. Choose another name: a lost key cannot be made again."
        )
    key = ed25519.Ed25519PrivateKey.generate()
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    durable.write_file(
        target, key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain), replace=False
    )
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    durable.write_file(target.with_name(target.name + ".pub"), public, mode=0o644)
    return SigningKey.read(target)


def witness(
    ledgers: Iterable[Ledger], to: str | Path, *, key: SigningKey | None = None
) -> dict[str, Head]:
    """Verify ledgers against the witness and themselves, then add their heads to it. Returns the
    heads.

    `to` is a file, or a folder, which then holds one. A ledger that contradicts the witness is
    `LedgerTampered`, and nothing is added.
    """
    place = _place(Path(to))
    known = read_witness(place, key=key) if place.exists() else {}
    heads = {
        ledger.dataset: ledger.verify(known=known.get(ledger.dataset, ())) for ledger in ledgers
    }
    lines = []
    for dataset, head in heads.items():
        if head in known.get(dataset, ()):
            continue
        fields = {
            "dataset": dataset,
            **head._asdict(),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        signed = {"key": "", "signature": ""}
        if key is not None:
            signed = {"key": key.fingerprint, "signature": key.sign(_message(fields))}
        lines.append(json.dumps(fields | signed, sort_keys=True) + "\n")
    if not place.exists():
        durable.write_file(place, b"", replace=False)
    file = durable.DurableFile(place, lock=True)
    try:
        whole = place.read_bytes().rfind(b"\n") + 1
        file.cut(whole)  # a piece of a line that a crash left
        if lines:
            file.append("".join(lines).encode())
    finally:
        file.close()
    return heads


def read_witness(path: str | Path, *, key: SigningKey | None = None) -> dict[str, list[Head]]:
    """The heads that a witness holds, for each data set; with a key, every line must bear its
    signature.
    """
    place = _place(Path(path))
    try:
        if place.stat().st_size > _LARGEST:
            raise HostileFile(f"{place} is too large to be a witness.")
        content = place.read_bytes()
    except OSError as error:
        raise InvalidParameter(f"the witness {place} cannot be read: {error.strerror}.") from None
    found: dict[str, list[Head]] = {}
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), 1):
        try:
            fields = json.loads(line)
            whole = fields.keys() == _FIELDS and type(fields["sequence"]) is int
            if not whole or not all(type(fields[name]) is str for name in _FIELDS - {"sequence"}):
                raise ValueError
        except (ValueError, AttributeError, RecursionError):
            raise HostileFile(f"line {number} of {place} is not a witnessed head.") from None
        if key is not None and not key.holds(_message(fields), fields["signature"]):
            raise LedgerTampered(
                f"line {number} of the witness {place} does not bear the signature of {key!r}."
            )
        found.setdefault(fields["dataset"], []).append(Head(fields["sequence"], fields["hash"]))
    return found


def _place(path: Path) -> Path:
    return path / NAME if path.is_dir() else path


def _message(fields: dict[str, Any]) -> bytes:
    body = {name: fields[name] for name in ("dataset", "sequence", "hash", "time")}
    return _PURPOSE + json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
