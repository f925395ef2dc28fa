"""The manifest of what is shared: every file with its SHA-256, signed by the owner.

    manifest.json   format, kind, release, version, files, the public key
    manifest.sig    64 bytes: the Ed25519 signature of the bytes of manifest.json

Whoever receives the folder compares one fingerprint with what the owner told them by another way
(8 groups of 4 hexadecimal digits of the SHA-256 of the public key). A folder without a manifest is
unfinished or not ours; a folder in which any byte was changed, or any file added or removed, is
refused.

The key is derived from the vault's, so there is no second secret to keep. By default every release
has a key of its own: two releases then do not show that they come from one owner.

A model, metric, set of statistics or file of sketches is shared as such a folder, too:

    OUT.shared/NAME            a copy of the file
    OUT.shared/README.md       what it is, for its receiver
    OUT.shared/card.json       what is promised, machine-readable; card.txt the same in words
    OUT.shared/manifest.json   the SHA-256 of every file, and manifest.sig, its signature
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

from blindsight.core import durable
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.privacy import Guarantee
from blindsight.privacy.vault import Vault

__all__ = [
    "BUNDLE_KINDS",
    "IGNORED_FILES",
    "MANIFEST",
    "NOTE_FILE",
    "SIGNATURE",
    "Manifest",
    "Signer",
    "bundle_folder",
    "check_folder",
    "fingerprint_of",
    "is_signed",
    "read_card",
    "sha256_of",
    "share_folder",
    "write_bundle",
    "write_manifest",
]

MANIFEST, SIGNATURE = "manifest.json", "manifest.sig"
#: Which release a folder of the workbench is, for its ledger; it stays when the release grows.
NOTE_FILE = "release.json"
_FORMAT = "blindsight manifest 1"
_MAX_MANIFEST_BYTES = 4 << 20
_MAX_FILES = 10_000
_CHUNK = 1 << 20
# What file managers put into every folder that they show.
IGNORED_FILES = frozenset({".DS_Store", "Thumbs.db", "desktop.ini"})
_DIGITS = 32  # of the fingerprint: 128 bits, so that nobody finds a second key with the same one


class Signer:
    """An Ed25519 key that signs what an owner shares.

    Parameters:
        seed: 32 secret bytes; the same seed gives the same key.

    Attributes:
        public_key: the 32 bytes that others verify with.
        fingerprint: what the owner tells the receiver.

    Examples:
        >>> signer = Signer(bytes(32))
        >>> len(signer.public_key), len(signer.sign(b"text"))
        (32, 64)
    """

    def __init__(self, seed: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public_key: bytes = self._key.public_key().public_bytes_raw()
        self.fingerprint = fingerprint_of(self.public_key)

    def sign(self, data: bytes) -> bytes:
        """Return the signature of some bytes (64 bytes)."""
        return self._key.sign(data)


def fingerprint_of(public_key: bytes) -> str:
    """Return 8 groups of 4 hexadecimal digits that identify a public key.

    Examples:
        >>> fingerprint_of(bytes(32))
        '6668 7aad f862 bd77 6c8f c18b 8e9f 8e20'
    """
    return " ".join(re.findall("....", hashlib.sha256(public_key).hexdigest()[:_DIGITS]))


@dataclass(frozen=True)
class Manifest:
    """A manifest whose signature fits.

    Parameters:
        kind: what the folder holds, such as "photo codes".
        release: the number of the release.
        version: the version of Blindsight that wrote it.
        files: the SHA-256 of each file.
        public_key: the key that signed.
        facts: what else the owner states, such as the encoder's identity.
    """

    kind: str
    release: str
    version: str
    files: Mapping[str, str]
    public_key: bytes
    facts: Mapping[str, object]

    @property
    def fingerprint(self) -> str:
        """The fingerprint to compare with what the owner told."""
        return fingerprint_of(self.public_key)


def write_manifest(
    folder: Path,
    signer: Signer,
    *,
    kind: str,
    release: str,
    facts: Mapping[str, object] | None = None,
) -> Manifest:
    """Sign all files of a folder. The manifest is written last, so a folder has it only when whole.

    Parameters:
        folder: the folder; it must hold plain files only.
        signer: the owner's key.
        kind: what the folder holds.
        release: the number of the release.
        facts: more to state, as JSON values.

    Raises:
        InvalidData: The folder holds something else than plain files.
    """
    for name in (SIGNATURE, MANIFEST):
        durable.remove(folder / name)
    files = {}
    for path in sorted(folder.iterdir()):
        if path.name in IGNORED_FILES:
            continue
        if path.name.startswith(".") or not stat.S_ISREG(path.lstat().st_mode):
            raise InvalidData(
                f"{path} is not a plain file. A folder to share holds the release's files only: "
                "move it elsewhere."
            )
        files[path.name] = sha256_of(path)
    manifest = Manifest(
        kind, release, metadata.version("blindsight"), files, signer.public_key, dict(facts or {})
    )
    text = json.dumps(
        {
            "format": _FORMAT,
            "kind": kind,
            "release": release,
            "version": manifest.version,
            "key": signer.public_key.hex(),
            "facts": manifest.facts,
            "files": files,
        },
        indent=1,
    ).encode()
    durable.write_file(folder / MANIFEST, text)
    durable.write_file(folder / SIGNATURE, signer.sign(text))
    for path in (folder, *folder.iterdir()):
        # A colleague on a shared disk may read what is shared; nobody else may change it.
        os.chmod(path, 0o755 if path.is_dir() else 0o644)
    return manifest


def check_folder(folder: Path, *, fingerprint: str | None = None) -> Manifest:
    """Check the signature and every file of a folder.

    Parameters:
        folder: the folder that was received.
        fingerprint: what the owner told; another key is refused.

    Returns:
        The manifest, whose files are all there and unchanged.

    Raises:
        HostileFile: Anything was changed, added or removed, or another key signed.
        InvalidData: There is no manifest.
    """
    manifest = _read(folder)
    if fingerprint is not None and _digits(fingerprint) != _digits(manifest.fingerprint):
        raise HostileFile(
            f"{folder} is signed by {manifest.fingerprint}, not by the key that you were told "
            f"({fingerprint}). Ask the owner for a new copy, and do not use this one."
        )
    present = {entry.name for entry in os.scandir(folder)} - {MANIFEST, SIGNATURE, *IGNORED_FILES}
    if missing := sorted(set(manifest.files) - present):
        raise HostileFile(
            f"{folder} lacks files that the owner signed: {_listed(missing)}. Ask the owner for a "
            "whole copy."
        )
    if added := sorted(present - set(manifest.files)):
        raise HostileFile(
            f"{folder} holds files that the owner did not sign: {_listed(added)}. Remove them, or "
            "ask the owner for a new copy."
        )
    if changed := _changed(folder, manifest.files):
        raise HostileFile(
            f"{folder} holds files that were changed after signing: {_listed(changed)}. Ask the "
            "owner for a new copy."
        )
    return manifest


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:5]) + (" ..." if len(names) > 5 else "")


def _changed(folder: Path, files: Mapping[str, str]) -> list[str]:
    changed = []
    for name, digest in files.items():
        path = folder / name
        if not stat.S_ISREG(path.lstat().st_mode) or sha256_of(path) != digest:
            changed.append(name)
    return changed


def _read(folder: Path) -> Manifest:
    path = folder / MANIFEST
    if not path.is_file() or not (folder / SIGNATURE).is_file():
        raise InvalidData(
            f"{folder} has no manifest, so nobody vouches for it: it is unfinished, made by an "
            "earlier version, or not a release. Ask the owner for a whole copy."
        )
    if path.stat().st_size > _MAX_MANIFEST_BYTES or (folder / SIGNATURE).stat().st_size != 64:
        raise HostileFile(f"{path} is not a manifest. Ask the owner for a new copy.")
    text = path.read_bytes()
    try:
        fields = json.loads(text)
        if fields["format"] != _FORMAT:
            raise ValueError("another format")
        key = bytes.fromhex(fields["key"])
        files = {str(name): _checked_digest(digest) for name, digest in fields["files"].items()}
        if len(files) > _MAX_FILES or any(not _plain_name(name) for name in files):
            raise ValueError("names of files")
        manifest = Manifest(
            str(fields["kind"]),
            str(fields["release"]),
            str(fields["version"]),
            files,
            key,
            dict(fields["facts"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise HostileFile(f"{path} is not a manifest. Ask the owner for a new copy.") from error
    if not is_signed(key, (folder / SIGNATURE).read_bytes(), text):
        raise HostileFile(
            f"the signature of {path} does not fit: it was changed after signing. Ask the owner "
            "for a new copy."
        )
    return manifest


def is_signed(key: bytes, signature: bytes, text: bytes) -> bool:
    """Whether an Ed25519 key signed some bytes.

    Examples:
        >>> signer = Signer(bytes(32))
        >>> is_signed(signer.public_key, signer.sign(b"text"), b"text")
        True
        >>> is_signed(signer.public_key, signer.sign(b"text"), b"other")
        False
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def _plain_name(name: str) -> bool:
    """Whether a name is a file of the folder itself, and not one of the manifest's own."""
    return (
        0 < len(name) <= 200
        and name not in {MANIFEST, SIGNATURE, *IGNORED_FILES}
        and not set(name) & {"/", "\\", ":", "\0"}  # "C:x" is another place on Windows
        and not name.startswith(".")
    )


def _checked_digest(digest: object) -> str:
    if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
        raise ValueError("a digest")
    return digest


def _digits(fingerprint: str) -> str:
    digits = re.sub(r"[\s:-]", "", fingerprint).lower()
    if not re.fullmatch(f"[0-9a-f]{{{_DIGITS}}}", digits):
        raise InvalidParameter(
            f"a fingerprint has {_DIGITS} hexadecimal digits in groups of 4, got {fingerprint!r}."
        )
    return digits


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, as hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


#: What can be shared beside photo codes, and what a receiver does with it.
BUNDLE_KINDS = {
    "tagger": "blindsight tag apply FILE PHOTOS writes labels for photos of your own.",
    "tags": "FILE lists the tags of each photo, by its id.",
    "metric": "blindsight compare distance FILE ID ... compares records of your own.",
    "statistics": "blindsight send fit FILE trains a classifier on it.",
    "sketches": "blindsight sketch recover FILE shows what attackers recover of it.",
    "flipped bits": "blindsight sketch recover FILE shows what attackers recover of it.",
    "federated model": "blindsight.app.federation.load_model(FILE) classifies rows of your own.",
}
_CARD_FORMAT = "blindsight card 1"
_MAX_CARD_BYTES = 1 << 20


def bundle_folder(file: Path) -> Path:
    """The folder in which a file is shared."""
    return file.with_name(f"{file.name}.shared")


def write_bundle(
    file: Path,
    kind: str,
    *,
    guarantee: Guarantee | None,
    card: str = "",
    vault: Vault | None = None,
    save: Callable[[Path], object] | None = None,
) -> Manifest:
    """Put a copy of a file with card, manifest and signature into a folder beside it.

    The folder is replaced in one step. It is signed with a key of its own that is derived from the
    vault's; without a vault by a key that is used this once.

    Parameters:
        file: what is shared.
        kind: one of `BUNDLE_KINDS`.
        guarantee: what is promised; None where nothing is.
        card: the card in words, where there is no guarantee.
        vault: the owner's vault.
        save: writes the file to a path, if it is not written yet. Of two runs at once, each shares
            its own file under its own guarantee.

    Returns:
        The manifest, which is on the disk.
    """

    def copied(source: Path, target: Path) -> None:
        with source.open("rb") as stream:
            durable.write_file(target, iter(partial(stream.read, _CHUNK), b""))

    def copy(folder: Path) -> None:
        if save is None:
            copied(file, folder / file.name)
        else:
            save(folder / file.name)
            copied(folder / file.name, file)

    return share_folder(
        bundle_folder(file), file.name, copy, kind, guarantee=guarantee, card=card, vault=vault
    )


def share_folder(
    target: Path,
    name: str,
    write: Callable[[Path], None],
    kind: str,
    *,
    guarantee: Guarantee | None,
    card: str = "",
    vault: Vault | None = None,
    note: bytes | None = None,
) -> Manifest:
    """Make a folder to share, with card, manifest and signature, in one step.

    Parameters:
        target: the folder, which is replaced.
        name: the file that is shared.
        write: puts that file, and what belongs to it, into the folder that it is called with.
        kind: one of `BUNDLE_KINDS`.
        guarantee: what is promised; None where nothing is.
        card: the card in words, where there is no guarantee.
        vault: the owner's vault, from which the key is derived; without one it is used this once.
        note: the workbench's note on the release, written to `NOTE_FILE`.

    Returns:
        The manifest, which is on the disk.
    """
    promise = "no guarantee" if guarantee is None else guarantee.line()
    fields = {
        "format": _CARD_FORMAT,
        "kind": kind,
        "file": name,
        "guarantee": None if guarantee is None else json.loads(guarantee.to_json()),
        "text": card if guarantee is None else guarantee.card(),
    }
    with durable.staging_folder(target) as staging:
        write(staging)
        if note is not None:
            durable.write_file(staging / NOTE_FILE, note)
        release = sha256_of(staging / name)[:32]
        signer = Signer(os.urandom(32) if vault is None else vault.signing_seed(release))
        readme = (
            f"# {kind.capitalize()}: {name}\n\n"
            f"What it promises about the data behind it: {promise} (see `card.txt`).\n\n"
            f"1. {BUNDLE_KINDS[kind].replace('FILE', name)}\n"
            "2. To check that nothing was changed: `blindsight open FOLDER`. The fingerprint "
            f"must be the one that the owner told you:\n\n       {signer.fingerprint}\n"
        )
        durable.write_file(staging / "README.md", readme.encode())
        text = json.dumps(fields, indent=2, ensure_ascii=False)
        durable.write_file(staging / "card.json", text.encode() + b"\n")
        durable.write_file(staging / "card.txt", str(fields["text"]).encode() + b"\n")
        facts = {"file": name, "guarantee": promise}
        manifest = write_manifest(staging, signer, kind=kind, release=release, facts=facts)
        durable.replace_folder(staging, target, last=SIGNATURE)
        return manifest


def read_card(folder: Path) -> dict[str, object]:
    """The card of a folder whose manifest was checked.

    Raises:
        HostileFile: It is not a card.
    """
    path = folder / "card.json"
    try:
        if path.stat().st_size > _MAX_CARD_BYTES:
            raise ValueError("too large")
        fields = json.loads(path.read_bytes())
        if not isinstance(fields, dict):
            raise TypeError("no object")
        return fields
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise HostileFile(f"{path} is not a privacy card. Ask the owner for a new copy.") from error
