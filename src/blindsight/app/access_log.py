"""The access log: who did what to which data set, in a hash chain like the ledger's.

Each record contains the hash of the record before it, so that a changed, removed or reordered
record is detected. A record names people, actions, data sets and releases. It never contains a
photo, a photo's name or id, or the text of a search.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from blindsight.core.errors import InvalidData, LedgerTampered
from blindsight.privacy.ledger.chain import EMPTY, Head, canonical_hash

__all__ = ["EMPTY", "AccessRecord", "Head", "check_export", "export_csv", "export_json", "verify"]

_FORMAT = "blindsight access log 1"
_LARGEST_EXPORT = 1 << 30


@dataclass(frozen=True)
class AccessRecord:
    """One line of the access log.

    Parameters:
        sequence: number of the record, from 1.
        time: moment in UTC, ISO 8601.
        actor: name of the person or key; "" for somebody who is not signed in.
        action: method and route template of the request, or words such as "sign in".
        dataset: number of the data set, "" if none is concerned.
        release: number of the release, "" if none is concerned.
        outcome: "done", "refused" or "failed".
        purpose: the purpose that the person states.
        previous: hash of the previous record.
        hash: hash of this record.

    Examples:
        >>> first = AccessRecord.after(EMPTY, time="2026-11-17T10:00:00", actor="ann",
        ...                            action="sign in", outcome="done")
        >>> verify([first], head=first.head).sequence
        1
    """

    sequence: int
    time: str
    actor: str
    action: str
    dataset: str
    release: str
    outcome: str
    purpose: str
    previous: str
    hash: str

    @classmethod
    def after(
        cls,
        head: Head,
        *,
        time: str,
        actor: str,
        action: str,
        outcome: str,
        dataset: str = "",
        release: str = "",
        purpose: str = "",
    ) -> AccessRecord:
        """Return the record that follows `head`, with its hash."""
        body: dict[str, str | int] = {
            "sequence": head.sequence + 1,
            "time": time,
            "actor": actor,
            "action": action,
            "dataset": dataset,
            "release": release,
            "outcome": outcome,
            "purpose": purpose,
            "previous": head.hash,
        }
        return cls.from_dict({**body, "hash": _hash(body)})

    @property
    def head(self) -> Head:
        """The head of the chain that ends with this record."""
        return Head(self.sequence, self.hash)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, for JSON and for rows of a database."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> AccessRecord:
        """Return the record with the fields of `to_dict`.

        Raises:
            LedgerTampered: fields are missing, unknown or of another type.
        """
        types: dict[str, type] = dict.fromkeys(_FIELDS, str) | {"sequence": int}
        if set(values) != set(types) or any(type(values[n]) is not types[n] for n in types):
            raise LedgerTampered(
                f"record {values.get('sequence')!r} of the access log has fields that are missing, "
                "unknown or of another type: it was changed after writing."
            )
        return cls(**values)


_FIELDS = tuple(field.name for field in fields(AccessRecord))


def _hash(body: dict[str, str | int]) -> str:
    return canonical_hash({**body, "format": _FORMAT})


def verify(
    records: Iterable[AccessRecord], *, head: Head, known: Head | None = None, start: Head = EMPTY
) -> Head:
    """Verify a chain of records.

    Parameters:
        records: all records, in order.
        head: the head that the database has stored.
        known: a head that was stored elsewhere earlier; the chain must contain it.
        start: the head before the first of the records.

    Returns:
        The head of the chain.

    Raises:
        LedgerTampered: a record was changed, moved, added, removed or cut off.
    """
    last, passed = start, known is None or known == start
    for record in records:
        body = record.to_dict()
        del body["hash"]
        if _hash(body) != record.hash:
            raise LedgerTampered(
                f"record {record.sequence} of the access log does not match its hash: it was "
                "changed after writing."
            )
        if record.sequence != last.sequence + 1 or record.previous != last.hash:
            raise LedgerTampered(
                f"record {last.sequence + 1} of the access log is missing or out of order: record "
                f"{record.sequence} is in its place."
            )
        last = record.head
        passed = passed or last == known
    if last != head:
        raise LedgerTampered(
            f"the access log ends at record {last.sequence}, but its head was stored as record "
            f"{head.sequence}: records were cut off, added or replaced."
        )
    if not passed:
        raise LedgerTampered(
            "the access log does not contain the head that was stored earlier: it was rewritten, "
            "or restored from an older copy."
        )
    return last


def export_json(records: Sequence[AccessRecord], head: Head) -> str:
    """Return all records and the head as JSON; `check_export` needs no database to verify it."""
    document = {
        "format": _FORMAT,
        "head": {"sequence": head.sequence, "hash": head.hash},
        "records": [record.to_dict() for record in records],
    }
    return json.dumps(document, indent=1)


def check_export(text: str) -> Head:
    """Verify an exported log, and return its head.

    Raises:
        InvalidData: the text is not an exported access log.
        LedgerTampered: a record was changed, moved, added, removed or cut off.
    """
    if len(text) > _LARGEST_EXPORT:
        raise InvalidData("the exported access log is larger than 1 GB. Check it in parts.")
    try:
        document = json.loads(text)
        head = Head(int(document["head"]["sequence"]), str(document["head"]["hash"]))
        rows = list(document["records"])
        valid = document["format"] == _FORMAT and all(isinstance(row, dict) for row in rows)
    except (ValueError, KeyError, TypeError, RecursionError):
        valid = False
    if not valid:
        raise InvalidData(
            "this is not an exported access log. Make one with `blindsight workbench log --export`."
        )
    return verify(map(AccessRecord.from_dict, rows), head=head)


def export_csv(records: Iterable[AccessRecord]) -> str:
    """Return the records as CSV without hashes; cells that begin like formulas are quoted."""
    from blindsight.app.library.tags import plain_cell

    sheet = io.StringIO()
    writer = csv.writer(sheet)
    names = [name for name in _FIELDS if name not in ("previous", "hash")]
    writer.writerow(names)
    for record in records:
        values = record.to_dict()
        writer.writerow(plain_cell(str(values[name])) for name in names)
    return sheet.getvalue()
