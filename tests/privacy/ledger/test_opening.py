"""Where a ledger may live, what it says when it cannot, and what it never says."""

from __future__ import annotations

import gc
import json
import sqlite3
import traceback
from pathlib import Path
from typing import get_args

import pytest

import warm
from blindsight.core.errors import InvalidParameter, LedgerError, UnitMismatch
from blindsight.privacy.guarantee import Cost, Neighbours, Unit
from blindsight.privacy.ledger import Ledger, datasets, store
from blindsight.privacy.ledger.units import unit_mismatch

CROWD = Path(__file__).with_name("crowd.py")


def test_a_new_ledger_can_be_opened_by_many_at_once(tmp_path):
    path = tmp_path / "ledger.db"
    done = warm.run([CROWD, "open", path, "ward-7", "12"])
    assert json.loads(done.stdout) == {"failed": 0}, done.stderr
    with Ledger(path, dataset="ward-7") as ledger:
        assert ledger.verify().sequence == 1


def test_sqlite_writes_ahead_and_waits_for_the_disk(tmp_path):
    with (
        Ledger(tmp_path / "ledger.db", dataset="ward-7") as ledger,
        ledger._store.write("ward-7") as transaction,
    ):
        ask = transaction.connection.exec_driver_sql
        assert ask("PRAGMA journal_mode").scalar() == "wal"
        assert ask("PRAGMA synchronous").scalar() == 2  # FULL


def test_a_ledger_that_nobody_holds_any_more_closes_its_database(tmp_path, monkeypatch):
    """Python 3.13 warns of connections that are dropped open."""
    opened = []

    def connect(*arguments):
        opened.append(real(*arguments))
        return opened[-1]

    real = store._connect_sqlite
    monkeypatch.setattr(store, "_connect_sqlite", connect)
    ledger = Ledger(tmp_path / "ledger.db", dataset="ward-7")
    ledger.grant(Cost(epsilon=1, unit="record"))
    assert opened
    del ledger
    gc.collect()
    for connection in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


def test_a_path_and_its_url_are_the_same_ledger(tmp_path):
    path = tmp_path / "ledger.db"
    with Ledger(path, dataset="ward-7") as ledger:
        entry = ledger.grant(Cost(epsilon=1, unit="record"))
    with Ledger(f"sqlite:///{path}", dataset="ward-7") as ledger:
        assert list(ledger.entries()) == [entry]
    assert datasets(path) == ["ward-7"]


@pytest.mark.parametrize(
    "where",
    [
        ":memory:",
        "sqlite://",
        "sqlite:///:memory:",
        "mysql://u:secret@h/d",
        "://",
        "",
        None,
        3,
        b"x",
    ],
)
def test_a_ledger_lives_in_a_file_or_on_postgresql(where):
    with pytest.raises(InvalidParameter) as caught:
        Ledger(where, dataset="ward-7")
    assert "secret" not in str(caught.value)


def test_a_ledger_that_is_not_there_is_an_error_when_not_creating(tmp_path):
    with pytest.raises(LedgerError, match="there is no ledger"):
        Ledger(tmp_path / "typo.db", dataset="ward-7", create=False)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(LedgerError, match="does not exist"):
        Ledger(tmp_path / "no" / "folder.db", dataset="ward-7")


def test_files_that_are_no_ledger_are_refused(tmp_path):
    junk = tmp_path / "junk.db"
    junk.write_bytes(b"not a database" * 1000)
    with pytest.raises(LedgerError, match="not a database"):
        Ledger(junk, dataset="ward-7")
    other = tmp_path / "other.db"
    sqlite3.connect(other).close()
    other.write_bytes(b"")
    with pytest.raises(LedgerError, match="holds no ledger"):
        Ledger(other, dataset="ward-7", create=False)


def test_a_writer_that_never_ends_is_an_error_after_the_timeout(tmp_path):
    path = tmp_path / "ledger.db"
    with Ledger(path, dataset="ward-7", timeout=0.2) as ledger:
        ledger.grant(Cost(epsilon=1, unit="record"))
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match="locked"):
            ledger.charge(Cost(epsilon=0.1, unit="record"), what="codes")
        assert ledger.balance("record").spent.micro_epsilon == 0
        blocker.execute("ROLLBACK")
        blocker.close()
        ledger.charge(Cost(epsilon=0.1, unit="record"), what="codes")


@pytest.mark.real
def test_a_password_is_never_shown(postgresql):
    password = postgresql.split(":")[2].split("@")[0]
    with Ledger(postgresql, dataset="ward-7") as ledger:
        assert password not in repr(ledger) + repr(ledger._location) + str(
            vars(ledger)
        ) and "***" in repr(ledger)
    for wrong in (
        postgresql.replace("/postgres?", "/nowhere?"),
        postgresql.replace(password, "wrong-secret"),
        "postgresql://keeper:wrong-secret@127.0.0.1:1/x?connect_timeout=2",
        "postgresql://keeper:wrong-secret@host:port/x",
    ):
        try:
            Ledger(wrong, dataset="ward-7")
        except (LedgerError, InvalidParameter):
            shown = traceback.format_exc()
        assert (
            password not in shown.replace(wrong, "")
            and "wrong-secret" not in shown.split("Error: ")[-1]
        )


@pytest.mark.parametrize("unit", get_args(Unit))
@pytest.mark.parametrize("neighbours", get_args(Neighbours))
def test_every_mismatch_says_what_to_do(unit, neighbours):
    cost = Cost(epsilon=1, unit=unit, neighbours=neighbours)
    for other in get_args(Unit):
        for relation in get_args(Neighbours):
            if (other, relation) == (unit, neighbours):
                continue
            error = unit_mismatch(cost, "ward-7", [(other, relation)])
            assert isinstance(error, UnitMismatch)
            assert any(
                word in str(error)
                for word in ("cost.per(", "grant a budget", "take the cost per pair")
            )
