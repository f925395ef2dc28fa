"""What Blindsight ships with may be given away."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from blindsight.cli import main
from blindsight.cli.licences import LIST, UNKNOWN, Licence, _licence, bill_of_materials, licences


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
    (place / "RECORD").write_text("x.py,,\nx-1.dist-info/METADATA,,\nx-1.dist-info/LICENSE,,\n")
    (tmp_path / "x.py").touch()
    assert _licence(metadata.Distribution.at(place)) == UNKNOWN
    (place / "LICENSE").write_text("\n  GNU GENERAL PUBLIC LICENSE\n  Version 3\n")
    assert Licence("x", "1", _licence(metadata.Distribution.at(place)), "extra").gpl


def test_a_package_without_files_of_its_own_needs_no_licence(tmp_path: Path) -> None:
    """As `cuda-toolkit`, which PyTorch's build for CUDA brings."""
    folder = tmp_path / "x-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.4\nName: x\nVersion: 1\n")
    (folder / "RECORD").write_text("x-1.dist-info/METADATA,,\n")
    assert _licence(metadata.Distribution.at(folder)) == LIST
    (folder / "RECORD").write_text("x-1.dist-info/METADATA,,\nx.py,,\n")
    (tmp_path / "x.py").touch()
    assert _licence(metadata.Distribution.at(folder)) == UNKNOWN


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


def test_the_bill_of_materials_lists_every_package_with_what_it_needs() -> None:
    bill = json.loads(CliRunner().invoke(main.app, ["licences", "--sbom"]).output)
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert bill["metadata"]["component"]["name"] == "blindsight"
    listed = {one["name"]: one for one in bill["components"]}
    assert listed.keys() == {one.package for one in licences()}
    for one in licences():
        component = listed[one.package]
        assert component["version"] == one.version
        assert component["licenses"] == [{"license": {"name": one.licence}}]
        assert component["purl"].startswith("pkg:pypi/")
        assert component["purl"].endswith(f"@{one.version}")
    refs = {one["bom-ref"] for one in bill["components"]}
    assert len(refs) == len(bill["components"])
    graph = {one["ref"]: one["dependsOn"] for one in bill["dependencies"]}
    assert graph.keys() == refs | {bill["metadata"]["component"]["bom-ref"]}
    assert all(need in refs for needs in graph.values() for need in needs)
    assert any("numpy@" in need for need in graph[bill["metadata"]["component"]["bom-ref"]])
    assert bill_of_materials() == bill, "the same installation gives the same document"
