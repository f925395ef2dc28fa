"""Every mechanism and every estimator that opens a door has a proof sheet, whose tests exist."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

from blindsight.privacy import mechanisms
from contracts.test_replay import _is_private

ROOT = Path(__file__).parents[2]
SHEETS = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "docs" / "proofs").glob("*.md"))
    if path.stem != "index"
}
PARTS = ("hashing", "metric", "tagging", "sketching", "federated")
HEADINGS = ("Neighbours", "Sensitivity lemma", "loating point", "ssumptions", "## Tests")


def _needed() -> set[str]:
    """Mechanisms that are public or registered, and public classes that open a door."""
    named = {
        name for name in mechanisms.__all__ if hasattr(getattr(mechanisms, name), "release")
    } - {"Mechanism"}
    found = named | {"Door", "GaussianShares", "RecordShares", "ShuffleStatement"}
    for part in PARTS:
        package = importlib.import_module(f"blindsight.{part}")
        found |= {name for name in package.__all__ if _is_private(getattr(package, name))}
    return found


def _tests_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def test_every_mechanism_and_estimator_has_a_sheet_and_the_index_names_it() -> None:
    needed = _needed()
    assert len(needed) >= 20
    assert needed - SHEETS.keys() == set()
    index = (ROOT / "docs" / "proofs" / "index.md").read_text(encoding="utf-8")
    assert {name for name in SHEETS if f"({name}.md)" not in index} == set()


@pytest.mark.parametrize("name", SHEETS)
def test_a_sheet_has_all_its_parts_and_names_tests_that_exist(name: str) -> None:
    sheet = SHEETS[name]
    assert [heading for heading in HEADINGS if heading not in sheet] == []
    listed = re.findall(r"^- `(tests/[^:`]+)::(\w+)`$", sheet, re.MULTILINE)
    assert listed, "a sheet must name the tests that check its lemmas"
    assert len(listed) == sheet.partition("## Tests")[2].count("\n- ")
    assert [f"{path}::{test}" for path, test in listed if test not in _tests_of(ROOT / path)] == []
