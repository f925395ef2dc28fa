"""Handing a ledger out: JSON that proves itself, CSV for a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

from blindsight.core.errors import InvalidData, LedgerTampered
from blindsight.privacy.ledger.book import Ledger
from blindsight.privacy.ledger.chain import FIELDS, Entry, Head, checked, widened

__all__ = ["check_json", "to_csv", "to_json"]

FORMATS = ("blindsight ledger export 1", "blindsight ledger export 2")


def to_json(ledgers: Sequence[Ledger]) -> str:
    """All entries and heads as JSON; `check_json` proves it without the database."""
    chains = []
    for ledger in ledgers:
        head = ledger.verify()
        entries = [entry.to_dict() for entry in ledger.entries() if entry.sequence <= head.sequence]
        chains.append({"dataset": ledger.dataset, "head": head._asdict(), "entries": entries})
    return json.dumps({"format": FORMATS[-1], "chains": chains}, ensure_ascii=False, indent=1)


def check_json(text: str) -> dict[str, Head]:
    """Prove an export; returns each data set's head. `LedgerTampered` if it was changed on the way."""
    try:
        document = json.loads(text)
        if document["format"] not in FORMATS:
            raise InvalidData(f"a ledger export must be of format {' or '.join(map(repr, FORMATS))}.")
        chains = [
            (c["dataset"], Head(c["head"]["sequence"], c["head"]["hash"]), c["entries"]) for c in document["chains"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, InvalidData):
            raise
        raise InvalidData("this is not a ledger export: expected the JSON that `ledger export` writes.") from error
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
    return "'" + value if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value
