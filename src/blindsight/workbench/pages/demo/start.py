"""Jobs that the demo starts: a federation, a metric, an audit of the papers."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from blindsight.workbench.infra.access import Owner, Parts, Trainer
from blindsight.workbench.infra.problems import documented
from blindsight.workbench.pages.jobs import JobState, job_state

__all__ = ["router"]

router = APIRouter(prefix="/api/demo", tags=["demo"])


class Federation(BaseModel):
    """A run of N users on built-in digits."""

    model_config = ConfigDict(extra="forbid")
    users: Annotated[int, Field(ge=3, le=50)] = 8
    rounds: Annotated[int, Field(ge=1, le=20)] = 6
    send: Literal["change", "top-k"] = "change"
    dropout: Annotated[float, Field(ge=0, le=0.8)] = 0.15
    encrypt: bool = True
    epsilon: Annotated[float, Field(ge=0.1, le=100)] | None = None


class Metric(BaseModel):
    """A metric from private pairs of the built-in strips."""

    model_config = ConfigDict(extra="forbid")
    epsilon: Annotated[float, Field(ge=0.1, le=100)] = 2.0
    unit: Literal["pair", "kappa pairs", "record"] = "pair"
    pairs: Annotated[int, Field(ge=30, le=600)] = 300
    cycles: bool = True


class Audit(BaseModel):
    """Attack every claim; `deep` takes ten times the trials."""

    model_config = ConfigDict(extra="forbid")
    deep: bool = False


@router.post(
    "/federation", status_code=202, summary="Start a federation", responses=documented("busy")
)
def federation(order: Federation, studio: Parts, asker: Trainer) -> JobState:
    """Poll the job: every round shows as it ends."""
    return job_state(studio.jobs.add("demo-federation", order.model_dump(), asker.name), asker)


@router.post("/metric", status_code=202, summary="Learn a metric", responses=documented("busy"))
def metric(order: Metric, studio: Parts, asker: Owner) -> JobState:
    """A few seconds."""
    return job_state(studio.jobs.add("demo-metric", order.model_dump(), asker.name), asker)


@router.post("/audit", status_code=202, summary="Run an audit", responses=documented("busy"))
def audit(order: Audit, studio: Parts, asker: Owner) -> JobState:
    """About a minute; ten with `deep`."""
    return job_state(studio.jobs.add("demo-audit", order.model_dump(), asker.name), asker)
