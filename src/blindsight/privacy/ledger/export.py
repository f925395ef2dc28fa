"""Handing a ledger out: JSON that proves itself, CSV for a spreadsheet, a whole copy for the
cupboard.
"""

from __future__ import annotations

import csv
import io
import json
import os
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from blindsight.core import durable
from blindsight.core.errors import InvalidData, InvalidParameter, LedgerTampered
from blindsight.privacy.ledger.book import Ledger, datasets
from blindsight.privacy.ledger.chain import FIELDS, Entry, Head, checked, widened

__all__ = ["backup", "check_json", "restore", "to_csv", "to_json"]

FORMATS = tuple(f"blindsight ledger export {number}" for number in (1, 2, 3))


def to_json(ledgers: Sequence[Ledger]) -> str:
    """All entries and heads as JSON; `check_json` proves it without the database."""
    chains = []
    for ledger in ledgers:
        head = ledger.verify()
        entries = [entry.to_dict() for entry in ledger.entries() if entry.sequence <= head.sequence]
        chains.append({"dataset": ledger.dataset, "head": head._asdict(), "entries": entries})
    return json.dumps({"format": FORMATS[-1], "chains": chains}, ensure_ascii=False, indent=1)


def check_json(text: str) -> dict[str, Head]:
    """Prove an export; returns each data set's head.

    `LedgerTampered` if it was changed on the way.
    """
    try:
        document = json.loads(text)
        if document["format"] not in FORMATS:
            raise InvalidData(
                f"a ledger export must be of format {' or '.join(map(repr, FORMATS))}."
            )
        chains = [
            (c["dataset"], Head(c["head"]["sequence"], c["head"]["hash"]), c["entries"])
            for c in document["chains"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, InvalidData):
            raise
        raise InvalidData(
            "this is not a ledger export: expected the JSON that `ledger export` writes."
        ) from error
    heads: dict[str, Head] = {}
    for dataset, head, rows in chains:
        if dataset in heads:
            raise LedgerTampered(f"data set {dataset!r} stands twice in the export.")
        if not all(isinstance(row, dict) for row in rows):
            raise InvalidData("this is not a ledger export: an entry is not an object.")
        for _ in checked(map(widened, rows), dataset=dataset, head=head):
            pass
        heads[dataset] = head
    return heads


def backup(where: str | os.PathLike[str], to: str | os.PathLike[str]) -> dict[str, Head]:
    """Copy a whole ledger, on SQLite or PostgreSQL, into a new SQLite file, and prove the copy.
    Returns its heads.

    It is a snapshot: charges may go on meanwhile. A copy is for restoring, not for charging:
    whoever spends from both spends twice, which a witness shows.
    """
    target = Path(to)
    if target.exists():
        raise InvalidParameter(f"{target} exists already. Choose another name for the backup.")
    from blindsight.privacy.ledger.place import Place
    from blindsight.privacy.ledger.store import Store

    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    source = Store(Place(where), create=False, timeout=60.0, readonly=True)
    try:
        copy = Store(Place(temporary), create=True, timeout=60.0)
        try:
            with source.read() as reading, copy.write("") as writing:
                reading.copy_to(writing)
        finally:
            copy.close()  # the last to close empties the log into the file
        heads = {name: _proven(temporary, name) for name in datasets(temporary)}
        durable.link_new(temporary, target)
    finally:
        source.close()
        for left in (temporary, Path(f"{temporary}-wal"), Path(f"{temporary}-shm")):
            durable.remove(left)
    return heads


def restore(copy: str | os.PathLike[str], where: str | os.PathLike[str]) -> dict[str, Head]:
    """Put a backup into an empty ledger, on SQLite or PostgreSQL, and prove it. Returns its heads.

    Raises:
        InvalidParameter: the ledger has entries. It is never replaced by an older copy.
    """
    from blindsight.privacy.ledger.place import Place
    from blindsight.privacy.ledger.store import Store

    heads = {name: _proven(Path(copy), name) for name in datasets(copy)}
    source = Store(Place(copy), create=False, timeout=60.0, readonly=True)
    target = Store(Place(where), create=True, timeout=60.0)
    try:
        with source.read() as reading, target.write("") as writing:
            if writing.datasets():
                raise InvalidParameter(
                    f"the ledger {Place(where)} has entries, and a backup never replaces them."
                )
            reading.copy_to(writing)
    finally:
        source.close()
        target.close()
    return heads


def _proven(path: Path, dataset: str) -> Head:
    with Ledger(path, dataset=dataset, create=False) as ledger:
        return ledger.verify()


def to_csv(entries: Iterable[Entry]) -> str:
    """Entries as CSV, amounts both as exact decimals and in whole units."""
    out = io.StringIO()
    writer = csv.DictWriter(out, ["epsilon", "delta", *FIELDS], lineterminator="\n")
    writer.writeheader()
    for entry in entries:
        amounts = {"epsilon": entry.amount.epsilon, "delta": entry.amount.delta}
        writer.writerow({key: _cell(value) for key, value in (amounts | entry.to_dict()).items()})
    return out.getvalue()


def _cell(value: Any) -> Any:
    # A spreadsheet would run text that starts like a formula.
    return (
        "'" + value if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value
    )
