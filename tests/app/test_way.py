"""How much code `protect` runs for a folder of photos: counted, so that it stays short."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType

import numpy as np
import pytest
from PIL import Image

import blindsight
from blindsight.app.protect import protect
from blindsight.encoders import default_recipe
from blindsight.index.encoder import _built_in_codebook

SOURCE = str(Path(blindsight.__file__).parent)
IS_FUNCTION = 0x1  # CO_OPTIMIZED: set for functions, not for the bodies of modules and classes
COMPREHENSIONS = {"<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>"}
MOST_MODULES, MOST_FUNCTIONS = 35, 306
MOST_MODULES_OF_A_NETWORK, MOST_FUNCTIONS_OF_A_NETWORK = 38, 319
# Run by each call, but only where the files for words are not and cannot be fetched.
ASKING_FOR_WORDS = {
    ("data/fetch/__init__.py", "get"),
    ("data/fetch/__init__.py", "is_offline"),
    ("encoders/words.py", "_folder"),
    ("encoders/words.py", "class_names"),
    ("release/page.py", "_words_block"),
}


def functions_called(photos: Path, out: Path, encoder: str) -> set[tuple[str, str]]:
    """The package's functions, by module, that one call of `protect` enters."""
    called: set[CodeType] = set()

    def note(frame, event, _) -> None:
        if event == "call":
            called.add(frame.f_code)

    _built_in_codebook.cache_clear()  # making the cells is a part of the way
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        protect(photos, out, encoder=encoder)
    finally:
        sys.setprofile(before)
    return {
        (Path(code.co_filename).relative_to(SOURCE).as_posix(), code.co_qualname)
        for code in called
        if code.co_filename.startswith(SOURCE)
        and code.co_flags & IS_FUNCTION
        and code.co_name not in COMPREHENSIONS
    }


def save_photos(folder: Path, count: int) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(count):
        pixels = rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


@pytest.mark.parametrize("encoder", sorted({"pixels", default_recipe()}))
def test_protecting_a_folder_runs_few_modules_and_functions(tmp_path, encoder):
    """Everything that a call runs is counted, in every module of the package: reading, encoding,
    cells, noise, vault and files. What is done once in a process or on a machine is not, because it
    depends on what ran before: importing, reading the weights of a network and building it,
    fetching and encoding words. A first release does all that.
    """
    protect(save_photos(tmp_path / "one", 1), tmp_path / "first", encoder=encoder)
    way = functions_called(save_photos(tmp_path / "many", 40), tmp_path / "release", encoder)
    way -= ASKING_FOR_WORDS
    modules = {module for module, _ in way}
    assert {"privacy/door.py", "privacy/vault.py", "index/index_file.py"} <= modules
    most = MOST_MODULES, MOST_FUNCTIONS
    if encoder != "pixels":
        most = MOST_MODULES_OF_A_NETWORK, MOST_FUNCTIONS_OF_A_NETWORK
    assert len(modules) <= most[0], sorted(modules)
    assert len(way) <= most[1], sorted(way)
