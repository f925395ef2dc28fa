"""The README's lines: few, and the same however often they are run."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import warm

ROOT = Path(__file__).parents[2]
(LINES,) = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
)


def _run(folder: Path, words: bool) -> str:
    # What is fetched is said on standard error. It is there already, or cannot be fetched.
    environment = os.environ if words else {**os.environ, "BLINDSIGHT_OFFLINE": "1"}
    done = warm.run(["-W", "error", "-c", LINES], cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with photos and a query, as the lines expect it."""
    (tmp_path / "photos").mkdir()
    for number in range(3):
        picture = Image.fromarray(np.full((24, 24, 3), 60 * number + 20, np.uint8))
        picture.save(tmp_path / "photos" / f"{number}.png")
    picture.save(tmp_path / "query.jpg")
    return tmp_path


def test_the_lines_run_twice_and_a_photo_keeps_its_code(folder: Path, words: bool) -> None:
    code = [line for line in LINES.splitlines() if line.startswith(("release", "hits", "audit"))]
    assert len(code) == 3
    first = _run(folder, words)
    codes = (folder / "release" / "codes.index").read_bytes()
    assert _run(folder, words) == first
    assert (folder / "release" / "codes.index").read_bytes() == codes
    assert "proven ε = 8 per record" in first and "3 photos" in first


def test_the_start_page_names_every_extra() -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    page = (ROOT / "docs" / "index.md").read_text()
    assert [
        name for name in extras if name not in {"bench", "docs", "dev"} and f"`{name}`" not in page
    ] == []
