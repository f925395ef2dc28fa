"""A budget for each key, in the ledger: charged before an answer leaves, whatever happens after.

Two accounts a key. Answers about an asked image cost their epsilon each time, per query. Released
codes cost their epsilon per record once for each key that searches them: further searches only
process again what the key has seen. No lock is held while the ledger writes: who asks for the same
first charge waits for it, all others pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any

from blindsight.privacy import Cost, Ledger
from blindsight.privacy.ledger import Balance
from blindsight.workbench.infra.identity import Identity
from blindsight.workbench.infra.settings import Settings
from blindsight.workbench.infra.traffic import Metrics

__all__ = ["Budgets", "account_name"]

_PATIENCE = 10.0  # seconds for other writers of the ledger; then the answer is refused


def account_name(identity: Identity) -> str:
    """The key's data set in the ledger."""
    return f"key {identity.name}"


class Budgets:
    """The keys' accounts, opened once each."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self._made: dict[Hashable, Future[Any]] = {}
        self._seen: dict[str, set[str]] = {}
        self._guard = threading.Lock()

    def ledger(self, identity: Identity) -> Ledger:
        """The key's ledger, with its first grant; a changed grant is left as it is."""
        name = account_name(identity)
        found: Ledger = self._once(("account", name), lambda: self._open(name))
        return found

    def named(self, dataset: str, *, create: bool = False) -> Ledger:
        """Any account."""
        place = self._settings.ledger_place
        found: Ledger = self._once(
            ("named", dataset),
            lambda: Ledger(place, dataset=dataset, create=create, timeout=_PATIENCE),
        )
        return found

    def charge(self, identity: Identity, cost: Cost, what: str) -> None:
        """On disk when it returns; raises BudgetExceeded and nothing may leave."""
        self.ledger(identity).charge(cost, what=what)
        self._metrics.count("charges")

    def charge_once(self, identity: Identity, cost: Cost, what: str) -> None:
        """Charge what a key is shown for the first time."""
        ledger = self.ledger(identity)
        if what in self._seen[ledger.dataset]:
            return

        def charge() -> None:
            if what not in self._seen[ledger.dataset]:
                # By a key, for another studio may share the ledger and be asked the same at the
                # same moment.
                ledger.charge(cost, what=what, key=f"once: {what}")
                self._metrics.count("charges")
                self._seen[ledger.dataset].add(what)

        self._once(("charge", ledger.dataset, what), charge)

    def charge_level(self, identity: Identity, cost: Cost, what: str, level: int) -> bool:
        """Charge for a level that a key reaches, once since the start; whether this was the
        charge.
        """
        ledger, charged = self.ledger(identity), []

        def charge() -> None:
            ledger.charge(cost, what=what)
            self._metrics.count("charges")
            charged.append(True)

        self._once(("level", ledger.dataset, what, level), charge)
        return bool(charged)

    def balances(self, identity: Identity) -> list[Balance]:
        """Where the key stands."""
        return self.ledger(identity).balances()

    def close(self) -> None:
        """Let go of connections."""
        for made in self._made.values():
            if isinstance(found := made.result(), Ledger):
                found.close()

    def _open(self, name: str) -> Ledger:
        ledger = Ledger(self._settings.ledger_place, dataset=name, timeout=_PATIENCE)
        granted = {balance.unit for balance in ledger.balances()}
        for unit, total in (
            ("query", self._settings.query_budget),
            ("record", self._settings.record_budget),
        ):
            if unit not in granted:
                ledger.grant(Cost(epsilon=total, unit=unit), what="the key's first budget")  # type: ignore[arg-type]
        self._seen[name] = {entry.what for entry in ledger.entries() if entry.unit == "record"}
        return ledger

    def _once(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """What `make` gives, made by whoever comes first; a failure is everybody's, and the next
        may try again.
        """
        with self._guard:
            first = name not in self._made
            future = self._made.setdefault(name, Future())
        if first:
            try:
                future.set_result(make())
            except BaseException as error:
                with self._guard:
                    del self._made[name]
                future.set_exception(error)
        return future.result(6 * _PATIENCE)
