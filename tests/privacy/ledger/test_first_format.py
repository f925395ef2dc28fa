"""Ledgers of the first format go on: same entries, same hashes, same budget."""

# ruff: noqa: S608
from __future__ import annotations

import json
import sqlite3

import pytest

from blindsight.core.errors import BudgetExceeded, LedgerError, LedgerTampered
from blindsight.privacy.guarantee import Cost
from blindsight.privacy.ledger import Ledger, check_json, datasets
from blindsight.privacy.ledger.chain import EMPTY, Head, digest, fields_of

OLD = fields_of(1)
TEXT = {"dataset", "time", "kind", "unit", "neighbours", "what", "previous", "hash"}


def old_entries(spends):
    """A chain as the first format wrote it: a grant of 1 per record, then charges."""
    head, spent, found = EMPTY, 0, []
    for number, amount in enumerate([1_000_000, *spends]):
        spent += amount if number else 0
        fields = {
            "dataset": "ward-7",
            "sequence": number + 1,
            "time": "2025-03-01T00:00:00.000000+00:00",
            "kind": "charge" if number else "grant",
            "unit": "record",
            "neighbours": "replace one",
            "micro_epsilon": amount,
            "atto_delta": 0,
            "budget_micro_epsilon": 1_000_000,
            "budget_atto_delta": 0,
            "spent_micro_epsilon": spent,
            "spent_atto_delta": 0,
            "what": f"entry {number}",
            "previous": head.hash,
        }
        fields["hash"] = digest({**fields, "format": 1})
        head = Head(number + 1, fields["hash"])
        found.append(fields)
    return found


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "ledger.db"
    entries = old_entries([100_000, 250_000])
    columns = ", ".join(f"{name} {'TEXT' if name in TEXT else 'INTEGER'} NOT NULL" for name in OLD)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(
            f"CREATE TABLE blindsight_ledger_entries ({columns}, PRIMARY KEY (dataset, sequence)) "
            "WITHOUT ROWID, STRICT"
        )
        connection.execute(
            "CREATE INDEX blindsight_ledger_accounts ON blindsight_ledger_entries (dataset, unit, "
            "neighbours, sequence)"
        )
        connection.execute(
            "CREATE TABLE blindsight_ledger_heads (dataset TEXT NOT NULL PRIMARY KEY, sequence "
            "INTEGER NOT NULL, "
            "hash TEXT NOT NULL) STRICT"
        )
        marks = ", ".join("?" * len(OLD))
        for fields in entries:
            values = [fields[name] for name in OLD]
            connection.execute(
                f"INSERT INTO blindsight_ledger_entries ({', '.join(OLD)}) VALUES ({marks})", values
            )
        last = entries[-1]
        connection.execute(
            "INSERT INTO blindsight_ledger_heads VALUES ('ward-7', ?, ?)",
            (len(entries), last["hash"]),
        )
    connection.close()
    return path


def test_a_ledger_of_the_first_format_goes_on(path):
    before = Head(3, old_entries([100_000, 250_000])[-1]["hash"])
    with Ledger(path, dataset="ward-7", create=False) as ledger:
        assert ledger.head() == before
        ledger.charge(Cost(epsilon=0.5, unit="record"), what="codes", key="index 1")
        assert ledger.verify(known=before).sequence == 4
        with pytest.raises(BudgetExceeded):
            ledger.charge(Cost(epsilon=0.2, unit="record"), what="too much")
    assert datasets(path, readonly=True) == ["ward-7"]
    connection = sqlite3.connect(path)
    left = connection.execute(
        "SELECT name FROM sqlite_schema WHERE name LIKE 'blindsight_ledger_%'"
    ).fetchall()
    connection.close()
    assert not [name for (name,) in left if name.startswith("blindsight_ledger_")]


def test_its_files_are_closed_to_others(path):
    path.chmod(0o644)
    with Ledger(path, dataset="ward-7", create=False) as ledger:
        ledger.charge(Cost(epsilon=0.1, unit="record"), what="codes")
        assert {file.stat().st_mode & 0o777 for file in path.parent.glob("ledger.db*")} == {0o600}


def test_reading_alone_does_not_carry_it_over(path):
    content = path.read_bytes()
    with pytest.raises(LedgerError, match="Open it for writing once"):
        Ledger(path, dataset="ward-7", readonly=True)
    assert path.read_bytes() == content


def test_an_old_entry_cannot_be_given_new_fields(path):
    with Ledger(path, dataset="ward-7", create=False) as ledger:
        ledger.verify()
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(
            "UPDATE blindsight_ledger3_entries SET key = 'index 1' WHERE sequence = 2"
        )
    connection.close()
    with (
        Ledger(path, dataset="ward-7") as ledger,
        pytest.raises(LedgerTampered, match="format 1"),
    ):
        ledger.verify()


def test_an_old_export_still_proves_itself():
    entries = old_entries([100_000])
    head = {"sequence": 2, "hash": entries[-1]["hash"]}
    document = {
        "format": "blindsight ledger export 1",
        "chains": [{"dataset": "ward-7", "head": head, "entries": entries}],
    }
    assert check_json(json.dumps(document)) == {"ward-7": Head(2, entries[-1]["hash"])}
    with pytest.raises(LedgerTampered):
        check_json(
            json.dumps(document).replace('"micro_epsilon": 100000', '"micro_epsilon": 100001')
        )
