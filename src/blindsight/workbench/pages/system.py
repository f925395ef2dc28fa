"""Health, metrics, and the API's documentation with Swagger UI from an installed package."""

from __future__ import annotations

import resource
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, PlainTextResponse
from pydantic import BaseModel

from blindsight import __version__
from blindsight.workbench.infra.access import Owner, Parts
from blindsight.workbench.infra.problems import documented

__all__ = ["router"]

router = APIRouter(tags=["system"])


class Health(BaseModel):
    """Whether the workbench can work."""

    status: str
    version: str
    decoder: list[str]


@router.get("/health", summary="Is the workbench well?", responses=documented("ledger"))
async def health(workbench: Parts) -> Health:
    """Answers once the database can be read; on threads of its own, so that no other work delays
    it.
    """
    await workbench.health_lane.run(workbench.jobs.counts)
    return Health(status="ok", version=__version__, decoder=list(workbench.decoders.known_walls()))


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    summary="Counts for Prometheus",
    responses=documented(),
)
def metrics(workbench: Parts, asker: Owner) -> PlainTextResponse:
    """Requests, seconds, charges, refused images, jobs, memory."""
    gauges = {f"jobs_{state}": float(n) for state, n in workbench.jobs.counts().items()}
    gauges["resident_bytes"] = _resident()
    gauges["peak_resident_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
    return PlainTextResponse(workbench.metrics.page(gauges), media_type="text/plain; version=0.0.4")


@router.get("/docs", include_in_schema=False)
def docs(request: Request) -> HTMLResponse:
    """Swagger UI, from this machine."""
    answer: HTMLResponse = request.app.state.templates.TemplateResponse(request, "docs.html", {})
    return answer


def _resident() -> float:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * float(resource.getpagesize())
    except OSError:
        return 0.0
