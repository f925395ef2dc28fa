"""Health, metrics, background jobs, and the API's documentation with an installed Swagger UI."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi import Path as PathParameter
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel
from sqlalchemy.exc import SQLAlchemyError

from blindsight import __version__
from blindsight.core.errors import BlindsightError
from blindsight.workbench.infra.access import Monitor, Owner, Parts, Signed
from blindsight.workbench.infra.database import SCHEMA
from blindsight.workbench.infra.problems import Problem, documented

__all__ = ["JobState", "jobs_router", "router"]

router = APIRouter(tags=["system"])
LEAST_FREE_BYTES = 50 << 20  # below this, writing the ledger or the access log may fail
jobs_router = APIRouter(prefix="/api/jobs", tags=["jobs"])


JobId = Annotated[str, PathParameter(pattern="^[0-9a-f]{16}$", description="A job's id.")]


class Health(BaseModel):
    """Whether the workbench can work."""

    status: str
    version: str
    decoder: list[str]


@router.get("/health", summary="Is the workbench healthy?", responses=documented("ledger"))
async def health(workbench: Parts) -> Health:
    """The answer comes once the database was read, on threads that no other work delays."""
    await workbench.health_lane.run(workbench.jobs.counts)
    return Health(status="ok", version=__version__, decoder=list(workbench.decoders.known_walls()))


@router.get("/health/live", summary="Is the process alive?", responses=documented())
async def live(workbench: Parts) -> Health:
    """The process answers; neither the database nor the disk is used."""
    return Health(status="ok", version=__version__, decoder=list(workbench.decoders.known_walls()))


class Readiness(BaseModel):
    """Which parts are ready; it is public, so it contains nothing about the data."""

    ready: bool
    parts: dict[str, bool]


@router.get(
    "/health/ready",
    summary="Can the workbench take work?",
    response_model=Readiness,
    responses=documented("not_ready"),
)
async def ready(workbench: Parts) -> Response:
    """The database, the ledger, the access log and the disk; 503 if one of them is not ready."""

    def look() -> dict[str, bool]:
        return {
            "database": _works(lambda: workbench.database.schema() == SCHEMA),
            "ledger": _works(lambda: workbench.budgets.names() is not None),
            "access log": _works(lambda: workbench.access_log.head().sequence >= 0),
            "disk": _works(
                lambda: shutil.disk_usage(workbench.settings.state).free > LEAST_FREE_BYTES
            ),
        }

    parts = await workbench.health_lane.run(look)
    answer = Readiness(ready=all(parts.values()), parts=parts)
    return JSONResponse(answer.model_dump(), status_code=200 if answer.ready else 503)


def _works(check: Callable[[], bool]) -> bool:
    try:
        return check()
    except (SQLAlchemyError, BlindsightError, OSError):
        return False


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    summary="Counts for Prometheus",
    responses=documented(),
)
def metrics(workbench: Parts, asker: Monitor) -> PlainTextResponse:
    """Requests and their time, charges, images, jobs, sessions, disk and memory."""
    states = dict.fromkeys(("queued", "running", "done", "failed", "stopped", "interrupted"), 0)
    counts = states | workbench.jobs.counts()
    gauges = {f"jobs_{state}": float(n) for state, n in counts.items()}
    gauges["access_records"] = float(workbench.access_log.head().sequence)
    gauges["sessions"] = float(workbench.keys.open_sessions())
    gauges["free_disk_bytes"] = float(shutil.disk_usage(workbench.settings.state).free)
    gauges |= workbench.budgets.totals()
    gauges["resident_bytes"], gauges["peak_resident_bytes"] = _resident()
    return PlainTextResponse(workbench.metrics.page(gauges), media_type="text/plain; version=0.0.4")


@router.get("/docs", include_in_schema=False)
def docs(request: Request) -> HTMLResponse:
    """Render Swagger UI from the installed package."""
    answer: HTMLResponse = request.app.state.templates.TemplateResponse(request, "docs.html", {})
    return answer


def _resident() -> tuple[float, float]:
    """Return the present and the largest memory use in bytes; 0 if they are not known."""
    try:
        import resource

        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
        return int(pages) * float(resource.getpagesize()), peak
    except (ImportError, OSError):  # Windows; macOS
        return 0.0, 0.0


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


@jobs_router.get("", summary="Jobs", responses=documented())
def listed(
    workbench: Parts,
    asker: Signed,
    state: Annotated[
        Literal["queued", "running", "done", "failed", "stopped", "interrupted"] | None,
        Query(description="Only jobs in this state."),
    ] = None,
    before: Annotated[
        int | None, Query(ge=1, description="Only jobs with a lower number: the next page.")
    ] = None,
    most: Annotated[int, Query(ge=1, le=500, description="How many.")] = 50,
) -> list[JobState]:
    """The newest first, without results: all jobs for the owner of the workbench, otherwise those
    of the asker's data sets. Jobs are never deleted.
    """
    datasets = None
    if not asker.may():
        if not asker.can_somewhere("own"):
            raise Problem("not_allowed")
        datasets = frozenset(data_set.id for data_set in workbench.visible("own"))
    jobs = workbench.jobs.listed(state=state, datasets=datasets, before=before, most=most)
    return [_job_state({**job, "result": None}) for job in jobs]


@jobs_router.get("/{job}", summary="One job", responses=documented("not_found"))
def get(job: JobId, workbench: Parts, asker: Owner) -> JobState:
    """Progress and, at the end, the result."""
    row = workbench.jobs.get(job)
    if row["state"] == "failed" and not asker.can("own", str(row["dataset"] or "")):
        # An auditor may start an attack, and an error may name photos.
        row = {**row, "note": "It ended with an error; the data set's owner can see which."}
    return _job_state(row)


@jobs_router.post(
    "/{job}/stop", summary="Stop a job", responses=documented("not_found", "conflict")
)
async def stop(job: JobId, workbench: Parts, asker: Owner) -> JobState:
    """Stop a queued or running job. What it charged stays charged."""
    return _job_state(await workbench.jobs.stop_job(job))


@jobs_router.post(
    "/{job}/rerun", summary="Run a job again", responses=documented("not_found", "conflict")
)
def rerun(job: JobId, workbench: Parts, asker: Owner) -> JobState:
    """Put an ended job back into the queue."""
    return _job_state(workbench.jobs.rerun(job))


class JobEvent(BaseModel):
    """A change of a job's state."""

    time: str
    attempt: int
    state: str
    note: str


@jobs_router.get(
    "/{job}/history", summary="What happened to a job", responses=documented("not_found")
)
def history(job: JobId, workbench: Parts, asker: Owner) -> list[JobEvent]:
    """The events of all attempts, in order."""
    return [JobEvent(**event) for event in workbench.jobs.history(job)]
