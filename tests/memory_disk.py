"""Temporary folders in memory, where a commit waits for no disk.

The state tests make hundreds of commits, each of which the vault and the ledger wait for. What they
test (kills of processes, older copies, lost files) does not depend on the disk. The fixture
`memory_path` stands where `tmp_path` would.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["folder_in_memory", "memory_path", "use_memory"]

_MEMORY = Path("/dev/shm")


def use_memory() -> None:
    """Put every temporary file of this process and of what it starts where pytest has its own
    (PYTEST_DEBUG_TEMPROOT): the Makefile names memory where it is large enough.

    The folder goes with the process, and with it what examples in pages leave behind.
    """
    root = os.environ.get("PYTEST_DEBUG_TEMPROOT")
    if not root:
        return
    os.environ.setdefault("RAY_TMPDIR", tempfile.gettempdir())  # its logs need no memory
    folder, owner = tempfile.mkdtemp(prefix="tests-", dir=root), os.getpid()
    os.environ["TMPDIR"] = tempfile.tempdir = folder

    def remove() -> None:
        if os.getpid() == owner:  # and not in a forked child
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    """A new folder, in memory where the system has a place for that."""
    parent = _MEMORY if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="blindsight-test-", dir=parent) as folder:
        yield Path(folder)


@pytest.fixture
def memory_path() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder
