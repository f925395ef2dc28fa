"""What the tests of this room share: a cache and a data folder of their own, and a measure of
memory.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BLINDSIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BLINDSIGHT_DATA", str(tmp_path / "data"))
    return tmp_path


@pytest.fixture
def little_memory() -> Callable[..., object]:
    @contextmanager
    def measured(megabytes: int = 32) -> Iterator[None]:
        tracemalloc.start()
        try:
            yield
            assert tracemalloc.get_traced_memory()[1] < megabytes << 20
        finally:
            tracemalloc.stop()

    return measured
