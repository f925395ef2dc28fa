"""Compare: the owner answers whether pairs of photos show the same. A threshold with private error
rates is learned from the answers, and decides about every other pair.
"""

from __future__ import annotations

import threading
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from blindsight.app.library.accounts import require_agreement
from blindsight.app.library.datasets import DataSet, DataSets
from blindsight.app.library.pairs import (
    GOOD_ANSWERS,
    MAX_ANSWERS_EACH,
    MIN_ANSWERS,
    PAIR_BUDGET,
    PAIR_EPSILON,
    PAIR_UNIT,
    affordable,
    answer_for,
    answers_of,
    decided,
    keep_answers,
    last_comparison,
    learn_to_compare,
    next_question,
    prices,
    strictness,
)
from blindsight.workbench.infra.access import DataSetId, Owner, Parts, Workbench, scanned
from blindsight.workbench.infra.jobs import JobContext
from blindsight.workbench.infra.problems import Problem, documented
from blindsight.workbench.infra.shell import Bar, TrustStrip, bar_of, plain, price_of, render
from blindsight.workbench.pages.home import budget_of, chosen, reached
from blindsight.workbench.pages.protect import Next

__all__ = ["router", "run"]

router = APIRouter(tags=["compare"])
_writing = threading.Lock()


# The names of the operating points on the page.
_STRICTNESS = {
    "few wrong same": "Few false matches",
    "balanced": "Balanced",
    "few wrong different": "Few misses",
}
#: Names of `OPERATING_POINTS`.
Point = Literal["balanced", "few wrong same", "few wrong different"]


class Pair(BaseModel):
    """Two photos to compare, the answer of the last threshold, and the number of answers so far."""

    one: str
    other: str
    distance: float
    says: str | None
    answered: int
    same: int
    different: int
    unsure: int


PhotoId = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]


class PairAnswer(BaseModel):
    """The owner's answer to a pair; "undo" removes the last answer."""

    model_config = ConfigDict(extra="forbid")
    one: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    other: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    says: Literal["same", "different", "unsure", "undo"]
    point: Point = "balanced"


class Says(BaseModel):
    """The distance of two photos, and an answer such as "same, wrong in about 5 of 100"."""

    distance: float
    says: str | None


@router.get("/compare", include_in_schema=False)
async def page(request: Request, workbench: Parts, dataset: str | None = None) -> Response:
    return await workbench.ledger_lane.run(_page, request, workbench, dataset)


@router.get(
    "/api/compare/{dataset}", summary="The next pair", responses=documented("not_found", "conflict")
)
def next_pair(
    dataset: DataSetId, workbench: Parts, asker: Owner, point: Point = "balanced"
) -> Pair:
    """Half of the pairs are near each other by their features, half are random."""
    return _next(workbench.datasets, scanned(workbench, dataset, least=2), point)


@router.get(
    "/api/compare/{dataset}/{first}/{second}",
    summary="Same or different",
    responses=documented("not_found", "conflict"),
)
def same_or_different(
    dataset: DataSetId,
    first: PhotoId,
    second: PhotoId,
    workbench: Parts,
    asker: Owner,
    point: Point = "balanced",
) -> Says:
    """The answer of the last threshold for two photos, and how often such answers are wrong."""
    data_set = scanned(workbench, dataset, least=2)
    ids = {photo.id for photo in workbench.datasets.photos(data_set)}
    if not {first, second} <= ids:
        raise Problem("not_found")
    verdict = answer_for(workbench.datasets, data_set, first, second, point)
    return Says(distance=verdict["distance"], says=verdict["answer"])


@router.post(
    "/api/compare/{dataset}", summary="Answer a pair", responses=documented("not_found", "conflict")
)
def answer(dataset: DataSetId, order: PairAnswer, workbench: Parts, asker: Owner) -> Pair:
    """The answer is stored in the vault; nothing leaves."""
    data_set = scanned(workbench, dataset, least=2)
    ids = {photo.id for photo in workbench.datasets.photos(data_set)}
    if not {order.one, order.other} <= ids or order.one == order.other:
        raise Problem("not_found")
    with _writing:
        answers = answers_of(workbench.datasets, data_set)
        if order.says == "undo":
            answers = answers[:-1]
        else:
            answers.append([order.one, order.other, order.says])
        keep_answers(workbench.datasets, data_set, answers)
    return _next(workbench.datasets, data_set, order.point)


@router.post(
    "/api/compare/{dataset}/learn",
    status_code=202,
    summary="Learn from the answers",
    responses=documented("not_found", "conflict", "busy", "budget", "rolled_back"),
)
def learn(dataset: DataSetId, workbench: Parts, asker: Owner) -> Next:
    """The cost per answer, per photo and per person is charged once, before learning."""
    data_set = scanned(workbench, dataset, least=2)
    if len(decided(answers_of(workbench.datasets, data_set))) < MIN_ANSWERS:
        raise Problem("conflict")
    ledger = workbench.ledger(data_set)
    require_agreement(workbench.datasets, data_set, ledger)
    if not affordable(data_set, ledger):
        raise Problem("budget")
    job = workbench.jobs.add("compare", {"dataset": data_set.id}, asker.name)
    return Next(next=f"/compare?dataset={data_set.id}", job=job["id"])


def run(arguments: dict[str, Any], job: JobContext) -> dict[str, Any]:
    """Learn a threshold from the answers, and measure it on held-out answers."""
    datasets = DataSets(job.settings)
    data_set = datasets.get(arguments["dataset"])
    return learn_to_compare(datasets, data_set, job.progress, actor=job.actor)


def _page(request: Request, workbench: Workbench, dataset: str | None) -> Response:
    context: dict[str, Any] = {"title": "Compare", "sets": [], "data_set": None}
    if request.state.identity is not None:
        sets, data_set = chosen(workbench, dataset)
        context |= {
            "sets": sets,
            "data_set": data_set,
            "least": MIN_ANSWERS,
            "wanted": GOOD_ANSWERS,
            "epsilon": PAIR_EPSILON,
        }
        if data_set is not None:
            bar = _bar(workbench, data_set)
            ledger = workbench.ledger(data_set)
            context["job"] = workbench.jobs.under_way("compare", dataset=data_set.id)
            context["last"] = last_comparison(workbench.datasets, data_set)
            offered, curve = strictness(workbench.datasets, data_set)
            context |= {
                "offered": [(_STRICTNESS[offer.point], offer) for offer in offered],
                "curve": curve,
                "each": price_of(prices(data_set)[-1].epsilon),
                "remaining": budget_of(workbench, data_set).left,
                "affordable": affordable(data_set, ledger),
                "most": MAX_ANSWERS_EACH,
                "unit": data_set.unit,
            }
            context["bar"] = bar
            context["strip"] = TrustStrip(
                leaves="After learning: counts of distances. Never a pair, never a photo.",
                stays="The photos and every answer you give.",
                promised=f"ε {plain(PAIR_EPSILON)}",
                proven=f"ε {plain(PAIR_EPSILON)}",
                attacked=reached(data_set, "metric"),
                says="per answer, for one learning; smaller is safer",
                bar=bar,
                note=f"Answering is free; learning costs {plain(PAIR_EPSILON)} per answer and "
                f"{context['each']} per {data_set.unit}.",
            )
    return render(request, workbench, "compare.html", context)


def _bar(workbench: Workbench, data_set: DataSet) -> Bar:
    ledger = workbench.ledger(data_set)
    if not any(balance.unit == PAIR_UNIT for balance in ledger.balances()):
        return Bar(PAIR_BUDGET, 0.0, "answer")
    return bar_of(ledger.balance(PAIR_UNIT))


def _next(datasets: DataSets, data_set: DataSet, point: str) -> Pair:
    first, second = next_question(datasets, data_set)
    words = [row[2] for row in answers_of(datasets, data_set)]
    verdict = answer_for(datasets, data_set, first, second, point)
    return Pair(
        one=first,
        other=second,
        distance=verdict["distance"],
        says=verdict["answer"],
        answered=len(words),
        same=words.count("same"),
        different=words.count("different"),
        unsure=words.count("unsure"),
    )
