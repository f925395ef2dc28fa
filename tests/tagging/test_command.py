"""`blindsight tag`: train, answer, spend, refuse; and images that are not what they say."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("torch")

from typer.testing import CliRunner

from blindsight.cli.main import app
from blindsight.core.errors import BudgetExceeded, HostileFile, InvalidData, InvalidParameter
from blindsight.tagging.labels_file import read_labels

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (40, 40, 230)}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Small images of one to three coloured bars, and a CSV file that names the colours."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    lines = ["image,labels"]
    for i in range(120):
        chosen = [name for name in COLOURS if rng.random() < 0.5]
        pixels = np.full((12, 12, 3), 128, np.uint8)
        for name in chosen:
            pixels[4 * list(COLOURS).index(name) :][:4] = COLOURS[name]
        Image.fromarray(pixels).save(folder / f"{i:03}.png")
        lines.append(f"{i:03}.png,{';'.join(chosen)}")
    (folder / "labels.csv").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def model(photos, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "colours.safetensors"
    result = run("train", str(photos / "labels.csv"), "--out", str(path), "--budget", "25", "--json")
    report = json.loads(result.stdout)
    assert report["labels"] == 3
    assert report["ledger"]["answers_left"] == 2
    assert "record" in report["training"]["card"]["unit of privacy"]
    return path


def run(*words):
    if words[0] == "train":
        words = (*words, "--features", "pixels", "--size", "6", "--epochs", "2", "--training-epsilon", "8")
    return CliRunner().invoke(app, ["tag", *words], catch_exceptions=False)


def test_answers_are_shown_with_what_they_cost_and_refused_when_the_budget_is_used_up(photos, model):
    asked = [str(photos / "000.png")]
    first = json.loads(run(*asked, "--model", str(model), "--json").stdout)
    assert first["spent"]["spent"] == pytest.approx(10.0)
    assert first["spent"]["answers_left"] == 1
    assert set(first["answers"][0]["tags"]) <= set(COLOURS)
    with pytest.raises(BudgetExceeded, match="1 more answer would fit"):
        run(*asked, *asked, "--model", str(model))
    second = run(*asked, "--model", str(model))
    assert "20 of 25" in second.stdout
    with pytest.raises(BudgetExceeded, match="0 more answers would fit"):
        run(*asked, "--model", str(model))


def test_training_shows_its_curve_and_both_cards(photos, tmp_path):
    out = tmp_path / "paper.safetensors"
    result = run("train", str(photos / "labels.csv"), "--out", str(out), "--calibration", "paper", "--robust", "0.001")
    assert "learning curve" in result.stdout
    assert "unit of privacy" in result.stdout
    answered = run(str(photos / "001.png"), "--model", str(out))
    assert answered.exit_code == 0
    assert not out.with_name("paper.safetensors.ledger.db").exists()


def test_training_again_does_not_refill_the_budget(photos, tmp_path):
    out = tmp_path / "twice.safetensors"
    for _ in range(2):
        result = run("train", str(photos / "labels.csv"), "--out", str(out), "--budget", "10", "--json")
        left = json.loads(result.stdout)["ledger"]["answers_left"]
        if left:
            run(str(photos / "001.png"), "--model", str(out))
    assert left == 0


@pytest.mark.parametrize(
    "content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n" + bytes(30), b"\xff\xd8\xff\xe0" + bytes(100)]
)
def test_hostile_images_are_refused_before_anything_is_spent(model, tmp_path, content):
    bad = tmp_path / "bad.png"
    bad.write_bytes(content)
    from blindsight.privacy import Ledger

    ledger = Ledger(model.with_name(f"{model.name}.ledger.db"), dataset=model.stem)
    before = ledger.balance("query").spent
    with pytest.raises(HostileFile):
        run(str(bad), "--model", str(model))
    assert ledger.balance("query").spent == before


def test_a_bomb_is_refused(model, tmp_path):
    bomb = tmp_path / "bomb.png"
    Image.new("1", (12_000, 9_000)).save(bomb)
    with pytest.raises(HostileFile):
        run(str(bomb), "--model", str(model))


def test_a_model_that_is_not_one_is_refused(photos, tmp_path):
    fake = tmp_path / "fake.safetensors"
    fake.write_bytes(b"{}")
    with pytest.raises(HostileFile):
        run(str(photos / "000.png"), "--model", str(fake))


def test_words_that_mean_nothing_are_refused(photos):
    with pytest.raises(InvalidParameter, match="features"):
        CliRunner().invoke(
            app, ["tag", "train", str(photos / "labels.csv"), "--features", "magic"], catch_exceptions=False
        )
    with pytest.raises(InvalidData, match="multi-label"):
        run("train", "digits")


@pytest.mark.parametrize(
    "text",
    ["", "image,labels\n", "file,tags\na.png,x\n", "image,labels\n../../secret.png,x\n", "image,labels\n,x\n"],
)
def test_label_files_that_are_wrong_are_refused(tmp_path, text):
    path = tmp_path / "labels.csv"
    path.write_text(text)
    with pytest.raises(InvalidData):
        read_labels(path, tmp_path)


def test_label_files_give_sorted_classes_and_empty_rows(photos):
    labelled = read_labels(photos / "labels.csv", photos)
    assert labelled.classes == ("blue", "green", "red")
    assert len(labelled) == 120
    assert (labelled.labels.sum(axis=1) == 0).any()
