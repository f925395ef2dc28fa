"""What can be asked of a ledger's tables inside one transaction: rows in and out, no decisions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sql

from blindsight.core.errors import LedgerTampered
from blindsight.privacy.ledger import schema
from blindsight.privacy.ledger.amounts import LARGEST
from blindsight.privacy.ledger.chain import EMPTY, FIELDS, Entry, Head, intact
from blindsight.privacy.ledger.schema import ENTRIES, HEADS

__all__ = ["Transaction"]

HEAD = sql.select(HEADS.c.sequence, HEADS.c.hash).where(HEADS.c.dataset == sql.bindparam("dataset"))
END = (
    sql.select(ENTRIES, HEADS.c.sequence.label("head_sequence"), HEADS.c.hash.label("head_hash"))
    .select_from(
        HEADS.outerjoin(ENTRIES, (ENTRIES.c.dataset == HEADS.c.dataset) & (ENTRIES.c.sequence == HEADS.c.sequence))
    )
    .where(HEADS.c.dataset == sql.bindparam("dataset"))
)
LOCK = HEAD.with_for_update()
# What a write must find when it looks back: the head, and the totals of the entry that it names.
STANDS = (
    sql.select(
        HEADS.c.sequence,
        HEADS.c.hash,
        ENTRIES.c.hash,
        ENTRIES.c.spent_micro_epsilon,
        ENTRIES.c.spent_atto_delta,
        ENTRIES.c.spent_pico_rho,
    )
    .select_from(HEADS.join(ENTRIES, (ENTRIES.c.dataset == HEADS.c.dataset) & (ENTRIES.c.sequence == HEADS.c.sequence)))
    .where(HEADS.c.dataset == sql.bindparam("dataset"))
)
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
AT = sql.select(ENTRIES.c.hash).where(
    ENTRIES.c.dataset == sql.bindparam("dataset"), ENTRIES.c.sequence == sql.bindparam("sequence")
)
PAID = (
    sql.select(ENTRIES)
    # The last condition word for word as in the index, or SQLite would not use it and read every row.
    .where(
        ENTRIES.c.dataset == sql.bindparam("dataset"),
        ENTRIES.c.key == sql.bindparam("key"),
        ENTRIES.c.key != sql.literal_column("''"),
    )
    .order_by(ENTRIES.c.sequence)
)
APPEND = sql.insert(ENTRIES)
MOVE = (
    sql.update(HEADS)
    .where(HEADS.c.dataset == sql.bindparam("of"))
    .values(sequence=sql.bindparam("to"), hash=sql.bindparam("digest"))
)


class Transaction:
    """What can be asked of the tables inside one transaction."""

    def __init__(self, connection: sql.Connection, known: Head | None = None) -> None:
        self.connection = connection
        self.known = known
        self.appended: Entry | None = None

    def require_known(self, dataset: str, head: Head) -> None:
        """Refuse a chain that does not hold what this process was told is on the disk."""
        known = self.known
        if known is None or head == known:
            return
        found = self.connection.execute(AT, {"dataset": dataset, "sequence": known.sequence}).scalar()
        if found != known.hash:
            raise LedgerTampered(
                f"the ledger of data set {dataset!r} no longer holds entry {known.sequence}, which was on the disk: "
                "its file or its log was removed or replaced. Nothing was written. Restore the ledger from a backup."
            )

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

    def append(self, entries: Sequence[Entry]) -> None:
        """Write entries, move the head to the last, and read all of it back: what was written is what stands there."""
        last = entries[-1]
        rows = [entry.to_dict() for entry in entries]
        self.connection.execute(APPEND, rows if len(rows) > 1 else rows[0])
        self.connection.execute(MOVE, {"of": last.dataset, "to": last.sequence, "digest": last.hash})
        stands = self.connection.execute(STANDS, {"dataset": last.dataset}).one_or_none()
        others = all(
            self.connection.execute(AT, {"dataset": entry.dataset, "sequence": entry.sequence}).scalar() == entry.hash
            for entry in entries[:-1]
        )
        expected = (*last.head, last.hash, last.spent_micro_epsilon, last.spent_atto_delta, last.spent_pico_rho)
        if stands is None or tuple(stands) != expected or not others:
            raise LedgerTampered(
                "the database did not keep what was written to it; nothing was charged. Something acts on its tables."
            )
        self.appended = last

    def paid(self, dataset: str, key: str) -> list[Entry]:
        """The entries that were charged under a key."""
        found = self.connection.execute(PAID, {"dataset": dataset, "key": key}).mappings()
        return [intact(dict(row)) for row in found]

    def copy_to(self, other: Transaction) -> None:
        """Write all rows into an empty ledger, unchecked: whoever wants them checked verifies the copy."""
        for dataset in self.datasets():
            page = self.page(dataset, after=-LARGEST)
            while page:
                other.connection.execute(APPEND, page)
                page = self.page(dataset, after=page[-1]["sequence"])
            head = self.head(dataset)
            if head is not None:
                other.connection.execute(sql.insert(HEADS), {"dataset": dataset, **head._asdict()})

    def check_file(self) -> None:
        """The schema, word for word; then SQLite checks its own pages and indexes (PostgreSQL keeps checksums)."""
        schema.check(self.connection)
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
