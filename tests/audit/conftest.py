"""The pictures from fewer images: that they are there and true to each other is asked here, not their height."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def small() -> Iterator[None]:
    """Fewer public images, fewer points on a curve."""
    from blindsight.audit.evidence import hashing, sketching, tagging

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashing, "_PUBLIC", 400)
        patch.setattr(hashing, "_EPSILONS", (2.0, 8.0))
        patch.setattr(sketching, "_TRAIN", 200)
        patch.setattr(sketching, "_TEST", 60)
        patch.setattr(tagging, "_WORDS", {4.0: 8, 10.0: 32})
        patch.setattr(tagging, "_TRAIN", 200)
        yield
