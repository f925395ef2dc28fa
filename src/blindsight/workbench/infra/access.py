"""What a route may ask for: the workbench's parts, and an identity that may do this."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Path, Request

from blindsight.workbench.infra.identity import Identity, Role
from blindsight.workbench.infra.problems import Problem
from blindsight.workbench.infra.traffic import Lane

if TYPE_CHECKING:
    from blindsight.app.library.accounts import Budgets
    from blindsight.app.library.datasets import DataSet, DataSets
    from blindsight.workbench.infra.database import Database
    from blindsight.workbench.infra.federations import Federations
    from blindsight.workbench.infra.identity import Keys
    from blindsight.workbench.infra.jobs import Jobs
    from blindsight.workbench.infra.settings import Settings
    from blindsight.workbench.infra.traffic import Metrics
    from blindsight.workbench.infra.uploads import Decoders

__all__ = [
    "Analyst",
    "Anyone",
    "Asker",
    "DataSetId",
    "Owner",
    "Trainer",
    "Workbench",
    "scanned",
    "workbench_of",
]


@dataclass
class Workbench:
    """The parts that live as long as the workbench does."""

    settings: Settings
    database: Database
    keys: Keys
    metrics: Metrics
    budgets: Budgets
    jobs: Jobs
    decoders: Decoders
    datasets: DataSets
    federations: Federations
    searches: Any
    #: threads for what touches the ledger, and for the answer to "are you well?"
    ledger_lane: Lane = field(default_factory=lambda: Lane(threads=8, waiting=120))
    health_lane: Lane = field(default_factory=lambda: Lane(threads=2, waiting=16))


# Dependencies are async although they wait for nothing: FastAPI sends plain functions to a thread,
# which costs more.
async def workbench_of(request: Request) -> Workbench:
    """The workbench that answers this request."""
    found: Workbench = request.app.state.workbench
    return found


def _holder(*roles: Role) -> Callable[[Request], Awaitable[Identity]]:
    async def check(request: Request) -> Identity:
        identity: Identity | None = request.state.identity
        if identity is None:
            raise Problem("key_needed")
        if not identity.may(*roles):
            raise Problem("not_allowed")
        return identity

    return check


Parts = Annotated[Workbench, Depends(workbench_of)]
Asker = Annotated[Identity, Depends(_holder("analyst", "aggregator"))]
Analyst = Annotated[Identity, Depends(_holder("analyst"))]
Trainer = Annotated[Identity, Depends(_holder("aggregator"))]
Owner = Annotated[Identity, Depends(_holder())]
Anyone = Parts
DataSetId = Annotated[str, Path(pattern="^[0-9a-f]{12}$", description="A data set's number.")]


def scanned(workbench: Workbench, dataset: str, *, least: int = 0) -> DataSet:
    """A data set whose photos were read, with at least so many of them; `Problem("conflict")`
    otherwise.
    """
    data_set = workbench.datasets.get(dataset)
    if not data_set.scanned or data_set.photos < least:
        raise Problem("conflict")
    return data_set
