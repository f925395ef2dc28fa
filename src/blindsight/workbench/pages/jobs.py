"""The API of background jobs: list them, look at one, stop it, run it again."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel

from blindsight.workbench.infra.access import Owner, Parts
from blindsight.workbench.infra.problems import documented

__all__ = ["JobState", "router"]

router = APIRouter(prefix="/api/jobs", tags=["jobs"])
JobId = Annotated[str, Path(pattern="^[0-9a-f]{16}$", description="A job's id.")]


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


@router.get("", summary="The latest jobs", responses=documented())
def listed(workbench: Parts, asker: Owner) -> list[JobState]:
    """Newest first, without their results."""
    return [_job_state({**job, "result": None}) for job in workbench.jobs.listed()]


@router.get("/{job}", summary="One job", responses=documented("not_found"))
def get(job: JobId, workbench: Parts, asker: Owner) -> JobState:
    """Progress and, at the end, the result."""
    return _job_state(workbench.jobs.get(job))


@router.post("/{job}/stop", summary="Stop a job", responses=documented("not_found", "conflict"))
async def stop(job: JobId, workbench: Parts, asker: Owner) -> JobState:
    """End a waiting or running job. What it charged stays charged."""
    return _job_state(await workbench.jobs.stop_job(job))


@router.post(
    "/{job}/rerun", summary="Run a job again", responses=documented("not_found", "conflict")
)
def rerun(job: JobId, workbench: Parts, asker: Owner) -> JobState:
    """Put an ended job back into the queue."""
    return _job_state(workbench.jobs.rerun(job))
