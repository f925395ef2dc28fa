"""Another database by URL: keys, jobs and the ledger live in PostgreSQL as they do in SQLite."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql

from blindsight.core.errors import InvalidParameter
from blindsight.privacy import Cost, Ledger
from blindsight.workbench.infra.database import JOBS, Database
from blindsight.workbench.infra.datasets import Release, today
from blindsight.workbench.infra.jobs import JobContext
from blindsight.workbench.pages import protect
from workbench.asgi import Client
from workbench.photos import album, scanned


@pytest.mark.real
def test_a_studio_lives_in_postgresql(make: Callable[..., Any], fresh_database: str) -> None:
    app = make(database=fresh_database, keys="required")
    key = app.state.studio.keys.make("ann", "analyst")
    client = Client(app, Authorization=f"Bearer {key}")
    assert client.post("/api/demo/tags/ask?query=1").status_code == 200
    assert [line["kind"] for line in client.get("/api/ledger/entries").json()] == [
        "charge",
        "grant",
        "grant",
    ]
    assert client.get("/health").status_code == 200
    job = app.state.studio.jobs.add("demo-federation", {}, "ann")["id"]
    assert client.get(f"/api/jobs/{job}").json()["state"] == "queued"
    assert not (app.state.studio.settings.state / "studio.db").exists()


def test_a_database_that_cannot_be_reached_is_named_without_its_password() -> None:
    with pytest.raises(InvalidParameter) as found:
        Database("postgresql://ann:secret@127.0.0.1:1/none")
    assert "secret" not in str(found.value)


@pytest.mark.real
def test_several_studios_on_one_postgresql_charge_once_and_leave_each_others_photos_alone(
    make: Callable[..., Any],
    fresh_database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("blindsight.index.encoder.default_features", lambda: "pixels")
    studios = [
        make(state=tmp_path / name, database=fresh_database, keys="required").state.studio
        for name in "abc"
    ]
    key = studios[0].keys.make("ben", "analyst")
    asker = studios[1].keys.identify(key)
    with ThreadPoolExecutor(12) as pool:
        cost = Cost(epsilon=2.0, unit="record")
        list(
            pool.map(
                lambda n: studios[n % 3].budgets.charge_once(asker, cost, "codes at 2"), range(24)
            )
        )
    charges = [
        entry for entry in studios[2].budgets.ledger(asker).entries() if entry.kind == "charge"
    ]
    assert [entry.what for entry in charges] == ["codes at 2"]

    app = make(state=tmp_path / "a", database=fresh_database, keys="required")
    one = scanned(app, album(tmp_path / "coast", each=4))
    datasets, jobs = app.state.studio.datasets, app.state.studio.jobs
    made = Release(
        "ab" * 6, "search", datasets.named(one, "search", 4.0, "ab" * 6), 4.0, 0, today(), False
    )
    order = {"step": "release", "dataset": one.id, "release": made.__dict__}
    while jobs.claim() is not None:
        pass  # the scan's
    job = jobs.add("protect", order, "local")["id"]
    assert studios[1].jobs.claim() is None, "a workbench took work on photos that it does not have"
    assert studios[0].jobs.claim()["id"] == job
    _worked(order, JobContext(app.state.studio.settings, job, 1))
    # Its lease is lost in the middle and it is run again, by the same workbench after a restart.
    with studios[1].database.begin() as connection:
        connection.execute(
            sql.update(JOBS).where(JOBS.c.id == job).values(lease=0.0, state="running")
        )
    studios[1].jobs._take_up()
    assert studios[2].jobs.claim() is None
    assert studios[0].jobs.claim()["attempts"] == 2
    _worked(order, JobContext(app.state.studio.settings, job, 2))
    with Ledger(fresh_database, dataset=one.account) as ledger:
        assert [entry.kind for entry in ledger.entries()] == ["grant", "charge"]


def _worked(order: dict[str, Any], context: JobContext) -> None:
    """As the job's own process does it, which ends with its connections."""
    try:
        protect.run(order, context)
    finally:
        context.database.close()
