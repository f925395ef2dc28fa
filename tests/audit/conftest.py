"""The pictures from fewer images: that they are there and true to each other is asked here, not their height."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="package")
def small() -> Iterator[None]:
    """Fewer public images, fewer steps of the attacker that learns from them, fewer runs of the others."""
    from blindsight.audit import papers
    from blindsight.audit.rooms.sketching import figures

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(papers, "_RUNS", 1500)
        patch.setattr(figures, "_TRAIN", 200)
        patch.setattr(figures, "_TEST", 10)
        patch.setattr(figures, "_STEPS", 10)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where tests run in several processes, a module stays in one: what its tests share is costly to make."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.path.stem in ("test_verdicts", "test_reports", "test_release"):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
