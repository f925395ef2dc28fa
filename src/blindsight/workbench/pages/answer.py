"""Answer: what a receiver asks for, shown to the owner, who decides. Nothing is sent."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from blindsight.app.library.answers import copy_chosen, requested_photos
from blindsight.app.release import request_signer
from blindsight.core.errors import InvalidParameter, MissingData
from blindsight.workbench.infra.access import DataSetId, Owner, Parts, Workbench
from blindsight.workbench.infra.problems import Problem, documented
from blindsight.workbench.infra.shell import render
from blindsight.workbench.pages.home import chosen

__all__ = ["router"]

router = APIRouter(tags=["answers"])
EntryId = Annotated[str, Field(min_length=1, max_length=200)]


class PhotoRequest(BaseModel):
    """The file that a receiver saved in `search.html`."""

    model_config = ConfigDict(extra="forbid")
    format: Literal["blindsight request 1"]
    release: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    ids: Annotated[list[EntryId], Field(max_length=1000)]
    message: Annotated[str, Field(max_length=2000)] = ""
    query: dict[str, str | bool] = {}
    key: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""
    signature: Annotated[str, Field(pattern="^([0-9a-f]{128})?$")] = ""


class CopyOrder(BaseModel):
    """A request, and the ids that the owner decided to hand over."""

    model_config = ConfigDict(extra="forbid")
    request: PhotoRequest
    chosen: Annotated[list[EntryId], Field(min_length=1, max_length=1000)]


class RequestedPhoto(BaseModel):
    """A photo that is asked for."""

    id: str
    name: str


class Requested(BaseModel):
    """What a request asks for, for the owner."""

    dataset: str
    name: str
    epsilon: float
    message: str
    signed_by: str
    photos: list[RequestedPhoto]
    unknown: int


class Copied(BaseModel):
    """Where the copies lie; the owner sends them, or deletes them."""

    folder: str
    count: int


@router.get("/answer", include_in_schema=False)
async def page(request: Request, workbench: Parts, dataset: str | None = None) -> Response:
    """Opening it looks up nothing."""
    return await workbench.ledger_lane.run(_page, request, workbench, dataset)


@router.post(
    "/api/answers/{dataset}",
    summary="Look up which photos a request asks for",
    responses=documented("not_found", "conflict"),
)
def look_up(dataset: DataSetId, asked: PhotoRequest, workbench: Parts, asker: Owner) -> Requested:
    """For the owner; that it was looked up is noted in the vault's log, without names."""
    signer = ""
    try:
        if asked.key or asked.signature:
            signer = request_signer(
                asked.format, asked.release, asked.message, asked.ids, asked.key, asked.signature
            )
    except ValueError as error:
        raise Problem("conflict") from error
    try:
        data_set = workbench.datasets.get(dataset)
        found = requested_photos(workbench.datasets, data_set, asked.release, asked.ids)
    except MissingData as error:
        raise Problem("not_found") from error
    return Requested(
        dataset=found.data_set.id,
        name=found.data_set.name,
        epsilon=found.release.epsilon,
        message="".join(x for x in asked.message if x.isprintable() or x == "\n"),
        signed_by=signer,
        photos=[RequestedPhoto(id=photo.id, name=photo.name) for photo in found.photos],
        unknown=found.unknown,
    )


@router.post(
    "/api/answers/{dataset}/copies",
    status_code=201,
    summary="Copy the photos that the owner chose into a new folder",
    responses=documented("not_found", "conflict"),
)
def copies(dataset: DataSetId, decision: CopyOrder, workbench: Parts, asker: Owner) -> Copied:
    """Nothing is sent. The number of photos is noted in the vault's log."""
    asked = decision.request
    try:
        data_set = workbench.datasets.get(dataset)
        made = copy_chosen(workbench.datasets, data_set, asked.release, asked.ids, decision.chosen)
    except MissingData as error:
        raise Problem("not_found") from error
    except InvalidParameter as error:
        raise Problem("conflict") from error
    return Copied(folder=str(made[0].parent), count=len(made))


def _page(request: Request, workbench: Workbench, dataset: str | None) -> Response:
    context: dict[str, object] = {"title": "Answer a request", "sets": [], "data_set": None}
    if request.state.identity is not None:
        sets, data_set = chosen(workbench, dataset)
        context |= {"sets": sets, "data_set": data_set}
    return render(request, workbench, "answer.html", context)
