"""The script that repeats the suite counts what really failed."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.suite import busy_processes, read_report, run_suite

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
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir=.", "-p"]
    command += ["no:cacheprovider", "-p", "no:randomly", "-p", "no:schemathesis", "test_some.py"]
    with busy_processes(1):
        red = run_suite(tmp_path, command, {"SUITE": "red"})
    assert (red.passed, red.skipped, red.exit_code, red.green) == (2, 1, 1, False)
    assert red.failed == ("test_some::test_fails", "test_some::test_each[2]")
    green = run_suite(tmp_path, command, {"SUITE": "green"})
    assert (green.passed, green.skipped, green.failed, green.green) == (4, 1, (), True)
    assert read_report(tmp_path / "suite.xml") == (4, 1, ())
    assert list(green.folders) == ["test_some"] and 0 <= green.folders["test_some"] < green.seconds
    empty = tmp_path / "empty"
    empty.mkdir()
    lost = run_suite(empty, [sys.executable, "-c", "raise SystemExit(3)"], {})
    assert not lost.green and "code 3" in str(lost)
