"""The owner's vault and the data sets' accounts: what may be released, and what was.

    STATE/vault/        one vault for all data sets: the key, which photo is which record, what was
                        released of it
    STATE/ledger.db     one account for each data set
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
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from blindsight.app.library.datasets import DataSet, DataSets, LibrarySettings, Release
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
from blindsight.privacy.ledger import datasets as datasets_in
from blindsight.privacy.ledger import to_json
from blindsight.privacy.reconcile import (
    Reconciliation,
    ReleaseOnDisk,
    join,
    overdue,
    reconcile,
    resolve,
)

if TYPE_CHECKING:
    from blindsight.privacy.cost import Unit
    from blindsight.privacy.vault import Vault

__all__ = [
    "Budgets",
    "StateReport",
    "charge_training",
    "check_state",
    "compare_state",
    "decide",
    "has_own_vault",
    "join_account",
    "name_release",
    "open_account",
    "owner_vault",
    "require_agreement",
    "vault_of",
]

_PATIENCE = 10.0  # seconds to wait for other writers of the ledger before a request is refused
_RELEASE_FILE = "release.json"
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


def open_account(settings: LibrarySettings, data_set: DataSet, ledger: Ledger) -> None:
    """Grant a new data set's budget, before any photo is looked at."""
    ledger.grant(
        Cost(epsilon=settings.photo_budget, delta=_BUDGET_DELTA, unit="record"),
        what="budget set by you",
    )
    if data_set.most:
        ledger.grant(
            Cost(epsilon=settings.person_budget, delta=_BUDGET_DELTA, unit="person"),
            what="budget set by you",
        )


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
        for balance in ledger.balances():
            if not balance.closed:
                ledger.close_budget(
                    balance.unit,  # type: ignore[arg-type]
                    balance.neighbours,  # type: ignore[arg-type]
                    what="closed: other data sets released more of these photos",
                    actor=actor,
                )


def _charge_earlier_vaults(
    datasets: DataSets, data_set: DataSet, ledger: Ledger, actor: str | None
) -> None:
    """Charge what data sets with a vault of their own released of this one's photos."""
    for other in datasets.listed():
        if not has_own_vault(datasets, other) or not _overlaps(datasets, data_set, other):
            continue
        place = datasets.settings.ledger_place
        with Ledger(place, dataset=other.account, create=False) as account:
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
                what=f"released before from {other.name}",
                key=f"earlier vault {other.id} {key}"[:200],
                actor=actor,
            )


def _overlaps(datasets: DataSets, data_set: DataSet, other: DataSet) -> bool:
    """Whether two data sets share a photo, where the other one has a vault of its own."""
    from blindsight.data.content import recognising
    from blindsight.data.limits import LIMITS, read_bytes

    folder, earlier = Path(data_set.source), Path(other.source)
    if folder.is_relative_to(earlier) or earlier.is_relative_to(folder):
        return True
    known = {photo.id for photo in datasets.photos(other)}
    names = owner_vault(datasets).photos(data_set.id)
    with recognising(vault_of(datasets, other)) as recognise:
        for name in names:
            try:
                content = read_bytes(folder / name, largest=LIMITS.image_bytes)
                if recognise(content, name) in known:
                    return True
            except (OSError, BlindsightError):
                continue  # the scan has named it as one that cannot be read
    return False


def name_release(
    datasets: DataSets, data_set: DataSet, release: Release, number: str, costs: Sequence[Cost]
) -> None:
    """Write into a release's folder which release it is, so that an older vault is noticed."""
    fields = {
        "format": "blindsight release 1",
        "vault": vault_of(datasets, data_set).number,
        "release": number,
        "dataset": data_set.id,
        "costs": [cost.to_dict() for cost in costs],
    }
    folder = datasets.folder(release)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / _RELEASE_FILE, seal_json(fields))


def _releases_on_disk(datasets: DataSets, data_set: DataSet) -> list[ReleaseOnDisk]:
    shown = []
    for path in sorted(datasets.given.glob(f"*/{_RELEASE_FILE}")):
        try:
            if path.stat().st_size > _LARGEST_RELEASE_FILE:
                raise ValueError
            fields = open_json(path.read_bytes(), path)
            if fields["dataset"] == data_set.id:
                costs = tuple(Cost.from_dict(cost) for cost in fields["costs"])
                name = path.parent.name
                shown.append(
                    ReleaseOnDisk(name, str(fields["vault"]), str(fields["release"]), costs)
                )
        except (ValueError, KeyError, TypeError, OSError, BlindsightError) as error:
            raise HostileFile(
                f"{path} is not what a release holds. Restore it from a copy, or delete the folder."
            ) from error
    return shown


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
    return resolve(owner_vault(datasets), ledger, decision, releases=releases, actor=actor)


def charge_training(
    datasets: DataSets,
    data_set: DataSet,
    ledger: Ledger,
    run: str,
    limit: tuple[float, float] | None,
    records: Iterable[str],
    *,
    actor: str | None = None,
) -> None:
    """Charge training together through the vault, to every account that contains a photo of it.

    A site's bound over all rounds bounds what they tell about each of its photos and people. Exact
    sums (`limit` None) carry no epsilon and are not charged.
    """
    if limit is None:
        return
    require_agreement(datasets, data_set, ledger)
    units: tuple[Unit, ...] = ("record", "person") if data_set.most else ("record",)
    costs = tuple(Cost(epsilon=limit[0], delta=limit[1], unit=unit) for unit in units)
    vault = vault_of(datasets, data_set)
    release = vault.release_of(f"training together {run}")
    what = "training together"
    vault.charge(ledger, costs, release=release, what=what, records=records, actor=actor)
