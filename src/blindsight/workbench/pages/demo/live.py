"""What the demo answers at once, loaded at first use."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from blindsight.core.errors import HostileFile
from blindsight.workbench.infra.settings import Settings

__all__ = ["DemoAnswers", "Lazy"]

T = TypeVar("T")


class Lazy(Generic[T]):
    """Something that is loaded at first use, once; None until it is there to be loaded."""

    def __init__(self, load: Callable[[], T | None]) -> None:
        self._load, self._found = load, None
        self._guard = threading.Lock()
        self.broken = False

    def get(self) -> T | None:
        """What was loaded, loading it now if it can be."""
        if self._found is None:
            with self._guard:
                if self._found is None and not self.broken:
                    try:
                        self._found = self._load()  # type: ignore[assignment]
                    except (
                        HostileFile
                    ):  # written by another version, or damaged: it must be prepared again
                        self.broken = True
        return self._found

    def forget(self) -> None:
        """Load it again next time: more has been prepared."""
        with self._guard:
            self._found, self.broken = None, False


class DemoAnswers:
    """Search, sketches and tags of digits; `wanted` is set when somebody first opens a page of the
    demo.
    """

    def __init__(self, settings: Settings) -> None:
        self.wanted = asyncio.Event()
        prepared = settings.state / "prepared"

        def search() -> Any:
            from blindsight.workbench.pages.demo.search import open_search

            return open_search(settings, prepared / "search")

        def sketch() -> Any:
            from blindsight.workbench.pages.demo.sketch import LiveSketches

            return LiveSketches.open(prepared / "sketch")

        def tags() -> Any:
            from blindsight.workbench.pages.demo.tags import LiveTags

            return LiveTags.open(prepared / "tags")

        self.search, self.sketch, self.tags = Lazy(search), Lazy(sketch), Lazy(tags)
