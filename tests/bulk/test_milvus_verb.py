from __future__ import annotations

import json

import pytest
from PIL import Image
from typer.testing import CliRunner

from blindsight import data
from blindsight.cli.main import app

pytestmark = pytest.mark.real


def test_search_on_milvus_finds_what_search_here_finds(tmp_path):
    photos, index = tmp_path / "photos", tmp_path / "ix"
    photos.mkdir()
    for i, pixels in enumerate(data.load("digits")[:30].array()):
        Image.fromarray(pixels * 15).resize((24, 24)).save(photos / f"{i}.png")
    run = CliRunner()
    options = ["--method", "phashing-lsh", "--unit", "bit", "--features", "pixels", "--seed", "1"]
    assert run.invoke(app, ["hash", str(photos), "--out", str(index), *options]).exit_code == 0
    search = ["search", str(index), str(photos / "7.png"), "-k", "30", "--ranking", "distance", "--json"]
    milvus = ["--milvus", str(tmp_path / "lite.db"), "--collection", "digits"]
    found = []
    for extra in ([], milvus, milvus):  # filled by the first, there for the second
        done = run.invoke(app, [*search, *extra])
        assert done.exit_code == 0, done.output
        report = json.loads(done.stdout)
        assert report["stored"] == 30
        found.append(sorted((hit["distance"], hit["id"]) for hit in report["queries"][0]["hits"]))
    assert found[0] == found[1] == found[2]
