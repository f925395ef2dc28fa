"""The tables of a ledger, and the check that a database holds them and nothing that acts on them.

A trigger, a rule or a view can void every charge behind the ledger's back: the write succeeds and
something else is stored. So the objects of an SQLite file must be exactly those that this module
would create, word for word; on PostgreSQL, where others may share the database, nothing may hang on
our tables. Ledgers of earlier formats are carried over in one transaction, their entries and hashes
unchanged.
"""

from __future__ import annotations

import functools
from typing import Any

import sqlalchemy as sql

from blindsight.core.errors import LedgerError, LedgerTampered
from blindsight.privacy.ledger.chain import FIELDS, NEWEST, TEXTS, added_after, fields_of

__all__ = ["ENTRIES", "HEADS", "check", "found_format", "prepare"]

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


def found_format(connection: sql.Connection) -> int | None:
    """The format of the ledger in a database, or None where there is none."""
    inspector = sql.inspect(connection)
    if inspector.has_table(HEADS.name):
        return NEWEST
    earlier = [n for n, prefix in PREFIXES.items() if inspector.has_table(f"{prefix}heads")]
    return max(earlier, default=None)


def prepare(connection: sql.Connection, *, place: str) -> None:
    """Make the tables in a write transaction, or carry a ledger of an earlier format over."""
    if connection.dialect.name == "postgresql":
        connection.execute(sql.select(sql.func.pg_advisory_xact_lock(CREATION_LOCK)))
    found = found_format(connection)
    if found == NEWEST:  # another process was faster
        return
    if found is None and connection.dialect.name == "sqlite":
        strangers = connection.exec_driver_sql("SELECT count(*) FROM sqlite_schema").scalar()
        if strangers:
            raise LedgerError(
                f"{place} is a database of something else. Give the ledger a file of its own."
            )
    METADATA.create_all(connection)
    if found is not None:
        _carry_over(connection, found)


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


def check(connection: sql.Connection) -> None:
    """`LedgerTampered` where the database holds anything that we did not make, or misses what we
    did.
    """
    if connection.dialect.name == "postgresql":
        found = set(connection.exec_driver_sql(POSTGRESQL_OBJECTS).scalars())
        strangers = sorted(found ^ _expected_lines())
    else:
        objects = {tuple(row) for row in connection.exec_driver_sql(SQLITE_OBJECTS)}
        strangers = [f"{kind} {name}" for kind, name, *_ in sorted(objects ^ _expected())]
    if strangers:
        raise LedgerTampered(
            f"the ledger's database is not as it was made: {strangers[0]!r} is strange or missing. "
            "Triggers, views and "
            "further indexes can void charges, so nothing is read or written. Restore the ledger "
            "from a backup."
        )


@functools.cache
def _expected_lines() -> frozenset[str]:
    """What `POSTGRESQL_OBJECTS` finds of tables that we make."""
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
    """What an SQLite file that we make holds, found by making one."""
    engine = sql.create_engine("sqlite+pysqlite://")
    try:
        with engine.begin() as connection:
            METADATA.create_all(connection)
            return frozenset(tuple(row) for row in connection.exec_driver_sql(SQLITE_OBJECTS))
    finally:
        engine.dispose()
