"""Opening the vault and the ledger of a job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blindsight.privacy.ledger import Ledger
    from blindsight.privacy.vault import Vault

__all__ = ["open_ledger", "open_vault"]


def open_vault(given: str | Path | None, model: Path) -> Vault:
    """Open the given vault, or the one beside the model; it is made if it does not exist."""
    from blindsight.index.release_folder import vault_beside
    from blindsight.privacy.vault import Vault

    return Vault.open_or_create(given or vault_beside(model))


def open_ledger(where: str | Path | None, dataset: str, vault: Vault | None) -> Ledger | None:
    """Open the account of a data set, and note in the vault which account paid."""
    from blindsight.privacy.ledger import Ledger

    if where is None:
        return None
    opened = Ledger(str(where), dataset=dataset)
    if vault is not None:
        vault.note(ledger=opened.where, dataset=dataset)
    return opened
