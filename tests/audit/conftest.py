"""The pictures from fewer images: that they are there and true to each other is asked here, not their height."""

from __future__ import annotations

from collections.abc import Iterator

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
