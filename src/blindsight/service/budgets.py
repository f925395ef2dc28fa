"""A budget for each key, in the ledger: charged before an answer leaves, whatever happens after.

Two accounts a key. Answers about an asked image cost their epsilon each time, per query. Released codes cost their
epsilon per record once for each key that searches them: further searches only process again what the key has seen.
"""

from __future__ import annotations

import threading

from blindsight.privacy import Cost, Ledger
from blindsight.privacy.ledger import Balance
from blindsight.service.identity import Identity
from blindsight.service.settings import Settings
from blindsight.service.traffic import Metrics

__all__ = ["Budgets", "account_name"]


def account_name(identity: Identity) -> str:
    """The key's data set in the ledger."""
    return f"key {identity.name}"


class Budgets:
    """The keys' accounts, opened once each."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self._ledgers: dict[str, Ledger] = {}
        self._others: dict[str, Ledger] = {}
        self._seen: dict[str, set[str]] = {}
        self._guard = threading.Lock()

    def ledger(self, identity: Identity) -> Ledger:
        """The key's ledger, with its first grant; a changed grant is left as it is."""
        name = account_name(identity)
        with self._guard:
            if name not in self._ledgers:
                ledger = Ledger(self._settings.ledger_place, dataset=name)
                granted = {balance.unit for balance in ledger.balances()}
                for unit, total in (("query", self._settings.query_budget), ("record", self._settings.record_budget)):
                    if unit not in granted:
                        ledger.grant(Cost(epsilon=total, unit=unit), what="the key's first budget")  # type: ignore[arg-type]
                self._seen[name] = {entry.what for entry in ledger.entries() if entry.unit == "record"}
                self._ledgers[name] = ledger
            return self._ledgers[name]

    def named(self, dataset: str) -> Ledger:
        """Any account, to look at."""
        with self._guard:
            if dataset not in self._others:
                self._others[dataset] = Ledger(self._settings.ledger_place, dataset=dataset, create=False)
            return self._others[dataset]

    def charge(self, identity: Identity, cost: Cost, what: str) -> None:
        """On disk when it returns; raises BudgetExceeded and nothing may leave."""
        self.ledger(identity).charge(cost, what=what)
        self._metrics.count("charges")

    def charge_once(self, identity: Identity, cost: Cost, what: str) -> None:
        """Charge what a key is shown for the first time."""
        ledger = self.ledger(identity)
        seen = self._seen[ledger.dataset]
        if what in seen:
            return
        with self._guard:
            if what not in seen:
                ledger.charge(cost, what=what)
                self._metrics.count("charges")
                seen.add(what)

    def balances(self, identity: Identity) -> list[Balance]:
        """Where the key stands."""
        return self.ledger(identity).balances()

    def close(self) -> None:
        """Let go of connections."""
        for ledger in (*self._ledgers.values(), *self._others.values()):
            ledger.close()
