"""The owner's vault and the accounts of the data sets: what may be released, and what was.

    STATE/vault/        one vault for all data sets: the key, the record of each photo, and what was
                        released of it
    STATE/ledger.db     one account for each data set
    STATE/limits/       what each person may spend of each data set
    STATE/releases/*/release.json
                        the id of each release, the vault's number and the cost

A photo is one record of the vault, whichever data sets it is in. Every release is charged through
the vault to the account of each data set that contains one of its photos, and a data set that is
added later is charged for what was released of its photos before. Vault, ledger and releases are
compared before every release: where one of them is an older copy, nothing is released until the
owner has decided (`decide`).

Data sets of version 0.2 and earlier have a vault of their own, in their private folder. They can be
searched, tagged and attacked as before, but nothing more is released from them; a new data set that
contains some of their photos is charged for what was released of them.

Backups are made here too. The vault is locked during a backup, so that nothing is charged or
released meanwhile and the copies of vault and ledger belong together. Releasing from a copy and
from the original would release a photo twice, so a restored state waits for the owner's decision
(`mark_restored`).
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

from blindsight.app.library.datasets import DataSet, DataSets, LibrarySettings
from blindsight.core import checks, durable
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
from blindsight.privacy.ledger import datasets as account_names
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
_BUDGET_DELTA = 1e-3  # delta of every budget that is granted here
_LARGEST_RELEASE_FILE = 1 << 20


class Budgets:
    """Open ledgers by the name of their account.

    No lock is held while a ledger is opened: threads that need the same account wait until the
    first of them has opened it, and threads that need another account do not wait.
    """

    def __init__(self, settings: LibrarySettings) -> None:
        self._settings = settings
        self._opened: dict[str, Future[Ledger]] = {}
        self._guard = threading.Lock()

    def named(self, account: str, *, create: bool = False) -> Ledger:
        """Return the ledger of an account, and open it if it is not open yet.

        Parameters:
            account: name of the account.
            create: create the ledger's file if there is none.

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
            return account_names(self._settings.ledger_place)
        except LedgerError:
            return []

    def totals(self) -> dict[str, float]:
        """Return sums over all accounts for monitoring, without any name of a data set."""
        ledgers = [self.named(name) for name in self.names()]
        balances = [balance for ledger in ledgers for balance in ledger.balances()]
        return {
            "ledger_accounts": float(len(balances)),
            "ledger_entries": float(sum(ledger.head().sequence for ledger in ledgers)),
            "ledger_spent_epsilon": sum(balance.spent.epsilon for balance in balances),
            "ledger_budget_epsilon": sum(balance.budget.epsilon for balance in balances),
        }

    def to_json(self, ledgers: Sequence[Ledger]) -> str:
        """Return all entries of these accounts with the hashes that prove them."""
        return to_json(ledgers)

    def close(self) -> None:
        """Close all ledgers that `named` opened."""
        for opened in self._opened.values():
            opened.result().close()


def owner_vault(datasets: DataSets) -> Vault:
    """Open the vault of this workbench's owner, and create it if there are no data sets yet.

    Raises:
        MissingData: the vault that the data sets were read with is missing. A new vault would
            release every photo a second time.
        RolledBack: the data sets were read with another vault.
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
    """Grant the budgets of a new data set from the settings, before any photo is read."""
    budgets: dict[Unit, float] = {"record": settings.photo_budget}
    if data_set.most:
        budgets["person"] = settings.person_budget
    for unit, epsilon in budgets.items():
        budget = Cost(epsilon=epsilon, delta=_BUDGET_DELTA, unit=unit)
        ledger.grant(budget, what="budget set by you", actor=actor)


def settings_purpose(settings: LibrarySettings) -> str:
    """Return the purpose that the settings state for releases; "" if they state none."""
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
        HostileFile: the file of the limit is damaged. Nothing is charged.
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
        settings: the settings of the library, which name the folder of its state.
        person: the name under which the person's charges are in the ledger.
        epsilon: the limit. 0 allows no charge; None removes the limit.
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
    """Return whether an earlier version read this data set, with a vault of its own."""
    return (datasets.vault(data_set) / "vault" / "key").exists()


def vault_of(datasets: DataSets, data_set: DataSet) -> Vault:
    """Open the vault of a data set's photos: its own if it has one, else the owner's."""
    from blindsight.privacy.vault import Vault

    if has_own_vault(datasets, data_set):
        return Vault(datasets.vault(data_set) / "vault")
    return owner_vault(datasets)


def join_account(
    datasets: DataSets, data_set: DataSet, ledger: Ledger, *, actor: str | None = None
) -> None:
    """Store which photos a data set contains, and charge what was released of them before.

    If the budget does not cover these charges, the account is closed and nothing more can be
    released; `check_state` reports it.
    """
    vault = owner_vault(datasets)
    records = [photo.id for photo in datasets.photos(data_set)]
    try:
        join(vault, ledger, records, actor=actor)
        _charge_earlier_vaults(datasets, data_set, ledger, actor)
    except (BudgetExceeded, UnitMismatch):
        close_account(ledger, "closed: other data sets released more of these photos", actor=actor)


def close_account(ledger: Ledger, what: str, *, actor: str | None = None) -> None:
    """Close every open budget of an account permanently.

    Parameters:
        ledger: the account.
        what: the reason, which the ledger stores.
        actor: the name of the person who closes it.
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
    """Set a data set's total budget per photo or per person.

    Parameters:
        data_set: the data set.
        ledger: its account.
        epsilon: the total budget, at least what is spent already.
        unit: "photo" or "person".
        actor: the name of the person who sets it.
        purpose: the purpose, which the ledger stores.

    Returns:
        The balance of the account afterwards.
    """
    kind: Unit = "record" if unit == "photo" else "person"
    delta = max(_BUDGET_DELTA, ledger.balance(kind).budget.delta)
    ledger.grant(
        Cost(epsilon=epsilon, delta=delta, unit=kind),
        what=f"budget of {data_set.name} set by the owner",
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


def release_note(
    datasets: DataSets, data_set: DataSet, number: str, costs: Sequence[Cost]
) -> bytes:
    """Return the file that states the number, the vault and the costs of a release.

    It lies in the release's folder, so that a vault that is older than the release is detected.
    """
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
    # Names that begin with a dot are folders that another thread is just writing.
    for path in sorted(datasets.given.glob(f"[!.]*/{NOTE_FILE}")):
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
        except FileNotFoundError:
            continue  # the release was deleted meanwhile
        except (ValueError, KeyError, TypeError, OSError, BlindsightError) as error:
            raise HostileFile(
                f"{path} is damaged. Restore it from a copy, or delete the folder of this release."
            ) from error
    return releases


@dataclass(frozen=True)
class StateReport:
    """Whether vault, ledger and releases of one data set agree, for the pages.

    Parameters:
        data_set: the data set.
        findings: sentences on what disagrees and what to do; empty if all agree.
        can_decide: whether the owner can take over or close, rather than only restore a copy.
        note: another reason why nothing may be released, such as a vault of an earlier version.
    """

    data_set: DataSet
    findings: tuple[str, ...] = ()
    can_decide: bool = False
    note: str = ""

    @property
    def may_release(self) -> bool:
        """Whether more may be released from this data set."""
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
    """Compare the vault, the account and the release folders of a data set; write nothing."""
    vault = vault_of(datasets, data_set)
    return reconcile(vault, ledger, _releases_on_disk(datasets, data_set))


def check_state(datasets: DataSets, data_set: DataSet, ledger: Ledger) -> StateReport:
    """Return the result of `compare_state` in sentences, with every other reason that prevents
    releases from the data set.
    """
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
    """Raise an error unless the data set may be released.

    Raises:
        RolledBack: a part of the state is an older copy, or there is another reason of
            `check_state`. The message is what the page Budget shows.
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
    """Carry out the owner's decision on the findings of `check_state`.

    Raises:
        InvalidData: the data set has a vault of its own, of an earlier version.
    """
    if has_own_vault(datasets, data_set):
        raise InvalidData(_EARLIER)
    releases = _releases_on_disk(datasets, data_set)
    resolved = resolve(owner_vault(datasets), ledger, decision, releases=releases, actor=actor)
    with durable.only_writer(datasets.settings.state):
        restored = restored_from(datasets)
        if data_set.id in restored:
            if decision == "close":
                close_account(ledger, "closed after a restore from a backup", actor=actor)
            del restored[data_set.id]
            mark_restored(datasets, restored)
    return resolved


def restored_from(datasets: DataSets) -> dict[str, str]:
    """Return the ids of restored data sets that wait for the owner's decision, with the time of
    their backup.
    """
    path = datasets.settings.state / _RESTORED_FILE
    if not path.is_file():
        return {}
    fields = open_json(path.read_bytes(), path)
    return {str(number): str(moment) for number, moment in fields["datasets"].items()}


def mark_restored(datasets: DataSets, moments: dict[str, str]) -> None:
    """Store the time of the backup that each data set was restored from; nothing is released from
    these data sets until the owner has decided.
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
    """Charge a federated training run to every account that contains one of its photos.

    The `limit` is epsilon and delta per photo over all rounds, for one photo replaced by another;
    the cost per person follows from the number of photos per person. Exact sums (`limit` None) have
    no epsilon and are not charged.
    """
    from blindsight.privacy.mechanisms.gaussian import gaussian_epsilon
    from blindsight.sketching.statistics_rules import gaussian_mu

    if limit is None:
        return
    require_agreement(datasets, data_set, ledger)
    epsilon, delta = limit
    costs = [Cost(epsilon=epsilon, delta=delta, unit="record")]
    if data_set.most:  # k photos change a sum k times as much as one
        mu = gaussian_mu(epsilon, delta) * data_set.most
        costs.append(Cost(epsilon=gaussian_epsilon(mu, delta), delta=delta, unit="person"))
    vault = vault_of(datasets, data_set)
    vault.charge(
        ledger,
        tuple(costs),
        release=vault.release_of(f"training together {run}"),
        what="training together",
        records=records,
        actor=actor,
        purpose=purpose or settings_purpose(datasets.settings),
    )


_BACKUP_PATIENCE = 600.0  # seconds for which a backup waits until a running release has ended


@contextlib.contextmanager
def hold_state(settings: LibrarySettings) -> Iterator[None]:
    """Lock the owner's vault, so that releases wait until the backup is made."""
    if not (settings.state / "vault" / "key").is_file():
        yield
        return
    with owner_vault(DataSets(settings)).running(wait=_BACKUP_PATIENCE):
        yield


def copy_ledger(settings: LibrarySettings, target: Path) -> dict[str, Head]:
    """Copy the whole ledger into a new SQLite file.

    Returns:
        The head of each account; empty if there is no ledger yet.
    """
    try:
        account_names(settings.ledger_place)
    except LedgerError:
        return {}
    return backup(settings.ledger_place, target)


def restore_ledger(settings: LibrarySettings, copy: Path) -> bool:
    """Restore a copy of a ledger, unless the present ledger has entries.

    Returns:
        Whether the copy was used.
    """
    with contextlib.suppress(LedgerError):
        if account_names(settings.ledger_place):
            return False
    restore(copy, settings.ledger_place)
    return True


def copy_database(source: Path, target: Path) -> None:
    """Copy a SQLite database while other processes may write to it."""
    present = f"{source.resolve().as_uri()}?mode=rw"  # one that is gone is not made again
    with (
        contextlib.closing(sqlite3.connect(present, uri=True)) as reading,
        contextlib.closing(sqlite3.connect(target)) as writing,
    ):
        reading.backup(writing)


def reports_after_restore(settings: LibrarySettings, moment: str) -> list[StateReport]:
    """Mark every data set as restored, so that nothing is released until the owner has decided.

    Parameters:
        settings: the settings of the library, whose state was restored.
        moment: the time of the backup.

    Returns:
        The report of `check_state` for each data set.
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
