"""The workbench's own tables (keys, sessions, jobs) on SQLite or PostgreSQL; the ledger keeps its
own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy import event

from blindsight.app.hosting import database_place
from blindsight.core.errors import InvalidParameter

__all__ = ["JOBS", "KEYS", "SESSIONS", "Database"]

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
)


class Database:
    """One engine; every use is a short transaction."""

    def __init__(self, url: str) -> None:
        place = database_place(url)
        if place.file is not None:
            _private_file(place.file)
        try:
            self.engine = sql.create_engine(place.url, pool_pre_ping=place.file is None)
            if place.file is not None:
                event.listen(self.engine, "connect", _tune)
            _rename_former_tables(self.engine)
            METADATA.create_all(self.engine)
            _add_new_columns(self.engine)
        except sql.exc.SQLAlchemyError as error:
            # The cause may quote the URL, password and all.
            kind = type(error).__name__
            raise InvalidParameter(
                f"the workbench's database at {place} cannot be used ({kind})."
            ) from None

    @contextmanager
    def begin(self) -> Iterator[sql.Connection]:
        """A transaction: committed at the end, rolled back on an error."""
        with self.engine.begin() as connection:
            yield connection

    def rows(self, statement: Any) -> list[dict[str, Any]]:
        """What a query finds, as dictionaries."""
        with self.engine.connect() as connection:
            return [dict(row) for row in connection.execute(statement).mappings()]

    def close(self) -> None:
        """Let go of all connections."""
        self.engine.dispose()


def _private_file(path: Path) -> None:
    """A file, and its folder, that others on this machine cannot read; SQLite's further files take
    after it.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    path.chmod(0o600)


def _rename_former_tables(engine: sql.Engine) -> None:
    """Give tables of version 0.2 and earlier their present names."""
    names = set(sql.inspect(engine).get_table_names())
    for table in METADATA.tables:
        former = table.replace("_workbench_", "_studio_")
        if former in names and table not in names:
            with engine.begin() as connection:
                connection.execute(sql.text(f"ALTER TABLE {former} RENAME TO {table}"))


def _add_new_columns(engine: sql.Engine) -> None:
    """Tables of an earlier version get the columns that came since."""
    inspector = sql.inspect(engine)
    for table in METADATA.tables.values():
        there = {column["name"] for column in inspector.get_columns(table.name)}
        for column in table.columns:
            if column.name not in there:
                kind = column.type.compile(engine.dialect)
                with contextlib.suppress(sql.exc.SQLAlchemyError), engine.begin() as connection:
                    connection.execute(
                        sql.text(f"ALTER TABLE {table.name} ADD COLUMN {column.name} {kind}")
                    )


def _tune(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA busy_timeout=30000")
