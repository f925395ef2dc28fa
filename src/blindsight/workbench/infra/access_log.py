"""The access log's table and its writer: nothing is answered before its record is on disk.

One thread writes, and whatever waits goes into one transaction: fifty people at once cost little
more than one. Several workbenches on one database share the chain: a writer holds the row of the
head while it appends.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sql

from blindsight.app.access_log import AccessRecord, Head, export_csv, export_json, verify
from blindsight.workbench.infra.database import ACCESS, ACCESS_HEAD, Database
from blindsight.workbench.infra.problems import Problem

__all__ = ["PURPOSE", "AccessLog"]

#: What the present request is for, as its sender says; threads that work for it see it too.
PURPOSE: contextvars.ContextVar[str] = contextvars.ContextVar("purpose", default="")
_PAGE = 1000
_log = logging.getLogger("blindsight.workbench")
_Waiting = tuple[dict[str, str], Future[None]]


class AccessLog:
    """Append records, read them, prove the chain.

    Parameters:
        database: where the table is.
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
            Problem: "access_log", where the record cannot be stored.
        """
        try:
            await asyncio.wrap_future(self._submit(values))
        except sql.exc.SQLAlchemyError as error:
            _log.error("the access log cannot be written: %s", type(error).__name__)
            raise Problem("access_log") from error

    def append(self, **values: str) -> None:
        """Append a record and wait, outside of an event loop."""
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
            except Exception as error:  # whoever waits must be told, whatever it was
                for _, stored in batch:
                    stored.set_exception(error)
            else:
                for _, stored in batch:
                    stored.set_result(None)

    def _store(self, batch: list[dict[str, str]]) -> None:
        with self.database.begin() as connection:
            # Writing first takes the lock, so that nobody else appends after the same head.
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
        """Where the chain ends. Note it elsewhere to prove later that nothing before it changed."""
        row = self.database.rows(sql.select(ACCESS_HEAD))[0]
        return Head(row["sequence"], row["hash"])

    def records(self, *, after: int = 0, until: int | None = None) -> Iterator[AccessRecord]:
        """All records in order, read in pages."""
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
        """The newest records first; with `datasets`, only those that concern one of them."""
        query = sql.select(ACCESS).order_by(ACCESS.c.sequence.desc()).limit(most)
        if datasets is not None:
            query = query.where(ACCESS.c.dataset.in_(sorted(datasets)))
        if before is not None:
            query = query.where(ACCESS.c.sequence < before)
        return [AccessRecord.from_dict(row) for row in self.database.rows(query)]

    def verify(self, known: Head | None = None) -> Head:
        """Prove the whole chain; `LedgerTampered` says where it breaks."""
        head = self.head()
        return verify(self.records(until=head.sequence), head=head, known=known)

    def export(self, kind: str) -> str:
        """The whole log as "json", with what proves it, or as "csv"."""
        head = self.head()
        records = list(self.records(until=head.sequence))
        return export_json(records, head) if kind == "json" else export_csv(records)

    def close(self) -> None:
        """Write what waits, and end the thread."""
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
