from __future__ import annotations

import importlib.util

import pytest


@pytest.fixture(autouse=True)
def short_steps(monkeypatch):
    """The attacking network takes a quarter of the tiles at each step: a test asks whether it
    works, not how well.
    """
    if importlib.util.find_spec("torch") is not None:
        from blindsight.sketching import networks

        monkeypatch.setattr(networks, "VALUES", 1 << 14)
