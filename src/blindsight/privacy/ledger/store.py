"""The SQL store: two tables, short transactions, on SQLite or PostgreSQL through SQLAlchemy.

SQLite runs in WAL mode with synchronous=FULL: a commit returns after its log is on disk, and
readers never stop writers. A write takes the write lock before it reads (BEGIN IMMEDIATE; SELECT
FOR UPDATE on PostgreSQL), so what it decides on cannot change under it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sql
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from blindsight.core import durable
from blindsight.core.errors import LedgerError, LedgerTampered
from blindsight.privacy.ledger.chain import NEWEST, Head
from blindsight.privacy.ledger.location import Location
from blindsight.privacy.ledger.transaction import (
    Transaction,
    check_schema,
    ledger_format,
    prepare_schema,
)

__all__ = ["Store"]

_stores: weakref.WeakSet[Store] = weakref.WeakSet()


class Store:
    """Connections to one ledger's database, kept apart for each process."""

    def __init__(
        self, location: Location, *, create: bool, timeout: float, readonly: bool = False
    ) -> None:
        self.location = location
        self.timeout = timeout
        self.readonly = readonly
        self._fresh()
        if location.file is not None and not location.file.parent.is_dir():
            raise LedgerError(
                f"the ledger's folder {location.file.parent} does not exist. Create it first."
            )
        if location.file is not None and not location.file.is_file():
            if not create or readonly:
                raise LedgerError(f"there is no ledger at {location}. Grant a budget to start one.")
            with self._errors("write"):
                # SQLite gives its log the mode of the file: nobody else reads either.
                os.close(durable.open_file(location.file, os.O_RDWR | os.O_CREAT))
        try:
            self._prepare(create=create)
        except BaseException:
            self.close()  # nobody gets this store, so nobody else can close its connections
            raise
        _stores.add(self)

    def _fresh(self) -> None:
        self._guard = threading.Lock()
        self._engine: sql.Engine | None = None
        self._dropped: weakref.finalize[..., Store] | None = None
        self._options: list[sql.Engine] = []  # the same engine, to read from and to write to
        self._files: Files | None = None
        self._schema: int | None = None
        self._known: dict[str, Head] = {}

    def _prepare(self, *, create: bool) -> None:
        with self.read() as transaction:
            stored_format = ledger_format(transaction.connection)
            if stored_format == NEWEST:
                check_schema(transaction.connection)
                return
        if stored_format is None and not create:
            raise LedgerError(f"{self.location} holds no ledger. Grant a budget to start one.")
        if self.readonly:
            raise LedgerError(
                f"{self.location} holds a ledger of format {stored_format}, which can be read only "
                "after it "
                f"was carried over to format {NEWEST}. Open it for writing once (blindsight ledger "
                "show does): entries and hashes stay."
            )
        with self._errors("write"), self._connect(write=True) as connection, connection.begin():
            for end in () if self.location.file is None else ("", "-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    # Files of the first format were readable by others.
                    durable.close_to_others(Path(f"{self.location.file}{end}"), mode=0o600)
            prepare_schema(connection, location=str(self.location))
            check_schema(connection)

    def close(self) -> None:
        """Close the connections to the database; the next use opens them again."""
        with self._guard:
            engine, self._engine, self._files, self._schema = self._engine, None, None, None
            dropped, self._dropped = self._dropped, None
        if dropped is not None:
            dropped.detach()
        if engine is not None:
            engine.dispose()

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        """Open a snapshot to read from, which delays no writer."""
        with self._errors("read"), self._connect(write=False) as connection, connection.begin():
            yield Transaction(connection)

    @contextmanager
    def write(self, dataset: str) -> Iterator[Transaction]:
        """Open the one write transaction, durable when the block ends and undone when it raises.

        The file must still be the one that was opened, with the tables that were made, and the
        chain must pass through every head that this process knows to be on the disk.
        """
        if self.readonly:
            raise LedgerError(f"the ledger {self.location} was opened to be read only.")
        with self._errors("write"):
            if self._moved():
                # Closing saves what the old log still holds; then the present file is opened.
                self.close()
            with self._connect(write=True) as connection:
                with connection.begin():
                    self._check_location(connection)
                    transaction = Transaction(connection, self._known.get(dataset))
                    yield transaction
                if self._moved():
                    self.close()
                    raise OSError(
                        "its file or its log was removed or replaced while it was written"
                    )
            if transaction.appended is not None:
                self._known[dataset] = transaction.appended.head

    def _moved(self) -> bool:
        return self._files is not None and self._files != _files(self.location)

    def _check_location(self, connection: sql.Connection) -> None:
        if self.location.file is None:
            # Others may share the database, and nothing counts their changes.
            check_schema(connection)
            return
        if self._files is None:
            self._files = _files(self.location)
        # SQLite counts every change of the schema.
        driver: Any = connection.connection.driver_connection
        version = driver.execute("PRAGMA schema_version").fetchone()[0]
        if version != self._schema:
            check_schema(connection)
            self._schema = version

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except UnicodeDecodeError:
            # Python's sqlite3 fails so on an error message that quotes damaged bytes.
            raise LedgerTampered(
                f"the ledger {self.location} is damaged: its tables cannot be read."
            ) from None
        except (SQLAlchemyError, sqlite3.Error, OSError) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            reason = self.location.redact(
                str(cause).strip().splitlines()[0] if str(cause).strip() else "no reason given"
            )
            # The chain of causes is dropped: drivers put statements, values and addresses in it.
            raise LedgerError(
                f"the ledger {self.location} could not be "
                f"{'read' if doing == 'read' else 'written'} "
                f"({reason.rstrip('.')}). Nothing may be released on a charge that failed."
            ) from None

    @contextmanager
    def _connect(self, *, write: bool) -> Iterator[sql.Connection]:
        with self._guard:
            if self._engine is None:
                self._engine = _engine(self.location, self.timeout, readonly=self.readonly)
                self._options = [
                    self._engine.execution_options(ledger_write=flag) for flag in (False, True)
                ]
                # A store that nobody closed closes its connections when nobody holds it any more.
                self._dropped = weakref.finalize(self, self._engine.dispose)
                self._dropped.atexit = False
            options = self._options[write]
        with options.connect() as connection:
            yield connection


def _engine(location: Location, timeout: float, *, readonly: bool) -> sql.Engine:
    if location.file is None:
        engine = sql.create_engine(
            location.url, pool_pre_ping=True, pool_timeout=timeout, hide_parameters=True
        )
        event.listen(engine, "connect", _set_up_postgresql(timeout))
        event.listen(engine, "begin", _begin_postgresql)
        return engine
    engine = sql.create_engine(
        "sqlite+pysqlite://",
        creator=functools.partial(_connect_sqlite, location.file, timeout, readonly),
        hide_parameters=True,
        poolclass=sql.QueuePool,
        pool_timeout=timeout,
    )
    event.listen(engine, "connect", _set_up_sqlite(timeout, readonly=readonly))
    event.listen(engine, "begin", _begin_sqlite(timeout))
    return engine


def _connect_sqlite(file: Path, timeout: float, readonly: bool) -> sqlite3.Connection:
    # Never "rwc": a ledger that was removed must not come back empty.
    mode = "ro" if readonly else "rw"
    if readonly and not Path(f"{file}-wal").exists() and not os.access(file.parent, os.W_OK):
        # SQLite cannot share a read-only folder with a writer; here there is none
        mode = "ro&immutable=1"
    address = f"file:{quote(str(file))}?mode={mode}"
    return sqlite3.connect(address, uri=True, timeout=timeout, check_same_thread=False)


Files = tuple[tuple[int, int] | None, tuple[int, int] | None]


def _files(location: Location) -> Files:
    """Return the identities of the ledger's file and of its log."""

    def identity(path: str) -> tuple[int, int] | None:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    return (
        (None, None)
        if location.file is None
        else (identity(str(location.file)), identity(f"{location.file}-wal"))
    )


def _set_up_sqlite(timeout: float, *, readonly: bool) -> Any:
    def set_up(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves
        if readonly:
            connection.execute("PRAGMA query_only=ON")
            connection.execute("PRAGMA trusted_schema=OFF")
            return
        # Only the first opener switches the mode, and SQLite does not wait for the others then.
        mode = _patiently(
            lambda: connection.execute("PRAGMA journal_mode=WAL").fetchone()[0], timeout
        )
        if mode != "wal":
            raise OSError(
                f"its file system allows no write-ahead log, only {mode!r}; use a local disk or "
                "PostgreSQL"
            )
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.execute("PRAGMA cell_size_check=ON")

    return set_up


def _begin_postgresql(connection: sql.Connection) -> None:
    # Writers stay at READ COMMITTED: after waiting for the lock they must see what the writer
    # before committed.
    if not connection.get_execution_options().get("ledger_write"):
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")


def _begin_sqlite(timeout: float) -> Any:
    def begin(connection: sql.Connection) -> None:
        raw: Any = connection.connection.driver_connection
        if not connection.get_execution_options().get("ledger_write"):
            raw.execute("BEGIN")
            return
        raw.execute("PRAGMA busy_timeout=0")
        try:
            _patiently(lambda: raw.execute("BEGIN IMMEDIATE"), timeout)
        finally:
            raw.execute(f"PRAGMA busy_timeout={int(timeout * 1000)}")

    return begin


def _patiently(attempt: Callable[[], Any], timeout: float) -> Any:
    """Retry while the database is locked.

    SQLite's own wait grows to a tenth of a second, so that among many writers one can starve for
    minutes; short waits of random length are fair.
    """
    deadline, longest = time.monotonic() + timeout, 0.001
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0, longest))
            longest = min(2 * longest, 0.02)


def _set_up_postgresql(timeout: float) -> Any:
    def set_up(connection: Any, _record: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT set_config('lock_timeout', %s, false)", (f"{int(timeout * 1000)}ms",)
            )
            # A server may default to "off", where a crash can forget the last commits.
            cursor.execute(
                "SELECT set_config('synchronous_commit', 'on', false) "
                "WHERE current_setting('synchronous_commit') = 'off'"
            )
        connection.commit()

    return set_up


def _before_fork() -> None:
    # SQLite forbids carrying a connection into a child, even to close it there. Connections that
    # another thread uses at this moment stay with the parent; the child drops its view of them
    # untouched.
    for store in list(_stores):
        engine = store._engine
        if engine is not None:
            engine.dispose()


_abandoned: list[Any] = []


def _after_fork_in_child() -> None:
    for store in list(_stores):
        _abandoned.append(store._engine)
        if store._dropped is not None:
            store._dropped.detach()
        store._fresh()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
