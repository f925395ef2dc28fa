"""Send: statistics of labelled photos with a proof, for others to train on; and the paper's
sketches, which have no proof, with what attackers recover from them.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from blindsight.app.library.accounts import require_agreement
from blindsight.app.library.datasets import DataSet, DataSets
from blindsight.app.library.sending import (
    SEND_EPSILON,
    SETTINGS,
    SIDES,
    SendingPlan,
    last_trial,
    release_statistics,
    sending_plan,
    try_sketches,
)
from blindsight.app.library.tags import labels_of
from blindsight.workbench.infra.access import DataSetId, Owner, Parts, Workbench, scanned
from blindsight.workbench.infra.jobs import JobContext
from blindsight.workbench.infra.problems import Problem, documented
from blindsight.workbench.infra.shell import TrustStrip, render
from blindsight.workbench.pages.home import budget_of, chosen
from blindsight.workbench.pages.protect import Next
from blindsight.workbench.pages.tags import names_to_confirm, require_confirmed

__all__ = ["ATTACKERS", "router", "run"]

router = APIRouter(tags=["send"])
# The names of the library's attackers on the page, and what they do.
ATTACKERS = {
    "posterior mean": ("Simple attacker", "averages the noise"),
    "smoothing": ("Smoothing attacker", "smooths neighbouring pixels"),
    "denoising": ("Denoising attacker", "knows the statistics of photos"),
    "second reading": ("Denoising twice", "repeats with its first result"),
    "network": ("Trained attacker", "a network trained on public pictures"),
}


class StatisticsOrder(BaseModel):
    """The epsilon of statistics per photo or per person and, if two sites train together, the
    number of photos of both.
    """

    model_config = ConfigDict(extra="forbid")
    epsilon: float
    together: Annotated[
        int | None,
        Field(
            ge=2,
            le=10_000_000,
            description="Photos of both sites together; the same number at both sites.",
        ),
    ] = None


@router.get("/send", include_in_schema=False)
async def page(
    request: Request,
    workbench: Parts,
    dataset: str | None = None,
    how: Annotated[Literal["coarse", "medium", "fine"], Query()] = "medium",
) -> Response:
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
    # Not a Literal: the values of a query are text, and "64" is not 64.
    side: Annotated[
        int, Query(ge=64, le=128, multiple_of=64, description="Pixels on a side of what is sent.")
    ] = 64,
) -> Next:
    """A few random photos are sketched and attacked; everything stays on this machine."""
    data_set = scanned(workbench, dataset, least=1)
    job = workbench.jobs.add("send", {"dataset": data_set.id, "side": side}, asker.name)
    return Next(next=f"/send?dataset={data_set.id}", job=job["id"])


@router.post(
    "/api/send/{dataset}/statistics",
    status_code=202,
    summary="Release statistics of labelled photos",
    responses=documented(
        "not_found", "conflict", "too_few_to_learn", "busy", "budget", "rolled_back"
    ),
)
def statistics(
    dataset: DataSetId, workbench: Parts, asker: Owner, order: StatisticsOrder | None = None
) -> Next:
    """Noisy sums over the photos that have exactly one class; charged once per photo."""
    data_set = scanned(workbench, dataset)
    order = order or StatisticsOrder(epsilon=SEND_EPSILON)
    epsilon = order.epsilon
    plan = sending_plan(workbench.datasets, data_set, together=order.together)
    if plan.forecasts and epsilon not in plan.forecasts:
        raise Problem("invalid")
    if not plan.forecasts:
        raise Problem("conflict")
    if plan.forecasts[epsilon].refused:
        raise Problem("too_few_to_learn")
    require_confirmed(labels_of(workbench.datasets, data_set))
    require_agreement(workbench.datasets, data_set, workbench.ledger(data_set))
    if budget_of(workbench, data_set).left < epsilon:
        raise Problem("budget")
    arguments = {"dataset": data_set.id, "step": "statistics", **order.model_dump()}
    job = workbench.jobs.add("send", arguments, asker.name)
    page = "send?" if order.together is None else "together?new=true&"
    return Next(next=f"/{page}dataset={data_set.id}", job=job["id"])


def run(arguments: dict[str, Any], job: JobContext) -> dict[str, Any]:
    """Release statistics, or sketch a few photos at three settings and attack the sketches."""
    datasets = DataSets(job.settings)
    data_set = datasets.get(arguments["dataset"])
    if arguments.get("step") == "statistics":
        return release_statistics(
            datasets,
            data_set,
            job.progress,
            epsilon=arguments.get("epsilon"),
            together=arguments.get("together"),
            actor=job.actor,
        )
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
            trial = last_trial(workbench.datasets, data_set)
            context["job"] = workbench.jobs.under_way("send", dataset=data_set.id)
            setting = trial[how] if trial else None
            attackers = {
                name: words
                for name, words in ATTACKERS.items()
                if setting and name in setting["back"]
            }
            context |= {"trial": trial, "setting": setting}
            context |= {"attackers": attackers, "sides": SIDES}
            plan = sending_plan(workbench.datasets, data_set)
            remaining = budget_of(workbench, data_set).left
            context |= {"plan": plan, "rows": _rows(plan, remaining), "remaining": remaining}
            context["to_confirm"] = names_to_confirm(workbench.datasets, data_set)
            context["strip"] = _strip(workbench, data_set, trial, how)
    return render(request, workbench, "send.html", context)


def _rows(plan: SendingPlan, remaining: float) -> list[dict[str, Any]]:
    """Return a row for each epsilon: the expected accuracy of the receiver's model, and the proven
    limit of what strangers can find out, both from public numbers.
    """
    usable = [
        e for e, expected in plan.forecasts.items() if not expected.refused and e <= remaining
    ]
    best = SEND_EPSILON if SEND_EPSILON in usable else next(iter(usable), None)
    return [
        {
            "epsilon": epsilon,
            "expected": expected,
            "right": round(100 * expected.accuracy),
            # The accuracy of the best test that epsilon allows of which of two photos was used.
            "told": min(100, math.ceil(100 / (1 + math.exp(-epsilon)))),
            "usable": epsilon in usable,
            "best": epsilon == best,
        }
        for epsilon, expected in plan.forecasts.items()
    ]


def _strip(
    workbench: Workbench, data_set: DataSet, trial: dict[str, Any] | None, how: str
) -> TrustStrip:
    recognised = f"{trial[how]['recognised']} of {trial['tried']}" if trial else "not yet"
    return TrustStrip(
        leaves="Statistics: sums over all labelled photos, with noise. Or one sketch per photo.",
        stays="The photos, names, dates.",
        promised="the ε you choose",
        proven="the ε you choose",
        attacked=recognised,
        says="photos of yours, of their sketches, by the best attacker below; fewer is safer",
        bar=budget_of(workbench, data_set),
        note=f"The ε above, per {data_set.unit}, is for statistics. "
        "Sketches carry no privacy guarantee.",
        attacked_word="found again by attack",
    )
