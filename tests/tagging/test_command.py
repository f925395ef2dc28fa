"""`blindsight tag`: train, start from words, apply; what is private stays, and images that are not what they say."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from blindsight.cli.main import app
from blindsight.core.errors import BudgetExceeded, HostileFile, InvalidData, InvalidParameter, MissingData
from blindsight.privacy import Cost, Ledger
from blindsight.tagging import Prior, PrivateTagger
from blindsight.tagging.labels_file import read_labels, read_vocabulary

pytestmark = pytest.mark.filterwarnings("ignore::blindsight.core.errors.UnchargedRelease")
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


def run(*words):
    return CliRunner().invoke(app, ["tag", *map(str, words)], catch_exceptions=False)


def made_up_prior(names, *, public, synonyms):
    return Prior(np.eye(len(names), 8), np.zeros(len(names)))


def train(photos, out, *words):
    labels = ("--labels", photos / "labels.csv", "--features", "pixels", "--size", 6)
    return run("train", photos, *labels, "--out", out, *words)


@pytest.fixture(scope="module")
def model(photos, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "colours.safetensors"
    report = json.loads(train(photos, path, "--epsilon", 8, "--vocabulary", "red,green,blue", "--json").stdout)
    assert report["labels"] == 3
    assert report["training"]["epsilon"].startswith("7.9")
    assert report["owner_only"]["mAP"] > 0.5
    return path


def test_exact_answers_cost_nothing_more_and_can_be_corrected_and_trained_on(photos, model, tmp_path):
    shown = run("apply", model, photos / "000.png")
    assert "cost nothing more" in shown.stdout
    found = json.loads(run("apply", model, photos, "--json").stdout)
    assert len(found["answers"]) == 120
    assert found["per_photo"] == 0
    written = run("apply", model, photos, "--csv").stdout
    (tmp_path / "tags.csv").write_text(written)
    again = read_labels(tmp_path / "tags.csv", photos, ["red", "green", "blue"])
    assert len(again) == 120


def test_the_file_holds_no_word_that_only_a_record_has(photos, tmp_path):
    folder = tmp_path / "ward"
    folder.mkdir()
    lines = (photos / "labels.csv").read_text().splitlines()
    for name in [line.split(",")[0] for line in lines[1:]]:
        (folder / name).write_bytes((photos / name).read_bytes())
    lines[5] += ";hiv-positive"
    (folder / "labels.csv").write_text("\n".join(lines))
    out = tmp_path / "ward.safetensors"
    train(folder, out, "--vocabulary", "red,green,blue", "--epsilon", 8)
    assert b"hiv" not in out.read_bytes()
    assert PrivateTagger.load(out).guarantee_.epsilon < 8.01
    report = json.loads(train(folder, out, "--epsilon", 8, "--json").stdout)
    assert report["training"]["proven"].startswith("none")
    assert "--vocabulary" in report["training"]["not proven"]


def test_features_of_private_photos_are_kept_nowhere(photos, tmp_path, monkeypatch):
    seen = []

    class Spy:
        def __init__(self, size, *, cache):
            seen.append(cache)

        def transform(self, images, progress=None):
            return np.random.default_rng(0).random((len(images), 8)).astype(np.float32)

    monkeypatch.setattr("blindsight.features.EfficientNet", Spy)
    monkeypatch.setattr("blindsight.tagging.photos.imagenet_prior", made_up_prior)
    out = tmp_path / "net.safetensors"
    words = ("--labels", photos / "labels.csv", "--vocabulary", "red,green,blue", "--out", out)
    run("train", photos, *words, "--public", photos)
    run("apply", out, photos / "000.png")
    assert seen == [False, True, False]  # private, public, private


def test_words_alone_start_a_tagger_at_epsilon_zero(tmp_path, monkeypatch):
    monkeypatch.setattr("blindsight.tagging.photos.imagenet_prior", made_up_prior)
    out = tmp_path / "words.safetensors"
    report = json.loads(run("start", "dog,beach", "--out", out, "--json").stdout)
    assert report["training"]["epsilon"] == "0"
    assert PrivateTagger.load(out).classes_.tolist() == ["dog", "beach"]


@pytest.fixture(scope="module")
def published(photos, tmp_path_factory):
    """A model for publishing tags, and its vault."""
    out = tmp_path_factory.mktemp("published") / "public.safetensors"
    train(photos, out, "--epsilon", 8, "--vocabulary", "red,green,blue", "--publish", 6)
    return out


def answers(*words):
    return {row["image"]: row["scores"] for row in json.loads(run("apply", *words, "--json").stdout)["answers"]}


def test_a_photo_s_tags_are_published_once_and_charged_once_whatever_happens_to_it(photos, published, tmp_path):
    place, vault = str(tmp_path / "ledger.db"), ("--vault", tmp_path / "vault")
    ledger = Ledger(place, dataset="public")
    ledger.grant(Cost(epsilon=6.0, unit="query"))
    ledger.grant(Cost(epsilon=6.0, unit="record"))
    first = answers(published, photos, *vault, "--ledger", place)
    moved = tmp_path / "moved"
    moved.mkdir()
    for number in (3, 5, 7):
        (moved / f"new-{number}.png").write_bytes((photos / f"{number:03}.png").read_bytes())
    again = answers(published, moved, photos / "000.png", *vault)  # the vault knows the ledger
    assert again[str(photos / "000.png")] == first["000.png"]
    for number in (3, 5, 7):
        assert again[str(moved / f"new-{number}.png")] == first[f"{number:03}.png"]
    for unit in ("query", "record"):
        assert ledger.balance(unit).spent.epsilon == pytest.approx(6.0)
    assert len(list(ledger.entries())) == 4  # two grants, and one release in two units
    other = Ledger(place, dataset="other")
    other.grant(Cost(epsilon=5.0, unit="query"))
    with pytest.raises(BudgetExceeded):
        run("apply", published, photos, "--vault", tmp_path / "new", "--ledger", place, "--dataset", "other")


def test_what_is_given_away_may_have_random_ids(photos, published, model, tmp_path):
    vault = ("--vault", tmp_path / "vault")
    shown = run("apply", published, photos, *vault, "--ids", "--csv").stdout
    assert ".png" not in shown
    listed = [line.split(",")[0] for line in shown.splitlines()[1:]]
    assert listed == sorted(set(listed))  # an order that tells nothing of the files
    assert len(listed) == 8  # distinct images, however many copies there are
    with pytest.raises(InvalidParameter, match="exact"):
        run("apply", model, photos, "--ids")


def test_the_same_training_run_again_gives_the_same_model_and_is_charged_once(photos, tmp_path):
    out, place = tmp_path / "m.safetensors", str(tmp_path / "ledger.db")
    ledger = Ledger(place, dataset=photos.name)
    ledger.grant(Cost(epsilon=9.0, delta=1e-4, unit="record", neighbours="add or remove one"))
    words = ("--epsilon", 8, "--vocabulary", "red,green,blue", "--ledger", place)
    shown = train(photos, out, *words).stdout
    assert "Keep" in shown and "step by step" in shown
    first = out.read_bytes()
    out.unlink()
    train(photos, out, *words)
    assert out.read_bytes() == first
    assert ledger.balance("record", "add or remove one").spent.epsilon == pytest.approx(8.0, abs=0.1)
    with pytest.raises(BudgetExceeded):
        train(photos, out, *words, "--delta", 1e-6)


def test_photos_in_a_folder_that_cannot_be_read_are_named_and_left_out(photos, model, tmp_path):
    (tmp_path / "good.png").write_bytes((photos / "000.png").read_bytes())
    (tmp_path / "bad.png").write_bytes(b"no picture")
    done = run("apply", model, tmp_path)
    assert "good.png" in done.stdout
    assert "left out" in done.stderr and "bad.png" in done.stderr


def test_answers_that_say_nothing_are_not_sold(photos, tmp_path):
    out = tmp_path / "none.safetensors"
    with pytest.raises(InvalidData, match="No model was written"):
        train(photos, out, "--epsilon", 0.01, "--vocabulary", "red,green,blue", "--publish", 0.01, "--seed", 3)
    assert not out.exists()


@pytest.mark.parametrize(
    "content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n" + bytes(30), b"\xff\xd8\xff\xe0" + bytes(100)]
)
def test_hostile_images_are_refused(model, tmp_path, content):
    bad = tmp_path / "bad.png"
    bad.write_bytes(content)
    with pytest.raises(HostileFile):
        run("apply", model, bad)


def test_a_bomb_is_refused(model, tmp_path):
    bomb = tmp_path / "bomb.png"
    Image.new("1", (12_000, 9_000)).save(bomb)
    with pytest.raises(HostileFile):
        run("apply", model, bomb)


def test_a_model_that_is_not_one_is_refused(photos, tmp_path):
    fake = tmp_path / "fake.safetensors"
    fake.write_bytes(b"{}")
    with pytest.raises(HostileFile):
        run("apply", fake, photos / "000.png")
    with pytest.raises(MissingData, match="tag train"):
        run("apply", tmp_path / "none.safetensors", photos / "000.png")


def test_what_cannot_be_trained_on_is_refused(photos, tmp_path):
    with pytest.raises(InvalidParameter, match="features"):
        run("train", photos, "--labels", photos / "labels.csv", "--features", "magic")
    with pytest.raises(InvalidParameter, match="--labels"):
        run("train", photos)
    with pytest.raises(MissingData, match="--labels"):
        run("train", photos / "labels.csv")
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


def test_label_files_follow_the_vocabulary_and_leave_out_what_it_does_not_name(photos):
    assert read_labels(photos / "labels.csv", photos).classes == ("blue", "green", "red")
    labelled = read_labels(photos / "labels.csv", photos, ["red", "yellow"])
    assert labelled.classes == ("red", "yellow")
    assert labelled.labels[:, 1].sum() == 0
    assert (labelled.labels.sum(axis=1) == 0).any()


def test_a_vocabulary_is_a_file_or_words(tmp_path):
    (tmp_path / "words.txt").write_text("dog\n\n cat \ndog\n")
    assert list(read_vocabulary(str(tmp_path / "words.txt"))) == ["dog", "cat"]
    assert read_vocabulary("dog, tv = television / screen") == {"dog": (), "tv": ("television", "screen")}
    for wrong, error in ((" , ", InvalidData), ("missing.txt", MissingData)):
        with pytest.raises(error):
            read_vocabulary(wrong)


def test_a_missing_budget_is_said_before_a_photo_is_read(photos, tmp_path, monkeypatch):
    monkeypatch.setattr("blindsight.cli.tag._features", lambda *_: pytest.fail("photos were read first"))
    with pytest.raises(BudgetExceeded, match="no budget yet"):
        train(photos, tmp_path / "m.safetensors", "--vocabulary", "red,green,blue", "--ledger", tmp_path / "ledger.db")
