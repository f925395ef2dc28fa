"""Flower's engines give each process an identity, which every new message needs."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def flower_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process an identity, as Flower's engines do."""
    from flwr.supercore.task_identity import TaskIdentity

    for name, value in {"_run_id": 1, "_node_id": 1, "_task_id": 1}.items():
        monkeypatch.setattr(TaskIdentity, name, value)
