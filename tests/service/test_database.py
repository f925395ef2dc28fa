"""Another database by URL: keys, jobs and the ledger live in PostgreSQL as they do in SQLite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from blindsight.core.errors import InvalidParameter
from blindsight.service.infra.database import Database
from privacy.ledger.conftest import postgresql  # noqa: F401
from service.asgi import Client


@pytest.mark.real
def test_a_studio_lives_in_postgresql(make: Callable[..., Any], postgresql: str) -> None:  # noqa: F811
    app = make(database=postgresql, keys="required")
    key = app.state.studio.keys.make("ann", "analyst")
    client = Client(app, Authorization=f"Bearer {key}")
    assert client.post("/api/demo/tags/ask?query=1").status_code == 200
    assert [line["kind"] for line in client.get("/api/ledger/entries").json()] == ["charge", "grant", "grant"]
    assert client.get("/health").status_code == 200
    job = app.state.studio.jobs.add("demo-federation", {}, "ann")["id"]
    assert client.get(f"/api/jobs/{job}").json()["state"] == "queued"
    assert not (app.state.studio.settings.state / "studio.db").exists()


def test_a_database_that_cannot_be_reached_is_named_without_its_password() -> None:
    with pytest.raises(InvalidParameter) as found:
        Database("postgresql://ann:secret@127.0.0.1:1/none")
    assert "secret" not in str(found.value)
