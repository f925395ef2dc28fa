"""The demo on a smaller album: it fits 80 columns, leaves the report, works without a network, and
releases once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from blindsight.cli import main
from blindsight.core.errors import MissingData
from blindsight.data import builtin

KINDS = ("cat", "coffee", "retina", "tissue")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four photographs of seventeen, and no network: what words and tags need is not here."""
    monkeypatch.setattr("blindsight.audit.release._EPSILONS", (8.0,))
    monkeypatch.setattr(builtin, "ALBUM", {kind: builtin.ALBUM[kind] for kind in KINDS})

    def missing(*_: Any, **__: Any) -> Any:
        raise MissingData("no network.")

    monkeypatch.setattr("blindsight.encoders.words.get", missing)
    monkeypatch.setattr("blindsight.tagging.photos.imagenet_prior", missing)


def test_the_demo_fits_eighty_columns_and_leaves_its_report(place: Path) -> None:
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(
        main.app, ["demo", "--out", str(place / "o"), "--no-papers"]
    )
    assert shown.exit_code == 0, shown.output
    assert (
        max(len(line.rstrip()) for line in shown.output.splitlines() if str(place) not in line)
        <= 80
    )
    assert shown.output.count("Left out: ") == 2
    page = (place / "o" / "report.html").read_text()
    assert page.index("Search with and without protection") < page.index(
        "What comes back of your photos"
    )
    assert (place / "o" / "search.jpg").read_bytes()[:2] == b"\xff\xd8"


def test_a_second_run_releases_and_charges_nothing(place: Path) -> None:
    ran = CliRunner().invoke(main.app, ["demo", "--out", str(place / "o"), "--no-papers", "--json"])
    found = json.loads(ran.stdout)
    assert found["protected"]["released"] == 0
    assert (
        found["searched"]["right"]["without protection"]
        >= found["searched"]["right"]["protected"] - 1
    )
    assert found["attacked"]["epsilon"] == 8
