"""The table of all five methods stands: what is claimed falls where it must, what is proved never
does.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from blindsight.audit.report.verdict import Verdict
from blindsight.cli.main import app
from blindsight.privacy import Audited


class Table(NamedTuple):
    """What `blindsight audit --all` printed and left."""

    printed: str
    page: str
    report: dict[str, Any]

    @property
    def verdicts(self) -> list[dict[str, Any]]:
        return self.report["verdicts"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    out = tmp_path_factory.mktemp("all")
    words = ["audit", "--all", "--out", str(out), "--seed", "1"]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "80"}, catch_exceptions=False)
    assert done.exit_code == 1
    return Table(
        done.stdout,
        (out / "report.html").read_text(),
        json.loads((out / "report.json").read_text()),
    )


def test_all_five_rooms_are_in_the_table(table: Table) -> None:
    assert {verdict["room"] for verdict in table.verdicts} == {
        "hashing",
        "federated",
        "metric",
        "sketching",
        "tagging",
    }
    for method in ("PHashing", "DPHE", "DPP-DML", "NegDL", "P2"):
        assert method in table.printed


def test_no_proof_is_refuted(table: Table) -> None:
    # 95% bounds on a fixed seed; the same code is held to 1e-6 in test_bounds.
    for verdict in table.verdicts:
        if verdict["audited"] is not None:
            assert verdict["audited"]["epsilon"] <= float(verdict["proven"]), verdict
        if verdict["calibration"] == "proven":
            assert verdict["verdict"] == "not refuted", verdict


@pytest.mark.parametrize(
    "method",
    [
        "PHashing",
        "PITQ",
        "DPP-DML",
        "DPP-S",
        "P2-ML-GCN outputs",
        "P2-ML-GCN weights",
        "P2-ML-GCN features",
        "DPHE",
        "NegDL records",
    ],
)
def test_the_published_claim_is_refuted_and_something_better_advised(
    table: Table, method: str
) -> None:
    rows = [v for v in table.verdicts if v["method"] == method and v["calibration"] == "paper"]
    assert rows
    assert all(row["verdict"] == "REFUTED" and row["advice"] for row in rows)


def test_the_terminal_shows_whole_words_in_80_columns(table: Table) -> None:
    shown = table.printed[: table.printed.index("wrote ")]
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count("Not refuted:") == 1
    assert "published claims are REFUTED" in " ".join(shown.split()[:20])


def test_words_are_only_refuted_and_not_refuted(table: Table) -> None:
    assert {verdict["verdict"] for verdict in table.verdicts} == {"REFUTED", "not refuted"}


def test_the_page_shows_table_figures_advice_and_cards(table: Table) -> None:
    assert table.page.count("<figure>") == 5
    assert "What can be reconstructed of an image" in table.page
    assert table.page.count('class="refuted"') == sum(
        v["verdict"] == "REFUTED" for v in table.verdicts
    )
    assert "What to change" in table.page
    assert 'class="card"' in table.page


def test_an_attack_beyond_a_proof_refutes_it() -> None:
    measured = Audited(epsilon=2.0, confidence=0.95, attack="x", trials=10)
    verdict = Verdict(
        room="hashing",
        method="m",
        setting="s",
        unit="record",
        calibration="proven",
        claimed=None,
        proven=1.0,
        audited=measured,
    )
    assert verdict.refuted
    assert not Verdict(**{**vars(verdict), "proven": math.inf}).refuted
