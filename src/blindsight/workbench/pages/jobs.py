"""Jobs: look, stop, run again, fetch what they wrote."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from fastapi.responses import FileResponse
from pydantic import BaseModel

from blindsight.workbench.infra.access import Asker, Owner, Parts, Studio
from blindsight.workbench.infra.identity import Identity
from blindsight.workbench.infra.problems import Problem, documented

__all__ = ["REPORT", "JobState", "job_state", "router"]

router = APIRouter(prefix="/api/jobs", tags=["jobs"])
JobId = Annotated[str, Path(pattern="^[0-9a-f]{16}$", description="A job's id.")]

# Which files a job may hand out, and to whom; pictures of private pairs are for the owner.
_FILES: dict[str, dict[str, tuple[str, ...]]] = {
    "demo-federation": {"accuracy.svg": ("aggregator", "analyst")},
    "demo-metric": {"accuracy.svg": (), "graph.svg": (), "before.svg": (), "after.svg": ()},
    "demo-audit": dict.fromkeys(
        ("report.html", "report.md", "report.json", "cards.txt"), ("aggregator", "analyst")
    ),
}
_TYPES = {
    "svg": "image/svg+xml",
    "html": "text/html",
    "md": "text/markdown",
    "json": "application/json",
    "txt": "text/plain",
}
# A report carries its own style; opened from here it may do nothing else.
REPORT = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "sandbox"
}


class JobState(BaseModel):
    """How far a job is, and what it found."""

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


def _shown(asker: Identity, job: dict[str, Any]) -> bool:
    """Jobs on the owner's photos are the owner's: what they count is exact, and their arguments
    name data sets.
    """
    return asker.role == "owner" or str(job["kind"]).startswith("demo-")


def _found(studio: Studio, job: str, asker: Identity) -> dict[str, Any]:
    found = studio.jobs.get(job)
    if not _shown(asker, found):
        raise Problem("not_found")
    return found


def job_state(job: dict[str, Any], asker: Identity) -> JobState:
    """What this asker may see of a job."""
    result = job["result"]
    if isinstance(result, dict) and asker.role != "owner":
        if job["kind"] == "demo-metric":
            result = {"guarantee": result.get("guarantee")}
        views = result.get("views")
        if isinstance(views, dict):  # a user's own update is for that user
            result = {
                **result,
                "views": {name: value for name, value in views.items() if name != "has"},
            }
    return JobState(**{**{name: job[name] for name in JobState.model_fields}, "result": result})


@router.get("", summary="The latest jobs", responses=documented())
def listed(studio: Parts, asker: Asker) -> list[JobState]:
    """Newest first; results are left out. Those on the owner's photos are for the owner."""
    return [
        job_state({**job, "result": None}, asker)
        for job in studio.jobs.listed()
        if _shown(asker, job)
    ]


@router.get("/{job}", summary="One job", responses=documented("not_found"))
def get(job: JobId, studio: Parts, asker: Asker) -> JobState:
    """Progress and, at the end, the result."""
    return job_state(_found(studio, job, asker), asker)


@router.post("/{job}/stop", summary="Stop a job", responses=documented("not_found", "conflict"))
async def stop(job: JobId, studio: Parts, asker: Owner) -> JobState:
    """A waiting or running job ends; what it charged stays charged."""
    return job_state(await studio.jobs.stop_job(job), asker)


@router.post(
    "/{job}/rerun", summary="Run a job again", responses=documented("not_found", "conflict")
)
def rerun(job: JobId, studio: Parts, asker: Owner) -> JobState:
    """An ended job goes back into the queue."""
    return job_state(studio.jobs.rerun(job), asker)


@router.get(
    "/{job}/files/{name}",
    summary="A file that a job wrote",
    response_class=FileResponse,
    responses=documented("not_found", "elsewhere")
    | {200: {"content": {kind: {} for kind in _TYPES.values()}}},
)
def file(
    job: JobId,
    name: Annotated[
        str, Path(pattern="^[a-z]{1,20}\\.[a-z]{2,4}$", description="One of the job's files.")
    ],
    studio: Parts,
    asker: Asker,
) -> FileResponse:
    """A plot, the report, or the cards."""
    found = _found(studio, job, asker)
    allowed = _FILES.get(found["kind"], {})
    path = studio.jobs.folder(job) / name
    if name in allowed and not path.is_file() and found["runner"] not in (None, studio.jobs.runner):
        raise Problem("elsewhere")
    if name not in allowed or not path.is_file():
        raise Problem("not_found")
    if not asker.may(*allowed[name]):  # type: ignore[arg-type]
        raise Problem("not_allowed")
    kind = _TYPES[name.rpartition(".")[2]]
    shown = name.endswith(".svg")
    how = "inline" if shown else "attachment"
    headers = {} if shown else REPORT
    return FileResponse(
        path, media_type=kind, filename=name, content_disposition_type=how, headers=headers
    )
