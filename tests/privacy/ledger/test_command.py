"""`blindsight ledger` as a user runs it."""

from __future__ import annotations

import json
import sqlite3
import warnings

import pytest

from blindsight.core.errors import BudgetExceeded, LedgerError

with warnings.catch_warnings():
    # typer imports what click has deprecated; that is between the two of them.
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.testing import CliRunner

    from blindsight.cli.main import app


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("BLINDSIGHT_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words, code=0):
        result = CliRunner().invoke(app, ["ledger", *words], catch_exceptions=False)
        assert result.exit_code == code, result.output
        return json.loads(result.stdout) if "--json" in words else result.stdout

    return run


def grant(run):
    return run("grant", "--dataset", "ward-7", "--epsilon", "1", "--delta", "1e-6", "--json")


def test_grant_charge_and_show_agree(run):
    assert grant(run)["balance"]["remaining"]["micro_epsilon"] == 1_000_000
    charged = run(
        "charge", "--dataset", "ward-7", "--epsilon", "0.25", "--what", "codes [draft]", "--json"
    )
    assert (
        charged["entry"]["kind"] == "charge" and charged["balance"]["remaining"]["epsilon"] == 0.75
    )
    assert run("show", "--json")["balances"] == [charged["balance"]]
    table = run("show")
    assert all(word in table for word in ("ward-7", "record", "0.25", "0.75", "25%"))
    assert "codes [draft]" in run("entries")
    assert [entry["sequence"] for entry in run("entries", "--last", "1", "--json")["entries"]] == [
        2
    ]


def test_an_overspending_charge_is_refused(run):
    grant(run)
    with pytest.raises(BudgetExceeded):
        run("charge", "--dataset", "ward-7", "--epsilon", "2", "--what", "codes")
    assert len(run("entries", "--json")["entries"]) == 1


def test_a_closed_budget_shows_as_closed(run):
    grant(run)
    assert run("close", "--dataset", "ward-7", "--json")["balance"]["closed"]
    assert "closed" in run("show")


def test_reading_a_ledger_that_is_not_there_makes_none(run, tmp_path):
    with pytest.raises(LedgerError, match="there is no ledger"):
        run("show")
    assert list(tmp_path.iterdir()) == []


def test_verify_ends_with_one_when_the_chain_does_not_hold(run, tmp_path):
    grant(run)
    (result,) = run("verify", "--json")["datasets"]
    assert result["holds"] and result["entries"] == 1
    run("verify", "--dataset", "ward-7", "--known", f"1:{result['hash']}")
    run("verify", "--dataset", "ward-7", "--known", f"1:{'0' * 64}", code=1)
    connection = sqlite3.connect(tmp_path / "ledger.db")
    with connection:
        connection.execute("UPDATE blindsight_ledger3_entries SET budget_micro_epsilon = 9000000")
    connection.close()
    (result,) = run("verify", "--json", code=1)["datasets"]
    assert not result["holds"] and "changed after writing" in result["problem"]


def test_an_export_can_be_verified_without_the_ledger(run, tmp_path):
    grant(run)
    out = tmp_path / "export.json"
    assert run("export", "--out", str(out), "--json")["entries"] == 1
    assert "1 entries hold" in run("verify", "--file", str(out))
    out.write_text(out.read_text().replace("ward-7", "ward-8"))
    run("verify", "--file", str(out), code=1)
    run("export", "--out", str(tmp_path / "export.csv"))
    assert (tmp_path / "export.csv").read_text().splitlines()[1].startswith("1.0,1e-06,ward-7,1,")


def test_a_witness_elsewhere_and_a_backup_from_the_command_line(run, tmp_path):
    grant(run)
    run("key", "--out", str(tmp_path / "keeper.key"))
    signed = ["--key", str(tmp_path / "keeper.key")]
    (tmp_path / "elsewhere").mkdir()
    run("witness", "--to", str(tmp_path / "elsewhere"), *signed)
    run("charge", "--dataset", "ward-7", "--epsilon", "0.25", "--what", "codes", "--key", "index 1")
    again = run(
        "charge",
        "--dataset",
        "ward-7",
        "--epsilon",
        "0.25",
        "--what",
        "codes",
        "--key",
        "index 1",
        "--json",
    )
    assert again["balance"]["spent"]["epsilon"] == 0.25
    run("witness", "--to", str(tmp_path / "elsewhere"), *signed)
    seen = ["--witness", str(tmp_path / "elsewhere"), "--key", str(tmp_path / "keeper.key.pub")]
    assert "2 entries hold" in run("verify", *seen)
    run("backup", "--out", str(tmp_path / "copy.db"))
    assert "2 entries hold" in run("verify", "--ledger", str(tmp_path / "copy.db"), *seen)
    for left in tmp_path.glob("ledger.db*"):
        left.unlink()
    grant(run)  # another ledger in its place
    (result,) = run("verify", *seen, "--json", code=1)["datasets"]
    assert "rewritten" in result["problem"]


def test_a_budget_in_zcdp_is_granted_and_shown(run):
    granted = run(
        "grant",
        "--dataset",
        "w",
        "--epsilon",
        "2",
        "--delta",
        "1e-6",
        "--composition",
        "zcdp",
        "--json",
    )
    assert granted["balance"]["composition"] == "zcdp" and granted["balance"]["budget"]["rho"] > 0
    spent = run("charge", "--dataset", "w", "--epsilon", "0.1", "--what", "laplace", "--json")[
        "balance"
    ]["spent"]
    assert spent["rho"] == 0.005
    assert "7%" in run("show") or "6%" in run("show")
