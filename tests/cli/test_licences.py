"""What Blindsight ships with may be given away."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from blindsight.cli import main
from blindsight.cli.licences import Licence, licences


def test_nothing_that_ships_is_under_the_gpl() -> None:
    assert [one for one in licences() if one.gpl] == []


def test_the_core_and_what_it_needs_are_listed() -> None:
    core = {one.package.lower() for one in licences() if one.needed_by == "core"}
    assert {"numpy", "scikit-learn", "cryptography", "click"} <= core
    assert not core & {"torch", "flwr", "fastapi"}


@pytest.mark.parametrize(
    "words, gpl",
    [
        ("GPL-3.0-only", True),
        ("GNU General Public License v2 (GPLv2)", True),
        ("AGPL-3.0", True),
        ("LGPL-3.0-or-later", False),
        ("GNU Lesser General Public License v3 (LGPLv3)", False),
        ("MIT", False),
    ],
)
def test_the_gpl_is_told_from_the_lesser_one(words: str, gpl: bool) -> None:
    assert Licence("x", "1", words, "core").gpl is gpl


def test_the_verb_says_so_to_people_and_to_programs() -> None:
    assert "Under the GPL: none" in CliRunner().invoke(main.app, ["licences"]).output
    listed = json.loads(CliRunner().invoke(main.app, ["licences", "--json"]).output)
    assert not any(one["gpl"] for one in listed["packages"])
