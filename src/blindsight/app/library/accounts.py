"""The owner's vault and the data sets' accounts: what may be released, and what was.

    STATE/vault/        one vault for all data sets: the key, which photo is which record, what was
                        released of it
    STATE/ledger.db     one account for each data set
    STATE/limits/       what single people may spend of each data set
    STATE/releases/*/release.json
                        for each release its id, the vault's number and its cost

A photo is one record of the vault, whichever data sets it is in. Every release is charged through
the vault to the account of each data set that contains one of its photos, and a data set that is
added later is charged for what was released of its photos before. Vault, ledger and releases are
compared before every release: where one of them is an older copy, nothing is released until the
owner has decided (`decide`).

Data sets of version 0.2 and earlier have a vault of their own, in their private folder. They can be
searched, tagged and attacked as before, but nothing more is released from them; a new data set that
contains some of their photos is charged for what was released of them.

Copies for backups are made here: while one is made the vault is held, so that nothing is charged
or released, and vault and ledger of the copy belong together. A copy is for restoring. Whoever
releases from a copy and from the original releases twice, so a restored state waits for the
owner's decision (`mark_restored`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from blindsight.app.library.datasets import DataSet, DataSets, LibrarySettings, Release
from blindsight.core import checks
from blindsight.core.errors import (
    BlindsightError,
    BudgetExceeded,
    HostileFile,
    InvalidData,
    LedgerError,
    MissingData,
    RolledBack,
    UnitMismatch,
)
from blindsight.core.storage import open_json, seal_json, write_atomically
from blindsight.privacy import Cost, Ledger
from blindsight.privacy.ledger import backup, to_json
from blindsight.privacy.ledger import datasets as accounts_in
from blindsight.privacy.ledger import datasets as datasets_in
from blindsight.privacy.ledger.export import restore
from blindsight.privacy.reconcile import (
    Reconciliation,
    ReleaseOnDisk,
    join,
    overdue,
    reconcile,
    resolve,
)
from blindsight.release.manifest import NOTE_FILE

if TYPE_CHECKING:
    from blindsight.privacy.cost import Unit
    from blindsight.privacy.ledger import Balance, Head
    from blindsight.privacy.vault import Vault

__all__ = [
    "Budgets",
    "StateReport",
    "account_ledger",
    "change_budget",
    "charge_training",
    "check_state",
    "close_account",
    "compare_state",
    "copy_database",
    "copy_ledger",
    "decide",
    "has_own_vault",
    "hold_state",
    "join_account",
    "mark_restored",
    "name_release",
    "open_account",
    "owner_vault",
    "release_note",
    "reports_after_restore",
    "require_agreement",
    "restore_ledger",
    "restored_from",
    "set_spending_limit",
    "settings_purpose",
    "spending_limit",
    "vault_of",
]

_PATIENCE = 10.0  # seconds to wait for other writers of the ledger before a request is refused
_BUDGET_DELTA = 1e-3
_LARGEST_RELEASE_FILE = 1 << 20


class Budgets:
    """Open ledgers by the name of their account.

    No lock is held while a ledger is opened: whoever asks for the same account waits for the first
    to open it, and all others pass.
    """

    def __init__(self, settings: LibrarySettings) -> None:
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
                        purpose=settings_purpose(self._settings),
                        actor_limit=functools.partial(spending_limit, self._settings),
                    )
                )
            except BaseException as error:
                with self._guard:
                    del self._opened[account]
                opened.set_exception(error)
        return opened.result(6 * _PATIENCE)

    def names(self) -> list[str]:
        """Return the names of all accounts; none before the first budget is granted."""
        try:
            return datasets_in(self._settings.ledger_place)
        except LedgerError:
            return []

    def totals(self) -> dict[str, float]:
        """Counts over all accounts, for metrics: no name of a data set is in them."""
        ledgers = [self.named(name) for name in self.names()]
        balances = [balance for ledger in ledgers for balance in ledger.balances()]
        return {
            "ledger_accounts": float(len(balances)),
            "ledger_entries": float(sum(ledger.head().sequence for ledger in ledgers)),
            "ledger_spent_epsilon": sum(balance.spent.epsilon for balance in balances),
            "ledger_budget_epsilon": sum(balance.budget.epsilon for balance in balances),
        }

    def to_json(self, ledgers: Sequence[Ledger]) -> str:
        """Return all entries of these accounts, with what proves them."""
        return to_json(ledgers)

    def close(self) -> None:
        """Close every ledger that was opened."""
        for opened in self._opened.values():
            opened.result().close()


def owner_vault(datasets: DataSets) -> Vault:
    """The one vault of this workbench's owner.

    Raises:
        MissingData: data sets were read with a vault that is not there. A new one would release
            every photo a second time.
        RolledBack: the vault is another one than the data sets were read with.
    """
    from blindsight.privacy.vault import Vault

    folder = datasets.settings.state / "vault"
    numbers = {data_set.vault for data_set in datasets.listed() if data_set.vault}
    if not numbers:
        return Vault.open_or_create(folder)
    if not folder.is_dir():
        raise MissingData(
            f"the vault {folder} is lost. Restore it from a backup: without it no photo can be "
            "recognised, and each would be released a second time. Nothing was released."
        )
    vault = Vault(folder)
    if vault.number not in numbers:
        raise RolledBack(
            f"{folder} is not the vault that the data sets here were read with. Put that one in "
            "its place. Nothing was released."
        )
    return vault


def open_account(
    settings: LibrarySettings, data_set: DataSet, ledger: Ledger, *, actor: str | None = None
) -> None:
    """Grant a new data set's budget, before any photo is looked at."""
    ledger.grant(
        Cost(epsilon=settings.photo_budget, delta=_BUDGET_DELTA, unit="record"),
        what="budget set by you",
        actor=actor,
    )
    if data_set.most:
        ledger.grant(
            Cost(epsilon=settings.person_budget, delta=_BUDGET_DELTA, unit="person"),
            what="budget set by you",
            actor=actor,
        )


def settings_purpose(settings: LibrarySettings) -> str:
    """What releases are for where nobody says; library settings may leave it out."""
    return str(getattr(settings, "purpose", ""))


def account_ledger(datasets: DataSets, data_set: DataSet, *, actor: str | None = None) -> Ledger:
    """Open the ledger of a data set's account.

    Its charges state the settings' purpose, and no person's charges exceed the spending limit.
    """
    return Ledger(
        datasets.settings.ledger_place,
        dataset=data_set.account,
        actor=actor,
        purpose=settings_purpose(datasets.settings),
        actor_limit=functools.partial(spending_limit, datasets.settings),
    )


def spending_limit(settings: LibrarySettings, person: str) -> float | None:
    """Return the epsilon that a person's charges may add up to in each data set; None for no limit.

    Raises:
        HostileFile: the file of the limit was changed or cut off, so that nothing is charged.
    """
    path = _limit_file(settings, person)
    try:
        fields = open_json(path.read_bytes(), path)
    except FileNotFoundError:
        return None
    epsilon = fields.get("epsilon")
    if fields.get("person") != person or not isinstance(epsilon, int | float) or not epsilon >= 0:
        raise HostileFile(f"{path} is no spending limit. Set the limit again on the page People.")
    return float(epsilon)


def set_spending_limit(settings: LibrarySettings, person: str, epsilon: float | None) -> None:
    """Let a person's charges add up to at most this epsilon in each data set.

    Parameters:
        settings: where the state is.
        person: the name under which the person's charges are in the ledger.
        epsilon: the limit, 0 for no charges at all; None for no limit.
    """
    path = _limit_file(settings, person)
    if epsilon is None:
        path.unlink(missing_ok=True)
        return
    epsilon = checks.non_negative("epsilon", epsilon)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    fields = {"format": "blindsight spending limit 1", "person": person, "epsilon": epsilon}
    write_atomically(path, seal_json(fields))


def _limit_file(settings: LibrarySettings, person: str) -> Path:
    return settings.state / "limits" / f"{hashlib.sha256(person.encode()).hexdigest()[:32]}.json"


def has_own_vault(datasets: DataSets, data_set: DataSet) -> bool:
    """Whether an earlier version read this data set, with a vault of its own."""
    return (datasets.vault(data_set) / "vault" / "key").exists()


def vault_of(datasets: DataSets, data_set: DataSet) -> Vault:
    """The vault that knows a data set's photos: the owner's, or its own if it has one."""
    from blindsight.privacy.vault import Vault

    if has_own_vault(datasets, data_set):
        return Vault(datasets.vault(data_set) / "vault")
    return owner_vault(datasets)


def join_account(
    datasets: DataSets, data_set: DataSet, ledger: Ledger, *, actor: str | None = None
) -> None:
    """Note which photos a data set contains, and charge it for what was released of them before.

    Where the budget does not cover that, nothing more can be released: `compare_state` says so.
    """
    vault = owner_vault(datasets)
    records = [photo.id for photo in datasets.photos(data_set)]
    try:
        join(vault, ledger, records, actor=actor)
        _charge_earlier_vaults(datasets, data_set, ledger, actor)
    except (BudgetExceeded, UnitMismatch):
        close_account(ledger, "closed: other data sets released more of these photos", actor=actor)


def close_account(ledger: Ledger, what: str, *, actor: str | None = None) -> None:
    """Close every open budget of an account, for good.

    Parameters:
        ledger: the account.
        what: why, for the history.
        actor: who closes it.
    """
    for balance in ledger.balances():
        if not balance.closed:
            ledger.close_budget(
                balance.unit,  # type: ignore[arg-type]
                balance.neighbours,  # type: ignore[arg-type]
                what=what,
                actor=actor,
            )


def change_budget(
    data_set: DataSet,
    ledger: Ledger,
    epsilon: float,
    unit: Literal["photo", "person"],
    *,
    actor: str | None = None,
    purpose: str = "",
) -> Balance:
    """Set a data set's budget in all, per photo or per person.

    Parameters:
        data_set: the data set.
        ledger: its account.
        epsilon: the budget in all; at least what is spent.
        unit: whom it is counted for.
        actor: who sets it.
        purpose: what for.

    Returns:
        Where the account stands.
    """
    kind: Unit = "record" if unit == "photo" else "person"
    delta = max(_BUDGET_DELTA, ledger.balance(kind).budget.delta)
    ledger.grant(
        Cost(epsilon=epsilon, delta=delta, unit=kind),
        what=f"budget of {data_set.name} set by its keeper",
        actor=actor,
        purpose=purpose,
    )
    return ledger.balance(kind)


def _charge_earlier_vaults(
    datasets: DataSets, data_set: DataSet, ledger: Ledger, actor: str | None
) -> None:
    """Charge what data sets with a vault of their own released of this one's photos."""
    for earlier in datasets.listed():
        if not has_own_vault(datasets, earlier) or not _overlaps(datasets, data_set, earlier):
            continue
        address = datasets.settings.ledger_place
        with Ledger(address, dataset=earlier.account, create=False) as account:
            charges = [entry for entry in account.entries() if entry.kind == "charge"]
        for key in dict.fromkeys(entry.key or str(entry.sequence) for entry in charges):
            costs = tuple(
                Cost(
                    epsilon=entry.amount.epsilon,
                    delta=entry.amount.delta,
                    unit=entry.unit,  # type: ignore[arg-type]
                    neighbours=entry.neighbours,  # type: ignore[arg-type]
                )
                for entry in charges
                if (entry.key or str(entry.sequence)) == key
            )
            ledger.charge(
                costs,
                what=f"released before from {earlier.name}",
                key=f"earlier vault {earlier.id} {key}"[:200],
                actor=actor,
                limited=False,
            )


def _overlaps(datasets: DataSets, data_set: DataSet, earlier: DataSet) -> bool:
    """Return whether a data set shares a photo with one that has its own vault."""
    from blindsight.data.limits import LIMITS, read_bytes
    from blindsight.data.sources import recognising

    folder, earlier_folder = Path(data_set.source), Path(earlier.source)
    if folder.is_relative_to(earlier_folder) or earlier_folder.is_relative_to(folder):
        return True
    records = {photo.id for photo in datasets.photos(earlier)}
    names = owner_vault(datasets).photos(data_set.id)
    with recognising(vault_of(datasets, earlier)) as recognise:
        for name in names:
            try:
                content = read_bytes(folder / name, largest=LIMITS.image_bytes)
                if recognise(content, name) in records:
                    return True
            except (OSError, BlindsightError):
                continue  # the scan has named it as one that cannot be read
    return False


def name_release(
    datasets: DataSets, data_set: DataSet, release: Release, number: str, costs: Sequence[Cost]
) -> None:
    """Write into a release's folder which release it is, so that an older vault is noticed."""
    folder = datasets.folder(release)
    folder.mkdir(parents=True, exist_ok=True)
    note = release_note(datasets, data_set, number, costs)
    write_atomically(folder / NOTE_FILE, note)


def release_note(
    datasets: DataSets, data_set: DataSet, number: str, costs: Sequence[Cost]
) -> bytes:
    """The content of the file that says which release a folder is."""
    fields = {
        "format": "blindsight release 1",
        "vault": vault_of(datasets, data_set).number,
        "release": number,
        "dataset": data_set.id,
        "costs": [cost.to_dict() for cost in costs],
    }
    return seal_json(fields)


def _releases_on_disk(datasets: DataSets, data_set: DataSet) -> list[ReleaseOnDisk]:
    releases = []
    for path in sorted(datasets.given.glob(f"*/{NOTE_FILE}")):
        try:
            if path.stat().st_size > _LARGEST_RELEASE_FILE:
                raise ValueError
            fields = open_json(path.read_bytes(), path)
            if fields["dataset"] == data_set.id:
                costs = tuple(Cost.from_dict(cost) for cost in fields["costs"])
                name = path.parent.name
                releases.append(
                    ReleaseOnDisk(name, str(fields["vault"]), str(fields["release"]), costs)
                )
        except (ValueError, KeyError, TypeError, OSError, BlindsightError) as error:
            raise HostileFile(
                f"{path} is not what a release holds. Restore it from a copy, or delete the folder."
            ) from error
    return releases


@dataclass(frozen=True)
class StateReport:
    """How vault, ledger and releases of one data set compare, for the pages.

    Parameters:
        data_set: the data set.
        findings: what disagrees and what to do, in sentences; empty where all agree.
        can_decide: whether the owner can take over or close, rather than only restore a copy.
        note: what else the owner must know, such as a vault of an earlier version.
    """

    data_set: DataSet
    findings: tuple[str, ...] = ()
    can_decide: bool = False
    note: str = ""

    @property
    def may_release(self) -> bool:
        """Whether releases of this data set may go on."""
        return not self.findings and not self.note


_EARLIER = (
    "An earlier version read this data set, with a vault of its own, so its photos are not "
    "recognised in other data sets. Search, tags and attacks work as before, and nothing more is "
    "released from it. To release more, add its folder again: what was released before is charged "
    "to the new data set."
)
_RESTORED = (
    "This data set was restored from a backup of {moment} UTC. What was released of it after that "
    "is not known here: a second release of a photo with other noise would break the promise of "
    "both. If nothing was released since, or you restored the newest copy, take over; otherwise "
    "put the release folders that were made since into the state's folder releases first, or close "
    "the data set's budget."
)
_RESTORED_FILE = "restored.json"
_OVERDRAWN = (
    "Other data sets released more of these photos than this data set's budget covers, so nothing "
    "more is released from it. Raise its budget, or use the other data sets."
)


def compare_state(datasets: DataSets, data_set: DataSet, ledger: Ledger) -> Reconciliation:
    """Compare vault, account and releases on the disk of a data set; nothing is written."""
    vault = vault_of(datasets, data_set)
    return reconcile(vault, ledger, _releases_on_disk(datasets, data_set))


def check_state(datasets: DataSets, data_set: DataSet, ledger: Ledger) -> StateReport:
    """The same in sentences for the pages, with what else keeps a data set from being released."""
    if has_own_vault(datasets, data_set):
        return StateReport(data_set, note=_EARLIER)
    if not data_set.vault:  # not read yet
        return StateReport(data_set)
    try:
        compared = compare_state(datasets, data_set, ledger)
        if not compared.agrees:
            return StateReport(data_set, tuple(map(str, compared.findings)), can_decide=True)
        if overdue(owner_vault(datasets), ledger):
            return StateReport(data_set, note=_OVERDRAWN)
        restored = restored_from(datasets)
        if data_set.id in restored:
            finding = _RESTORED.format(moment=restored[data_set.id])
            return StateReport(data_set, (finding,), can_decide=True)
    except (HostileFile, MissingData, RolledBack) as error:
        return StateReport(data_set, (str(error),))
    return StateReport(data_set)


def require_agreement(datasets: DataSets, data_set: DataSet, ledger: Ledger) -> None:
    """Refuse to go on where something is an older copy, or the data set cannot be released.

    Raises:
        RolledBack: with the sentences that the page Budget shows.
    """
    report = check_state(datasets, data_set, ledger)
    if not report.may_release:
        raise RolledBack(" ".join((*report.findings, report.note)).strip())


def decide(
    datasets: DataSets,
    data_set: DataSet,
    ledger: Ledger,
    decision: Literal["take over", "close"],
    *,
    actor: str,
) -> Reconciliation:
    """Carry out the owner's decision about what `compare_state` found."""
    if has_own_vault(datasets, data_set):
        raise InvalidData(_EARLIER)
    releases = _releases_on_disk(datasets, data_set)
    resolved = resolve(owner_vault(datasets), ledger, decision, releases=releases, actor=actor)
    restored = restored_from(datasets)
    if data_set.id in restored:
        if decision == "close":
            close_account(ledger, "closed after a restore from a backup", actor=actor)
        del restored[data_set.id]
        mark_restored(datasets, restored)
    return resolved


def restored_from(datasets: DataSets) -> dict[str, str]:
    """The data sets that came from a backup and wait for the owner's decision, with its moment."""
    path = datasets.settings.state / _RESTORED_FILE
    if not path.is_file():
        return {}
    fields = open_json(path.read_bytes(), path)
    return {str(number): str(moment) for number, moment in fields["datasets"].items()}


def mark_restored(datasets: DataSets, moments: dict[str, str]) -> None:
    """Note from which moment's backup data sets came: nothing is released from them until the
    owner has decided.
    """
    fields = {"format": "blindsight restored 1", "datasets": moments}
    write_atomically(datasets.settings.state / _RESTORED_FILE, seal_json(fields))


def charge_training(
    datasets: DataSets,
    data_set: DataSet,
    ledger: Ledger,
    run: str,
    limit: tuple[float, float] | None,
    records: Iterable[str],
    *,
    actor: str | None = None,
    purpose: str = "",
) -> None:
    """Charge training together through the vault, to every account that contains a photo of it.

    The limit is per photo over all rounds, one photo replaced by another. What the sums tell about
    a person is priced by how many photos of a person count. Exact sums (`limit` None) carry no
    epsilon and are not charged.
    """
    from blindsight.privacy.mechanisms.gaussian import gaussian_epsilon
    from blindsight.sketching.statistics_rules import gaussian_mu

    if limit is None:
        return
    require_agreement(datasets, data_set, ledger)
    epsilon, delta = limit
    costs = [Cost(epsilon=epsilon, delta=delta, unit="record")]
    if data_set.most:  # k photos move a sum k times as far as one
        mu = gaussian_mu(epsilon, delta) * data_set.most
        costs.append(Cost(epsilon=gaussian_epsilon(mu, delta), delta=delta, unit="person"))
    vault = vault_of(datasets, data_set)
    release = vault.release_of(f"training together {run}")
    what = "training together"
    vault.charge(
        ledger,
        tuple(costs),
        release=release,
        what=what,
        records=records,
        actor=actor,
        purpose=purpose or settings_purpose(datasets.settings),
    )


_BACKUP_PATIENCE = 600.0  # seconds for which a backup waits until a running release has ended


@contextlib.contextmanager
def hold_state(settings: LibrarySettings) -> Iterator[None]:
    """Hold the owner's vault: releases wait until the copy is made."""
    if not (settings.state / "vault" / "key").is_file():
        yield
        return
    with owner_vault(DataSets(settings)).running(wait=_BACKUP_PATIENCE):
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
