"""The command line's frame: it answers at once, fails in one sentence and with the documented
code.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from blindsight.cli import main
from blindsight.core.errors import (
    BlindsightError,
    BudgetExceeded,
    InvalidParameter,
    MissingData,
    MissingDependency,
)


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
