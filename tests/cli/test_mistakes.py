"""Mistakes that people make on the command line: each ends in one sentence that says what to do,
and a code.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import socket
import sqlite3
import subprocess
import sys
import tempfile
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from blindsight.cli import main
from blindsight.cli.options import EXAMPLES, FIRST

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
        f"blindsight budget grant --ledger {photos.parent / 'budget.db'} --dataset holiday "
        "--epsilon 8" in err
    )
    hint = err[err.index("blindsight budget grant") :].strip()
    assert say(hint.removeprefix("blindsight "))[0] == 0
    assert (
        say("protect photos --out index --features pixels --ledger budget.db --dataset holiday")[0]
        == 0
    )


MISTAKES = [
    # what is typed, the exit code, and what the answer must name
    ("hsah photos", 2, ("Did you mean", "protect")),
    ("protect --out x", 2, ("give a folder of photos", "--embeddings", "blindsight protect")),
    ("protect nosuch --out x", 2, ("nosuch is not a folder",)),
    ("protect empty --out x", 2, ("holds no images: it is empty",)),
    ("protect photos", 2, ("--out", "The folder to share", "For example: blindsight protect")),
    ("protect photos --out x --ledger none.db", 3, ("no budget yet", "blindsight budget grant")),
    ("protect photos --out x --ledger /nonexistent/dir/b.db", 2, ("/nonexistent/dir", "Create")),
    ("protect photos --out x --epsilon -3", 2, ("--epsilon must be a finite number above 0",)),
    ("protect photos --out x --epsilon abc", 2, ("'--epsilon': 'abc' is not a number",)),
    ("protect photos --out x --epsilon 1e9", 2, ("--allow-large-epsilon", "next to nothing")),
    ("protect photos --out x --epsilon 0", 2, ("--epsilon must be a finite number above 0",)),
    ("protect photos --out index --epsilon 4", 2, ("was made with --epsilon 8.0",)),
    ("protect photos --out x --unit person", 2, ("a bound per person", "--people says whose")),
    ("protect photos --out x --unit cell", 2, ("--unit must be one of 'record', 'bit'",)),
    ("protect photos --out index --encoder clip", 2, ("clip",)),
    ("protect photos --out index --people folder", 2, ("no persons", "--people and --most")),
    (
        "protect photos --out x --people people.csv:nosuch",
        2,
        ("people.csv has no column 'nosuch'", "patient"),
    ),
    ("protect photos --out x --most 3", 2, ("--most", "--people")),
    ("protect scans --out x", 2, ("2 DICOM files", "--people dicom", "--people none")),
    ("search photos photos/0.png", 2, ("not an index", "blindsight protect")),
    ("search index", 2, ("photos, --words, --like or --vector",)),
    ("search index people.csv", 2, ("people.csv is not an image",)),
    ("search index photos/0.png -k 0", 2, ("-k must be a whole number of at least 1",)),
    ("search index.vault photos/0.png", 2, ("is a vault", "for the owner only")),
    ("search index IMG_0001.HEIC", 4, ("IMG_0001.HEIC does not exist",)),
    ("search index --like nosuch.jpg", 2, ("--like nosuch.jpg", "blindsight index show")),
    ("search index --since 2019-13-01 photos/0.png", 2, ("'2019-13-01' is not a day", "YYYY-MM")),
    ("search index --words dog", 2, ("cannot be searched by words",)),
    (
        "search index --in Reisen/ photos/0.png",
        2,
        ("no photo's name begins with 'Reisen/'", "index show"),
    ),
    ("search index scans/0.dcm", 2, ("0.dcm",)),
    ("budget grant --ledger b.db --dataset photos --epsilon 4", 2, ("cannot be less than",)),
    ("budget grant --ledger b.db --dataset photos --epsilon eight", 2, ("is not a number",)),
    ("budget grant --ledger b.db --dataset photos --epsilon 1e9", 2, ("--allow-large-epsilon",)),
    ("budget grant --ledger b.db --epsilon 8", 2, ("'--dataset'", "For example", "--dataset")),
    ("budget grant --dataset photos --epsilon 8", 2, ("BLINDSIGHT_LEDGER", "blindsight.toml")),
    ("budget grant --ledger b.db --dataset n --epsilon 8 --unit foto", 2, ("--unit must be one",)),
    ("budget show", 2, ("'--ledger'", "blindsight.toml", "For example: blindsight budget show")),
    ("budget show --ledger nothere.db", 2, ("no ledger at", "nothere.db", "Grant a budget")),
    ("audit nosuch", 2, ("nosuch does not exist",)),
    ("tag apply nosuch.safetensors photos", 4, ("no tagger at nosuch.safetensors", "tag train")),
    ("tag start '' --out t.safetensors", 2, ("1 to 5000 words",)),
    (
        "tag train photos --labels people.csv --vocabulary a,b --epsilon 2 --out t.safetensors",
        2,
        ("people.csv has no column with labels: filename, patient", "people.csv:COLUMN"),
    ),
    ("serve --photos nosuch", 2, ("nosuch is not a folder",)),
    ("serve --host 0.0.0.0 --keys off", 2, ("Listen on 127.0.0.1",)),
    ("help nosuch", 2, ("No such command 'nosuch'",)),
    ("index show photos", 2, ("not an index",)),
    ("index show index nosuch", 2, ("no photo 'nosuch'",)),
    ("--json", 2, ("--json comes after the verb", "blindsight search ... --json")),
    ("--json budget show --ledger b.db", 2, ("--json comes after the verb", "budget")),
    ("budget --json show --ledger b.db", 2, ("blindsight budget show ... --json",)),
    ("--nosuch", 2, ("No such option",)),
]
ACCEPTED = [
    (
        "protect photos --out by-person --encoder pixels --people people.csv:patient --seed 1",
        ("per person", "3 images released"),
    ),
    ("audit index", ("ε = 8 is proven per record", "not refuted", "PRIVACY CARD")),
    ("protect photos --out index --unit photo", ("were there already",)),
    ("protect photos --out index --card", ("Privacy card", "assumptions", "neighbours")),
    ("search index --like 0.png -k 1", ("1 hit",)),
    ("search index photos/0.png -k 100000 --json", ('"hits"',)),
    ("budget grant --ledger b.db --dataset new --epsilon 8 --unit photo", ("per record",)),
    ("budget statement photos --ledger b.db", ("photos",)),
    ("help", ("Usage: ", "protect", "Exit codes")),
    ("help budget grant", ("budget grant [OPTIONS]", "--composition")),
    ("index show index", ("3 noisy codes", "0.png", "1.png", "codebook")),
    ("index show index 2.png", ("1 of 3 photos", "2.png")),
    ("--version", ("blindsight ",)),
]


@pytest.fixture(scope="module")
def first_hour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What somebody has after a first hour: photos, an index of them, a ledger, a table."""
    place = tmp_path_factory.mktemp("first-hour")
    for folder in ("photos", "empty", "scans"):
        (place / folder).mkdir()
    for number in range(3):
        pixels = np.full((24, 24, 3), 60 * number + 20, np.uint8)
        Image.fromarray(pixels).save(place / "photos" / f"{number}.png")
    for number in range(2):
        (place / "scans" / f"{number}.dcm").write_bytes(bytes(128) + b"DICM")
    (place / "people.csv").write_text("filename,patient\n0.png,a\n1.png,b\n2.png,c\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for line in (
            "budget grant --ledger b.db --dataset photos --epsilon 8",
            "protect photos --out index --encoder pixels --ledger b.db",
        ):
            made = CliRunner().invoke(main.app, shlex.split(line))
            assert made.exit_code == 0, made.output
    return place


def _lines(text: str) -> str:
    """Text without the frames and line ends of the terminal."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


@pytest.mark.parametrize(("line", "code", "named"), MISTAKES, ids=[line for line, *_ in MISTAKES])
def test_a_mistake_of_the_first_hour_is_told_what_to_do(
    say: Any,
    first_hour: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    code: int,
    named: tuple[str, ...],
) -> None:
    monkeypatch.chdir(first_hour)
    before = sorted(path.name for path in first_hour.iterdir())
    if line.startswith("protect photos --out x"):
        line += " --encoder pixels"
    said, out, err = say(line)
    assert said == code
    assert out == ""
    text = _lines(err)
    for words in named:
        assert words in text
    assert "ledger.grant(" not in text and "=True" not in text and "Errno" not in text
    assert set(before) >= {path.name for path in first_hour.iterdir()} - {"none.db", "x.vault"}


@pytest.mark.parametrize(("line", "named"), ACCEPTED, ids=[line for line, _ in ACCEPTED])
def test_what_a_newcomer_types_is_understood(
    say: Any,
    first_hour: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    named: tuple[str, ...],
) -> None:
    monkeypatch.chdir(first_hour)
    code, out, _ = say(line)
    assert code == 0
    for words in named:
        assert words in _lines(out)


def test_a_group_of_verbs_alone_lists_them(say: Any) -> None:
    code, out, _ = say("index")
    assert code == 2
    assert "index show release" in out and "duplicates" in out


def test_a_port_that_is_taken_is_named_with_what_to_do(say: Any, photos: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = say(f"serve --port {port} --state state")
    assert (code, out) == (2, "")
    assert f"port {port} on 127.0.0.1 cannot be used" in err and "another with --port" in err


def test_a_new_release_prints_four_lines_of_its_card(say: Any, photos: Path) -> None:
    code, out, _ = say("protect photos --out index --encoder pixels --names keep")
    assert code == 0
    lines = out.splitlines()
    assert [line.split("  ")[0].strip() or line.split()[0] for line in lines[1:4]] == [
        "released",
        "promise",
        "not",
    ]
    assert "and the photos' names" in lines[1] and not lines[4].startswith(" ")
    assert max(map(len, lines[:4])) <= 80


def test_dicom_files_are_released_once_somebody_said_whose_they_are(
    say: Any, first_hour: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The word is enough: what is then wrong with these files is another matter."""
    monkeypatch.chdir(first_hour)
    _, _, err = say("protect scans --out scans-index --encoder pixels --people none")
    assert "--people" not in err


def test_defaults_come_from_a_file_and_what_is_typed_comes_first(say: Any, photos: Path) -> None:
    Path("blindsight.toml").write_text(
        'ledger = "kept.db"\n[protect]\nepsilon = 2\nencoder = "pixels"\n'
        '[budget.grant]\ndataset = "photos"\n[workbench]\nport = 1\n'
    )
    code, _, err = say("budget grant --epsilon 8")
    assert (code, err) == (0, "note: defaults come from blindsight.toml.\n")
    code, out, _ = say("protect photos --out index --json")
    assert (code, json.loads(out)["guarantee"]["epsilon"]) == (0, 2)
    code, out, _ = say("protect photos --out other --epsilon 4 --json")
    assert (code, json.loads(out)["guarantee"]["epsilon"]) == (0, 4)
    assert "6 " in say("budget show")[1]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('legder = "b.db"', "'legder', which is no option"),
        ("[protect]\nrounds = 3", "'rounds', which is no option of protect"),
        ("[protect]\nprune = true", "--prune"),
        ("new-release = true", "--new-release"),
        ("[protcet]\nepsilon = 1", "no verb 'protcet'"),
        ("[protect", "is not a TOML file"),
        ("[protect]\nepsilon = 64", "--allow-large-epsilon"),
    ],
)
def test_a_file_of_defaults_with_a_mistake_is_refused(
    say: Any, photos: Path, text: str, named: str
) -> None:
    Path("blindsight.toml").write_text(text)
    code, _, err = say("protect photos --out index --encoder pixels")
    assert (code, named in err) == (2, True)
    assert not Path("index").exists()


def test_a_file_of_defaults_that_is_named_must_exist(
    say: Any, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLINDSIGHT_CONFIG", "elsewhere.toml")
    code, _, err = say("licences")
    assert (code, "elsewhere.toml, which is not a file" in err) == (2, True)


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
        "compare learn photos --features photos",
        "compare check photos",
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
        with closing(sqlite3.connect(tmp_path / "full.db")) as connection, connection:
            connection.execute("PRAGMA max_page_count = 2")
            connection.execute("CREATE TABLE rows (value TEXT)")
            connection.execute("INSERT INTO rows VALUES (?)", ("x" * 100_000,))

    def read_only() -> None:
        address = f"file:{tmp_path / 'full.db'}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as connection:
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

    def asks() -> None:
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.execute("SELECT * FROM nowhere")

    monkeypatch.setattr(main, "app", asks)
    code, _, err = say("")
    assert (code, "nowhere" in err) == (70, False)


def test_the_reference_states_every_exit_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
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


def test_a_typo_of_a_former_name_is_answered_by_the_present_one(say: Any) -> None:
    code, _, err = say("hsah photos")
    assert code == 2
    assert "'protect'" in err and "'hash'" not in err


def test_an_option_without_its_value_is_told_what_to_type(say: Any, photos: Path) -> None:
    code, _, err = say("search release --words")
    assert code == 2
    assert '--words "dog on a beach"' in _lines(err)


def test_photos_that_are_searched_are_not_named_as_the_place_of_an_index(
    say: Any, photos: Path
) -> None:
    code, _, err = say("search photos photos/0.png")
    assert code == 2
    assert "protect FOLDER --out INDEX, and search that" in err


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
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    known = set(project["optional-dependencies"])
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


def test_every_verb_accepts_offline_after_its_name() -> None:
    refusing = {
        path
        for path, command in LEAVES.items()
        if not any("--offline" in each.opts for each in command.params)
    }
    assert refusing == set()


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
