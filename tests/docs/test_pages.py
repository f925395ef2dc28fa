"""What the documents show, runs."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "blindsight"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
REFERENCE = {
    **{room: room for room in ("privacy", "data", "features", "hashing", "federated")},
    **{room: room for room in ("metric", "sketching", "tagging", "audit")},
    "index": "search",
    "index.bulk": "bulk",
}
WITH_DOCTESTS = [path for path in sorted(SOURCE.rglob("*.py")) if ">>> " in path.read_text()]


def _blocks(page: Path) -> str:
    return "\n".join(BLOCK.findall(page.read_text()))


@pytest.mark.parametrize("page", [p for p in PAGES if _blocks(p)], ids=lambda page: str(page.relative_to(ROOT)))
def test_code_in_pages_runs(page: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    done = subprocess.run(
        [sys.executable, "-c", _blocks(page)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", WITH_DOCTESTS, ids=lambda path: str(path.relative_to(SOURCE)))
def test_docstring_examples_run(path: Path) -> None:
    name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def test_docstrings_speak_one_dialect() -> None:
    """Google's sections, which the reader of the reference knows, and none of the underlined ones."""
    underlined = re.compile(r"^ +(?:Parameters|Attributes|Guarantee|Returns|Raises|Examples)\n +-{3,}$", re.MULTILINE)
    assert [str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if underlined.search(path.read_text())] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    missing = [
        target
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
        if "://" not in target and not target.startswith("mailto:") and not (page.parent / target).exists()
    ]
    assert not missing


@pytest.mark.parametrize(("room", "page_name"), REFERENCE.items())
def test_the_reference_names_all_that_is_public(room: str, page_name: str) -> None:
    page = (ROOT / "docs" / "reference" / f"{page_name}.md").read_text()
    shown = {line.rsplit(".", 1)[-1] for line in page.splitlines() if line.startswith("::: ")}
    assert set(importlib.import_module(f"blindsight.{room}").__all__) <= shown


def test_every_public_name_is_shown_with_an_example() -> None:
    import blindsight

    page = (ROOT / "docs" / "reference" / "names.md").read_text()
    assert [name for name in blindsight.__all__ if f"`{name}`" not in page] == []


def test_every_verb_has_a_how_to() -> None:
    from blindsight.cli.main import VERBS

    assert {path.stem for path in (ROOT / "docs" / "how-to").glob("*.md")} == set(VERBS)


def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    asset = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
    foreign = {tag for page in tmp_path.rglob("*.html") for tag in asset.findall(page.read_text())}
    assert not foreign
