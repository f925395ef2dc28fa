"""The same photos found on Milvus as in the embedded index, by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

import warm
from blindsight import data
from blindsight.cli.main import app

pytestmark = pytest.mark.real("milvus")


def _verb(*words: str) -> str:
    if "--milvus" not in words:
        return CliRunner().invoke(app, words, catch_exceptions=False).stdout
    # In a process of its own: Milvus Lite keeps hold of the standard streams that it finds.
    done = warm.run(["-m", "blindsight", *words])
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_search_on_milvus_finds_what_search_here_finds(tmp_path: Path) -> None:
    photos, index = tmp_path / "photos", tmp_path / "ix"
    photos.mkdir()
    for i, pixels in enumerate(data.load("digits")[:30].array()):
        Image.fromarray(pixels * 15).resize((24, 24)).save(photos / f"{i}.png")
    options = ("--method", "phashing-lsh", "--unit", "bit", "--features", "pixels", "--seed", "1")
    _verb("protect", str(photos), "--out", str(index), *options)
    search = (
        "search",
        str(index),
        str(photos / "7.png"),
        "-k",
        "30",
        "--ranking",
        "distance",
        "--json",
    )
    milvus = ("--milvus", str(tmp_path / "lite.db"), "--collection", "digits")
    found = []
    for extra in ((), milvus, milvus):  # filled by the first, there for the second
        report = json.loads(_verb(*search, *extra))
        assert report["stored"] == 30
        found.append(sorted((hit["distance"], hit["id"]) for hit in report["queries"][0]["hits"]))
    assert found[0] == found[1] == found[2]
