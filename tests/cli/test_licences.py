"""What Blindsight ships with may be given away."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from blindsight.cli import main
from blindsight.cli.licences import UNKNOWN, Licence, _licence, licences


def test_nothing_that_ships_is_under_the_gpl() -> None:
    assert [one for one in licences() if one.gpl] == []


def test_every_licence_is_known() -> None:
    """A package without a stated licence would pass as free of the GPL, whatever its files say."""
    assert [one.package for one in licences() if one.licence == UNKNOWN] == []


def test_a_licence_file_is_read_where_metadata_are_silent(tmp_path: Path) -> None:
    place = tmp_path / "x-1.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: x\nVersion: 1\nLicense: UNKNOWN\n"
    )
    (place / "RECORD").write_text("x-1.dist-info/METADATA,,\nx-1.dist-info/LICENSE,,\n")
    assert _licence(metadata.Distribution.at(place)) == UNKNOWN
    (place / "LICENSE").write_text("\n  GNU GENERAL PUBLIC LICENSE\n  Version 3\n")
    assert Licence("x", "1", _licence(metadata.Distribution.at(place)), "extra").gpl


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
