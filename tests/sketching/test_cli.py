from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from blindsight import data
from blindsight.cli.main import app
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.sketching import NegativeDatabase, SketchSet
from blindsight.sketching.attackers import ATTACKS


def run(*args):
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    digits = data.load("mnist5k")
    for label in (0, 1):
        (root / f"class{label}").mkdir()
        for k, image in enumerate(digits.array()[digits.labels == label][:40]):
            Image.fromarray(image).save(root / f"class{label}" / f"{k}.png")
    return root


def test_a_folder_is_sketched_trained_on_and_attacked(folder, tmp_path):
    made = run(
        "sketch", folder, tmp_path / "s", "--q", "Q6", "--seed", 0, "--json"
    )  # what is learned is then fixed
    told = json.loads(made.stdout)
    assert told["sketches"] == 80 and "handed over" in told["verdict"]
    sketches = SketchSet.open(tmp_path / "s")
    assert sketches.image_shape == (1, 28, 28) and sketches.classes == ("class0", "class1")

    trained = run(
        "train",
        tmp_path / "s",
        "--epochs",
        4,
        "--out",
        tmp_path / "m",
        "--onnx",
        tmp_path / "m.onnx",
        "--batch-size",
        16,
        "--seed",
        0,
        "--json",
    )
    assert json.loads(trained.stdout)["accuracy"] >= 0.75
    assert (tmp_path / "m").exists() and (tmp_path / "m.onnx").exists()

    attacked = run(
        "sketch",
        "recover",
        tmp_path / "s",
        "--originals",
        folder,
        "--gallery",
        tmp_path / "g.svg",
        "--settings",
        tmp_path / "q.png",
        "--json",
    )
    told = json.loads(attacked.stdout)
    attacks = {attack["attack"]: attack["psnr"] for attack in told["attacks"]}
    assert attacks["posterior mean"] == pytest.approx(26.6, abs=1.5)
    assert told["best"] == max(attacks, key=attacks.get) and "no public images" in told["not_tried"]
    assert (tmp_path / "g.svg").read_text().startswith("<?xml")
    with Image.open(tmp_path / "q.png") as drawn:
        assert drawn.size[1] > 1500


def test_the_learning_attacker_runs_from_the_command_line(folder, tmp_path):
    run("sketch", folder, tmp_path / "s", "--q", "Q2", "--json")
    attacked = run(
        "sketch",
        "recover",
        tmp_path / "s",
        "--originals",
        folder,
        "--public",
        folder,
        "--steps",
        3,
        "--count",
        10,
        "--json",
    )
    told = json.loads(attacked.stdout)
    assert {attack["attack"] for attack in told["attacks"]} == set(ATTACKS) and told[
        "not_tried"
    ] is None


def test_words_for_people(folder, tmp_path):
    assert "DISCLOSURE CARD" in run("sketch", folder, tmp_path / "s", "--size", 16, "--grey").stdout
    assert "accuracy" in run("train", tmp_path / "s", "--epochs", 1).stdout
    assert "averaging" in run("sketch", "recover", tmp_path / "s").stdout


def test_goals_choose_q(folder, tmp_path):
    told = json.loads(
        run("sketch", folder, tmp_path / "s", "--epsilon-per-pixel", 5, "--json").stdout
    )
    assert told["epsilon_per_pixel"] <= 5
    goal = ("--max-psnr", 8, "--attacker", "mean", "--reference", folder)
    run("sketch", folder, tmp_path / "t", *goal, "--seed", 0, "--json")
    seen = json.loads(
        run("sketch", "recover", tmp_path / "t", "--originals", folder, "--json").stdout
    )
    attacks = {attack["attack"]: attack["psnr"] for attack in seen["attacks"]}
    assert attacks["posterior mean"] < 8.3 < attacks[seen["best"]]
    with pytest.raises(InvalidParameter, match="size and kind of yours"):
        run("sketch", folder, tmp_path / "u", "--max-psnr", 20)


def test_flipped_bits_carry_a_proven_guarantee(folder, tmp_path):
    told = json.loads(run("sketch", folder, tmp_path / "s", "--flip-epsilon", 6, "--json").stdout)
    assert "per pixel" in told["guarantee"]
    assert SketchSet.open(tmp_path / "s").parameters.epsilon_pixel == pytest.approx(6)


def test_flipping_is_charged(folder, tmp_path):
    from blindsight.core.errors import BudgetExceeded
    from blindsight.privacy import Cost, Ledger

    Ledger(tmp_path / "l.db", dataset="images").grant(Cost(epsilon=5.0, unit="pixel"))
    with pytest.raises(BudgetExceeded):
        run("sketch", folder, tmp_path / "s", "--flip-epsilon", 6, "--ledger", tmp_path / "l.db")
    assert not (tmp_path / "s").exists()


def test_records_are_written_only_behind_the_unsafe_option(folder, tmp_path):
    run("sketch", folder, tmp_path / "s", "--json")
    assert {path.name for path in tmp_path.iterdir()} == {"s", "s.shared"}
    run("sketch", folder, tmp_path / "t", "--unsafe-records", "--json")
    assert len(NegativeDatabase.load(tmp_path / "t.records-0")) == 40768
    for name in ("s", "t"):  # what is shared never holds records
        shared = {path.name: path for path in (tmp_path / f"{name}.shared").rglob("*")}
        assert shared.keys() == {
            name,
            "README.md",
            "card.json",
            "card.txt",
            "manifest.json",
            "manifest.sig",
        }
        assert shared[name].read_bytes() == (tmp_path / name).read_bytes()


def contents(folder):
    """Every file below a folder with the digest of its bytes."""
    return {
        path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_finished_release_is_not_written_over(folder, tmp_path):
    run("sketch", folder, tmp_path / "s", "--q", "Q6", "--json")
    first = contents(tmp_path)
    assert {path.parts[0] for path in first} == {"s", "s.shared"}
    for again in (
        ("--q", "Q6"),
        ("--q", "Q3"),
    ):  # without a vault nobody can say whether the images are the same
        with pytest.raises(InvalidData, match="second release"):
            run("sketch", folder, tmp_path / "s", *again)
    with pytest.raises(InvalidData, match=r"second release.*another file.*--force"):
        run("sketch", folder, tmp_path / "s", "--q", "Q3")
    with pytest.raises(InvalidData, match="second release"):
        run("sketch", folder, tmp_path / "s", "--flip-epsilon", 6)
    assert contents(tmp_path) == first, "a refused run changes nothing"
    run("sketch", folder, tmp_path / "s", "--q", "Q3", "--force", "--json")
    for written in (tmp_path / "s", tmp_path / "s.shared" / "s"):
        assert SketchSet.open(written).parameters.name == "Q3"
    (tmp_path / "other").write_bytes(b"precious")
    with pytest.raises(HostileFile):
        run("sketch", folder, tmp_path / "other", "--force")
    assert (tmp_path / "other").read_bytes() == b"precious"


def test_bad_input_is_told_in_a_sentence(folder, tmp_path):
    with pytest.raises(InvalidParameter, match="one of 'Q1'"):
        run("sketch", folder, tmp_path / "s", "--q", "Q99")
    with pytest.raises(InvalidParameter, match="numbers separated by commas"):
        run("sketch", folder, tmp_path / "s", "--q", "a,b")
    with pytest.raises(InvalidParameter, match="sum to 1"):
        run("sketch", folder, tmp_path / "s", "--q", "0.5,0.4")
    with pytest.raises(InvalidParameter, match="at most one"):
        run("sketch", folder, tmp_path / "s", "--max-psnr", 9, "--flip-epsilon", 3)
    (tmp_path / "junk").write_bytes(np.arange(100, dtype=np.uint8).tobytes())
    with pytest.raises(HostileFile):
        run("train", tmp_path / "junk")
    unlabelled = folder / "class0"
    run("sketch", unlabelled, tmp_path / "u", "--json")
    with pytest.raises(InvalidData, match="no labels"):
        run("train", tmp_path / "u")
