"""The ledger itself: grant, charge, balance, verify."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn, get_args

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter, LedgerError, LedgerTampered
from blindsight.privacy.guarantee import Cost, Neighbours, Unit
from blindsight.privacy.ledger import teaching
from blindsight.privacy.ledger.amounts import Amount, budget_amount, cost_amount
from blindsight.privacy.ledger.chain import EMPTY, Entry, Head, Kind, chained, checked, intact
from blindsight.privacy.ledger.place import Place

if TYPE_CHECKING:
    from blindsight.privacy.ledger.store import Store, Transaction

__all__ = ["Balance", "Ledger", "datasets"]

STRIDE = 1000  # how often verify reports progress
LONGEST = 1000
NOTHING = Amount(0, 0)


@dataclass(frozen=True, kw_only=True)
class Balance:
    """Where one account of a data set stands; the amounts are exact."""

    dataset: str
    unit: str
    neighbours: str
    budget: Amount
    spent: Amount
    closed: bool = False

    @property
    def remaining(self) -> Amount:
        """What can still be charged."""
        return self.budget - self.spent

    def __str__(self) -> str:
        state = "closed" if self.closed else f"{self.remaining} left"
        return f"{self.dataset}: spent {self.spent} of {self.budget} per {self.unit} ({self.neighbours}); {state}"


class Ledger:
    """The durable budget of one data set. Charge first, release after.

    Parameters
    ----------
    where: a file path (SQLite) or a URL (`sqlite:///path`, `postgresql://user@host/name`). One database holds any
        number of data sets, each with a chain of its own.
    dataset: the data set whose budget this guards.
    create: start a new ledger where there is none; otherwise that is a `LedgerError`.
    timeout: seconds to wait for other writers.

    A charge is on disk before `charge` returns, or it raises and nothing was written. Many processes and threads may
    charge one budget at once. A ledger is passed to `fit` as an argument: it cannot be copied or pickled, so that a
    cloned estimator cannot spend from a copy. To reach it from another process, open it there.
    """

    def __init__(
        self, where: str | os.PathLike[str], *, dataset: str, create: bool = True, timeout: float = 60.0
    ) -> None:
        self._dataset = _text("dataset", dataset)
        self._place = Place(where)
        self._store = _open(self._place, create=create, timeout=checks.positive("timeout", timeout))

    @property
    def dataset(self) -> str:
        """The data set whose budget this guards."""
        return self._dataset

    def grant(self, total: Cost, *, what: str = "budget") -> Entry:
        """State the budget in all, in the total's unit; the last grant holds.

        Granting the same total again changes nothing and writes nothing, so a script may run twice. A total below
        what is already spent is refused, and so is any grant on a closed budget.
        """
        amount, what = budget_amount(_a_cost("grant", total)), _text("what", what)
        with self._store.write() as transaction:
            transaction.start(self._dataset)
            head, before = self._locked(transaction, total.unit, total.neighbours)
            if before is not None and before.kind == "close":
                raise LedgerError(
                    f"the budget of data set {self._dataset!r} per {total.unit} was closed, and stays closed."
                )
            spent = before.spent if before else NOTHING
            if not spent.within(amount):
                raise InvalidParameter(
                    f"a budget cannot be less than what is spent: {spent} per {total.unit} is spent, "
                    f"{amount} was granted. Close the budget to stop further charges."
                )
            if before is not None and before.budget == amount:
                return before
            return self._append(transaction, head, "grant", total, amount, budget=amount, spent=spent, what=what)

    def charge(self, cost: Cost, *, what: str) -> Entry:
        """Take a cost from the budget, durably, before anything is released.

        Raises `BudgetExceeded` (too little left), `UnitMismatch` (the budget is in another unit; says how to
        convert), `NotProven` (infinite cost) or `LedgerError` (not written). Whatever it raises, nothing is charged
        that you may release on.
        """
        amount, what = cost_amount(_a_cost("charge", cost)), _text("what", what)
        with self._store.write() as transaction:
            head, before = self._locked(transaction, cost.unit, cost.neighbours)
            if before is None:
                accounts = transaction.accounts(self._dataset)
                raise (
                    teaching.unit_mismatch(cost, self._dataset, accounts)
                    if accounts
                    else teaching.ungranted(cost, self._dataset)
                )
            spent = before.spent + amount
            if before.kind == "close" or not spent.within(before.budget):
                raise teaching.overspent(
                    amount,
                    before.budget - before.spent,
                    cost=cost,
                    dataset=self._dataset,
                    closed=before.kind == "close",
                )
            return self._append(transaction, head, "charge", cost, amount, budget=before.budget, spent=spent, what=what)

    def close_budget(self, unit: Unit, neighbours: Neighbours = "replace one", *, what: str = "closed") -> Entry:
        """End a budget for good: what is left is forfeited."""
        cost, what = Cost(epsilon=0, unit=unit, neighbours=neighbours), _text("what", what)
        with self._store.write() as transaction:
            head, before = self._locked(transaction, unit, neighbours)
            if before is None:
                raise LedgerError(f"data set {self._dataset!r} has no budget per {unit} ({neighbours}) to close.")
            if before.kind == "close":
                return before
            spent = before.spent
            return self._append(transaction, head, "close", cost, spent, budget=spent, spent=spent, what=what)

    def balance(self, unit: Unit, neighbours: Neighbours | None = None) -> Balance:
        """Budget, spent and remaining in a unit; zeros where nothing was granted.

        `neighbours` may be left out where the unit has a budget under one relation only.
        """
        checks.one_of("unit", unit, get_args(Unit))
        found = [balance for balance in self.balances() if balance.unit == unit]
        if neighbours is not None:
            checks.one_of("neighbours", neighbours, get_args(Neighbours))
            found = [balance for balance in found if balance.neighbours == neighbours]
        if len(found) > 1:
            raise InvalidParameter(
                f"data set {self._dataset!r} has budgets per {unit} under both neighbour relations: "
                "say which, with neighbours='replace one' or 'add or remove one'."
            )
        if found:
            return found[0]
        relation = neighbours or "replace one"
        return Balance(dataset=self._dataset, unit=unit, neighbours=relation, budget=NOTHING, spent=NOTHING)

    def balances(self) -> list[Balance]:
        """Every account of the data set."""
        with self._store.read() as transaction:
            accounts = transaction.accounts(self._dataset)
            lasts = [transaction.last(self._dataset, *account) for account in accounts]
        return [
            Balance(
                dataset=self._dataset,
                unit=last.unit,
                neighbours=last.neighbours,
                budget=last.budget,
                spent=last.spent,
                closed=last.kind == "close",
            )
            for last in lasts
            if last is not None
        ]

    def entries(self, *, after: int = 0) -> Iterator[Entry]:
        """The entries in order, each checked against its own hash; `after` skips what you have seen.

        They are read in pages, so that a slow reader keeps no snapshot open.
        """
        after = checks.whole("after", after, least=0)
        while True:
            with self._store.read() as transaction:
                page = [intact(row) for row in transaction.page(self._dataset, after=after)]
            if not page:
                return
            yield from page
            after = page[-1].sequence

    def head(self) -> Head:
        """Where the chain ends now. Keep it elsewhere to prove later that nothing before it changed."""
        with self._store.read() as transaction:
            return transaction.head(self._dataset) or EMPTY

    def verify(self, *, known: Head | None = None, progress: Callable[[int, int], None] | None = None) -> Head:
        """Prove the whole chain and return its head; `LedgerTampered` says where it breaks.

        Finds any changed, moved, added, removed or cut off entry. Whoever can rewrite the whole database can also
        rewrite the whole chain; that shows only against a `known` head that was kept elsewhere.
        """
        with self._store.read() as transaction:
            transaction.check_file()
            head = transaction.head(self._dataset) or EMPTY
            met = known is None or tuple(known) == EMPTY
            ends: dict[tuple[str, str], Entry] = {}
            for entry in checked(transaction.rows(self._dataset), dataset=self._dataset, head=head):
                met = met or entry.head == tuple(known or ())
                ends[entry.account] = entry
                if progress is not None and (entry.sequence % STRIDE == 0 or entry.sequence == head.sequence):
                    progress(entry.sequence, head.sequence)
            # Charges find an account's totals through an index, so the index must find what the chain ends with.
            found = {account: transaction.last(self._dataset, *account) for account in ends}
        if found != ends:
            raise LedgerTampered(f"the index of data set {self._dataset!r} does not find its last entries.")
        if not met:
            raise LedgerTampered(
                f"the chain of data set {self._dataset!r} does not pass through the known head: history was rewritten."
            )
        return head

    def close(self) -> None:
        """Let go of the database's connections; the next use opens them again. Budgets are not touched."""
        self._store.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Ledger({str(self._place)!r}, dataset={self._dataset!r})"

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        raise LedgerError(
            "a ledger cannot be copied or pickled: a copy could spend the budget twice. Pass it to fit or predict as "
            "an argument, and open it again by its path in another process."
        )

    def _locked(self, transaction: Transaction, unit: str, neighbours: str) -> tuple[Head, Entry | None]:
        """The chain's end, locked and checked, and the account's last entry, which carries its totals."""
        head, end = transaction.locked_end(self._dataset)
        if head == EMPTY:
            return head, None
        if end is None or end.head != head:
            raise LedgerTampered(
                f"the last entry of data set {self._dataset!r} is not the one that its head names; nothing was "
                "written. Run verify, and restore the ledger from a backup."
            )
        here = end.account == (unit, neighbours)
        return head, end if here else transaction.last(self._dataset, unit, neighbours)

    def _append(
        self,
        transaction: Transaction,
        head: Head,
        kind: Kind,
        cost: Cost,
        amount: Amount,
        *,
        budget: Amount,
        spent: Amount,
        what: str,
    ) -> Entry:
        entry = chained(
            head,
            dataset=self._dataset,
            time=datetime.now(UTC).isoformat(timespec="microseconds"),
            kind=kind,
            unit=cost.unit,
            neighbours=cost.neighbours,
            micro_epsilon=amount.micro_epsilon,
            atto_delta=amount.atto_delta,
            budget_micro_epsilon=budget.micro_epsilon,
            budget_atto_delta=budget.atto_delta,
            spent_micro_epsilon=spent.micro_epsilon,
            spent_atto_delta=spent.atto_delta,
            what=what,
        )
        transaction.append(entry)
        return entry


def datasets(where: str | os.PathLike[str]) -> list[str]:
    """The names of the data sets that a ledger holds."""
    store = _open(Place(where), create=False, timeout=60.0)
    try:
        with store.read() as transaction:
            return transaction.datasets()
    finally:
        store.close()


def _open(place: Place, *, create: bool, timeout: float) -> Store:
    from blindsight.privacy.ledger.store import Store  # SQLAlchemy is slow to import, and not everyone keeps a ledger

    return Store(place, create=create, timeout=timeout)


def _a_cost(verb: str, value: Any) -> Cost:
    if not isinstance(value, Cost):
        hint = " Pass its .cost." if isinstance(getattr(value, "cost", None), Cost) else ""
        raise InvalidParameter(f"{verb} takes a Cost, got {type(value).__name__}.{hint}")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > LONGEST or not value.isprintable():
        found = f"{len(value)} characters" if isinstance(value, str) else type(value).__name__
        raise InvalidParameter(
            f"{name} must be one printable line of 1 to {LONGEST:,} characters, got {found} that are not."
        )
    return value
