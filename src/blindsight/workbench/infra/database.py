"""The workbench's tables on SQLite or PostgreSQL, and the access log; the ledger has other tables.

The schema has a version, and alembic's scripts in `workbench/migrations` upgrade an older database
when it is opened. A database with a newer schema is refused: an older program would write rows that
the newer one does not expect.

No request is answered before its record in the access log is on disk. One thread writes the log,
and all waiting records go into one transaction, so that many requests at once cost little more than
one. Several workbenches on one database share the chain: a writer locks the row of the head while
it appends.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy import event

from blindsight.app.access_log import AccessRecord, Head, export_csv, export_json, verify
from blindsight.app.hosting import database_place
from blindsight.core.errors import InvalidParameter
from blindsight.workbench.infra.problems import Problem

__all__ = [
    "ACCESS",
    "ACCESS_HEAD",
    "GRANTS",
    "JOBS",
    "JOB_EVENTS",
    "KEYS",
    "PEOPLE",
    "PURPOSE",
    "SCHEMA",
    "SESSIONS",
    "VERSION_TABLE",
    "AccessLog",
    "Database",
]

SCHEMA = "0002"  # the newest script in workbench/migrations/versions
VERSION_TABLE = "blindsight_workbench_version"
# PostgreSQL's advisory locks while the schema is changed, and for transactions that run alone.
_MIGRATION_LOCK, _ALONE_LOCK = 7_346_201, 7_346_202
_LOCKED_SECONDS = 30  # to wait for a SQLite file that another process has locked
METADATA = sql.MetaData()
KEYS = sql.Table(
    "blindsight_workbench_keys",
    METADATA,
    sql.Column("name", sql.Text(), primary_key=True),
    sql.Column("role", sql.Text(), nullable=False),
    sql.Column("digest", sql.Text(), nullable=False, unique=True),
    sql.Column("made", sql.Text(), nullable=False),
    sql.Column("revoked", sql.Text()),
)
SESSIONS = sql.Table(
    "blindsight_workbench_sessions",
    METADATA,
    sql.Column("digest", sql.Text(), primary_key=True),
    sql.Column("name", sql.Text(), nullable=False),
    sql.Column("until", sql.Float(), nullable=False),
    sql.Column("id_token", sql.Text()),
)
PEOPLE = sql.Table(
    "blindsight_workbench_people",
    METADATA,
    sql.Column("name", sql.Text(), primary_key=True),
    sql.Column("issuer", sql.Text(), nullable=False),
    sql.Column("subject", sql.Text(), nullable=False),
    sql.Column("label", sql.Text(), nullable=False),
    sql.Column("groups", sql.Text(), nullable=False),
    sql.Column("seen", sql.Text(), nullable=False),
    sql.Column("revoked", sql.Text()),
    sql.UniqueConstraint("issuer", "subject", name="blindsight_workbench_people_account"),
)
GRANTS = sql.Table(
    "blindsight_workbench_grants",
    METADATA,
    sql.Column("subject", sql.Text(), primary_key=True),
    sql.Column("kind", sql.Text(), primary_key=True),  # person or group
    sql.Column("role", sql.Text(), primary_key=True),
    sql.Column("dataset", sql.Text(), primary_key=True),
    sql.Column("release", sql.Text(), primary_key=True),
    sql.Column("made", sql.Text(), nullable=False),
    sql.Column("actor", sql.Text(), nullable=False),
)
ACCESS = sql.Table(
    "blindsight_workbench_access",
    METADATA,
    sql.Column("sequence", sql.BigInteger(), primary_key=True, autoincrement=False),
    sql.Column("time", sql.Text(), nullable=False),
    sql.Column("actor", sql.Text(), nullable=False, index=True),
    sql.Column("action", sql.Text(), nullable=False),
    sql.Column("dataset", sql.Text(), nullable=False, index=True),
    sql.Column("release", sql.Text(), nullable=False),
    sql.Column("outcome", sql.Text(), nullable=False),
    sql.Column("purpose", sql.Text(), nullable=False),
    sql.Column("previous", sql.Text(), nullable=False),
    sql.Column("hash", sql.Text(), nullable=False),
)
ACCESS_HEAD = sql.Table(
    "blindsight_workbench_access_head",
    METADATA,
    sql.Column("id", sql.Integer(), primary_key=True, autoincrement=False),
    sql.Column("sequence", sql.BigInteger(), nullable=False),
    sql.Column("hash", sql.Text(), nullable=False),
)
JOBS = sql.Table(
    "blindsight_workbench_jobs",
    METADATA,
    sql.Column("id", sql.Text(), primary_key=True),
    sql.Column("number", sql.Integer(), nullable=False, index=True),
    sql.Column("kind", sql.Text(), nullable=False),
    sql.Column("arguments", sql.Text(), nullable=False),
    sql.Column("asker", sql.Text(), nullable=False),
    sql.Column("state", sql.Text(), nullable=False, index=True),
    sql.Column("done", sql.Integer(), nullable=False, default=0),
    sql.Column("total", sql.Integer(), nullable=False, default=0),
    sql.Column("note", sql.Text(), nullable=False, default=""),
    sql.Column("result", sql.Text()),
    sql.Column("attempts", sql.Integer(), nullable=False, default=0),
    sql.Column("made", sql.Text(), nullable=False),
    sql.Column("ended", sql.Text()),
    sql.Column("runner", sql.Text()),
    sql.Column("lease", sql.Float()),
    sql.Column("purpose", sql.Text()),
    sql.Column("dataset", sql.Text(), index=True),
)
JOB_EVENTS = sql.Table(
    "blindsight_workbench_job_events",
    METADATA,
    sql.Column("id", sql.Integer(), primary_key=True),
    sql.Column("job", sql.Text(), nullable=False, index=True),
    sql.Column("time", sql.Text(), nullable=False),
    sql.Column("attempt", sql.Integer(), nullable=False),
    sql.Column("state", sql.Text(), nullable=False),
    sql.Column("note", sql.Text(), nullable=False),
)


class Database:
    """The database of the workbench; every use is a short transaction.

    Parameters:
        url: a SQLAlchemy URL; its schema is upgraded.

    Raises:
        InvalidParameter: if the database cannot be used, or has a newer schema.
    """

    def __init__(self, url: str) -> None:
        location = database_place(url)
        if location.file is not None:
            _private_file(location.file)
        try:
            self.engine = sql.create_engine(location.url, pool_pre_ping=location.file is None)
            if location.file is not None:
                event.listen(self.engine, "connect", _tune)
            try:
                self._upgrade()
            except BaseException:
                self.engine.dispose()
                raise
        except sql.exc.SQLAlchemyError as error:
            # The cause may quote the URL with its password.
            kind = type(error).__name__
            raise InvalidParameter(
                f"the workbench's database at {location} cannot be used ({kind})."
            ) from None
        # A database that nobody closed is closed when nobody holds it any more.
        weakref.finalize(self, self.engine.dispose).atexit = False

    def schema(self) -> str | None:
        """Return the version of the schema; None if there are no tables or no version."""
        with self.engine.connect() as connection:
            if not sql.inspect(connection).has_table(VERSION_TABLE):
                return None
            versions = sql.table(VERSION_TABLE, sql.column("version_num"))
            return connection.execute(sql.select(versions.c.version_num)).scalar()

    def _upgrade(self) -> None:
        present = self.schema()
        if present == SCHEMA:
            return
        if present is not None and present > SCHEMA:
            raise InvalidParameter(
                f"the workbench's database has schema {present}, and this version of Blindsight "
                f"knows schema {SCHEMA} at most. Install the newer version that wrote it."
            )
        # Imported here, because the process of a job opens the database and does not need alembic.
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option(
            "script_location", str(Path(__file__).parents[1] / "migrations").replace("%", "%%")
        )
        with self.engine.connect() as connection:
            _lock(connection, _MIGRATION_LOCK)
            config.attributes["connection"] = connection
            command.upgrade(config, SCHEMA)
            connection.commit()

    @contextmanager
    def begin(self, *, alone: bool = False) -> Iterator[sql.Connection]:
        """Open a transaction that is committed at the end and rolled back on an error.

        Parameters:
            alone: let other transactions that run alone wait, because it writes what follows from
                what it reads.
        """
        with self.engine.begin() as connection:
            if alone:
                _lock(connection, _ALONE_LOCK)
            yield connection

    def rows(self, statement: Any) -> list[dict[str, Any]]:
        """Return the rows of a query as dictionaries."""
        with self.engine.connect() as connection:
            return [dict(row) for row in connection.execute(statement).mappings()]

    def close(self) -> None:
        self.engine.dispose()


def _private_file(path: Path) -> None:
    """Create a file, and its folder, that others on this machine cannot read.

    SQLite's further files get the same mode.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    path.chmod(0o600)


def _lock(connection: sql.Connection, number: int) -> None:
    """Let one transaction at a time go on until its end."""
    if connection.dialect.name == "postgresql":
        connection.execute(sql.text(f"SELECT pg_advisory_xact_lock({number})"))
    else:
        connection.execute(sql.text("BEGIN IMMEDIATE"))


def _tune(connection: Any, _record: Any) -> None:
    connection.execute(f"PRAGMA busy_timeout={1000 * _LOCKED_SECONDS}")
    _use_write_ahead_log(connection)
    connection.execute("PRAGMA synchronous=NORMAL")


def _use_write_ahead_log(connection: Any) -> None:
    """Switch a file to the write-ahead log; while another process does so, SQLite refuses this at
    once and does not wait.
    """
    deadline = time.monotonic() + _LOCKED_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


#: The purpose of the present request, as its sender states it; its threads see it, too.
PURPOSE: contextvars.ContextVar[str] = contextvars.ContextVar("purpose", default="")
_PAGE = 1000
_log = logging.getLogger("blindsight.workbench")
_Waiting = tuple[dict[str, str], Future[None]]


class AccessLog:
    """The access log: append records, read them, verify the chain.

    Parameters:
        database: the database with the tables of the log.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._waiting: list[_Waiting] = []
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    async def write(self, **values: str) -> None:
        """Append a record (the fields of `AccessRecord`), and wait until it is stored.

        Raises:
            Problem: "access_log", if the record cannot be stored.
        """
        try:
            await asyncio.wrap_future(self._submit(values))
        except sql.exc.SQLAlchemyError as error:
            _log.error("the access log cannot be written: %s", type(error).__name__)
            raise Problem("access_log") from error

    def append(self, **values: str) -> None:
        """Append a record, and wait until it is stored, outside of an event loop."""
        self._submit(values).result()

    def _submit(self, values: dict[str, str]) -> Future[None]:
        values = {
            "actor": "",
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            **values,
        }
        stored: Future[None] = Future()
        with self._wake:
            if self._thread is None:
                self._closed = False
                self._thread = threading.Thread(target=self._work, daemon=True, name="access log")
                self._thread.start()
            self._waiting.append((values, stored))
            self._wake.notify()
        return stored

    def _work(self) -> None:
        while True:
            with self._wake:
                while not self._waiting and not self._closed:
                    self._wake.wait()
                batch, self._waiting = self._waiting, []
                if not batch:
                    return
            try:
                self._store([values for values, _ in batch])
            except Exception as error:  # every error must reach those who wait
                for _, stored in batch:
                    stored.set_exception(error)
            else:
                for _, stored in batch:
                    stored.set_result(None)

    def _store(self, batch: list[dict[str, str]]) -> None:
        with self.database.begin() as connection:
            # Writing first takes the lock, so that no other writer appends after the same head.
            connection.execute(sql.update(ACCESS_HEAD).values(sequence=ACCESS_HEAD.c.sequence))
            row = connection.execute(sql.select(ACCESS_HEAD.c.sequence, ACCESS_HEAD.c.hash)).one()
            head, rows = Head(row.sequence, row.hash), []
            for values in batch:
                record = AccessRecord.after(head, **values)
                rows.append(record.to_dict())
                head = record.head
            connection.execute(sql.insert(ACCESS), rows)
            connection.execute(
                sql.update(ACCESS_HEAD).values(sequence=head.sequence, hash=head.hash)
            )

    def head(self) -> Head:
        """Return the end of the chain; noted elsewhere, it shows later changes of the chain."""
        row = self.database.rows(sql.select(ACCESS_HEAD))[0]
        return Head(row["sequence"], row["hash"])

    def records(self, *, after: int = 0, until: int | None = None) -> Iterator[AccessRecord]:
        """Yield all records in order, read in pages."""
        while True:
            query = sql.select(ACCESS).where(ACCESS.c.sequence > after)
            if until is not None:
                query = query.where(ACCESS.c.sequence <= until)
            rows = self.database.rows(query.order_by(ACCESS.c.sequence).limit(_PAGE))
            if not rows:
                return
            for row in rows:
                yield AccessRecord.from_dict(row)
            after = rows[-1]["sequence"]

    def latest(
        self, *, datasets: frozenset[str] | None = None, before: int | None = None, most: int = 100
    ) -> list[AccessRecord]:
        """Return the newest records first; with `datasets`, only those that concern one of them."""
        query = sql.select(ACCESS).order_by(ACCESS.c.sequence.desc()).limit(most)
        if datasets is not None:
            query = query.where(ACCESS.c.dataset.in_(sorted(datasets)))
        if before is not None:
            query = query.where(ACCESS.c.sequence < before)
        return [AccessRecord.from_dict(row) for row in self.database.rows(query)]

    def verify(self, known: Head | None = None) -> Head:
        """Verify the whole chain.

        Parameters:
            known: a head that was noted earlier and must be in the chain.

        Raises:
            LedgerTampered: if the chain was changed; the message says where.
        """
        head = self.head()
        return verify(self.records(until=head.sequence), head=head, known=known)

    def export(self, kind: str) -> str:
        """Return the whole log as "json", which can be verified, or as "csv"."""
        head = self.head()
        records = list(self.records(until=head.sequence))
        return export_json(records, head) if kind == "json" else export_csv(records)

    def close(self) -> None:
        """Write the waiting records, and end the thread."""
        with self._wake:
            self._closed = True
            thread, self._thread = self._thread, None
            self._wake.notify_all()
        if thread is not None:
            with contextlib.suppress(RuntimeError):
                thread.join(30)

    def __enter__(self) -> AccessLog:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
