"""What every page has: the navigation, the strip that says what leaves and what it costs, the
budget bar.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fastapi import Request
from fastapi.responses import RedirectResponse, Response

from blindsight import __version__
from blindsight.app.result import counted
from blindsight.workbench.infra.access import Workbench
from blindsight.workbench.infra.guard import CSRF_COOKIE
from blindsight.workbench.infra.identity import SESSION_SECONDS, RequestIdentity, Right, Role
from blindsight.workbench.infra.problems import PROBLEMS, Problem

if TYPE_CHECKING:
    from blindsight.privacy.ledger import Balance

__all__ = [
    "NAVIGATION",
    "Bar",
    "Page",
    "TrustStrip",
    "bar_of",
    "day",
    "error_page",
    "keep_cookie",
    "plain",
    "price_of",
    "render",
]


@dataclass(frozen=True)
class Page:
    """A page's address, its name in the navigation, and who may open it besides the owner.

    Parameters:
        address: the page's path.
        title: what the navigation calls it.
        roles: roles of the workbench that may open it.
        right: a right on some data set that opens it; None where the owner alone may.
    """

    address: str
    title: str
    roles: tuple[Role, ...] = ()
    right: Right | None = "own"

    def opens_for(self, identity: RequestIdentity) -> bool:
        """Whether somebody may open it; what it then shows depends on the rights as well."""
        return identity.may(*self.roles) or (
            self.right is not None and identity.can_somewhere(self.right)
        )


NAVIGATION = (
    Page("/", "Home"),
    Page("/search", "Search", right="search"),
    Page("/protect", "Protect"),
    Page("/tags", "Tags"),
    Page("/compare", "Compare"),
    Page("/together", "Train together", ("aggregator",)),
    Page("/send", "Send"),
    Page("/budget", "History", ("analyst", "aggregator"), right="history"),
    Page("/people", "People", right=None),
)


@dataclass(frozen=True)
class Bar:
    """A budget as a bar: spent, this release, left; in epsilon, per `unit`."""

    total: float
    spent: float
    unit: str
    this: float = 0.0

    @property
    def left(self) -> float:
        """What is left now, before this release, in whole hundredths: nothing is sold for less."""
        return max(0.0, math.floor(100 * (self.total - self.spent) + 1e-6) / 100)

    @property
    def widths(self) -> tuple[int, int, int]:
        """Spent, this and left in steps of the bar's hundred."""
        if self.total <= 0:
            return 0, 0, 0
        spent = min(100, round(100 * self.spent / self.total))
        this = min(100 - spent, round(100 * self.this / self.total))
        return spent, this, 100 - spent - this


@dataclass(frozen=True)
class TrustStrip:
    """What leaves, what stays, three numbers and what they are numbers of, and the budget."""

    leaves: str
    stays: str
    promised: str
    proven: str
    attacked: str
    says: str
    bar: Bar | None = None
    note: str = ""
    attacked_word: str = "measured by attack"
    line: str = "Nothing leaves by itself"


def bar_of(balance: Balance, *, this: float = 0.0, word: str | None = None) -> Bar:
    """A ledger's balance as a bar."""
    unit = word or {"record": "photo", "query": "question"}.get(balance.unit, balance.unit)
    return Bar(balance.budget.epsilon, balance.spent.epsilon, unit, this)


def plain(value: float) -> str:
    """A number for people: at most four digits that mean something, and no trailing zeros."""
    if value == float("inf"):
        return "no limit"
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "0" if text in ("-0", "") else text


def day(moment: str) -> str:
    """The day of a moment, as people write it: 9 Nov 2026."""
    return f"{datetime.fromisoformat(moment):%d %b %Y}".removeprefix("0")


def price_of(epsilon: float) -> str:
    """What was paid, in whole hundredths, never less than it was."""
    return plain(math.ceil(100 * epsilon - 1e-6) / 100)


def render(
    request: Request,
    workbench: Workbench,
    name: str,
    context: dict[str, Any],
    *,
    status: int = 200,
) -> Response:
    """A page, for whoever may see it; others are sent to sign in, or told."""
    identity: RequestIdentity | None = getattr(request.state, "identity", None)
    public = name in ("login.html", "error.html", "signed_in.html")
    if identity is None and not public:
        return RedirectResponse("/login", status_code=303)
    if identity is not None and not public and not _page_of(request).opens_for(identity):
        name, status = "refused.html", 403
    data_set = context.get("data_set")
    if data_set is not None:
        request.state.dataset = data_set.id  # for the access log
    token = getattr(request.state, "csrf", None) or secrets.token_urlsafe(24)
    shared = {
        "identity": identity,
        "open": workbench.settings.open,
        "local": workbench.settings.local,
        "csrf": token,
        "version": __version__,
        "navigation": [p for p in NAVIGATION if identity is not None and p.opens_for(identity)],
        "linked": workbench.federations.linked() if identity is not None else 0,
        "here": request.url.path,
        "plain": plain,
        "counted": counted,
        "day": day,
    }
    answer: Response = request.app.state.templates.TemplateResponse(
        request, name, shared | context, status_code=status
    )
    if getattr(request.state, "csrf", None) != token:
        keep_cookie(answer, request, workbench.settings.cookie(CSRF_COOKIE), token)
    return answer


def _page_of(request: Request) -> Page:
    """The page of the navigation that an address belongs to."""
    path = request.url.path
    for page in NAVIGATION[1:]:
        if path == page.address or path.startswith(page.address + "/"):
            return page
    return NAVIGATION[0]


def error_page(request: Request, workbench: Workbench, problem: Problem) -> Response:
    """An error for people, with a next step."""
    titles = {
        404: "There is nothing here",
        401: "Sign in first",
        409: "Not now",
        429: "A little too fast",
    }
    title = titles.get(problem.status_code, "That did not work")
    context = {"title": title, "sentence": PROBLEMS[problem.code][1]}
    return render(request, workbench, "error.html", context, status=problem.status_code)


def keep_cookie(answer: Response, request: Request, name: str, value: str) -> None:
    """A cookie that scripts cannot read and other sites do not send."""
    https = request.url.scheme == "https"
    age = int(SESSION_SECONDS)
    answer.set_cookie(name, value, max_age=age, httponly=True, samesite="strict", secure=https)
