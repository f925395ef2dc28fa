"""The demo on a smaller album: it fits 80 columns, leaves the report, works without a network, and
releases once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from blindsight.cli import main
from blindsight.core.errors import MissingData
from blindsight.data import catalogue
from blindsight.encoders import words as words_module
from blindsight.release import page

KINDS = ("cat", "coffee", "retina", "tissue")


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    """Four photographs of seventeen, and no network: what words and tags need is not here."""

    def missing(*_: Any, **__: Any) -> Any:
        raise MissingData("no network.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("blindsight.audit.release._EPSILONS", (8.0,))
        patch.setattr(catalogue, "ALBUM", {kind: catalogue.ALBUM[kind] for kind in KINDS})
        patch.setattr("blindsight.encoders.words.get", missing)
        patch.setattr("blindsight.encoders.words.words_available", lambda: False)
        patch.setattr("blindsight.tagging.photos.encoder_prior", missing)
        forget_words()
        yield
    forget_words()


def forget_words() -> None:
    """Forget what earlier tests of this process read of names and sentence vectors."""
    for value in (*vars(words_module).values(), page._words_block):
        if hasattr(value, "cache_clear"):
            value.cache_clear()


@pytest.fixture(scope="module")
def first_run(small: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The folder of a demo that ran once, and what it printed."""
    place = tmp_path_factory.mktemp("demo")
    words = ["demo", "--out", str(place / "o"), "--no-papers"]
    return place, CliRunner(env={"COLUMNS": "80"}).invoke(main.app, words)


def test_the_demo_fits_eighty_columns_and_leaves_its_report(
    first_run: tuple[Path, Result],
) -> None:
    place, shown = first_run
    assert shown.exit_code == 0, shown.output
    assert (
        max(len(line.rstrip()) for line in shown.output.splitlines() if str(place) not in line)
        <= 80
    )
    assert shown.output.count("Left out: ") == 3  # words, tags and statistics need public words
    steps = [line[0] for line in shown.output.splitlines() if line[:1].isdigit()]
    assert steps == list("1234567")
    end = shown.output[shown.output.index("Three things to look at") :]
    for what in ("report.html", "search.html", "blindsight serve"):
        assert what in end
    report = (place / "o" / "report.html").read_text()
    assert report.index("Search with and without protection") < report.index(
        "What can be reconstructed of your photos"
    )
    assert (place / "o" / "search.jpg").read_bytes()[:2] == b"\xff\xd8"


def test_a_second_run_releases_and_charges_nothing(first_run: tuple[Path, Result]) -> None:
    place, _ = first_run
    ran = CliRunner().invoke(main.app, ["demo", "--out", str(place / "o"), "--no-papers", "--json"])
    found = json.loads(ran.stdout)
    assert found["protected"]["released"] == 0
    assert (
        found["searched"]["right"]["without protection"]
        >= found["searched"]["right"]["protected"] - 1
    )
    assert found["attacked"]["epsilon"] == 8
