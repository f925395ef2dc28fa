"""The demo's pages: an overview, and one for each method."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from blindsight.workbench.infra.access import Parts, Studio
from blindsight.workbench.infra.problems import Problem
from blindsight.workbench.infra.shell import Bar, Strip, bar_of, render
from blindsight.workbench.pages.demo.facts import PAGES, page_facts

__all__ = ["router"]

router = APIRouter(include_in_schema=False, prefix="/demo")


@router.get("")
def overview(request: Request, studio: Parts) -> Response:
    """What there is to try."""
    return render(
        request,
        studio,
        "demo.html",
        {"title": "Demo", "demos": PAGES},
        roles=("analyst", "aggregator"),
    )


@router.get("/{page}")
async def page(page: str, request: Request, studio: Parts) -> Response:
    """Search, sketch, federation, metric, tags, papers."""
    if page not in PAGES:
        raise Problem("not_found")
    return await studio.ledger_lane.run(_page, request, studio, page)


def _page(request: Request, studio: Studio, page: str) -> Response:
    known, identity = PAGES[page], request.state.identity
    context: dict[str, object] = {"title": known.title, "page": page, "demos": PAGES}
    if identity is not None and identity.may(*known.roles):
        facts = page_facts(studio, page)
        bar: Bar = bar_of(studio.budgets.ledger(identity).balance(known.unit))  # type: ignore[arg-type]
        context["strip"] = Strip(
            leaves=facts.leaves,
            stays=facts.stays,
            promised=facts.claimed,
            proven=facts.proven,
            attacked=facts.audited,
            says=facts.unit,
            bar=bar,
            note="your own account in this demo",
        )
    return render(request, studio, f"demo/{page}.html", context, roles=known.roles)
