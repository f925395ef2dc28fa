"""The vault's database, whose rows carry message authentication codes.

Each row ends with a message authentication code (HMAC-SHA-256 under a key derived from the vault's)
over its table and all its values, so that a changed value, or a row moved to another table or made
under another key, is refused by name. For the tables that decide what may be released the number of
rows is stored as well, so that a removed row is noticed. An older copy of the whole database is
consistent in itself; comparing it with the ledger shows it (`blindsight.privacy.reconcile`).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hmac
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from blindsight.core import durable
from blindsight.core.errors import HostileFile, InvalidData, MissingData

__all__ = ["Row", "VaultStore"]

Value: TypeAlias = str | int | bytes
Row: TypeAlias = tuple[Value, ...]

# For each table its columns, and how many of them, from the first, are its primary key.
TABLES: dict[str, tuple[tuple[str, ...], int]] = {
    "facts": (("name TEXT", "value TEXT"), 1),
    "photos": (
        (
            "dataset TEXT",
            "name BLOB",  # the bytes that the file system has, which need not be UTF-8
            "record TEXT",
            "person TEXT",
            "size INTEGER",
            "changed INTEGER",
        ),
        2,
    ),
    "files": (("file TEXT", "record TEXT"), 1),
    "aliases": (("picture TEXT", "record TEXT"), 1),
    "codes": (("release TEXT", "record TEXT", "code BLOB"), 2),
    "persons": (("record TEXT", "person TEXT"), 2),
    "releases": (
        (
            "release TEXT",
            "generation INTEGER",
            "what TEXT",
            "costs TEXT",
            "most INTEGER",
            "state TEXT",
        ),
        1,
    ),
    "contributions": (("release TEXT", "record TEXT"), 2),
    "outputs": (("release TEXT", "label TEXT", "digest TEXT"), 2),
    "accounts": (
        ("account TEXT", "place TEXT", "dataset TEXT", "sequence INTEGER", "hash TEXT"),
        1,
    ),
    "charges": (("account TEXT", "release TEXT"), 2),
    "members": (("account TEXT", "record TEXT"), 2),
    "counts": (("name TEXT", "size INTEGER"), 1),
}
COUNTED = frozenset(TABLES) - {"counts"}
# The tables of the first format, which had no codes of authenticity.
FIRST_TABLES = """
CREATE TABLE facts (name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE photos (name TEXT NOT NULL PRIMARY KEY, record TEXT NOT NULL, person TEXT NOT NULL, size INTEGER NOT NULL,
    changed INTEGER NOT NULL) STRICT;
CREATE TABLE codes (release TEXT NOT NULL, record TEXT NOT NULL, code BLOB NOT NULL, PRIMARY KEY (release, record))
    STRICT;
CREATE TABLE persons (record TEXT NOT NULL, person TEXT NOT NULL, PRIMARY KEY (record, person)) STRICT;
"""  # noqa: E501
MANY = 500  # values per statement


def _schema() -> str:
    statements = []
    for name, (columns, primary) in TABLES.items():
        typed = ", ".join(f"{column} NOT NULL" for column in (*columns, "mac BLOB"))
        key = ", ".join(column.split()[0] for column in columns[:primary])
        statements.append(
            f"CREATE TABLE {name} ({typed}, PRIMARY KEY ({key})) STRICT, WITHOUT ROWID;"
        )
    return "\n".join(statements)


SCHEMA = _schema()
# The same with names of photos as text.
TEXT_NAMES_SCHEMA = SCHEMA.replace("name BLOB NOT NULL, record", "name TEXT NOT NULL, record")


@dataclass
class _Turn:
    """Who holds a vault in this process: a lock among threads, and one among processes."""

    guard: threading.RLock = field(default_factory=threading.RLock)
    depth: int = 0
    descriptor: int = -1


_turns: dict[str, _Turn] = {}


class VaultStore:
    """The database of one vault, and the lock by which runs take turns.

    Parameters:
        folder: the vault's folder.
        key: the key of the rows' authentication codes.
    """

    def __init__(self, folder: Path, key: bytes) -> None:
        self.folder, self.file, self._key = folder, folder / "records.db", key
        self._turn = _turns.setdefault(str(folder.resolve()), _Turn())
        if not self.file.is_file():
            raise MissingData(
                f"the vault {folder} has lost {self.file.name}, which says what was released. "
                "Nothing is released with its key alone, for each photo would be released again. "
                "Restore the file from a backup."
            )
        with self.reading() as connection:
            present = _objects(connection)
            if present == _made(FIRST_TABLES):
                self._carry_over()
                present = _objects(connection)
            elif present == _made(TEXT_NAMES_SCHEMA):
                self._names_to_bytes()
                present = _objects(connection)
        if present != _made(SCHEMA):
            raise HostileFile(
                f"{self.file} does not hold the tables of a vault. Restore the vault from a copy."
            )
        self.verify(rows=False)

    @classmethod
    def create(cls, folder: Path, key: bytes) -> None:
        """Make an empty database in the folder of a vault that is being made."""
        store = cls.__new__(cls)
        store.folder, store.file, store._key = folder, folder / "records.db", key
        os.close(durable.open_file(store.file, os.O_CREAT | os.O_EXCL | os.O_RDWR))
        with store.writing() as connection:
            _run(connection, SCHEMA)
            store.insert(connection, "counts", [(name, 0) for name in sorted(COUNTED)])
        durable.sync_folder(folder)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open a connection; errors of the database become messages for users."""
        with self._explained(), contextlib.closing(_connect(self.file)) as connection:
            yield connection

    @contextmanager
    def lookups(self) -> Iterator[Callable[[str, str, Row], list[Row]]]:
        """`select` for many single rows, on one connection: opening one takes longer than a row.

        The function is for the thread that opened the block. It holds no lock between two calls.
        """
        with contextlib.ExitStack() as stack:
            with self._explained():
                connection = stack.enter_context(contextlib.closing(_connect(self.file)))

            def find(table: str, where: str, values: Row) -> list[Row]:
                with self._explained():
                    return self.select(connection, table, where, values)

            yield find

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except UnicodeDecodeError:
            # Python's sqlite3 fails so on text of damaged bytes.
            raise HostileFile(
                f"the vault {self.folder} is damaged: its tables cannot be read. Restore it from a "
                "copy."
            ) from None
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
                full = os.strerror(errno.ENOSPC)
                raise OSError(errno.ENOSPC, full, str(self.folder)) from None
            if isinstance(error, sqlite3.OperationalError):
                raise InvalidData(
                    f"the vault {self.folder} cannot be used ({error}). Nothing more is released."
                ) from None
            raise HostileFile(
                f"the vault {self.folder} is damaged ({error}). Restore it from a copy."
            ) from None

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """The one writer at a time: on the disk when the block ends, undone when it raises."""
        with self.reading() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    def insert(self, connection: sqlite3.Connection, table: str, rows: Iterable[Row]) -> int:
        """Insert rows whose primary key is not there yet; returns how many were inserted."""
        columns, _ = TABLES[table]
        marks = ", ".join("?" * (len(columns) + 1))
        sealed = [(*row, self._mac(table, row)) for row in rows]
        done = connection.executemany(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", sealed)  # noqa: S608
        self._count(connection, table, done.rowcount)
        return done.rowcount

    def replace(self, connection: sqlite3.Connection, table: str, rows: Iterable[Row]) -> None:
        """Insert rows, in place of those with the same primary key."""
        listed = list(rows)
        primary = TABLES[table][1]
        self.delete(connection, table, [row[:primary] for row in listed])
        self.insert(connection, table, listed)

    def delete(self, connection: sqlite3.Connection, table: str, keys: Iterable[Row]) -> None:
        """Delete the rows with these primary keys."""
        columns, primary = TABLES[table]
        where = " AND ".join(f"{column.split()[0]} = ?" for column in columns[:primary])
        done = connection.executemany(f"DELETE FROM {table} WHERE {where}", list(keys))  # noqa: S608
        self._count(connection, table, -done.rowcount)

    def select(
        self, connection: sqlite3.Connection, table: str, where: str = "1", values: Row = ()
    ) -> list[Row]:
        """The rows that fulfil a condition, each checked against its authentication code."""
        rows = []
        query = f"SELECT * FROM {table} WHERE {where}"  # noqa: S608
        for *row, mac in connection.execute(query, values):
            # A damaged page may hold NULL or a float where none was ever written.
            if not (
                isinstance(mac, bytes)
                and all(isinstance(value, (str, int, bytes)) for value in row)
                and hmac.compare_digest(self._mac(table, row), mac)
            ):
                raise HostileFile(
                    f"a row of {table} in {self.file} was changed or damaged, or the key beside it "
                    "is another vault's. Restore the vault from a copy."
                )
            rows.append(tuple(row))
        return rows

    def select_in(
        self,
        connection: sqlite3.Connection,
        table: str,
        column: str,
        wanted: Sequence[Value],
        where: str = "1",
        values: Row = (),
    ) -> Iterator[Row]:
        """The rows of which one column has one of the wanted values."""
        for start in range(0, len(wanted), MANY):
            part = wanted[start : start + MANY]
            marks = ", ".join("?" * len(part))
            condition = f"{where} AND {column} IN ({marks})"
            yield from self.select(connection, table, condition, (*values, *part))

    @contextmanager
    def turn(self, wait: float) -> Iterator[None]:
        """Hold the vault for one run: others wait, and are refused after `wait` seconds.

        The thread that holds the vault may take it again.
        """
        turn, path = self._turn, self.folder / "lock"
        if not turn.guard.acquire(timeout=max(0.0, wait)):
            raise self._busy(wait)
        try:
            if turn.depth == 0:
                try:
                    turn.descriptor = durable.open_file(path, os.O_RDWR | os.O_CREAT)
                except FileNotFoundError:
                    raise self._removed() from None
            turn.depth += 1
            deadline = time.monotonic() + wait
            try:
                while turn.depth == 1:
                    with contextlib.suppress(OSError):
                        durable.lock(turn.descriptor, wait=False)
                        break
                    if time.monotonic() >= deadline:
                        raise self._busy(wait)
                    time.sleep(0.02)
                if not os.fstat(turn.descriptor).st_nlink:  # the lock of a removed file
                    raise self._removed()
                yield
            finally:
                turn.depth -= 1
                if turn.depth == 0:
                    os.close(turn.descriptor)
        finally:
            turn.guard.release()

    def verify(self, *, rows: bool = True) -> None:
        """Check that no row is missing, and with `rows` every row of every table."""
        with self.reading() as connection:
            connection.execute("BEGIN")
            counts = {str(row[0]): int(row[1]) for row in self.select(connection, "counts")}
            sizes = {
                name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]  # noqa: S608
                for name in COUNTED
            }
        for name in sorted(COUNTED):
            if counts.get(name) != sizes[name]:
                raise HostileFile(
                    f"{self.file} should have {counts.get(name)} rows of {name} and has "
                    f"{sizes[name]}: rows were lost or added. Restore the vault from a copy."
                )
        if rows:
            with self.reading() as connection:
                for table in TABLES:
                    self.select(connection, table)

    def _busy(self, wait: float) -> InvalidData:
        return InvalidData(
            f"another run has been using the vault {self.folder} for more than {wait:g} seconds. "
            "Nothing was charged or released. Wait until it has finished, then try again."
        )

    def _removed(self) -> InvalidData:
        return InvalidData(
            f"the vault {self.folder} was removed or replaced by another run. Nothing was charged "
            "or released. Run the command again."
        )

    def _count(self, connection: sqlite3.Connection, table: str, more: int) -> None:
        if table in COUNTED and more:
            ((_, size),) = self.select(connection, "counts", "name = ?", (table,))
            self.replace(connection, "counts", [(table, int(size) + more)])

    def _mac(self, table: str, row: Sequence[Value]) -> bytes:
        parts = [table.encode()]
        for value in row:
            if isinstance(value, str):
                parts.append(b"s" + value.encode(errors="surrogatepass"))
            else:
                parts.append(b"i%d" % value if isinstance(value, int) else b"b" + value)
        message = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return hmac.digest(self._key, message, "sha256")[:16]

    def _carry_over(self) -> None:
        """Authenticate the rows of a database of the first format, as they stand."""
        with self.writing() as connection:
            if _objects(connection) != _made(FIRST_TABLES):
                return  # another process was faster
            old = {
                name: connection.execute(f"SELECT * FROM {name}").fetchall()  # noqa: S608
                for name in ("facts", "photos", "codes", "persons")
            }
            for name in old:
                connection.execute(f"DROP TABLE {name}")
            _run(connection, SCHEMA)
            self.insert(connection, "counts", [(name, 0) for name in sorted(COUNTED)])
            old["photos"] = [("", os.fsencode(row[0]), *row[1:]) for row in old["photos"]]
            old["releases"] = [
                (release, number, "a release of an earlier version", "[]", 0, "earlier")
                for number, release in enumerate(sorted({row[0] for row in old["codes"]}), 1)
            ]
            if old["codes"]:
                old["facts"].append(("encoded identities", "true"))
            for name, rows in old.items():
                self.insert(connection, name, rows)

    def _names_to_bytes(self) -> None:
        """Change the names of photos from text to bytes."""
        with self.writing() as connection:
            if _objects(connection) != _made(TEXT_NAMES_SCHEMA):
                return  # another process was faster
            rows = self.select(connection, "photos")
            self.delete(connection, "photos", [row[:2] for row in rows])
            connection.execute("DROP TABLE photos")
            _run(connection, next(line for line in SCHEMA.splitlines() if " photos " in line))
            changed = [(row[0], os.fsencode(str(row[1])), *row[2:]) for row in rows]
            self.insert(connection, "photos", changed)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=60.0, isolation_level=None
    )
    try:
        # The plain rollback journal: one file at rest, nothing to lose beside it. EXTRA also
        # flushes the folder.
        connection.execute("PRAGMA synchronous=EXTRA")
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.execute("PRAGMA secure_delete=ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _run(connection: sqlite3.Connection, script: str) -> None:
    for statement in script.split(";"):
        connection.execute(statement)


def _objects(connection: sqlite3.Connection) -> set[Row]:
    query = "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL"
    return set(connection.execute(query))


@functools.cache
def _made(script: str) -> frozenset[Row]:
    """The objects of a database that a script made."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        _run(connection, script)
        return frozenset(_objects(connection))
