"""Another database by URL: keys, jobs and the ledger live in PostgreSQL as they do in SQLite."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql

from blindsight.app.library.datasets import Release, today
from blindsight.core.errors import InvalidParameter
from blindsight.privacy import Cost, Ledger
from blindsight.workbench.infra.database import JOBS, Database
from blindsight.workbench.infra.identity import Identity, Keys
from blindsight.workbench.infra.jobs import JobContext
from blindsight.workbench.pages import protect
from workbench.asgi import Client
from workbench.photos import album, scanned


@pytest.mark.real
def test_a_workbench_lives_in_postgresql(make: Callable[..., Any], fresh_database: str) -> None:
    app = make(database=fresh_database, keys="required")
    key = app.state.workbench.keys.make("ann", "owner")
    client = Client(app, Authorization=f"Bearer {key}")
    assert client.post("/api/protect/new", json={"name": "Photos"}).status_code == 201
    assert [line["kind"] for line in client.get("/api/ledger/entries").json()] == ["grant"]
    assert client.get("/health").status_code == 200
    job = app.state.workbench.jobs.add("send", {}, "ann")["id"]
    assert client.get(f"/api/jobs/{job}").json()["state"] == "queued"
    assert not (app.state.workbench.settings.state / "workbench.db").exists()


def test_a_database_that_cannot_be_reached_is_named_without_its_password() -> None:
    with pytest.raises(InvalidParameter) as found:
        Database("postgresql://ann:secret@127.0.0.1:1/none")
    assert "secret" not in str(found.value)


def test_keys_and_jobs_of_an_earlier_version_are_kept(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'workbench.db'}"
    database = Database(url)
    key = Keys(database).make("ann", "owner")
    with database.begin() as connection:
        for name in ("keys", "sessions", "jobs"):
            connection.execute(
                sql.text(
                    f"ALTER TABLE blindsight_workbench_{name} RENAME TO blindsight_studio_{name}"
                )
            )
    database.close()
    database = Database(url)
    assert Keys(database).identify(key) == Identity("ann", "owner")
    database.close()


@pytest.mark.real
def test_several_workbenches_on_one_postgresql_charge_once_and_leave_each_others_photos_alone(
    make: Callable[..., Any],
    fresh_database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("blindsight.index.encoder.default_features", lambda **_: "pixels")
    benches = [
        make(state=tmp_path / name, database=fresh_database, keys="required").state.workbench
        for name in "abc"
    ]
    cost = Cost(epsilon=2.0, unit="record")
    with ThreadPoolExecutor(12) as pool:
        ledgers = [bench.budgets.named("shared", create=True) for bench in benches]
        ledgers[0].grant(Cost(epsilon=16.0, unit="record"), what="budget")
        list(
            pool.map(
                lambda n: ledgers[n % 3].charge(cost, what="codes at 2", key="once"), range(24)
            )
        )
    charges = [entry.what for entry in ledgers[2].entries() if entry.kind == "charge"]
    assert charges == ["codes at 2"]

    app = make(state=tmp_path / "a", database=fresh_database, keys="required")
    one = scanned(app, album(tmp_path / "coast", each=4))
    datasets, jobs = app.state.workbench.datasets, app.state.workbench.jobs
    made = Release(
        "ab" * 6, "search", datasets.named(one, "search", 4.0, "ab" * 6), 4.0, 0, today(), False
    )
    order = {"step": "release", "dataset": one.id, "release": made.__dict__}
    while jobs.claim() is not None:
        pass  # the scan's
    job = jobs.add("protect", order, "local")["id"]
    assert benches[1].jobs.claim() is None, "a workbench took work on photos that it does not have"
    assert benches[0].jobs.claim()["id"] == job
    _worked(order, JobContext(app.state.workbench.settings, job, 1))
    # Its lease is lost in the middle and it is run again, by the same workbench after a restart.
    with benches[1].database.begin() as connection:
        connection.execute(
            sql.update(JOBS).where(JOBS.c.id == job).values(lease=0.0, state="running")
        )
    benches[1].jobs._take_up()
    assert benches[2].jobs.claim() is None
    assert benches[0].jobs.claim()["attempts"] == 2
    _worked(order, JobContext(app.state.workbench.settings, job, 2))
    with Ledger(fresh_database, dataset=one.account) as ledger:
        assert [entry.kind for entry in ledger.entries()] == ["grant", "charge"]


def _worked(order: dict[str, Any], context: JobContext) -> None:
    """As the job's own process does it, which ends with its connections."""
    try:
        protect.run(order, context)
    finally:
        context.database.close()
