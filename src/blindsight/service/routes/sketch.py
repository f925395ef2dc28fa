"""Sketches: original, what is sent, what attackers recover, for Q1 to Q12."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from blindsight.service.infra.access import Asker, Parts
from blindsight.service.infra.pictures import COLOURS, INK, SvgResponse, data_uri, draw
from blindsight.service.infra.problems import documented
from blindsight.service.infra.uploads import UPLOAD, read_upload

__all__ = ["router"]

router = APIRouter(prefix="/api/sketch", tags=["sketch"])
Setting = Annotated[
    Literal["Q1", "Q2", "Q3", "Q4", "Q5", "Q6", "Q7", "Q8", "Q9", "Q10", "Q11", "Q12"],
    Query(description="The paper's settings; Q3 hides most, Q12 hands the picture over."),
]


class Shown(BaseModel):
    """Pictures as data URIs, and what the setting gives away."""

    setting: str
    original: str
    sent: str
    recovered: str
    recovered_prior: str | None
    psnr: float
    bytes_image: int
    bytes_sent: int
    right: float
    first_bit: float
    epsilon_pixel: float | None
    verdict: str


@router.get("", summary="Leak and accuracy of every setting", responses=documented())
def about(studio: Parts, asker: Asker) -> dict[str, Any]:
    """Empty until the attackers have been trained in the background."""
    facts: dict[str, Any] = studio.rooms.sketch.get().facts()
    return facts


@router.get("/pictures", summary="Pictures to sketch", responses=documented())
def pictures(studio: Parts, asker: Asker) -> list[str]:
    """Built-in, public digits."""
    return [data_uri(image) for image in studio.rooms.sketch.get().samples]


@router.post("/show", summary="Sketch a built-in picture", responses=documented())
def show(
    studio: Parts,
    asker: Asker,
    query: Annotated[int, Query(ge=0, le=11, description="The picture's position.")] = 0,
    setting: Setting = "Q3",
) -> Shown:
    """A sketch carries no epsilon, so nothing is charged: read the verdict."""
    return Shown(**studio.rooms.sketch.get().show(setting, query))


@router.post(
    "/upload", summary="Sketch an uploaded image", openapi_extra=UPLOAD, responses=documented("refused_image", "busy")
)
async def upload(request: Request, studio: Parts, asker: Asker, setting: Setting = "Q3") -> Shown:
    """The image is decoded in a confined process, sketched, and forgotten."""
    pixels = await read_upload(request, studio.decoders)
    return Shown(**await run_in_threadpool(lambda: studio.rooms.sketch.get().show(setting, pixels)))


@router.get(
    "/curves.svg", summary="Accuracy against leak", response_class=SvgResponse, responses=documented("preparing")
)
def plot(studio: Parts, asker: Asker, setting: Setting = "Q3") -> Response:
    """Each setting is a point: what a classifier learns from sketches, against what an attacker sees."""
    facts = studio.rooms.sketch.get().facts()
    if not facts:
        raise studio.jobs.unprepared("sketch")
    return SvgResponse(_curves(json.dumps(facts), setting))


@lru_cache(maxsize=32)
def _curves(measured: str, setting: str) -> str:
    facts = json.loads(measured)

    def paint(axes: Any) -> None:
        for name, fact in facts.items():
            here = name == setting
            colour = COLOURS[1] if here else COLOURS[0]
            x = max(fact["psnr"], fact["psnr_prior"])
            axes.scatter(x, fact["accuracy"], s=70 if here else 26, color=colour, zorder=3)
            axes.annotate(name, (x, fact["accuracy"]), (5, 4), textcoords="offset points", fontsize=9, color=INK)
        axes.set_xlabel("leak: PSNR in dB of the better attacker")
        axes.set_ylabel("accuracy from sketches")

    return draw(paint)
