"""Tags: a tagger is trained once on the photos that the owner labelled; after that every answer is
exact and free.
"""

from __future__ import annotations

import csv
import io
import threading
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from blindsight.app.library.accounts import require_agreement
from blindsight.app.library.datasets import DataSet, DataSets
from blindsight.app.library.tags import (
    MIN_LABELLED,
    PUBLISH_EPSILONS,
    TRAINING_EPSILON,
    chances_of,
    keep_labels,
    labels_of,
    learn_tags,
    learning_forecast,
    names_digest,
    plain_cell,
    publish_data_set_tags,
    quality_of,
    start_from_words,
)
from blindsight.workbench.infra.access import DataSetId, Owner, Parts, Workbench, scanned
from blindsight.workbench.infra.jobs import JobContext
from blindsight.workbench.infra.problems import Problem, documented
from blindsight.workbench.infra.shell import TrustStrip, plain, render
from blindsight.workbench.pages.home import budget_of, chosen, reached
from blindsight.workbench.pages.protect import Next

__all__ = ["names_to_confirm", "require_confirmed", "router", "run"]

router = APIRouter(tags=["tags"])
_PAGE = 12
_writing = threading.Lock()


class Tag(BaseModel):
    """A label of a photo, set by the owner (`own`) or by the model with a probability (`sure`)."""

    name: str
    on: bool
    own: bool
    sure: float


class Tagged(BaseModel):
    """A photo and its tags."""

    id: str
    name: str
    tags: list[Tag]


class Shown(BaseModel):
    """A page of photos with their tags, the least certain first."""

    photos: list[Tagged]
    names: list[str]
    total: int
    labelled: int


class TagChange(BaseModel):
    """A label that is added to a photo or removed."""

    model_config = ConfigDict(extra="forbid")
    photo: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    # Folder names are the first tags, so a tag may be as long as a folder's name.
    tag: Annotated[str, Field(min_length=1, max_length=255)]
    on: bool


class Publish(BaseModel):
    """The confirmation that a release cannot be recalled, and its epsilon per photo."""

    model_config = ConfigDict(extra="forbid")
    sure: Literal[True]
    epsilon: float = PUBLISH_EPSILONS[0]


class Names(BaseModel):
    """The names of all labels, separated by commas."""

    model_config = ConfigDict(extra="forbid")
    names: Annotated[str, Field(max_length=2000)]


class Confirmation(BaseModel):
    """The confirmation that everybody who gets the model may read these label names."""

    model_config = ConfigDict(extra="forbid")
    shown: Annotated[str, Field(max_length=64, description="The digest of the names shown.")]
    page: Literal["tags", "send", "together"] = "tags"


@router.get("/tags", include_in_schema=False)
async def page(request: Request, workbench: Parts, dataset: str | None = None) -> Response:
    return await workbench.ledger_lane.run(_page, request, workbench, dataset)


@router.get(
    "/api/tags/{dataset}",
    summary="Photos and their tags",
    responses=documented("not_found", "conflict"),
)
def shown(
    dataset: DataSetId,
    workbench: Parts,
    asker: Owner,
    start: Annotated[
        int, Query(ge=0, le=100_000, description="The position of the first photo.")
    ] = 0,
) -> Shown:
    """Exact tags for the owner, which are never charged."""
    data_set = scanned(workbench, dataset)
    labels, chances = (
        labels_of(workbench.datasets, data_set),
        chances_of(workbench.datasets, data_set),
    )
    photos = workbench.datasets.photos(data_set)
    photos.sort(key=lambda photo: (photo.id in labels["given"], _certainty(chances.get(photo.id))))
    page = [
        Tagged(id=photo.id, name=photo.name, tags=_tags(labels, chances, photo.id))
        for photo in photos[start : start + _PAGE]
    ]
    labelled = len(labels["given"])
    return Shown(photos=page, names=labels["names"], total=len(photos), labelled=labelled)


@router.post(
    "/api/tags/{dataset}", summary="Correct a tag", responses=documented("not_found", "conflict")
)
def change(dataset: DataSetId, order: TagChange, workbench: Parts, asker: Owner) -> Tagged:
    """The correction is stored in the vault; the model changes only when it is trained again."""
    data_set = scanned(workbench, dataset)
    photo = next((p for p in workbench.datasets.photos(data_set) if p.id == order.photo), None)
    with _writing:
        labels = labels_of(workbench.datasets, data_set)
        if photo is None or order.tag not in labels["names"]:
            raise Problem("not_found")
        chances = chances_of(workbench.datasets, data_set)
        on = {tag.name for tag in _tags(labels, chances, photo.id) if tag.on}
        on = on | {order.tag} if order.on else on - {order.tag}
        labels["given"][photo.id] = sorted(on)
        keep_labels(workbench.datasets, data_set, labels)
    return Tagged(id=photo.id, name=photo.name, tags=_tags(labels, chances, photo.id))


@router.post(
    "/api/tags/{dataset}/names",
    summary="Set the labels",
    responses=documented("not_found", "conflict"),
)
def set_names(dataset: DataSetId, order: Names, workbench: Parts, asker: Owner) -> Next:
    """The model file contains the names, so they are public; choose them without the photos."""
    data_set = scanned(workbench, dataset)
    names = list(
        dict.fromkeys(
            " ".join(part.split())[:255] for part in order.names.split(",") if part.strip()
        )
    )[:60]
    if len(names) < 2 or not all(name.isprintable() for name in names):
        raise Problem("invalid")
    with _writing:
        labels = labels_of(workbench.datasets, data_set)
        labels["names"], labels["confirmed"] = names, True
        labels["given"] = {
            photo: [t for t in tags if t in names] for photo, tags in labels["given"].items()
        }
        keep_labels(workbench.datasets, data_set, labels)
    return Next(next=f"/tags?dataset={data_set.id}")


@router.post(
    "/api/tags/{dataset}/confirm",
    summary="Agree to share the label names",
    responses=documented("not_found", "conflict"),
)
def confirm(dataset: DataSetId, order: Confirmation, workbench: Parts, asker: Owner) -> Next:
    """Names that come from folders are shared only after somebody has confirmed them."""
    data_set = scanned(workbench, dataset)
    with _writing:
        labels = labels_of(workbench.datasets, data_set)
        if order.shown != names_digest(labels["names"]):
            raise Problem("conflict")
        keep_labels(workbench.datasets, data_set, labels | {"confirmed": True})
    word = "?new=true&dataset=" if order.page == "together" else "?dataset="
    return Next(next=f"/{order.page}{word}{data_set.id}")


@router.post(
    "/api/tags/{dataset}/learn",
    status_code=202,
    summary="Learn the labels",
    responses=documented(
        "not_found", "names_unconfirmed", "busy", "budget", "rolled_back", "needs_torch"
    ),
)
def learn(dataset: DataSetId, workbench: Parts, asker: Owner) -> Next:
    """The cost per labelled photo is charged once, before training."""
    data_set = scanned(workbench, dataset)
    labels = labels_of(workbench.datasets, data_set)
    if len(labels["given"]) < MIN_LABELLED:
        raise Problem("conflict")
    require_confirmed(labels)
    require_agreement(workbench.datasets, data_set, workbench.ledger(data_set))
    if budget_of(workbench, data_set).left < data_set.price(TRAINING_EPSILON):
        raise Problem("budget")
    job = workbench.jobs.add("tags", {"dataset": data_set.id}, asker.name)
    return Next(next=f"/tags?dataset={data_set.id}", job=job["id"])


@router.post(
    "/api/tags/{dataset}/words",
    status_code=202,
    summary="Start from the label names alone",
    responses=documented("not_found", "conflict", "busy"),
)
def start_words(dataset: DataSetId, workbench: Parts, asker: Owner) -> Next:
    """The model uses public knowledge about the words and none of the photos, so nothing is
    charged.
    """
    data_set = scanned(workbench, dataset)
    labels = labels_of(workbench.datasets, data_set)
    if len(labels["names"]) < 2 or data_set.features.startswith("pixels"):
        raise Problem("conflict")
    require_confirmed(labels)
    job = workbench.jobs.add("tags", {"dataset": data_set.id, "step": "words"}, asker.name)
    return Next(next=f"/tags?dataset={data_set.id}", job=job["id"])


@router.post(
    "/api/tags/{dataset}/publish",
    status_code=202,
    summary="Publish tags of each photo",
    responses=documented("not_found", "conflict", "not_worth_it", "busy", "budget", "rolled_back"),
)
def publish(dataset: DataSetId, order: Publish, workbench: Parts, asker: Owner) -> Next:
    """Noisy tags of each photo under random numbers; charged once per photo."""
    data_set = scanned(workbench, dataset)
    quality = quality_of(workbench.datasets, data_set)
    if order.epsilon not in PUBLISH_EPSILONS:
        raise Problem("invalid")
    if quality is None:
        raise Problem("conflict")
    if not any(o["worth"] for o in quality["offers"] if o["epsilon"] == order.epsilon):
        raise Problem("not_worth_it")
    require_agreement(workbench.datasets, data_set, workbench.ledger(data_set))
    if budget_of(workbench, data_set).left < data_set.price(order.epsilon):
        raise Problem("budget")
    arguments = {"dataset": data_set.id, "step": "publish", "epsilon": order.epsilon}
    job = workbench.jobs.add("tags", arguments, asker.name)
    return Next(next=f"/tags?dataset={data_set.id}", job=job["id"])


@router.get(
    "/api/tags/{dataset}/export.csv",
    summary="All tags, for the owner",
    response_class=Response,
    responses=documented("not_found", "conflict") | {200: {"content": {"text/csv": {}}}},
)
def export(dataset: DataSetId, workbench: Parts, asker: Owner) -> Response:
    """File names and exact tags, which are not protected and should not be shared."""
    data_set = scanned(workbench, dataset)
    labels, chances = (
        labels_of(workbench.datasets, data_set),
        chances_of(workbench.datasets, data_set),
    )
    sheet = io.StringIO()
    writer = csv.writer(sheet)
    writer.writerow(["photo", "tags", "given by you"])
    for photo in workbench.datasets.photos(data_set):
        on = [tag.name for tag in _tags(labels, chances, photo.id) if tag.on]
        writer.writerow(
            [
                plain_cell(photo.name),
                plain_cell("; ".join(on)),
                "yes" if photo.id in labels["given"] else "no",
            ]
        )
    headers = {"Content-Disposition": 'attachment; filename="tags-private.csv"'}
    return Response(sheet.getvalue(), media_type="text/csv", headers=headers)


def require_confirmed(labels: dict[str, Any]) -> None:
    """Raise `Problem` unless the owner has agreed to share the label names."""
    if not labels.get("confirmed"):
        raise Problem("names_unconfirmed")


def names_to_confirm(datasets: DataSets, data_set: DataSet) -> dict[str, Any] | None:
    """Return the label names that are not confirmed yet and their digest; None without any."""
    labels = labels_of(datasets, data_set)
    if labels.get("confirmed") or len(labels["names"]) < 2:
        return None
    return {"names": labels["names"], "shown": names_digest(labels["names"])}


def run(arguments: dict[str, Any], job: JobContext) -> dict[str, Any]:
    """Train, start from words, or publish; a repeated job gives the same result and is charged
    once.
    """
    datasets = DataSets(job.settings)
    data_set = datasets.get(arguments["dataset"])
    step = arguments.get("step", "learn")
    if step == "words":
        return start_from_words(datasets, data_set, job.progress)
    if step == "publish":
        epsilon = arguments.get("epsilon", PUBLISH_EPSILONS[0])
        return publish_data_set_tags(
            datasets, data_set, job.progress, epsilon=epsilon, actor=job.actor
        )
    return learn_tags(datasets, data_set, job.progress, actor=job.actor)


def _page(request: Request, workbench: Workbench, dataset: str | None) -> Response:
    context: dict[str, Any] = {"title": "Tags", "sets": [], "data_set": None}
    if request.state.identity is not None:
        sets, data_set = chosen(workbench, dataset)
        context |= {
            "sets": sets,
            "data_set": data_set,
            "least": MIN_LABELLED,
            "epsilon": TRAINING_EPSILON,
        }
        if data_set is not None:
            labels, quality = (
                labels_of(workbench.datasets, data_set),
                quality_of(workbench.datasets, data_set),
            )
            bar = budget_of(workbench, data_set)
            context |= {
                "names": labels["names"],
                "labelled": len(labels["given"]),
                "quality": quality,
                "bar": bar,
            }
            affordable = [
                offer
                for offer in (quality or {"offers": []})["offers"]
                if offer["worth"] and bar.left >= data_set.price(offer["epsilon"])
            ]
            context |= {"offers": affordable, "cheapest": PUBLISH_EPSILONS[0]}
            context["to_confirm"] = names_to_confirm(workbench.datasets, data_set)
            context["forecast"] = learning_forecast(workbench.datasets, data_set)
            context["out"] = [r for r in data_set.releases if r.kind == "published"]
            context["job"] = workbench.jobs.under_way("tags", dataset=data_set.id)
            context["strip"] = TrustStrip(
                leaves="The tag model, if you hand it over: one file with your label names.",
                stays="The photos, which photo has which tag, your corrections.",
                promised=f"ε {plain(quality['epsilon'])}" if quality else "nothing yet",
                proven=f"ε {plain(quality['epsilon'])}" if quality else "nothing yet",
                attacked=reached(data_set, "tags"),
                says="in total, per labelled photo; smaller is safer",
                bar=bar,
                note="Tagging spends nothing.",
            )
    return render(request, workbench, "tags.html", context)


def _tags(labels: dict[str, Any], chances: dict[str, dict[str, float]], photo: str) -> list[Tag]:
    thinks, chosen = chances.get(photo, {}), labels["given"].get(photo)
    tags = []
    for name in labels["names"]:
        sure = thinks.get(name, 0.0)
        if chosen is not None:
            tags.append(Tag(name=name, on=name in chosen, own=True, sure=sure))
        else:
            tags.append(Tag(name=name, on=sure > 0.5, own=False, sure=sure))
    return tags


def _certainty(thinks: dict[str, float] | None) -> float:
    return -1.0 if not thinks else min(abs(value - 0.5) for value in thinks.values())
