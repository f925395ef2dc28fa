"""Whatever is done to the database behind the ledger's back, `verify` finds it."""

# ruff: noqa: S608
from __future__ import annotations

import random
import shutil
import sqlite3

import pytest

from blindsight.core.errors import LedgerError, LedgerTampered
from blindsight.privacy.guarantee import Cost
from blindsight.privacy.ledger import Ledger
from blindsight.privacy.ledger.chain import FIELDS, TEXTS

ENTRIES, HEADS = "blindsight_ledger2_entries", "blindsight_ledger2_heads"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "ledger.db"
    with Ledger(path, dataset="ward-7") as ledger:
        ledger.grant(Cost(epsilon=1, delta=1e-6, unit="record"))
        ledger.grant(Cost(epsilon=4, unit="pair"))
        for i in range(6):
            ledger.charge(Cost(epsilon=0.1, delta=1e-9, unit="record"), what=f"release {i}")
        ledger.charge(Cost(epsilon=1, unit="pair"), what="pairs")
    return path


def behind(path, *statements):
    connection = sqlite3.connect(path)
    with connection:
        for statement in statements:
            connection.execute(*statement) if isinstance(statement, tuple) else connection.execute(statement)
    connection.close()


def verify(path):
    with Ledger(path, dataset="ward-7", create=False) as ledger:
        return ledger.verify()


def flipped(value, bit=0):
    if isinstance(value, int):
        return value ^ (1 << bit)
    if not value:
        return "x"
    middle = len(value) // 2
    return value[:middle] + chr(ord(value[middle]) ^ 1) + value[middle + 1 :]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("sequence", [1, 5, 9])
def test_a_change_in_any_field_is_found(path, field, sequence):
    connection = sqlite3.connect(path)
    row = connection.execute(f"SELECT {field} FROM {ENTRIES} WHERE sequence = ?", (sequence,)).fetchone()
    connection.close()
    new = sequence + 100 if field == "sequence" else flipped(row[0])
    behind(path, (f"UPDATE {ENTRIES} SET {field} = ? WHERE sequence = ?", (new, sequence)))
    with pytest.raises(LedgerTampered):
        verify(path)


@pytest.mark.parametrize(
    "statements",
    [
        [f"DELETE FROM {ENTRIES} WHERE sequence = 4"],
        [f"DELETE FROM {ENTRIES} WHERE sequence = 9"],
        [f"DELETE FROM {ENTRIES} WHERE sequence > 5"],
        [f"DELETE FROM {ENTRIES}"],
        [f"DELETE FROM {HEADS}"],
        [f"UPDATE {HEADS} SET dataset = 'ward-6'"],
        [f"UPDATE {HEADS} SET sequence = 8"],
        [f"UPDATE {HEADS} SET hash = (SELECT hash FROM {ENTRIES} WHERE sequence = 8)"],
        [
            f"UPDATE {ENTRIES} SET sequence = 100 WHERE sequence = 4",
            f"UPDATE {ENTRIES} SET sequence = 4 WHERE sequence = 5",
            f"UPDATE {ENTRIES} SET sequence = 5 WHERE sequence = 100",
        ],
        [f"DELETE FROM {ENTRIES} WHERE sequence = 8", f"UPDATE {ENTRIES} SET sequence = 8 WHERE sequence = 9"],
        [f"INSERT INTO {ENTRIES} SELECT dataset, 10, {', '.join(FIELDS[2:])} FROM {ENTRIES} WHERE sequence = 9"],
    ],
    ids=["one gone", "last gone", "tail gone", "all gone", "head gone", "head renamed", "head moved", "head hash",
         "two swapped", "closed up", "one added"],
)  # fmt: skip
def test_removed_moved_added_and_cut_off_entries_are_found(path, statements):
    behind(path, *statements)
    with pytest.raises(LedgerTampered):
        verify(path)


def test_a_ledger_whose_end_was_changed_takes_no_more_charges(path):
    behind(path, f"UPDATE {ENTRIES} SET spent_micro_epsilon = 0 WHERE sequence = 9")
    with Ledger(path, dataset="ward-7") as ledger:
        for unit in ("record", "pair"):
            with pytest.raises(LedgerTampered):
                ledger.charge(Cost(epsilon=0.1, unit=unit), what="more")


def test_a_cut_off_tail_gives_no_budget_back(path):
    behind(path, f"DELETE FROM {ENTRIES} WHERE sequence > 3")
    with Ledger(path, dataset="ward-7") as ledger, pytest.raises(LedgerTampered):
        ledger.charge(Cost(epsilon=0.1, unit="record"), what="again")


def test_a_rewritten_chain_shows_against_a_head_kept_elsewhere(path, tmp_path):
    with Ledger(path, dataset="ward-7") as ledger:
        known = ledger.head()
    other = tmp_path / "other.db"
    with Ledger(other, dataset="ward-7") as forged:
        forged.grant(Cost(epsilon=100, unit="record"))
        forged.verify()
        with pytest.raises(LedgerTampered, match="rewritten"):
            forged.verify(known=known)


def test_a_flipped_byte_anywhere_in_the_file_is_found_or_changes_nothing(path, tmp_path):
    with Ledger(path, dataset="ward-7") as ledger:
        entries, balances = list(ledger.entries()), ledger.balances()
    content = path.read_bytes()
    places = random.Random(3).sample(range(len(content)), 300)
    # Every byte that holds one of our texts counts, not only those the sample hits.
    places += [content.index(f"release {i}".encode()) + 8 for i in range(6)]
    places += [content.index(entry.hash.encode()) + 5 for entry in entries]
    # SQLite quotes a damaged table definition in its error, in bytes that are no text.
    schema = content.index(b"CREATE TABLE")
    places += range(schema + 7 - schema % 8, schema + 400, 40)
    found = 0
    victim = tmp_path / "victim.db"
    for place in places:
        shutil.copyfile(path, victim)
        with open(victim, "r+b") as file:
            file.seek(place)
            file.write(bytes([content[place] ^ (1 << place % 8)]))
        try:
            with Ledger(victim, dataset="ward-7", create=False) as ledger:
                ledger.verify()
                assert (list(ledger.entries()), ledger.balances()) == (entries, balances), place
        except LedgerError:
            found += 1
        for leftover in tmp_path.glob("victim.db-*"):
            leftover.unlink()
    assert found > 15


def test_texts_are_the_text_fields(path):
    connection = sqlite3.connect(path)
    row = dict(zip(FIELDS, connection.execute(f"SELECT * FROM {ENTRIES}").fetchone(), strict=True))
    connection.close()
    assert {name for name, value in row.items() if isinstance(value, str)} == TEXTS
