"""A receiver with nothing but the folder does what its README.md and the documentation tell."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import blindsight
from blindsight import answer_request, protect

SHARE = Path(__file__).parents[2] / "docs" / "tasks" / "share.md"


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory):
    """The owner's side, and a copy of the folder on the receiver's, with a picture to look for."""
    owner, receiver = tmp_path_factory.mktemp("owner"), tmp_path_factory.mktemp("receiver")
    (owner / "photos").mkdir()
    for seed in range(8):
        pixels = np.random.default_rng(seed).integers(0, 256, (24, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(owner / "photos" / f"{seed}.png")
    made = protect(owner / "photos", owner / "release", encoder="pixels")
    shutil.copytree(made.release, receiver / "release")
    Image.open(owner / "photos" / "3.png").save(receiver / "query.jpg", quality=95)
    return made, receiver


def test_the_readme_says_what_it_is_in_ten_lines_and_its_commands_work(walk):
    made, receiver = walk
    readme = (receiver / "release" / "README.md").read_text()
    lines = [line for line in readme.splitlines() if line.strip()]
    assert len(lines) <= 10
    for name in re.findall(r"`([\w.]+\.(?:html|txt|parquet|csv))`", readme):
        assert (receiver / "release" / name).is_file(), name
    (fingerprint,) = re.findall(r"^ +((?:[0-9a-f]{4} ?){8})$", readme, re.MULTILINE)
    assert fingerprint == made.fingerprint
    assert "`blindsight open FOLDER`" in readme
    words = [sys.executable, "-m", "blindsight", "open", "release", "--fingerprint", fingerprint]
    done = subprocess.run(words, cwd=receiver, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "signed and unchanged" in done.stdout
    assert "search.html" in done.stdout, "it offers the search"


def test_the_lines_of_the_documentation_run_as_they_stand(walk, monkeypatch):
    made, receiver = walk
    (block,) = re.findall(r"3\. In Python:\n\n((?: {8}.*\n)+)", SHARE.read_text())
    lines = "\n".join(line.removeprefix("        ") for line in block.splitlines())
    monkeypatch.chdir(receiver)
    scope: dict[str, object] = {"blindsight": blindsight}
    exec(lines.replace("…", made.fingerprint), scope)  # noqa: S102
    release = scope["release"]
    assert isinstance(release, blindsight.OpenedRelease)
    assert len(release.entries["id"]) == 8
    assert len(release.search("query.jpg", k=3).hits) == 3


def test_a_request_made_from_the_folder_reaches_the_owners_photos(walk, tmp_path):
    made, receiver = walk
    release = blindsight.open_release(receiver / "release")
    first = release.search(receiver / "query.jpg", k=1).hits[0].hit.id
    request = {
        "format": "blindsight request 1",
        "release": release.manifest.release,
        "query": {"picture": True},
        "message": "",
        "ids": [first],
    }
    (tmp_path / "request.json").write_text(json.dumps(request))
    ((key, files),) = answer_request(tmp_path / "request.json", made.release).photos
    assert key == first
    assert (made.release.parent / "photos" / files[0]).is_file()
