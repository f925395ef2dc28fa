"""Every single write, flush, rename, link, truncation and removal fails in turn, below Python and
SQLite alike.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
COMPILER = shutil.which("cc") or shutil.which("gcc")


@pytest.fixture(scope="session")
def shim(tmp_path_factory):
    if COMPILER is None or sys.platform != "linux":
        pytest.skip("needs Linux and a C compiler")
    library = tmp_path_factory.mktemp("shim") / "faults.so"
    subprocess.run(
        [COMPILER, "-shared", "-fPIC", "-O1", "-o", library, HERE / "faults.c", "-ldl"], check=True
    )
    return library


@pytest.mark.parametrize("scenario", ["file", "journal", "compaction", "spool", "ledger", "vault"])
def test_whatever_fails_nothing_acknowledged_is_lost_or_unreadable(shim, tmp_path, scenario):
    # In memory where that is possible: thousands of flushes test the order of things, not the
    # patience of a disk.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=memory, ignore_cleanup_errors=True) as base:
        done = subprocess.run(
            [sys.executable, str(HERE / "faults.py"), scenario, base],
            env={**os.environ, "LD_PRELOAD": str(shim), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=600,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 20, "the faults were not reached"
