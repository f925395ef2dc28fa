"""History: what is left of each budget, whether the history is intact, and attacks on releases."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import FileResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from blindsight.app.library.accounts import (
    change_budget,
    check_state,
    close_account,
    decide,
)
from blindsight.app.library.datasets import DataSet, DataSets, Release
from blindsight.app.library.risks import attack_release, find_release, report_folder, too_few
from blindsight.app.library.tags import plain_cell
from blindsight.app.result import counted
from blindsight.core.errors import LedgerTampered
from blindsight.workbench.infra.access import (
    Asker,
    Attacker,
    BudgetKeeper,
    DataSetId,
    HistoryReader,
    Owner,
    Parts,
    Signed,
    Workbench,
)
from blindsight.workbench.infra.database import PURPOSE
from blindsight.workbench.infra.identity import RequestIdentity
from blindsight.workbench.infra.jobs import JobContext
from blindsight.workbench.infra.problems import Problem, documented
from blindsight.workbench.infra.shell import Bar, plain, price_of, render
from blindsight.workbench.pages.home import budget_of, state_reports, what_was_paid
from blindsight.workbench.pages.protect import Next

if TYPE_CHECKING:
    from blindsight.privacy.ledger import Balance, Ledger

__all__ = ["ledger_router", "router", "run"]

router = APIRouter(tags=["budget"])
ledger_router = APIRouter(prefix="/api/ledger", tags=["ledger"])
# A report has inline styles; everything else is forbidden to it.
REPORT = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "sandbox"
}


@router.get("/budget", include_in_schema=False)
async def page(request: Request, workbench: Parts, release: str | None = None) -> Response:
    """Render the page History, with one release selected."""
    return await workbench.ledger_lane.run(_page, request, workbench, release)


class StateDecision(BaseModel):
    """What to do if vault, ledger and releases do not agree.

    "take over": charge what the older copy lacks. "close": close the data set's budgets.
    """

    model_config = ConfigDict(extra="forbid")
    decision: Literal["take over", "close"]


class StateAgreement(BaseModel):
    """Whether vault, ledger and releases of a data set agree, and what to do if not."""

    dataset: str
    agrees: bool
    findings: list[str]


@router.get(
    "/api/budget/{dataset}/agreement",
    summary="Whether vault, ledger and releases agree",
    responses=documented("not_found", "ledger"),
)
async def agreement(dataset: DataSetId, workbench: Parts, asker: HistoryReader) -> StateAgreement:
    """They are compared now; nothing is written."""
    return await workbench.ledger_lane.run(_agreement, workbench, dataset)


@router.post(
    "/api/budget/{dataset}/decide",
    summary="Decide about an older copy",
    responses=documented("not_found", "conflict", "budget", "ledger"),
)
async def decide_about(
    dataset: DataSetId, order: StateDecision, workbench: Parts, asker: BudgetKeeper
) -> StateAgreement:
    """Take over what the older copy lacks, or close the data set's budgets.

    Restoring the newest copy is better than either, and needs no decision here.
    """

    def work() -> StateAgreement:
        data_set = workbench.datasets.get(dataset)
        ledger = workbench.ledger(data_set)
        if check_state(workbench.datasets, data_set, ledger).can_decide:
            decide(workbench.datasets, data_set, ledger, order.decision, actor=asker.name)
        return _agreement(workbench, dataset)

    return await workbench.ledger_lane.run(work)


def _agreement(workbench: Workbench, dataset: str) -> StateAgreement:
    data_set = workbench.datasets.get(dataset)
    ledger = workbench.ledger(data_set)
    report = check_state(workbench.datasets, data_set, ledger)
    return StateAgreement(
        dataset=data_set.id, agrees=not report.findings, findings=list(report.findings)
    )


@router.get("/api/books.csv", include_in_schema=False)
@router.get(
    "/api/history.csv",
    summary="The history as a table",
    response_class=Response,
    responses=documented("ledger") | {200: {"content": {"text/csv": {}}}},
)
async def history_csv(workbench: Parts, asker: Signed) -> Response:
    """The history of the data sets, as the page shows it; `/api/ledger/export.json` can be
    verified.
    """
    if not asker.can_somewhere("history"):
        raise Problem("not_allowed")
    lines = await workbench.ledger_lane.run(
        lambda: _history(workbench, workbench.visible("history"))
    )
    sheet = io.StringIO()
    writer = csv.writer(sheet)
    writer.writerow(
        ["when (UTC)", "what happened", "data set", "about each", "price (epsilon)", "left"]
    )
    for line in lines:
        writer.writerow(
            plain_cell(line[name]) for name in ("time", "what", "set", "unit", "price", "left")
        )
    headers = {"Content-Disposition": 'attachment; filename="history.csv"'}
    return Response(sheet.getvalue(), media_type="text/csv", headers=headers)


@router.get(
    "/api/releases/{release}/report.html",
    summary="The report of the last attack",
    response_class=FileResponse,
    responses=documented("not_found") | {200: {"content": {"text/html": {}}}},
)
def report(
    release: Annotated[str, Path(pattern="^[0-9a-f]{12}$", description="A release's number.")],
    workbench: Parts,
    asker: Owner,
) -> FileResponse:
    """The report contains thumbnails, so it is for the owner and those whom the owner chooses."""
    data_set, chosen = find_release(workbench.datasets, release)
    path = report_folder(workbench.datasets, data_set, chosen) / "report.html"
    if not path.is_file():
        raise Problem("not_found")
    return FileResponse(path, media_type="text/html", filename="report.html", headers=REPORT)


@router.post(
    "/api/releases/{release}/attack",
    status_code=202,
    summary="Attack a release",
    responses=documented("not_found", "too_few_photos", "busy"),
)
def attack(
    release: Annotated[str, Path(pattern="^[0-9a-f]{12}$", description="A release's number.")],
    workbench: Parts,
    asker: Attacker,
) -> Next:
    """The photos in the vault are the ground truth; nothing leaves, and nothing is charged."""
    data_set, chosen = find_release(workbench.datasets, release)
    if too_few(chosen):
        raise Problem("too_few_photos")
    job = workbench.jobs.add("attack", {"dataset": data_set.id, "release": chosen.id}, asker.name)
    return Next(next=f"/budget?release={chosen.id}#attack", job=job["id"])


def run(arguments: dict[str, Any], job: JobContext) -> dict[str, Any]:
    """Attack a release as a stranger who holds it would, and measure the result on its photos."""
    return attack_release(DataSets(job.settings), arguments["release"], job.progress)


def _page(request: Request, workbench: Workbench, release: str | None) -> Response:
    identity = request.state.identity
    context: dict[str, Any] = {
        "title": "History",
        "sets": [],
        "releases": [],
        "release": None,
    }
    if identity is not None:
        owner = identity.can_somewhere("history")
        sets = workbench.visible("history")
        context["sets"] = [(data_set, budget_of(workbench, data_set)) for data_set in sets]
        every = [(data_set, r) for data_set in sets for r in data_set.releases]
        context["releases"] = sorted(every, key=lambda pair: pair[1].made, reverse=True)
        chosen = next(((o, r) for o, r in context["releases"] if r.id == release), None)
        if release is not None and chosen is None:
            raise Problem("not_found")
        chosen = chosen or next(iter(context["releases"]), None)
        if chosen is not None:
            context["data_set"], context["release"] = chosen
            context["sees_photos"] = identity.can("own", chosen[0].id)
            context["may_attack"] = identity.can("attack", chosen[0].id)
            context["job"], context["too_few"] = (
                workbench.jobs.under_way("attack", release=chosen[1].id),
                too_few(chosen[1]),
            )
            context["advice"] = _advice(chosen[1])
        context["history"] = _history(workbench, sets) if owner else []
        context["order"] = _in_order(workbench, sets) if owner else None
        context["reads_history"] = owner
        context["changeable"] = [
            (data_set, bar)
            for data_set, bar in context["sets"]
            if identity.can("budget", data_set.id)
        ]
        context["reports"] = state_reports(workbench, sets) if owner else []
        context["held"] = {r.data_set.id for r in context["reports"] if r.findings}
    return render(request, workbench, "budget.html", context)


def _advice(release: Release) -> str | None:
    """Return advice that follows from the last attack on a release; None if there was none."""
    attack = release.attack
    if attack is None:
        return None
    if attack["refuted"]:
        return "The guarantee does not hold. Do not share this release, and report it."
    words = [f"{advice[:1].upper()}{advice[1:]}." for advice in attack.get("advice", [])]
    if release.kind == "search" and (attack["guess"] or 0) >= max(30, 2 * (attack["luck"] or 0)):
        words.append(
            "If what a photo shows is itself a secret, such as a diagnosis, do not share more of "
            "this index."
        )
    words.append("A release that was shared cannot be recalled.")
    return " ".join(words)


def _in_order(workbench: Workbench, sets: list[DataSet]) -> dict[str, Any]:
    """Verify every chain of the ledger, from the first entry to the head."""
    entries, broken = 0, []
    everything = workbench.identity is not None and workbench.identity.may()
    accounts = {data_set.account for data_set in sets}
    for name in workbench.budgets.names():
        if not everything and name not in accounts:
            continue
        try:
            entries += workbench.budgets.named(name).verify().sequence
        except LedgerTampered:
            broken.append(name)
    return {"entries": counted(entries, "entry", "entries"), "broken": broken}


def _history(workbench: Workbench, sets: list[DataSet]) -> list[dict[str, Any]]:
    """Return the history of the data sets, newest first."""
    lines: list[dict[str, Any]] = []
    for data_set in sets:
        budgets: dict[str, float] = {}  # the last total that was set is valid
        spent: dict[str, float] = {}
        for entry in workbench.ledger(data_set).entries():
            price, unit = entry.amount.epsilon, entry.unit
            granted = entry.kind == "grant"
            if granted:
                budgets[unit] = price
            else:
                spent[unit] = spent.get(unit, 0.0) + price
            event = "Budget set by you" if granted else what_was_paid(entry.what)[0]
            lines.append(
                {
                    "time": entry.time[:16].replace("T", " "),
                    "what": event,
                    "set": data_set.name,
                    "price": "–" if granted else price_of(price),
                    "unit": {"record": "photo", "label": "answer"}.get(unit, unit),
                    "left": plain(Bar(budgets.get(unit, 0.0), spent.get(unit, 0.0), unit).left),
                    "order": (entry.time, entry.sequence),
                }
            )
    return sorted(lines, key=lambda line: line["order"], reverse=True)[:200]


class LedgerAccount(BaseModel):
    """The balance of a budget."""

    dataset: str
    unit: str
    neighbours: str
    budget: float
    spent: float
    remaining: float
    closed: bool


class Sure(BaseModel):
    """The confirmation that a closed budget cannot be opened again."""

    model_config = ConfigDict(extra="forbid")
    sure: Literal[True]


class BudgetOrder(BaseModel):
    """A total budget in epsilon per photo or per person, which replaces the previous one."""

    model_config = ConfigDict(extra="forbid")
    epsilon: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
    unit: Literal["photo", "person"] = "photo"


@router.post(
    "/api/budget/{dataset}/set",
    summary="Set a data set's budget",
    responses=documented("not_found", "ledger"),
)
async def set_budget(
    dataset: DataSetId, order: BudgetOrder, workbench: Parts, asker: BudgetKeeper
) -> LedgerAccount:
    """A budget can be raised, or lowered down to what is spent."""

    def work() -> LedgerAccount:
        data_set = workbench.datasets.get(dataset)
        ledger = workbench.ledger(data_set)
        purpose = PURPOSE.get()
        balance = change_budget(
            data_set, ledger, order.epsilon, order.unit, actor=asker.name, purpose=purpose
        )
        return _account(balance)

    return await workbench.ledger_lane.run(work)


@router.post(
    "/api/budget/{dataset}/close",
    summary="Close a data set's budgets for good",
    responses=documented("not_found", "ledger"),
)
async def close_budgets(
    dataset: DataSetId, order: Sure, workbench: Parts, asker: BudgetKeeper
) -> list[LedgerAccount]:
    """Nothing more can be released from the data set; what is left is forfeited."""

    def work() -> list[LedgerAccount]:
        data_set = workbench.datasets.get(dataset)
        ledger = workbench.ledger(data_set)
        close_account(ledger, f"closed by {asker.name}", actor=asker.name)
        return [_account(balance) for balance in ledger.balances()]

    return await workbench.ledger_lane.run(work)


class Line(BaseModel):
    """An entry of the ledger."""

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
    """Whether the chain of a data set is unchanged."""

    dataset: str
    holds: bool
    entries: int
    head: str


@ledger_router.get("/accounts", summary="Budgets", responses=documented("ledger"))
async def accounts(workbench: Parts, asker: Asker) -> list[LedgerAccount]:
    """All budgets for the owner of the workbench, otherwise those that the asker may see."""
    return await workbench.ledger_lane.run(accounts_of, workbench, asker)


@ledger_router.get("/entries", summary="The latest entries", responses=documented("ledger"))
def entries(
    workbench: Parts,
    asker: Asker,
    last: Annotated[
        int, Query(ge=1, le=500, description="The number of entries per data set.")
    ] = 20,
) -> list[Line]:
    """The newest first, of each budget that the asker may see."""
    lines = []
    for ledger in _visible(workbench, asker):
        after = max(0, ledger.head().sequence - last)
        for entry in ledger.entries(after=after):
            names = ("dataset", "sequence", "time", "kind", "unit", "what", "hash")
            fields: dict[str, Any] = {name: getattr(entry, name) for name in names}
            lines.append(Line(**fields, epsilon=entry.amount.epsilon, delta=entry.amount.delta))
    return sorted(lines, key=lambda line: line.time, reverse=True)


@ledger_router.post("/verify", summary="Verify every chain", responses=documented("ledger"))
def verify(workbench: Parts, asker: Asker) -> list[Chain]:
    """Every chain is verified from the first entry to the head."""
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


@ledger_router.get(
    "/export.json",
    summary="All entries, in a form that can be verified",
    responses=documented("ledger"),
)
def export(workbench: Parts, asker: Signed) -> Response:
    """`blindsight budget verify --file` verifies it without the database."""
    if not asker.can_somewhere("history"):
        raise Problem("not_allowed")
    disposition = {"Content-Disposition": 'attachment; filename="ledger.json"'}
    return Response(
        workbench.budgets.to_json(_visible(workbench, asker)),
        media_type="application/json",
        headers=disposition,
    )


def accounts_of(workbench: Workbench, asker: RequestIdentity) -> list[LedgerAccount]:
    """Return the budgets that an asker may see."""
    return [
        _account(balance) for ledger in _visible(workbench, asker) for balance in ledger.balances()
    ]


def _visible(workbench: Workbench, asker: RequestIdentity) -> list[Ledger]:
    names = workbench.budgets.names()
    if not asker.may():
        readable = {data_set.account for data_set in workbench.visible("history")}
        names = [name for name in names if name in readable or name == f"key {asker.name}"]
    return [workbench.budgets.named(name) for name in names]


def _account(balance: Balance) -> LedgerAccount:
    return LedgerAccount(
        dataset=balance.dataset,
        unit=balance.unit,
        neighbours=balance.neighbours,
        budget=balance.budget.epsilon,
        spent=balance.spent.epsilon,
        remaining=balance.remaining.epsilon,
        closed=balance.closed,
    )
