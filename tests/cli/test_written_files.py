"""A verb that writes files or folders names each of them, in text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from blindsight import data
from blindsight.cli import main
from blindsight.sketching import NegativeSketcher


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with sketches of digits, which is the working folder."""
    monkeypatch.chdir(tmp_path)
    digits = data.load("digits")[:40]
    NegativeSketcher("Q6").fit(digits).sketch(digits).save(tmp_path / "digits.sketches")
    return tmp_path


def run(*words: str) -> str:
    ran = CliRunner(env={"COLUMNS": "80"}).invoke(main.app, list(words))
    assert ran.exit_code == 0, ran.output
    return ran.stdout


def new_names(folder: Path, before: set[str]) -> set[str]:
    return {path.name for path in folder.iterdir()} - before


def test_training_on_sketches_names_the_model_and_the_onnx_file(folder: Path) -> None:
    words = ("train", "digits.sketches", "--epochs", "1", "--out", "net.safetensors")
    said = run(*words, "--onnx", "net.onnx")
    assert (folder / "net.onnx").is_file()
    assert "model    net.safetensors" in said
    assert "ONNX     net.onnx, for other programs" in said
    as_json = json.loads(run("train", "digits.sketches", "--epochs", "1", "--onnx", "2", "--json"))
    assert (as_json["model"], as_json["onnx"]) == (None, "2")


def test_sketching_names_all_that_it_wrote_and_what_is_private(folder: Path) -> None:
    (folder / "images").mkdir()
    for number in range(3):
        Image.fromarray(np.full((8, 8), 60 * number, np.uint8)).save(
            folder / "images" / f"{number}.png"
        )
    before = {path.name for path in folder.iterdir()}
    said = run("sketch", "images", "out", "--grey", "--unsafe-records", "--vault", "key")
    written = new_names(folder, before)
    assert written == {"out", "out.shared", "out.records-0", "key"}
    assert "3 sketches in out " in said
    assert "Share out.shared:" in said
    assert "Keep private: key " in said
    assert "Keep private: out.records-0 " in said


def test_attacking_sketches_names_both_drawings(folder: Path) -> None:
    words = ("sketch", "recover", "digits.sketches", "--originals", "digits", "--count", "2")
    drawings = ("--gallery", "recovered.svg", "--settings", "settings.svg")
    said = run(*words, *drawings)
    assert "gallery: recovered.svg" in said
    assert "with Q1 to Q12: settings.svg" in said
    as_json = json.loads(run(*words, *drawings, "--json"))
    assert (as_json["gallery"], as_json["settings"]) == ("recovered.svg", "settings.svg")


def test_a_simulated_federation_names_its_model(folder: Path) -> None:
    words = ("federate", "simulate", "--rounds", "1", "--no-encrypt", "--out", "model.safetensors")
    said = run(*words)
    assert (folder / "model.safetensors").is_file()
    assert "The model is in model.safetensors." in said
    assert "Share model.safetensors.shared:" in said
    assert json.loads(run(*words, "--json"))["model"] == "model.safetensors"


def test_copies_of_a_ledger_are_named_and_counted(folder: Path) -> None:
    run("budget", "grant", "--ledger", "b.db", "--dataset", "ward", "--epsilon", "8")
    assert run("budget", "backup", "--ledger", "b.db", "--out", "copy.db") == (
        "1 data set copied to copy.db, verified.\n"
    )
    assert run("budget", "export", "--ledger", "b.db", "--out", "b.json") == (
        "1 entry of 1 data set written to b.json.\n"
    )
    assert run("budget", "witness", "--ledger", "b.db", "--to", "witness").endswith(
        "is noted in witness.\n"
    )
