"""Privacy budgets: grant, charge and close them, show balances, and verify the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Literal, cast

from blindsight.app import defaults
from blindsight.app.defaults import no_progress
from blindsight.app.result import JobResult, Progress, ResultTable, counted
from blindsight.core.errors import InvalidParameter, LedgerTampered
from blindsight.privacy import Cost
from blindsight.privacy import ledger as ledgers
from blindsight.privacy.cost import Neighbours, Unit
from blindsight.privacy.ledger import Amount, Balance, Entry, Head, Ledger, SigningKey

__all__ = [
    "BudgetBackup",
    "BudgetChange",
    "BudgetCheck",
    "BudgetEntries",
    "BudgetExport",
    "BudgetSummary",
    "BudgetWitness",
    "DatasetCheck",
    "WitnessKey",
    "backup_budget",
    "budget",
    "budget_entries",
    "charge_budget",
    "close_budget",
    "export_budget",
    "grant_budget",
    "make_witness_key",
    "open_accounts",
    "verify_budget",
    "witness_budget",
]

PathText = str | PathLike[str]
Composition = Literal["basic", "zcdp"]


@dataclass(frozen=True)
class BudgetSummary(JobResult):
    """The budgets in a ledger: granted, spent and left.

    Parameters:
        balances: one for each data set, unit and neighbour relation.

    Examples:
        >>> import tempfile
        >>> ledger = Path(tempfile.mkdtemp()) / "budget.db"
        >>> granted = grant_budget(ledger, "holidays", epsilon=8)
        >>> print(budget(ledger).balances[0])
        holidays: spent ε = 0 of ε = 8 per record (replace one); ε = 8 left
    """

    balances: tuple[Balance, ...]

    @property
    def title(self) -> str:
        return f"{len(self.balances)} budget{'' if len(self.balances) == 1 else 's'}"

    def facts(self) -> list[tuple[str, str]]:
        return [] if self.balances else [("note", "No budget has been granted here.")]

    def tables(self) -> list[ResultTable]:
        rows = []
        deltas = any(each.budget.atto_delta or each.spent.atto_delta for each in self.balances)
        for balance in self.balances:
            row = {
                "data set": balance.dataset,
                "per": balance.unit,
                "neighbours": _short_relation(balance.neighbours),
                "ε": _epsilon(balance.budget),
                "spent": _epsilon(balance.spent),
                "left": _epsilon(balance.remaining),
            }
            if deltas:
                row |= {"δ": _delta(balance.budget), "δ left": _delta(balance.remaining)}
            rows.append(row | {"used": "closed" if balance.closed else _used(balance)})
        return _as_table("Budgets", rows)

    def to_dict(self) -> dict[str, object]:
        return {"balances": [_balance_fields(balance) for balance in self.balances]}


@dataclass(frozen=True)
class BudgetChange(JobResult):
    """A budget after it was granted, charged or closed.

    Parameters:
        entry: the entry that was written to the ledger.
        balance: the budget after it.
    """

    entry: Entry
    balance: Balance

    @property
    def title(self) -> str:
        return str(self.balance)

    def facts(self) -> list[tuple[str, str]]:
        return [("entry", f"{self.entry.sequence}: {self.entry.kind}, {self.entry.what}")]

    def to_dict(self) -> dict[str, object]:
        return {"entry": self.entry.to_dict(), "balance": _balance_fields(self.balance)}


@dataclass(frozen=True)
class BudgetEntries(JobResult):
    """Entries of a ledger.

    Parameters:
        entries: the entries of each data set, in the order in which they were written.
    """

    entries: Mapping[str, tuple[Entry, ...]]

    @property
    def title(self) -> str:
        return f"{sum(map(len, self.entries.values())):,} entries"

    def facts(self) -> list[tuple[str, str]]:
        return [] if self.entries else [("note", "There are no entries.")]

    def tables(self) -> list[ResultTable]:
        return [
            table
            for dataset, listed in self.entries.items()
            for table in _as_table(dataset, _entry_rows(listed))
        ]

    def to_dict(self) -> dict[str, object]:
        return {
            "entries": [entry.to_dict() for listed in self.entries.values() for entry in listed]
        }


@dataclass(frozen=True)
class DatasetCheck:
    """Whether the entries of one data set are unchanged.

    Parameters:
        dataset: the data set, or the file that was checked.
        head: the last entry's number and hash; None if the entries were changed.
        problem: what is wrong; empty if nothing is.
    """

    dataset: str
    head: Head | None
    problem: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return the fields of the command's JSON."""
        if self.head is None:
            return {"dataset": self.dataset, "holds": False, "problem": self.problem}
        head = {"entries": self.head.sequence, "hash": self.head.hash}
        return {"dataset": self.dataset, "holds": True, **head}


@dataclass(frozen=True)
class BudgetCheck(JobResult):
    """The result of verifying a ledger or an export.

    Parameters:
        datasets: one result for each data set.
    """

    datasets: tuple[DatasetCheck, ...]

    @property
    def holds(self) -> bool:
        """Whether no data set has a problem."""
        return all(each.head is not None for each in self.datasets)

    @property
    def title(self) -> str:
        return "All entries hold." if self.holds else "Some entries do not hold."

    def facts(self) -> list[tuple[str, str]]:
        return [
            (
                each.dataset,
                f"DOES NOT HOLD: {each.problem}"
                if each.head is None
                else f"{each.head.sequence:,} entries hold, "
                f"head {each.head.sequence}:{each.head.hash}",
            )
            for each in self.datasets
        ]

    def to_dict(self) -> dict[str, object]:
        return {"datasets": [each.to_dict() for each in self.datasets]}


@dataclass(frozen=True)
class BudgetWitness(JobResult):
    """The heads of a ledger's data sets, noted in a witness file.

    Parameters:
        to: the witness file or folder.
        heads: the last entry of each data set.
    """

    to: Path
    heads: Mapping[str, Head]

    @property
    def title(self) -> str:
        return f"{len(self.heads)} heads are witnessed in {self.to}"

    def facts(self) -> list[tuple[str, str]]:
        return [(name, f"{head.sequence}:{head.hash}") for name, head in self.heads.items()]


@dataclass(frozen=True)
class BudgetBackup(JobResult):
    """A copy of a whole ledger.

    Parameters:
        out: the path of the copy.
        heads: the last entry of each data set in it.
    """

    out: Path
    heads: Mapping[str, Head]

    @property
    def title(self) -> str:
        return f"{counted(len(self.heads), 'data set')} copied to {self.out}, verified."

    def facts(self) -> list[tuple[str, str]]:
        return [(name, f"{head.sequence}:{head.hash}") for name, head in self.heads.items()]


@dataclass(frozen=True)
class BudgetExport(JobResult):
    """Entries of a ledger, written to a file.

    Parameters:
        out: the path of the file.
        entries: number of entries in it.
        datasets: the names of the data sets.
    """

    out: Path
    entries: int
    datasets: tuple[str, ...]

    @property
    def title(self) -> str:
        return (
            f"{counted(self.entries, 'entry', 'entries')} of "
            f"{counted(len(self.datasets), 'data set')} written to {self.out}."
        )

    def facts(self) -> list[tuple[str, str]]:
        return [("data sets", ", ".join(self.datasets))]


@dataclass(frozen=True)
class WitnessKey(JobResult):
    """A key that signs heads.

    Parameters:
        key: the file of the secret key; the public key is beside it, with ".pub" appended.
        fingerprint: the fingerprint of the public key.
    """

    key: Path
    fingerprint: str

    @property
    def title(self) -> str:
        return f"{self.key}: keep it secret. It is {self.fingerprint}."

    def facts(self) -> list[tuple[str, str]]:
        return [("for those who verify", f"{self.key}.pub")]


def budget(ledger: PathText, dataset: str | None = None) -> BudgetSummary:
    """Return each data set's budget: granted, spent and left.

    Parameters:
        ledger: the ledger's file or postgresql:// address.
        dataset: only this data set.

    Raises:
        InvalidParameter: if the ledger has no such data set.

    Examples:
        >>> import tempfile
        >>> ledger = Path(tempfile.mkdtemp()) / "budget.db"
        >>> granted = grant_budget(ledger, "holiday", epsilon=8)
        >>> budget(ledger).balances[0].remaining.epsilon
        8.0
    """
    opened = open_accounts(ledger, dataset)
    return BudgetSummary(tuple(balance for each in opened for balance in each.balances()))


def grant_budget(
    ledger: PathText,
    dataset: str,
    *,
    epsilon: float,
    delta: float = 0.0,
    unit: str = "record",
    neighbours: str = "replace one",
    what: str = "budget",
    composition: str = "basic",
    actor: str | None = None,
    purpose: str = "",
) -> BudgetChange:
    """Set a data set's total budget (not an amount to add); create the ledger if there is none.

    Parameters:
        ledger: the ledger's file or postgresql:// address.
        dataset: the data set whose budget it is.
        epsilon: the largest epsilon that all releases together may spend on one unit.
        delta: the largest delta that they may spend on one unit.
        unit: what is protected: "record", "person", "bit", "pair" and so on.
        neighbours: "replace one" or "add or remove one".
        what: a description of the grant, which the ledger stores.
        composition: "basic" (epsilons add) or "zcdp" (rho adds: cheaper for Gaussian noise).
        actor: the name of the person who grants it (default: the operating system's user).
        purpose: what the budget is for.

    Raises:
        InvalidParameter: if a value is out of range.

    Examples:
        >>> import tempfile
        >>> ledger = Path(tempfile.mkdtemp()) / "budget.db"
        >>> print(grant_budget(ledger, "holidays", epsilon=8, what="the owner's decision"))
        holidays: spent ε = 0 of ε = 8 per record (replace one); ε = 8 left
          entry  1: grant, the owner's decision
        >>> grant_budget(ledger, "holidays", epsilon=12).balance.remaining.epsilon
        12.0
    """
    cost = _cost(epsilon, delta, unit, neighbours)
    with Ledger(ledger, dataset=dataset, actor=actor, purpose=purpose) as opened:
        entry = opened.grant(cost, what=what, composition=cast("Composition", composition))
        return _change(opened, entry)


def charge_budget(
    ledger: PathText,
    dataset: str,
    *,
    epsilon: float,
    what: str,
    delta: float = 0.0,
    unit: str = "record",
    neighbours: str = "replace one",
    key: str | None = None,
    actor: str | None = None,
    purpose: str = "",
) -> BudgetChange:
    """Charge a release that other software makes; release only after this function has returned.

    Parameters:
        ledger: the ledger's file or postgresql:// address.
        dataset: the data set that is charged.
        epsilon: the epsilon of the release, per unit.
        what: a description of the release, which the ledger stores.
        delta: the delta of the release, per unit.
        unit: see `grant_budget`.
        neighbours: see `grant_budget`.
        key: an idempotency key: a second charge with the same key is not made.
        actor: the name of the person who asks for it (default: the operating system's user).
        purpose: what the release is for.

    Raises:
        BudgetExceeded: if the remaining budget is too small; nothing is charged.
    """
    cost = _cost(epsilon, delta, unit, neighbours)
    with Ledger(ledger, dataset=dataset, create=False, actor=actor, purpose=purpose) as opened:
        return _change(opened, opened.charge(cost, what=what, key=key))


def close_budget(
    ledger: PathText,
    dataset: str,
    *,
    unit: str = "record",
    neighbours: str = "replace one",
    what: str = "closed",
    actor: str | None = None,
) -> BudgetChange:
    """Close a budget permanently: nothing more can be charged to it.

    Parameters:
        ledger: the ledger's file or postgresql:// address.
        dataset: the data set whose budget is closed.
        unit: see `grant_budget`.
        neighbours: see `grant_budget`.
        what: the reason, which the ledger stores.
        actor: the name of the person who closes it (default: the operating system's user).
    """
    cost = _cost(0.0, 0.0, unit, neighbours)
    with Ledger(ledger, dataset=dataset, create=False, actor=actor) as opened:
        return _change(opened, opened.close_budget(cost.unit, cost.neighbours, what=what))


def budget_entries(
    ledger: PathText,
    dataset: str | None = None,
    *,
    last: int | None = defaults.LEDGER_ENTRIES_SHOWN,
) -> BudgetEntries:
    """Return a ledger's entries.

    Parameters:
        ledger: the ledger's file or postgresql:// address.
        dataset: only this data set.
        last: how many of the latest entries of each data set; None for all.
    """
    listed = {}
    for opened in open_accounts(ledger, dataset):
        after = 0 if last is None else max(0, opened.head().sequence - last)
        listed[opened.dataset] = tuple(opened.entries(after=after))
    return BudgetEntries(listed)


def verify_budget(
    ledger: PathText | None = None,
    dataset: str | None = None,
    *,
    known: str | None = None,
    witness: PathText | None = None,
    key: PathText | None = None,
    file: PathText | None = None,
    progress: Progress = no_progress,
) -> BudgetCheck:
    """Check every chain of entries from its first entry to its head; nothing is written.

    Parameters:
        ledger: the ledger's file or postgresql:// address.
        dataset: only this data set.
        known: a head that was stored elsewhere, as "NUMBER:HASH"; needs `dataset`.
        witness: a witness's file or folder: the ledger must contain every head in it.
        key: a key that must have signed every line of the witness.
        file: check this JSON export instead of a ledger.
        progress: called with (stage, done, total).

    Raises:
        InvalidParameter: if neither a ledger nor a file is given, or options exclude each other.

    Examples:
        >>> import tempfile
        >>> ledger = Path(tempfile.mkdtemp()) / "budget.db"
        >>> granted = grant_budget(ledger, "holidays", epsilon=8)
        >>> print(verify_budget(ledger).title)
        All entries hold.
    """
    if file is not None:
        return BudgetCheck(_check_file(Path(file)))
    if ledger is None:
        raise InvalidParameter(
            "say which ledger, with --ledger or BLINDSIGHT_LEDGER, or which export, with --file."
        )
    if known is not None and dataset is None:
        raise InvalidParameter("--known is the head of one data set: say which, with --dataset.")
    if key is not None and witness is None:
        raise InvalidParameter("--key checks a witness: say which, with --witness.")
    signing = None if key is None else SigningKey.read(Path(key))
    heads = {} if witness is None else ledgers.read_witness(Path(witness), key=signing)
    if known is not None and dataset is not None:
        heads.setdefault(dataset, []).append(_head(known))
    opened_all = open_accounts(ledger, dataset, readonly=True)
    results = [
        DatasetCheck(
            name,
            None,
            f"the data set {name!r} of the witness is not in the ledger: it was removed.",
        )
        for name in heads.keys() - {opened.dataset for opened in opened_all}
        if dataset in (None, name)
    ]
    for opened in opened_all:
        stage = f"verifying {opened.dataset}"
        try:
            head = opened.verify(
                known=heads.get(opened.dataset, ()),
                progress=lambda done, total, stage=stage: progress(stage, done, total),  # type: ignore[misc]
            )
            results.append(DatasetCheck(opened.dataset, head))
        except LedgerTampered as error:
            results.append(DatasetCheck(opened.dataset, None, str(error)))
    return BudgetCheck(tuple(results))


def witness_budget(
    ledger: PathText, to: PathText, dataset: str | None = None, *, key: PathText | None = None
) -> BudgetWitness:
    """Verify a ledger, and write its heads to a witness, which detects later changes before them.

    Parameters:
        ledger: the ledger's file or postgresql:// address.
        to: the witness file or folder, best on another disk or host.
        dataset: only this data set.
        key: sign the heads with this key (`make_witness_key`).
    """
    signing = None if key is None else SigningKey.read(Path(key))
    heads = ledgers.witness(open_accounts(ledger, dataset, readonly=True), Path(to), key=signing)
    return BudgetWitness(Path(to), heads)


def make_witness_key(out: PathText) -> WitnessKey:
    """Make a key that signs heads.

    Parameters:
        out: the new key's file; the public key is written beside it, with ".pub" appended.
    """
    return WitnessKey(Path(out), ledgers.make_key(Path(out)).fingerprint)


def backup_budget(ledger: PathText, out: PathText) -> BudgetBackup:
    """Copy a whole ledger while it may be in use, and verify the copy.

    Parameters:
        ledger: the ledger's file or postgresql:// address.
        out: the copy: a new SQLite file.
    """
    return BudgetBackup(Path(out), ledgers.backup(str(ledger), Path(out)))


def export_budget(ledger: PathText, out: PathText, dataset: str | None = None) -> BudgetExport:
    """Verify a ledger's entries and write them to a file.

    Parameters:
        ledger: the ledger's file or postgresql:// address.
        out: a .json file, which can be verified by itself, or a .csv file.
        dataset: only this data set.

    Raises:
        InvalidParameter: if the file has another ending or cannot be written.
    """
    opened = open_accounts(ledger, dataset)
    target = Path(out)
    if target.suffix not in (".json", ".csv"):
        raise InvalidParameter(f"--out must end in .json or .csv, got {target.name!r}.")
    heads = {each.dataset: each.verify() for each in opened}
    text = (
        ledgers.to_json(opened)
        if target.suffix == ".json"
        else ledgers.to_csv(entry for each in opened for entry in each.entries())
    )
    try:
        target.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise InvalidParameter(f"--out {target} cannot be written: {error.strerror}.") from error
    return BudgetExport(target, sum(head.sequence for head in heads.values()), tuple(heads))


def _check_file(file: Path) -> tuple[DatasetCheck, ...]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameter(f"--file {file} cannot be read as text.") from error
    try:
        return tuple(
            DatasetCheck(dataset, head) for dataset, head in ledgers.check_json(text).items()
        )
    except LedgerTampered as error:
        return (DatasetCheck(str(file), None, str(error)),)


def _head(text: str) -> Head:
    number, colon, digest = text.partition(":")
    if not number.isdecimal() or not colon or len(digest) != 64:
        raise InvalidParameter("--known must be NUMBER:HASH, as verify prints it.")
    return Head(int(number), digest)


def open_accounts(ledger: PathText, dataset: str | None, *, readonly: bool = False) -> list[Ledger]:
    """Open the accounts of a ledger's data sets, or of one of them."""
    names = ledgers.datasets(str(ledger), readonly=readonly)
    if dataset is not None and dataset not in names:
        present = ", ".join(names) or "none yet"
        raise InvalidParameter(f"the ledger has no data set {dataset!r}. It has: {present}.")
    return [
        Ledger(str(ledger), dataset=name, create=False, readonly=readonly)
        for name in names
        if dataset in (None, name)
    ]


def _cost(epsilon: float, delta: float, unit: str, neighbours: str) -> Cost:
    return Cost(
        epsilon=epsilon,
        delta=delta,
        unit=cast("Unit", unit),
        neighbours=cast("Neighbours", neighbours),
    )


def _change(opened: Ledger, entry: Entry) -> BudgetChange:
    unit, neighbours = cast("Unit", entry.unit), cast("Neighbours", entry.neighbours)
    return BudgetChange(entry, opened.balance(unit, neighbours))


def _balance_fields(balance: Balance) -> dict[str, object]:
    parts = {"budget": balance.budget, "spent": balance.spent, "remaining": balance.remaining}
    amounts: dict[str, dict[str, object]] = {
        name: {
            "epsilon": part.epsilon,
            "delta": part.delta,
            "micro_epsilon": part.micro_epsilon,
            "atto_delta": part.atto_delta,
        }
        for name, part in parts.items()
    }
    if balance.composition == "zcdp":
        for name, part in parts.items():
            amounts[name] |= {"rho": part.rho, "pico_rho": part.pico_rho}
    return {
        "dataset": balance.dataset,
        "unit": balance.unit,
        "neighbours": balance.neighbours,
        **amounts,
        "closed": balance.closed,
        "composition": balance.composition,
    }


def _entry_rows(entries: tuple[Entry, ...]) -> list[dict[str, str]]:
    deltas = any(entry.atto_delta for entry in entries)
    relations = len({entry.neighbours for entry in entries}) > 1
    rows = []
    for entry in entries:
        row = {
            "no.": f"{entry.sequence:,}",
            "time (UTC)": entry.time[:16].replace("T", " "),
            "kind": entry.kind,
            "ε": _epsilon(entry.amount),
        }
        row |= {"δ": _delta(entry.amount)} if deltas else {}
        row |= {"per": entry.unit}
        row |= {"neighbours": _short_relation(entry.neighbours)} if relations else {}
        rows.append(row | {"what": entry.what, "hash": entry.hash[:12]})
    return rows


def _as_table(title: str, rows: list[dict[str, str]]) -> list[ResultTable]:
    return (
        [ResultTable(title, tuple(rows[0]), [tuple(row.values()) for row in rows])] if rows else []
    )


def _short_relation(neighbours: str) -> str:
    return {"replace one": "replace", "add or remove one": "add/remove"}.get(neighbours, neighbours)


def _epsilon(amount: Amount) -> str:
    return str(amount).removeprefix("ε = ").partition(", δ")[0]


def _delta(amount: Amount) -> str:
    return f"{amount.delta:.4g}" if amount.atto_delta else "0"


def _used(balance: Balance) -> str:
    """Return the used share of epsilon or of delta, whichever is larger, rounded up."""
    spent, granted = balance.spent, balance.budget
    pairs = (
        [(spent.pico_rho, granted.pico_rho)]
        if balance.composition == "zcdp"
        else [
            (spent.micro_epsilon, granted.micro_epsilon),
            (spent.atto_delta, granted.atto_delta),
        ]
    )
    return f"{max(-(-100 * part // total) if total else 0 for part, total in pairs)}%"
