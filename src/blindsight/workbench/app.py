"""The application factory. Without global state, one process can hold several workbenches."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.resources
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.templating import Jinja2Templates
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from blindsight import __version__
from blindsight.app.hosting import require_package
from blindsight.app.library.accounts import Budgets
from blindsight.app.library.datasets import DataSets
from blindsight.core.errors import BlindsightError
from blindsight.workbench.infra.access import Workbench
from blindsight.workbench.infra.database import AccessLog, Database
from blindsight.workbench.infra.federations import Federations
from blindsight.workbench.infra.guard import Guard, Metrics
from blindsight.workbench.infra.identity import Keys
from blindsight.workbench.infra.jobs import Jobs
from blindsight.workbench.infra.problems import Problem, problem_for
from blindsight.workbench.infra.settings import WorkbenchSettings
from blindsight.workbench.infra.shell import error_page
from blindsight.workbench.infra.uploads import Decoders
from blindsight.workbench.pages import (
    budget,
    compare,
    home,
    people,
    protect,
    search,
    send,
    sign_in,
    system,
    tags,
    together,
)

if TYPE_CHECKING:
    from blindsight.workbench.infra.sign_on import SignOn

__all__ = ["create_app"]

_HERE = Path(__file__).parent
_BY_STATUS = {400: "bad_request", 404: "not_found", 405: "wrong_method", 413: "too_large"}


def create_app(settings: WorkbenchSettings | None = None) -> FastAPI:
    """Make the FastAPI application of a workbench.

    Parameters:
        settings: the settings; by default those of the environment.

    Returns:
        The application with all pages, the API and the background jobs.
    """
    settings = WorkbenchSettings.read() if settings is None else settings
    settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    settings.state.chmod(0o700)
    for path in settings.state.glob("*.db*"):  # copied, or written by an earlier version
        with contextlib.suppress(FileNotFoundError):  # SQLite deletes its logs when they are closed
            path.chmod(0o600)
    database, metrics = Database(settings.database_url), Metrics()
    keys = Keys(
        database,
        token=settings.token if settings.local else None,
        owner_groups=settings.oidc_owners,
    )
    access_log = AccessLog(database)
    workbench = Workbench(
        settings=settings,
        database=database,
        keys=keys,
        metrics=metrics,
        budgets=Budgets(settings),
        jobs=Jobs(database, settings),
        decoders=Decoders(settings, metrics),
        datasets=DataSets(settings),
        federations=Federations(settings),
        searches=search.Searches(),
        access_log=access_log,
        sign_on=_sign_on(settings),
    )
    app = FastAPI(
        title="Blindsight workbench",
        version=__version__,
        summary="Protect images: share what they know, and keep the images private.",
        lifespan=_lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
    )
    app.state.workbench = workbench
    app.state.templates = Jinja2Templates(_HERE / "templates")
    own = (system, home, protect, search, tags, compare, together, send, budget, people)
    further = (system.jobs_router, budget.ledger_router, search.answers_router)
    _add_routes(app, *(module.router for module in own), *further)
    app.mount("/static/swagger", StaticFiles(directory=_swagger()), name="swagger")
    app.mount("/static", StaticFiles(directory=_HERE / "static"), name="static")
    _add_routes(app, sign_in.router)
    _answer_errors(app, workbench)
    _document_keys(app)
    app.add_middleware(
        Guard,
        settings=settings,
        keys=keys,
        metrics=metrics,
        access_log=access_log,
        routes=app.routes,
    )
    return app


def _add_routes(app: FastAPI, *routers: APIRouter) -> None:
    """Let an application answer the routes of routers.

    `app.include_router` would read all signatures and make all models a second time, at the first
    request to each application, for prefixes and dependencies that are not used here.
    """
    for router in routers:
        app.routes.extend(router.routes)


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    workbench: Workbench = app.state.workbench
    await workbench.jobs.start()
    await workbench.federations.open()
    # Start a decoder now, so that the first upload does not wait for it.
    warm = asyncio.create_task(workbench.decoders.walls())
    try:
        yield
    finally:
        warm.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError, TimeoutError):
            await warm
        await workbench.jobs.close()
        await workbench.federations.close()
        await workbench.decoders.close()
        workbench.budgets.close()
        await asyncio.to_thread(workbench.access_log.close)
        workbench.database.close()


def _sign_on(settings: WorkbenchSettings) -> SignOn | None:
    if settings.oidc_issuer is None:
        return None
    require_package("authlib", extra="workbench")
    from blindsight.workbench.infra.sign_on import SignOn

    return SignOn(settings)


def _swagger() -> Path:
    """Return the folder of the newest Swagger UI in its package."""
    vendor = Path(str(importlib.resources.files("swagger_ui_bundle"))) / "vendor"
    versions = sorted(path for path in vendor.iterdir() if path.is_dir())
    return versions[-1]


def _answer_errors(app: FastAPI, workbench: Workbench) -> None:
    async def refuse(request: Request, error: Exception) -> Response:
        problem = _problem(error)
        if _for_people(request):
            return await asyncio.to_thread(error_page, request, workbench, problem)
        headers = dict(problem.headers or {})
        if isinstance(error, HTTPException) and error.headers:
            headers |= dict(error.headers)
        return JSONResponse(problem.body, status_code=problem.status_code, headers=headers)

    for kind in (BlindsightError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, refuse)


def _problem(error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    if isinstance(error, BlindsightError):
        return problem_for(error)
    if isinstance(error, HTTPException):
        return Problem(_BY_STATUS.get(error.status_code, "failed"))
    return Problem("invalid")


def _for_people(request: Request) -> bool:
    wants = "text/html" in request.headers.get("accept", "")
    return (
        wants
        and request.method == "GET"
        and not request.url.path.startswith(("/api", "/static", "/metrics", "/health"))
    )


def _document_keys(app: FastAPI) -> None:
    """State in the OpenAPI schema that a key goes into the Authorization header."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        schema = generate()
        parts = schema.setdefault("components", {})
        parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        if not app.state.workbench.settings.open:
            schema["security"] = [{"key": []}]
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
