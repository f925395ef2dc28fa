"""Repeat the test suite in fresh clones with an empty home, idle or beside busy processes, and
count failures.

    python -m benchmarks.suite --runs 5               # on an idle machine
    python -m benchmarks.suite --runs 5 --busy 4      # beside four processes that never rest
    python -m benchmarks.suite --runs 6 --at-once 2   # two at a time (6 GB each)
    python -m benchmarks.suite --runs 3 --seed 1      # in random orders, from seeds 1, 2, 3
    python -m benchmarks.suite --runs 1 --alone       # each test in a process of its own

Each run clones the last commit, so that what is not committed is not tested. A clone uses the
packages of the environment that runs this script; with --install it makes an environment of its
own, as `make test` does for a newcomer. A failure is written to suite-failures-N.log as soon as it
is known, and the whole output of a run that failed to suite-failed-N.log when it has ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import site
import subprocess
import sys
import tempfile
import time
import venv
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from xml.etree import ElementTree

__all__ = ["Run", "clone", "main", "read_report", "read_times", "repeat", "run_suite"]

ROOT = Path(__file__).resolve().parents[1]
_SCRIPTS = ("blindsight", "flower-superlink", "flower-supernode", "mkdocs", "pip", "ruff", "mypy")


@dataclass(frozen=True)
class Run:
    """One run of the suite.

    Parameters:
        passed: how many tests passed.
        skipped: how many tests were skipped.
        failed: the names of those that failed.
        seconds: how long the run took.
        exit_code: of pytest.
        folders: the seconds that the tests of each folder took, over all workers.
        cpu_seconds: processor time of the run and of all processes that it waited for.
    """

    passed: int
    skipped: int
    failed: tuple[str, ...]
    seconds: float
    exit_code: int
    folders: dict[str, float] = field(default_factory=dict)
    cpu_seconds: float = 0.0

    @property
    def green(self) -> bool:
        """Whether pytest ended well and no test failed."""
        return self.exit_code == 0 and not self.failed

    def __str__(self) -> str:
        counts = f"{self.passed} passed, {self.skipped} skipped, {len(self.failed)} failed"
        ending = "" if self.exit_code in (0, 1) else f" (pytest ended with code {self.exit_code})"
        work = sum(self.folders.values())
        times = f"{work:.0f} s of tests, {self.cpu_seconds:.0f} s of processor time"
        return f"{counts} in {self.seconds:.0f} s ({times}){ending}"


def clone(source: Path, target: Path) -> Path:
    """Clone a repository and give it an environment that sees the clone's code and this
    environment's packages; return its Python.
    """
    subprocess.run(["git", "clone", "-q", str(source), str(target)], check=True)
    venv.create(target / ".venv", with_pip=False)
    folders = [target / "src", *map(Path, site.getsitepackages()), *_added_folders()]
    [packages] = (target / ".venv" / "lib").glob("python*/site-packages")
    (packages / "clone.pth").write_text("".join(f"{folder}\n" for folder in folders))
    binaries = target / ".venv" / "bin"
    python = binaries / "python"
    for name in _SCRIPTS:
        script = Path(sys.executable).parent / name
        if script.exists() and script.read_bytes()[:2] == b"#!":
            body = script.read_text().partition("\n")[2]
            (binaries / name).write_text(f"#!{python}\n{body}")
            (binaries / name).chmod(0o755)
    return python


def _added_folders() -> list[Path]:
    """Folders of packages that path files of this environment add, without the repository's own."""
    folders = [Path(entry) for entry in sys.path if entry.endswith("-packages")]
    return [folder for folder in folders if str(folder) not in site.getsitepackages()]


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep so many processes at full load."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def read_report(path: Path) -> tuple[int, int, tuple[str, ...]]:
    """How many tests of a JUnit report passed and were skipped, and the names of those that
    failed.
    """
    passed, skipped, failed = 0, 0, []
    for case in ElementTree.parse(path).iter("testcase"):  # noqa: S314  (pytest wrote it just now)
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failed.append(f"{case.get('classname', '').replace('.', '/')}::{case.get('name')}")
        elif "skipped" in kinds:
            skipped += 1
        else:
            passed += 1
    return passed, skipped, tuple(failed)


def read_times(path: Path) -> dict[str, float]:
    """The seconds that the tests of each folder took in a JUnit report, the longest first."""
    seconds: dict[str, float] = {}
    for case in ElementTree.parse(path).iter("testcase"):  # noqa: S314  (pytest wrote it just now)
        parts = case.get("classname", "").split(".")
        folder = "/".join(parts[:2])
        seconds[folder] = seconds.get(folder, 0.0) + float(case.get("time", 0))
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def run_suite(folder: Path, command: list[str], environment: dict[str, str]) -> Run:
    """Run pytest by this command in a clone; its output goes to `folder`/suite.log."""
    report, log = folder / "suite.xml", folder / "suite.log"
    start = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, f"--junitxml={report}"],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - start
    counts = read_report(report) if report.exists() else (0, 0, ())
    return Run(
        *counts,
        seconds=seconds,
        exit_code=process.returncode,
        folders=read_times(report) if report.exists() else {},
        cpu_seconds=usage.ru_utime + usage.ru_stime,
    )


def repeat(runs: int, at_once: int, run: Callable[[int], Run], *, load: str = "") -> list[Run]:
    """Run the suite again and again, some runs at the same time, and print each when it ends.

    Parameters:
        runs: how many.
        at_once: how many of them run at the same time.
        run: makes the run of a number, from 0.
        load: what else keeps the machine busy; it is printed.

    Returns:
        The runs by their numbers.
    """
    beside = ", ".join(filter(None, [f"{at_once} at once" if at_once > 1 else "", load]))

    def one(number: int) -> Run:
        made = run(number)
        lines = [f"run {number + 1} of {runs}{beside and f' ({beside})'}: {made}"]
        print("\n".join([*lines, *(f"  {name}" for name in made.failed)]), flush=True)
        return made

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(one, range(runs)))


def main(arguments: list[str] | None = None) -> int:
    """Repeat the suite, print each run and each failing test; 1 if any run failed."""
    parser = argparse.ArgumentParser(prog="benchmarks.suite", description=__doc__.split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--busy", type=int, default=0, help="processes at full load beside it")
    parser.add_argument("--at-once", type=int, default=1, help="runs at the same time")
    parser.add_argument("--workers", type=int, default=3, help="processes of the suite itself")
    parser.add_argument("--seed", type=int, help="random orders, from this seed on")
    parser.add_argument("--alone", action="store_true", help="each test in a process of its own")
    parser.add_argument("--sample", type=int, help="with --alone: so many tests, at random")
    parser.add_argument("--install", action="store_true", help="a new environment in each clone")
    parser.add_argument("--json", type=Path, help="write the runs to this file")
    parser.add_argument("tests", nargs="*", help="files and folders; all by default")
    options = parser.parse_args(arguments)
    if options.sample is not None and not options.alone:
        parser.error("--sample goes with --alone")

    def run(number: int) -> Run:
        with tempfile.TemporaryDirectory(prefix="suite-", ignore_cleanup_errors=True) as folder:
            target, home = Path(folder) / "clone", Path(folder) / "home"
            home.mkdir()
            if options.install:
                subprocess.run(["git", "clone", "-q", str(ROOT), str(target)], check=True)
                subprocess.run(["make", ".venv/.installed"], cwd=target, check=True)
                python = target / ".venv" / "bin" / "python"
            else:
                python = clone(ROOT, target)
            command = [str(python), "-m", "pytest", "-p", "forked"]
            command += ["--workers", str(options.workers), *options.tests]
            if options.seed is not None:
                command += ["-p", "randomly", f"--randomly-seed={options.seed + number}"]
            if options.alone:
                command += ["-p", "alone", f"--sample-seed={number}"]
                command += [] if options.sample is None else [f"--sample={options.sample}"]
            failures = Path.cwd() / f"suite-failures-{number + 1}.log"
            command += [f"--failures={failures}"]
            made = run_suite(target, command, {**os.environ, "HOME": str(home)})
            if not made.green:
                kept = Path.cwd() / f"suite-failed-{number + 1}.log"
                kept.write_bytes((target / "suite.log").read_bytes())
                print(f"the output of run {number + 1} is in {kept}", flush=True)
            return made

    load = f"beside {options.busy} busy processes" if options.busy else ""
    with busy_processes(options.busy):
        runs = repeat(options.runs, options.at_once, run, load=load)
    failures = Counter(name for run in runs for name in run.failed)
    bad = sum(not run.green for run in runs)
    for name, taken in runs[-1].folders.items() if runs else ():
        print(f"{taken:8.1f} s  {name}")
    print(f"{bad} of {len(runs)} runs failed; {options.at_once} at once{load and f', {load}'}")
    for name, times in failures.most_common():
        print(f"  {times} times: {name}")
    if options.json:
        options.json.write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
