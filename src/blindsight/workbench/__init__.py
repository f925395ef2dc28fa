"""The workbench: web pages and an API on FastAPI, which `blindsight serve` starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blindsight.workbench.app import create_app
    from blindsight.workbench.infra.settings import WorkbenchSettings

__all__ = ["WorkbenchSettings", "create_app"]


def __getattr__(name: str) -> Any:
    # FastAPI is an optional dependency, so it is imported on first use.
    if name == "create_app":
        from blindsight.app.hosting import require_package

        require_package("fastapi", extra="workbench")
        from blindsight.workbench.app import create_app

        return create_app
    if name == "WorkbenchSettings":
        from blindsight.workbench.infra.settings import WorkbenchSettings

        return WorkbenchSettings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
