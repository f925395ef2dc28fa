"""The verbs `metric check`, `learn` and `distance`, from files to files, and every bad input in one
sentence.
"""

from __future__ import annotations

import json
import shutil
from unittest import mock

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from blindsight.cli import main
from blindsight.core.errors import BudgetExceeded, InvalidData, InvalidParameter, RolledBack
from blindsight.metric import DPPMetric
from blindsight.privacy import Cost, Guarantee, Ledger, Vault

X, CLASSES = load_digits(n_class=3, return_X_y=True)
X, CLASSES = X[:160], CLASSES[:160]


def run(*arguments):
    return CliRunner().invoke(main.app, ["metric", *map(str, arguments)])


def fails(kind, words, *arguments):
    result = run(*arguments)
    assert isinstance(result.exception, kind), result.output
    assert words in str(result.exception)


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        f"r{i},{','.join(f'{v:g}' for v in x)},{c}"
        for i, (x, c) in enumerate(zip(X, CLASSES, strict=True))
    ]
    head = "id," + ",".join(f"p{j}" for j in range(64)) + ",class"
    (tmp_path / "features.csv").write_text("\n".join([head, *rows]))
    pairs = rng.integers(0, 120, (400, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    lines = [f"r{a},r{b},{'same' if CLASSES[a] == CLASSES[b] else 'different'}" for a, b in pairs]
    (tmp_path / "pairs.csv").write_text("\n".join(["a,b,label", *lines]))
    return tmp_path


def test_learning_prints_kappa_guarantee_and_accuracy_and_saves_model_and_card(files):
    out = files / "metric.safetensors"
    result = run(
        "learn",
        files / "pairs.csv",
        "--features",
        files / "features.csv",
        "--out",
        out,
        "--epsilon",
        4,
    )
    assert result.exit_code == 0, result.output
    for words in (
        "kappa = ",
        "Privacy card",
        "kNN on 4",
        "95%: 0.",
        "not charged",
        "learned by contrastive",
    ):
        assert words in result.output.replace("\n", " ")
    assert DPPMetric.load(out).guarantee_ == Guarantee.from_json(
        (files / "metric.card.json").read_text()
    )


def test_json_is_all_there_is_on_standard_output(files):
    result = run(
        "learn",
        files / "pairs.csv",
        "--features",
        files / "features.csv",
        "--out",
        files / "m.safetensors",
        "--seed",
        1,
        "--select",
        "forest",
        "--scale",
        "private",
        "--unit",
        "kappa pairs",
        "--draw",
        files / "graph.svg",
        "--json",
    )
    found = json.loads(result.stdout)
    assert found["kappa"] == 1 and found["guarantee"]["simulation"] is True
    assert found["used_pairs"] < found["pairs"]
    assert found["knn"]["learned"]["accuracy"] > 0.6
    assert (files / "graph.svg").exists()


def test_distance_of_two_records_and_the_nearest_of_one(files):
    out = files / "m.safetensors"
    run(
        "learn",
        files / "pairs.csv",
        "--features",
        files / "features.csv",
        "--out",
        out,
        "--seed",
        1,
    )
    two = run("distance", out, "r0", "r1", "--features", files / "features.csv", "--json")
    value = json.loads(two.stdout)["distances"][0]["distance"]
    assert value == pytest.approx(DPPMetric.load(out).pair_distance(X[None, :2])[0])
    one = run("distance", out, "r0", "--features", files / "features.csv", "--nearest", 3)
    assert one.exit_code == 0 and one.output.count("│ r") == 3


def test_images_from_a_folder(tmp_path):
    rng = np.random.default_rng(0)
    for i, (pixels, c) in enumerate(zip(X[:60], CLASSES[:60], strict=True)):
        (tmp_path / "photos" / str(c)).mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels.reshape(8, 8) * 15).astype(np.uint8)).resize((32, 32)).save(
            tmp_path / "photos" / str(c) / f"{i}.png"
        )
    names = [f"{CLASSES[i]}/{i}.png" for i in range(60)]
    lines = []
    for _ in range(120):
        a, b = rng.choice(40, 2, replace=False)
        lines.append(f"{names[a]},{names[b]},{int(CLASSES[a] == CLASSES[b])}")
    (tmp_path / "pairs.csv").write_text("\n".join(sorted(set(lines))))
    out = tmp_path / "m.safetensors"
    result = run("learn", tmp_path / "pairs.csv", "--images", tmp_path / "photos", "--out", out)
    assert result.exit_code == 0, result.exception
    assert "No kNN test" in result.output  # 20 held-out records are too few to say anything
    near = run("distance", out, names[0], "--images", tmp_path / "photos", "--json")
    assert len(json.loads(near.stdout)["distances"]) == 5


def test_the_ledger_is_charged_and_refuses(files):
    path = files / "ledger.db"
    with Ledger(path, dataset="ward-7") as ledger:
        ledger.grant(Cost(epsilon=1.5, delta=1e-4, unit="pair", neighbours="add or remove one"))
    base = (
        "learn",
        files / "pairs.csv",
        "--features",
        files / "features.csv",
        "--ledger",
        path,
        "--dataset",
        "ward-7",
    )
    assert "ledger charged" in run(*base, "--out", files / "a.safetensors").output
    fails(BudgetExceeded, "", *base, "--out", files / "b.safetensors")
    assert not (files / "b.safetensors").exists()


@pytest.mark.parametrize("lost", ["nothing", "vault restored", "killed after the charge"])
def test_one_charge_never_pays_for_two_different_metrics(files, lost):
    out, vault = files / "m.safetensors", files / "vault"
    ledger = Ledger(files / "budget.db", dataset="pairs")
    ledger.grant(Cost(epsilon=9.0, delta=1e-3, unit="pair", neighbours="add or remove one"))
    ledger.grant(Cost(epsilon=900.0, delta=1e-3, unit="record", neighbours="add or remove one"))
    Vault.create(vault)
    shutil.copytree(vault, files / "backup")
    words = ("--features", files / "features.csv", "--out", out, "--vault", vault)
    words = ("learn", files / "pairs.csv", *words, "--ledger", files / "budget.db")
    if lost == "killed after the charge":
        with mock.patch.object(DPPMetric, "save", side_effect=KeyboardInterrupt):
            run(*words)
        assert not out.exists()
        assert ledger.balance("pair", "add or remove one").spent.epsilon == pytest.approx(1.0)
    assert run(*words).exit_code == 0
    first = DPPMetric.load(out).components_
    out.unlink()
    if lost == "vault restored":
        shutil.rmtree(vault)
        shutil.copytree(files / "backup", vault)
    again = run(*words)
    if again.exit_code:
        assert isinstance(again.exception, RolledBack), again.output
        assert not out.exists()
    else:
        np.testing.assert_array_equal(DPPMetric.load(out).components_, first)
    assert ledger.balance("pair", "add or remove one").spent.epsilon == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("r0,nobody,1", "unknown records"),
        ("r3,r3,1", "self-pairs"),
        ("r0,r1,maybe", "label must be"),
        ("r0,r1", "expected 3 cells"),
    ],
)
def test_a_bad_pair_is_named(files, line, words):
    with (files / "pairs.csv").open("a") as file:
        file.write("\n" + line)
    fails(InvalidData, words, "learn", files / "pairs.csv", "--features", files / "features.csv")


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (["a,b,label"], "no pairs"),
        (["r0,r1"], "three columns"),
        (["r0,r1,maybe", "r1,r2,0"], "label must be"),
    ],
)
def test_files_that_hold_no_pairs_are_refused(files, pairs, words):
    (files / "pairs.csv").write_text("\n".join(pairs))
    fails(InvalidData, words, "learn", files / "pairs.csv", "--features", files / "features.csv")


CONTRADICTIONS = {
    "both similar and dissimilar": ["r0,r1,1", "r1,r0,0", "r2,r3,0"],
    "chain of similar pairs": ["r0,r1,1", "r1,r2,1", "r2,r0,0"],
    "other kind": ["r0,r1,1", "r1,r2,1"],
}


@pytest.mark.parametrize(("words", "pairs"), CONTRADICTIONS.items())
def test_the_owner_is_told_of_contradictions_and_learning_says_nothing(files, words, pairs):
    (files / "pairs.csv").write_text(
        "\n".join(["a,b,similar", *pairs])
    )  # a header whose word is a label elsewhere
    told = run("check", files / "pairs.csv")
    assert told.exit_code == 2 and words in told.output.replace("\n", " ")
    out = files / "m.safetensors"
    learned = run(
        "learn",
        files / "pairs.csv",
        "--features",
        files / "features.csv",
        "--out",
        out,
        "--seed",
        1,
    )
    assert learned.exit_code == 0, learned.exception
    assert words not in learned.output.replace("\n", " ")


def test_pairs_that_agree_pass_the_check(files):
    told = run("check", files / "pairs.csv", "--json")
    found = json.loads(told.stdout)
    assert told.exit_code == 0 and found["problems"] == [] and found["chains"] == 0
    assert found["kappa_bounds"]["second"] <= found["kappa_bounds"]["node"]


def test_bounds_of_columns_come_from_a_file(files):
    bounds = files / "bounds.csv"
    bounds.write_text("\n".join(["column,low,high", *(f"p{j},0,16" for j in range(64))]))
    base = (
        "learn",
        files / "pairs.csv",
        "--features",
        files / "features.csv",
        "--out",
        files / "m.safetensors",
    )
    assert run(*base, "--scale", bounds, "--seed", 1).exit_code == 0
    assert DPPMetric.load(files / "m.safetensors").norm_ == "none"
    bounds.write_text("column,low,high\np0,0,16")
    fails(InvalidData, "63 are missing", *base, "--scale", bounds)
    bounds.write_text("name,low,high\np0,0,16")
    fails(InvalidData, "column, low, high", *base, "--scale", bounds)
    fails(InvalidParameter, "--scale", *base, "--scale", "wide")


def test_features_of_private_photos_leave_no_cache(files, monkeypatch):
    from blindsight import encoders
    from blindsight.metric.files import read_image_folder

    asked = []

    class Extractor:
        def __init__(self, **settings):
            asked.append(settings)

        def transform(self, images, progress=None):
            return np.zeros((len(images), 3), dtype=np.float32)

    monkeypatch.setattr(encoders, "EfficientNet", Extractor)
    Image.new("RGB", (16, 16)).save(files / "photo.png")
    read_image_folder(files, how="efficientnet")
    assert asked[0]["cache"] is False


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ("id,p\nr0,x\nr1,2", "must hold numbers"),
        ("id,p\nr0,1\nr0,2", "more than once"),
        ("name,p\nr0,1", "column 'id'"),
        ("id\nr0", "at least one"),
    ],
)
def test_bad_features_are_refused(files, features, words):
    (files / "features.csv").write_text(features)
    fails(InvalidData, words, "learn", files / "pairs.csv", "--features", files / "features.csv")


def test_records_must_come_from_one_place(files):
    fails(InvalidParameter, "--features", "learn", files / "pairs.csv")
    out = files / "m.safetensors"
    run("learn", files / "pairs.csv", "--features", files / "features.csv", "--out", out)
    fails(
        InvalidData,
        "unknown",
        "distance",
        out,
        "r0",
        "nobody",
        "--features",
        files / "features.csv",
    )


def test_a_delta_that_gives_pairs_away_is_questioned_in_a_line(files):
    given = (
        "learn",
        files / "pairs.csv",
        "--features",
        files / "features.csv",
        "--out",
        files / "m.safetensors",
    )
    told = run(*given, "--delta", 0.5)
    assert (
        told.exit_code == 0
        and "Note: delta = 0.5 lets one in 2 pairs be given away whole" in told.stderr
    )
    assert ".py:" not in told.stderr and "not charged: no --ledger" in told.stdout
    assert "Note" not in run(*given).stderr
