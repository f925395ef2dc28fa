"""The tables of a ledger, and queries and writes inside one transaction; decisions are made in
`book`.

The database must hold these tables and nothing that acts on them. A trigger, a rule or a view can
void every charge unnoticed: the write succeeds and something else is stored. So the objects of an
SQLite file must be exactly those that this module would create, word for word; on PostgreSQL, where
others may share the database, nothing may be attached to our tables. Ledgers of earlier formats are
migrated in one transaction, their entries and hashes unchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import sqlalchemy as sql

from blindsight.core.errors import LedgerError, LedgerTampered
from blindsight.privacy.cost import Neighbours, Unit
from blindsight.privacy.ledger.amounts import LARGEST
from blindsight.privacy.ledger.chain import (
    EMPTY,
    FIELDS,
    NEWEST,
    TEXTS,
    Account,
    Entry,
    Head,
    added_after,
    fields_of,
    intact,
)

__all__ = [
    "ENTRIES",
    "HEADS",
    "Transaction",
    "check_schema",
    "ledger_format",
    "prepare_schema",
]

METADATA = sql.MetaData()
WHOLE = sql.BigInteger().with_variant(
    sql.Integer(), "sqlite"
)  # SQLite's strict tables call 64 bits INTEGER


def _column(name: str) -> sql.Column[Any]:
    return sql.Column(
        name,
        sql.Text() if name in TEXTS else WHOLE,
        primary_key=name in ("dataset", "sequence"),
        autoincrement=False,
        nullable=False,
    )


ENTRIES = sql.Table(
    "blindsight_ledger3_entries",
    METADATA,
    *map(_column, FIELDS),
    sql.Index("blindsight_ledger3_accounts", "dataset", "unit", "neighbours", "sequence"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
# One key is charged once in each account of a data set, whoever asks and from wherever.
KEYS = sql.Index(
    "blindsight_ledger3_keys",
    ENTRIES.c.dataset,
    ENTRIES.c.key,
    ENTRIES.c.unit,
    ENTRIES.c.neighbours,
    unique=True,
    sqlite_where=ENTRIES.c.key != "",
    postgresql_where=ENTRIES.c.key != "",
)
# The last generation of a vault, whichever data set it was charged to.
VAULTS = sql.Index(
    "blindsight_ledger3_vaults",
    ENTRIES.c.vault,
    ENTRIES.c.generation,
    sqlite_where=ENTRIES.c.vault != "",
    postgresql_where=ENTRIES.c.vault != "",
)
HEADS = sql.Table(
    "blindsight_ledger3_heads",
    METADATA,
    sql.Column("dataset", sql.Text(), primary_key=True),
    sql.Column("sequence", WHOLE, nullable=False),
    sql.Column("hash", sql.Text(), nullable=False),
    sqlite_strict=True,
)
PREFIXES = {1: "blindsight_ledger_", 2: "blindsight_ledger2_"}  # of earlier formats' tables
CREATION_LOCK = (
    0x626C_696E_6473  # any constant: who creates the tables on PostgreSQL holds this advisory lock
)

SQLITE_OBJECTS = "SELECT type, name, tbl_name, sql FROM sqlite_schema"
# Our two tables and all that hangs on them, a line each; whatever is unusual about one is a word
# more in its line.
POSTGRESQL_OBJECTS = """
WITH ours AS (SELECT * FROM pg_class WHERE oid IN ({ours}))
SELECT 'table ' || relname || CASE WHEN relkind <> 'r' THEN ' of another kind' ELSE '' END
    || CASE WHEN relpersistence <> 'p' THEN ' not logged' ELSE '' END
    || CASE WHEN relrowsecurity OR relforcerowsecurity THEN ' with row security' ELSE '' END FROM ours
UNION ALL SELECT 'column ' || relname || '.' || attname || ' ' || format_type(atttypid, atttypmod)
    || CASE WHEN attnotnull THEN '' ELSE ' or nothing' END
    || CASE WHEN atthasdef OR attgenerated <> '' OR attidentity <> '' THEN ' by itself' ELSE '' END
    || CASE WHEN attcollation IN (0, 'pg_catalog."default"'::regcollation) THEN '' ELSE ' collated' END
    FROM pg_attribute JOIN ours ON attrelid = ours.oid WHERE attnum > 0 AND NOT attisdropped
UNION ALL SELECT CASE WHEN indisunique THEN 'unique ' ELSE '' END || 'index ' || i.relname || ' of '
    || (SELECT string_agg(coalesce(attname, '?'), ', ' ORDER BY place)
        FROM unnest(indkey) WITH ORDINALITY k(number, place)
        LEFT JOIN pg_attribute ON attrelid = indrelid AND attnum = number)
    || coalesce(' where ' || pg_get_expr(indpred, indrelid), '')
    || CASE WHEN indisvalid AND indisready AND indislive THEN '' ELSE ' not valid' END
    || CASE WHEN amname = 'btree' AND (SELECT bool_and(opcdefault) FROM pg_opclass WHERE oid = ANY (indclass))
        AND NOT EXISTS (SELECT FROM unnest(indcollation) c WHERE c NOT IN (0, 'pg_catalog."default"'::regcollation))
        THEN '' ELSE ' ordered otherwise' END
    FROM pg_index JOIN ours ON indrelid = ours.oid JOIN pg_class i ON i.oid = indexrelid
    JOIN pg_am ON pg_am.oid = i.relam
UNION ALL SELECT 'constraint ' || conname || CASE WHEN contype = 'p' AND NOT condeferrable THEN '' ELSE ' added' END
    FROM pg_constraint WHERE (conrelid IN ({ours}) OR confrelid IN ({ours})) AND contype <> 'n'
UNION ALL SELECT 'trigger ' || tgname FROM pg_trigger WHERE tgrelid IN ({ours}) AND NOT tgisinternal
UNION ALL SELECT 'rule ' || rulename FROM pg_rewrite WHERE ev_class IN ({ours})
UNION ALL SELECT 'policy ' || polname FROM pg_policy WHERE polrelid IN ({ours})
UNION ALL SELECT 'inheritance ' || inhrelid::regclass FROM pg_inherits
    WHERE inhparent IN ({ours}) OR inhrelid IN ({ours})
""".format(ours=", ".join(f"to_regclass('{table.name}')" for table in (ENTRIES, HEADS)))  # noqa: E501, S608


def ledger_format(connection: sql.Connection) -> int | None:
    """The format of the ledger in a database, or None where there is none."""
    inspector = sql.inspect(connection)
    if inspector.has_table(HEADS.name):
        return NEWEST
    earlier = [n for n, prefix in PREFIXES.items() if inspector.has_table(f"{prefix}heads")]
    return max(earlier, default=None)


def prepare_schema(connection: sql.Connection, *, location: str) -> None:
    """Make the tables in a write transaction, or carry a ledger of an earlier format over."""
    if connection.dialect.name == "postgresql":
        connection.execute(sql.select(sql.func.pg_advisory_xact_lock(CREATION_LOCK)))
    stored_format = ledger_format(connection)
    if stored_format == NEWEST:  # another process was faster
        return
    if stored_format is None and connection.dialect.name == "sqlite":
        strangers = connection.exec_driver_sql("SELECT count(*) FROM sqlite_schema").scalar()
        if strangers:
            raise LedgerError(
                f"{location} is a database of something else. Give the ledger a file of its own."
            )
    METADATA.create_all(connection)
    if stored_format is not None:
        _carry_over(connection, stored_format)


def _carry_over(connection: sql.Connection, format: int) -> None:
    names, added = fields_of(format), added_after(format)
    entries = sql.table(f"{PREFIXES[format]}entries", *map(sql.column, names))
    heads = sql.table(f"{PREFIXES[format]}heads", *map(sql.column, ("dataset", "sequence", "hash")))
    values = [*(entries.c[name] for name in names), *map(sql.literal, added.values())]
    connection.execute(sql.insert(ENTRIES).from_select([*names, *added], sql.select(*values)))
    connection.execute(
        sql.insert(HEADS).from_select(["dataset", "sequence", "hash"], sql.select(*heads.columns))
    )
    for table in (entries, heads):
        connection.exec_driver_sql(f"DROP TABLE {table.name}")


def check_schema(connection: sql.Connection) -> None:
    """Raise `LedgerTampered` if the database holds objects that we did not make, or lacks one."""
    if connection.dialect.name == "postgresql":
        lines = set(connection.exec_driver_sql(POSTGRESQL_OBJECTS).scalars())
        strangers = sorted(lines ^ _expected_lines())
    else:
        objects = {tuple(row) for row in connection.exec_driver_sql(SQLITE_OBJECTS)}
        # By their words: damage can put bytes where texts were, which do not compare.
        strangers = [f"{kind} {name}" for kind, name, *_ in sorted(objects ^ _expected(), key=repr)]
    if strangers:
        raise LedgerTampered(
            f"the ledger's database is not as it was made: {strangers[0]!r} is unexpected or "
            "missing. Triggers, views and further indexes can void charges, so nothing is read or "
            "written. Restore the ledger from a backup."
        )


@functools.cache
def _expected_lines() -> frozenset[str]:
    """Return what `POSTGRESQL_OBJECTS` selects for the tables that we make."""
    lines = []
    for table in (ENTRIES, HEADS):
        primary = ", ".join(column.name for column in table.primary_key)
        lines += [f"table {table.name}", f"constraint {table.name}_pkey"]
        lines.append(f"unique index {table.name}_pkey of {primary}")
        lines += [
            f"column {table.name}.{c.name} {'text' if isinstance(c.type, sql.Text) else 'bigint'}"
            for c in table.c
        ]
        for index in table.indexes:
            partial = {KEYS.name: "key", VAULTS.name: "vault"}.get(index.name)
            some = f" where ({partial} <> ''::text)" if partial else ""
            columns = ", ".join(column.name for column in index.columns)
            lines.append(
                f"{'unique ' if index.unique else ''}index {index.name} of {columns}{some}"
            )
    return frozenset(lines)


@functools.cache
def _expected() -> frozenset[tuple[Any, ...]]:
    """Return the objects of an SQLite file that we make, read from a new database."""
    engine = sql.create_engine("sqlite+pysqlite://")
    try:
        with engine.begin() as connection:
            METADATA.create_all(connection)
            return frozenset(tuple(row) for row in connection.exec_driver_sql(SQLITE_OBJECTS))
    finally:
        engine.dispose()


HEAD = sql.select(HEADS.c.sequence, HEADS.c.hash).where(HEADS.c.dataset == sql.bindparam("dataset"))
LOCK = HEAD.with_for_update()
# What a write reads back: the head, and the totals of the entry that it names.
STANDS = (
    sql.select(
        HEADS.c.sequence,
        HEADS.c.hash,
        ENTRIES.c.hash,
        ENTRIES.c.spent_micro_epsilon,
        ENTRIES.c.spent_atto_delta,
        ENTRIES.c.spent_pico_rho,
    )
    .select_from(
        HEADS.join(
            ENTRIES,
            (ENTRIES.c.dataset == HEADS.c.dataset) & (ENTRIES.c.sequence == HEADS.c.sequence),
        )
    )
    .where(HEADS.c.dataset == sql.bindparam("dataset"))
)
POSSIBLE = sql.union_all(
    *(
        sql.select(
            sql.literal_column(f"'{unit}'").label("unit"),
            sql.literal_column(f"'{relation}'").label("relation"),
        )
        for unit in get_args(Unit)
        for relation in get_args(Neighbours)
    )
).subquery()
EARLIER = ENTRIES.alias()
# One index lookup for each possible account, because there may be millions of entries.
LAST_NUMBERS = sql.select(
    sql.select(sql.func.max(EARLIER.c.sequence))
    .where(
        EARLIER.c.dataset == sql.bindparam("dataset"),
        EARLIER.c.unit == POSSIBLE.c.unit,
        EARLIER.c.neighbours == POSSIBLE.c.relation,
    )
    .scalar_subquery()
).select_from(POSSIBLE)
ENDS = (
    sql.select(ENTRIES, HEADS.c.sequence.label("head_sequence"), HEADS.c.hash.label("head_hash"))
    .select_from(
        HEADS.outerjoin(
            ENTRIES, (ENTRIES.c.dataset == HEADS.c.dataset) & ENTRIES.c.sequence.in_(LAST_NUMBERS)
        )
    )
    .where(HEADS.c.dataset == sql.bindparam("dataset"))
)
PAGE = 1000
NEXT = (
    sql.select(ENTRIES)
    .where(
        ENTRIES.c.dataset == sql.bindparam("dataset"), ENTRIES.c.sequence > sql.bindparam("after")
    )
    .order_by(ENTRIES.c.sequence)
    .limit(sql.literal_column(str(PAGE)))
    .offset(sql.literal_column("0"))  # SQLite would ask for a value
)
AT = sql.select(ENTRIES.c.hash).where(
    ENTRIES.c.dataset == sql.bindparam("dataset"), ENTRIES.c.sequence == sql.bindparam("sequence")
)
PAID = (
    sql.select(ENTRIES)
    # The last condition word for word as in the index, or SQLite would not use it and read every
    # row.
    .where(
        ENTRIES.c.dataset == sql.bindparam("dataset"),
        ENTRIES.c.key == sql.bindparam("key"),
        ENTRIES.c.key != sql.literal_column("''"),
    )
    .order_by(ENTRIES.c.sequence)
)
# Every charge for a release of one vault, in whichever data set it stands.
OF_VAULT = (
    sql.select(ENTRIES)
    .where(
        ENTRIES.c.vault == sql.bindparam("vault"),
        ENTRIES.c.vault != sql.literal_column("''"),
        ENTRIES.c.generation >= sql.bindparam("least"),
    )
    .order_by(ENTRIES.c.generation, ENTRIES.c.dataset, ENTRIES.c.sequence)
)
OTHER_KEY = (
    sql.select(ENTRIES.c.key)
    .where(
        ENTRIES.c.vault == sql.bindparam("vault"),
        ENTRIES.c.vault != sql.literal_column("''"),
        ENTRIES.c.generation == sql.bindparam("generation"),
        ENTRIES.c.key != sql.bindparam("key"),
    )
    .limit(sql.literal_column("1"))
    .offset(sql.literal_column("0"))
)
# On PostgreSQL a sum of 64-bit numbers is a decimal number.
CHARGED_BY = (
    sql.select(ENTRIES.c.unit, ENTRIES.c.neighbours, sql.func.sum(ENTRIES.c.micro_epsilon))
    .where(
        ENTRIES.c.dataset == sql.bindparam("dataset"),
        ENTRIES.c.actor == sql.bindparam("actor"),
        ENTRIES.c.kind == sql.literal_column("'charge'"),
    )
    .group_by(ENTRIES.c.unit, ENTRIES.c.neighbours)
)
APPEND = sql.insert(ENTRIES)
MOVE = (
    sql.update(HEADS)
    .where(HEADS.c.dataset == sql.bindparam("of"))
    .values(sequence=sql.bindparam("to"), hash=sql.bindparam("digest"))
)


class Transaction:
    """Queries and writes on the tables inside one transaction."""

    def __init__(self, connection: sql.Connection, known: Head | None = None) -> None:
        self.connection = connection
        self.known = known
        self.appended: Entry | None = None

    def require_known(self, dataset: str, head: Head) -> None:
        """Refuse a chain that lacks an entry which this process knows to be on the disk."""
        known = self.known
        if known is None or head == known:
            return
        if self._hash_at(dataset, known.sequence) != known.hash:
            raise LedgerTampered(
                f"the ledger of data set {dataset!r} no longer holds entry {known.sequence}, which "
                "was on the disk: its file or its log was removed or replaced. Nothing was "
                "written. Restore the ledger from a backup."
            )

    def _rows(
        self, statement: sql.Executable, values: dict[str, Any] | list[dict[str, Any]]
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a statement.

        On SQLite the driver is called directly, which saves a third of the time of a charge.
        """
        if self.connection.dialect.name != "sqlite":
            result = self.connection.execute(statement, values)
            return [tuple(row) for row in result] if result.returns_rows else []
        driver: Any = self.connection.connection.driver_connection
        run = driver.executemany if isinstance(values, list) else driver.execute
        return run(_text(statement), values).fetchall()  # type: ignore[no-any-return]

    def _hash_at(self, dataset: str, sequence: int) -> str | None:
        rows = self._rows(AT, {"dataset": dataset, "sequence": sequence})
        return rows[0][0] if rows else None

    def start(self, dataset: str) -> None:
        """Make sure the data set has a head to lock."""
        insert = _insert(self.connection)(HEADS).values(
            dataset=dataset, sequence=EMPTY.sequence, hash=EMPTY.hash
        )
        self.connection.execute(insert.on_conflict_do_nothing())

    def head(self, dataset: str) -> Head | None:
        """Return the head of the data set's chain, or None."""
        rows = self._rows(HEAD, {"dataset": dataset})
        return Head(*rows[0]) if rows else None

    def lock(self, dataset: str) -> None:
        """Keep others from moving the head until the transaction ends; SQLite has one writer."""
        if self.connection.dialect.name == "postgresql":
            # A statement of its own: the next one then sees what the writer before us committed.
            self._rows(LOCK, {"dataset": dataset})

    def ends(self, dataset: str) -> tuple[Head, dict[Account, Entry]]:
        """Return the head and the last entry of each account, which carries its totals; hashes are
        checked.
        """
        head, lasts = EMPTY, []
        for *fields, sequence, digest in self._rows(ENDS, {"dataset": dataset}):
            head = Head(sequence, digest)
            if fields[1] is not None:
                lasts.append(intact(_named(fields)))
        return head, {
            entry.account: entry for entry in sorted(lasts, key=lambda entry: entry.account)
        }

    def datasets(self) -> list[str]:
        """Every data set that has a head or an entry."""
        either = sql.union(sql.select(HEADS.c.dataset), sql.select(ENTRIES.c.dataset))
        return sorted(self.connection.scalars(either))

    def page(self, dataset: str, *, after: int) -> list[dict[str, Any]]:
        """The stored fields of the next entries in order, at most `PAGE` of them, unchecked."""
        return [_named(row) for row in self._rows(NEXT, {"dataset": dataset, "after": after})]

    def rows(self, dataset: str) -> Iterator[dict[str, Any]]:
        """All stored fields in order, unchecked.

        Page by page: a cursor would stay open when the reader stops.
        """
        page = self.page(dataset, after=-LARGEST)
        while page:
            yield from page
            page = self.page(dataset, after=page[-1]["sequence"])

    def append(self, entries: Sequence[Entry]) -> None:
        """Write entries, move the head to the last one, and read all of it back to compare."""
        last = entries[-1]
        self._rows(APPEND, [entry.to_dict() for entry in entries])
        self._rows(MOVE, {"of": last.dataset, "to": last.sequence, "digest": last.hash})
        stands = self._rows(STANDS, {"dataset": last.dataset})
        others = all(
            self._hash_at(entry.dataset, entry.sequence) == entry.hash for entry in entries[:-1]
        )
        expected = (
            *last.head,
            last.hash,
            last.spent_micro_epsilon,
            last.spent_atto_delta,
            last.spent_pico_rho,
        )
        if stands != [expected] or not others:
            raise LedgerTampered(
                "the database did not store what was written to it; nothing was charged. Something "
                "acts on its tables."
            )
        self.appended = last

    def paid(self, dataset: str, key: str) -> list[Entry]:
        """The entries that were charged under a key."""
        return [intact(_named(row)) for row in self._rows(PAID, {"dataset": dataset, "key": key})]

    def charged_by(self, dataset: str, actor: str) -> dict[Account, int]:
        """The micro-epsilons that the charges of an actor add up to in each account."""
        rows = self._rows(CHARGED_BY, {"dataset": dataset, "actor": actor})
        return {(unit, neighbours): int(total) for unit, neighbours, total in rows}

    def holds(self, dataset: str, head: Head) -> bool:
        """Whether the chain of a data set passes through this head."""
        return head == EMPTY or self._hash_at(dataset, head.sequence) == head.hash

    def first_hash(self, dataset: str) -> str:
        """The hash of the first entry, which tells this chain from any other; "" without one."""
        return self._hash_at(dataset, 1) or ""

    def of_vault(self, vault: str, *, least: int) -> list[Entry]:
        """The charges for a vault's releases from a generation on, in all data sets."""
        rows = self._rows(OF_VAULT, {"vault": vault, "least": least})
        return [intact(_named(row)) for row in rows]

    def other_release(self, vault: str, generation: int, key: str) -> bool:
        """Whether another release was charged under this generation of the vault."""
        values = {"vault": vault, "generation": generation, "key": key}
        return bool(self._rows(OTHER_KEY, values))

    def copy_to(self, target: Transaction) -> None:
        """Write all rows into an empty ledger without checking them: verify the copy afterwards."""
        for dataset in self.datasets():
            page = self.page(dataset, after=-LARGEST)
            while page:
                target._rows(APPEND, page)
                page = self.page(dataset, after=page[-1]["sequence"])
            head = self.head(dataset)
            if head is not None:
                target.connection.execute(sql.insert(HEADS), {"dataset": dataset, **head._asdict()})

    def check_file(self) -> None:
        """Check the schema, and on SQLite also its pages and indexes (PostgreSQL has checksums)."""
        check_schema(self.connection)
        if self.connection.dialect.name == "sqlite":
            result = self.connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar()
            if result != "ok":
                raise LedgerTampered(f"the ledger's file is damaged: {result}.")


def _named(row: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(FIELDS, row, strict=True))


@functools.cache
def _text(statement: Any) -> str:
    """A statement as SQLite reads it, with named values."""
    from sqlalchemy.dialects import sqlite

    return str(statement.compile(dialect=sqlite.dialect(paramstyle="named")))


def _insert(connection: sql.Connection) -> Any:
    """Return the dialect's insert, which supports ON CONFLICT; only the one in use is imported."""
    if connection.dialect.name == "sqlite":
        from sqlalchemy.dialects import sqlite

        return sqlite.insert
    from sqlalchemy.dialects import postgresql

    return postgresql.insert
