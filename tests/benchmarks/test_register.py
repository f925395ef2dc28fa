"""The page of the papers names code, rows and attacks that exist; pages quote the result files."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.register import PAPERS, Item, found_rows, papers_page, resolve
from benchmarks.results import fill_rows

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
ITEMS = [
    pytest.param(item, id=f"{title}: {item.name}") for title, _, items in PAPERS for item in items
]


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    reports = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    return {row["id"]: row for report in reports for row in report["rows"]}


@pytest.mark.parametrize("item", ITEMS)
def test_every_item_names_code_rows_and_attacks_that_exist(
    item: Item, rows: dict[str, dict[str, Any]]
) -> None:
    for path in item.code:
        resolve(path)
    assert not [asked for asked in item.rows if not found_rows(asked, rows)]
    verdicts = (ROOT / "docs" / "audit" / "report.md").read_text()
    assert not [name for name in item.audit if f"| {name} |" not in verdicts]
    assert item.holds in {"yes", "no", "in part", "definition", "not measured"}
    # A line has a row, an attack, code whose tests show it, or a reason.
    assert item.rows or item.audit or item.code or item.why or item.holds == "definition"


def test_a_name_that_is_gone_is_told() -> None:
    with pytest.raises(ImportError, match="register"):
        resolve("blindsight.hashing.Nothing")
    with pytest.raises(ImportError, match="register"):
        resolve("nothing.at.all")


def test_the_page_is_the_one_that_the_register_writes(rows: dict[str, dict[str, Any]]) -> None:
    assert (ROOT / "docs" / "papers.md").read_text() == papers_page(rows)


def test_rows_as_csv_are_the_rows_of_the_report() -> None:
    for path in sorted(RESULTS.glob("*.json")):
        report = json.loads(path.read_text())
        with path.with_suffix(".csv").open(newline="", encoding="utf-8") as file:
            table = list(csv.DictReader(file))
        assert [line["id"] for line in table] == [row["id"] for row in report["rows"]]
        values = [float(row["value"]) for row in report["rows"]]
        assert [float(line["value"]) for line in table] == values


def test_pages_quote_the_result_files(rows: dict[str, dict[str, Any]]) -> None:
    pages = [p for p in sorted((ROOT / "docs").rglob("*.md")) if "<!-- rows\n" in p.read_text()]
    assert pages
    for page in pages:
        text = page.read_text()
        assert fill_rows(text, rows) == text, page


def test_the_pages_of_results_are_short() -> None:
    assert sum(len(path.read_text().split()) for path in RESULTS.glob("*.md")) < 8000
