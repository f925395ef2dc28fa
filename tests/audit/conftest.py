"""Fewer images and runs for the pictures, and the same noise in every run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from blindsight.audit.engine.outputs import frozen


@pytest.fixture
def same_noise() -> Iterator[None]:
    """What is drawn from the operating system is the same every time.

    An audit at 99% may refute one sound release in a hundred, and an attack on what was fitted
    under unlucky noise may find nothing: that is their stated error, and no test must fail by it.
    """
    with frozen(0):
        yield


@pytest.fixture(autouse=True, scope="package")
def small() -> Iterator[None]:
    """Fewer public images, fewer steps of the attacker that learns from them, fewer runs of the
    others.

    That the pictures are there and true to each other is asked here, not their height.
    """
    from blindsight.audit import papers
    from blindsight.audit.methods import sketching as figures

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(papers, "_RUNS", 1000)
        patch.setattr(figures, "_TRAIN", 200)
        patch.setattr(figures, "_TEST", 10)
        patch.setattr(figures, "_STEPS", 10)
        yield
