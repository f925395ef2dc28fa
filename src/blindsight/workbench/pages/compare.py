"""Compare: pairs of photos, two keys; a private way to compare is learned from the answers, and its
effect shown.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from blindsight.core.storage import write_atomically
from blindsight.privacy import Cost, Ledger
from blindsight.privacy.mechanisms.gaussian import gaussian_epsilon
from blindsight.workbench.infra.access import DataSetId, Owner, Parts, Workbench, scanned
from blindsight.workbench.infra.accounts import (
    ReleaseAccount,
    name_release,
    require_agreement,
    vault_of,
)
from blindsight.workbench.infra.datasets import DataSet, DataSets, Release, today
from blindsight.workbench.infra.jobs import JobContext
from blindsight.workbench.infra.problems import Problem, documented
from blindsight.workbench.infra.shell import Bar, Strip, bar_of, plain, render
from blindsight.workbench.pages.home import chosen, reached
from blindsight.workbench.pages.photo_library import columns, points_of, rows_of
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
    responses=documented("not_found", "conflict", "busy", "budget", "rolled_back"),
)
def learn(dataset: DataSetId, workbench: Parts, asker: Owner) -> Next:
    """Charged once, per pair, per photo and per person, before anything is learned."""
    data_set = scanned(workbench, dataset, least=2)
    if len(_said(_answers(workbench.datasets, data_set))) < LEAST:
        raise Problem("conflict")
    require_agreement(
        workbench.datasets, data_set, workbench.budgets.named(data_set.account, create=True)
    )
    ledger, due = (
        workbench.budgets.named(data_set.account, create=True),
        {cost.unit: cost for cost in prices(data_set)},
    )
    left = {balance.unit: balance.remaining.epsilon for balance in ledger.balances()}
    if _bar(workbench, data_set).left < EPSILON or any(
        left.get(unit, math.inf) < cost.epsilon for unit, cost in due.items()
    ):
        raise Problem("budget")
    job = workbench.jobs.add("compare", {"dataset": data_set.id}, asker.name)
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
    ids = [photo.id for photo in datasets.photos(data_set)]
    chosen_pairs, answers = pairs[used], labels[used]
    vault = vault_of(datasets, data_set)
    number = vault.release_of(_training_text(ids, points, chosen_pairs, answers))
    release = _release(datasets, data_set, number, len(used))
    with Ledger(job.settings.ledger_place, dataset=data_set.account) as ledger:
        require_agreement(datasets, data_set, ledger)
        if not any(balance.unit == "pair" for balance in ledger.balances()):
            ledger.grant(_pair_budget(), what="budget for answers, set by you", actor=job.actor)
        account = ReleaseAccount(
            vault,
            ledger,
            number,
            sorted({ids[row] for pair in chosen_pairs for row in pair}),
            most=data_set.most,
            actor=job.actor,
            costs=lambda costs: _all_units(costs, persons=bool(data_set.most)),
        )
        # The noise is a function of the vault's key and of everything that is learned from: the
        # same answers again give the same file, and cost nothing more.
        metric = DPPMetric(
            epsilon=EPSILON,
            unit="pair",
            preprocessor=points,
            random_state=vault.training_source(number),
        )
        metric.fit(chosen_pairs, answers, ledger=account.as_ledger())
    folder = datasets.folder(release)
    costs = _all_units(metric.guarantee_.costs, persons=bool(data_set.most))
    name_release(datasets, data_set, release, number, costs)
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


def prices(data_set: DataSet) -> tuple[Cost, ...]:
    """What one learning costs per pair, per photo and per person, before anything is learned."""
    return _most_it_costs(bool(data_set.most))


@functools.cache
def _most_it_costs(persons: bool) -> tuple[Cost, ...]:
    from blindsight.metric import DPPMetric

    metric = DPPMetric(epsilon=EPSILON, unit="pair")
    groups = {"pair": 1, "record": MOST}
    guarantee = metric.promise(n_pairs=LEAST, n_features=_COLUMNS, groups=groups)
    return _all_units(guarantee.costs, persons=persons)


def _all_units(costs: Sequence[Cost], *, persons: bool) -> tuple[Cost, ...]:
    """A metric's stated costs in the units of the accounts.

    The estimator states what one pair costs, and what one photo costs that is added or removed. A
    photo that is replaced takes its pairs away and brings as many new ones, so it moves every sum
    twice as far. A person is in no more of the pairs than a photo may be (`MOST`), so a person
    costs the same.
    """
    (pair,) = (cost for cost in costs if cost.unit == "pair")
    (photo,) = (cost for cost in costs if cost.unit == "record")
    assert photo.rho is not None  # noqa: S101  (all noise of a metric is Gaussian)
    mu = 2 * math.sqrt(2 * photo.rho)
    replaced = replace(
        photo,
        epsilon=gaussian_epsilon(mu, photo.delta),
        neighbours="replace one",
        rho=mu * mu / 2,
    )
    person = (replace(replaced, unit="person"),) if persons else ()
    return (pair, replaced, *person)


def _pair_budget() -> Cost:
    (pair,) = (cost for cost in _most_it_costs(False) if cost.unit == "pair")
    return replace(pair, epsilon=BUDGET, delta=pair.delta * BUDGET / EPSILON, rho=None)


def _training_text(
    ids: list[str], points: NDArray[Any], pairs: NDArray[Any], labels: NDArray[Any]
) -> str:
    """Everything that is learned from, as text: other answers or photos are another release."""
    digest = hashlib.sha256(np.ascontiguousarray(points[np.unique(pairs)]).tobytes())
    answered = [[ids[a], ids[b], bool(same)] for (a, b), same in zip(pairs, labels, strict=True)]
    fields = {
        "learned": "way to compare",
        "epsilon": EPSILON,
        "columns": _COLUMNS,
        "answers": answered,
        "features": digest.hexdigest(),
    }
    return json.dumps(fields, sort_keys=True)


def _release(datasets: DataSets, data_set: DataSet, number: str, pairs: int) -> Release:
    """The release with this id: learned again from the same answers, it is the same one."""
    known = {release.id: release for release in datasets.get(data_set.id).releases}
    folder = datasets.named(data_set, "compare", EPSILON, number)
    return known.get(number[:12]) or Release(
        number[:12], "metric", folder, EPSILON, pairs, today(), False
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
