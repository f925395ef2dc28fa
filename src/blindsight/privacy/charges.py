"""What charging and comparing give back: frozen values (see `blindsight.privacy.reconcile`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypedDict, runtime_checkable

from blindsight.core.errors import InvalidParameter
from blindsight.privacy.cost import Cost
from blindsight.privacy.guarantee import Guarantee
from blindsight.privacy.ledger import Entry, Ledger

__all__ = [
    "ChargeOptions",
    "Charged",
    "ConvertingLedger",
    "Finding",
    "Reconciliation",
    "ReleaseOnDisk",
    "costs_of",
]


@dataclass(frozen=True)
class Charged:
    """What `Vault.charge` did; may be passed as `ledger` to the doors of the release it paid for.

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
        """Nothing more is due for the costs that were charged; any other cost is refused."""
        if not set(costs_of(costs)) <= set(self.costs):
            raise InvalidParameter(
                f"release {self.release} was charged for other costs than those of {what!r}. "
                "Charge this as a release of its own."
            )
        return self.entry


@runtime_checkable
class ConvertingLedger(Protocol):
    """Stands where a ledger would and states each cost in further units too (per person)."""

    ledger: Ledger

    def costs(self, costs: Sequence[Cost], /) -> Sequence[Cost]: ...


@dataclass(frozen=True)
class ReleaseOnDisk:
    """A release folder or file, as it names itself.

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


class ChargeOptions(TypedDict, total=False):
    """What a charge for a vault's release says beside its cost; `Vault.charge` describes them."""

    records: Iterable[str]
    most: int
    actor: str | None
    purpose: str
    releases: Iterable[ReleaseOnDisk]


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
    """How vault, ledger and releases compare; `agrees` where nothing is older than the others
    know.
    """

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
        """Plain values for JSON."""
        return {**dataclasses.asdict(self), "agrees": self.agrees}


def costs_of(cost: Guarantee | Cost | Sequence[Cost]) -> tuple[Cost, ...]:
    """The costs of a guarantee, or one or several costs, as a tuple."""
    if isinstance(cost, Guarantee):
        return cost.costs
    return (cost,) if isinstance(cost, Cost) else tuple(cost)
