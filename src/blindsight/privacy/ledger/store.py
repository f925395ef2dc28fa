"""The SQL store: two tables, short transactions, on SQLite or PostgreSQL through SQLAlchemy.

SQLite runs in WAL mode with synchronous=FULL: a commit returns after its log is on disk, and readers never stop
writers. A write takes the write lock before it reads (BEGIN IMMEDIATE; SELECT FOR UPDATE on PostgreSQL), so what it
decides on cannot change under it.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sql
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from blindsight.core.errors import LedgerError, LedgerTampered
from blindsight.privacy.ledger.amounts import LARGEST
from blindsight.privacy.ledger.chain import EMPTY, FIELDS, TEXTS, Entry, Head, intact
from blindsight.privacy.ledger.place import Place

__all__ = ["Store", "Transaction"]

METADATA = sql.MetaData()
WHOLE = sql.BigInteger().with_variant(sql.Integer(), "sqlite")  # SQLite's strict tables call 64 bits INTEGER
ENTRIES = sql.Table(
    "blindsight_ledger_entries",
    METADATA,
    *(
        sql.Column(
            name,
            sql.Text() if name in TEXTS else WHOLE,
            primary_key=name in ("dataset", "sequence"),
            autoincrement=False,
            nullable=False,
        )
        for name in FIELDS
    ),
    sql.Index("blindsight_ledger_accounts", "dataset", "unit", "neighbours", "sequence"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
HEADS = sql.Table(
    "blindsight_ledger_heads",
    METADATA,
    sql.Column("dataset", sql.Text(), primary_key=True),
    sql.Column("sequence", WHOLE, nullable=False),
    sql.Column("hash", sql.Text(), nullable=False),
    sqlite_strict=True,
)
CREATION_LOCK = 0x626C_696E_6473  # any constant: who creates the tables on PostgreSQL holds this advisory lock

_stores: weakref.WeakSet[Store] = weakref.WeakSet()


class Store:
    """Connections to one ledger's database, kept apart for each process."""

    def __init__(self, place: Place, *, create: bool, timeout: float) -> None:
        self.place = place
        self.timeout = timeout
        self._fresh()
        if place.file is not None and not place.file.parent.is_dir():
            raise LedgerError(f"the ledger's folder {place.file.parent} does not exist. Create it first.")
        if place.file is not None and not create and not place.file.is_file():
            raise LedgerError(f"there is no ledger at {place}. Grant a budget to start one.")
        self._prepare(create=create)
        _stores.add(self)

    def _fresh(self) -> None:
        self._guard = threading.Lock()
        self._engine: sql.Engine | None = None
        self._options: list[sql.Engine] = []  # the same engine, to read from and to write to

    def _prepare(self, *, create: bool) -> None:
        with self.read() as transaction:
            if sql.inspect(transaction.connection).has_table(HEADS.name):
                return
        if not create:
            raise LedgerError(f"{self.place} holds no ledger. Grant a budget to start one.")
        with self.write() as transaction:
            if transaction.connection.dialect.name == "postgresql":
                transaction.connection.execute(sql.select(sql.func.pg_advisory_xact_lock(CREATION_LOCK)))
            if not sql.inspect(transaction.connection).has_table(HEADS.name):  # another process was faster
                METADATA.create_all(transaction.connection)

    def close(self) -> None:
        """Let go of the database; the next use opens it again."""
        with self._guard:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        """A snapshot to read from, which holds up no writer."""
        with self._errors("read"), self._connect(write=False) as connection, connection.begin():
            yield Transaction(connection)

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """The one writer at a time; durable when the block ends, undone when it raises."""
        with self._errors("write"), self._connect(write=True) as connection, connection.begin():
            yield Transaction(connection)

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except UnicodeDecodeError:
            # Python's sqlite3 fails so on an error message that quotes damaged bytes.
            raise LedgerTampered(f"the ledger {self.place} is damaged: its tables cannot be read.") from None
        except (SQLAlchemyError, sqlite3.Error, OSError) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            reason = self.place.redact(str(cause).strip().splitlines()[0] if str(cause).strip() else "no reason given")
            # The chain of causes is dropped: drivers put statements, values and addresses in it.
            raise LedgerError(
                f"the ledger {self.place} could not be {'read' if doing == 'read' else 'written'} "
                f"({reason.rstrip('.')}). Nothing may be released on a charge that failed."
            ) from None

    @contextmanager
    def _connect(self, *, write: bool) -> Iterator[sql.Connection]:
        with self._guard:
            if self._engine is None:
                self._engine = _engine(self.place, self.timeout)
                self._options = [self._engine.execution_options(ledger_write=flag) for flag in (False, True)]
            options = self._options[write]
        with options.connect() as connection:
            yield connection


HEAD = sql.select(HEADS.c.sequence, HEADS.c.hash).where(HEADS.c.dataset == sql.bindparam("dataset"))
END = (
    sql.select(ENTRIES, HEADS.c.sequence.label("head_sequence"), HEADS.c.hash.label("head_hash"))
    .select_from(
        HEADS.outerjoin(ENTRIES, (ENTRIES.c.dataset == HEADS.c.dataset) & (ENTRIES.c.sequence == HEADS.c.sequence))
    )
    .where(HEADS.c.dataset == sql.bindparam("dataset"))
)
LOCK = HEAD.with_for_update()
LAST = (
    sql.select(ENTRIES)
    .where(
        ENTRIES.c.dataset == sql.bindparam("dataset"),
        ENTRIES.c.unit == sql.bindparam("unit"),
        ENTRIES.c.neighbours == sql.bindparam("neighbours"),
    )
    .order_by(ENTRIES.c.sequence.desc())
    .limit(1)
)
PAGE = 1000
NEXT = (
    sql.select(ENTRIES)
    .where(ENTRIES.c.dataset == sql.bindparam("dataset"), ENTRIES.c.sequence > sql.bindparam("after"))
    .order_by(ENTRIES.c.sequence)
    .limit(PAGE)
)
APPEND = sql.insert(ENTRIES)
MOVE = (
    sql.update(HEADS)
    .where(HEADS.c.dataset == sql.bindparam("of"))
    .values(sequence=sql.bindparam("to"), hash=sql.bindparam("digest"))
)


class Transaction:
    """What can be asked of the tables inside one transaction."""

    def __init__(self, connection: sql.Connection) -> None:
        self.connection = connection

    def start(self, dataset: str) -> None:
        """Make sure the data set has a head to lock."""
        insert = _insert(self.connection)(HEADS).values(dataset=dataset, sequence=EMPTY.sequence, hash=EMPTY.hash)
        self.connection.execute(insert.on_conflict_do_nothing())

    def head(self, dataset: str) -> Head | None:
        """Where the data set's chain ends, or None."""
        row = self.connection.execute(HEAD, {"dataset": dataset}).one_or_none()
        return None if row is None else Head(*row)

    def locked_end(self, dataset: str) -> tuple[Head, Entry | None]:
        """The head, which nobody else can move until this ends, and the entry it names, its hash checked."""
        if self.connection.dialect.name == "postgresql":
            # Lock in a statement of its own: the next one then sees what the writer before us committed.
            self.connection.execute(LOCK, {"dataset": dataset})
        row = self.connection.execute(END, {"dataset": dataset}).one_or_none()
        if row is None:
            return EMPTY, None
        *fields, sequence, digest = row
        entry = None if fields[1] is None else intact(dict(zip(FIELDS, fields, strict=True)))
        return Head(sequence, digest), entry

    def last(self, dataset: str, unit: str, neighbours: str) -> Entry | None:
        """The last entry of an account, its hash checked: it carries the totals."""
        names = {"dataset": dataset, "unit": unit, "neighbours": neighbours}
        row = self.connection.execute(LAST, names).one_or_none()
        return None if row is None else intact(dict(row._mapping))

    def accounts(self, dataset: str) -> list[tuple[str, str]]:
        """The units and neighbour relations that the data set has entries in."""
        pair = (ENTRIES.c.unit, ENTRIES.c.neighbours)
        query = sql.select(*pair).where(ENTRIES.c.dataset == dataset).distinct().order_by(*pair)
        return [(unit, neighbours) for unit, neighbours in self.connection.execute(query)]

    def datasets(self) -> list[str]:
        """Every data set that has a head or an entry."""
        either = sql.union(sql.select(HEADS.c.dataset), sql.select(ENTRIES.c.dataset))
        return sorted(self.connection.scalars(either))

    def page(self, dataset: str, *, after: int) -> list[dict[str, Any]]:
        """The stored fields of the next entries in order, at most `PAGE` of them, unchecked."""
        found = self.connection.execute(NEXT, {"dataset": dataset, "after": after})
        return [dict(row) for row in found.mappings()]

    def rows(self, dataset: str) -> Iterator[dict[str, Any]]:
        """All stored fields in order, unchecked. Page by page: a cursor would stay open when the reader stops."""
        page = self.page(dataset, after=-LARGEST)
        while page:
            yield from page
            page = self.page(dataset, after=page[-1]["sequence"])

    def append(self, entry: Entry) -> None:
        """Write an entry and move the head to it."""
        self.connection.execute(APPEND, entry.to_dict())
        self.connection.execute(MOVE, {"of": entry.dataset, "to": entry.sequence, "digest": entry.hash})

    def check_file(self) -> None:
        """Have SQLite check its own pages and indexes; PostgreSQL keeps page checksums of its own."""
        if self.connection.dialect.name == "sqlite":
            found = self.connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar()
            if found != "ok":
                raise LedgerTampered(f"the ledger's file is damaged: {found}.")


def _insert(connection: sql.Connection) -> Any:
    """The dialect's own insert, which knows ON CONFLICT; only one of the two is worth importing."""
    if connection.dialect.name == "sqlite":
        from sqlalchemy.dialects import sqlite

        return sqlite.insert
    from sqlalchemy.dialects import postgresql

    return postgresql.insert


def _engine(place: Place, timeout: float) -> sql.Engine:
    if place.file is None:
        engine = sql.create_engine(place.url, pool_pre_ping=True, pool_timeout=timeout, hide_parameters=True)
        event.listen(engine, "connect", _set_up_postgresql(timeout))
        event.listen(engine, "begin", _begin_postgresql)
        return engine
    options = {"timeout": timeout, "check_same_thread": False}
    engine = sql.create_engine(
        place.url, connect_args=options, hide_parameters=True, poolclass=sql.QueuePool, pool_timeout=timeout
    )
    event.listen(engine, "connect", _set_up_sqlite(timeout))
    event.listen(engine, "begin", _begin_sqlite(timeout))
    return engine


def _set_up_sqlite(timeout: float) -> Any:
    def set_up(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves
        # Only the first opener switches the mode, and SQLite does not wait for the others then.
        mode = _patiently(lambda: connection.execute("PRAGMA journal_mode=WAL").fetchone()[0], timeout)
        if mode != "wal":
            raise OSError(f"its file system allows no write-ahead log, only {mode!r}; use a local disk or PostgreSQL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.execute("PRAGMA cell_size_check=ON")

    return set_up


def _begin_postgresql(connection: sql.Connection) -> None:
    # Writers stay at READ COMMITTED: after waiting for the lock they must see what the writer before committed.
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
    """Try until the lock is ours. SQLite's own wait grows to a tenth of a second, which in a crowd can starve the
    unlucky for minutes; short waits of random length give everyone a turn."""
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
            cursor.execute("SELECT set_config('lock_timeout', %s, false)", (f"{int(timeout * 1000)}ms",))
            # A server may default to "off", where a crash can forget the last commits.
            cursor.execute(
                "SELECT set_config('synchronous_commit', 'on', false) "
                "WHERE current_setting('synchronous_commit') = 'off'"
            )
        connection.commit()

    return set_up


def _before_fork() -> None:
    # SQLite forbids carrying a connection into a child, even to close it there. Connections that another thread
    # uses at this moment stay with the parent; the child drops its view of them untouched.
    for store in list(_stores):
        engine = store._engine
        if engine is not None:
            engine.dispose()


_abandoned: list[Any] = []


def _after_fork_in_child() -> None:
    for store in list(_stores):
        _abandoned.append(store._engine)
        store._fresh()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
