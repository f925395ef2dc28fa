"""The pages: plain HTML that says what leaves, the three numbers and the balance; the rest comes from the API."""

from __future__ import annotations

import hmac
import secrets
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from blindsight import __version__
from blindsight.service.facts import PAGES, balance_of, page_facts
from blindsight.service.infra.access import Parts, Studio
from blindsight.service.infra.guard import CSRF_COOKIE, SESSION_COOKIE
from blindsight.service.infra.identity import SESSION_SECONDS, Identity
from blindsight.service.infra.problems import PROBLEMS, Problem

__all__ = ["router"]

router = APIRouter(include_in_schema=False)
_LONGEST_KEY = 200


@router.get("/")
async def home(request: Request, studio: Parts, token: str | None = None) -> Response:
    """The first page; with the secret of the link that was printed at the start, the way in."""
    if token is None:
        return RedirectResponse("/search", status_code=303)
    identity = await studio.ledger_lane.run(_known, studio, token)
    if identity is None:
        return RedirectResponse("/login", status_code=303)
    return await studio.ledger_lane.run(_welcome, request, studio, identity)


@router.get("/login")
def login_page(request: Request, studio: Parts) -> Response:
    """Where a key is pasted."""
    return _render(request, studio, "login.html", None, {"title": "Sign in", "failed": False})


@router.post("/login")
async def login(request: Request, studio: Parts) -> Response:
    """A key becomes a session in a cookie that scripts cannot read."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/x-www-form-urlencoded":
        raise Problem("wrong_type")
    form = await request.form()
    token, key = str(form.get("csrf", "")), str(form.get("key", ""))
    if not request.state.csrf or not hmac.compare_digest(request.state.csrf.encode(), token.encode()):
        raise Problem("cross_site")
    identity = await studio.ledger_lane.run(_known, studio, key)
    if identity is None:
        context = {"title": "Sign in", "failed": True}
        return _render(request, studio, "login.html", None, context, status=401)
    return await studio.ledger_lane.run(_welcome, request, studio, identity)


@router.post("/logout")
def logout(request: Request, studio: Parts) -> Response:
    """Ends the session."""
    token = request.cookies.get(SESSION_COOKIE)
    if token:
        studio.keys.close_session(token)
    answer = Response(status_code=204)
    answer.delete_cookie(SESSION_COOKIE)
    return answer


def _known(studio: Studio, key: str) -> Identity | None:
    return studio.keys.identify(key.strip()) if 0 < len(key) <= _LONGEST_KEY else None


def _welcome(request: Request, studio: Studio, identity: Identity) -> Response:
    """To the first page, with a session in a cookie that scripts cannot read."""
    answer = RedirectResponse("/", status_code=303)
    _keep(answer, request, SESSION_COOKIE, studio.keys.open_session(identity))
    return answer


@router.get("/{page}")
async def page(page: str, request: Request, studio: Parts) -> Response:
    """Search, Sketch, Federation, Metric, Tags, Ledger and audit."""
    if page not in PAGES:
        raise Problem("not_found")
    identity: Identity | None = request.state.identity
    if identity is None:
        return RedirectResponse("/login", status_code=303)
    if not identity.may(*PAGES[page].roles):
        return _render(request, studio, "refused.html", identity, {"title": PAGES[page].title}, status=403)
    return await studio.ledger_lane.run(_page, request, studio, identity, page)


def _page(request: Request, studio: Studio, identity: Identity, page: str) -> Response:
    context = {
        "title": PAGES[page].title,
        "facts": page_facts(studio, page),
        "balance": balance_of(studio, identity, page),
    }
    return _render(request, studio, f"{page}.html", identity, context | {"page": page})


def not_found_page(request: Request, studio: Studio, problem: Problem) -> Response:
    """An error for people."""
    identity = getattr(request.state, "identity", None)
    context = {"title": "Not here", "sentence": PROBLEMS[problem.code][1]}
    return _render(request, studio, "error.html", identity, context, status=problem.status_code)


def _render(
    request: Request, studio: Studio, name: str, identity: Identity | None, context: dict[str, Any], status: int = 200
) -> Response:
    token = getattr(request.state, "csrf", None) or secrets.token_urlsafe(24)
    pages = {address: known for address, known in PAGES.items() if identity is not None and identity.may(*known.roles)}
    shared = {
        "identity": identity,
        "open": studio.settings.open,
        "local": studio.settings.local,
        "csrf": token,
        "pages": pages,
        "version": __version__,
    }
    answer = request.app.state.templates.TemplateResponse(request, name, shared | context, status_code=status)
    if getattr(request.state, "csrf", None) != token:
        _keep(answer, request, CSRF_COOKIE, token)
    return answer


def _keep(answer: Response, request: Request, name: str, value: str) -> None:
    answer.set_cookie(
        name,
        value,
        max_age=int(SESSION_SECONDS),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
