"""Tags: labels of your own, learned once from photos that you labelled; after that every answer is exact and free."""

from __future__ import annotations

import csv
import io
import json
import math
import secrets
import threading
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from blindsight.core.storage import write_atomically
from blindsight.privacy import Cost, Ledger
from blindsight.service.infra.access import Owner, Parts, Studio
from blindsight.service.infra.datasets import DataSet, DataSets, Release, today
from blindsight.service.infra.jobs import JobContext
from blindsight.service.infra.problems import Problem, documented
from blindsight.service.infra.shell import Strip, plain, render
from blindsight.service.pages.home import budget_of, chosen
from blindsight.service.pages.photo_library import directions, paid, rows_of
from blindsight.service.pages.protect import Next

__all__ = ["router", "run"]

router = APIRouter(tags=["tags"])
DataSetId = Annotated[str, Path(pattern="^[0-9a-f]{12}$", description="A data set's number.")]
# What is paid about each labelled photo, counted as all releases here are: one photo replaced by another. Training is
# accounted for one photo more or less, of which a replacement is two steps.
EPSILON = 4.0
LEAST = 60
_DELTA = 1e-5
_PAGE = 12
_writing = threading.Lock()


class Tag(BaseModel):
    """A label on a photo: given by you, or what the model thinks, with how sure it is."""

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
    """A page of photos, the least certain first."""

    photos: list[Tagged]
    names: list[str]
    total: int
    labelled: int


class Change(BaseModel):
    """A label put on a photo or taken off."""

    model_config = ConfigDict(extra="forbid")
    photo: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    tag: Annotated[str, Field(min_length=1, max_length=40)]
    on: bool


class Names(BaseModel):
    """Labels, separated by commas."""

    model_config = ConfigDict(extra="forbid")
    names: Annotated[str, Field(max_length=2000)]


@router.get("/tags", include_in_schema=False)
async def page(request: Request, studio: Parts, dataset: str | None = None) -> Response:
    """Tagging spends nothing; learning has a price."""
    return await studio.ledger_lane.run(_page, request, studio, dataset)


@router.get("/api/tags/{dataset}", summary="Photos and their tags", responses=documented("not_found", "conflict"))
def shown(
    dataset: DataSetId,
    studio: Parts,
    asker: Owner,
    start: Annotated[int, Query(ge=0, le=100_000, description="From which on.")] = 0,
) -> Shown:
    """For the owner: exact, and never charged."""
    one = _scanned(studio, dataset)
    kept, known = _kept(studio.datasets, one), _thought(studio.datasets, one)
    photos = studio.datasets.photos(one)
    photos.sort(key=lambda photo: (photo.id in kept["given"], _certainty(known.get(photo.id))))
    page = [
        Tagged(id=photo.id, name=photo.name, tags=_tags(kept, known, photo.id))
        for photo in photos[start : start + _PAGE]
    ]
    return Shown(photos=page, names=kept["names"], total=len(photos), labelled=len(kept["given"]))


@router.post("/api/tags/{dataset}", summary="Correct a tag", responses=documented("not_found", "conflict"))
def change(dataset: DataSetId, order: Change, studio: Parts, asker: Owner) -> Tagged:
    """Kept in the vault; it changes the model only when you learn again."""
    one = _scanned(studio, dataset)
    photo = next((p for p in studio.datasets.photos(one) if p.id == order.photo), None)
    with _writing:
        kept = _kept(studio.datasets, one)
        if photo is None or order.tag not in kept["names"]:
            raise Problem("not_found")
        known = _thought(studio.datasets, one)
        on = {tag.name for tag in _tags(kept, known, photo.id) if tag.on}
        on = on | {order.tag} if order.on else on - {order.tag}
        kept["given"][photo.id] = sorted(on)
        _keep(studio.datasets, one, kept)
    return Tagged(id=photo.id, name=photo.name, tags=_tags(kept, known, photo.id))


@router.post("/api/tags/{dataset}/names", summary="Set the labels", responses=documented("not_found", "conflict"))
def set_names(dataset: DataSetId, order: Names, studio: Parts, asker: Owner) -> Next:
    """They stand in the model file: they are public. Choose them without looking."""
    one = _scanned(studio, dataset)
    names = list(dict.fromkeys(" ".join(part.split())[:40] for part in order.names.split(",") if part.strip()))[:60]
    if len(names) < 2 or not all(name.isprintable() for name in names):
        raise Problem("invalid")
    with _writing:
        kept = _kept(studio.datasets, one)
        kept["names"] = names
        kept["given"] = {photo: [t for t in tags if t in names] for photo, tags in kept["given"].items()}
        _keep(studio.datasets, one, kept)
    return Next(next=f"/tags?dataset={one.id}")


@router.post(
    "/api/tags/{dataset}/learn",
    status_code=202,
    summary="Learn the labels",
    responses=documented("not_found", "conflict", "busy", "budget", "needs_torch"),
)
def learn(dataset: DataSetId, studio: Parts, asker: Owner) -> Next:
    """Charged once, per labelled photo, before anything is learned."""
    one = _scanned(studio, dataset)
    if len(_kept(studio.datasets, one)["given"]) < LEAST:
        raise Problem("conflict")
    if budget_of(studio, one).left < EPSILON:
        raise Problem("budget")
    job = studio.jobs.add("tags", {"dataset": one.id, "release": secrets.token_hex(6)}, asker.name)
    return Next(next=f"/tags?dataset={one.id}", job=job["id"])


@router.get(
    "/api/tags/{dataset}/export.csv",
    summary="All tags, for the owner",
    response_class=Response,
    responses=documented("not_found", "conflict") | {200: {"content": {"text/csv": {}}}},
)
def export(dataset: DataSetId, studio: Parts, asker: Owner) -> Response:
    """File names and exact tags: not protected, and not to be given away."""
    one = _scanned(studio, dataset)
    kept, known = _kept(studio.datasets, one), _thought(studio.datasets, one)
    sheet = io.StringIO()
    writer = csv.writer(sheet)
    writer.writerow(["photo", "tags", "given by you"])
    for photo in studio.datasets.photos(one):
        on = [tag.name for tag in _tags(kept, known, photo.id) if tag.on]
        # A cell that begins like a formula would be run by spreadsheets.
        name = "'" + photo.name if photo.name[:1] in "=+-@\t\r" else photo.name
        writer.writerow([name, "; ".join(on), "yes" if photo.id in kept["given"] else "no"])
    headers = {"Content-Disposition": 'attachment; filename="tags-private.csv"'}
    return Response(sheet.getvalue(), media_type="text/csv", headers=headers)


def run(arguments: dict[str, Any], place: JobContext) -> dict[str, Any]:
    """Train with noise on what was labelled, a fifth kept aside to count on; then tag every photo, here."""
    datasets = DataSets(place.settings)
    one = datasets.get(arguments["dataset"])
    place.say(0, 3, "reading your labels")
    kept, photos = _kept(datasets, one), datasets.photos(one)
    rows = directions(rows_of(datasets, one))
    names = kept["names"]
    where = {photo.id: i for i, photo in enumerate(photos)}
    given = [(where[number], tags) for number, tags in sorted(kept["given"].items()) if number in where]
    labels = np.array([[name in tags for name in names] for _, tags in given], np.uint8)
    used = np.array([row for row, _ in given])
    order = np.random.default_rng(len(given)).permutation(len(given))
    held, train = order[: len(order) // 5], order[len(order) // 5 :]
    place.say(1, 3, "learning, with noise for each photo")
    release = Release(
        arguments["release"], "tags", datasets.new_folder(one, "tags", EPSILON), EPSILON, len(train), today(), False
    )
    folder = datasets.folder(release)
    tagger = _tagger(names)
    with Ledger(place.settings.ledger_place, dataset=one.account) as ledger:
        # Under the release's own number: run again after a crash, it is paid already.
        ledger.charge(_price(), what="tag model", key=release.id)
    with paid():
        tagger.fit(rows[used[train]], labels[train])
    guarantee = tagger.guarantee_
    folder.mkdir(parents=True, exist_ok=True)
    tagger.save(folder / "tagger.safetensors")
    (folder / "card.txt").write_text(guarantee.card() + "\n", encoding="utf-8")
    place.say(2, 3, "tagging all photos, here")
    chances = _chances(tagger, rows)
    thought = {photo.id: [round(float(value), 3) for value in chances[i]] for i, photo in enumerate(photos)}
    told, truth = _told(tagger, rows[used[held]]), labels[held].astype(bool)
    quality = {
        "held": len(held),
        "right": round(100 * float(np.sum(told & truth) / max(1, told.sum()))),
        "found": round(100 * float(np.sum(told & truth) / max(1, truth.sum()))),
        "epsilon": EPSILON,
        "when": today(),
    }
    stored = {"names": names, "chances": thought, "quality": quality}
    write_atomically(datasets.vault(one) / "tags.json", json.dumps(stored).encode())
    datasets.keep_release(one, release)
    return quality


def _tagger(names: list[str]) -> Any:
    """One total epsilon for training, and exact answers."""
    from blindsight.tagging import DPTraining, Exact, PrivateTagger

    return PrivateTagger(DPTraining(epsilon=EPSILON / 2, delta=_DELTA), Exact(), classes=names)


def _price() -> Cost:
    """Two neighbours of one more or less make one that is replaced: epsilon twice, delta 1 + e^epsilon times."""
    return Cost(epsilon=EPSILON, delta=_DELTA * (1 + math.exp(EPSILON / 2)), unit="record")


def _chances(tagger: Any, rows: NDArray[Any]) -> NDArray[np.float64]:
    """How sure the model is of each label, 0.5 where it would begin to say it."""
    told = _told(tagger, rows)
    sure = 1 / (1 + np.exp(-np.asarray(tagger.logits(rows), np.float64)))
    return np.where(told, np.maximum(sure, 0.51), np.minimum(sure, 0.49))


def _told(tagger: Any, rows: NDArray[Any]) -> NDArray[np.bool_]:
    return np.asarray(tagger.answer(rows).tags, bool)


def _page(request: Request, studio: Studio, dataset: str | None) -> Response:
    context: dict[str, Any] = {"title": "Tags", "sets": [], "one": None}
    if request.state.identity is not None:
        sets, one = chosen(studio, dataset)
        context |= {"sets": sets, "one": one, "least": LEAST, "epsilon": EPSILON}
        if one is not None:
            kept, path = _kept(studio.datasets, one), studio.datasets.vault(one) / "tags.json"
            quality = json.loads(path.read_bytes())["quality"] if path.exists() else None
            job = next((j for j in studio.jobs.listed("tags") if j["arguments"]["dataset"] == one.id), None)
            bar = budget_of(studio, one)
            context |= {"names": kept["names"], "labelled": len(kept["given"]), "quality": quality, "bar": bar}
            context["job"] = job if job is not None and job["state"] != "done" else None
            context["strip"] = Strip(
                leaves="The tag model, if you hand it over: one file with your label names.",
                stays="The photos, which photo has which tag, your corrections.",
                promised=f"ε {plain(EPSILON)}" if quality else "nothing yet",
                proven=f"ε {plain(quality['epsilon'])}" if quality else "nothing yet",
                attacked="not yet",
                says="in total, per labelled photo; smaller is safer",
                bar=bar,
                note="Tagging spends nothing.",
            )
    return render(request, studio, "tags.html", context)


def _scanned(studio: Studio, dataset: str) -> DataSet:
    one = studio.datasets.get(dataset)
    if not one.scanned:
        raise Problem("conflict")
    return one


def _kept(datasets: DataSets, one: DataSet) -> dict[str, Any]:
    """Label names and what was labelled; at first, what the folders say."""
    path = datasets.vault(one) / "labels.json"
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_bytes())
        return found
    folders = {photo.id: photo.name.rpartition("/")[0].rpartition("/")[2] for photo in datasets.photos(one)}
    names = sorted({name for name in folders.values() if name})
    if not 2 <= len(names) <= 60:
        return {"names": [], "given": {}}
    return {"names": names, "given": {photo: [name] for photo, name in folders.items() if name}}


def _keep(datasets: DataSets, one: DataSet, kept: dict[str, Any]) -> None:
    write_atomically(datasets.vault(one) / "labels.json", json.dumps(kept).encode())


def _thought(datasets: DataSets, one: DataSet) -> dict[str, dict[str, float]]:
    """What the model thinks of each photo."""
    path = datasets.vault(one) / "tags.json"
    if not path.exists():
        return {}
    stored = json.loads(path.read_bytes())
    return {photo: dict(zip(stored["names"], values, strict=True)) for photo, values in stored["chances"].items()}


def _tags(kept: dict[str, Any], known: dict[str, dict[str, float]], photo: str) -> list[Tag]:
    thinks, given = known.get(photo, {}), kept["given"].get(photo)
    tags = []
    for name in kept["names"]:
        sure = thinks.get(name, 0.0)
        if given is not None:
            tags.append(Tag(name=name, on=name in given, own=True, sure=sure))
        else:
            tags.append(Tag(name=name, on=sure > 0.5, own=False, sure=sure))
    return tags


def _certainty(thinks: dict[str, float] | None) -> float:
    return -1.0 if not thinks else min(abs(value - 0.5) for value in thinks.values())
