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
from blindsight.privacy.ledger.chain import FIELDS, TEXTS, chained

ENTRIES, HEADS = "blindsight_ledger3_entries", "blindsight_ledger3_heads"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "ledger.db"
    with Ledger(path, dataset="ward-7") as ledger:
        ledger.grant(Cost(epsilon=1, delta=1e-6, unit="record"))
        ledger.grant(Cost(epsilon=4, unit="query"))
        for i in range(6):
            ledger.charge(Cost(epsilon=0.1, delta=1e-9, unit="record"), what=f"release {i}")
        ledger.charge(Cost(epsilon=1, unit="query"), what="answers")
    return path


def behind(path, *statements):
    connection = sqlite3.connect(path)
    with connection:
        for statement in statements:
            connection.execute(*statement) if isinstance(statement, tuple) else connection.execute(
                statement
            )
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
    row = connection.execute(
        f"SELECT {field} FROM {ENTRIES} WHERE sequence = ?", (sequence,)
    ).fetchone()
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
        [f"DELETE FROM {ENTRIES} WHERE sequence = 8", f"UPDATE {ENTRIES} SET sequence = 8 WHERE "
                                                      "sequence = 9"],
        [f"INSERT INTO {ENTRIES} SELECT dataset, 10, {', '.join(FIELDS[2:])} FROM {ENTRIES} WHERE "
         "sequence = 9"],
    ],
    ids=["one gone", "last gone", "tail gone", "all gone", "head gone", "head renamed", "head moved", "head hash",  # noqa: E501
         "two swapped", "closed up", "one added"],
)  # fmt: skip
def test_removed_moved_added_and_cut_off_entries_are_found(path, statements):
    behind(path, *statements)
    with pytest.raises(LedgerTampered):
        verify(path)


def spliced(path, **changes):
    """A last entry that its hash, its place and the head all vouch for: whoever writes code can
    write this too.
    """
    with Ledger(path, dataset="ward-7", create=False) as ledger:
        last = [entry for entry in ledger.entries() if entry.unit == "record"][-1]
        head = ledger.head()
    fields = {**last.to_dict(), **changes}
    for name in ("sequence", "previous", "format", "hash"):
        del fields[name]
    entry = chained(head, **fields).to_dict()
    names, marks = ", ".join(entry), ", ".join("?" * len(entry))
    behind(
        path,
        (f"INSERT INTO {ENTRIES} ({names}) VALUES ({marks})", tuple(entry.values())),
        (f"UPDATE {HEADS} SET sequence = ?, hash = ?", (entry["sequence"], entry["hash"])),
    )


def test_a_chain_that_spends_more_than_its_budget_does_not_verify(path):
    spent = {"spent_micro_epsilon": 600_000 + 500_000, "micro_epsilon": 500_000, "what": "too much"}
    spliced(path, **spent, atto_delta=0)
    with pytest.raises(LedgerTampered, match="do not add up"):
        verify(path)


def test_a_chain_that_spends_its_budget_exactly_verifies(path):
    spliced(
        path, spent_micro_epsilon=1_000_000, micro_epsilon=400_000, what="the rest", atto_delta=0
    )
    assert verify(path).sequence == 10


def test_a_budget_below_what_was_spent_does_not_verify(path):
    spliced(
        path, kind="grant", micro_epsilon=100_000, budget_micro_epsilon=100_000, atto_delta=10**12
    )
    with pytest.raises(LedgerTampered, match="do not add up"):
        verify(path)


def test_a_ledger_whose_end_was_changed_takes_no_more_charges(path):
    behind(path, f"UPDATE {ENTRIES} SET spent_micro_epsilon = 0 WHERE sequence = 9")
    with Ledger(path, dataset="ward-7") as ledger:
        for unit in ("record", "query"):
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


@pytest.mark.parametrize("column", range(3), ids=["type", "name", "table"])
def test_a_text_of_the_schema_that_a_flipped_bit_made_bytes_is_found(path, column):
    """In SQLite's own table a text of n letters has the type 2n + 13, and 2n + 12 are bytes."""
    content = bytearray(path.read_bytes())
    types = [2 * len(text) + 13 for text in ("table", ENTRIES, ENTRIES)]
    content[content.index(bytes(types)) + column] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(LedgerError):
        verify(path)


def test_texts_are_the_text_fields(path):
    connection = sqlite3.connect(path)
    row = dict(zip(FIELDS, connection.execute(f"SELECT * FROM {ENTRIES}").fetchone(), strict=True))
    connection.close()
    assert {name for name, value in row.items() if isinstance(value, str)} == TEXTS


@pytest.mark.parametrize(
    "statement",
    [
        f"CREATE TRIGGER t AFTER UPDATE ON {HEADS} BEGIN UPDATE {HEADS} SET sequence = "
        "OLD.sequence; END",
        f"CREATE TRIGGER t AFTER INSERT ON {ENTRIES} BEGIN DELETE FROM {ENTRIES} WHERE sequence = "
        "NEW.sequence; END",
        "CREATE VIEW v AS SELECT 1",
        f"CREATE INDEX i ON {ENTRIES} (time)",
        "CREATE TABLE other (x)",
        f"ALTER TABLE {HEADS} ADD COLUMN x TEXT",
        "DROP INDEX blindsight_ledger3_keys",
    ],
    ids=["head trigger", "entry trigger", "view", "index", "table", "column", "no index"],
)
def test_a_database_that_holds_anything_else_is_refused(path, statement):
    live = Ledger(path, dataset="ward-7")
    live.charge(Cost(epsilon=0.1, unit="record"), what="before")
    known = live.head()
    behind(path, statement)
    with pytest.raises(LedgerTampered, match="not as it was made"):
        live.charge(Cost(epsilon=0.1, unit="record"), what="voided")
    with pytest.raises(LedgerTampered):
        live.verify(known=known)
    live.close()
    for readonly in (False, True):
        with pytest.raises(LedgerTampered):
            Ledger(path, dataset="ward-7", readonly=readonly)


def test_a_write_that_the_database_does_not_keep_is_no_charge(path, monkeypatch):
    """Even where the schema's check is blind, what was written is read back before it counts."""
    behind(
        path, f"CREATE TRIGGER t AFTER UPDATE ON {HEADS} BEGIN UPDATE {HEADS} SET sequence = 0; END"
    )
    for module in ("store", "transaction"):
        monkeypatch.setattr(f"blindsight.privacy.ledger.{module}.check_schema", lambda _: None)
    with (
        Ledger(path, dataset="ward-7") as ledger,
        pytest.raises(LedgerTampered, match="did not store"),
    ):
        ledger.charge(Cost(epsilon=0.1, unit="record"), what="voided")


def test_a_log_removed_under_a_live_ledger_loses_no_charge_unseen(path):
    live = Ledger(path, dataset="ward-7")
    charged = [live.charge(Cost(epsilon=0.01, unit="record"), what="before")]
    path.with_name("ledger.db-wal").unlink()
    for i in range(3):
        try:
            charged.append(live.charge(Cost(epsilon=0.01, unit="record"), what=f"after {i}"))
        except LedgerError:
            break
    live.close()
    with Ledger(path, dataset="ward-7") as again:
        held = {entry.hash for entry in again.entries()}
        assert {entry.hash for entry in charged} <= held
        again.verify()


def test_a_ledger_put_back_from_an_old_copy_takes_no_more_charges_of_a_live_process(path, tmp_path):
    with Ledger(path, dataset="ward-7") as live:
        live.close()
        shutil.copy(path, tmp_path / "old.db")
        live.charge(Cost(epsilon=0.1, unit="record"), what="spent")
        live.close()
        shutil.copy(tmp_path / "old.db", tmp_path / "swap.db")
        (tmp_path / "swap.db").replace(path)
        with pytest.raises(LedgerTampered, match="no longer holds entry"):
            live.charge(Cost(epsilon=0.1, unit="record"), what="spent again")


def test_a_ledger_that_was_removed_does_not_come_back_empty(path):
    with Ledger(path, dataset="ward-7") as live:
        live.charge(Cost(epsilon=0.1, unit="record"), what="before")
        for file in path.parent.glob("ledger.db*"):
            file.unlink()
        with pytest.raises(LedgerError):
            live.charge(Cost(epsilon=0.1, unit="record"), what="after")
    assert not path.exists()


def test_files_of_a_ledger_are_its_owners_alone(path):
    with Ledger(path, dataset="ward-7") as ledger:
        ledger.charge(Cost(epsilon=0.1, unit="record"), what="codes")
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.glob("ledger.db*")}
    assert set(modes.values()) == {0o600} and len(modes) == 3
