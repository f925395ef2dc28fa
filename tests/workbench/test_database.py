"""Another database by URL: keys, jobs and the ledger live in PostgreSQL as they do in SQLite."""

from __future__ import annotations

import contextlib
import gc
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql

from blindsight.app.library.datasets import Release, today
from blindsight.core.errors import InvalidParameter
from blindsight.privacy import Cost, Ledger
from blindsight.workbench.infra.database import JOBS, METADATA, SCHEMA, VERSION_TABLE, Database
from blindsight.workbench.infra.identity import Keys, RequestIdentity
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


def test_a_database_that_nobody_holds_is_closed(tmp_path: Path) -> None:
    """Python 3.13 warns of a connection that is not."""
    database = Database(f"sqlite:///{tmp_path / 'workbench.db'}")
    engine = database.engine
    assert engine.pool.checkedin() == 1
    del database
    gc.collect()
    assert engine.pool.checkedin() == 0


def test_a_database_that_cannot_be_reached_is_named_without_its_password() -> None:
    with pytest.raises(InvalidParameter) as found:
        Database("postgresql://ann:secret@127.0.0.1:1/none")
    assert "secret" not in str(found.value)


@pytest.mark.parametrize("version", ["0.2", "0.3"])
def test_a_database_of_an_earlier_version_is_brought_to_the_newest_schema(
    tmp_path: Path, version: str
) -> None:
    path = tmp_path / "workbench.db"
    old = Path(__file__).parent / "files" / f"workbench-{version}.sql"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(old.read_text())
        if version == "0.2":  # columns that were added by hand later
            for column in ("runner", "lease"):
                connection.execute(f"ALTER TABLE blindsight_studio_jobs DROP COLUMN {column}")
        connection.commit()
    database = Database(f"sqlite:///{path}")
    assert database.schema() == SCHEMA
    keys = Keys(database)
    assert keys.identify("bs_key-of-ann") == RequestIdentity("ann", "owner")
    assert keys.identify("bs_key-of-ben") is None, "it was revoked before the upgrade"
    assert keys.known_session("session-of-ann") == RequestIdentity("ann", "owner")
    jobs = database.rows(sql.select(JOBS.c.id, JOBS.c.dataset, JOBS.c.state).order_by(JOBS.c.id))
    assert [job["dataset"] for job in jobs] == ["ab" * 6, "cd" * 6, None]
    assert [job["state"] for job in jobs] == ["done", "failed", "queued"]
    keys.grant("ann", "owner", "ab" * 6)
    database.close()
    again = Database(f"sqlite:///{path}")  # nothing left to do
    assert again.schema() == SCHEMA
    again.close()


def test_the_scripts_make_the_schema_that_the_program_expects(tmp_path: Path) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.config import Config
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory

    database = Database(f"sqlite:///{tmp_path / 'new.db'}")
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        assert compare_metadata(context, METADATA) == []
    database.close()
    config = Config()
    config.set_main_option("script_location", "blindsight.workbench:migrations")
    assert ScriptDirectory.from_config(config).get_heads() == [SCHEMA]


def test_a_database_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'workbench.db'}"
    database = Database(url)
    with database.begin() as connection:
        connection.execute(sql.text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))  # noqa: S608
    database.close()
    with pytest.raises(InvalidParameter, match="newer version"):
        Database(url)


def test_many_processes_may_open_an_old_database_at_once(tmp_path: Path) -> None:
    path = tmp_path / "workbench.db"
    old = Path(__file__).parent / "files" / "workbench-0.3.sql"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(old.read_text())
    program = (
        f"from blindsight.workbench.infra.database import Database as D; D('sqlite:///{path}')"
    )
    started = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]
    assert [process.wait(600) for process in started] == [0, 0, 0]
    database = Database(f"sqlite:///{path}")
    assert Keys(database).identify("bs_key-of-ann") == RequestIdentity("ann", "owner")
    database.close()


def test_a_database_that_another_process_is_changing_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite refuses at once to switch a file to the write-ahead log while another writes."""
    path = tmp_path / "workbench.db"
    old = Path(__file__).parent / "files" / "workbench-0.3.sql"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.executescript(old.read_text())
        other.execute("BEGIN IMMEDIATE")
        waited: list[float] = []

        def wait(seconds: float) -> None:
            waited.append(seconds)
            other.rollback()

        monkeypatch.setattr(time, "sleep", wait)
        database = Database(f"sqlite:///{path}")
    assert waited and database.schema() == SCHEMA
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
