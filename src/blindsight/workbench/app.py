"""The app factory: settings in, a FastAPI application out.

Nothing global; two studios may live in one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.resources
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.templating import Jinja2Templates
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from blindsight import __version__
from blindsight.core.errors import BlindsightError
from blindsight.workbench.infra.access import Studio
from blindsight.workbench.infra.budgets import Budgets
from blindsight.workbench.infra.database import Database
from blindsight.workbench.infra.datasets import DataSets
from blindsight.workbench.infra.federations import Federations
from blindsight.workbench.infra.guard import Guard
from blindsight.workbench.infra.identity import Keys
from blindsight.workbench.infra.jobs import Jobs
from blindsight.workbench.infra.problems import Problem, problem_for
from blindsight.workbench.infra.settings import Settings
from blindsight.workbench.infra.shell import error_page
from blindsight.workbench.infra.traffic import Metrics
from blindsight.workbench.infra.uploads import Decoders
from blindsight.workbench.pages import (
    budget,
    compare,
    home,
    jobs,
    ledger,
    protect,
    search,
    send,
    sign_in,
    system,
    tags,
    together,
)
from blindsight.workbench.pages.demo import pages as demo_pages
from blindsight.workbench.pages.demo import search as demo_search
from blindsight.workbench.pages.demo import sketch as demo_sketch
from blindsight.workbench.pages.demo import start as demo_start
from blindsight.workbench.pages.demo import tags as demo_tags
from blindsight.workbench.pages.demo.live import DemoAnswers

__all__ = ["create_app"]

_HERE = Path(__file__).parent
_PREPARED = {"search": 5, "tags": 1, "sketch": 1}
_BY_STATUS = {400: "bad_request", 404: "not_found", 405: "wrong_method", 413: "too_large"}


def create_app(settings: Settings | None = None) -> FastAPI:
    """The workbench: pages, API, and its background."""
    settings = Settings.read() if settings is None else settings
    settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    settings.state.chmod(0o700)
    for path in settings.state.glob("*.db*"):  # of an earlier version, or copied here
        path.chmod(0o600)
    database, metrics = Database(settings.database_url), Metrics()
    keys = Keys(database, token=settings.token if settings.local else None)
    studio = Studio(
        settings=settings,
        database=database,
        keys=keys,
        metrics=metrics,
        budgets=Budgets(settings, metrics),
        jobs=Jobs(database, settings),
        decoders=Decoders(settings, metrics),
        demo=DemoAnswers(settings),
        datasets=DataSets(settings),
        federations=Federations(settings),
        searches=search.Searches(),
    )
    app = FastAPI(
        title="Blindsight workbench",
        version=__version__,
        summary="Protect images: give away what they know, and keep the images.",
        lifespan=_lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
    )
    app.state.studio = studio
    app.state.templates = Jinja2Templates(_HERE / "templates")
    own = (system, home, protect, search, tags, compare, together, send, budget, jobs, ledger)
    for module in own:
        app.include_router(module.router)
    for module in (demo_search, demo_sketch, demo_tags, demo_start):
        app.include_router(module.router, dependencies=[Depends(_want_demo)])
    app.mount("/static/swagger", StaticFiles(directory=_swagger()), name="swagger")
    app.mount("/static", StaticFiles(directory=_HERE / "static"), name="static")
    app.include_router(demo_pages.router, dependencies=[Depends(_want_demo)])
    app.include_router(sign_in.router)
    _answer_errors(app, studio)
    _document_keys(app)
    app.add_middleware(Guard, settings=settings, keys=keys, metrics=metrics, routes=app.routes)
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    studio: Studio = app.state.studio
    await studio.jobs.start()
    await studio.federations.open()
    watch = asyncio.create_task(_prepare(studio)) if studio.settings.prepare else None
    warm = asyncio.create_task(studio.decoders.walls())  # the first upload should not wait for it
    try:
        yield
    finally:
        warm.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError, TimeoutError):
            await warm
        if watch is not None:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
        await studio.jobs.close()
        await studio.federations.close()
        await studio.decoders.close()
        studio.budgets.close()
        studio.database.close()


async def _want_demo(request: Request) -> None:
    if request.state.identity is not None:  # work is begun for somebody, not for whoever knocks
        request.app.state.studio.demo.wanted.set()


async def _prepare(studio: Studio) -> None:
    """Once somebody opens the demo, get ready what it needs; load each part as soon as there is
    more of it.

    Not before: a newcomer's own photos would wait for digits that nobody asked for.
    """
    await studio.demo.wanted.wait()
    prepared = studio.settings.state / "prepared"
    wanted = {
        room: n
        for room, n in _PREPARED.items()
        if room != "search" or studio.settings.index == "mnist5k"
    }
    for room, parts in wanted.items():
        later = getattr(studio.demo, room)
        await asyncio.to_thread(later.get)
        if later.broken:
            await asyncio.to_thread(shutil.rmtree, prepared / room, ignore_errors=True)
            later.forget()
        if len(list((prepared / room).rglob("facts.json"))) < parts and not _waiting(
            studio, f"demo-{room}"
        ):
            studio.jobs.add(f"demo-{room}", {}, "workbench", limited=False)
    if studio.jobs.latest("demo-metric") is None:
        order = {"epsilon": 2.0, "unit": "pair", "pairs": 300, "cycles": True}
        studio.jobs.add("demo-metric", order, "workbench", limited=False)
    seen = dict.fromkeys(wanted, 0)
    while any(seen[room] < parts for room, parts in wanted.items()):
        for room in wanted:
            found = len(list((prepared / room).rglob("facts.json")))
            if found > seen[room]:
                seen[room] = found
                later = getattr(studio.demo, room)
                later.forget()
                await asyncio.to_thread(later.get)
        await asyncio.sleep(0.5)


def _waiting(studio: Studio, kind: str) -> bool:
    job = studio.jobs.latest(kind)
    return job is not None and job["state"] in ("queued", "running")


def _swagger() -> Path:
    """Swagger UI's newest version in its package."""
    vendor = Path(str(importlib.resources.files("swagger_ui_bundle"))) / "vendor"
    found = sorted(path for path in vendor.iterdir() if path.is_dir())
    return found[-1]


def _answer_errors(app: FastAPI, studio: Studio) -> None:
    async def refuse(request: Request, error: Exception) -> Response:
        problem = _problem(error)
        if _for_people(request):
            return await asyncio.to_thread(error_page, request, studio, problem)
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
    """OpenAPI says that a key goes into the Authorization header."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        schema = made()
        parts = schema.setdefault("components", {})
        parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        if not app.state.studio.settings.open:
            schema["security"] = [{"key": []}]
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
