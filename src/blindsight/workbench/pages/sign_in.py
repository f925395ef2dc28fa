"""The way in and out: a key, or the secret of the link that was printed at the start, becomes a
session.
"""

from __future__ import annotations

import hmac

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from blindsight.workbench.infra.access import Parts, Workbench
from blindsight.workbench.infra.guard import SESSION_COOKIE
from blindsight.workbench.infra.identity import LOCAL, Identity
from blindsight.workbench.infra.problems import Problem
from blindsight.workbench.infra.shell import keep_cookie, render

__all__ = ["router", "signed_in"]

router = APIRouter(include_in_schema=False)
_LONGEST_KEY = 200


@router.get("/login")
def login_page(request: Request, workbench: Parts) -> Response:
    """Where a key is pasted."""
    return render(request, workbench, "login.html", {"title": "Sign in", "failed": False})


@router.post("/login")
async def login(request: Request, workbench: Parts) -> Response:
    """A key becomes a session in a cookie that scripts cannot read."""
    if (
        request.headers.get("content-type", "").partition(";")[0]
        != "application/x-www-form-urlencoded"
    ):
        raise Problem("wrong_type")
    form = await request.form()
    token, key = str(form.get("csrf", "")), str(form.get("key", ""))
    if not request.state.csrf or not hmac.compare_digest(
        request.state.csrf.encode(), token.encode()
    ):
        raise Problem("cross_site")
    answer = await signed_in(request, workbench, key)
    return answer or render(
        request, workbench, "login.html", {"title": "Sign in", "failed": True}, status=401
    )


@router.post("/logout")
def logout(request: Request, workbench: Parts) -> Response:
    """Ends the session."""
    if request.state.session:
        workbench.keys.close_session(request.state.session)
    answer = Response(status_code=204)
    answer.delete_cookie(workbench.settings.cookie(SESSION_COOKIE))
    return answer


async def signed_in(
    request: Request, workbench: Workbench, key: str, *, link: bool = False
) -> Response | None:
    """To the first page with a session, or None where the key is nobody's.

    A link opens for the start-up secret only: with a key in it, a stranger's page could sign its
    reader in as another.
    """

    def look() -> tuple[Identity, str] | None:
        identity = workbench.keys.identify(key.strip()) if 0 < len(key) <= _LONGEST_KEY else None
        if identity is None or (link and identity != LOCAL):
            return None
        return identity, workbench.keys.open_session(identity)

    found = await workbench.ledger_lane.run(look)
    if found is None:
        return None
    answer = RedirectResponse("/", status_code=303)
    keep_cookie(answer, request, workbench.settings.cookie(SESSION_COOKIE), found[1])
    return answer
