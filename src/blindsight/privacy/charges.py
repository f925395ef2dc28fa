"""Results of charging releases and of comparing a vault with its ledger, as frozen values.

`blindsight.privacy.reconcile` makes them.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict, runtime_checkable

from blindsight.core import storage
from blindsight.core.errors import HostileFile, InvalidParameter
from blindsight.privacy.cost import Cost
from blindsight.privacy.guarantee import costs_of
from blindsight.privacy.ledger import Entry, Ledger

__all__ = [
    "ChargeOptions",
    "Charged",
    "ConvertingLedger",
    "Finding",
    "Reconciliation",
    "ReleaseOnDisk",
    "read_release_file",
    "write_release_file",
]

_LARGEST_RELEASE_FILE = 1 << 20


@dataclass(frozen=True)
class Charged:
    """The result of `Vault.charge`; it may be passed as `ledger` to the doors of that release.

    Parameters:
        release: the release's id.
        generation: its number within the vault.
        new: whether anything was charged now; False where all of it was paid before.
        entry: the ledger's entry; None without a ledger.
        accounts: the data sets that are charged with this release.
        costs: what was charged.
    """

    release: str
    generation: int
    new: bool
    entry: Entry | None = None
    accounts: tuple[str, ...] = ()
    costs: tuple[Cost, ...] = ()

    def charge(
        self, costs: Cost | Sequence[Cost], *, what: str, key: str | None = None
    ) -> Entry | None:
        """Accept costs that were charged already, and refuse any other cost."""
        if not set(costs_of(costs)) <= set(self.costs):
            raise InvalidParameter(
                f"release {self.release} was charged for other costs than those of {what!r}. "
                "Charge this as a release of its own."
            )
        return self.entry


@runtime_checkable
class ConvertingLedger(Protocol):
    """A wrapper of a ledger that states each cost in further units as well, such as per person."""

    ledger: Ledger

    def costs(self, costs: Sequence[Cost], /) -> Sequence[Cost]: ...


@dataclass(frozen=True)
class ReleaseOnDisk:
    """A release folder or file, with the names that it states for itself.

    Parameters:
        path: where it is, for messages.
        vault: the number of the vault that it says it comes from.
        release: its id.
        costs: what it says that it costs, where that is known.
    """

    path: str
    vault: str
    release: str
    costs: tuple[Cost, ...] = ()


def read_release_file(out: str | os.PathLike[str]) -> list[ReleaseOnDisk]:
    """Read the file beside a release that identifies it; an empty list where there is none.

    Raises:
        HostileFile: the file is damaged.
    """
    path = Path(f"{os.fspath(out)}.release.json")
    if not path.exists():
        return []
    if path.stat().st_size > _LARGEST_RELEASE_FILE:
        raise HostileFile(f"{path} is too large to describe a release.")
    fields = storage.open_json(path.read_bytes(), path)
    try:
        costs = tuple(Cost.from_dict(cost) for cost in fields["costs"])
        return [ReleaseOnDisk(str(out), str(fields["vault"]), str(fields["release"]), costs)]
    except (KeyError, TypeError, InvalidParameter) as error:
        raise HostileFile(f"{path} is not what it should be. Restore it from a copy.") from error


def write_release_file(
    out: str | os.PathLike[str], vault: str, release: str, costs: Sequence[Cost]
) -> None:
    """Write a file beside a release that identifies it, before the release is written.

    If vault and ledger are both restored from a backup, this file shows that they are older.
    """
    fields = {
        "format": "blindsight release 1",
        "vault": vault,
        "release": release,
        "costs": [cost.to_dict() for cost in costs],
    }
    path = Path(f"{os.fspath(out)}.release.json")
    storage.write_atomically(path, storage.seal_json(fields))


class ChargeOptions(TypedDict, total=False):
    """The options of a charge for a vault's release; `Vault.charge` describes them."""

    records: Iterable[str]
    most: int
    actor: str | None
    purpose: str
    releases: Iterable[ReleaseOnDisk]
    out: str | os.PathLike[str] | None


@dataclass(frozen=True)
class Finding:
    """One disagreement: which side is older, and what to do, in words."""

    older: Literal["vault", "ledger", "both"]
    says: str
    advice: str

    def __str__(self) -> str:
        return f"{self.says} {self.advice}"


@dataclass(frozen=True)
class Reconciliation:
    """The comparison of a vault with its ledger and releases; `agrees` if none of them is older."""

    vault: str
    dataset: str
    findings: tuple[Finding, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether nothing disagrees, so that releases may go on."""
        return not self.findings

    def __str__(self) -> str:
        if self.agrees:
            return f"Vault {self.vault} and the ledger of {self.dataset!r} agree."
        return " ".join(map(str, self.findings))

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "agrees": self.agrees}
