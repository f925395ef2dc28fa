"""The verbs `compare check`, `learn`, `distance` and `clusters`, from files to files, and every bad
input in one sentence.
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

from blindsight.app.learn_metric import learn_metric
from blindsight.cli import main
from blindsight.core.errors import BudgetExceeded, InvalidData, InvalidParameter, RolledBack
from blindsight.metric import DPPMetric
from blindsight.privacy import Cost, Guarantee, Ledger, Vault

X, CLASSES = load_digits(n_class=3, return_X_y=True)
X, CLASSES = X[:160], CLASSES[:160]


def run(*arguments):
    return CliRunner().invoke(main.app, ["compare", *map(str, arguments)])


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
        8,
        "--loss",
        "contrastive",
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
        "--json",
    )
    found = json.loads(result.stdout)
    assert found["kappa"] == 1 and found["guarantee"]["simulation"] is True
    assert found["used_pairs"] < found["pairs"]
    assert found["knn"]["learned"]["accuracy"] > 0.6


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
    free = run("distance", "plain", "r0", "r1", "--features", files / "features.csv", "--json")
    rows = X / np.linalg.norm(X, axis=1, keepdims=True)
    found = json.loads(free.stdout)
    assert found["distances"][0]["distance"] == pytest.approx(np.linalg.norm(rows[0] - rows[1]))
    assert found["threshold"] is None and found["distances"][0]["answer"] is None
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
    photos = ("--images", tmp_path / "photos")
    small = ("--encoder", "pixels", "--out", out)
    result = run("learn", tmp_path / "pairs.csv", *photos, *small)
    assert result.exit_code == 0, result.exception
    assert "No kNN test" in result.output  # 20 held-out records are too few to say anything
    near = run("distance", out, names[0], "--images", tmp_path / "photos", "--json")
    assert len(json.loads(near.stdout)["distances"]) == 5


def test_the_ledger_is_charged_and_refuses(files):
    path = files / "ledger.db"
    with Ledger(path, dataset="ward-7") as ledger:
        ledger.grant(Cost(epsilon=1.5, delta=1e-4, unit="label"))
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
    ledger.grant(Cost(epsilon=9.0, delta=1e-3, unit="label"))
    ledger.grant(Cost(epsilon=900.0, delta=1e-3, unit="record", neighbours="add or remove one"))
    Vault.create(vault)
    shutil.copytree(vault, files / "backup")
    words = ("--features", files / "features.csv", "--out", out, "--vault", vault)
    words = ("learn", files / "pairs.csv", *words, "--ledger", files / "budget.db")
    if lost == "killed after the charge":
        with mock.patch.object(DPPMetric, "save", side_effect=KeyboardInterrupt):
            run(*words)
        assert not out.exists()
        assert ledger.balance("label").spent.epsilon == pytest.approx(1.0)
    assert run(*words).exit_code == 0
    first = DPPMetric.load(out).curve_.similar
    out.unlink()
    if lost == "vault restored":
        shutil.rmtree(vault)
        shutil.copytree(files / "backup", vault)
    again = run(*words)
    if again.exit_code:
        assert isinstance(again.exception, RolledBack), again.output
        assert not out.exists()
    else:
        np.testing.assert_array_equal(DPPMetric.load(out).curve_.similar, first)
    assert ledger.balance("label").spent.epsilon == pytest.approx(1.0)


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
    (files / "m.safetensors").unlink()
    fails(InvalidData, "63 are missing", *base, "--scale", bounds)
    bounds.write_text("name,low,high\np0,0,16")
    fails(InvalidData, "column, low, high", *base, "--scale", bounds)
    fails(InvalidParameter, "--scale", *base, "--scale", "wide")


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
        and "Note: delta = 0.5 allows one in 2 pairs to be revealed completely" in told.stderr
    )
    assert ".py:" not in told.stderr and "not charged: no --ledger" in told.stdout
    assert "Note" not in run(*given, "--force").stderr


def test_files_with_the_same_pixels_are_one_record(tmp_path):
    """A photo that lies in the folder twice is promised what a record is promised, once."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(6):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    with Image.open(folder / "0.png") as image:
        image.save(folder / "copy.png", compress_level=1)
    assert (folder / "copy.png").read_bytes() != (folder / "0.png").read_bytes()
    cycle = [f"{n}.png,{(n + 1) % 6}.png,{n % 2}" for n in range(6)]
    copies = ["copy.png,1.png,1", "copy.png,0.png,1", "copy.png,3.png,0"]
    options = {"images": folder, "out": tmp_path / "m.safetensors", "random_state": 0}
    options |= {"encoder": "pixels", "force": True}
    (tmp_path / "plain.csv").write_text("\n".join([*cycle, "0.png,3.png,0"]))
    (tmp_path / "copies.csv").write_text("\n".join([*cycle, *copies]))
    plain = learn_metric(tmp_path / "plain.csv", **options)
    expected = (tmp_path / "m.safetensors").read_bytes()
    joined = learn_metric(tmp_path / "copies.csv", **options)
    assert joined.n_pairs == plain.n_pairs == 7
    assert (tmp_path / "m.safetensors").read_bytes() == expected
    (tmp_path / "only.csv").write_text("copy.png,0.png,1")
    with pytest.raises(InvalidData, match="two copies of one picture"):
        learn_metric(tmp_path / "only.csv", **options)


def test_what_is_expected_is_said_before_anything_is_charged(files):
    ledger = files / "empty.db"
    with Ledger(ledger, dataset="pairs") as account:
        account.grant(Cost(epsilon=0.1, delta=1e-4, unit="label"))
    given = ("learn", files / "pairs.csv", "--features", files / "features.csv")
    told = run(*given, "--out", files / "m.safetensors", "--ledger", ledger)
    assert isinstance(told.exception, BudgetExceeded)
    assert "The plain distance is kept" in told.stderr and "it takes about" in told.stderr
    assert "expected to beat" in run("predict", 4000, 30).output
    assert json.loads(run("predict", 4000, 1280, "--json").stdout)["learns"] is False


def test_another_model_is_not_written_over(files):
    out = files / "m.safetensors"
    given = ("learn", files / "pairs.csv", "--features", files / "features.csv", "--out", out)
    assert run(*given, "--seed", 1).exit_code == 0
    before = out.read_bytes()
    fails(InvalidParameter, "holds another model", *given, "--seed", 2)
    fails(InvalidParameter, "holds another model", *given)
    vault = ("--vault", files / "vault")
    fails(InvalidParameter, "holds another model", *given, *vault)
    assert out.read_bytes() == before
    assert run(*given, *vault, "--force").exit_code == 0
    after = out.read_bytes()
    # The same release of the same vault again is no other model.
    assert run(*given, *vault).exit_code == 0 and out.read_bytes() == after
    fails(InvalidParameter, "holds another model", *given, *vault, "--epsilon", 2)


@pytest.fixture(scope="module")
def verified(tmp_path_factory):
    """A model with known error rates, from many pairs of two clear classes."""
    folder = tmp_path_factory.mktemp("verified")
    rng = np.random.default_rng(0)
    classes = np.arange(400) % 4
    rows = np.eye(6)[classes] + 0.25 * rng.normal(size=(400, 6))
    lines = [f"r{i},p{i // 2},{','.join(f'{v:.3f}' for v in row)}" for i, row in enumerate(rows)]
    (folder / "features.csv").write_text("\n".join(["id,who,a,b,c,d,e,f", *lines]))
    numbers = [",".join(np.delete(line.split(","), 1)) for line in lines]
    (folder / "numbers.csv").write_text("\n".join(["id,a,b,c,d,e,f", *numbers]))
    pairs = rng.integers(0, 400, (3000, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    same = classes[pairs[:, 0]] == classes[pairs[:, 1]]
    lines = [f"r{a},r{b},{int(word)}" for (a, b), word in zip(pairs, same, strict=True)]
    (folder / "pairs.csv").write_text("\n".join(lines))
    features = ("--features", folder / "features.csv", "--person", "who", "--epsilon", 2)
    out = folder / "m.safetensors"
    made = run("learn", folder / "pairs.csv", *features, "--out", out, "--seed", 1)
    assert made.exit_code == 0, made.exception
    return folder, out, made.output.replace("\n", " ")


def test_an_answer_says_same_or_different_and_how_often_it_is_wrong(verified):
    folder, out, printed = verified
    assert "equal error rate" in printed and "of 100 different pairs called the same" in printed
    table = ("--features", folder / "features.csv")
    same = run("distance", out, "r0", "r4", *table, "--json")
    different = run("distance", out, "r0", "r1", *table)
    assert json.loads(same.stdout)["distances"][0]["answer"].startswith("same, wrong in about")
    assert "different, wrong in about" in different.output.replace("\n", " ")
    strict, lenient = (
        json.loads(run("distance", out, "r0", "r1", *table, *way, "--json").stdout)["threshold"]
        for way in (("--false-accept", 0.1), ("--false-reject", 0.1))
    )
    assert strict["false_accept"] <= 0.1 and lenient["false_reject"] <= 0.1
    fails(
        InvalidParameter,
        "finer than the counts allow",
        *("distance", out, "r0", "r1", *table, "--false-accept", 0.0001),
    )
    fails(
        InvalidParameter,
        "no error rates",
        *("distance", "plain", "r0", "r1", "--features", folder / "numbers.csv"),
        *("--false-accept", 0.05),
    )


def test_clusters_are_written_for_the_owner(verified):
    folder, out, _ = verified
    table = ("--features", folder / "features.csv")
    made = run("clusters", out, *table, "--out", folder / "groups.csv")
    assert made.exit_code == 0, made.exception
    lines = (folder / "groups.csv").read_text().splitlines()
    assert lines[0] == "id,cluster" and len(lines) == 401
    group = dict(line.split(",") for line in lines[1:])
    assert group["r0"] == group["r4"] != group["r1"]
    numbers = ("--features", folder / "numbers.csv")
    four = json.loads(run("clusters", "plain", *numbers, "--number", 4, "--json").stdout)
    sizes = [len(members) for members in four["groups"]]
    assert len(sizes) == 4 and min(sizes) > 90
    fails(InvalidParameter, "no threshold", "clusters", "plain", *numbers)


def test_triplets_and_people_from_files(verified):
    folder, _, _ = verified
    rng = np.random.default_rng(1)
    lines = ["anchor,alike,other"]
    for anchor in range(200):
        alike, other = anchor + 4 * (1 + rng.integers(20)), anchor + 1 + 4 * rng.integers(20)
        lines.append(f"r{anchor},r{alike},r{other}")
    (folder / "triplets.csv").write_text("\n".join(lines))
    table = ("--features", folder / "features.csv", "--person", "who")
    out = folder / "t.safetensors"
    made = run("learn", "--triplets", folder / "triplets.csv", *table, "--out", out, "--seed", 1)
    assert made.exit_code == 0, made.exception
    assert "200 triplets" not in made.output and DPPMetric.load(out).n_pairs_ == 200
    by_person = run(
        *("learn", folder / "pairs.csv", *table, "--out", folder / "p.safetensors", "--seed", 1),
        *("--unit", "person", "--select", 2, "--json"),
    )
    found = json.loads(by_person.stdout)
    assert found["guarantee"]["unit"] == "person" and found["used_pairs"] < 400
    fails(InvalidParameter, "either pairs", "learn", *table)
    fails(
        InvalidData,
        "column 'whom'",
        *("learn", folder / "pairs.csv", "--features", folder / "features.csv"),
        *("--person", "whom"),
    )
    (folder / "triplets.csv").write_text("r0,r0,r1")
    fails(
        InvalidData,
        "three different",
        *("learn", "--triplets", folder / "triplets.csv", *table, "--force", "--out", out),
    )
