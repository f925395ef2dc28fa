"""Copies of a library's state for backups: vault, ledger and private folders at one moment.

While a copy is made the vault is held, so that nothing is charged or released: vault and ledger of
the copy belong together. A copy is for restoring. Whoever releases from a copy and from the
original releases twice, so a restored state waits for the owner's decision
(`app.library.accounts.mark_restored`).
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from blindsight.app.library.accounts import (
    Budgets,
    StateReport,
    check_state,
    mark_restored,
    owner_vault,
)
from blindsight.app.library.datasets import DataSets, LibrarySettings
from blindsight.core.errors import LedgerError
from blindsight.privacy.ledger import backup
from blindsight.privacy.ledger import datasets as accounts_in
from blindsight.privacy.ledger.export import restore

if TYPE_CHECKING:
    from blindsight.privacy.ledger import Head

__all__ = ["copy_database", "copy_ledger", "hold_state", "reports_after_restore", "restore_ledger"]

_PATIENCE = 600.0  # seconds for which a backup waits until a running release has ended


@contextlib.contextmanager
def hold_state(settings: LibrarySettings) -> Iterator[None]:
    """Hold the owner's vault: releases wait until the copy is made."""
    if not (settings.state / "vault" / "key").is_file():
        yield
        return
    with owner_vault(DataSets(settings)).running(wait=_PATIENCE):
        yield


def copy_ledger(settings: LibrarySettings, target: Path) -> dict[str, Head]:
    """Copy the whole ledger into a new SQLite file.

    Returns:
        The head of each account; empty where there is no ledger yet.
    """
    try:
        accounts_in(settings.ledger_place)
    except LedgerError:
        return {}
    return backup(settings.ledger_place, target)


def restore_ledger(settings: LibrarySettings, copy: Path) -> bool:
    """Put a copy in the place of an empty ledger.

    Returns:
        Whether it was used: a ledger with entries is never replaced by an older one.
    """
    with contextlib.suppress(LedgerError):
        if accounts_in(settings.ledger_place):
            return False
    restore(copy, settings.ledger_place)
    return True


def copy_database(source: Path, target: Path) -> None:
    """Copy a SQLite file that others may be writing to, through SQLite itself."""
    with (
        contextlib.closing(sqlite3.connect(source)) as reading,
        contextlib.closing(sqlite3.connect(target)) as writing,
    ):
        reading.backup(writing)


def reports_after_restore(settings: LibrarySettings, moment: str) -> list[StateReport]:
    """Stop releases from every data set until the owner has decided, and say what is older.

    Parameters:
        settings: where the restored state is.
        moment: when the backup was made.

    Returns:
        How vault, ledger and releases of each data set compare.
    """
    datasets = DataSets(settings)
    sets = datasets.listed()
    mark_restored(datasets, {data_set.id: moment[:19] for data_set in sets})
    budgets = Budgets(settings)
    try:
        return [
            check_state(datasets, data_set, budgets.named(data_set.account, create=True))
            for data_set in sets
        ]
    finally:
        budgets.close()
