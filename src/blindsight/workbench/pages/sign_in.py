"""Sign-in and sign-out: a session is opened with a key, with the secret of the start-up link, or by
the identity provider.
"""

from __future__ import annotations

import hmac

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from blindsight.workbench.infra.access import Parts, Workbench
from blindsight.workbench.infra.guard import SESSION_COOKIE, SIGN_ON_COOKIE
from blindsight.workbench.infra.identity import LOCAL, RequestIdentity
from blindsight.workbench.infra.problems import PROBLEMS, Problem
from blindsight.workbench.infra.shell import keep_cookie, render

__all__ = ["router", "signed_in"]

router = APIRouter(include_in_schema=False)
_LONGEST_KEY = 200
_SIGN_ON_SECONDS = 600
_WRONG_KEY = "That is not a valid key."
_BARRED = "You may not use this workbench. Ask its administrator."


@router.get("/login")
def login_page(request: Request, workbench: Parts) -> Response:
    """Render the page on which a key is entered or the identity provider is chosen."""
    return _login(request, workbench)


@router.post("/login")
async def login(request: Request, workbench: Parts) -> Response:
    """Open a session with a key; its cookie cannot be read by scripts."""
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
    return answer or _login(request, workbench, _WRONG_KEY, status=401)


@router.get("/login/oidc")
async def begin_sign_on(request: Request, workbench: Parts) -> Response:
    """Redirect to the identity provider."""
    if workbench.sign_on is None:
        raise Problem("not_found")
    try:
        address, cookie = await workbench.sign_on.begin(_callback(request, workbench))
    except Problem as problem:
        return _login(request, workbench, PROBLEMS[problem.code][1], status=problem.status_code)
    answer = RedirectResponse(address, status_code=303)
    # Lax, because the browser comes back from another site; a session's own cookie is strict.
    answer.set_cookie(
        workbench.settings.cookie(SIGN_ON_COOKIE),
        cookie,
        max_age=_SIGN_ON_SECONDS,
        path="/login/oidc",
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )
    return answer


@router.get("/login/oidc/callback")
async def finish_sign_on(request: Request, workbench: Parts) -> Response:
    """Open a session after the identity provider has authenticated a person."""
    if workbench.sign_on is None:
        raise Problem("not_found")
    try:
        person = await workbench.sign_on.finish(request.query_params, request.state.sign_on or "")
    except Problem as problem:
        workbench.metrics.count("sign_ins_refused")
        await workbench.access_log.write(action="sign in", outcome="refused")
        return _login(request, workbench, PROBLEMS[problem.code][1], status=problem.status_code)

    def note() -> tuple[RequestIdentity, str] | None:
        identity = workbench.keys.person(
            person.issuer, person.subject, person.name, person.label, person.groups
        )
        if identity is None:
            return None
        return identity, workbench.keys.open_session(identity, id_token=person.id_token)

    opened = await workbench.ledger_lane.run(note)
    if opened is None:
        workbench.metrics.count("sign_ins_refused")
        await workbench.access_log.write(actor=person.name, action="sign in", outcome="refused")
        return _login(request, workbench, _BARRED, status=403)
    await workbench.access_log.write(actor=opened[0].name, action="sign in", outcome="done")
    # A page that loads the next one, not a redirect: a browser does not send a strict cookie after
    # redirects that another site started.
    answer = render(request, workbench, "signed_in.html", {"title": "Signed in"})
    keep_cookie(answer, request, workbench.settings.cookie(SESSION_COOKIE), opened[1])
    answer.delete_cookie(workbench.settings.cookie(SIGN_ON_COOKIE), path="/login/oidc")
    return answer


@router.post("/logout")
async def logout(request: Request, workbench: Parts) -> Response:
    """End the session, and return the address that ends the identity provider's, if it has one."""
    answer = Response(status_code=204)
    if request.state.session:
        id_token = await workbench.ledger_lane.run(
            workbench.keys.close_session, request.state.session
        )
        if request.state.identity is not None:
            await workbench.access_log.write(
                actor=request.state.identity.name, action="sign out", outcome="done"
            )
        if workbench.sign_on is not None:
            back = str(request.url.replace(path="/login", query=""))
            address = await workbench.sign_on.sign_out_address(id_token, back)
            if address is not None:
                answer = JSONResponse({"next": address})
    answer.delete_cookie(workbench.settings.cookie(SESSION_COOKIE))
    return answer


def _login(
    request: Request, workbench: Workbench, failed: str | None = None, *, status: int = 200
) -> Response:
    context = {
        "title": "Sign in",
        "failed": failed,
        "sign_on": workbench.sign_on is not None,
    }
    return render(request, workbench, "login.html", context, status=status)


def _callback(request: Request, workbench: Workbench) -> str:
    configured = workbench.settings.oidc_redirect
    return configured or str(request.url.replace(path="/login/oidc/callback", query=""))


async def signed_in(
    request: Request, workbench: Workbench, key: str, *, link: bool = False
) -> Response | None:
    """Open a session and redirect to the first page; return None if the key is not valid.

    A link (`link`) works only with the start-up secret: with a key in it, a page of another site
    could sign its reader in as somebody else.
    """

    def look() -> tuple[RequestIdentity, str] | None:
        identity = workbench.keys.identify(key.strip()) if 0 < len(key) <= _LONGEST_KEY else None
        if identity is None or (link and identity != LOCAL):
            return None
        return identity, workbench.keys.open_session(identity)

    opened = await workbench.ledger_lane.run(look)
    if opened is None:
        workbench.metrics.count("sign_ins_refused")
        await workbench.access_log.write(action="sign in", outcome="refused")
        return None
    await workbench.access_log.write(actor=opened[0].name, action="sign in", outcome="done")
    answer = RedirectResponse("/", status_code=303)
    keep_cookie(answer, request, workbench.settings.cookie(SESSION_COOKIE), opened[1])
    return answer
