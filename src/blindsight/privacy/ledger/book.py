"""The ledger itself: grant, charge, balance, verify."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn, get_args

from blindsight.core import checks
from blindsight.core.errors import BlindsightError, InvalidParameter, LedgerError, LedgerTampered
from blindsight.privacy.guarantee import Cost, Neighbours, Unit
from blindsight.privacy.ledger import units, zcdp
from blindsight.privacy.ledger.amounts import MICRO, Amount, Composition, budget_amount, cost_amount
from blindsight.privacy.ledger.chain import (
    EMPTY,
    Account,
    Entry,
    Head,
    Kind,
    chained,
    checked,
    intact,
)
from blindsight.privacy.ledger.place import Place

if TYPE_CHECKING:
    from blindsight.privacy.ledger.store import Store
    from blindsight.privacy.ledger.transaction import Transaction

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
    composition: Composition = "basic"

    @property
    def remaining(self) -> Amount:
        """What can still be charged.

        In zCDP rho is what counts; epsilon is what the spent rho has not yet proven.
        """
        return self.budget - self.spent

    @classmethod
    def after(cls, entry: Entry) -> Balance:
        """Where an account stands after its last entry; in zCDP, spent epsilon is what the spent
        rho proves.
        """
        spent = entry.spent
        if entry.composition == "zcdp":
            delta = entry.budget.atto_delta if spent.pico_rho else 0
            proven = min(
                math.ceil(zcdp.epsilon_of(spent.rho, entry.budget.delta) * MICRO),
                entry.budget.micro_epsilon,
            )
            spent = Amount(proven if spent.pico_rho else 0, delta, spent.pico_rho)
        return cls(
            dataset=entry.dataset,
            unit=entry.unit,
            neighbours=entry.neighbours,
            budget=entry.budget,
            spent=spent,
            closed=entry.kind == "close",
            composition=entry.composition,
        )

    def __str__(self) -> str:
        counted = " counted in zCDP" if self.composition == "zcdp" else ""
        state = "closed" if self.closed else f"{self.remaining} left"
        return (
            f"{self.dataset}: spent {self.spent} of {self.budget} per {self.unit} "
            f"({self.neighbours}){counted}; {state}"
        )


class Ledger:
    """The durable budget of one data set. Charge first, release after.

    Parameters:
        where: a file path (SQLite) or a URL (`sqlite:///path`, `postgresql://user@host/name`). One
        database holds any
            number of data sets, each with a chain of its own.
        dataset: the data set whose budget this guards.
        create: start a new ledger where there is none; otherwise that is a `LedgerError`.
        timeout: seconds to wait for other writers.
        readonly: look, do not touch: nothing is created, written or repaired.

    A charge is on disk before `charge` returns, or it raises and nothing was written. Many
    processes and threads may charge one budget at once. A ledger is passed to `fit` as an argument:
    it cannot be copied or pickled, so that a cloned estimator cannot spend from a copy. To reach it
    from another process, open it there.
    """

    def __init__(
        self,
        where: str | os.PathLike[str],
        *,
        dataset: str,
        create: bool = True,
        timeout: float = 60.0,
        readonly: bool = False,
    ) -> None:
        self._dataset = _text("dataset", dataset)
        self._place = Place(where)
        timeout = checks.positive("timeout", timeout)
        self._store = _open(self._place, create=create, timeout=timeout, readonly=readonly)

    @property
    def dataset(self) -> str:
        """The data set whose budget this guards."""
        return self._dataset

    @property
    def where(self) -> str:
        """The ledger's file or URL, without a password."""
        return str(self._place)

    def grant(
        self, total: Cost, *, what: str = "budget", composition: Composition = "basic"
    ) -> Entry:
        """State the budget in all, in the total's unit; the last grant holds.

        `composition` says how charges add up, once and for all: "basic" adds epsilons and deltas;
        "zcdp" adds rho, which many Gaussian releases need much less of (`zcdp` says why that holds
        for releases chosen one after the other), and needs a delta. Granting the same total again
        changes nothing and writes nothing, so a script may run twice. A total below what is already
        spent is refused, and so is any grant on a closed budget.
        """
        checks.one_of("composition", composition, get_args(Composition))
        amount, what = budget_amount(_a_cost("grant", total), composition), _text("what", what)
        with self._store.write(self._dataset) as transaction:
            transaction.start(self._dataset)
            head, lasts = self._locked(transaction)
            before = lasts.get((total.unit, total.neighbours))
            if before is not None and before.kind == "close":
                raise LedgerError(
                    f"the budget of data set {self._dataset!r} per {total.unit} was closed, and "
                    "stays closed."
                )
            if before is not None and before.composition != composition:
                raise InvalidParameter(
                    f"the budget of data set {self._dataset!r} per {total.unit} counts by "
                    "composition="
                    f"{before.composition!r}, and that cannot be changed: grant it again with the "
                    "same."
                )
            spent = before.spent if before else NOTHING
            if not spent.within(amount, composition):
                raise InvalidParameter(
                    f"a budget cannot be less than what is spent: {spent} per {total.unit} is "
                    "spent, "
                    f"{amount} was granted. Close the budget to stop further charges."
                )
            if before is not None and before.budget == amount:
                return before
            entry = self._entry(
                head,
                "grant",
                total,
                amount,
                budget=amount,
                spent=spent,
                what=what,
                composition=composition,
            )
            transaction.append([entry])
            return entry

    def charge(self, costs: Cost | Sequence[Cost], *, what: str, key: str | None = None) -> Entry:
        """Take a release's cost from every budget that it is stated for, durably, before anything
        is released.

        Parameters:
            costs: what the release costs, or a sequence of what this one release costs in different
            units. It is posted
                to each account that one of them is for, or converts to (see `units`), all or none.
            what: what is released, in words without private values. key: names the release. The
            first charge under a key is written; the same again, after a crash, in another
                process or on another host, returns that entry and charges nothing but accounts that
                were granted since; other costs under it are refused.

        Returns the entry of the first cost that has an account. Raises `BudgetExceeded` (too little
        left in one of the accounts), `UnitMismatch` (no account is in any of these units, or one is
        in a larger unit that the release says nothing for; says how to convert), `NotProven`
        (infinite cost) or `LedgerError` (not written). Whatever it raises, nothing is charged that
        you may release on.
        """
        listed, what = _some_costs(costs), _text("what", what)
        key = "" if key is None else _text("key", key)
        with self._store.write(self._dataset) as transaction:
            head, lasts = self._locked(transaction)
            due = units.dues(listed, lasts.keys())
            if not due:
                raise self._no_account(listed, lasts.keys())
            if (refusal := units.uncovered(listed, due, self._dataset, lasts.keys())) is not None:
                raise refusal
            paid = transaction.paid(self._dataset, key) if key else []
            _check_paid(paid, due, key)
            posted: list[Entry] = []
            for cost in due:
                before = lasts[cost.unit, cost.neighbours]
                if before.account not in {entry.account for entry in paid}:
                    posted.append(
                        self._posting(posted[-1].head if posted else head, before, cost, what, key)
                    )
            if posted:
                transaction.append(posted)
            return (paid or posted)[0]

    def close_budget(
        self, unit: Unit, neighbours: Neighbours = "replace one", *, what: str = "closed"
    ) -> Entry:
        """End a budget for good: what is left is forfeited."""
        cost, what = Cost(epsilon=0, unit=unit, neighbours=neighbours), _text("what", what)
        with self._store.write(self._dataset) as transaction:
            head, lasts = self._locked(transaction)
            before = lasts.get((unit, neighbours))
            if before is None:
                raise LedgerError(
                    f"data set {self._dataset!r} has no budget per {unit} ({neighbours}) to close."
                )
            if before.kind == "close":
                return before
            spent, counted = before.spent, before.composition
            entry = self._entry(
                head,
                "close",
                cost,
                spent,
                budget=spent,
                spent=spent,
                what=what,
                composition=counted,
            )
            transaction.append([entry])
            return entry

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
                f"data set {self._dataset!r} has budgets per {unit} under both neighbour "
                "relations: "
                "say which, with neighbours='replace one' or 'add or remove one'."
            )
        if found:
            return found[0]
        relation = neighbours or "replace one"
        return Balance(
            dataset=self._dataset, unit=unit, neighbours=relation, budget=NOTHING, spent=NOTHING
        )

    def balances(self) -> list[Balance]:
        """Every account of the data set."""
        with self._store.read() as transaction:
            return [Balance.after(last) for last in transaction.ends(self._dataset)[1].values()]

    def entries(self, *, after: int = 0) -> Iterator[Entry]:
        """The entries in order, each checked against its own hash; `after` skips what you have
        seen.

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
        """Where the chain ends now.

        Keep it elsewhere to prove later that nothing before it changed.
        """
        with self._store.read() as transaction:
            return transaction.head(self._dataset) or EMPTY

    def verify(
        self,
        *,
        known: Head | Iterable[Head] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Head:
        """Prove the whole chain and return its head; `LedgerTampered` says where it breaks.

        Finds any changed, moved, added, removed or cut off entry, and anything in the database that
        could act on its tables. Whoever can rewrite the whole database can also rewrite the whole
        chain; that shows only against `known` heads that were kept elsewhere (see `witness`).
        """
        kept = {tuple(head) for head in ([known] if isinstance(known, Head) else known or ())} - {
            tuple(EMPTY)
        }
        with self._store.read() as transaction:
            transaction.check_file()
            head = transaction.head(self._dataset) or EMPTY
            ends: dict[Account, Entry] = {}
            for entry in checked(transaction.rows(self._dataset), dataset=self._dataset, head=head):
                kept.discard(tuple(entry.head))
                ends[entry.account] = entry
                if progress is not None and (
                    entry.sequence % STRIDE == 0 or entry.sequence == head.sequence
                ):
                    progress(entry.sequence, head.sequence)
            # Charges find an account's totals through an index, so the index must find what the
            # chain ends with.
            found = transaction.ends(self._dataset)[1]
        if found != ends:
            raise LedgerTampered(
                f"the index of data set {self._dataset!r} does not find its last entries."
            )
        if kept:
            raise LedgerTampered(
                f"the chain of data set {self._dataset!r} does not pass through {len(kept)} known "
                "head"
                f"{'s' if len(kept) > 1 else ''}: history was rewritten."
            )
        return head

    def close(self) -> None:
        """Let go of the database's connections; the next use opens them again.

        Budgets are not touched.
        """
        self._store.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Ledger({str(self._place)!r}, dataset={self._dataset!r})"

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        raise LedgerError(
            "a ledger cannot be copied or pickled: a copy could spend the budget twice. Pass it to "
            "fit or predict as "
            "an argument, and open it again by its path in another process."
        )

    def _locked(self, transaction: Transaction) -> tuple[Head, dict[Account, Entry]]:
        """The chain's end, locked and checked, and each account's last entry, which carries its
        totals.
        """
        transaction.lock(self._dataset)
        head, lasts = transaction.ends(self._dataset)
        transaction.require_known(self._dataset, head)
        if max((entry.head for entry in lasts.values()), default=EMPTY) != head:
            raise LedgerTampered(
                f"the last entry of data set {self._dataset!r} is not the one that its head names; "
                "nothing was "
                "written. Run verify, and restore the ledger from a backup."
            )
        return head, lasts

    def _posting(self, head: Head, before: Entry, cost: Cost, what: str, key: str) -> Entry:
        """The next entry of one account, or the refusal."""
        amount = cost_amount(cost, before.composition)
        spent = before.spent + amount
        if before.kind == "close" or not spent.within(before.budget, before.composition):
            raise units.overspent(amount, cost=cost, before=before)
        return self._entry(
            head,
            "charge",
            cost,
            amount,
            budget=before.budget,
            spent=spent,
            what=what,
            composition=before.composition,
            key=key,
        )

    def _no_account(self, costs: Sequence[Cost], accounts: Collection[Account]) -> BlindsightError:
        if all(math.isinf(cost.epsilon) for cost in costs):
            cost_amount(costs[0])  # refuses, and says why
        if accounts:
            return units.unit_mismatch(costs[0], self._dataset, accounts)
        return units.ungranted(costs[0], self._dataset, self.where)

    def _entry(
        self,
        head: Head,
        kind: Kind,
        cost: Cost,
        amount: Amount,
        *,
        budget: Amount,
        spent: Amount,
        what: str,
        composition: Composition,
        key: str = "",
    ) -> Entry:
        return chained(
            head,
            dataset=self._dataset,
            time=datetime.now(UTC).isoformat(timespec="microseconds"),
            kind=kind,
            unit=cost.unit,
            neighbours=cost.neighbours,
            composition=composition,
            micro_epsilon=amount.micro_epsilon,
            atto_delta=amount.atto_delta,
            pico_rho=amount.pico_rho,
            budget_micro_epsilon=budget.micro_epsilon,
            budget_atto_delta=budget.atto_delta,
            budget_pico_rho=budget.pico_rho,
            spent_micro_epsilon=spent.micro_epsilon,
            spent_atto_delta=spent.atto_delta,
            spent_pico_rho=spent.pico_rho,
            what=what,
            key=key,
        )


def datasets(where: str | os.PathLike[str], *, readonly: bool = False) -> list[str]:
    """The names of the data sets that a ledger holds."""
    store = _open(Place(where), create=False, timeout=60.0, readonly=readonly)
    try:
        with store.read() as transaction:
            return transaction.datasets()
    finally:
        store.close()


def _open(place: Place, *, create: bool, timeout: float, readonly: bool = False) -> Store:
    from blindsight.privacy.ledger.store import (
        Store,
    )  # SQLAlchemy is slow to import, and not everyone keeps a ledger

    return Store(place, create=create, timeout=timeout, readonly=readonly)


def _some_costs(costs: Any) -> tuple[Cost, ...]:
    if isinstance(costs, Cost) or not isinstance(costs, Sequence) or isinstance(costs, str):
        return (_a_cost("charge", costs),)
    listed = tuple(_a_cost("charge", cost) for cost in costs)
    if not listed:
        raise InvalidParameter("charge takes at least one Cost, got none.")
    if len({(cost.unit, cost.neighbours) for cost in listed}) != len(listed):
        raise InvalidParameter(
            "costs must be what one release costs in different units; two of them are in the same "
            "one. Charge two "
            "releases by two calls."
        )
    return listed


def _check_paid(paid: Sequence[Entry], due: Sequence[Cost], key: str) -> None:
    """What was charged under a key before must be what it costs now, in every account that was
    charged.
    """
    given: dict[Account, Cost] = {(cost.unit, cost.neighbours): cost for cost in due}
    for entry in paid:
        cost = given.get(entry.account)
        if cost is None or cost_amount(cost, entry.composition) != entry.amount:
            raise LedgerError(
                f"key {key!r} was charged at {entry.time[:19]} as {entry.amount} per {entry.unit}, "
                "and now stands for "
                "other costs; nothing was charged or released. Another release needs another key."
            )


def _a_cost(verb: str, value: Any) -> Cost:
    if not isinstance(value, Cost):
        hint = " Pass its .cost." if isinstance(getattr(value, "cost", None), Cost) else ""
        raise InvalidParameter(f"{verb} takes a Cost, got {type(value).__name__}.{hint}")
    return value


def _text(name: str, value: Any) -> str:
    if (
        not isinstance(value, str)
        or not value.strip()
        or len(value) > LONGEST
        or not value.isprintable()
    ):
        found = f"{len(value)} characters" if isinstance(value, str) else type(value).__name__
        raise InvalidParameter(
            f"{name} must be one printable line of 1 to {LONGEST:,} characters, got {found} that "
            "are not."
        )
    return value
