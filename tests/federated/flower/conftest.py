from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill loses nothing that was written, only a power cut does: here nobody waits for the
    disk.
    """
    monkeypatch.setattr(os, "fsync", lambda _: None)
