"""Tags: one private answer a question, charged before it leaves."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel

from blindsight.service.infra.access import Analyst, Parts, Studio
from blindsight.service.infra.identity import Identity
from blindsight.service.infra.problems import documented
from blindsight.service.infra.uploads import UPLOAD, read_upload

__all__ = ["router"]

router = APIRouter(prefix="/api/tags", tags=["tags"])


class Tag(BaseModel):
    """A tag and its score."""

    tag: str
    score: float


class Answer(BaseModel):
    """What left, what it cost, what is left; for the owner also what the noise hid, and what asking on would show."""

    tags: list[Tag]
    spent: float
    remaining: float
    answers_left: int
    open_tags: list[Tag] | None = None
    repeats: list[tuple[int, float]] | None = None


@router.get("", summary="What an answer costs", responses=documented("preparing"))
def about(studio: Parts, asker: Analyst) -> dict[str, Any]:
    """Measured quality, and the guarantees of answers and training."""
    room = _room(studio)
    return {**room.facts, "names": room.names, "scenes": len(room.scenes)}


@router.get("/pictures", summary="Scenes to ask about", responses=documented("preparing"))
def pictures(studio: Parts, asker: Analyst) -> list[str]:
    """Built-in scenes of one to four digits."""
    room = _room(studio)
    return [room.picture(i) for i in range(len(room.scenes))]


@router.post("/ask", summary="Tags of a built-in scene", responses=documented("preparing", "budget", "ledger"))
async def ask(
    studio: Parts,
    asker: Analyst,
    query: Annotated[int, Query(ge=0, le=23, description="The scene's position.")],
    beside: Annotated[bool, Query(description="Also what the noise hides (owner only).")] = False,
) -> Answer:
    """Every answer costs, also the second about the same scene."""
    return await studio.ledger_lane.run(_answer, studio, asker, query, beside)


@router.post(
    "/upload",
    summary="Tags of an uploaded image",
    openapi_extra=UPLOAD,
    responses=documented("preparing", "budget", "ledger", "refused_image"),
)
async def upload(
    request: Request,
    studio: Parts,
    asker: Analyst,
    beside: Annotated[bool, Query(description="Also what the noise hides (owner only).")] = False,
) -> Answer:
    """The image is decoded in a confined process, answered about, and forgotten."""
    await studio.ledger_lane.run(_room, studio)
    pixels = await read_upload(request, studio.decoders)
    return await studio.ledger_lane.run(_answer, studio, asker, pixels, beside)


def _answer(studio: Studio, asker: Identity, query: Any, beside: bool) -> Answer:
    room = _room(studio)
    logits = room.look(query)
    studio.budgets.charge(asker, room.cost, "tags of one image")
    tags = room.answer(logits)
    left = studio.budgets.ledger(asker).balance("query").remaining
    each = room.cost.epsilon
    owner = asker.role == "owner" and beside
    return Answer(
        tags=[Tag(**tag) for tag in tags],
        spent=each,
        remaining=left.epsilon,
        answers_left=int(left.epsilon / each + 1e-9),
        open_tags=[Tag(**tag) for tag in room.openly(logits)] if owner else None,
        repeats=room.repeats(logits) if owner else None,
    )


def _room(studio: Studio) -> Any:
    room = studio.rooms.tags.get()
    if room is None:
        raise studio.jobs.unprepared("tags")
    return room
