"""The ledger: accounts, entries, the chain verified, an export that proves itself."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import BaseModel

from blindsight.core.errors import LedgerError, LedgerTampered
from blindsight.privacy import Ledger
from blindsight.privacy.ledger import Balance, datasets, to_json
from blindsight.workbench.infra.access import Asker, Owner, Parts, Workbench
from blindsight.workbench.infra.budgets import account_name
from blindsight.workbench.infra.identity import Identity
from blindsight.workbench.infra.problems import documented

__all__ = ["Account", "accounts_of", "router"]

router = APIRouter(prefix="/api/ledger", tags=["ledger"])


class Account(BaseModel):
    """Where one budget stands."""

    dataset: str
    unit: str
    neighbours: str
    budget: float
    spent: float
    remaining: float
    closed: bool


class Line(BaseModel):
    """One entry."""

    dataset: str
    sequence: int
    time: str
    kind: str
    epsilon: float
    delta: float
    unit: str
    what: str
    hash: str


class Chain(BaseModel):
    """Whether a data set's chain holds."""

    dataset: str
    holds: bool
    entries: int
    head: str


@router.get("/accounts", summary="Budgets", responses=documented("ledger"))
async def accounts(workbench: Parts, asker: Asker) -> list[Account]:
    """All of them for the owner, one's own for others."""
    return await workbench.ledger_lane.run(accounts_of, workbench, asker)


@router.get("/entries", summary="The latest entries", responses=documented("ledger"))
def entries(
    workbench: Parts,
    asker: Asker,
    last: Annotated[int, Query(ge=1, le=500, description="How many, a data set.")] = 20,
) -> list[Line]:
    """Newest first, of each account that the asker may see."""
    found = []
    for ledger in _visible(workbench, asker):
        after = max(0, ledger.head().sequence - last)
        for entry in ledger.entries(after=after):
            names = ("dataset", "sequence", "time", "kind", "unit", "what", "hash")
            fields: dict[str, Any] = {name: getattr(entry, name) for name in names}
            found.append(Line(**fields, epsilon=entry.amount.epsilon, delta=entry.amount.delta))
    return sorted(found, key=lambda line: line.time, reverse=True)


@router.post("/verify", summary="Prove every chain", responses=documented("ledger"))
def verify(workbench: Parts, asker: Asker) -> list[Chain]:
    """From the first entry to the head."""
    chains = []
    for ledger in _visible(workbench, asker):
        try:
            head = ledger.verify()
            chains.append(
                Chain(dataset=ledger.dataset, holds=True, entries=head.sequence, head=head.hash)
            )
        except LedgerTampered:
            chains.append(Chain(dataset=ledger.dataset, holds=False, entries=0, head=""))
    return chains


@router.get(
    "/export.json", summary="All entries, with what proves them", responses=documented("ledger")
)
def export(workbench: Parts, asker: Owner) -> Response:
    """`blindsight ledger verify --file` checks it without the database."""
    disposition = {"Content-Disposition": 'attachment; filename="ledger.json"'}
    return Response(
        to_json(_visible(workbench, asker)), media_type="application/json", headers=disposition
    )


def accounts_of(workbench: Workbench, asker: Identity) -> list[Account]:
    """What an asker may see."""
    return [
        _account(balance) for ledger in _visible(workbench, asker) for balance in ledger.balances()
    ]


def _visible(workbench: Workbench, asker: Identity) -> list[Ledger]:
    try:
        names = datasets(workbench.settings.ledger_place)
    except LedgerError:  # nothing was ever granted, so there is no ledger yet
        return []
    if asker.role != "owner":
        names = [name for name in names if name == account_name(asker)]
    return [workbench.budgets.named(name) for name in names]


def _account(balance: Balance) -> Account:
    return Account(
        dataset=balance.dataset,
        unit=balance.unit,
        neighbours=balance.neighbours,
        budget=balance.budget.epsilon,
        spent=balance.spent.epsilon,
        remaining=balance.remaining.epsilon,
        closed=balance.closed,
    )
