"""Thread limits before anything numeric is imported, examples that do not depend on the machine's
mood, and which tests share a process.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from blindsight.core import threads

threads.limit()
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

# No deadline, and examples may be slow to make: two busy cores are not a bug. In CI the same
# examples every time.
settings.register_profile(
    "blindsight",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("blindsight")


def pytest_configure(config: pytest.Config) -> None:
    # In the order below, not by how many tests a file has: what takes long must not come last.
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The workbench first: its tests share a process and take longer than any other file's."""
    items.sort(key=lambda item: not item.nodeid.startswith("tests/workbench/"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests stay in one process, and so do all of the workbench's: what they share is
    costly to make.

    (The mark xdist_group says so in vain: it renames tests by an attribute that pytest 9.2 no
    longer has.)
    """
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "tests/workbench" if file.startswith("tests/workbench/") else file

    return Together(config, log)
