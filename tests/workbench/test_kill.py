"""kill -9 in all work that releases: it goes on, what was stored stays as it was, and it is paid
once.

A few kills here; hundreds by `python -m benchmarks.privacy.kills 200`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import warm

ROOT = Path(__file__).parents[2]


def test_what_releases_is_killed_goes_on_and_is_paid_once() -> None:
    # A process of its own, which has no threads: it forks.
    command = ["-W", "ignore", "-m", "benchmarks.privacy.kills", "16"]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = warm.run(command, env=environment, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["of"] for each in found] == ["hash", "sketch", "tag", "workbench"]
    for each in found:
        assert each["kills"] >= 4
        assert each["released"] >= 40
    assert found[-1]["pieces"] >= 5, "each of the workbench's four jobs that release"
