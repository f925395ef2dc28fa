"""What a route may ask for: the workbench's parts, and an identity that may do this.

Every route names the right that it needs through one of the types below. A route that concerns a
data set finds it in its address: by the data set's number, or by that of a release, a job or a run
that belongs to it. The refusal is the same whether or not there is such a data set, release, job or
run, so that numbers cannot be tried out.
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
    """The parts that live as long as the workbench does, and who asks in the present request."""

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
    #: threads for what touches the ledger, and for the answer to "are you well?"
    ledger_lane: Lane = field(default_factory=lambda: Lane(threads=8, waiting=120))
    health_lane: Lane = field(default_factory=lambda: Lane(threads=2, waiting=16))

    def visible(self, right: Right = "own") -> list[DataSet]:
        """The data sets on which whoever asks has a right, the newest first."""
        identity = self.identity
        if identity is None:
            return []
        if right == "search":
            return [each for each in self.datasets.listed() if self.searchable(each)]
        return [each for each in self.datasets.listed() if identity.can(right, each.id)]

    def searchable(self, data_set: DataSet) -> list[Release]:
        """The search indexes of a data set that whoever asks may search, the newest first."""
        identity = self.identity
        releases = [
            release
            for release in data_set.releases
            if release.kind == "search"
            and identity is not None
            and identity.can("search", data_set.id, release.id)
        ]
        return sorted(releases, key=lambda release: release.made, reverse=True)

    def require(self, right: Right, dataset: str) -> None:
        """Refuse whoever has no such right on a data set that an order names in its body."""
        if self.identity is None:
            raise Problem("key_needed")
        _require(self.identity, right, dataset)


# Dependencies are async although they wait for nothing: FastAPI sends plain functions to a thread,
# which costs more.
async def workbench_of(request: Request) -> Workbench:
    """The workbench that answers this request, with who asks."""
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
    """The right, the data set and the release that a request's address is about."""
    workbench: Workbench = request.app.state.workbench
    given = {name: str(value) for name, value in request.path_params.items() if name in _NUMBERS}
    if not all(_NUMBER.fullmatch(value) for value in given.values()):
        return right, "", ""  # whoever may pass is told what is wrong with the address
    dataset, release = given.get("dataset", ""), given.get("release", "")
    if dataset:
        return right, dataset, release
    try:
        return await asyncio.to_thread(_looked_up, workbench, right, given, dataset, release)
    except (MissingData, Problem):
        return right, "", ""  # the route itself says that there is none, to whoever may know


def _looked_up(
    workbench: Workbench, right: Right, given: dict[str, str], dataset: str, release: str
) -> tuple[Right, str, str]:
    if not dataset and release:
        dataset = find_release(workbench.datasets, release)[0].id
    elif "job" in given:
        job = workbench.jobs.get(given["job"])
        dataset = str(job["dataset"] or "")
        release = str(job["arguments"].get("release") or "") if job["kind"] == "attack" else ""
        right = "attack" if job["kind"] == "attack" else right
    elif "run" in given:
        dataset = workbench.federations.get(given["run"]).dataset
    return right, dataset, release


Parts = Annotated[Workbench, Depends(workbench_of)]
#: anybody with a role of the workbench; what is shown depends on the asker's rights
Asker = Annotated[RequestIdentity, Depends(_holder("analyst", "aggregator"))]
#: anybody who is signed in; the route itself asks for a right (`Workbench.require`)
Signed = Annotated[RequestIdentity, Depends(_holder(anyone=True))]
#: whoever watches the machine
Monitor = Annotated[RequestIdentity, Depends(_holder("monitor"))]
#: the owner of the whole workbench
Administrator = Annotated[RequestIdentity, Depends(_holder())]
#: the owner of the data set that the address is about
Owner = Annotated[RequestIdentity, Depends(_holder(right="own"))]
Trainer = Annotated[RequestIdentity, Depends(_holder("aggregator", right="own"))]
Searcher = Annotated[RequestIdentity, Depends(_holder(right="search"))]
CardReader = Annotated[RequestIdentity, Depends(_holder(right="card"))]
HistoryReader = Annotated[RequestIdentity, Depends(_holder(right="history"))]
Attacker = Annotated[RequestIdentity, Depends(_holder(right="attack"))]
BudgetKeeper = Annotated[RequestIdentity, Depends(_holder(right="budget"))]
DataSetId = Annotated[str, Path(pattern="^[0-9a-f]{12}$", description="A data set's number.")]


def scanned(workbench: Workbench, dataset: str, *, least: int = 0) -> DataSet:
    """A data set whose photos were read, with at least so many of them; `Problem("conflict")`
    otherwise.
    """
    data_set = workbench.datasets.get(dataset)
    if not data_set.scanned or data_set.photos < least:
        raise Problem("conflict")
    return data_set
