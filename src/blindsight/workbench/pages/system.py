"""Health, metrics, background jobs, and the API's documentation with an installed Swagger UI."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi import Path as PathParameter
from fastapi.responses import HTMLResponse, PlainTextResponse
from pydantic import BaseModel

from blindsight import __version__
from blindsight.workbench.infra.access import Owner, Parts
from blindsight.workbench.infra.problems import documented

__all__ = ["JobState", "jobs_router", "router"]

router = APIRouter(tags=["system"])
jobs_router = APIRouter(prefix="/api/jobs", tags=["jobs"])


JobId = Annotated[str, PathParameter(pattern="^[0-9a-f]{16}$", description="A job's id.")]


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


class JobState(BaseModel):
    """The state of a job, its progress and its result."""

    id: str
    kind: str
    state: str
    done: int
    total: int
    note: str
    made: str
    ended: str | None
    arguments: dict[str, Any]
    result: Any


def _job_state(job: dict[str, Any]) -> JobState:
    return JobState(**{name: job[name] for name in JobState.model_fields})


@jobs_router.get("", summary="The latest jobs", responses=documented())
def listed(workbench: Parts, asker: Owner) -> list[JobState]:
    """Newest first, without their results."""
    return [_job_state({**job, "result": None}) for job in workbench.jobs.listed()]


@jobs_router.get("/{job}", summary="One job", responses=documented("not_found"))
def get(job: JobId, workbench: Parts, asker: Owner) -> JobState:
    """Progress and, at the end, the result."""
    return _job_state(workbench.jobs.get(job))


@jobs_router.post(
    "/{job}/stop", summary="Stop a job", responses=documented("not_found", "conflict")
)
async def stop(job: JobId, workbench: Parts, asker: Owner) -> JobState:
    """End a waiting or running job. What it charged stays charged."""
    return _job_state(await workbench.jobs.stop_job(job))


@jobs_router.post(
    "/{job}/rerun", summary="Run a job again", responses=documented("not_found", "conflict")
)
def rerun(job: JobId, workbench: Parts, asker: Owner) -> JobState:
    """Put an ended job back into the queue."""
    return _job_state(workbench.jobs.rerun(job))
