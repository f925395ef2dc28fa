"""A model, metric, set of statistics or file of sketches as a folder to share: card and signature.

OUT.shared/NAME            a copy of the file
OUT.shared/README.md       what it is, for its receiver
OUT.shared/card.json       what is promised, machine-readable; card.txt the same in words
OUT.shared/manifest.json   the SHA-256 of every file, and manifest.sig, its signature
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from blindsight.core import durable
from blindsight.core.errors import HostileFile
from blindsight.privacy import Guarantee
from blindsight.privacy.vault import Vault
from blindsight.release.manifest import (
    NOTE_FILE,
    SIGNATURE,
    Manifest,
    Signer,
    sha256_of,
    write_manifest,
)

__all__ = ["BUNDLE_KINDS", "bundle_folder", "read_card", "share_folder", "write_bundle"]

#: What can be shared beside photo codes, and what a receiver does with it.
BUNDLE_KINDS = {
    "tagger": "blindsight tag apply FILE PHOTOS writes labels for photos of your own.",
    "tags": "FILE lists the tags of each photo, by its id.",
    "metric": "blindsight metric distance FILE ID ... compares records of your own.",
    "statistics": "blindsight send fit FILE trains a classifier on it.",
    "sketches": "blindsight sketch recover FILE shows what attackers recover of it.",
    "flipped bits": "blindsight sketch recover FILE shows what attackers recover of it.",
    "federated model": "blindsight.app.federation.load_model(FILE) classifies rows of your own.",
}
_CARD_FORMAT = "blindsight card 1"
_MAX_CARD_BYTES = 1 << 20
_CHUNK = 1 << 20


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

    Returns:
        The manifest, which is on the disk.
    """

    def copy(folder: Path) -> None:
        with file.open("rb") as stream:
            durable.write_file(folder / file.name, iter(partial(stream.read, _CHUNK), b""))

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
) -> Manifest:
    """Make a folder to share, with card, manifest and signature, in one step.

    Parameters:
        target: the folder, which is replaced; only its note for the workbench stays.
        name: the file that is shared.
        write: puts that file, and what belongs to it, into the folder that it is called with.
        kind: one of `BUNDLE_KINDS`.
        guarantee: what is promised; None where nothing is.
        card: the card in words, where there is no guarantee.
        vault: the owner's vault, from which the key is derived; without one it is used this once.

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
    with durable.only_writer(target.parent):
        staging = durable.staging_folder(target)
        try:
            write(staging)
            if (target / NOTE_FILE).is_file():
                durable.write_file(staging / NOTE_FILE, (target / NOTE_FILE).read_bytes())
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
        finally:
            shutil.rmtree(staging, ignore_errors=True)


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
