"""The page "Several hospitals, one classifier" works as written, on one machine and with three
processes.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import warm
from blindsight import open_shared
from blindsight.app.release import OpenedFile
from blindsight.cli.main import app
from blindsight.federated import FederatedClassifier
from ports import held_port

PAGE = (Path(__file__).parents[3] / "docs" / "tasks" / "hospitals.md").read_text(encoding="utf-8")
COLOURS = {"benign": (40, 160, 60), "malignant": (190, 60, 120)}
SECONDS = 600  # only keeps a hanging process from blocking other tests


def commands(section: str) -> list[list[str]]:
    """The page's commands in a section, without their comments."""
    [text] = re.findall(rf"^## {section}.*?(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^blindsight (.*)$", text, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def make_photos(folder: Path, counts: dict[str, int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.array(COLOURS[name]) + rng.normal(0, 40, (24, 24, 3))
            Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(
                folder / name / f"{number}.jpg"
            )


def called(arguments: list[str]) -> str:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, f"{arguments}: {done.output}{done.exception}"
    return done.output


def test_the_page_on_one_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_photos(tmp_path / "photos", {"benign": 40, "malignant": 40}, seed=1)
    shown = [called(arguments) for arguments in [*commands("1"), *commands("3")]]
    assert len(shown) == 3
    assert "5 of 5" in shown[0]
    assert "learned by 3 sites" in shown[1]
    assert "per record" in " ".join(shown[2].split())


def test_the_page_with_three_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"127.0.0.1:{held_port()}"
    host, other, keys, accept, run, watch = commands("2")[:6]
    sites = {"harbour": host, "county": other, "coast": [*other[:-1], "Coast surgery"]}
    photos = {"benign": 20, "malignant": 12}, {"benign": 9}, {"benign": 8, "malignant": 10}
    for number, (site, join) in enumerate(sites.items()):
        (tmp_path / site).mkdir()
        monkeypatch.chdir(tmp_path / site)
        make_photos(Path("photos"), photos[number], seed=number)
        called([address if part == "harbour.example:9092" else part for part in join])
        (tmp_path / f"{site}.request").write_bytes(Path("here/request").read_bytes())
    monkeypatch.chdir(tmp_path)
    assert "benign, malignant" in called(keys)
    running = []
    for site in sites:
        monkeypatch.chdir(tmp_path / site)
        (tmp_path / site / "roster").write_bytes((tmp_path / "roster").read_bytes())
        called(accept)
        running.append(warm.Process(["-m", "blindsight", *run], output=tmp_path / f"{site}.log"))
    try:
        for process, site in zip(running, sites, strict=True):
            ended = process.wait(SECONDS)
            assert ended == 0, (tmp_path / f"{site}.log").read_text(errors="replace")
    finally:
        for process in running:
            process.kill()
            process.wait()
    monkeypatch.chdir(tmp_path / "harbour")
    assert "4 of 4 rounds" in called([*watch, "--once"])
    models = [(tmp_path / site / "here" / "model.safetensors") for site in sites]
    weights = [FederatedClassifier.load(model).released_["weights"] for model in models]
    assert FederatedClassifier.load(models[0]).classes_.tolist() == ["benign", "malignant"]
    for other_weights in weights[1:]:
        np.testing.assert_array_equal(other_weights, weights[0])
    for model in models:
        shared = open_shared(model.with_name("model.safetensors.shared"))
        assert isinstance(shared, OpenedFile)
        assert shared.manifest.kind == "federated model"
        assert shared.file.read_bytes() == model.read_bytes()
