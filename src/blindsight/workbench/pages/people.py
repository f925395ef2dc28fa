"""People: rights in data sets, spending limits and the access log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from blindsight.app.access_log import AccessRecord
from blindsight.app.library.accounts import set_spending_limit, spending_limit
from blindsight.core.errors import HostileFile, InvalidParameter, LedgerTampered
from blindsight.workbench.infra.access import Administrator, Parts, Signed, Workbench
from blindsight.workbench.infra.identity import EVERY, DataSetRole
from blindsight.workbench.infra.problems import Problem, documented
from blindsight.workbench.infra.shell import render
from blindsight.workbench.pages.protect import Next

__all__ = ["router"]

router = APIRouter(tags=["people"])
#: What each role may do, as the page explains it.
ROLES = {
    "owner": "Sees photos, makes releases, changes the budget. Does not change people's rights.",
    "searcher": "Searches one named release, or all of them. Sees no photos and no file names.",
    "auditor": "Reads budget, history, releases' cards and the access log; attacks releases. "
    "Sees no photos.",
    "keeper": "Reads budget and history, sets and closes the budget. Sees no photos.",
}
_SHOWN, _LOOKED_AT = 100, 5000
_MOST_COLUMNS = 4  # more data sets would not fit into the table
_SAW = "saw photos"
# How an action of the log begins, what the page says of it, and its kind; the first match is used.
_ACTIONS = (
    ("GET /api/datasets/{dataset}/photos", _SAW, "saw photos"),
    ("POST /api/answers", "looked up or copied requested photos", "saw photos"),
    ("POST /api/search", "searched", "searched"),
    ("job protect release", "made a search index", "shared"),
    ("job send statistics", "released statistics", "shared"),
    ("job tags", "learned or published tags", "shared"),
    ("job compare", "learned to compare", "shared"),
    ("POST /api/together/start", "started training together", "shared"),
    ("POST /api/together/join", "joined training together", "shared"),
    ("GET /api/together/two", "downloaded a file for two sites", "shared"),
    ("POST /api/protect/{dataset}/release", "ordered a search index", "changed"),
    ("POST /api/send/{dataset}/statistics", "ordered statistics", "changed"),
    ("POST /api/send/{dataset}/try", "attacked sketches", "changed"),
    ("job send", "attacked sketches", "changed"),
    ("POST /api/protect/{dataset}/look", "measured on the photos", "changed"),
    ("POST /api/protect", "added or read photos", "changed"),
    ("job protect scan", "read the photos", "changed"),
    ("job protect look", "measured on the photos", "changed"),
    ("POST /api/rights/roles", "changed somebody's roles", "rights"),
    ("POST /api/rights/withdraw", "withdrew a right", "rights"),
    ("POST /api/rights", "granted a right", "rights"),
    ("POST /api/people/limit", "changed somebody's spending limit", "rights"),
    ("POST /api/people/bar", "barred somebody", "rights"),
    ("POST /api/budget", "changed a budget", "rights"),
    ("GET /api/compare", "saw pairs of photos", "saw photos"),
    ("POST /api/compare/{dataset}/learn", "ordered learning from answers", "changed"),
    ("POST /api/compare", "answered pairs", "changed"),
    ("POST /api/releases", "attacked a release", "changed"),
    ("job attack", "attacked a release", "changed"),
    ("GET /api/tags/{dataset}", "read labels", "read"),
    ("POST /api/tags", "changed labels", "changed"),
    ("GET /api/releases", "read a card or a report", "read"),
    ("GET /api/ledger", "read the history", "read"),
    ("POST /api/jobs", "stopped or repeated work", "changed"),
    ("sign in", "signed in", "read"),
    ("sign out", "signed out", "read"),
)
_KINDS = {"photos": "saw photos", "shared": "shared", "refused": "refused"}
_Name = Annotated[str, Field(min_length=1, max_length=100)]
_Number = Annotated[str, Field(pattern="^([0-9a-f]{12}|[*])$")]
_Release = Annotated[str, Field(pattern="^([0-9a-f]{12})?$")]


class GrantOrder(BaseModel):
    """A role in a data set (`*`: in every one), for a person, a key or a group."""

    model_config = ConfigDict(extra="forbid")
    subject: _Name
    kind: Literal["person", "group"] = "person"
    role: DataSetRole
    dataset: _Number
    release: Annotated[_Release, Field(description="For a searcher; empty: every release.")] = ""


class WithdrawOrder(BaseModel):
    """A role in a data set that a person, a key or a group loses."""

    model_config = ConfigDict(extra="forbid")
    subject: _Name
    kind: Literal["person", "group"] = "person"
    role: DataSetRole
    dataset: _Number


class RolesOrder(BaseModel):
    """The roles of a person or a key in several data sets; "" for no access."""

    model_config = ConfigDict(extra="forbid")
    subject: _Name
    roles: Annotated[
        dict[Annotated[str, Field(pattern="^[0-9a-f]{12}$")], DataSetRole | Literal[""]],
        Field(min_length=1, max_length=1000),
    ]


class BarOrder(BaseModel):
    """A person or a key to bar for good."""

    model_config = ConfigDict(extra="forbid")
    subject: _Name


class LimitOrder(BaseModel):
    """The most that a person or a key may spend of each data set; "" for no limit."""

    model_config = ConfigDict(extra="forbid")
    subject: _Name
    limit: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] | Literal[""]


class GrantLine(BaseModel):
    """A grant, with its date and who made it."""

    subject: str
    kind: str
    role: str
    dataset: str
    release: str
    made: str
    actor: str


class LogLine(BaseModel):
    """A record of the access log."""

    sequence: int
    time: str
    actor: str
    action: str
    dataset: str
    release: str
    outcome: str
    purpose: str
    hash: str


class LogProof(BaseModel):
    """Whether the chain of the access log is unchanged, and where it ends."""

    holds: bool
    records: int
    head: str


@router.get("/people", include_in_schema=False)
async def page(
    request: Request,
    workbench: Parts,
    show: Annotated[Literal["all", "photos", "shared", "refused"], Query()] = "all",
) -> Response:
    """Render the page People, for the owner of the workbench."""
    return await workbench.ledger_lane.run(_page, request, workbench, show)


@router.get("/api/rights", summary="All rights", responses=documented())
def rights(workbench: Parts, asker: Administrator) -> list[GrantLine]:
    """Who has which role in which data set."""
    return [GrantLine(**row) for row in workbench.keys.grants()]


@router.post("/api/rights", summary="Grant a right", responses=documented("not_found"))
def grant(order: GrantOrder, workbench: Parts, asker: Administrator) -> Next:
    """The right holds within two seconds in every open session."""
    if order.dataset != EVERY:
        data_set = workbench.datasets.get(order.dataset)
        if order.release:
            data_set.release(order.release)
    workbench.keys.grant(
        order.subject,
        order.role,
        order.dataset,
        release=order.release,
        group=order.kind == "group",
        actor=asker.name,
    )
    return Next(next="/people")


@router.post("/api/rights/withdraw", summary="Withdraw a right", responses=documented("not_found"))
def withdraw(order: WithdrawOrder, workbench: Parts, asker: Administrator) -> Next:
    """The right ends within two seconds in every open session."""
    ended = workbench.keys.withdraw(
        order.subject, order.dataset, role=order.role, group=order.kind == "group"
    )
    if not ended:
        raise Problem("not_found")
    return Next(next="/people")


@router.post("/api/rights/roles", summary="Set roles", responses=documented("not_found"))
def set_roles(order: RolesOrder, workbench: Parts, asker: Administrator) -> Next:
    """All roles are set in one transaction, and hold within two seconds in every open session."""
    for dataset in order.roles:
        workbench.datasets.get(dataset)
    workbench.keys.set_roles(order.subject, order.roles, actor=asker.name)
    return Next(next="/people")


@contextmanager
def _unknown_is_not_found() -> Iterator[None]:
    """Turn the refusal of a name that no person and no key has into `Problem("not_found")`."""
    try:
        yield
    except InvalidParameter as error:
        raise Problem("not_found") from error


@router.post("/api/people/limit", summary="Limit spending", responses=documented("not_found"))
def limit_spending(order: LimitOrder, workbench: Parts, asker: Administrator) -> Next:
    """The limit holds from the next charge on, in every data set, per photo and per person."""
    with _unknown_is_not_found():
        workbench.keys.require_known(order.subject)
    epsilon = None if order.limit == "" else order.limit
    set_spending_limit(workbench.settings, order.subject, epsilon)
    return Next(next="/people")


@router.post("/api/people/bar", summary="Bar a person or key", responses=documented("not_found"))
def bar(order: BarOrder, workbench: Parts, asker: Administrator) -> Next:
    """The key is revoked, or the person can no longer sign in; open sessions end."""
    with _unknown_is_not_found():
        workbench.keys.revoke(order.subject)
    return Next(next="/people")


@router.get("/api/access", summary="The access log", responses=documented())
def access(
    workbench: Parts,
    asker: Signed,
    before: Annotated[
        int | None, Query(ge=1, description="Only records with a lower number: the next page.")
    ] = None,
    most: Annotated[int, Query(ge=1, le=1000, description="How many.")] = _SHOWN,
) -> list[LogLine]:
    """The newest records first: all for the owner of the workbench, otherwise those of the data
    sets whose history the asker may read.
    """
    records = workbench.access_log.latest(datasets=_readable(workbench), before=before, most=most)
    return [_line(record) for record in records]


@router.post("/api/access/verify", summary="Verify the access log", responses=documented())
async def verify(workbench: Parts, asker: Signed) -> LogProof:
    """The chain is verified from the first record to the head."""
    _readable(workbench)

    def work() -> LogProof:
        try:
            head = workbench.access_log.verify()
        except LedgerTampered:
            return LogProof(holds=False, records=0, head="")
        return LogProof(holds=True, records=head.sequence, head=head.hash)

    return await workbench.ledger_lane.run(work)


@router.get(
    "/api/access/export.{kind}",
    summary="The whole access log",
    response_class=Response,
    responses=documented(),
)
async def export(kind: Literal["json", "csv"], workbench: Parts, asker: Administrator) -> Response:
    """`blindsight workbench log --check FILE` verifies the JSON without the database."""
    text = await workbench.ledger_lane.run(workbench.access_log.export, kind)
    return Response(
        text,
        media_type="application/json" if kind == "json" else "text/csv",
        headers={"Content-Disposition": f'attachment; filename="access-log.{kind}"'},
    )


def _readable(workbench: Workbench) -> frozenset[str] | None:
    """Return the data sets whose log the asker may read; None for all."""
    identity = workbench.identity
    if identity is None:
        raise Problem("key_needed")
    if identity.may():
        return None
    if not identity.can_somewhere("history"):
        raise Problem("not_allowed")
    return frozenset(data_set.id for data_set in workbench.visible("history"))


def _line(record: AccessRecord) -> LogLine:
    values = record.to_dict()
    return LogLine(**{name: values[name] for name in LogLine.model_fields})


@dataclass
class LogEntry:
    """Equal records of the access log of one minute."""

    time: str
    actor: str
    words: str
    kind: str
    dataset: str
    outcome: str
    purpose: str
    count: int = 0

    def sentence(self, names: dict[str, str]) -> str:
        """Return a sentence about what was done, in which data set, and how often."""
        name = names.get(self.dataset, self.dataset)
        often = f" {self.count:,} times" if self.count > 1 else ""
        words = f"{self.words}{often}"
        if self.words == _SAW:
            verb = "asked to see" if self.outcome == "refused" else "saw"
            words = f"{verb} {self.count:,} photo{'s' if self.count > 1 else ''}"
        outcome = f" ({self.outcome})" if self.outcome != "done" else ""
        return f"{words}{f': {name}' if name else ''}{outcome}"


def log_entries(records: Iterable[AccessRecord], show: str = "all") -> list[LogEntry]:
    """Combine equal records of one minute into entries, the newest first.

    Parameters:
        records: the records, newest first.
        show: "all", or only records in which "photos" were seen, something was "shared", or
            something was "refused".
    """
    entries: dict[tuple[str, ...], LogEntry] = {}
    for record in records:
        words, kind = _in_words(record.action)
        kind = "refused" if record.outcome == "refused" else kind
        if show != "all" and kind != _KINDS[show]:
            continue
        minute = record.time[:16].replace("T", " ")
        key = (minute, record.actor, words, kind, record.dataset, record.outcome, record.purpose)
        entries.setdefault(key, LogEntry(*key)).count += 1
    return list(entries.values())


def _in_words(action: str) -> tuple[str, str]:
    """Return how the page describes an action, and its kind."""
    for start, words, kind in _ACTIONS:
        if action.startswith(start):
            return words, kind
    method, _, route = action.partition(" ")
    if method == "GET" and not route.startswith("/api"):
        return "opened pages", "read"
    return action, "read" if method == "GET" else "changed"


def _held_roles(grants: Iterable[dict[str, Any]]) -> dict[tuple[str, str], list[str]]:
    """Return the roles of persons and keys by name and data set ("*" for every data set)."""
    held: dict[tuple[str, str], list[str]] = {}
    for grant in grants:
        if grant["kind"] == "person":
            roles = held.setdefault((grant["subject"], grant["dataset"]), [])
            roles += [] if grant["role"] in roles else [grant["role"]]
    return held


def _spending(workbench: Workbench, person: str) -> tuple[float | None, float]:
    """Return a person's spending limit and, if there is one, the most spent of one data set."""
    try:
        limit = spending_limit(workbench.settings, person)
    except HostileFile:
        limit = 0.0  # every charge is refused until the limit is set again
    if limit is None:
        return None, 0.0
    ledgers = (workbench.ledger(data_set) for data_set in workbench.datasets.listed())
    return limit, max(
        (max(ledger.charged_by(person).values(), default=0.0) for ledger in ledgers), default=0.0
    )


def _page(request: Request, workbench: Workbench, show: str = "all") -> Response:
    context: dict[str, Any] = {"title": "People and rights", "menu_word": "People"}
    identity = workbench.identity
    if identity is not None and identity.may():
        sets = workbench.datasets.listed()
        names = {data_set.id: data_set.name for data_set in sets} | {EVERY: "every data set"}
        grants = workbench.keys.grants()
        releases = {
            release.id: f"{release.kind}, ε {release.epsilon:g}, {release.made[:10]}"
            for data_set in sets
            for release in data_set.releases
        }
        people: list[dict[str, Any]] = [
            *({**row, "from": "key", "groups": []} for row in workbench.keys.listed()),
            *({**row, "from": "organisation", "role": ""} for row in workbench.keys.people()),
        ]
        context |= {
            "people": people,
            "grants": grants,
            "held": _held_roles(grants),
            "spending": {row["name"]: _spending(workbench, row["name"]) for row in people},
            "columns": sets[:_MOST_COLUMNS],
            "sets": sets,
            "names": names,
            "releases": releases,
            "roles": ROLES,
            "log": log_entries(workbench.access_log.latest(most=_LOOKED_AT), show)[:_SHOWN],
            "show": show,
        }
    return render(request, workbench, "people.html", context)
