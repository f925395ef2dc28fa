"""What all pages share: the navigation, the privacy strip, the budget bar and number formats."""

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
    """A page of the navigation, and who may open it besides the owner.

    Parameters:
        address: the page's path.
        title: what the navigation calls it.
        roles: roles of the workbench that may open it.
        right: a right on some data set that opens it; None if only the owner may.
    """

    address: str
    title: str
    roles: tuple[Role, ...] = ()
    right: Right | None = "own"

    def opens_for(self, identity: RequestIdentity) -> bool:
        """Whether an identity may open it; what it shows also depends on the rights."""
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
    """A budget as a bar, in epsilon per `unit`.

    Parameters:
        total: the whole budget.
        spent: what was spent.
        unit: what the budget is for, such as "photo".
        this: the cost of the release that is shown.
    """

    total: float
    spent: float
    unit: str
    this: float = 0.0

    @property
    def left(self) -> float:
        """What is left before this release, rounded down to hundredths."""
        return max(0.0, math.floor(100 * (self.total - self.spent) + 1e-6) / 100)

    @property
    def widths(self) -> tuple[int, int, int]:
        """The widths of what is spent, of this release and of what is left, in percent."""
        if self.total <= 0:
            return 0, 0, 0
        spent = min(100, round(100 * self.spent / self.total))
        this = min(100 - spent, round(100 * self.this / self.total))
        return spent, this, 100 - spent - this


@dataclass(frozen=True)
class TrustStrip:
    """What a page says about privacy.

    Parameters:
        leaves: what leaves this machine.
        stays: what stays.
        promised: the claimed epsilon.
        proven: the proven epsilon.
        attacked: what an attack measured.
        says: the unit of these three numbers.
        bar: the budget.
        note: a sentence about the price.
        attacked_word: the label of `attacked`.
        line: the summary of the strip.
    """

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
    """Return the bar of a ledger's balance."""
    unit = word or {"record": "photo", "query": "question"}.get(balance.unit, balance.unit)
    return Bar(balance.budget.epsilon, balance.spent.epsilon, unit, this)


def plain(value: float) -> str:
    """Format a number with at most four significant digits and without trailing zeros."""
    if value == float("inf"):
        return "no limit"
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "0" if text in ("-0", "") else text


def day(moment: str) -> str:
    """Format the day of a moment, such as 9 Nov 2026."""
    return f"{datetime.fromisoformat(moment):%d %b %Y}".removeprefix("0")


def price_of(epsilon: float) -> str:
    """Format a cost, rounded up to hundredths."""
    return plain(math.ceil(100 * epsilon - 1e-6) / 100)


def render(
    request: Request,
    workbench: Workbench,
    name: str,
    context: dict[str, Any],
    *,
    status: int = 200,
) -> Response:
    """Render a page if the asker may see it, else redirect to the sign-in or render a refusal.

    Parameters:
        request: the request.
        workbench: the workbench.
        name: the template.
        context: what the template gets besides what all pages share.
        status: the status of the answer.
    """
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
    """Return the page of the navigation that an address belongs to."""
    path = request.url.path
    for page in NAVIGATION[1:]:
        if path == page.address or path.startswith(page.address + "/"):
            return page
    return NAVIGATION[0]


def error_page(request: Request, workbench: Workbench, problem: Problem) -> Response:
    """Render an error as a page."""
    titles = {
        404: "Page not found",
        401: "Sign in first",
        409: "Not possible now",
        429: "Too many requests",
    }
    title = titles.get(problem.status_code, "That did not work")
    context = {"title": title, "sentence": PROBLEMS[problem.code][1]}
    return render(request, workbench, "error.html", context, status=problem.status_code)


def keep_cookie(answer: Response, request: Request, name: str, value: str) -> None:
    """Set a cookie that scripts cannot read and that is not sent from other sites."""
    https = request.url.scheme == "https"
    age = int(SESSION_SECONDS)
    answer.set_cookie(name, value, max_age=age, httponly=True, samesite="strict", secure=https)
