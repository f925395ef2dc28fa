"""The ledger itself: grant, charge, balance, verify."""

from __future__ import annotations

import functools
import html
import math
import os
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn, get_args

from blindsight.core import checks
from blindsight.core.errors import (
    BlindsightError,
    InvalidParameter,
    LedgerError,
    LedgerTampered,
    RolledBack,
)
from blindsight.privacy.guarantee import Cost, Neighbours, Unit
from blindsight.privacy.ledger import units
from blindsight.privacy.ledger.amounts import (
    MICRO,
    Amount,
    Composition,
    budget_amount,
    cost_amount,
    epsilon_of,
)
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
from blindsight.privacy.ledger.location import Location, dataset_name, refuse_look_alike

if TYPE_CHECKING:
    from blindsight.privacy.ledger.store import Store
    from blindsight.privacy.ledger.transaction import Transaction

__all__ = ["Balance", "Ledger", "datasets"]

ActorLimit = Callable[[str], float | None]
STRIDE = 1000  # how often verify reports progress
LONGEST = 1000
NOTHING = Amount(0, 0)


@dataclass(frozen=True, kw_only=True)
class Balance:
    """The state of one account of a data set; the amounts are exact."""

    dataset: str
    unit: str
    neighbours: str
    budget: Amount
    spent: Amount
    closed: bool = False
    composition: Composition = "basic"

    def _repr_html_(self) -> str:
        """What is granted, spent and left as a table, for a notebook."""
        return (
            f"<table><tr><th>data set</th><th>per</th><th>granted</th><th>spent</th><th>left</th>"
            f"</tr><tr><td>{html.escape(self.dataset)}</td><td>{html.escape(self.unit)}</td>"
            f"<td>{self.budget}</td><td>{self.spent}</td><td>{self.remaining}</td></tr></table>"
        )

    @property
    def remaining(self) -> Amount:
        """What can still be charged.

        In zCDP rho is what counts; epsilon is what the spent rho has not yet proven.
        """
        return self.budget - self.spent

    @classmethod
    def after(cls, entry: Entry) -> Balance:
        """Return the state of an account after an entry; in zCDP, the spent epsilon is the one that
        the spent rho proves.
        """
        spent = entry.spent
        if entry.composition == "zcdp":
            delta = entry.budget.atto_delta if spent.pico_rho else 0
            proven = min(
                math.ceil(epsilon_of(spent.rho, entry.budget.delta) * MICRO),
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
            database holds any number of data sets, each with a chain of its own.
        dataset: the data set whose budget this guards.
        create: start a new ledger where there is none; otherwise that is a `LedgerError`.
        timeout: seconds to wait for other writers.
        readonly: open the ledger without creating, writing or repairing anything.
        actor: who charges and grants where a call does not say; by default the operating system's
            user.
        purpose: what releases are for where a call does not say.
        actor_limit: the largest epsilon that the charges of an actor may add up to in each account
            of a data set, by the actor's name; None for no limit. It is asked within the
            transaction that charges, so that charges made at once cannot exceed it together.

    A charge is on disk before `charge` returns, or it raises and nothing was written. Many
    processes and threads may charge one budget at once. A ledger is passed to `fit` as an argument:
    it cannot be copied or pickled, so that a cloned estimator cannot spend from a copy. To reach it
    from another process, open it there.

    Examples:
        >>> import tempfile
        >>> from blindsight.core.errors import BudgetExceeded
        >>> ledger = Ledger(f"{tempfile.mkdtemp()}/budget.db", dataset="holidays")
        >>> granted = ledger.grant(Cost(epsilon=8, unit="record"))
        >>> charged = ledger.charge(Cost(epsilon=5, unit="record"), what="codes")
        >>> try:
        ...     ledger.charge(Cost(epsilon=5, unit="record"), what="tags")
        ... except BudgetExceeded as refused:
        ...     print(str(refused).split("; ")[-1].partition(".")[0])
        nothing was charged or released
    """

    def __init__(
        self,
        where: str | os.PathLike[str],
        *,
        dataset: str,
        create: bool = True,
        timeout: float = 60.0,
        readonly: bool = False,
        actor: str | None = None,
        purpose: str = "",
        actor_limit: ActorLimit | None = None,
    ) -> None:
        name = _text("dataset", dataset)
        self.actor_limit = actor_limit
        self.actor = None if actor is None else _text("actor", actor)
        self.purpose = _text("purpose", purpose) if purpose else ""
        self._location = Location(where)
        timeout = checks.positive("timeout", timeout)
        self._store = _open(self._location, create=create, timeout=timeout, readonly=readonly)
        self._dataset = self._named(name)

    @property
    def dataset(self) -> str:
        """The data set whose budget this guards."""
        return self._dataset

    @property
    def where(self) -> str:
        """The ledger's file or URL, without a password."""
        return str(self._location)

    def grant(
        self,
        total: Cost,
        *,
        what: str = "budget",
        composition: Composition = "basic",
        actor: str | None = None,
        purpose: str = "",
    ) -> Entry:
        """Set the total budget, in the unit of `total`; a later grant replaces it.

        `composition` says how charges add up, once and for all: "basic" adds epsilons and deltas;
        "zcdp" adds rho, which many Gaussian releases need much less of (`amounts` says why that
        holds for releases chosen one after the other), and needs a delta. Granting the same total
        again changes nothing and writes nothing, so a script may run twice. A total below what is
        already spent is refused, and so is any grant on a closed budget.
        """
        checks.one_of("composition", composition, get_args(Composition))
        amount, what = (
            budget_amount(units.require_cost("grant", total), composition),
            _text("what", what),
        )
        origin = self._origin(actor, purpose)
        with self._store.write(self._dataset) as transaction:
            if transaction.head(self._dataset) is None:
                refuse_look_alike(self._dataset, transaction.datasets())
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
                    f"the budget of data set {self._dataset!r} per {total.unit} has "
                    f"composition={before.composition!r}, which cannot be changed: grant it again "
                    "with the same composition."
                )
            spent = before.spent if before else NOTHING
            if not spent.within(amount, composition):
                raise InvalidParameter(
                    f"a budget cannot be less than what is spent: {spent} per {total.unit} is "
                    f"spent, {amount} was granted. Close the budget to stop further charges."
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
                **origin,
            )
            transaction.append([entry])
            return entry

    def charge(
        self,
        costs: Cost | Sequence[Cost],
        *,
        what: str,
        key: str | None = None,
        actor: str | None = None,
        purpose: str = "",
        vault: str = "",
        generation: int = 0,
        limited: bool = True,
    ) -> Entry:
        """Take a release's cost from every budget that it is stated for, durably, before anything
        is released.

        Parameters:
            costs: what the release costs, or a sequence of what this one release costs in different
                units. It is posted to each account that one of them is for, or converts to (see
                `units`), all or none.
            what: what is released, in words without private values.
            key: names the release. The first charge under a key is written; the same again, after
                a crash, in another process or on another host, returns that entry and charges
                nothing but accounts that were granted since; other costs under it are refused.
            actor: who asks for the release; by default the ledger's `actor`.
            purpose: what the release is for, in a few words; by default the ledger's `purpose`.
            vault: the number of the vault that the release comes from. Releases from a vault are
                charged by `Vault.charge`, which gives this and `generation`.
            generation: the number of the release within its vault.
            limited: whether `actor_limit` can refuse it. False where the release was made before
                and its charge is made up for: it counts as the actor's, and is not refused.

        Returns the entry of the first cost that has an account. Raises `BudgetExceeded` (too little
        left in one of the accounts, or more than the actor may spend), `UnitMismatch` (no account
        is in any of these units, or one is in a larger unit that the release says nothing for; says
        how to convert), `NotProven` (infinite cost) or `LedgerError` (not written). Whatever it
        raises, nothing is charged that you may release on.
        """
        listed, what = units.listed_costs(costs), _text("what", what)
        key = "" if key is None else _text("key", key)
        origin = self._origin(actor, purpose, vault, generation)
        with self._store.write(self._dataset) as transaction:
            head, lasts = self._locked(transaction)
            paid, posted = self._postings(transaction, head, lasts, listed, what, key, origin)
            if limited:
                self._require_within_limit(transaction, posted)
            if posted:
                if vault and transaction.other_release(vault, generation, key):
                    raise RolledBack(
                        f"the ledger {self.where} knows another release under generation "
                        f"{generation} of vault {vault}: this vault is an older copy. Nothing was "
                        "charged or released. Put the newest copy of the vault in its place."
                    )
                transaction.append(posted)
            return (paid or posted)[0]

    def check(
        self, costs: Cost | Sequence[Cost], *, key: str | None = None, actor: str | None = None
    ) -> None:
        """Raise what `charge` would raise for these costs now; nothing is written."""
        listed, key = units.listed_costs(costs), "" if key is None else _text("key", key)
        with self._store.read() as transaction:
            head, lasts = transaction.ends(self._dataset)
            origin = self._origin(actor, "")
            _, posted = self._postings(transaction, head, lasts, listed, "check", key, origin)
            self._require_within_limit(transaction, posted)

    def charged_by(self, actor: str) -> dict[Account, float]:
        """Return the epsilon that an actor's charges add up to, by unit and neighbour relation."""
        with self._store.read() as transaction:
            charged = transaction.charged_by(self._dataset, _text("actor", actor))
        return {account: Amount(spent, 0).epsilon for account, spent in charged.items()}

    def _require_within_limit(self, transaction: Transaction, posted: Sequence[Entry]) -> None:
        """Refuse entries that would exceed what their actor may spend."""
        if self.actor_limit is None or not posted:
            return
        actor = posted[0].actor
        limit = self.actor_limit(actor)
        if limit is None:
            return
        allowed = budget_amount(Cost(epsilon=limit, unit="record")).micro_epsilon
        charged = transaction.charged_by(self._dataset, actor)
        for entry in posted:
            spent = charged.get(entry.account, 0)
            # An entry without cost says only that the vault learned of more records.
            if entry.micro_epsilon and spent + entry.micro_epsilon > allowed:
                raise units.over_actor_limit(entry, allowed=allowed, spent=spent)

    def _postings(
        self,
        transaction: Transaction,
        head: Head,
        lasts: dict[Account, Entry],
        costs: Sequence[Cost],
        what: str,
        key: str,
        origin: dict[str, Any],
    ) -> tuple[list[Entry], list[Entry]]:
        """The entries that were charged under the key before, and those that are due now."""
        due = units.dues(costs, lasts.keys())
        if not due:
            raise self._no_account(costs, lasts.keys())
        if (refusal := units.uncovered(costs, due, self._dataset, lasts.keys())) is not None:
            raise refusal
        paid = transaction.paid(self._dataset, key) if key else []
        units.check_paid(paid, due, key)
        posted: list[Entry] = []
        for cost in due:
            before = lasts[cost.unit, cost.neighbours]
            if before.account not in {entry.account for entry in paid}:
                last = posted[-1].head if posted else head
                posted.append(self._posting(last, before, cost, what, key, origin))
        return paid, posted

    def sibling(self, dataset: str) -> Ledger:
        """The ledger of another data set in the same database."""
        sibling = Ledger.__new__(Ledger)
        sibling._location = self._location
        sibling._store = _open(self._location, create=False, timeout=self._store.timeout)
        sibling._dataset = sibling._named(_text("dataset", dataset))
        sibling.actor, sibling.purpose = self.actor, self.purpose
        sibling.actor_limit = self.actor_limit
        return sibling

    def identity(self) -> str:
        """Return the hash of the first entry, which identifies this data set's chain.

        A copy of a ledger has the same identity. A chain without entries has the identity "".
        """
        with self._store.read() as transaction:
            return transaction.first_hash(self._dataset)

    def holds(self, head: Head) -> bool:
        """Whether the chain passes through a head that was noted earlier."""
        with self._store.read() as transaction:
            return transaction.holds(self._dataset, head)

    def charges_of_vault(self, vault: str, *, after: int = 0) -> list[Entry]:
        """The charges for a vault's releases after a generation, in all data sets of the ledger."""
        with self._store.read() as transaction:
            return transaction.of_vault(_text("vault", vault), least=after + 1)

    def close_budget(
        self,
        unit: Unit,
        neighbours: Neighbours = "replace one",
        *,
        what: str = "closed",
        actor: str | None = None,
    ) -> Entry:
        """End a budget for good: what is left is forfeited."""
        origin = self._origin(actor, "")
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
                **origin,
            )
            transaction.append([entry])
            return entry

    def balance(self, unit: Unit, neighbours: Neighbours | None = None) -> Balance:
        """Budget, spent and remaining in a unit; zeros where nothing was granted.

        `neighbours` may be left out where the unit has a budget under one relation only.
        """
        checks.one_of("unit", unit, get_args(Unit))
        balances = [balance for balance in self.balances() if balance.unit == unit]
        if neighbours is not None:
            checks.one_of("neighbours", neighbours, get_args(Neighbours))
            balances = [balance for balance in balances if balance.neighbours == neighbours]
        if len(balances) > 1:
            raise InvalidParameter(
                f"data set {self._dataset!r} has budgets per {unit} under both neighbour "
                "relations: choose one with neighbours='replace one' or 'add or remove one'."
            )
        if balances:
            return balances[0]
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
        """Return the sequence number and hash of the chain's last entry.

        Store it elsewhere to prove later that no entry before it was changed.
        """
        with self._store.read() as transaction:
            return transaction.head(self._dataset) or EMPTY

    def verify(
        self,
        *,
        known: Head | Iterable[Head] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Head:
        """Verify the whole chain and return its head.

        This finds every changed, moved, added, removed or cut off entry, and anything in the
        database that could act on its tables. A person who can rewrite the whole database can also
        rewrite the whole chain; only `known` heads that were stored elsewhere show that (see
        `witness`).

        Parameters:
            known: heads that the chain must pass through.
            progress: called with (entries verified, entries in all).

        Raises:
            LedgerTampered: the chain is broken; the message says where.
        """
        heads = [known] if isinstance(known, Head) else known or ()
        unmatched = {tuple(head) for head in heads} - {tuple(EMPTY)}
        with self._store.read() as transaction:
            transaction.check_file()
            head = transaction.head(self._dataset) or EMPTY
            ends: dict[Account, Entry] = {}
            for entry in checked(transaction.rows(self._dataset), dataset=self._dataset, head=head):
                unmatched.discard(tuple(entry.head))
                ends[entry.account] = entry
                if progress is not None and (
                    entry.sequence % STRIDE == 0 or entry.sequence == head.sequence
                ):
                    progress(entry.sequence, head.sequence)
            # Charges find an account's totals through an index, so the index must lead to the last
            # entries of the chain.
            indexed = transaction.ends(self._dataset)[1]
        if indexed != ends:
            raise LedgerTampered(
                f"the index of data set {self._dataset!r} does not find its last entries."
            )
        if unmatched:
            raise LedgerTampered(
                f"the chain of data set {self._dataset!r} does not pass through {len(unmatched)} "
                f"known head{'s' if len(unmatched) > 1 else ''}: history was rewritten."
            )
        return head

    def close(self) -> None:
        """Close the database's connections, not the budget; the next use opens them again."""
        self._store.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Ledger({str(self._location)!r}, dataset={self._dataset!r})"

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        raise LedgerError(
            "a ledger cannot be copied or pickled: a copy could spend the budget twice. Pass it to "
            "fit or predict as an argument, and open it again by its path in another process."
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
                "nothing was written. Run verify, and restore the ledger from a backup."
            )
        return head, lasts

    def _posting(
        self,
        head: Head,
        before: Entry,
        cost: Cost,
        what: str,
        key: str,
        origin: dict[str, Any],
    ) -> Entry:
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
            **origin,
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
        **origin: Any,
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
            **origin,
        )

    def _origin(
        self, actor: str | None, purpose: str, vault: str = "", generation: int = 0
    ) -> dict[str, Any]:
        """Who charges, for what purpose, and from which vault, as fields of an entry."""
        charger = self.actor if actor is None else _text("actor", actor)
        return {
            "actor": system_user() if charger is None else charger,
            "purpose": _text("purpose", purpose) if purpose else self.purpose,
            "vault": _text("vault", vault) if vault else "",
            "generation": checks.whole("generation", generation, least=1 if vault else 0),
        }

    def _named(self, name: str) -> str:
        """The data set's name in its normal form; a chain of an earlier version keeps its own."""
        if name != unicodedata.normalize("NFKC", name).strip():
            with self._store.read() as transaction:
                if transaction.head(name) is not None:
                    return name
        return dataset_name(name)


def datasets(where: str | os.PathLike[str], *, readonly: bool = False) -> list[str]:
    """The names of the data sets that a ledger holds."""
    store = _open(Location(where), create=False, timeout=60.0, readonly=readonly)
    try:
        with store.read() as transaction:
            return transaction.datasets()
    finally:
        store.close()


def _open(location: Location, *, create: bool, timeout: float, readonly: bool = False) -> Store:
    # SQLAlchemy is slow to import, and not everyone uses a ledger.
    from blindsight.privacy.ledger.store import Store

    return Store(location, create=create, timeout=timeout, readonly=readonly)


@functools.cache
def system_user() -> str:
    """The operating system's name of whoever runs this process."""
    try:
        import pwd
    except ImportError:  # Windows
        return os.getlogin()
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user {os.getuid()}"


def _text(name: str, value: Any) -> str:
    if (
        not isinstance(value, str)
        or not value.strip()
        or len(value) > LONGEST
        or not value.isprintable()
    ):
        text = isinstance(value, str)
        actual = f"unsuitable text of {len(value):,} characters" if text else type(value).__name__
        raise InvalidParameter(
            f"{name} must be one printable line of 1 to {LONGEST:,} characters, got {actual}."
        )
    return value
