"""What the documents show, runs."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import warm

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "blindsight"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
REFERENCE = {
    **{room: room for room in ("privacy", "data", "encoders", "hashing", "federated")},
    **{room: room for room in ("metric", "sketching", "tagging", "audit")},
    "index": "search",
    "index.bulk": "bulk",
}
WITH_DOCTESTS = [path for path in sorted(SOURCE.rglob("*.py")) if ">>> " in path.read_text()]


def _blocks(page: Path) -> str:
    return "\n".join(BLOCK.findall(page.read_text()))


# The README's lines: tests/docs/test_readme.py.
WITH_CODE = [page for page in PAGES if _blocks(page) and page.name != "README.md"]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_in_pages_runs(page: Path, tmp_path: Path) -> None:
    done = warm.run(["-c", _blocks(page)], cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", WITH_DOCTESTS, ids=lambda path: str(path.relative_to(SOURCE)))
def test_docstring_examples_run(path: Path) -> None:
    name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def test_docstrings_speak_one_dialect() -> None:
    """Google's sections, which the reader of the reference knows, and none of the underlined
    ones. The site shows an "Example:" in the singular as nested quotations, without line breaks.
    """
    foreign = re.compile(
        r"^ +(?:Parameters|Attributes|Guarantee|Returns|Raises|Examples)\n +-{3,}$|^ +Example:$",
        re.MULTILINE,
    )
    assert [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if foreign.search(path.read_text())
    ] == []


def test_links_between_pages_lead_somewhere() -> None:
    missing = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
        if "://" not in target
        and not target.startswith("mailto:")
        and not (page.parent / target).exists()
    ]
    assert missing == []


def test_the_reference_names_all_that_is_public() -> None:
    missing = []
    for room, page_name in REFERENCE.items():
        page = (ROOT / "docs" / "reference" / f"{page_name}.md").read_text()
        shown = {line.rsplit(".", 1)[-1] for line in page.splitlines() if line.startswith("::: ")}
        public = importlib.import_module(f"blindsight.{room}").__all__
        missing += [f"{room}.{name}" for name in public if name not in shown]
    assert missing == []


def test_every_public_name_is_shown_with_an_example() -> None:
    import blindsight

    page = (ROOT / "docs" / "reference" / "names.md").read_text()
    assert [name for name in blindsight.__all__ if f"`{name}`" not in page] == []


def test_every_verb_is_told_in_one_place_and_listed_in_the_reference() -> None:
    from blindsight.cli.main import VERBS

    told = [
        verb
        for page in PAGES
        for verb in re.findall(r"^## `([a-z]+)`: ", page.read_text(), re.MULTILINE)
    ]
    assert sorted(told) == sorted(VERBS)
    listed = (ROOT / "docs" / "reference" / "cli.md").read_text()
    assert [verb for verb in VERBS if f"`{verb}`" not in listed] == []


def test_the_site_has_four_tabs_and_no_page_twice() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    menu = text[text.index("\nnav:") :]
    tabs = re.findall(r"^  - (\w+):$", menu, re.MULTILINE)
    assert tabs == ["Start", "Guides", "Concepts", "Reference"]
    pages = re.findall(r"([\w/-]+\.md)$", menu, re.MULTILINE)
    assert len(pages) == len(set(pages))


# Each of some thousand signatures would be laid out by a process of Ruff, and the collector would
# look through all pages again and again: neither tells of a warning or of what a page fetches.
BUILD = """import gc, sys
gc.disable()
sys.modules["ruff"] = sys.modules["black"] = None
from mkdocs.__main__ import cli
cli()
"""


def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BUILD, "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    asset = re.compile(
        r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>"
    )
    foreign = {tag for page in tmp_path.rglob("*.html") for tag in asset.findall(page.read_text())}
    assert not foreign


def _commands(page: Path) -> list[str]:
    """The lines of a page's code blocks that run `blindsight`, without comments."""
    blocks = re.findall(r"^```(?:sh|text)?\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    lines = [
        line.strip().removeprefix("$ ")
        for block in blocks
        for line in block.replace("\\\n", " ").splitlines()
    ]
    return [line for line in lines if line.startswith("blindsight ")]


def _unknown_in(line: str, root: Any) -> str:
    """What a command line names that does not exist: a verb or options; "" if all do."""
    command, words = root, shlex.split(line, comments=True)[1:]
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    if getattr(command, "commands", {}) and "make" in command.commands:  # sketch FOLDER OUT
        command = command.commands["make"]
    if getattr(command, "commands", {}) and command.name not in {None, "serve", "blindsight"}:
        return "no such verb"
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    named = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    return " ".join(sorted(named - known - {"--help"}))


def test_commands_in_pages_name_verbs_and_options_that_exist() -> None:
    import typer

    from blindsight.cli.main import app

    root = typer.main.get_command(app)
    commands = [(page.relative_to(ROOT), line) for page in PAGES for line in _commands(page)]
    assert len(commands) > 20
    assert [
        f"{page}: {line}: {unknown}"
        for page, line in commands
        if (unknown := _unknown_in(line, root))
    ] == []
