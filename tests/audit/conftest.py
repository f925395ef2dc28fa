"""The pictures from fewer images: that they are there and true to each other is asked here, not their height."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def small() -> Iterator[None]:
    """Fewer public images, and fewer steps of the attacker that learns from them."""
    from blindsight.audit.rooms.sketching import figures

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "_TRAIN", 200)
        patch.setattr(figures, "_TEST", 10)
        patch.setattr(figures, "_STEPS", 10)
        yield
