"""Mistakes that people make on the command line: each ends in one sentence that says what to do,
and a code.
"""

from __future__ import annotations

import errno
import os
import shlex
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from PIL import Image

from blindsight.cli import main
from blindsight.cli.examples import EXAMPLES, FIRST

BLINDSIGHT = (sys.executable, "-m", "blindsight")
RUNS_UNTIL_STOPPED = {"serve"}


def _leaves(command: Any, path: str = "") -> list[tuple[str, Any]]:
    inner = getattr(command, "commands", {})
    own = [] if inner and path != "serve" else [(path, command)]
    return own + [
        leaf for name, one in inner.items() for leaf in _leaves(one, f"{path} {name}".strip())
    ]


LEAVES = {
    path: command
    for path, command in _leaves(typer.main.get_command(main.app))
    if path.split()[0] not in main.RENAMED
}


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command line in this process: (exit code, standard output, standard error)."""

    def run(line: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["blindsight", *shlex.split(line)])
        with pytest.raises(SystemExit) as stopped:
            main.run()
        said = capsys.readouterr()
        return int(stopped.value.code or 0), said.out, said.err

    return run


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(3):
        pixels = np.full((24, 24, 3), 60 * number + 20, np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def test_a_refusal_for_want_of_a_budget_says_the_whole_command(say: Any, photos: Path) -> None:
    code, out, err = say(
        "protect photos --out index --features pixels --ledger budget.db --dataset holiday"
    )
    assert code == 3
    assert out == ""  # no card before a refusal
    assert (
        f"blindsight ledger grant --ledger {photos.parent / 'budget.db'} --dataset holiday "
        "--epsilon 8" in err
    )
    hint = err[err.index("blindsight ledger grant") :].strip()
    assert say(hint.removeprefix("blindsight "))[0] == 0
    assert (
        say("protect photos --out index --features pixels --ledger budget.db --dataset holiday")[0]
        == 0
    )


def test_query_and_index_swapped_are_named(say: Any, photos: Path) -> None:
    assert say("protect photos --out index --features pixels")[0] == 0
    code, _, err = say("search photos/0.png index")
    assert code == 2
    assert "comes first" in err


@pytest.mark.parametrize(
    "line",
    [
        "train photos",
        "tag apply photos photos/0.png",
        "metric learn photos --features photos",
        "metric check photos",
        "audit photos",
        "search photos photos/0.png",
        "sketch recover photos",
        "budget show --ledger photos",
        "federate simulate --data photos",
        "protect photos/0.png --out index",
    ],
)
def test_a_folder_for_a_file_and_the_reverse_never_end_in_a_traceback(
    say: Any, photos: Path, line: str
) -> None:
    code, _, err = say(line)
    assert code in (2, 4, 5)
    assert err.startswith("blindsight: ")
    assert "Errno" not in err and len(err.splitlines()) == 1


def test_what_the_operating_system_refuses_becomes_a_sentence(
    say: Any, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, word in (
        (IsADirectoryError(21, "Is a directory", "photos"), "is a folder"),
        (NotADirectoryError(20, "Not a directory", "photos/0.png"), "is not a folder"),
        (FileNotFoundError(2, "No such file", "gone"), "does not exist"),
        (PermissionError(13, "Permission denied", "locked"), "permissions"),
        (OSError(28, "No space left on device"), "disk is full"),
        (OSError(28, "No space left on device", "key"), "disk is full while key was written"),
        (OSError(5, "Input/output error"), "Input/output error"),
        (MemoryError(), "not enough memory"),
    ):

        def fail(error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(main, "app", fail)
        code, _, err = say("")
        assert code == main.SYSTEM_ERROR == 5
        assert word in err and len(err.splitlines()) == 1


def test_a_full_disk_under_a_database_becomes_a_sentence(
    say: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real SQLITE_FULL, and a database that may only be read."""

    def overfull() -> None:
        with sqlite3.connect(tmp_path / "full.db") as connection:
            connection.execute("PRAGMA max_page_count = 2")
            connection.execute("CREATE TABLE rows (value TEXT)")
            connection.execute("INSERT INTO rows VALUES (?)", ("x" * 100_000,))

    def read_only() -> None:
        with sqlite3.connect(f"file:{tmp_path / 'full.db'}?mode=ro", uri=True) as connection:
            connection.execute("CREATE TABLE other (value TEXT)")

    for broken, word in ((overfull, "the disk is full"), (read_only, "permissions")):
        monkeypatch.setattr(main, "app", broken)
        code, _, err = say("")
        assert (code, word in err, "sqlite" in err.lower()) == (5, True, False)


def test_a_full_disk_while_a_vault_is_made_is_said(
    say: Any, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from blindsight.core import durable
    from blindsight.privacy import vault_store

    def full(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(durable, "write_file", full)
    code, _, err = say("protect photos --out index --features pixels")
    assert (code, "the disk is full" in err) == (5, True)
    monkeypatch.undo()
    monkeypatch.chdir(photos.parent)
    connect = vault_store._connect

    def small(path: Path) -> sqlite3.Connection:
        connection = connect(path)
        connection.execute("PRAGMA max_page_count = 3")
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(vault_store, "_connect", small)
        code, _, err = say("protect photos --out index --features pixels")
    assert (code, "the disk is full" in err, "database" in err) == (5, True, False)
    assert say("protect photos --out index --features pixels")[0] == 0


def test_a_mistake_of_ours_is_one_sentence_and_a_private_file(
    say: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def fail() -> None:
        raise KeyError("patient-4711.dcm")

    monkeypatch.setattr(main, "app", fail)
    code, out, err = say("")
    assert (code, out) == (main.INTERNAL_ERROR, "") and code == 70
    assert "KeyError" in err and "4711" not in err and "Traceback" not in err
    assert len(err.splitlines()) == 1
    [details] = tmp_path.glob("blindsight-error-*.txt")
    assert str(details) in err
    assert details.stat().st_mode & 0o777 == 0o600
    assert "Traceback" in details.read_text() and "4711" in details.read_text()


def test_an_error_of_a_database_that_nobody_refused_is_a_mistake_of_ours(
    say: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(
        main, "app", lambda: sqlite3.connect(":memory:").execute("SELECT * FROM nowhere")
    )
    code, _, err = say("")
    assert (code, "nowhere" in err) == (70, False)


def test_the_reference_states_every_exit_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "errors.md").read_text()
    codes = {0, 1, *main.EXIT_CODES.values(), main.SYSTEM_ERROR, main.INTERNAL_ERROR, 130, 141}
    for code in codes:
        assert f"| {code} |" in page
        assert f"| {code} |" in (main.__doc__ or "")


def test_the_settings_of_a_sketch_are_named_in_order(say: Any, photos: Path) -> None:
    code, _, err = say("sketch photos out.sketches --q Q99")
    assert code == 2
    places = [err.index(name) for name in ("Q1", "Q2", "Q9", "Q10", "Q12") if name in err]
    assert places == sorted(places)


@pytest.mark.parametrize("line", ["serch", "tag aply", "budget grnt", "serve key ad"])
def test_a_typo_is_answered_by_one_suggestion(say: Any, line: str) -> None:
    code, _, err = say(line)
    assert code == 2
    assert err.lower().count("did you mean") == 1


def test_what_a_verb_needs_is_said_whole_and_before_anything_is_written(
    say: Any, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts of an extra are not found missing one after the other."""
    monkeypatch.setitem(sys.modules, "skimage", None)
    code, out, err = say("demo")
    assert (code, out) == (4, "")
    assert "skimage" in err and f"pip install 'blindsight[{main.EXTRAS['demo']}]'" in err
    assert not (photos.parent / "out").exists()


def test_extras_that_verbs_name_exist() -> None:
    from importlib import metadata

    known = set(metadata.metadata("blindsight").get_all("Provides-Extra") or ())
    assert {extra for named in main.EXTRAS.values() for extra in named.split(",")} <= known
    assert set(main.EXTRAS) <= set(main.VERBS)


@pytest.mark.parametrize("line", ["licences", "licences --json"])
def test_a_reader_that_leaves_is_not_a_refuted_claim(line: str) -> None:
    """`blindsight audit index | head`: exit code 1 would fail a build that checks for refuted
    claims.
    """
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*BLINDSIGHT, *shlex.split(line)],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr


def test_an_impossible_place_or_number_is_refused_before_anything_is_made(
    say: Any, photos: Path
) -> None:
    code, _, err = say("protect photos --out index --features pixels --cells 1")
    assert (code, "--cells must be at least 2" in err) == (2, True)
    code, out, err = say("demo --out photos/0.png")
    assert (code, out, "is a file" in err) == (2, "", True)
    code, _, err = say("serve --photos nowhere")
    assert (code, "nowhere is not a folder" in err) == (2, True)


def test_bits_and_cells_are_two_options(say: Any, photos: Path) -> None:
    code, _, err = say("protect photos --out index --features pixels --bits 16")
    assert (code, "--cells" in err) == (2, True)
    code, _, err = say(
        "protect photos --out index --features pixels --method phashing-lsh --cells 16"
    )
    assert (code, "--bits" in err) == (2, True)
    assert say("protect photos --out index --features pixels --cells 4")[0] == 0


def test_alone_it_says_what_to_do_first(say: Any) -> None:
    assert say("") == (0, FIRST + "\n", "")


def test_every_verb_speaks_json_unless_it_runs_until_it_is_stopped() -> None:
    silent = {
        path
        for path, one in LEAVES.items()
        if not any("--json" in each.opts for each in one.params)
    }
    assert silent == RUNS_UNTIL_STOPPED


def test_every_verb_shows_examples_of_options_that_exist() -> None:
    assert set(EXAMPLES) >= set(LEAVES)
    for path, command in LEAVES.items():
        known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {
            "--help"
        }
        assert command.epilog and "Examples" in command.epilog
        for line in EXAMPLES[path]:
            assert line.startswith(f"blindsight {path}".removesuffix(" make"))
            assert {
                word.split("=")[0] for word in shlex.split(line) if word.startswith("-")
            } <= known


@pytest.mark.parametrize("group", sorted({path.split()[0] for path in LEAVES if " " in path}))
def test_every_group_shows_what_to_type(say: Any, group: str) -> None:
    code, out, _ = say(f"{group} --help")
    assert code == 0
    assert f"blindsight {group}" in out[out.index("Examples") :]


def test_help_fills_its_lines_whatever_the_width(say: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A docstring's own line ends are not the terminal's: no paragraph is cut in the middle of a
    line.
    """
    for path, command in LEAVES.items():
        assert all("\n" not in part for part in (command.help or "").split("\n\n")), path


def test_what_is_said_first_fits_eighty_columns() -> None:
    assert max(map(len, FIRST.splitlines())) <= 80


def test_completion_is_offered_for_the_shell(say: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    code, out, _ = say("--show-completion bash")
    assert code == 0
    assert "complete" in out


def test_help_says_the_exit_codes(say: Any) -> None:
    code, out, _ = say("--help")
    assert code == 0
    assert "Exit codes" in out


@pytest.mark.parametrize(("former", "present"), sorted(main.RENAMED.items()))
def test_a_former_name_still_works_and_says_the_present_one(
    say: Any, former: str, present: str
) -> None:
    code, out, err = say(f"{former} --help")
    assert code == 0 and f"blindsight {present}" in out[out.index("Examples") :]
    assert f"'{former}' is now called '{present}'" in err
    assert former not in main.VERBS and present in main.VERBS
