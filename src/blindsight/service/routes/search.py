"""Search: ask with a built-in picture or an upload; hits with the probability of a match, at a budget."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from blindsight.service.infra.access import Analyst, Parts, Studio
from blindsight.service.infra.identity import Identity
from blindsight.service.infra.pictures import SvgResponse, curves, draw
from blindsight.service.infra.problems import Problem, documented
from blindsight.service.infra.uploads import UPLOAD, read_upload
from blindsight.service.rooms.search import SearchRoom

__all__ = ["router"]

router = APIRouter(prefix="/api/search", tags=["search"])
Epsilon = Annotated[float, Query(gt=0, le=1000, description="Which released codes: their budget per record.")]
Count = Annotated[int, Query(ge=1, le=100, description="How many hits.")]
Least = Annotated[float, Query(ge=0, le=1, description="Only hits that match with at least this probability.")]
Beside = Annotated[bool, Query(description="Also the open ranking (owner only).")]


class Hit(BaseModel):
    """One found picture."""

    id: int | str
    probability: float
    picture: str | None = None


class Found(BaseModel):
    """Hits among released codes; for the owner also the ranking without privacy, and pictures."""

    epsilon: float
    threshold: float
    searched: int
    hits: list[Hit]
    open_hits: list[Hit] | None = None


class Budget(BaseModel):
    """Codes that were released at one budget, and what was measured on them."""

    epsilon: float
    map: float | None
    leak: float | None
    audited: float | None
    guarantee: dict[str, Any]


class About(BaseModel):
    """What can be searched."""

    name: str
    stored: int
    asked: int
    budgets: list[Budget]


@router.get("", summary="What can be searched, and at which budgets", responses=documented("preparing"))
def about(studio: Parts, asker: Analyst) -> About:
    """Each budget is one release, charged once to the gallery's own account."""
    room = _room(studio)
    return About(name=room.name, stored=room.size, asked=room.asked, budgets=[Budget(**f) for f in room.facts()])


@router.get("/pictures", summary="Pictures to ask about", responses=documented("preparing"))
def pictures(studio: Parts, asker: Analyst, count: Count = 40) -> list[str]:
    """Built-in, public pictures, as data URIs; the position is what `ask` takes."""
    room = _room(studio)
    return [p for i in range(min(count, room.asked)) if (p := room.picture(i)) is not None]


@router.post(
    "/ask",
    summary="Search with a built-in picture",
    response_model=Found,
    responses=documented("preparing", "budget", "ledger"),
)
async def ask(
    studio: Parts,
    asker: Analyst,
    query: Annotated[int, Query(ge=0, le=10_000, description="The picture's position.")],
    epsilon: Epsilon = 8.0,
    k: Count = 12,
    threshold: Least = 0.0,
    beside: Beside = False,
) -> Response:
    """The first search at a budget is charged to the key, per record; further ones see nothing new."""
    room = await studio.ledger_lane.run(_room, studio)
    if query >= room.asked:
        raise Problem("invalid")
    return await studio.ledger_lane.run(_answer, studio, asker, room, query, epsilon, k, threshold, beside)


@router.post(
    "/upload",
    summary="Search with an uploaded image",
    response_model=Found,
    openapi_extra=UPLOAD,
    responses=documented("preparing", "budget", "ledger", "refused_image"),
)
async def upload(
    request: Request,
    studio: Parts,
    asker: Analyst,
    epsilon: Epsilon = 8.0,
    k: Count = 12,
    threshold: Least = 0.0,
    beside: Beside = False,
) -> Response:
    """The image is decoded in a confined process, used for this search, and forgotten."""
    room = await studio.ledger_lane.run(_room, studio)
    pixels = await read_upload(request, studio.decoders)
    return await studio.ledger_lane.run(_answer, studio, asker, room, pixels, epsilon, k, threshold, beside)


@router.get(
    "/curves.svg",
    summary="mAP and leak against the budget",
    response_class=SvgResponse,
    responses=documented("preparing", "not_found"),
)
def plot(studio: Parts, asker: Analyst, epsilon: Epsilon = 8.0) -> Response:
    """Measured on the built-in gallery."""
    facts = [fact for fact in _room(studio).facts() if fact["map"] is not None]
    if not facts:
        raise Problem("not_found")
    marked = epsilon if any(f["epsilon"] == epsilon for f in facts) else None
    return SvgResponse(_curves(json.dumps(facts), marked))


@lru_cache(maxsize=32)
def _curves(measured: str, marked: float | None) -> str:
    """Drawn once for what was measured; drawing takes a tenth of a second and one lock."""
    facts = json.loads(measured)
    lines = {
        "mAP of the search": [(f["epsilon"], f["map"]) for f in facts],
        "leak: digits guessed from the index alone": [(f["epsilon"], f["leak"]) for f in facts],
    }
    levels = {"mAP without privacy": facts[-1]["open_map"], "guessing": 0.1}
    paint = curves(
        lines, xlabel="proven epsilon per record", ylabel="share", log=True, levels=levels, mark=marked, unit=True
    )
    return draw(paint)


def _answer(
    studio: Studio,
    asker: Identity,
    room: SearchRoom,
    query: Any,
    epsilon: float,
    k: int,
    threshold: float,
    beside: bool,
) -> Response:
    guarantee = room.guarantee(epsilon)
    studio.budgets.charge_once(asker, guarantee.cost, f"sees codes of {room.name} at epsilon {epsilon:g}")
    hits = room.ask(epsilon, query, k, threshold)
    owner = asker.role == "owner"
    opened = room.ask_openly(query, k) if owner and beside else None
    if owner:
        hits, opened = _pictured(room, hits), None if opened is None else _pictured(room, opened)
    body = {"epsilon": epsilon, "threshold": threshold, "searched": room.size, "hits": hits, "open_hits": opened}
    return JSONResponse(body)


def _pictured(room: SearchRoom, hits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**hit, "picture": room.thumbnail(hit["id"])} for hit in hits]


def _room(studio: Studio) -> SearchRoom:
    room: SearchRoom | None = studio.rooms.search.get()
    if room is None:
        raise studio.jobs.unprepared("search")
    return room
