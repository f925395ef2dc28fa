"""New photos are protected as they arrive, within the budget, and no log names them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from blindsight.app.watch import WatchedRun, watch
from blindsight.core.errors import BudgetExceeded, InvalidData


def put(folder: Path, number: int) -> None:
    """A photo that arrives whole, as cameras and synchronisers move files in."""
    pixels = np.random.default_rng(number).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    unfinished = folder.parent / f"arriving-{number}.png"
    Image.fromarray(pixels).save(unfinished)
    unfinished.rename(folder / f"secret-{number}.png")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    return folder


def test_photos_are_protected_when_they_come(photos: Path, tmp_path: Path) -> None:
    lines: list[str] = []

    def changes() -> Iterator[object]:
        yield "ready"
        put(photos, 1)
        yield "one came"
        yield ""  # nothing changed
        put(photos, 2)
        (photos / "damaged.jpg").write_bytes(b"\xff\xd8\xff")
        yield "two came"

    done = watch(
        photos,
        tmp_path / "release",
        encoder="pixels",
        changes=changes(),
        report=lambda run: lines.append(str(run)),
    )
    assert [run.released for run in done.runs] == [1, 1]
    assert done.last is not None and done.last.counts.stored == 2
    assert done.runs[-1].unreadable == 1
    assert len(lines) == 2
    assert not any("secret" in line or "damaged" in line or str(photos) in line for line in lines)
    assert "secret" not in str(done.runs)


def test_the_operating_system_s_notices_are_heard(photos: Path, tmp_path: Path) -> None:
    """The hook after each run puts the next photo or stops: nothing waits for a time."""
    pytest.importorskip("watchfiles", reason="the extra watch is not installed")
    stop = threading.Event()
    put(photos, 1)

    def next_step(run: WatchedRun) -> None:
        if run.stored < 3:
            put(photos, run.stored + 1)
        else:
            stop.set()

    done = watch(photos, tmp_path / "release", encoder="pixels", stop=stop, report=next_step)
    assert [run.stored for run in done.runs] == [1, 2, 3]


def test_nothing_is_released_beyond_the_budget(photos: Path, tmp_path: Path) -> None:
    put(photos, 1)
    with pytest.raises(BudgetExceeded):
        watch(
            photos,
            tmp_path / "release",
            encoder="pixels",
            ledger=tmp_path / "budget.db",
            changes=iter(["ready"]),
        )
    assert not (tmp_path / "release").exists()


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match="is not a folder"):
        watch(tmp_path / "none", tmp_path / "release", changes=[])


def test_the_command_stops_cleanly(photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("watchfiles", reason="the extra watch is not installed")
    put(photos, 1)
    put(photos, 2)
    line = ["watch", str(photos), "--out", str(tmp_path / "release"), "--encoder", "pixels"]
    process = subprocess.Popen(
        [sys.executable, "-m", "blindsight", *line],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert process.stderr is not None
    first = process.stderr.readline()  # printed after the first run
    process.send_signal(signal.SIGTERM)
    out, rest = process.communicate(timeout=600)
    assert process.returncode == 0, rest
    assert "2 released" in first
    assert "secret" not in first + out + rest
    assert "photos read" in out
