"""Opening the vault and the ledger of a job."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from blindsight.core.errors import InvalidParameter

if TYPE_CHECKING:
    from blindsight.data import DecodedPhotos
    from blindsight.privacy import Guarantee
    from blindsight.privacy.ledger import Ledger
    from blindsight.privacy.vault import Vault

__all__ = ["open_ledger", "open_vault", "records_of", "share_file"]


def open_vault(given: str | Path | None, model: Path) -> Vault:
    """Open the given vault, or the one beside the model; it is made if it does not exist."""
    from blindsight.index.release_folder import vault_beside
    from blindsight.privacy.vault import Vault

    return Vault.open_or_create(given or vault_beside(model))


def share_file(
    file: Path,
    kind: str,
    guarantee: Guarantee | None,
    vault: Vault | None = None,
    *,
    card: str = "",
) -> None:
    """Put a file with its card, signed, into a folder beside it that can be sent to others."""
    from blindsight.release.bundle import write_bundle

    write_bundle(file, kind, guarantee=guarantee, card=card, vault=vault)


def open_ledger(
    where: str | os.PathLike[str] | None,
    dataset: str,
    vault: Vault | None,
    *,
    actor: str | None = None,
    purpose: str = "",
) -> Ledger | None:
    """Open the account of a data set that a job charges.

    Parameters:
        where: the ledger's file or postgresql:// address; None opens the one that earlier releases
            of the vault were charged to, or nothing where there is none.
        dataset: the name of the account.
        vault: the vault that the releases come from.
        actor: who asks for the releases; by default the operating system's user.
        purpose: what the releases are for.

    Returns:
        The ledger, which stores actor and purpose with every charge.

    Raises:
        InvalidParameter: if earlier releases of the vault were charged to a ledger that is gone.
    """
    from blindsight.privacy.ledger import Ledger

    noted = None if vault is None else vault.fact("ledger")
    if where is None and vault is not None and noted is not None:
        if "://" not in str(noted) and not Path(noted).is_file():
            raise InvalidParameter(
                f"earlier releases of this vault were charged to the ledger {noted}, which is not "
                "there to be asked. Say where it is now, with --ledger."
            )
        where, dataset = noted, vault.fact("dataset") or dataset
    if where is None:
        return None
    return Ledger(str(where), dataset=dataset, actor=actor, purpose=purpose)


def records_of(
    vault: Vault, files: Iterable[Path], decoded: DecodedPhotos | None = None
) -> list[str]:
    """The ids in a vault of the pictures that image files show, in the order of the files.

    Parameters:
        vault: the vault.
        files: the image files.
        decoded: pixels of files that were decoded already.
    """
    from blindsight.data import LIMITS
    from blindsight.data.limits import read_bytes
    from blindsight.data.sources import recognising

    with recognising(vault, find=None if decoded is None else decoded.find) as recognise:
        return [
            recognise(read_bytes(file, largest=LIMITS.image_bytes), file.name) for file in files
        ]
