"""Train together: how sites learn one model while photos stay where they are, and the commands that run it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from blindsight.service.infra.access import Parts, Studio
from blindsight.service.infra.shell import Strip, render
from blindsight.service.pages.home import budget_of, chosen

__all__ = ["router"]

router = APIRouter(tags=["together"])


@router.get("/together", include_in_schema=False)
async def page(request: Request, studio: Parts, dataset: str | None = None) -> Response:
    """Opening it links this machine to nobody."""
    return await studio.ledger_lane.run(_page, request, studio, dataset)


def _page(request: Request, studio: Studio, dataset: str | None) -> Response:
    context: dict[str, Any] = {"title": "Train together", "sets": [], "one": None}
    identity = request.state.identity
    if identity is not None:
        owner = identity.role == "owner"
        sets, one = chosen(studio, dataset) if owner else ([], None)
        context |= {"sets": sets, "one": one}
        context["strip"] = Strip(
            leaves="Each round one locked update; it opens only as a sum with those of at least two other sites.",
            stays="Your photos, labels and your own update.",
            promised="sums only",
            proven="none without noise",
            attacked="the sum is exact",
            says="with --epsilon the sum carries noise, and the card states ε per site over all rounds",
            bar=budget_of(studio, one) if one is not None else None,
            note="Nothing is set aside: no run is under way here.",
        )
    return render(request, studio, "together.html", context, roles=("aggregator",))
