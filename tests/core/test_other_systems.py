"""Without what macOS and Windows do not have, Blindsight protects, searches, opens and attacks.

These are not those systems: `other_systems` says what is imitated. It runs in a process of its own,
because modules must be hidden before they are imported.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SYSTEMS = ("macos", "windows")


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("systems")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("other_systems.py"))],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return {name: json.loads((folder / f"{name}.json").read_text("utf-8")) for name in SYSTEMS}


@pytest.mark.parametrize("system", SYSTEMS)
def test_photos_are_protected_once_searched_attacked_and_pruned(
    walks: dict[str, Any], system: str
) -> None:
    seen = walks[system]
    assert seen["same codes"]
    assert seen["names"] == [f"Größe {number}.png" for number in range(4)]
    assert seen["attacked"] == "Audit of release: not refuted"
    assert (seen["left"], "100%" in seen["spent"]) == (3, True)


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_second_writer_is_refused_and_bytes_stay_as_they_are(
    walks: dict[str, Any], system: str
) -> None:
    assert "open for writing elsewhere" in walks[system]["second writer"]
    assert walks[system]["bytes"] == "a\nb\r\n"


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_decoder_without_walls_says_so_and_still_has_its_time(
    walks: dict[str, Any], system: str
) -> None:
    assert walks[system]["walls"] == []
    assert "took longer than" in walks[system]["slow"]
