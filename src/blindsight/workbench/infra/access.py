"""The dependencies of routes: the workbench's parts, and an identity that has the needed right.

Every route names the right that it needs by one of the types below. The data set that a route
concerns follows from the address: from the number of the data set, or of a release, job or run that
belongs to it. The refusal is the same whether or not that number exists, so that nobody can find
numbers by trying.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Path, Request

from blindsight.app.library.risks import find_release
from blindsight.core.errors import MissingData
from blindsight.workbench.infra.guard import Lane
from blindsight.workbench.infra.identity import RequestIdentity, Right, Role
from blindsight.workbench.infra.problems import Problem

if TYPE_CHECKING:
    from blindsight.app.library.accounts import Budgets
    from blindsight.app.library.datasets import DataSet, DataSets, Release
    from blindsight.privacy.ledger import Ledger
    from blindsight.workbench.infra.database import AccessLog, Database
    from blindsight.workbench.infra.federations import Federations
    from blindsight.workbench.infra.guard import Metrics
    from blindsight.workbench.infra.identity import Keys
    from blindsight.workbench.infra.jobs import Jobs
    from blindsight.workbench.infra.settings import WorkbenchSettings
    from blindsight.workbench.infra.sign_on import SignOn
    from blindsight.workbench.infra.uploads import Decoders

__all__ = [
    "Administrator",
    "Asker",
    "Attacker",
    "BudgetKeeper",
    "CardReader",
    "DataSetId",
    "HistoryReader",
    "Monitor",
    "Owner",
    "Searcher",
    "Signed",
    "Trainer",
    "Workbench",
    "scanned",
    "workbench_of",
]


_NUMBERS = ("dataset", "release", "job", "run")
_NUMBER = re.compile("[0-9a-f]{12,16}")


@dataclass
class Workbench:
    """The parts of the workbench, and the identity of the present request."""

    settings: WorkbenchSettings
    database: Database
    keys: Keys
    metrics: Metrics
    budgets: Budgets
    jobs: Jobs
    decoders: Decoders
    datasets: DataSets
    federations: Federations
    searches: Any
    access_log: AccessLog
    sign_on: SignOn | None = None
    identity: RequestIdentity | None = None
    #: Threads for work on the ledger, and threads for health checks.
    ledger_lane: Lane = field(default_factory=lambda: Lane(threads=8, waiting=120))
    health_lane: Lane = field(default_factory=lambda: Lane(threads=2, waiting=16))

    def visible(self, right: Right = "own") -> list[DataSet]:
        """Return the data sets on which the asker has a right, the newest first."""
        identity = self.identity
        if identity is None:
            return []
        if right == "search":
            return [each for each in self.datasets.listed() if self.searchable(each)]
        return [each for each in self.datasets.listed() if identity.can(right, each.id)]

    def searchable(self, data_set: DataSet) -> list[Release]:
        """Return the search indexes of a data set that the asker may search, the newest first."""
        identity = self.identity
        releases = [
            release
            for release in data_set.releases
            if release.kind == "search"
            and identity is not None
            and identity.can("search", data_set.id, release.id)
        ]
        return sorted(releases, key=lambda release: release.made, reverse=True)

    def ledger(self, data_set: DataSet) -> Ledger:
        """Return the ledger of a data set, which is created if there is none."""
        return self.budgets.named(data_set.account, create=True)

    def require(self, right: Right, dataset: str) -> None:
        """Raise `Problem` unless the asker has the right on a data set.

        This is for requests that name the data set in their body.
        """
        if self.identity is None:
            raise Problem("key_needed")
        _require(self.identity, right, dataset)


# Dependencies are async although they await nothing: FastAPI would run plain functions in a thread,
# which costs more.
async def workbench_of(request: Request) -> Workbench:
    """Return the workbench with the identity of this request."""
    shared: Workbench = request.app.state.workbench
    return replace(shared, identity=request.state.identity)


def _require(identity: RequestIdentity, right: Right, dataset: str, release: str = "") -> None:
    # A searcher's right may name a release; which one is searched is decided with the data set.
    somewhere = right == "search" and any(
        grant.gives("search", dataset, grant.release) for grant in identity.grants
    )
    if not somewhere and not identity.can(right, dataset, release):
        raise Problem("not_allowed")


def _holder(
    *roles: Role, right: Right | None = None, anyone: bool = False
) -> Callable[[Request], Awaitable[RequestIdentity]]:
    async def check(request: Request) -> RequestIdentity:
        identity: RequestIdentity | None = request.state.identity
        if identity is None:
            raise Problem("key_needed")
        dataset = release = ""
        if right is not None:
            needed, dataset, release = await _concerned(request, right)
            request.state.dataset, request.state.release = dataset, release
        if anyone or identity.may(*roles):
            return identity
        if not dataset or right is None:
            raise Problem("not_allowed")
        _require(identity, needed, dataset, release)
        return identity

    return check


async def _concerned(request: Request, right: Right) -> tuple[Right, str, str]:
    """Return the right, the data set and the release that a request's address concerns."""
    workbench: Workbench = request.app.state.workbench
    numbers = {name: str(value) for name, value in request.path_params.items() if name in _NUMBERS}
    if not all(_NUMBER.fullmatch(value) for value in numbers.values()):
        return right, "", ""  # the route reports the wrong address to those who may pass
    dataset, release = numbers.get("dataset", ""), numbers.get("release", "")
    if dataset:
        return right, dataset, release
    try:
        return await asyncio.to_thread(_looked_up, workbench, right, numbers, dataset, release)
    except (MissingData, Problem):
        return right, "", ""  # the route reports that it is missing to those who may know


def _looked_up(
    workbench: Workbench, right: Right, numbers: dict[str, str], dataset: str, release: str
) -> tuple[Right, str, str]:
    if not dataset and release:
        dataset = find_release(workbench.datasets, release)[0].id
    elif "job" in numbers:
        job = workbench.jobs.get(numbers["job"])
        dataset = str(job["dataset"] or "")
        release = str(job["arguments"].get("release") or "") if job["kind"] == "attack" else ""
        right = "attack" if job["kind"] == "attack" else right
    elif "run" in numbers:
        dataset = workbench.federations.get(numbers["run"]).dataset
    return right, dataset, release


Parts = Annotated[Workbench, Depends(workbench_of)]
#: Anybody with a role in the workbench; what is shown depends on the asker's rights.
Asker = Annotated[RequestIdentity, Depends(_holder("analyst", "aggregator"))]
#: Anybody who is signed in; the route itself checks a right (`Workbench.require`).
Signed = Annotated[RequestIdentity, Depends(_holder(anyone=True))]
#: A monitoring system.
Monitor = Annotated[RequestIdentity, Depends(_holder("monitor"))]
#: An owner of the whole workbench.
Administrator = Annotated[RequestIdentity, Depends(_holder())]
#: An owner of the data set that the address concerns.
Owner = Annotated[RequestIdentity, Depends(_holder(right="own"))]
Trainer = Annotated[RequestIdentity, Depends(_holder("aggregator", right="own"))]
Searcher = Annotated[RequestIdentity, Depends(_holder(right="search"))]
CardReader = Annotated[RequestIdentity, Depends(_holder(right="card"))]
HistoryReader = Annotated[RequestIdentity, Depends(_holder(right="history"))]
Attacker = Annotated[RequestIdentity, Depends(_holder(right="attack"))]
BudgetKeeper = Annotated[RequestIdentity, Depends(_holder(right="budget"))]
DataSetId = Annotated[str, Path(pattern="^[0-9a-f]{12}$", description="A data set's number.")]


def scanned(workbench: Workbench, dataset: str, *, least: int = 0) -> DataSet:
    """Return a data set whose photos were read.

    Raises:
        Problem: "conflict", if they were not read, or if there are fewer than `least`.
    """
    data_set = workbench.datasets.get(dataset)
    if not data_set.scanned or data_set.photos < least:
        raise Problem("conflict")
    return data_set
