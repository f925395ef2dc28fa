"""How far a photo travels between `hash` and its code: counted, so that the way stays short."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import blindsight
from blindsight.cli.main import app
from blindsight.encoders import default_recipe

SOURCE = str(Path(blindsight.__file__).parent)
# What keeps a code once it is there: the index and its file.
KEEPING = {
    "core/durable.py",
    "index/base.py",
    "index/code_array.py",
    "index/hamming.py",
    "index/index_file.py",
}


def calls(photos: Path, out: Path, features: str) -> Counter[tuple[str, str]]:
    """How often every function of ours is called while a folder is hashed."""
    found: Counter[tuple[str, str]] = Counter()

    def note(frame, event, _) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE) and "<" not in code.co_name:
            found[Path(code.co_filename).relative_to(SOURCE).as_posix(), code.co_qualname] += 1

    words = ["hash", str(photos), "--out", str(out), "--features", features]
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        result = CliRunner().invoke(app, words, catch_exceptions=False)
    finally:
        sys.setprofile(before)
    assert result.exit_code == 0, result.output
    return found


@pytest.mark.parametrize("features", sorted({"pixels", default_recipe()}))
def test_a_photo_passes_few_modules_and_functions_on_its_way_to_a_code(tmp_path, features):
    """Of 45 modules and 286 functions that a photo once passed, at most half: those that are called
    more often for two shards of photos than for one photo. What is done once per run (cells, vault,
    card) is no part of a photo's way.
    """
    rng = np.random.default_rng(0)
    one, many = tmp_path / "one", tmp_path / "many"
    for folder, count in ((one, 1), (many, 66)):
        folder.mkdir()
        for number in range(count):
            Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(
                folder / f"{number}.png"
            )
    calls(one, tmp_path / "first", features)  # whatever is imported or learned once
    few, more = calls(one, tmp_path / "a", features), calls(many, tmp_path / "b", features)
    way = {key for key, count in more.items() if count > few[key] and key[0] not in KEEPING}
    modules = {module for module, _ in way}
    assert "privacy/door.py" in modules and "codebooks/cells.py" in modules
    # Two of them are the confined reader, which other processes run.
    assert len(modules) <= 24, sorted(modules)
    assert len(way) <= 143
