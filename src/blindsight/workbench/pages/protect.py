"""Protect: choose photos, see what a release would tell, confirm; then a folder to keep private and
one to share.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
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
# The steps of each job, by how their stages begin, with about how long each takes.
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
    """Where the page goes on."""

    next: str
    job: str | None = None


class Whose(BaseModel):
    """Who is protected: each photo, or each person, known by the first folder, by PatientID, or by
    a table's column; and how the photos are read.

    The table lies in the folder; its first column holds the photos' names relative to it.
    """

    model_config = ConfigDict(extra="forbid")
    protect: Annotated[
        Literal["", "photo", "folder", "dicom", "table"],
        Field(description="Empty: each photo, unless people seem to have several."),
    ] = ""
    most: Annotated[
        int, Field(ge=1, le=100, description="Photos that one person may give at most.")
    ] = 4
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
        """How the photos are read, as the data set keeps it; an encoder is a built-in name, or a
        folder under an allowed root.
        """
        encoder = self.encoder
        if encoder not in ("", *NETWORKS_OFFERED):
            encoder = str(workbench.datasets.allowed(encoder))
            if not check_encoder(encoder).good:
                raise Problem("bad_encoder")
        names = tuple(name.strip() for name in self.about.split(",") if name.strip())
        if len(set(names)) == 1:
            raise Problem("one_name")
        return {"encoder": encoder, "about": names}

    def rule(self, folder: Places | None) -> tuple[str, int]:
        """As the data set keeps it; a table must be there, inside the folder, and have the
        column.
        """
        try:
            rule = person_rule(folder, self.protect or "photo", self.table, self.column)
        except InvalidData as error:
            raise Problem("no_table") from error
        return rule, self.most if rule else 0


class Folder(Whose):
    """A folder under one of the allowed roots, by its path within the root; and a name for it."""

    folder: Annotated[str, Field(max_length=1000)]
    name: Annotated[str, Field(max_length=60)] = ""


class Name(Whose):
    """A name for what will be dropped."""

    name: Annotated[str, Field(max_length=60)] = "Dropped photos"


class Choice(BaseModel):
    """What is to be released, with the owner's word that a release cannot be called back."""

    model_config = ConfigDict(extra="forbid")
    epsilon: Annotated[float, Field(gt=0, le=64)]
    sure: Literal[True]
    accept_chance: Annotated[
        bool, Field(description="Also where search would find little more than chance.")
    ] = False
    accept_large_epsilon: Annotated[
        bool, Field(description=f"Also where epsilon is above {LARGE_EPSILON:g}.")
    ] = False


class FolderEntry(BaseModel):
    """A folder that may be read, and whether there are folders in it."""

    path: str
    name: str
    inner: bool


class Dropped(BaseModel):
    """How many of what was sent are photos."""

    taken: int
    refused: int


@router.get("/protect", include_in_schema=False)
async def choose_page(request: Request, workbench: Parts) -> Response:
    """First step: a folder, or a drop."""

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
    """Second step: what others would find, and find out."""
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
    """Third step, before anything is charged: the choice once more, and the owner's word."""
    return await workbench.ledger_lane.run(_confirm, request, workbench, dataset, epsilon)


@router.get("/protect/{dataset}/{release}", include_in_schema=False)
async def made_page(
    dataset: DataSetId, release: DataSetId, request: Request, workbench: Parts
) -> Response:
    """Third step: two folders and a card."""
    return await workbench.ledger_lane.run(_made, request, workbench, dataset, release)


@router.get(
    "/api/protect/folders", summary="Folders to choose from", responses=documented("not_found")
)
def folders(
    workbench: Parts,
    asker: Administrator,
    under: Annotated[str, Query(max_length=1000, description="Folders right under this.")] = "",
    find: Annotated[str, Query(max_length=200, description="Folders with this in the path.")] = "",
) -> list[FolderEntry]:
    """The folders that the workbench may read: the roots, those in one of them, or those found."""
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
    """Every photo under it is read once, here; nothing is released."""
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
    summary="A data set for dropped photos",
    responses=documented("not_found", "bad_encoder", "one_name"),
)
def take_name(order: Name, workbench: Parts, asker: Administrator) -> Next:
    """Then send photos to `/api/protect/NUMBER/drop`, and end with `/api/protect/NUMBER/scan`."""
    if order.protect in ("dicom", "table"):
        raise Problem(
            "invalid"
        )  # a drop's files come without a table, and their headers stay behind
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
    """Each is opened by a confined process; what is kept is its pixels, at most 512 on a side, in
    the vault.
    """
    data_set = workbench.datasets.get(dataset)
    if not data_set.dropped or data_set.scanned:
        raise Problem("conflict")
    taken = refused = 0
    name = unquote(request.headers.get("x-file-name", "photo"))[:200]
    if name.lower().endswith(_DICOM_NAMES):
        raise Problem("whose_dicom")  # what is kept of a drop is pixels, which name nobody
    async for file, pixels in read_drop(request, workbench.decoders, workbench.settings, name):
        if pixels is None:
            refused += 1
        else:
            await workbench.ledger_lane.run(
                keep_dropped, workbench.datasets, data_set, file, pixels
            )
            taken += 1
    return Dropped(taken=taken, refused=refused)


@router.post(
    "/api/protect/{dataset}/scan",
    status_code=202,
    summary="Read the photos",
    responses=documented("not_found", "busy"),
)
def start_scan(dataset: DataSetId, workbench: Parts, asker: Owner) -> Next:
    """Once all were dropped, or after a folder changed."""
    data_set = workbench.datasets.get(dataset)
    job = workbench.jobs.add("protect", {"step": "scan", "dataset": data_set.id}, asker.name)
    return Next(next=f"/protect/{data_set.id}", job=job["id"])


@router.post(
    "/api/protect/{dataset}/look",
    status_code=202,
    summary="Measure on these very photos",
    responses=documented("not_found", "busy"),
)
def look(dataset: DataSetId, workbench: Parts, asker: Owner) -> Next:
    """Stays here; from then on cards say that epsilon was chosen after looking."""
    data_set = scanned(workbench, dataset, least=1)
    workbench.datasets.save(replace(data_set, looked=True))
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
    """Charged once, before anything is made; it goes on after a restart."""
    data_set = scanned(workbench, dataset, least=1)
    if order.epsilon > LARGE_EPSILON and not order.accept_large_epsilon:
        raise Problem("large_epsilon")
    require_agreement(
        workbench.datasets, data_set, workbench.budgets.named(data_set.account, create=True)
    )
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
    made = Release(number, "search", folder, order.epsilon, 0, today(), data_set.looked)
    job = workbench.jobs.add(
        "protect",
        {
            "step": "release",
            "dataset": data_set.id,
            "release": asdict(made),
            "accept_chance": order.accept_chance,
        },
        asker.name,
    )
    return Next(next=f"/protect/{data_set.id}/{made.id}", job=job["id"])


@router.get(
    "/api/releases/{dataset}/{release}/card.txt",
    summary="A release's card",
    response_class=FileResponse,
    responses=documented("not_found") | {200: {"content": {"text/plain": {}}}},
)
def card(
    dataset: DataSetId, release: DataSetId, workbench: Parts, asker: CardReader
) -> FileResponse:
    """What is promised, to whom, and what it rests on."""
    path = workbench.datasets.folder(workbench.datasets.get(dataset).release(release)) / "card.txt"
    if not path.is_file():
        raise Problem("not_found")
    return FileResponse(path, media_type="text/plain", filename="card.txt")


def run(arguments: dict[str, Any], job: JobContext) -> dict[str, Any]:
    """One step in the background: read, measure, or release."""
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
        # What the scan measured stays: noise drawn again could find another epsilon at chance than
        # the page shows, and an order made meanwhile would be refused for it.
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
    """What is left about each photo, whoever is protected."""
    balance = workbench.budgets.named(data_set.account, create=True).balance("record")
    return float(balance.budget.epsilon - balance.spent.epsilon)


def folder_entries(paths: Iterable[Places]) -> list[FolderEntry]:
    """Folders in the order of their names; hidden ones and links are not there."""
    return [
        FolderEntry(path=str(path), name=path.name, inner=next(_inner(path), None) is not None)
        for path in paths
        if path.is_dir()
    ]


def _inner(folder: Places) -> Iterator[Places]:
    with contextlib.suppress(OSError):  # one that may not be read has nothing in it for us
        for path in sorted(folder.iterdir()):
            if path.is_dir() and not path.name.startswith(".") and not path.is_symlink():
                yield path


def _found_folders(roots: Iterable[Places], words: str) -> Iterator[Places]:
    """Folders at any depth whose path within its root holds the words."""
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
    """The roots and the folders right under them that hold the preparation of an encoder, as
    exports to ONNX have it.
    """
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
        mine = seen(workbench.datasets, data_set, "own") or {}
        measured = mine if own else seen(workbench.datasets, data_set, "public") or {}
        options = _options(workbench, data_set, mine, measured, own=own)
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
            "groups": mine.get("groups"),
            "remedies": mine.get("remedies"),
            "chosen_first": EPSILON_CHOSEN_FIRST,
        }
        if best is not None:
            context |= _folders(workbench, data_set, best["epsilon"])
    return render(request, workbench, "protect_preview.html", context)


def _options(
    workbench: Workbench,
    data_set: DataSet,
    mine: dict[str, Any],
    measured: dict[str, Any],
    *,
    own: bool = False,
) -> list[dict[str, Any]]:
    """One row for each epsilon on offer, with what it would leave of the budget."""
    made = {f"{r.epsilon:g}": r.figures for r in data_set.releases if r.kind == "search"}
    bar = budget_of(workbench, data_set)
    left = min(bar.left / max(1, data_set.most), _photo_left(workbench, data_set))
    options = []
    for says in codings(workbench.datasets, data_set):
        key = f"{says.epsilon:g}"
        # What was released is shown with the figures that Home and History show.
        figures = (made.get(key) if own else None) or measured.get(key)
        film = measured.get(key, {}).get("film")
        counted_here = made.get(key) or mine.get(key)
        options.append(_option(data_set, says, figures, film, counted_here, left))
    return options


def _folders(workbench: Workbench, data_set: DataSet, epsilon: float) -> dict[str, Any]:
    """The folder to keep private, and the one to share, before it has a number."""
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
    mine = seen(workbench.datasets, data_set, "own") or {}
    options = _options(workbench, data_set, mine, mine)
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
    left: float,
) -> dict[str, Any]:
    """One row: what is said of an epsilon, measured on public photos or on the owner's.

    How the owner's photos spread over the groups says how often a copy finds its entry.
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
        "affordable": says.epsilon <= left,
        "whole": says.epsilon == left,
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
    found = next((r for r in data_set.releases if r.id == release), None)
    if found is None and job is None:
        raise Problem("not_found")
    given = Release(**job["arguments"]["release"]) if found is None and job is not None else found
    context = {
        "title": "Two folders" if found else "Making the release",
        "menu_word": "Protect",
        "data_set": data_set,
        "release": found,
        "job": None if found else job,
        "at_chance": found is None and job is not None and _refused_at_chance(workbench, job),
        "epsilon": given.epsilon if given else 0.0,
        "bar": budget_of(workbench, data_set),
        "keep": workbench.settings.state / "vault",
        "give": workbench.datasets.folder(given) if given else "",
    }
    return render(request, workbench, "protect_made.html", context)


def _refused_at_chance(workbench: Workbench, job: dict[str, Any]) -> bool:
    """Whether a release ended without the owner's word that a search at chance is wanted.

    To run it again would be refused again: the page asks for the word instead.
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
