"""Home: the data sets on this machine, what is left of each budget, and what was shared."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Path, Request
from fastapi.responses import FileResponse, RedirectResponse, Response

from blindsight.app.library import accounts
from blindsight.app.library.accounts import StateReport, check_state
from blindsight.app.library.datasets import DataSet
from blindsight.app.library.risks import too_few
from blindsight.workbench.infra.access import Owner, Parts, Workbench
from blindsight.workbench.infra.problems import Problem, documented
from blindsight.workbench.infra.shell import Bar, TrustStrip, bar_of, plain, price_of, render
from blindsight.workbench.pages.sign_in import signed_in

__all__ = [
    "budget_of",
    "chosen",
    "open_account",
    "reached",
    "router",
    "search_strip",
    "state_reports",
    "what_was_paid",
]

router = APIRouter()


@router.get("/", include_in_schema=False)
async def home(request: Request, workbench: Parts, token: str | None = None) -> Response:
    """Render the first page, or sign in with the secret of the start-up link."""
    if token is not None:
        return await signed_in(request, workbench, token, link=True) or RedirectResponse(
            "/login", status_code=303
        )
    identity = request.state.identity
    if identity is not None and not identity.can_somewhere("own"):
        first = "/search" if identity.can_somewhere("search") else "/budget"
        return RedirectResponse(first, status_code=303)
    return await workbench.ledger_lane.run(_home, request, workbench)


@router.get(
    "/api/datasets/{dataset}/photos/{photo}",
    tags=["data sets"],
    summary="A photo's thumbnail, for the owner",
    response_class=FileResponse,
    responses=documented("not_found") | {200: {"content": {"image/jpeg": {}}}},
)
def thumbnail(
    workbench: Parts,
    asker: Owner,
    dataset: str = Path(pattern="^[0-9a-f]{12}$"),
    photo: str = Path(pattern="^[0-9a-f]{32}$"),
) -> FileResponse:
    """The thumbnail comes from the vault, and is only for the owner."""
    path = workbench.datasets.thumbnail(workbench.datasets.get(dataset), photo)
    if not path.is_file():
        raise Problem("not_found")
    # Not cached: a browser's copy would outlive the session.
    return FileResponse(path, media_type="image/jpeg")


def _home(request: Request, workbench: Workbench) -> Response:
    sets = workbench.visible("own")
    cards = [_card(workbench, data_set) for data_set in sets]
    newest = max(
        (r for data_set in sets for r in data_set.releases), key=lambda r: r.made, default=None
    )
    owner = next((data_set for data_set in sets if newest in data_set.releases), None)
    reports = state_reports(workbench, sets)
    context: dict[str, Any] = {
        "title": "Your images",
        "menu_word": "Home",
        "cards": cards,
        "reports": reports,
        "held": {report.data_set.id for report in reports if report.findings},
        "roots": [str(root) for root in workbench.settings.photos],
        "newest": newest,
        "newest_set": owner,
        "keep": workbench.settings.state / "vault",
        "give": workbench.datasets.folder(newest) if newest else "",
        "administrator": workbench.identity is not None and workbench.identity.may(),
    }
    return render(request, workbench, "home.html", context)


def state_reports(workbench: Workbench, sets: list[DataSet]) -> list[StateReport]:
    """Return a report for each data set from which nothing may be released."""
    reports = (
        check_state(workbench.datasets, data_set, workbench.ledger(data_set)) for data_set in sets
    )
    return [report for report in reports if not report.may_release]


def _card(workbench: Workbench, data_set: DataSet) -> dict[str, Any]:
    attacked = [release for release in data_set.releases if release.attack is not None]
    last = max(attacked, key=lambda release: release.attack["when"], default=None)  # type: ignore[index]
    return {
        "set": data_set,
        "bar": budget_of(workbench, data_set),
        "spent": _spent(workbench, data_set),
        "film": workbench.datasets.photos(data_set)[:6],
        "releases": sorted(data_set.releases, key=lambda r: r.made),
        "attacked": last,
        "waiting": [
            r for r in data_set.releases if r.kind == "search" and not r.attack and not too_few(r)
        ],
    }


def _spent(workbench: Workbench, data_set: DataSet) -> str:
    """Return what the budget was spent on, in the order of the history."""
    sums: dict[str, float] = {}
    for entry in workbench.ledger(data_set).entries():
        if entry.kind == "charge" and entry.unit == ("person" if data_set.most else "record"):
            name = what_was_paid(entry.what)[1]
            sums[name] = sums.get(name, 0.0) + entry.amount.epsilon
    return ", ".join(f"{price_of(epsilon)} on {name}" for name, epsilon in sums.items())


def what_was_paid(words: str) -> tuple[str, str]:
    """Return how pages describe a charge: what happened, and what was paid for."""
    phrases = {
        "codes of photos": ("Search index shared", "the search index"),
        "tags of photos": ("Tags published", "published tags"),
        "feature statistics": ("Statistics shared", "statistics for training"),
        "training a tagger": ("Tag model learned", "the tag model"),
        "metric from": ("Threshold learned from answers", "a threshold to compare with"),
        "training together": ("Trained together with other sites", "training together"),
    }
    for start, pair in phrases.items():
        if words.startswith(start):
            return pair
    return words[:1].upper() + words[1:], words


def open_account(workbench: Workbench, data_set: DataSet) -> None:
    """Grant the first budget of a new data set, before its photos are read."""
    ledger = workbench.ledger(data_set)
    actor = workbench.identity.name if workbench.identity is not None else None
    accounts.open_account(workbench.settings, data_set, ledger, actor=actor)


def budget_of(workbench: Workbench, data_set: DataSet, *, this: float = 0.0) -> Bar:
    """Return the budget of a data set; `this` is the cost of a release to show in it."""
    ledger = workbench.ledger(data_set)
    return bar_of(ledger.balance("person" if data_set.most else "record"), this=this)


def chosen(
    workbench: Workbench, number: str | None, *, released: bool = False
) -> tuple[list[DataSet], DataSet | None]:
    """Return the data sets that a page can show, and the chosen one (by default the newest).

    Parameters:
        workbench: the workbench, with the asker.
        number: the number of the chosen data set.
        released: only data sets with releases that the asker may search.

    Raises:
        Problem: "not_found", if there is no data set with the number.
    """
    sets = [
        data_set
        for data_set in workbench.visible("search" if released else "own")
        if data_set.scanned and (data_set.releases or not released)
    ]
    data_set = next((data_set for data_set in sets if data_set.id == number), None)
    if number is not None and data_set is None:
        raise Problem("not_found")
    return sets, data_set or next(iter(sets), None)


def reached(data_set: DataSet, kind: str) -> str:
    """Return the epsilon that the last attack on the newest release of a kind has measured."""
    newest = max(
        (r for r in data_set.releases if r.kind == kind), key=lambda r: r.made, default=None
    )
    return (
        f"≥ {plain(newest.attack['epsilon'])}"
        if newest is not None and newest.attack
        else "not yet"
    )


def search_strip(
    workbench: Workbench,
    data_set: DataSet,
    epsilon: float,
    attack: dict[str, Any] | None,
    note: str,
) -> TrustStrip:
    """Return the privacy strip of a search index."""
    reached = f"≥ {plain(attack['epsilon'])}" if attack and attack.get("epsilon") else "not yet"
    return TrustStrip(
        leaves="Nothing while you search. The index that was shared holds one code for each photo.",
        stays="Your query, the photos, these thumbnails.",
        promised=f"ε {plain(epsilon)}",
        proven=f"ε {plain(epsilon)}",
        attacked=reached,
        says="per photo, for the index; smaller is safer",
        bar=budget_of(workbench, data_set),
        note=note,
        line="Nothing leaves while you search",
    )
