"""Protect: choose photos, preview what a release would reveal, and confirm. The result is a folder
to keep private and one to share.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path as Places
from typing import Annotated, Any, Literal
from urllib.parse import unquote

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from blindsight.app.defaults import EPSILON_CHOSEN_FIRST, LARGE_EPSILON, NETWORKS_OFFERED
from blindsight.app.encoders import check_encoder
from blindsight.app.library.accounts import require_agreement
from blindsight.app.library.datasets import DataSet, DataSets, Release, today
from blindsight.app.library.photos import (
    Coding,
    codings,
    keep_dropped,
    people_likely,
    person_rule,
    release_photos,
    scan,
)
from blindsight.app.library.risks import look_at_own, look_at_public, refuse_chance, seen
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.workbench.infra.access import (
    Administrator,
    CardReader,
    DataSetId,
    Owner,
    Parts,
    Workbench,
    scanned,
)
from blindsight.workbench.infra.jobs import JobContext
from blindsight.workbench.infra.problems import Problem, documented
from blindsight.workbench.infra.shell import render
from blindsight.workbench.infra.uploads import read_drop
from blindsight.workbench.pages.home import budget_of, open_account

__all__ = ["router", "run"]

router = APIRouter(tags=["protect"])
_FOLDERS_SHOWN, _FOLDERS_LOOKED_AT = 500, 20_000
_DICOM_NAMES = (".dcm", ".dicom")  # dropped files have names and no headers
# The steps of each job: how the names of their stages begin, and about how long each takes.
_STEPS = {
    "scan": (
        ("reading photos", 6),
        ("learning", 1),
        ("measuring", 1),
        ("reading public", 2),
        ("measuring", 1),
    ),
    "look": (("measuring", 1),),
    "release": (
        ("learning", 1),
        ("releasing", 6),
        ("making", 1),
        ("writing", 1),
        ("measuring", 1),
    ),
}
_DROP = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string"}}},
    }
}


class Next(BaseModel):
    """The page to open next, and the job to follow."""

    next: str
    job: str | None = None


class Whose(BaseModel):
    """Who is protected, and how the photos are read.

    Protected is each photo, or each person by the first folder, by PatientID, or by the column of a
    table. The table is a file in the folder; its first column contains the photos' names.
    """

    model_config = ConfigDict(extra="forbid")
    protect: Annotated[
        Literal["", "photo", "folder", "dicom", "table"],
        Field(description="Empty: each photo, unless people seem to have several."),
    ] = ""
    most: Annotated[int, Field(ge=1, le=100, description="The most photos of one person.")] = 4
    table: Annotated[str, Field(max_length=200)] = ""
    column: Annotated[str, Field(max_length=100)] = ""
    encoder: Annotated[
        str,
        Field(max_length=1000, description="lite0, lite2, or a folder of ONNX files under a root."),
    ] = ""
    about: Annotated[
        str,
        Field(max_length=2000, description="Public words for what the photos show, with commas."),
    ] = ""

    def reading(self, workbench: Workbench) -> dict[str, Any]:
        """Return how the photos are read, as the data set stores it.

        Raises:
            Problem: "bad_encoder", if the encoder cannot be used; "one_name", if `about` is one
                word.
        """
        encoder = self.encoder
        if encoder not in ("", *NETWORKS_OFFERED):
            encoder = str(workbench.datasets.allowed(encoder))
            if not check_encoder(encoder).good:
                raise Problem("bad_encoder")
        names = tuple(name.strip() for name in self.about.split(",") if name.strip())
        if len(set(names)) == 1:
            raise Problem("one_name")
        return {"encoder": encoder, "own_names": names}

    def rule(self, folder: Places | None) -> tuple[str, int]:
        """Return the rule of persons as the data set stores it, and the most photos of a person.

        Raises:
            Problem: "no_table", if the folder has no such table, or it has no such column.
        """
        try:
            rule = person_rule(folder, self.protect or "photo", self.table, self.column)
        except InvalidData as error:
            raise Problem("no_table") from error
        return rule, self.most if rule else 0


class Folder(Whose):
    """A folder under one of the allowed roots, and a name for the data set."""

    folder: Annotated[str, Field(max_length=1000)]
    name: Annotated[str, Field(max_length=60)] = ""


class Name(Whose):
    """A name for a data set of uploaded photos."""

    name: Annotated[str, Field(max_length=60)] = "Dropped photos"


class Choice(BaseModel):
    """The epsilon of a release, with the confirmation that a release cannot be recalled."""

    model_config = ConfigDict(extra="forbid")
    epsilon: Annotated[float, Field(gt=0, le=64)]
    sure: Literal[True]
    accept_chance: Annotated[
        bool, Field(description="Release even if search would be little better than chance.")
    ] = False
    accept_large_epsilon: Annotated[
        bool, Field(description=f"Accept an epsilon above {LARGE_EPSILON:g}.")
    ] = False


class FolderEntry(BaseModel):
    """A folder that may be read, and whether it has subfolders."""

    path: str
    name: str
    inner: bool


class Dropped(BaseModel):
    """The number of files that were accepted as photos, and of those that were refused."""

    taken: int
    refused: int


@router.get("/protect", include_in_schema=False)
async def choose_page(request: Request, workbench: Parts) -> Response:
    """Render the first step: choose a folder, or upload photos."""

    def show() -> Response:
        # Reading folders of this machine is for the owner of the whole workbench.
        may_add = workbench.identity is not None and workbench.identity.may()
        context = {
            "title": "Choose photos",
            "menu_word": "Protect",
            "folders": folder_entries(workbench.settings.photos) if may_add else [],
            "may_add": may_add,
            "networks": NETWORKS_OFFERED,
            "encoders": _encoder_folders(workbench) if may_add else [],
        }
        return render(request, workbench, "protect.html", context)

    return await workbench.ledger_lane.run(show)


@router.get("/protect/{dataset}", include_in_schema=False)
async def preview_page(dataset: DataSetId, request: Request, workbench: Parts) -> Response:
    """Render the second step: the preview of a release."""
    return await workbench.ledger_lane.run(_preview, request, workbench, dataset)


@router.get("/protect/{dataset}/confirm", include_in_schema=False)
async def confirm_page(
    dataset: DataSetId,
    request: Request,
    workbench: Parts,
    epsilon: Annotated[
        float, Query(gt=0, le=64, description="The chosen epsilon.")
    ] = EPSILON_CHOSEN_FIRST,
) -> Response:
    """Render the third step, before anything is charged: the choice and its confirmation."""
    return await workbench.ledger_lane.run(_confirm, request, workbench, dataset, epsilon)


@router.get("/protect/{dataset}/{release}", include_in_schema=False)
async def made_page(
    dataset: DataSetId, release: DataSetId, request: Request, workbench: Parts
) -> Response:
    """Render the result: two folders and a card."""
    return await workbench.ledger_lane.run(_made, request, workbench, dataset, release)


@router.get(
    "/api/protect/folders", summary="Folders to choose from", responses=documented("not_found")
)
def folders(
    workbench: Parts,
    asker: Administrator,
    under: Annotated[str, Query(max_length=1000, description="Folders directly in this one.")] = "",
    find: Annotated[
        str, Query(max_length=200, description="Folders whose path contains this.")
    ] = "",
) -> list[FolderEntry]:
    """The roots that the workbench may read, the folders in one folder, or those found by name."""
    roots = [root for root in workbench.settings.photos if root.is_dir()]
    chosen: Iterable[Places] = roots
    if under:
        chosen = _inner(workbench.datasets.allowed(under))
    elif find.strip():
        chosen = _found_folders(roots, find.strip())
    return folder_entries(itertools.islice(chosen, _FOLDERS_SHOWN))


@router.post(
    "/api/protect/folder",
    status_code=202,
    summary="Read a folder",
    responses=documented("not_found", "bad_encoder", "one_name", "whose_dicom", "busy"),
)
def take_folder(order: Folder, workbench: Parts, asker: Administrator) -> Next:
    """Every photo in it is read once, on this machine; nothing is released."""
    folder = workbench.datasets.allowed(order.folder)
    if not order.protect:
        likely = people_likely(workbench.datasets, folder)
        if likely:
            raise Problem("whose_dicom" if likely == "dicom" else "whose_folders")
    person, most = order.rule(folder)
    data_set = workbench.datasets.add(
        order.name or folder.name, folder, person=person, most=most, **order.reading(workbench)
    )
    open_account(workbench, data_set)
    job = workbench.jobs.add("protect", {"step": "scan", "dataset": data_set.id}, asker.name)
    return Next(next=f"/protect/{data_set.id}", job=job["id"])


@router.post(
    "/api/protect/new",
    status_code=201,
    summary="A data set for uploaded photos",
    responses=documented("not_found", "bad_encoder", "one_name"),
)
def take_name(order: Name, workbench: Parts, asker: Administrator) -> Next:
    """Upload the photos to `/api/protect/NUMBER/drop`, then call `/api/protect/NUMBER/scan`."""
    if order.protect in ("dicom", "table"):
        raise Problem("invalid")  # an upload has no table, and the headers of files are not kept
    person, most = order.rule(None)
    data_set = workbench.datasets.add(
        order.name, None, person=person, most=most, **order.reading(workbench)
    )
    open_account(workbench, data_set)
    return Next(next=f"/protect/{data_set.id}", job=None)


@router.post(
    "/api/protect/{dataset}/drop",
    summary="Photos, or a zip of photos",
    openapi_extra=_DROP,
    responses=documented("not_found", "conflict", "busy"),
)
async def take_drop(
    dataset: DataSetId, request: Request, workbench: Parts, asker: Owner
) -> Dropped:
    """Each file is decoded by a confined process. Only its pixels, at most 512 per side, are stored
    in the vault.
    """
    data_set = workbench.datasets.get(dataset)
    if not data_set.dropped or data_set.scanned:
        raise Problem("conflict")
    accepted = refused = 0
    name = unquote(request.headers.get("x-file-name", "photo"))[:200]
    if name.lower().endswith(_DICOM_NAMES):
        raise Problem("whose_dicom")  # only pixels are stored, without the patient
    async for file, pixels in read_drop(request, workbench.decoders, workbench.settings, name):
        if pixels is None:
            refused += 1
        else:
            await workbench.ledger_lane.run(
                keep_dropped, workbench.datasets, data_set, file, pixels
            )
            accepted += 1
    return Dropped(taken=accepted, refused=refused)


@router.post(
    "/api/protect/{dataset}/scan",
    status_code=202,
    summary="Read the photos",
    responses=documented("not_found", "busy"),
)
def start_scan(dataset: DataSetId, workbench: Parts, asker: Owner) -> Next:
    """Call it after the last upload, or after a folder has changed."""
    data_set = workbench.datasets.get(dataset)
    job = workbench.jobs.add("protect", {"step": "scan", "dataset": data_set.id}, asker.name)
    return Next(next=f"/protect/{data_set.id}", job=job["id"])


@router.post(
    "/api/protect/{dataset}/look",
    status_code=202,
    summary="Measure on the data set's own photos",
    responses=documented("not_found", "busy"),
)
def look(dataset: DataSetId, workbench: Parts, asker: Owner) -> Next:
    """The result stays here; the cards of later releases state that the photos were measured."""
    data_set = scanned(workbench, dataset, least=1)
    workbench.datasets.change(data_set, looked=True)
    job = workbench.jobs.add("protect", {"step": "look", "dataset": data_set.id}, asker.name)
    return Next(next=f"/protect/{data_set.id}?look=own", job=job["id"])


@router.post(
    "/api/protect/{dataset}/release",
    status_code=202,
    summary="Make a release",
    responses=documented(
        "not_found", "busy", "budget", "at_chance", "large_epsilon", "rolled_back", "ledger"
    ),
)
def release(dataset: DataSetId, order: Choice, workbench: Parts, asker: Owner) -> Next:
    """It is charged once, before the release is made, and continues after a restart."""
    data_set = scanned(workbench, dataset, least=1)
    if order.epsilon > LARGE_EPSILON and not order.accept_large_epsilon:
        raise Problem("large_epsilon")
    require_agreement(workbench.datasets, data_set, workbench.ledger(data_set))
    if data_set.price(order.epsilon) > budget_of(
        workbench, data_set
    ).left or order.epsilon > _photo_left(workbench, data_set):
        raise Problem("budget")
    if not order.accept_chance:
        try:
            refuse_chance(workbench.datasets, data_set, order.epsilon)
        except InvalidParameter as error:
            raise Problem("at_chance") from error
    number = secrets.token_hex(6)
    folder = workbench.datasets.named(data_set, "search", order.epsilon, number)
    ordered = Release(number, "search", folder, order.epsilon, 0, today(), data_set.looked)
    job = workbench.jobs.add(
        "protect",
        {
            "step": "release",
            "dataset": data_set.id,
            "release": asdict(ordered),
            "accept_chance": order.accept_chance,
        },
        asker.name,
    )
    return Next(next=f"/protect/{data_set.id}/{ordered.id}", job=job["id"])


@router.get(
    "/api/releases/{dataset}/{release}/card.txt",
    summary="A release's card",
    response_class=FileResponse,
    responses=documented("not_found") | {200: {"content": {"text/plain": {}}}},
)
def card(
    dataset: DataSetId, release: DataSetId, workbench: Parts, asker: CardReader
) -> FileResponse:
    """The guarantee of a release, its unit and its assumptions."""
    path = workbench.datasets.folder(workbench.datasets.get(dataset).release(release)) / "card.txt"
    if not path.is_file():
        raise Problem("not_found")
    return FileResponse(path, media_type="text/plain", filename="card.txt")


def run(arguments: dict[str, Any], job: JobContext) -> dict[str, Any]:
    """Run one step in the background: read, measure or release."""
    datasets = DataSets(job.settings)
    data_set = datasets.get(arguments["dataset"])
    job.plan(*_STEPS[arguments["step"]])
    if arguments["step"] == "scan":
        data_set = scan(datasets, data_set, job.progress, actor=job.actor)
        if data_set.photos:
            look_at_own(datasets, data_set, job.progress)
            look_at_public(datasets, data_set, job.progress)
        return {"photos": data_set.photos, "refused": len(data_set.refused)}
    if arguments["step"] == "look":
        # The figures of the scan are kept: with new noise, an epsilon that the page offers could
        # be at chance, and an order made meanwhile would be refused.
        if seen(datasets, data_set, "own") is None:
            look_at_own(datasets, data_set, job.progress)
        return {}
    release = Release(**arguments["release"])
    data_set = release_photos(
        datasets,
        data_set,
        release,
        job.progress,
        accept_chance=bool(arguments.get("accept_chance")),
        actor=job.actor,
    )
    return {"photos": data_set.release(arguments["release"]["id"]).photos}


def _photo_left(workbench: Workbench, data_set: DataSet) -> float:
    """Return what is left of the budget per photo."""
    balance = workbench.ledger(data_set).balance("record")
    return float(balance.budget.epsilon - balance.spent.epsilon)


def folder_entries(paths: Iterable[Places]) -> list[FolderEntry]:
    """Return the entries of those paths that are folders."""
    return [
        FolderEntry(path=str(path), name=path.name, inner=next(_inner(path), None) is not None)
        for path in paths
        if path.is_dir()
    ]


def _inner(folder: Places) -> Iterator[Places]:
    with contextlib.suppress(OSError):  # a folder that cannot be read counts as empty
        for path in sorted(folder.iterdir()):
            if path.is_dir() and not path.name.startswith(".") and not path.is_symlink():
                yield path


def _found_folders(roots: Iterable[Places], words: str) -> Iterator[Places]:
    """Yield the folders at any depth whose path within its root contains the words."""
    looked_at = 0
    for root in roots:
        waiting = [root]
        while waiting and looked_at < _FOLDERS_LOOKED_AT:
            folder = waiting.pop(0)
            looked_at += 1
            if words.casefold() in str(folder.relative_to(root.parent)).casefold():
                yield folder
            waiting += _inner(folder)


def _encoder_folders(workbench: Workbench) -> list[Places]:
    """Return the roots, and the folders directly in them, that contain an exported encoder."""
    roots = [root for root in workbench.settings.photos if root.is_dir()]
    return [
        path
        for path in (*roots, *(inner for root in roots for inner in _inner(root)))
        if any((path / name).is_file() for name in ("encoder.json", "preprocessor_config.json"))
    ]


def _preview(request: Request, workbench: Workbench, dataset: str) -> Response:
    if request.state.identity is None:
        return render(request, workbench, "protect_preview.html", {})
    workbench.require("own", dataset)
    data_set = workbench.datasets.get(dataset)
    jobs = [
        workbench.jobs.under_way("protect", dataset=data_set.id, step=step)
        for step in ("scan", "look")
    ]
    job = next(filter(None, jobs), None)
    context: dict[str, Any] = {
        "title": "What would others find?" if data_set.scanned else "Reading the photos",
        "menu_word": "Protect",
        "data_set": data_set,
        "job": job,
    }
    if data_set.scanned and data_set.photos:
        own = request.query_params.get("look") == "own" and data_set.looked
        own_figures = seen(workbench.datasets, data_set, "own") or {}
        measured = own_figures if own else seen(workbench.datasets, data_set, "public") or {}
        options = _options(workbench, data_set, own_figures, measured, own=own)
        usable = [o for o in options if o["affordable"]]
        first = (o for o in usable if o["epsilon"] == EPSILON_CHOSEN_FIRST)
        best = next(first, usable[-1] if usable else None)
        context |= {
            "options": options,
            "own": own and bool(measured),
            "measured": measured.get(f"{EPSILON_CHOSEN_FIRST:g}"),
            "best": best,
            "bar": budget_of(workbench, data_set),
            "unprotected": measured.get("plain"),
            "public": measured.get("public"),
            "spread": next((o["spread"] for o in options if o is best), None),
            "groups": own_figures.get("groups"),
            "remedies": own_figures.get("remedies"),
            "chosen_first": EPSILON_CHOSEN_FIRST,
        }
        if best is not None:
            context |= _folders(workbench, data_set, best["epsilon"])
    return render(request, workbench, "protect_preview.html", context)


def _options(
    workbench: Workbench,
    data_set: DataSet,
    own_figures: dict[str, Any],
    measured: dict[str, Any],
    *,
    own: bool = False,
) -> list[dict[str, Any]]:
    """Return a row for each offered epsilon."""
    released = {f"{r.epsilon:g}": r.figures for r in data_set.releases if r.kind == "search"}
    bar = budget_of(workbench, data_set)
    remaining = min(bar.left / max(1, data_set.most), _photo_left(workbench, data_set))
    options = []
    for says in codings(workbench.datasets, data_set):
        key = f"{says.epsilon:g}"
        # A release is shown with the same figures as on the pages Home and History.
        figures = (released.get(key) if own else None) or measured.get(key)
        film = measured.get(key, {}).get("film")
        counted_here = released.get(key) or own_figures.get(key)
        options.append(_option(data_set, says, figures, film, counted_here, remaining))
    return options


def _folders(workbench: Workbench, data_set: DataSet, epsilon: float) -> dict[str, Any]:
    """Return the folder to keep private, and the one to share, without its number."""
    folder = workbench.datasets.named(data_set, "search", epsilon, "")
    name = folder.rpartition("-")[0].rpartition("-")[0]
    return {
        "keep": workbench.settings.state / "vault",
        "give": workbench.datasets.given / f"{name}-…",
    }


def _confirm(request: Request, workbench: Workbench, dataset: str, epsilon: float) -> Response:
    if request.state.identity is None:
        return render(request, workbench, "protect_confirm.html", {})
    workbench.require("own", dataset)
    data_set = scanned(workbench, dataset, least=1)
    own_figures = seen(workbench.datasets, data_set, "own") or {}
    options = _options(workbench, data_set, own_figures, own_figures)
    chosen = next((o for o in options if o["epsilon"] == epsilon), None)
    if chosen is None:
        raise Problem("not_found")
    if not chosen["affordable"]:
        raise Problem("budget")
    context = {
        "title": "Make the release",
        "menu_word": "Protect",
        "data_set": data_set,
        "choice": chosen,
        "bar": budget_of(workbench, data_set),
        "price": budget_of(workbench, data_set, this=data_set.price(epsilon)),
    }
    context |= _folders(workbench, data_set, epsilon)
    return render(request, workbench, "protect_confirm.html", context)


def _option(
    data_set: DataSet,
    says: Coding,
    figures: dict[str, Any] | None,
    film: list[list[Any]] | None,
    spread: dict[str, Any] | None,
    remaining: float,
) -> dict[str, Any]:
    """Return the row of an epsilon, with figures of public photos or of the owner's.

    How the owner's photos spread over the groups determines how often a copy finds its entry.
    """
    wrong = max(1, round(100 * (1 - says.right))) if says.right < 0.995 else 0
    return {
        "epsilon": says.epsilon,
        "says": says,
        "figures": figures,
        "film": film,
        "spread": spread,
        "by_copy": says.singled_out(data_set.photos) if spread is None else spread["by_copy"],
        "leaves": _leaves(says, wrong),
        "affordable": says.epsilon <= remaining,
        "whole": says.epsilon == remaining,
    }


def _leaves(says: Coding, wrong: int) -> str:
    truth = f"wrong on purpose for {wrong} photos in 100" if wrong else "almost never wrong"
    return (
        f"For each photo one number from 1 to {says.cells:,}: roughly what kind of photo it is, "
        f"and {truth}."
    )


def _made(request: Request, workbench: Workbench, dataset: str, release: str) -> Response:
    if request.state.identity is None:
        return render(request, workbench, "protect_made.html", {})
    workbench.require("own", dataset)
    data_set = workbench.datasets.get(dataset)
    orders = (
        job
        for job in workbench.jobs.listed("protect")
        if job["arguments"]["dataset"] == dataset and job["arguments"].get("step") == "release"
    )
    job = next((j for j in orders if j["arguments"]["release"]["id"] == release), None)
    made = next((r for r in data_set.releases if r.id == release), None)
    if made is None and job is None:
        raise Problem("not_found")
    ordered = Release(**job["arguments"]["release"]) if made is None and job is not None else made
    context = {
        "title": "Two folders" if made else "Making the release",
        "menu_word": "Protect",
        "data_set": data_set,
        "release": made,
        "job": None if made else job,
        "at_chance": made is None and job is not None and _refused_at_chance(workbench, job),
        "epsilon": ordered.epsilon if ordered else 0.0,
        "bar": budget_of(workbench, data_set),
        "keep": workbench.settings.state / "vault",
        "give": workbench.datasets.folder(ordered) if ordered else "",
    }
    return render(request, workbench, "protect_made.html", context)


def _refused_at_chance(workbench: Workbench, job: dict[str, Any]) -> bool:
    """Whether a release was refused because search would be at chance.

    Running it again would be refused again, so the page asks for a confirmation instead.
    """
    arguments = job["arguments"]
    if job["state"] != "failed" or arguments.get("accept_chance"):
        return False
    data_set = workbench.datasets.get(arguments["dataset"])
    try:
        refuse_chance(workbench.datasets, data_set, arguments["release"]["epsilon"])
    except InvalidParameter:
        return True
    return False
