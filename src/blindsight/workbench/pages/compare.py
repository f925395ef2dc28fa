"""Compare: pairs of photos, two keys; a private way to compare is learned from the answers, and its
effect shown.
"""

from __future__ import annotations

import functools
import json
import math
import secrets
import threading
from collections import Counter
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from blindsight.core.storage import write_atomically
from blindsight.privacy import Cost, Ledger
from blindsight.privacy.cost import Unit
from blindsight.workbench.infra.access import DataSetId, Owner, Parts, Workbench, scanned
from blindsight.workbench.infra.datasets import DataSet, DataSets, Release, today
from blindsight.workbench.infra.jobs import JobContext
from blindsight.workbench.infra.problems import Problem, documented
from blindsight.workbench.infra.shell import Bar, Strip, bar_of, plain, render
from blindsight.workbench.pages.home import chosen, reached
from blindsight.workbench.pages.photo_library import columns, paid, points_of, rows_of, vault_of
from blindsight.workbench.pages.protect import Next

__all__ = ["prices", "router", "run"]

router = APIRouter(tags=["compare"])
EPSILON, BUDGET = 1.0, 6.0
LEAST, WANTED = 40, 200
# answers about one photo that are learned from, or about one person where persons are protected
MOST = 3
_COLUMNS = 12
_writing = threading.Lock()


class Pair(BaseModel):
    """Two photos to compare, and how far the answers are."""

    one: str
    other: str
    answered: int
    same: int
    different: int
    unsure: int


class Answer(BaseModel):
    """The owner's word on a pair; `undo` takes the last one back."""

    model_config = ConfigDict(extra="forbid")
    one: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    other: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    says: Literal["same", "different", "unsure", "undo"]


@router.get("/compare", include_in_schema=False)
async def page(request: Request, workbench: Parts, dataset: str | None = None) -> Response:
    """Answering is free; learning has a price."""
    return await workbench.ledger_lane.run(_page, request, workbench, dataset)


@router.get(
    "/api/compare/{dataset}", summary="The next pair", responses=documented("not_found", "conflict")
)
def next_pair(dataset: DataSetId, workbench: Parts, asker: Owner) -> Pair:
    """Half of them near each other by the network, half at random."""
    return _next(workbench.datasets, scanned(workbench, dataset, least=2))


@router.post(
    "/api/compare/{dataset}", summary="Answer a pair", responses=documented("not_found", "conflict")
)
def answer(dataset: DataSetId, order: Answer, workbench: Parts, asker: Owner) -> Pair:
    """Kept in the vault; nothing leaves."""
    data_set = scanned(workbench, dataset, least=2)
    known = {photo.id for photo in workbench.datasets.photos(data_set)}
    if not {order.one, order.other} <= known or order.one == order.other:
        raise Problem("not_found")
    with _writing:
        answers = _answers(workbench.datasets, data_set)
        if order.says == "undo":
            answers = answers[:-1]
        else:
            answers.append([order.one, order.other, order.says])
        write_atomically(
            workbench.datasets.vault(data_set) / "pairs.json", json.dumps(answers).encode()
        )
    return _next(workbench.datasets, data_set)


@router.post(
    "/api/compare/{dataset}/learn",
    status_code=202,
    summary="Learn from the answers",
    responses=documented("not_found", "conflict", "busy", "budget"),
)
def learn(dataset: DataSetId, workbench: Parts, asker: Owner) -> Next:
    """Charged once, per pair, per photo and per person, before anything is learned."""
    data_set = scanned(workbench, dataset, least=2)
    if len(_said(_answers(workbench.datasets, data_set))) < LEAST:
        raise Problem("conflict")
    ledger, due = (
        workbench.budgets.named(data_set.account, create=True),
        {cost.unit: cost for cost in prices(data_set)},
    )
    left = {balance.unit: balance.remaining.epsilon for balance in ledger.balances()}
    if _bar(workbench, data_set).left < EPSILON or any(
        left.get(unit, math.inf) < cost.epsilon for unit, cost in due.items()
    ):
        raise Problem("budget")
    order = {"dataset": data_set.id, "release": secrets.token_hex(6)}
    job = workbench.jobs.add("compare", order, asker.name)
    return Next(next=f"/compare?dataset={data_set.id}", job=job["id"])


def run(arguments: dict[str, Any], job: JobContext) -> dict[str, Any]:
    """Learn with a fifth of the pairs kept aside, and see how often the answers to those are met,
    before and after.
    """
    from blindsight.metric import DPPMetric

    datasets = DataSets(job.settings)
    data_set = datasets.get(arguments["dataset"])
    job.say(0, 3, "reading your answers")
    where = {photo.id: i for i, photo in enumerate(datasets.photos(data_set))}
    said = _said(_answers(datasets, data_set))
    pairs = np.array([[where[a], where[b]] for a, b, _ in said if a in where and b in where])
    labels = np.array([word == "same" for a, b, word in said if a in where and b in where])
    points = columns(rows_of(datasets, data_set), _COLUMNS)
    aside = np.random.default_rng(len(pairs)).permutation(len(pairs))
    held, used = aside[: len(aside) // 5], aside[len(aside) // 5 :]
    used = used[_few(pairs[used], _owners(datasets, data_set))]
    job.say(1, 3, "learning, with noise for each pair")
    metric = DPPMetric(epsilon=EPSILON, unit="pair", preprocessor=points)
    with Ledger(job.settings.ledger_place, dataset=data_set.account) as ledger:
        if not any(balance.unit == "pair" for balance in ledger.balances()):
            ledger.grant(_price(BUDGET), what="budget for answers, set by you")
        # Under the release's own number: run again after a crash, it is paid already.
        ledger.charge(prices(data_set), what="way to compare", key=arguments["release"])
    release = Release(
        arguments["release"],
        "metric",
        datasets.named(data_set, "compare", EPSILON, arguments["release"]),
        EPSILON,
        len(used),
        today(),
        False,
    )
    folder = datasets.folder(release)
    if (
        folder / "metric.safetensors"
    ).exists():  # made before a crash: a second one would be a second release
        metric = DPPMetric.load(folder / "metric.safetensors")
    else:
        with paid():
            metric.fit(pairs[used], labels[used])
        folder.mkdir(parents=True, exist_ok=True)
        metric.save(folder / "metric.safetensors")
    job.say(2, 3, "comparing before and after")
    (folder / "card.txt").write_text(metric.guarantee_.card() + "\n", encoding="utf-8")
    datasets.keep_release(data_set, release)
    after = np.asarray(metric.transform(points))
    found = {
        "pairs": len(used),
        "held": len(held),
        "before": _met(points, pairs[used], labels[used], pairs[held], labels[held]),
        "after": _met(after, pairs[used], labels[used], pairs[held], labels[held]),
        "when": today(),
        "film": _film([photo.id for photo in datasets.photos(data_set)], points, after),
    }
    write_atomically(datasets.vault(data_set) / "compared.json", json.dumps(found).encode())
    return found


def _price(epsilon: float) -> Cost:
    return Cost(
        epsilon=epsilon, delta=1e-5 * epsilon / EPSILON, unit="pair", neighbours="add or remove one"
    )


def prices(data_set: DataSet) -> tuple[Cost, ...]:
    """What one learning costs per pair, and per photo and person: replaced, they take pairs away
    and bring new ones.
    """
    units: tuple[Unit, ...] = ("record", "person") if data_set.most else ("record",)
    return (_price(EPSILON), *(replace(_six_pairs(), unit=unit) for unit in units))


@functools.cache
def _six_pairs() -> Cost:
    from blindsight.metric import DPPMetric

    groups = {"pair": 1, "record": 2 * MOST}
    metric = DPPMetric(epsilon=EPSILON, unit="pair")
    (cost,) = metric.promise(n_pairs=LEAST, n_features=_COLUMNS, groups=groups, named=True).also
    return replace(
        cost, epsilon=math.ceil(100 * cost.epsilon) / 100, neighbours="replace one", rho=None
    )


def _owners(datasets: DataSets, data_set: DataSet) -> list[set[str]]:
    """Who is protected on each photo: its persons, or the photo itself."""
    if not data_set.most:
        return [{photo.id} for photo in datasets.photos(data_set)]
    persons: dict[str, set[str]] = {}
    for photo in vault_of(datasets, data_set).photos().values():
        persons.setdefault(photo.record, set()).add(photo.person)
    return [persons[photo.id] for photo in datasets.photos(data_set)]


def _few(pairs: NDArray[Any], owners: list[set[str]]) -> list[int]:
    """The pairs, in their order, that leave each owner in at most `MOST` of them: who is in which
    pair is public.
    """
    counts: Counter[str] = Counter()
    kept = []
    for row, (a, b) in enumerate(pairs):
        who = owners[a] | owners[b]
        if all(counts[name] < MOST for name in who):
            counts.update(who)
            kept.append(row)
    return kept


def _met(space: Any, pairs: Any, labels: Any, held: Any, truth: Any) -> int:
    """How many held pairs fall on the right side of the distance that separates the others best."""

    def far(rows: Any) -> NDArray[np.float64]:
        return np.asarray(np.linalg.norm(space[rows[:, 0]] - space[rows[:, 1]], axis=1))

    known = far(pairs)
    cuts = np.quantile(known, np.linspace(0, 1, 51))
    best = max(cuts, key=lambda cut: np.mean((known <= cut) == labels))
    return int(np.sum((far(held) <= best) == truth))


def _film(ids: list[str], before: NDArray[Any], after: NDArray[Any]) -> dict[str, Any]:
    """The ten nearest to one photo, drawn at random, by the network and by what was learned."""
    asked = int(np.random.default_rng().integers(len(ids)))

    def nearest(space: NDArray[Any]) -> list[str]:
        far = np.linalg.norm(space - space[asked], axis=1)
        far[asked] = np.inf
        return [ids[i] for i in np.argsort(far)[:10]]

    return {"asked": ids[asked], "before": nearest(before), "after": nearest(after)}


def _page(request: Request, workbench: Workbench, dataset: str | None) -> Response:
    context: dict[str, Any] = {"title": "Compare", "sets": [], "data_set": None}
    if request.state.identity is not None:
        sets, data_set = chosen(workbench, dataset)
        context |= {
            "sets": sets,
            "data_set": data_set,
            "least": LEAST,
            "wanted": WANTED,
            "epsilon": EPSILON,
        }
        if data_set is not None:
            bar, path = (
                _bar(workbench, data_set),
                workbench.datasets.vault(data_set) / "compared.json",
            )
            context["job"] = workbench.jobs.under_way("compare", dataset=data_set.id)
            context["last"] = json.loads(path.read_bytes()) if path.exists() else None
            context |= {"each": prices(data_set)[-1].epsilon, "most": MOST, "who": data_set.unit}
            context["bar"] = bar
            context["strip"] = Strip(
                leaves="After learning: one table of weights. Never a pair, never a photo.",
                stays="The photos and every answer you give.",
                promised=f"ε {plain(EPSILON)}",
                proven=f"ε {plain(EPSILON)}",
                attacked=reached(data_set, "metric"),
                says="per answered pair, for one learning; smaller is safer",
                bar=bar,
                note="Answering is free; learning costs "
                f"{plain(EPSILON)} per pair and {plain(context['each'])} per {data_set.unit}.",
            )
    return render(request, workbench, "compare.html", context)


def _bar(workbench: Workbench, data_set: DataSet) -> Bar:
    ledger = workbench.budgets.named(data_set.account, create=True)
    if not any(balance.unit == "pair" for balance in ledger.balances()):
        return Bar(BUDGET, 0.0, "pair")
    return bar_of(ledger.balance("pair"))


def _answers(datasets: DataSets, data_set: DataSet) -> list[list[str]]:
    path = datasets.vault(data_set) / "pairs.json"
    return json.loads(path.read_bytes()) if path.exists() else []


def _said(answers: list[list[str]]) -> list[list[str]]:
    return [row for row in answers if row[2] != "unsure"]


def _next(datasets: DataSets, data_set: DataSet) -> Pair:
    photos, answers = datasets.photos(data_set), _answers(datasets, data_set)
    done = {frozenset(row[:2]) for row in answers}
    rng = np.random.default_rng()
    rows = points_of(datasets, data_set)
    first = second = 0
    for _ in range(40):
        first, second = (int(row) for row in rng.integers(len(photos), size=2))
        if rng.random() < 0.5:  # near by the network: those answers teach most
            alike = rows @ rows[first]
            alike[first] = -np.inf
            second = int(rng.choice(np.argsort(-alike)[:10]))
        if first != second and frozenset((photos[first].id, photos[second].id)) not in done:
            break
    if first == second:
        second = (first + 1) % len(photos)
    words = [row[2] for row in answers]
    return Pair(
        one=photos[first].id,
        other=photos[second].id,
        answered=len(words),
        same=words.count("same"),
        different=words.count("different"),
        unsure=words.count("unsure"),
    )
