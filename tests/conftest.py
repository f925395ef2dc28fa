"""Thread limits before anything numeric is imported, examples that do not depend on the machine's
mood, the real parts, and which tests share a process.
"""

from __future__ import annotations

import ast
import functools
import gc
import logging
import os
from collections.abc import Generator
from pathlib import Path

import pytest
import typer.testing
from hypothesis import HealthCheck, settings

import warm
from blindsight.app.hosting import limit_threads
from memory_disk import memory_path, use_memory
from real_parts import (
    PART_OF,
    RAY_SETTINGS,
    browser,
    end_ray,
    fresh_database,
    milvus,
    postgresql,
    ray_cluster,
    words,
)

__all__ = [
    "browser",
    "fresh_database",
    "memory_path",
    "milvus",
    "postgresql",
    "ray_cluster",
    "words",
]

gc.disable()  # while modules are imported and tests collected: almost all of it stays
use_memory()
limit_threads()
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.update(RAY_SETTINGS)

# No deadline, and examples may be slow to make: two busy cores are not a bug. In CI the same
# examples every time.
settings.register_profile(
    "blindsight",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("blindsight")

# Some 150 commands are made of their functions' signatures once, not for each command that a test
# runs: this took more than half of the time of most tests of the command line. (`main.run` makes
# them anew: which options there are depends on the environment.)
typer.testing._get_command = functools.cache(typer.testing._get_command)
# Where they are made anew, each function's signature is read once: this is most of the work.
typer.main.get_params_from_function = functools.cache(typer.main.get_params_from_function)

ROOT = Path(__file__).parents[1]
# Groups that take longest, in the order in which they are given out: what takes long must not come
# last, or one worker rests while the other works through it. `make suite` prints the times.
LONGEST = (
    "real parts",
    "tests/workbench/test_together.py",
    "tests/docs/test_pages.py",
    "tests/app/test_state_matrix.py",
    "tests/workbench/test_chromium.py",
    "tests/workbench/test_state.py",
    "tests/core/test_faults.py",
    "tests/workbench/test_protect.py",
    "tests/audit/test_source_mutants.py",
    "tests/workbench/test_people_and_tags.py",
    "tests/cli/test_demo.py",
    "tests/release/test_page.py",
    "tests/audit/test_verdicts.py",
    "tests/workbench/test_kill.py",
    "tests/audit/test_door_audit.py",
    "tests/docs/test_packaging.py",
    "tests/audit/test_release.py",
    "tests/benchmarks/test_tagging.py",
    "tests/benchmarks/test_growth.py",
    "tests/audit/test_bounds.py",
    "tests/cli/test_mistakes.py",
    "tests/workbench/test_server.py",
    "tests/workbench/test_jobs.py",
)


@functools.cache
def group_of(file: str) -> str:
    """The tests that run in one worker with those of `file`.

    A file's tests stay together: what they share is costly to make. All files that use a real part
    other than Chromium are one group: each part is started once, and no two of them fight over the
    machine's cores.
    """
    parts = _parts_of((ROOT / file).read_text(encoding="utf-8"))
    return "real parts" if parts - {"chromium"} else file


def _parts_of(source: str) -> set[str]:
    """The real parts that a file of tests uses, by its fixtures and by marks `real("part")`."""
    if not any(name in source for name in (*PART_OF, "pytest.mark.real")):
        return set()
    parts = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            parts |= {PART_OF[arg.arg] for arg in node.args.args if arg.arg in PART_OF}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.real":
            parts |= {ast.literal_eval(arg) for arg in node.args}
    return parts


def pytest_configure() -> None:
    warm.start()


@pytest.hookimpl(optionalhook=True)
def pytest_test_group(item: pytest.Item) -> str:
    """Whole groups run in one worker (tests/forked.py)."""
    return group_of(item.nodeid.partition("::")[0])


@pytest.hookimpl(trylast=True)  # after a random order was chosen
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest groups first, and the tests of a group one after another."""
    groups = [group_of(item.nodeid.partition("::")[0]) for item in items]
    rank: dict[str, int] = {}
    for group in (*LONGEST, *groups):
        rank.setdefault(group, len(rank))
    order = sorted(range(len(items)), key=lambda number: rank[groups[number]])
    items[:] = [items[number] for number in order]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """No test leaves handlers of log records to the next: their streams are closed by then, and
    each record would print an error.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        return (yield)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


@pytest.hookimpl(trylast=True)  # after the fixtures
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Ray ends with the last test of its group."""
    following = nextitem and group_of(nextitem.nodeid.partition("::")[0])
    if group_of(item.nodeid.partition("::")[0]) == "real parts" != following:
        end_ray()


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.getoption("workers", 1) > 1:
        warm.prepare()  # once, for all workers
    # Modules and collected tests stay: the garbage collector need not look at them again and again,
    # nor at what a test made after every 700 objects.
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)
