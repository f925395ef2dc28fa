"""Entries and the hash chain that binds each to the one before.

An entry's hash is SHA-256 over its canonical JSON (sorted keys, ASCII, whole numbers), which holds
every field and the previous entry's hash. Each entry also carries its account's budget and spent
totals after it, so the balance itself is under the chain. One release that is charged to several
accounts is one entry for each, under one key. Entries of earlier formats keep their hashes, and the
chain goes on from them: format 1 has no accounts in zCDP and no keys, format 2 does not say who
charged, for what purpose and from which vault. Nothing here touches a database.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from blindsight.core.errors import LedgerTampered
from blindsight.privacy.ledger.amounts import Amount, Composition

__all__ = [
    "FIRST",
    "Account",
    "Entry",
    "Head",
    "Kind",
    "canonical_hash",
    "chained",
    "checked",
    "digest",
]

Kind = Literal["grant", "charge", "close"]
Account = tuple[str, str]  # unit, neighbour relation
FIRST = "0" * 64  # what the first entry names as its previous hash
FORMATS = {1: "blindsight ledger 1", 2: "blindsight ledger 2", 3: "blindsight ledger 3"}
NEWEST = 3
# The fields that each format added, and their values in entries of earlier formats.
ADDED_IN: dict[int, dict[str, Any]] = {
    2: {
        "composition": "basic",
        "pico_rho": 0,
        "budget_pico_rho": 0,
        "spent_pico_rho": 0,
        "key": "",
        "format": 1,
    },
    3: {"actor": "", "purpose": "", "vault": "", "generation": 0},
}


class Head(NamedTuple):
    """The last entry of a data set's chain: its sequence number and hash.

    Stored elsewhere, it proves later that no entry before it was changed.
    """

    sequence: int
    hash: str


EMPTY = Head(0, FIRST)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the ledger: a budget granted or closed, or a cost charged.

    `actor` is who asked for it, `purpose` what it is for. A charge for a release from a vault names
    the vault's number and its generation, which is the number of the release within the vault.
    """

    dataset: str
    sequence: int
    time: str
    kind: Kind
    unit: str
    neighbours: str
    composition: Composition
    micro_epsilon: int
    atto_delta: int
    pico_rho: int
    budget_micro_epsilon: int
    budget_atto_delta: int
    budget_pico_rho: int
    spent_micro_epsilon: int
    spent_atto_delta: int
    spent_pico_rho: int
    what: str
    key: str
    actor: str
    purpose: str
    vault: str
    generation: int
    format: int
    previous: str
    hash: str

    @property
    def amount(self) -> Amount:
        """What was charged, or the budget granted in all."""
        return Amount(self.micro_epsilon, self.atto_delta, self.pico_rho)

    @property
    def budget(self) -> Amount:
        """The account's budget after this entry."""
        return Amount(self.budget_micro_epsilon, self.budget_atto_delta, self.budget_pico_rho)

    @property
    def spent(self) -> Amount:
        """What the account has spent after this entry."""
        return Amount(self.spent_micro_epsilon, self.spent_atto_delta, self.spent_pico_rho)

    @property
    def account(self) -> Account:
        """The unit and neighbour relation that the amounts count in."""
        return self.unit, self.neighbours

    @property
    def release(self) -> str:
        """The id of the release that was charged under this key, "" where the key is another."""
        return self.key.removeprefix(RELEASE) if self.key.startswith(RELEASE) else ""

    @property
    def head(self) -> Head:
        """The chain's end when this was the last entry."""
        return Head(self.sequence, self.hash)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON and for rows."""
        return {name: getattr(self, name) for name in FIELDS}


RELEASE = "release "  # how the key of a release from a vault begins
FIELDS: tuple[str, ...] = tuple(field.name for field in dataclasses.fields(Entry))
TEXTS = frozenset(
    {
        "dataset",
        "time",
        "kind",
        "unit",
        "neighbours",
        "composition",
        "what",
        "key",
        "actor",
        "purpose",
        "vault",
        "previous",
        "hash",
    }
)


def added_after(format: int) -> dict[str, Any]:
    """Return the fields that entries of a format do not have, with their values."""
    return {
        name: value
        for number, fields in ADDED_IN.items()
        if number > format
        for name, value in fields.items()
    }


def fields_of(format: int) -> tuple[str, ...]:
    """The names of the fields that entries of a format have, in order."""
    missing = added_after(format)
    return tuple(name for name in FIELDS if name not in missing)


def digest(fields: dict[str, Any]) -> str:
    """The hash of an entry's fields, whatever order they come in; `hash` itself is left out."""
    left_out = {"hash", *added_after(fields["format"])}
    body = {key: value for key, value in fields.items() if key not in left_out}
    return canonical_hash({**body, "format": FORMATS[fields["format"]]})


def canonical_hash(body: Mapping[str, str | int]) -> str:
    """Return the SHA-256 of the canonical JSON of plain fields; all hash chains here use it."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def chained(head: Head, **fields: Any) -> Entry:
    """The next entry after `head`, with its hash."""
    fields |= {"sequence": head.sequence + 1, "previous": head.hash, "format": NEWEST}
    return Entry(hash=digest(fields), **fields)


def widened(fields: dict[str, Any]) -> dict[str, Any]:
    """Stored fields of any format as fields of the newest."""
    for number in FORMATS:
        if fields.keys() == set(fields_of(number)):
            return {**added_after(number), **fields}
    return fields


def intact(fields: dict[str, Any]) -> Entry:
    """The entry of stored fields, if its hash is its own; otherwise `LedgerTampered`."""
    label = f"entry {fields.get('sequence')!r} of data set {fields.get('dataset')!r}"
    if set(fields) != set(FIELDS):
        raise LedgerTampered(f"{label} has missing or unknown fields.")
    for name, value in fields.items():
        # A bool is an int to Python and would hash as another word, so the type is compared
        # exactly.
        if type(value) is not (str if name in TEXTS else int):
            raise LedgerTampered(
                f"{label} has a {name} that is not of its type: it was changed after writing."
            )
    if fields["format"] not in FORMATS:
        raise LedgerTampered(f"{label} is of a format that this version does not know.")
    later = added_after(fields["format"])
    if any(fields[name] != value for name, value in later.items()):
        raise LedgerTampered(
            f"{label} is of format {fields['format']} and has fields of a later one: it was "
            "changed."
        )
    if digest(fields) != fields["hash"]:
        raise LedgerTampered(f"{label} does not match its hash: it was changed after writing.")
    return Entry(**fields)


def checked(rows: Iterable[dict[str, Any]], *, dataset: str, head: Head) -> Iterator[Entry]:
    """Yield a data set's entries in order while verifying the chain, the totals and the head.

    Raises `LedgerTampered` at the first entry that was changed, moved, removed, added or cut off.
    """
    last = EMPTY
    accounts: dict[Account, Entry] = {}
    paid: set[tuple[str, str, str]] = set()
    for fields in rows:
        entry = intact(fields)
        if (
            entry.dataset != dataset
            or entry.sequence != last.sequence + 1
            or entry.previous != last.hash
        ):
            raise LedgerTampered(
                f"entry {last.sequence + 1} of data set {dataset!r} is missing or out of place: "
                f"found entry {entry.sequence} of {entry.dataset!r} instead."
            )
        _check_totals(entry, accounts.get(entry.account))
        accounts[entry.account] = entry
        if entry.key and (entry.key, *entry.account) in paid:
            raise LedgerTampered(
                f"entry {entry.sequence} of data set {dataset!r} charges a key a second time."
            )
        paid.add((entry.key, *entry.account))
        last = entry.head
        yield entry
    if last != head:
        raise LedgerTampered(
            f"the chain of data set {dataset!r} ends at entry {last.sequence}, but its stored head "
            f"is entry {head.sequence}: entries were cut off, added or replaced."
        )


def _check_totals(entry: Entry, before: Entry | None) -> None:
    budget, spent = (before.budget, before.spent) if before else (Amount(0, 0), Amount(0, 0))
    if entry.kind == "charge":
        holds = entry.budget == budget and entry.spent == spent + entry.amount
        holds = holds and entry.spent.within(budget, entry.composition)
    elif entry.kind == "grant":
        holds = entry.spent == spent and entry.budget == entry.amount
        holds = holds and spent.within(entry.budget, entry.composition)
    else:
        holds = entry.kind == "close" and entry.spent == spent == entry.budget == entry.amount
    same = before is None or before.composition == entry.composition
    if not holds or not same or min(entry.micro_epsilon, entry.atto_delta, entry.pico_rho) < 0:
        raise LedgerTampered(
            f"the totals of entry {entry.sequence} of data set {entry.dataset!r} do not add up."
        )
    if before is not None and before.kind == "close":
        raise LedgerTampered(
            f"entry {entry.sequence} of data set {entry.dataset!r} follows a closed budget."
        )
    if before is not None and before.format > entry.format:
        raise LedgerTampered(
            f"entry {entry.sequence} of data set {entry.dataset!r} is of an earlier format."
        )
