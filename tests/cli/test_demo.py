"""The demo on a smaller album: it fits 80 columns, leaves the report, works without a network, and
releases once.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from blindsight.cli import main
from blindsight.data import catalogue, fetch
from blindsight.encoders import words as words_module
from blindsight.release import page

KINDS = ("cat", "coffee", "retina", "tissue")


@pytest.fixture(autouse=True, scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[object]]:
    """Four photographs of seventeen, an empty cache, and no network: what words and tags need is
    not here. Yields what was asked of the network.
    """
    requests: list[object] = []

    def ask(*arguments: object, **_: object) -> None:
        requests.append(arguments)
        raise OSError("the network was asked")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("blindsight.audit.release._EPSILONS", (8.0,))
        patch.setattr(catalogue, "ALBUM", {kind: catalogue.ALBUM[kind] for kind in KINDS})
        patch.setattr(fetch, "download", ask)
        patch.setattr(socket.socket, "connect", ask)
        patch.setattr(socket, "getaddrinfo", ask)
        patch.setenv("BLINDSIGHT_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("BLINDSIGHT_OFFLINE", "0")
        patch.delenv("BLINDSIGHT_WEIGHTS", raising=False)
        forget_words()
        yield requests
    forget_words()


def forget_words() -> None:
    """Forget what earlier tests of this process read of names and sentence vectors."""
    for value in (*vars(words_module).values(), page._words_block):
        if hasattr(value, "cache_clear"):
            value.cache_clear()


@pytest.fixture(scope="module")
def first_run(asked: list[object], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The folder of a demo that ran once, offline, and what it printed."""
    place = tmp_path_factory.mktemp("demo")
    words = ["demo", "--offline", "--out", str(place / "o"), "--no-papers"]
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


def test_offline_the_demo_runs_with_what_is_installed_and_says_how_to_get_what_is_missing(
    first_run: tuple[Path, Result], asked: list[object]
) -> None:
    _, shown = first_run
    said = " ".join(shown.output.split())
    assert asked == []
    assert "Left out: class-names is not on this machine (1.5 MB, package open-clip-torch" in said
    assert "On a machine with a network run: blindsight data get words." in said
    assert said.count("it needs the files that step 4 could not find") == 2  # tags, statistics


def test_what_the_demo_says_to_run_fetches_all_that_words_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLINDSIGHT_CACHE", str(tmp_path))
    for recipe in words_module.WORDS:
        (tmp_path / "sets" / recipe.name).mkdir(parents=True)
    ran = CliRunner().invoke(main.app, ["data", "get", "words", "--json"])
    assert json.loads(ran.stdout) == {
        "name": "words",
        "folders": [str(tmp_path / "sets" / recipe.name) for recipe in words_module.WORDS],
    }


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
