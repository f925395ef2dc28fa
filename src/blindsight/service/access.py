"""What a route may ask for: the studio's parts, and an identity that may do this."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Request

from blindsight.service.identity import Identity, Role
from blindsight.service.problems import Problem

if TYPE_CHECKING:
    from blindsight.service.budgets import Budgets
    from blindsight.service.database import Database
    from blindsight.service.identity import Keys
    from blindsight.service.jobs import Jobs
    from blindsight.service.settings import Settings
    from blindsight.service.traffic import Metrics
    from blindsight.service.uploads import Decoders

__all__ = ["Analyst", "Anyone", "Asker", "Owner", "Studio", "Trainer", "studio_of"]


@dataclass
class Studio:
    """The parts that live as long as the studio does."""

    settings: Settings
    database: Database
    keys: Keys
    metrics: Metrics
    budgets: Budgets
    jobs: Jobs
    decoders: Decoders
    rooms: Any


# Dependencies are async although they wait for nothing: FastAPI sends plain functions to a thread, which costs more.
async def studio_of(request: Request) -> Studio:
    """The studio that answers this request."""
    found: Studio = request.app.state.studio
    return found


def _holder(*roles: Role) -> Callable[[Request], Awaitable[Identity]]:
    async def check(request: Request) -> Identity:
        identity: Identity | None = request.state.identity
        if identity is None:
            raise Problem("key_needed")
        if not identity.may(*roles):
            raise Problem("not_allowed")
        return identity

    return check


Parts = Annotated[Any, Depends(studio_of)]
Asker = Annotated[Identity, Depends(_holder("analyst", "aggregator"))]
Analyst = Annotated[Identity, Depends(_holder("analyst"))]
Trainer = Annotated[Identity, Depends(_holder("aggregator"))]
Owner = Annotated[Identity, Depends(_holder())]
Anyone = Parts
