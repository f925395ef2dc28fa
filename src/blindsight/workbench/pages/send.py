"""Send: statistics of labelled photos with a proof, for somebody who wants to train on them; and
the paper's sketches, which have none, beside what every attacker gets back of them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from blindsight.app.library.accounts import require_agreement
from blindsight.app.library.datasets import DataSet, DataSets
from blindsight.app.library.sending import (
    SEND_EPSILON,
    SETTINGS,
    SIDES,
    last_trial,
    release_statistics,
    sending_plan,
    try_sketches,
)
from blindsight.workbench.infra.access import DataSetId, Owner, Parts, Workbench, scanned
from blindsight.workbench.infra.jobs import JobContext
from blindsight.workbench.infra.problems import Problem, documented
from blindsight.workbench.infra.shell import Strip, render
from blindsight.workbench.pages.home import budget_of, chosen
from blindsight.workbench.pages.protect import Next

__all__ = ["ATTACKERS", "router", "run"]

router = APIRouter(tags=["send"])
# The library's attackers, as a reader meets them: who, and what they know.
ATTACKERS = {
    "posterior mean": ("Anybody, in a minute", "evens out the noise"),
    "smoothing": ("A patient attacker", "smooths"),
    "denoising": ("A clever attacker", "knows what photos are made of"),
    "second reading": ("The same, reading twice", "asks again with what it found"),
    "network": ("A trained attacker", "a network that saw public pictures"),
}


@router.get("/send", include_in_schema=False)
async def page(
    request: Request,
    workbench: Parts,
    dataset: str | None = None,
    how: Annotated[Literal["coarse", "medium", "fine"], Query()] = "medium",
) -> Response:
    """Looking sends nothing."""
    return await workbench.ledger_lane.run(_page, request, workbench, dataset, how)


@router.post(
    "/api/send/{dataset}/try",
    status_code=202,
    summary="Sketch and attack",
    responses=documented("not_found", "busy"),
)
def attempt(
    dataset: DataSetId,
    workbench: Parts,
    asker: Owner,
    # Not a Literal: a query's words are text, and "64" is not 64.
    side: Annotated[
        int, Query(ge=64, le=128, multiple_of=64, description="Pixels on a side of what is sent.")
    ] = 64,
) -> Next:
    """A few photos, picked at random; everything stays here."""
    data_set = scanned(workbench, dataset, least=1)
    job = workbench.jobs.add("send", {"dataset": data_set.id, "side": side}, asker.name)
    return Next(next=f"/send?dataset={data_set.id}", job=job["id"])


@router.post(
    "/api/send/{dataset}/statistics",
    status_code=202,
    summary="Release statistics of labelled photos",
    responses=documented("not_found", "conflict", "busy", "budget", "rolled_back"),
)
def statistics(dataset: DataSetId, workbench: Parts, asker: Owner) -> Next:
    """Sums over all photos with one class each, with noise; charged per photo, once."""
    data_set = scanned(workbench, dataset)
    plan = sending_plan(workbench.datasets, data_set)
    if plan.forecast is None or plan.forecast.refused:
        raise Problem("conflict")
    require_agreement(
        workbench.datasets, data_set, workbench.budgets.named(data_set.account, create=True)
    )
    if budget_of(workbench, data_set).left < SEND_EPSILON:
        raise Problem("budget")
    arguments = {"dataset": data_set.id, "step": "statistics"}
    job = workbench.jobs.add("send", arguments, asker.name)
    return Next(next=f"/send?dataset={data_set.id}", job=job["id"])


def run(arguments: dict[str, Any], job: JobContext) -> dict[str, Any]:
    """Release statistics; or sketch a few photos at three settings, and attack the sketches."""
    datasets = DataSets(job.settings)
    data_set = datasets.get(arguments["dataset"])
    if arguments.get("step") == "statistics":
        return release_statistics(datasets, data_set, job.progress, actor=job.actor)
    side = int(arguments.get("side", SIDES[0]))
    return try_sketches(datasets, data_set, job.progress, side=side)


def _page(request: Request, workbench: Workbench, dataset: str | None, how: str) -> Response:
    context: dict[str, Any] = {
        "title": "Send",
        "sets": [],
        "data_set": None,
        "how": how,
        "settings": SETTINGS,
    }
    if request.state.identity is not None:
        sets, data_set = chosen(workbench, dataset)
        context |= {"sets": sets, "data_set": data_set}
        if data_set is not None:
            found = last_trial(workbench.datasets, data_set)
            context["job"] = workbench.jobs.under_way("send", dataset=data_set.id)
            shown = found[how] if found else None
            who = {
                name: words for name, words in ATTACKERS.items() if shown and name in shown["back"]
            }
            context |= {"found": found, "shown": shown, "attackers": who, "sides": SIDES}
            context["plan"] = sending_plan(workbench.datasets, data_set)
            context["send_epsilon"] = SEND_EPSILON
            context["strip"] = _strip(workbench, data_set, found, how)
    return render(request, workbench, "send.html", context)


def _strip(
    workbench: Workbench, data_set: DataSet, found: dict[str, Any] | None, how: str
) -> Strip:
    known = f"{found[how]['recognised']} of {found['tried']}" if found else "not yet"
    return Strip(
        leaves="Statistics: sums over all labelled photos, with noise. Or one sketch per photo.",
        stays="The photos, names, dates.",
        promised=f"ε {SEND_EPSILON:g}",
        proven=f"ε {SEND_EPSILON:g}",
        attacked=known,
        says="photos of yours, of their sketches, by the best attacker below; fewer is safer",
        bar=budget_of(workbench, data_set),
        note=f"ε {SEND_EPSILON:g} per {data_set.unit} is for statistics. "
        "Sketches carry no privacy guarantee.",
        attacked_word="found again by attack",
    )
