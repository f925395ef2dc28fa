"""A file system of a few hundred kilobytes that really runs full, for tests that may mount one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def small_disk(folder: Path) -> Iterator[Callable[[], object]]:
    """600 kB: writes fail with "no space left on device" until the yielded function makes room."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "none", str(folder)], check=True)
    try:
        yield lambda: subprocess.run(["mount", "-o", "remount,size=4m", str(folder)], check=True)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def can_mount() -> bool:
    """Whether this machine lets us mount a small disk (root in a full machine; not in most
    containers).
    """
    if os.getuid() != 0 or sys.platform != "linux":
        return False
    probe = "mount -t tmpfs none /tmp"
    return subprocess.run(["unshare", "-m", "sh", "-c", probe], capture_output=True).returncode == 0
