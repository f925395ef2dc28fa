"""The ledger's accounts, each opened once and shared by all requests."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from blindsight.privacy import Ledger
from blindsight.workbench.infra.identity import Identity
from blindsight.workbench.infra.settings import Settings

__all__ = ["Budgets", "account_name"]

_PATIENCE = 10.0  # seconds to wait for other writers of the ledger before a request is refused


def account_name(identity: Identity) -> str:
    """The name of a key's own account, which versions with the digits pages charged."""
    return f"key {identity.name}"


class Budgets:
    """Open ledgers by the name of their account.

    No lock is held while a ledger is opened: whoever asks for the same account waits for the first
    to open it, and all others pass.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._opened: dict[str, Future[Ledger]] = {}
        self._guard = threading.Lock()

    def named(self, account: str, *, create: bool = False) -> Ledger:
        """The ledger of an account.

        Parameters:
            account: name of the account.
            create: make the ledger's file where there is none.

        Returns:
            The open ledger, which `close` closes.

        Raises:
            LedgerError: the ledger cannot be opened. The next call tries again.
        """
        with self._guard:
            first = account not in self._opened
            opened = self._opened.setdefault(account, Future())
        if first:
            try:
                opened.set_result(
                    Ledger(
                        self._settings.ledger_place,
                        dataset=account,
                        create=create,
                        timeout=_PATIENCE,
                    )
                )
            except BaseException as error:
                with self._guard:
                    del self._opened[account]
                opened.set_exception(error)
        return opened.result(6 * _PATIENCE)

    def close(self) -> None:
        """Close every ledger that was opened."""
        for opened in self._opened.values():
            opened.result().close()
