"""Train together: start, join and follow runs in which several sites train one model while photos
stay at each site.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import socket
import time
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import FileResponse, Response
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from blindsight.app.library.accounts import charge_training, vault_of
from blindsight.app.library.datasets import DataSet, DataSets, today
from blindsight.app.library.photos import columns, encoder_label, image_encoder, rows_of
from blindsight.app.library.sending import (
    SEND_EPSILON,
    SEND_EPSILONS,
    STATISTICS_FILE,
    fit_with_partner,
    partner_model,
    sending_plan,
)
from blindsight.app.library.tags import labels_of
from blindsight.core.errors import HostileFile, InvalidData, MissingData
from blindsight.workbench.infra.access import (
    DataSetId,
    Owner,
    Parts,
    Signed,
    Trainer,
    Workbench,
    scanned,
)
from blindsight.workbench.infra.database import PURPOSE
from blindsight.workbench.infra.federations import COLUMNS, MOST_SITES, Run, read_invitation
from blindsight.workbench.infra.problems import Problem, documented
from blindsight.workbench.infra.shell import TrustStrip, plain, render
from blindsight.workbench.pages.home import budget_of, chosen
from blindsight.workbench.pages.protect import Next
from blindsight.workbench.pages.tags import names_to_confirm, require_confirmed

__all__ = ["router"]

router = APIRouter(tags=["together"])
RunId = Annotated[str, Path(pattern="^[0-9a-f]{12}$", description="A run's number.")]
LEAST = 20
_AWAY = 12.0  # seconds after a failed contact in which the collector counts as unreachable
_PORT = 9092
_TEXT = {
    "requestBody": {"required": True, "content": {"text/plain": {"schema": {"type": "string"}}}}
}
_FILE = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string"}}},
    }
}
_HOST = re.compile(r"[A-Za-z0-9.-]{1,120}")


class Start(BaseModel):
    """A run to start: its title, the sites to invite, and the data set of this site."""

    model_config = ConfigDict(extra="forbid")
    title: Annotated[str, Field(min_length=1, max_length=60)]
    dataset: Annotated[str, Field(pattern="^[0-9a-f]{12}$")]
    sites: Annotated[
        str, Field(max_length=1000, description="Names of the other sites, separated by commas.")
    ]
    rounds: Annotated[int, Field(ge=1, le=50)] = 5
    noise: Annotated[
        Literal["", "1", "2", "4", "8"],
        Field(description="Epsilon per photo (replace one); empty: exact sums."),
    ] = ""
    method: Annotated[
        Literal["", "statistics", "gradients"],
        Field(description="With noise: one round of statistics (default), or gradient rounds."),
    ] = ""
    records: Annotated[
        int, Field(ge=20, le=10_000_000, description="About how many photos the largest site has.")
    ] = 1000
    host: Annotated[
        str,
        Field(
            max_length=120, description="The address at which the other sites reach this machine."
        ),
    ] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535, description="0: a free port.")] = 0


class Round(BaseModel):
    """A round, as this site sees it."""

    round: int
    who: list[str]
    everybody: bool
    right: int
    seconds: float
    bytes: int


class SiteState(BaseModel):
    """A site of a run, and its state."""

    name: str
    you: bool
    state: str
    says: str
    invitation: str | None


class RunState(BaseModel):
    """The state of a run."""

    id: str
    state: str
    says: str
    rounds: list[Round]
    planned: int
    fingerprint: str | None
    start: int | None
    alone: int | None
    luck: int
    sites: list[SiteState]


@router.get("/together", include_in_schema=False)
async def page(
    request: Request,
    workbench: Parts,
    run: str | None = None,
    dataset: str | None = None,
    new: bool = False,
) -> Response:
    return await workbench.ledger_lane.run(_page, request, workbench, run, dataset, new)


@router.post(
    "/api/together/start",
    status_code=201,
    responses=documented("not_found", "too_few_labels", "two_sites", "budget", "names_unconfirmed"),
)
async def start(order: Start, workbench: Parts, asker: Signed) -> Next:
    """Start a run: this site's keys and the invitations are made, and this machine begins to
    collect. An invitation contains no keys; each site makes its own.
    """
    workbench.require("own", order.dataset)

    def make() -> Run:
        data_set = workbench.datasets.get(order.dataset)
        others = [" ".join(part.split()) for part in order.sites.split(",") if part.strip()]
        if len(others) == 1:
            raise Problem("two_sites")
        sites = (data_set.name, *others)
        title = " ".join(order.title.split())
        fit = (
            3 <= len(sites) <= MOST_SITES
            and len(set(sites)) == len(sites)
            and _HOST.fullmatch(order.host)
        )
        if not fit or not all(word.isprintable() and len(word) <= 60 for word in (title, *sites)):
            raise Problem("invalid")
        stored = labels_of(workbench.datasets, data_set)
        classes = tuple(sorted(stored["names"]))
        epsilon = float(order.noise) if order.noise else None
        method = "updates" if epsilon is None else order.method or "statistics"
        records, rows, labels = _labelled(workbench.datasets, data_set, classes, method)
        require_confirmed(stored)
        run = Run(
            id=secrets.token_hex(6),
            title=title,
            number=1,
            sites=sites,
            classes=classes,
            features=encoder_label(data_set.features),
            rounds=1 if method == "statistics" else order.rounds,
            method=method,
            records=order.records,
            address=f"{order.host}:{order.port or _free(order.host)}",
            made=today(),
            epsilon=epsilon,
            dataset=data_set.id,
            photos=len(rows),
        )
        planned = workbench.federations.plan(run, rows.shape[1], image_encoder(data_set.features))
        ledger = workbench.ledger(data_set)
        charge_training(
            workbench.datasets,
            data_set,
            ledger,
            run.id,
            run.limit,
            records,
            actor=asker.name,
            purpose=PURPOSE.get(),
        )
        started: Run = workbench.federations.start(run, rows, labels, planned)
        return started

    run = await workbench.ledger_lane.run(make)
    workbench.federations.go_on(run)
    return Next(next=f"/together?run={run.id}")


@router.post(
    "/api/together/join/upload",
    status_code=201,
    summary="Join with an invitation",
    openapi_extra=_TEXT,
    responses=documented(
        "not_found",
        "refused_invitation",
        "joined_before",
        "too_few_labels",
        "other_features",
        "budget",
        "rolled_back",
    ),
)
async def join(
    request: Request,
    workbench: Parts,
    asker: Signed,
    dataset: Annotated[
        str, Query(pattern="^[0-9a-f]{12}$", description="The data set of this site.")
    ],
) -> Next:
    """The invitation's text is the body; photos and labels stay here."""
    workbench.require("own", dataset)
    text = await request.body()

    def make() -> Run:
        invited, parties = read_invitation(text)
        data_set = workbench.datasets.get(dataset)
        if encoder_label(data_set.features) != invited.features:
            raise Problem("other_features")
        records, rows, labels = _labelled(
            workbench.datasets, data_set, invited.classes, invited.method
        )
        joining = replace(invited, dataset=data_set.id, photos=len(rows))
        ledger = workbench.ledger(data_set)
        charge_training(
            workbench.datasets,
            data_set,
            ledger,
            joining.id,
            joining.limit,
            records,
            actor=asker.name,
            purpose=PURPOSE.get(),
        )
        joined: Run = workbench.federations.join(joining, parties, rows, labels)
        return joined

    run = await workbench.ledger_lane.run(make)
    workbench.federations.go_on(run)
    return Next(next=f"/together?run={run.id}")


@router.post(
    "/api/together/two/{dataset}/upload",
    status_code=201,
    summary="Fit one model to the statistics of two sites",
    openapi_extra=_FILE,
    responses=documented("not_found", "conflict", "refused_statistics"),
)
async def fit_two(dataset: DataSetId, request: Request, workbench: Parts, asker: Owner) -> Next:
    """The body is the other site's file. Both files contain noise, so nothing more is charged."""
    partner_file = await request.body()

    def fit() -> None:
        data_set = scanned(workbench, dataset)
        try:
            fit_with_partner(workbench.datasets, data_set, partner_file)
        except MissingData as error:
            raise Problem("conflict") from error
        except (HostileFile, InvalidData) as error:
            raise Problem("refused_statistics") from error

    await workbench.ledger_lane.run(fit)
    return Next(next=f"/together?new=true&dataset={dataset}")


@router.get(
    "/api/together/two/{dataset}/{file}",
    summary="This site's noisy statistics, or the model of both sites",
    response_class=FileResponse,
    responses=documented("not_found") | {200: {"content": {"application/octet-stream": {}}}},
)
def two_file(
    dataset: DataSetId, file: Literal["ours", "model"], workbench: Parts, asker: Owner
) -> FileResponse:
    """The file for the other site, or the model that was fitted to both files."""
    data_set = workbench.datasets.get(dataset)
    released = sending_plan(workbench.datasets, data_set).released
    fitted = partner_model(workbench.datasets, data_set)
    if file == "ours" and released is not None:
        path = workbench.datasets.folder(released) / STATISTICS_FILE
    elif file == "model" and fitted is not None:
        path = fitted[1]
    else:
        raise Problem("not_found")
    return FileResponse(path, media_type="application/octet-stream", filename=path.name)


@router.get("/api/together/{run}", summary="The state of a run", responses=documented("not_found"))
def state(run: RunId, workbench: Parts, asker: Trainer) -> RunState:
    """The rounds as this site sees them and, at the collector, which sites have joined."""
    return _state(workbench, workbench.federations.get(run))


@router.get(
    "/api/together/{run}/invitation/{number}",
    summary="A site's invitation",
    response_class=FileResponse,
    responses=documented("not_found") | {200: {"content": {"text/plain": {}}}},
)
def invitation(
    run: RunId, number: Annotated[int, Path(ge=2, le=32)], workbench: Parts, asker: Owner
) -> FileResponse:
    """Send it to the site as you would send a password; it is deleted once the site has joined."""
    invited = workbench.federations.get(run)
    path = workbench.federations.invitation(invited, number)
    if not path.is_file():
        raise Problem("not_found")
    word = (
        re.sub(r"[^a-z0-9]+", "-", invited.sites[number - 1].lower()).strip("-") or f"site-{number}"
    )
    return FileResponse(path, media_type="text/plain", filename=f"invitation-{word}.txt")


@router.get(
    "/api/together/{run}/model.zip",
    summary="The common model, as a folder to share",
    response_class=Response,
    responses=documented("not_found") | {200: {"content": {"application/zip": {}}}},
)
def model(run: RunId, workbench: Parts, asker: Owner) -> Response:
    """After the last round: the model with its card and your signature."""
    trained = workbench.federations.get(run)
    vault = vault_of(workbench.datasets, workbench.datasets.get(trained.dataset))
    headers = {"content-disposition": 'attachment; filename="model.zip"'}
    packed = workbench.federations.shared_model(trained, vault)
    return Response(packed, media_type="application/zip", headers=headers)


@router.post(
    "/api/together/{run}/{action}",
    summary="Pause, go on, or leave",
    responses=documented("not_found"),
)
async def change(
    run: RunId, action: Literal["pause", "go-on", "leave"], workbench: Parts, asker: Owner
) -> Next:
    """Leaving deletes this site's keys; what was already added to a sum stays in the model."""
    current = await workbench.ledger_lane.run(workbench.federations.get, run)
    if current.state in ("left", "done"):
        raise Problem("conflict")
    if action == "go-on":
        current = await workbench.federations.rest(current, "running")
        if current.state == "running":  # not complete meanwhile
            workbench.federations.go_on(current)
    else:
        await workbench.federations.rest(current, "left" if action == "leave" else "paused")
    return Next(next=f"/together?run={current.id}")


def _labelled(
    datasets: DataSets, data_set: DataSet, classes: tuple[str, ...], method: str
) -> tuple[list[str], NDArray[Any], NDArray[np.int64]]:
    """Return ids, features and class numbers of the photos that have exactly one of the labels."""
    tags_of = labels_of(datasets, data_set)["given"]
    photos = datasets.photos(data_set)
    where = {photo.id: i for i, photo in enumerate(photos)}
    labelled = [
        (where[photo], classes.index(fitting[0]))
        for photo, tags in sorted(tags_of.items())
        if photo in where and len(fitting := [tag for tag in tags if tag in classes]) == 1
    ]
    if len(classes) < 2 or len(labelled) < LEAST:
        raise Problem("too_few_labels")
    try:
        rows: NDArray[Any] = rows_of(datasets, data_set, photos)
    except InvalidData as error:  # a job is reading the photos again
        raise Problem("conflict") from error
    if method != "statistics":  # which takes its directions from public pictures
        rows = columns(rows, COLUMNS)
    records = [photos[row].id for row, _ in labelled]
    classes_of = np.array([label for _, label in labelled], np.int64)
    return records, rows[[row for row, _ in labelled]], classes_of


def _free(host: str) -> int:
    """Return a free port, by preference the default one."""
    address = host if _is_address(host) else "127.0.0.1"
    for port in (_PORT, 0):
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise Problem("conflict")


def _is_address(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host).is_loopback)
    except ValueError:
        return False


def _state(workbench: Workbench, run: Run) -> RunState:
    says = workbench.federations.progress(run)
    rounds = [
        Round(
            round=line["round"],
            who=[run.sites[n - 1] for n in line["who"] if 0 < n <= len(run.sites)],
            everybody=len(line["who"]) == len(run.sites),
            right=line["right"],
            seconds=line["seconds"],
            bytes=line["bytes"],
        )
        for line in says.get("rounds", [])
    ]
    return RunState(
        id=run.id,
        state=run.state,
        says=_says(run, says, len(rounds)),
        rounds=rounds,
        planned=run.rounds,
        fingerprint=says.get("fingerprint"),
        start=says.get("start"),
        alone=says.get("alone"),
        luck=round(100 / len(run.classes)),
        sites=[_site(workbench, run, says, number) for number in range(1, len(run.sites) + 1)],
    )


def _says(run: Run, says: dict[str, Any], done: int) -> str:
    """Describe the state of a run in one sentence."""
    ended = {
        "paused": "Paused here. The others wait for this site.",
        "left": "You left this run. What was already added to a sum stays in the model.",
        "done": "All rounds are done. Every site that stayed has the same model.",
    }
    if run.state in ended:
        return ended[run.state]
    if says.get("problem"):
        return str(says["problem"])
    if time.time() - (says.get("away") or 0) < _AWAY:
        return "The collector cannot be reached now; this site tries again automatically."
    if run.host and done >= run.rounds:
        late = _and(
            [
                run.sites[number - 1]
                for number in says.get("late", [])
                if 0 < number <= len(run.sites)
            ]
        )
        return (
            f"All rounds are done. The model waits here for {late or 'the other sites'}: keep the "
            "workbench running."
        )
    if not run.host:
        return "Waiting for the other sites." if not done else f"Round {done + 1} is under way."
    missing = [
        name
        for number, name in enumerate(run.sites, 1)
        if str(number) not in says.get("joined", {})
    ]
    if missing:
        return f"Waiting for {_and(missing)} to join."
    waiting = str(says.get("waiting", ""))
    return f"{waiting[0].upper()}{waiting[1:]}." if waiting else "All sites are here."


def _and(names: list[str]) -> str:
    return (
        names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""
    )


def _site(workbench: Workbench, run: Run, says: dict[str, Any], number: int) -> SiteState:
    you = number == run.number
    came = says.get("joined", {}).get(str(number)) is not None
    if you:
        word, line = (
            "here",
            f"{run.photos:,} labelled photos{', collects the sums' if run.host else ''}",
        )
    elif not run.host:
        sent = any(number in entry["who"] for entry in says.get("rounds", []))
        word, line = (
            ("here", "has sent")
            if sent
            else ("away", "collects the sums" if number == 1 else "invited")
        )
    else:
        word, line = ("here", "joined") if came else ("away", "invited, not joined")
    open_invitation = (
        run.host and not you and workbench.federations.invitation(run, number).is_file()
    )
    link = f"/api/together/{run.id}/invitation/{number}" if open_invitation else None
    return SiteState(name=run.sites[number - 1], you=you, state=word, says=line, invitation=link)


def _page(
    request: Request,
    workbench: Workbench,
    number: str | None,
    dataset: str | None,
    new: bool,
) -> Response:
    context: dict[str, Any] = {"title": "Train together", "sets": [], "data_set": None, "run": None}
    identity = request.state.identity
    if identity is not None:
        owner = identity.can_somewhere("own")
        runs = [
            each
            for each in workbench.federations.listed()
            if identity.may("aggregator") or identity.can("own", each.dataset)
        ]
        run = None if new else next(iter(runs), None)
        if number is not None:
            run = next((each for each in runs if each.id == number), None)
            if run is None:
                raise Problem("not_found")
        sets, data_set = chosen(workbench, dataset) if owner else ([], None)
        if run is not None and owner:
            data_set = next((each for each in sets if each.id == run.dataset), data_set)
        context |= {
            "sets": sets,
            "data_set": data_set,
            "run": run,
            "runs": runs,
            "owner": owner,
            "most": MOST_SITES,
        }
        if data_set is not None:
            context["to_confirm"] = names_to_confirm(workbench.datasets, data_set)
            if run is None:
                context["two"] = _two(workbench, data_set)
        context["strip"] = _strip(workbench, data_set, run)
        if run is not None:
            context["state"] = _state(workbench, run)
            context["port"] = run.address
    return render(request, workbench, "together.html", context)


def _two(workbench: Workbench, data_set: DataSet) -> dict[str, Any]:
    """Return the state of training with one other site."""
    fitted = partner_model(workbench.datasets, data_set)
    return {
        "released": sending_plan(workbench.datasets, data_set).released,
        "result": fitted[0] if fitted else None,
        "job": workbench.jobs.under_way("send", dataset=data_set.id, step="statistics"),
        "epsilons": SEND_EPSILONS,
        "epsilon": SEND_EPSILON,
    }


def _strip(workbench: Workbench, data_set: DataSet | None, run: Run | None) -> TrustStrip:
    noise = run.epsilon if run is not None else None
    others = max(2, len(run.sites) - 1) if run is not None else 2
    says = (
        f"per photo, over {'one round' if run.rounds == 1 else f'all {run.rounds} rounds'}; "
        "smaller is safer"
        if run is not None and noise
        else "exact sums have no ε: with noise, what the sum reveals about a photo would be "
        "bounded, too"
    )
    return TrustStrip(
        leaves="Each round one encrypted update; it opens only as a sum with those of "
        f"{others} other sites.",
        stays="Your photos, labels and your own update.",
        promised=f"ε {plain(noise)}" if noise else "sums only",
        proven=f"ε {plain(noise)}" if noise else "none without noise",
        attacked="not yet" if noise else "the sum is exact",
        says=says,
        bar=budget_of(workbench, data_set) if data_set is not None else None,
        note="Paid for this run when it was joined."
        if noise
        else "Exact sums are not charged: they have no ε.",
    )
