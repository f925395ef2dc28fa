"""The script that repeats the suite counts what really failed."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path

import pytest

from benchmarks.suite import Run, busy_processes, read_report, repeat, run_suite

PYTEST = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir=."]
PYTEST += ["-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:schemathesis"]
TESTS = """
import os, pytest
def test_passes(): pass
def test_skipped(): pytest.skip("not here")
def test_fails(): assert os.environ["SUITE"] == "green"
@pytest.mark.parametrize("n", [1, 2])
def test_each(n): assert n == 1 or os.environ["SUITE"] == "green"
"""


def test_failures_are_counted_and_named(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    command = [*PYTEST, "test_some.py"]
    with busy_processes(1):
        red = run_suite(tmp_path, command, {"SUITE": "red"})
    assert (red.passed, red.skipped, red.exit_code, red.green) == (2, 1, 1, False)
    assert red.failed == ("test_some::test_fails", "test_some::test_each[2]")
    green = run_suite(tmp_path, command, {"SUITE": "green"})
    assert (green.passed, green.skipped, green.failed, green.green) == (4, 1, (), True)
    assert read_report(tmp_path / "suite.xml") == (4, 1, ())
    assert list(green.folders) == ["test_some"] and 0 <= green.folders["test_some"] < green.seconds
    assert green.cpu_seconds > 0 and f"{green.cpu_seconds:.0f} s of processor time" in str(green)
    empty = tmp_path / "empty"
    empty.mkdir()
    lost = run_suite(empty, [sys.executable, "-c", "raise SystemExit(3)"], {})
    assert not lost.green and "code 3" in str(lost)


LEANING = """
import os
def test_first(): os.environ["LEFT_BEHIND"] = "yes"
def test_leans_on_the_first(): assert "LEFT_BEHIND" in os.environ
def test_ends_its_process(): os._exit(3)
"""


def test_a_test_that_leans_on_another_fails_alone(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(LEANING)
    tests = Path(__file__).parents[1]
    command = [*PYTEST, "-p", "alone", "test_some.py"]
    alone = run_suite(tmp_path, command, {"PYTHONPATH": str(tests)})
    assert alone.passed == 1
    assert alone.failed == (
        "test_some::test_leans_on_the_first",
        "test_some::test_ends_its_process",
    )
    assert "ended with code 3 before it reported" in (tmp_path / "suite.log").read_text()
    sample = run_suite(tmp_path, [*command, "--sample=1"], {"PYTHONPATH": str(tests)})
    assert sample.passed + len(sample.failed) == 1


GROUPED = """
import os, pathlib, pytest, time
@pytest.fixture(scope="session", autouse=True)
def both_workers_have_begun():
    pathlib.Path(os.environ["WORKERS"], str(os.getpid())).touch()
    while len(os.listdir(os.environ["WORKERS"])) < 2: time.sleep(0.01)
@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    yield tmp_path_factory.mktemp("kept")
    print("the session's fixture ends")
def test_writes(folder): (folder / "pid").write_text(str(os.getpid()))
def test_reads(folder): assert (folder / "pid").read_text() == str(os.getpid())
def test_is_forked(): assert str(os.getpid()) != os.environ["MAIN"]
def test_skipped(): pytest.skip("not here")
def test_fails(tmp_path): print(tmp_path); assert os.environ["SUITE"] == "green"
"""
MAIN = """
import os, tempfile
os.environ["MAIN"], os.environ["WORKERS"] = str(os.getpid()), tempfile.mkdtemp(dir=".")
"""


def test_forked_workers_run_whole_files_and_report_as_one_process_would(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"test_{name}.py").write_text(GROUPED)
    (tmp_path / "conftest.py").write_text(MAIN)
    tests = str(Path(__file__).parents[1])
    command = [*PYTEST, "-rs", "-p", "forked", "--workers=2", "--basetemp=temporary"]
    command += ["--failures=failures.log"]
    red = run_suite(tmp_path, command, {"SUITE": "red", "PYTHONPATH": tests})
    assert (red.passed, red.skipped, red.exit_code) == (9, 3, 1)
    assert sorted(red.failed) == [f"test_{name}::test_fails" for name in ("a", "b", "c")]
    assert (tmp_path / "failures.log").read_text().count("test_fails\n") == 3
    log = (tmp_path / "suite.log").read_text()
    assert "SKIPPED [1] test_a.py:14: not here" in log
    assert len(set(re.findall(r"temporary/(worker\d)/test_fails", log))) == 2  # both had work
    green = run_suite(tmp_path, command, {"SUITE": "green", "PYTHONPATH": tests})
    assert (green.passed, green.skipped, green.failed, green.exit_code) == (12, 3, (), 0)


def test_a_worker_that_dies_fails_its_test_and_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(LEANING)
    (tmp_path / "test_other.py").write_text("def test_passes(): pass")
    tests = str(Path(__file__).parents[1])
    died = run_suite(tmp_path, [*PYTEST, "-p", "forked", "--workers=2"], {"PYTHONPATH": tests})
    assert died.failed == ("test_some::test_ends_its_process",)
    assert died.exit_code == 1
    log = (tmp_path / "suite.log").read_text()
    assert "its process ended with code 3" in log
    assert "died while it ran test_some.py::test_ends_its_process" in log


def test_runs_at_once_are_a_load_for_each_other_and_the_lines_say_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    both = threading.Barrier(2)

    def run(number: int) -> Run:
        both.wait(600)  # broken, which is an error, unless two runs are there at the same time
        failed = ("tests/a.py::test_b",) if number == 2 else ()
        return Run(9, 0, failed, seconds=1.0, exit_code=int(bool(failed)))

    runs = repeat(4, 2, run, load="beside 3 busy processes")
    assert [made.green for made in runs] == [True, True, False, True]
    lines = capsys.readouterr().out.splitlines()
    assert (
        sum(" of 4 (2 at once, beside 3 busy processes): 9 passed" in line for line in lines) == 4
    )
    assert "  tests/a.py::test_b" in lines
