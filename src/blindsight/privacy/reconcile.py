"""Charging for a vault, and finding out which of vault, ledger and releases is an older copy.

The order of a charge. (1) The vault is held for this run, and compared with the ledger. (2) The
ledger is asked whether it would accept the charge. (3) The release is noted in the vault as
pending, with the next generation. (4) The ledger is charged under the release's id, which charges
at most once. (5) The vault notes that it was charged, and the ledger's head. (6) Only now may the
caller release. A process that is killed before (4) has charged nothing and released nothing; one
that is killed between (4) and (6) has charged once and released nothing, and the next attempt finds
the charge under the same id.

What shows an older copy. The ledger's entries name the vault and the release: an entry for a
release that the vault does not know means that the vault is older. The vault keeps the head of each
ledger after each charge: a chain that does not pass through it means that the ledger is older. A
release folder whose id the vault does not know means that the vault is older, and if the ledger
does not know it either, that both are. Vault and ledger restored together, with no release left on
the disk, cannot be told from the past by anything on this machine; a witness of the ledger kept
elsewhere (`blindsight.privacy.ledger.witness`) shows it.

Several data sets. Each account remembers which records its data set contains. A release is charged
to every account that contains one of its records, and an account is charged for the earlier
releases of records that it gains. A vault that was an older copy has forgotten which records those
are: after taking over, every account that its releases were charged to counts as containing all
records, and every release that was taken over as being about all of them.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

from blindsight.core import checks
from blindsight.core.errors import BlindsightError, InvalidData, InvalidParameter, RolledBack
from blindsight.privacy.charges import (
    Charged,
    ChargeOptions,
    ConvertingLedger,
    Finding,
    Reconciliation,
    ReleaseOnDisk,
    read_release_file,
    write_release_file,
)
from blindsight.privacy.cost import Cost
from blindsight.privacy.door import say_uncharged
from blindsight.privacy.guarantee import Guarantee, costs_of
from blindsight.privacy.ledger import Entry, Head, Ledger
from blindsight.privacy.ledger.chain import RELEASE
from blindsight.privacy.vault import Vault, VaultRelease

__all__ = [
    "Charged",
    "Finding",
    "Reconciliation",
    "ReleaseOnDisk",
    "VaultAccount",
    "charge",
    "join",
    "overdue",
    "reconcile",
    "resolve",
]


@dataclass(frozen=True)
class VaultAccount:
    """Stands where a ledger would: charges go through the vault (`Vault.account`)."""

    vault: Vault
    ledger: Ledger | None
    release: str
    costs: Callable[[Sequence[Cost]], Sequence[Cost]] = tuple
    options: ChargeOptions = field(default_factory=lambda: ChargeOptions())

    def charge(
        self, costs: Cost | Sequence[Cost], *, what: str, key: str | None = None
    ) -> Entry | None:
        """Charge these costs for the account's release; its id is the key."""
        if not self.release and key is None:
            raise InvalidParameter("a release from a vault needs an id, or a key to make it from.")
        release = self.release or self.vault.release_of(f"charged as {key}")
        due = tuple(self.costs(costs_of(costs)))
        if self.ledger is None:
            say_uncharged(what)
        done = charge(self.vault, self.ledger, due, release=release, what=what, **self.options)
        return done.entry


def reconcile(
    vault: Vault, ledger: Ledger, releases: Iterable[ReleaseOnDisk] = ()
) -> Reconciliation:
    """Compare a vault with a ledger and with the releases on disk; nothing is written.

    Parameters:
        vault: the owner's vault.
        ledger: the account of one data set.
        releases: what is on the disk; releases of other vaults are left aside.

    Returns:
        the findings, each with the side that is older and what to do.

    Examples:
        >>> import tempfile
        >>> from blindsight.privacy import Ledger, Vault
        >>> folder = tempfile.mkdtemp()
        >>> vault = Vault.create(f"{folder}/vault")
        >>> ledger = Ledger(f"{folder}/budget.db", dataset="holidays")
        >>> reconcile(vault, ledger).agrees
        True
    """
    known = {release.release for release in vault.releases()}
    findings = [*_ledger_is_older(vault, ledger), *_vault_is_older(vault, ledger, known)]
    charged = {entry.release for entry in ledger.charges_of_vault(vault.number)}
    for shown in releases:
        if shown.vault != vault.number or shown.release in known or vault.codes(shown.release):
            continue
        if shown.release in charged:
            findings.append(
                Finding(
                    "vault",
                    f"The vault {vault.path} is older than the release {shown.path}, which it does "
                    "not know.",
                    _ADVICE["vault"],
                )
            )
        else:
            findings.append(
                Finding(
                    "both",
                    f"The vault {vault.path} and the ledger {ledger.where} are older than the "
                    f"release {shown.path}, which neither of them knows.",
                    _ADVICE["both"],
                )
            )
    return Reconciliation(vault.number, ledger.dataset, tuple(findings))


_ADVICE = {
    "vault": "Put the newest copy of the vault in its place; or take over what the ledger knows, "
    "after which everything that is released is charged again; or close the account.",
    "ledger": "Put the newest copy of the ledger in its place; or take over what the vault knows, "
    "which charges the missing releases again; or close the account.",
    "both": "Put the newest copies of both in their place; or take over what the release says; or "
    "close the account.",
}


def _ledger_is_older(vault: Vault, ledger: Ledger) -> Iterator[Finding]:
    accounts = _accounts(vault)
    identity = ledger.identity()
    if identity in accounts:
        head = accounts[identity].head
        if not ledger.holds(head):
            yield Finding(
                "ledger",
                f"The ledger {ledger.where} of data set {ledger.dataset!r} is older than the vault "
                f"{vault.path}: it does not hold entry {head.sequence}, which was on the disk when "
                "the vault last charged it.",
                _ADVICE["ledger"],
            )
        return
    for account in accounts.values():
        if (account.where, account.dataset) == (ledger.where, ledger.dataset):
            yield Finding(
                "ledger",
                f"The ledger {ledger.where} of data set {ledger.dataset!r} is not the one that the "
                f"vault {vault.path} charged, which had {account.head.sequence} entries: it was "
                "lost, or begun again.",
                _ADVICE["ledger"],
            )


def _vault_is_older(vault: Vault, ledger: Ledger, known: Collection[str]) -> Iterator[Finding]:
    entries = [entry for entry in ledger.charges_of_vault(vault.number) if entry.release]
    unknown = [entry for entry in entries if entry.release not in known]
    if unknown:
        last = max(entry.generation for entry in unknown)
        times = sorted(entry.time[:16].replace("T", " ") for entry in unknown)
        yield Finding(
            "vault",
            f"The vault {vault.path} is older than the ledger {ledger.where}: it ends with release "
            f"{vault.generation}, and the ledger was charged for its release {last} "
            f"({times[-1]} UTC), which it does not know.",
            _ADVICE["vault"],
        )


def charge(
    vault: Vault,
    ledger: Ledger | ConvertingLedger | None,
    cost: Guarantee | Cost | Sequence[Cost],
    *,
    release: str,
    what: str,
    records: Iterable[str] = (),
    most: int = 0,
    actor: str | None = None,
    purpose: str = "",
    releases: Iterable[ReleaseOnDisk] = (),
    out: str | os.PathLike[str] | None = None,
) -> Charged:
    """See `Vault.charge`, and the module's text for the order in which things are written."""
    costs = costs_of(cost)
    listed = sorted(set(records))
    checks.whole("most", most, least=0)
    with vault.running():
        vault.verify()
        shown = [*releases, *(() if out is None else read_release_file(out))]
        if ledger is None:
            known = {each.release for each in vault.releases()}
            for each in shown:
                if each.vault == vault.number and each.release not in known:
                    raise RolledBack(
                        f"The vault {vault.path} is older than the release {each.path}, which it "
                        "does not know. Put the newest copy of the vault in its place. Nothing was "
                        "released."
                    )
            simulated = isinstance(cost, Guarantee) and cost.entropy == "seed"
            due = () if simulated else costs
            generation = _note(vault, release, what, due, most, "uncharged", listed)
            if out is not None:
                write_release_file(out, vault.number, release, costs)
            return Charged(release, generation, new=False, costs=costs)
        if not isinstance(ledger, Ledger) and isinstance(ledger, ConvertingLedger):
            wrapper: ConvertingLedger = ledger
            ledger, costs = wrapper.ledger, tuple(wrapper.costs(costs))
        if not isinstance(ledger, Ledger):
            raise InvalidParameter(
                f"ledger must be a blindsight.Ledger or None, got {type(ledger).__name__}: open "
                "one with Ledger(path, dataset=...)."
            )
        with ExitStack() as opened:
            _require_agreement(vault, ledger, shown)
            ledger.check(costs, key=RELEASE + release, actor=actor)
            account, gained = _join(vault, ledger, listed)
            others = list(_other_ledgers(vault, ledger, account, listed, opened))
            for other in others:
                _require_agreement(vault, other)
                other.check(costs, key=RELEASE + release, actor=actor)
            before = {each: each.head() for each in (ledger, *others)}
            _catch_up(vault, ledger, account, release, actor, purpose)
            generation = _note(vault, release, what, costs, most, "pending", listed)
            pending = VaultRelease(release, generation, what, _fields(costs), most, "pending")
            entry = _post(vault, ledger, pending, actor, purpose)
            for other in others:
                _catch_up(vault, other, other.identity(), release, actor, purpose)
                _post(vault, other, pending, actor, purpose)
                _settle(vault, other.identity(), release, other.head())
            _settle(vault, account, release, ledger.head(), state="charged")
            new = any(each.head() != head for each, head in before.items())
            if gained and not new:
                _mark(vault, ledger, account, costs, actor)
            if out is not None:
                write_release_file(out, vault.number, release, costs)
            return Charged(
                release,
                generation,
                new=new,
                entry=entry,
                accounts=(ledger.dataset, *(other.dataset for other in others)),
                costs=costs,
            )


def join(
    vault: Vault, ledger: Ledger, records: Iterable[str], *, actor: str | None = None
) -> list[VaultRelease]:
    """Note which records a data set contains, and charge its account for their earlier releases.

    Parameters:
        vault: the owner's vault.
        ledger: the account of the data set, which needs a budget.
        records: the ids of the data set's records.
        actor: who asks for it; by default the operating system's user.

    Returns:
        the releases that the account was charged for now.

    Raises:
        BudgetExceeded: the data set's budget does not cover what was released of its photos before.
        RolledBack: the vault or the ledger is an older copy.
    """
    with vault.running():
        vault.verify()
        _require_agreement(vault, ledger)
        account, _ = _join(vault, ledger, sorted(set(records)))
        return _catch_up(vault, ledger, account, "", actor, "")


def _catch_up(
    vault: Vault, ledger: Ledger, account: str, release: str, actor: str | None, purpose: str
) -> list[VaultRelease]:
    """Charge an account for earlier releases of its records, other than the one being made."""
    due = _overdue(vault, account, release)
    for missing in due:
        _post(vault, ledger, missing, actor, purpose, limited=False)
        _settle(vault, account, missing.release, ledger.head())
    return due


def overdue(vault: Vault, ledger: Ledger) -> tuple[VaultRelease, ...]:
    """The releases of an account's records that it was not charged for; nothing is written.

    Releases that were noted and never charged to anybody are left out: nothing of them has left.
    """
    due = _overdue(vault, ledger.identity(), "")
    return tuple(release for release in due if release.state != "pending")


def resolve(
    vault: Vault,
    ledger: Ledger,
    decision: Literal["take over", "close"],
    *,
    releases: Iterable[ReleaseOnDisk] = (),
    actor: str | None = None,
) -> Reconciliation:
    """Carry out the owner's decision about what `reconcile` found.

    Parameters:
        decision: "take over" what the other side knows, or "close" every budget of the data set.
        releases: the releases on disk, as for `reconcile`.

    Taking over what the ledger or a release knows makes every later release a new one that is
    charged again (`Vault.start_anew`): what the vault lost cannot be compared. Taking over what the
    vault knows charges the missing releases to the ledger; a budget that is too small for them
    refuses, and then only a larger grant or closing the account is left.

    Returns:
        the reconciliation afterwards.
    """
    checks.one_of("decision", decision, ("take over", "close"))
    shown = [each for each in releases if each.vault == vault.number]
    with vault.running():
        before = reconcile(vault, ledger, shown)
        if before.agrees:
            return before
        known = {release.release for release in vault.releases()}
        taken = _from_ledger(ledger.charges_of_vault(vault.number), known)
        newest = max([vault.generation, *(each.generation for each in taken)])
        for each in shown:
            if each.release not in known | {release.release for release in taken}:
                if not each.costs and decision == "take over":
                    raise InvalidData(
                        f"{each.path} does not say what it costs, so the ledger cannot take it "
                        "over. Put newer copies in place, or close the account."
                    )
                newest += 1
                words = "a release found on the disk"
                costs = _fields(each.costs)
                taken.append(VaultRelease(each.release, newest, words, costs, 0, "taken over"))
        with vault._store.writing() as connection:
            vault._store.insert(connection, "releases", [_row(each) for each in taken])
            about_all = [(each.release, _ALL) for each in taken]
            vault._store.insert(connection, "contributions", about_all)
        if taken:
            vault.start_anew()
            _assume_all_records(vault, ledger)
        if decision == "close":
            for balance in ledger.balances():
                if not balance.closed:
                    what = "closed, because vault and ledger did not agree"
                    ledger.close_budget(balance.unit, balance.neighbours, what=what, actor=actor)  # type: ignore[arg-type]
        else:
            for missing in _missing(vault, ledger):
                _post(vault, ledger, missing, actor, "taken over from the vault", limited=False)
        _adopt(vault, ledger)
        return reconcile(vault, ledger, shown)


@dataclass(frozen=True)
class _Account:
    account: str
    where: str
    dataset: str
    head: Head


def _accounts(vault: Vault) -> dict[str, _Account]:
    with vault._store.reading() as connection:
        rows: list[Any] = vault._store.select(connection, "accounts")
    return {row[0]: _Account(row[0], row[1], row[2], Head(row[3], row[4])) for row in rows}


def _require_agreement(
    vault: Vault, ledger: Ledger, releases: Iterable[ReleaseOnDisk] = ()
) -> None:
    compared = reconcile(vault, ledger, releases)
    if not compared.agrees:
        raise RolledBack(f"{compared} Nothing was charged or released.")


def _mark(
    vault: Vault, ledger: Ledger, account: str, costs: Sequence[Cost], actor: str | None
) -> None:
    """Leave a trace in the ledger that the vault learned of more records, at no cost.

    Otherwise a copy of the vault from before would look like the present one.
    """
    free = tuple(
        Cost(epsilon=0, unit=cost.unit, neighbours=cost.neighbours, rho=0.0) for cost in costs
    )
    marker, what = os.urandom(16).hex(), "photos added to a release, at no cost"
    generation = _note(vault, marker, what, (), 0, "pending", ())
    noted = VaultRelease(marker, generation, what, _fields(free), 0, "pending")
    _post(vault, ledger, noted, actor, "")
    _settle(vault, account, marker, ledger.head(), state="charged")


def _join(vault: Vault, ledger: Ledger, records: Sequence[str]) -> tuple[str, int]:
    """Note the ledger's account and which records its data set contains.

    Returns the account's identity, and how many records are new to it.
    """
    identity, head = ledger.identity(), ledger.head()
    row = (identity, ledger.where, ledger.dataset, head.sequence, head.hash)
    with vault._store.writing() as connection:
        vault._store.replace(connection, "accounts", [row])
        members = [(identity, record) for record in records]
        gained = vault._store.insert(connection, "members", members)
    return identity, gained


def _other_ledgers(
    vault: Vault, ledger: Ledger, account: str, records: Sequence[str], opened: ExitStack
) -> Iterator[Ledger]:
    """The ledgers of the other data sets that contain one of the records."""
    for other in _accounts(vault).values():
        if other.account == account:
            continue
        with vault._store.reading() as connection:
            shared = vault._store.select_in(
                connection, "members", "record", [_ALL, *records], "account = ?", (other.account,)
            )
            if next(shared, None) is None:
                continue
        try:
            same = other.where == ledger.where
            yield opened.enter_context(
                ledger.sibling(other.dataset)
                if same
                else Ledger(
                    other.where,
                    dataset=other.dataset,
                    create=False,
                    actor_limit=ledger.actor_limit,
                )
            )
        except BlindsightError as error:
            raise InvalidData(
                f"data set {other.dataset!r} contains some of these photos, and its account at "
                f"{other.where} cannot be charged: {error} Nothing was charged or released."
            ) from error


_ALL = "*"  # stands for every record, where a vault has forgotten which
# Whether a release is about one of an account's records.
_TOUCHES = [
    "SELECT 1 FROM members JOIN contributions ON contributions.record = '*' "
    "WHERE members.account = ? AND contributions.release = ? LIMIT 1",
    "SELECT 1 FROM members JOIN releases ON members.record = '*' "
    "WHERE members.account = ? AND releases.release = ? LIMIT 1",
    "SELECT 1 FROM members JOIN codes USING (record) "
    "WHERE members.account = ? AND codes.release = ? LIMIT 1",
    "SELECT 1 FROM members JOIN contributions USING (record) "
    "WHERE members.account = ? AND contributions.release = ? LIMIT 1",
]


def _overdue(vault: Vault, account: str, release: str) -> list[VaultRelease]:
    """Earlier releases of records of this account that it was not charged for."""
    with vault._store.reading() as connection:
        charged = {
            str(row[1])
            for row in vault._store.select(connection, "charges", "account = ?", (account,))
        }
        return [
            earlier
            for earlier in vault._releases(connection)
            if earlier.release not in charged | {release}
            and earlier.costs
            and all(math.isfinite(cost.epsilon) for cost in _read(earlier.costs))
            and any(
                connection.execute(query, (account, earlier.release)).fetchone()
                for query in _TOUCHES
            )
        ]


def _note(
    vault: Vault,
    release: str,
    what: str,
    costs: Sequence[Cost],
    most: int,
    state: str,
    records: Sequence[str],
) -> int:
    """Note a release that is about to be charged; returns its generation."""
    with vault._store.writing() as connection:
        known = {each.release: each for each in vault._releases(connection)}
        newest = max((each.generation for each in known.values()), default=0)
        if release not in known:
            row = VaultRelease(release, newest + 1, what, _fields(costs), most, state)
            vault._store.insert(connection, "releases", [_row(row)])
        elif not known[release].costs and costs:
            vault._store.replace(
                connection,
                "releases",
                [_row(dataclasses.replace(known[release], costs=_fields(costs), most=most))],
            )
        vault._store.insert(connection, "contributions", [(release, record) for record in records])
        return known[release].generation if release in known else newest + 1


def _settle(vault: Vault, account: str, release: str, head: Head, *, state: str = "") -> None:
    """Note that an account was charged for a release, and the ledger's head."""
    with vault._store.writing() as connection:
        vault._store.insert(connection, "charges", [(account, release)])
        ((_, where, dataset, *_),) = vault._store.select(
            connection, "accounts", "account = ?", (account,)
        )
        vault._store.replace(
            connection, "accounts", [(account, where, dataset, head.sequence, head.hash)]
        )
        if state:
            (known,) = [each for each in vault._releases(connection) if each.release == release]
            if known.state != state:
                settled = _row(dataclasses.replace(known, state=state))
                vault._store.replace(connection, "releases", [settled])
            # The next run charges this account, also where it is not named again.
            noted = [("ledger", json.dumps(where)), ("dataset", json.dumps(dataset))]
            vault._store.replace(connection, "facts", noted)


def _post(
    vault: Vault,
    ledger: Ledger,
    release: VaultRelease,
    actor: str | None,
    purpose: str,
    *,
    limited: bool = True,
) -> Entry:
    return ledger.charge(
        _read(release.costs),
        what=release.what,
        key=RELEASE + release.release,
        actor=actor,
        purpose=purpose,
        vault=vault.number,
        generation=release.generation,
        limited=limited,
    )


def _missing(vault: Vault, ledger: Ledger) -> list[VaultRelease]:
    """The releases that this account was charged for, or should be, and does not hold."""
    accounts = _accounts(vault)
    mine = {
        account.account
        for account in accounts.values()
        if (account.where, account.dataset) == (ledger.where, ledger.dataset)
        or account.account == ledger.identity()
    }
    with vault._store.reading() as connection:
        charged = {
            str(row[1])
            for account in mine
            for row in vault._store.select(connection, "charges", "account = ?", (account,))
        }
        known = vault._releases(connection)
    held = {entry.key for entry in ledger.entries() if entry.kind == "charge"}
    return [
        each
        for each in known
        if (each.release in charged or each.state == "taken over")
        and each.costs
        and RELEASE + each.release not in held
    ]


def _adopt(vault: Vault, ledger: Ledger) -> None:
    """Note the ledger's head as it stands; it follows the account that stood in its place."""
    identity, head = ledger.identity(), ledger.head()
    same = (ledger.where, ledger.dataset)
    replaced = [
        account.account
        for account in _accounts(vault).values()
        if (account.where, account.dataset) == same and account.account != identity
    ]
    held = sorted({entry.release for entry in ledger.entries()} - {""})
    with vault._store.writing() as connection:
        records: set[Any] = set()
        for account in replaced:
            rows = vault._store.select(connection, "members", "account = ?", (account,))
            records |= {row[1] for row in rows}
            vault._store.delete(connection, "members", [(account, row[1]) for row in rows])
            charged = vault._store.select(connection, "charges", "account = ?", (account,))
            vault._store.delete(connection, "charges", charged)
        vault._store.delete(connection, "accounts", [(account,) for account in replaced])
        row = (identity, ledger.where, ledger.dataset, head.sequence, head.hash)
        vault._store.replace(connection, "accounts", [row])
        vault._store.insert(connection, "members", [(identity, each) for each in sorted(records)])
        vault._store.insert(connection, "charges", [(identity, release) for release in held])


def _assume_all_records(vault: Vault, ledger: Ledger) -> None:
    """Let every account that the vault's releases were charged to count as holding all records."""
    charged = {entry.dataset for entry in ledger.charges_of_vault(vault.number)}
    for dataset in sorted(charged - {ledger.dataset}):
        with ledger.sibling(dataset) as other:
            known = other.identity() in _accounts(vault)
            if not known and not any(_ledger_is_older(vault, other)):
                _join(vault, other, ())
    for account in [*_accounts(vault), ledger.identity()]:
        with vault._store.writing() as connection:
            vault._store.insert(connection, "members", [(account, _ALL)])


def _from_ledger(entries: Sequence[Entry], known: set[str]) -> list[VaultRelease]:
    """The releases that a ledger's entries name and the vault does not know."""
    unknown: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.release and entry.release not in known:
            unknown.setdefault(entry.release, []).append(entry)
    taken = []
    for release, of_it in unknown.items():
        stated = {
            entry.account: Cost(
                epsilon=entry.amount.epsilon,
                delta=entry.amount.delta,
                unit=entry.unit,  # type: ignore[arg-type]
                neighbours=entry.neighbours,  # type: ignore[arg-type]
                rho=entry.amount.rho if entry.composition == "zcdp" else None,
            )
            for entry in of_it
        }
        first = of_it[0]
        costs = _fields(tuple(stated.values()))
        taken.append(VaultRelease(release, first.generation, first.what, costs, 0, "taken over"))
    return taken


def _fields(costs: Sequence[Cost]) -> tuple[dict[str, Any], ...]:
    return tuple(cost.to_dict() for cost in costs)


def _read(fields: Sequence[dict[str, Any]]) -> tuple[Cost, ...]:
    return tuple(map(Cost.from_dict, fields))


def _row(release: VaultRelease) -> tuple[str | int, ...]:
    return (
        release.release,
        release.generation,
        release.what,
        json.dumps(release.costs),
        release.most,
        release.state,
    )
