"""Temporary folders in memory, where a commit waits for no disk.

The state tests make hundreds of commits, each of which the vault and the ledger wait for. What they
test (kills of processes, older copies, lost files) does not depend on the disk. The fixture
`memory_path` stands where `tmp_path` would.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["folder_in_memory", "memory_path"]

_MEMORY = Path("/dev/shm")


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
