"""`blindsight tag`: train, start from words, apply; what is private stays, and images that are not
what they say.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import shutil
from unittest import mock

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from blindsight.cli.main import app
from blindsight.core import storage
from blindsight.core.errors import (
    BudgetExceeded,
    HostileFile,
    InvalidData,
    InvalidParameter,
    MissingData,
    RolledBack,
)
from blindsight.data import MultiLabelSet, cache_folder
from blindsight.encoders import BuiltIn
from blindsight.privacy import Cost, Ledger, Vault
from blindsight.privacy.door import listening
from blindsight.tagging import Prior, PrivateTagger
from blindsight.tagging.labels import read_labels, read_vocabulary
from blindsight.tagging.photos import Quality, split

pytestmark = pytest.mark.filterwarnings("ignore::blindsight.core.errors.UnchargedRelease")
COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (40, 40, 230)}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Small images of one to three coloured bars, and a CSV file that names the colours."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    lines = ["image,labels"]
    for i in range(200):
        chosen = [name for name in COLOURS if rng.random() < 0.5]
        pixels = np.full((12, 12, 3), 128, np.uint8)
        for name in chosen:
            pixels[4 * list(COLOURS).index(name) :][:4] = COLOURS[name]
        pixels[0, 0] = i  # no two photos are the same
        Image.fromarray(pixels).save(folder / f"{i:03}.png")
        lines.append(f"{i:03}.png,{';'.join(chosen)}")
    (folder / "labels.csv").write_text("\n".join(lines))
    return folder


def picture(colour):
    made = io.BytesIO()
    Image.new("RGB", (12, 12), colour).save(made, "PNG")
    return made.getvalue()


def run(*words):
    return CliRunner().invoke(app, ["tag", *map(str, words)], catch_exceptions=False)


def made_up_prior(names, encoder, *, public, synonyms):
    return Prior(np.eye(len(names), encoder.dimensions), np.zeros(len(names)))


def train(photos, out, *words):
    labels = ("--labels", photos / "labels.csv", "--features", "pixels", "--size", 6)
    return run("train", photos, *labels, "--out", out, *words)


@pytest.fixture(scope="module")
def model(photos, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "colours.safetensors"
    report = json.loads(
        train(photos, path, "--epsilon", 8, "--vocabulary", "red,green,blue", "--json").stdout
    )
    assert report["labels"] == 3
    assert report["training"]["epsilon"].startswith("7.9")
    released = [line.split(":")[0] for line in report["training"]["releases"]]
    assert released == ["label counts", "features' centre", "gradient"]  # every one, not the last
    assert report["owner_only"]["mAP"] > 0.5
    return path


def test_exact_answers_cost_nothing_more_and_can_be_corrected_and_trained_on(
    photos, model, tmp_path
):
    shown = run("apply", model, photos / "000.png")
    assert "cost nothing more" in shown.stdout
    found = json.loads(run("apply", model, photos, "--json").stdout)
    assert len(found["answers"]) == 200
    assert found["per_photo"] == 0
    written = run("apply", model, photos, "--csv").stdout
    (tmp_path / "tags.csv").write_text(written)
    again = read_labels(tmp_path / "tags.csv", photos, {"red": (), "green": (), "blue": ()}).photos
    assert len(again) == 200
    truth = read_labels(photos / "labels.csv", photos, {"red": (), "green": (), "blue": ()}).photos
    assert (again.labels == truth.labels).mean() > 0.8


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
    assert (
        b"hiv-positive" not in out.read_bytes()
    )  # whole: three bytes are found by chance among the weights
    assert PrivateTagger.load(out).guarantee_.epsilon < 8.01
    report = json.loads(train(folder, out, "--epsilon", 8, "--json").stdout)
    assert report["training"]["proven"].startswith("none")
    assert "--vocabulary" in report["training"]["not proven"]


class Heard:
    """Keeps the values that arrive at the door."""

    def __init__(self):
        self.values = []

    def opened(self, door):
        return None

    def absent(self, n):
        return None

    def passing(self, passage):
        self.values.append((passage.planned, np.array(passage.value)))

    def passed(self, passage, released):
        return None


def counts_at_the_door(folder, lines, tmp_path):
    (folder / "some.csv").write_text("\n".join(lines))
    with listening(Heard()) as heard:
        run(
            "train",
            folder,
            "--labels",
            folder / "some.csv",
            "--features",
            "pixels",
            "--size",
            6,
            "--vocabulary",
            "red,green,blue",
            "--out",
            tmp_path / "m.safetensors",
        )
    planned, value = heard.values[0]
    assert planned.what == "label counts"
    return planned.mechanism.sensitivity, value


def test_a_photo_more_or_less_in_the_folder_moves_training_within_its_bound_whatever_is_held_out(
    photos, tmp_path
):
    lines = (photos / "labels.csv").read_text().splitlines()
    bound, all_of_them = counts_at_the_door(photos, lines, tmp_path)
    moved = [
        np.linalg.norm(
            counts_at_the_door(photos, lines[:gone] + lines[gone + 1 :], tmp_path)[1] - all_of_them
        )
        for gone in (1, 30, 60, 200)
    ]
    assert max(moved) <= bound
    assert max(moved) > 0


@pytest.mark.parametrize("one_in", [5, 10])
def test_on_which_side_of_the_split_a_record_is_depends_on_nothing_but_itself(one_in):
    rows = np.random.default_rng(0).normal(size=(4000, 3)).astype(np.float32)
    _, held, expected = split(rows, one_in=one_in)
    assert expected == 4000 - 4000 // one_in
    # Six deviations of a binomial: a false alarm in 10^8.
    assert abs(len(held) - 4000 / one_in) < 6 * math.sqrt(4000 / one_in)
    chosen = np.random.default_rng(1).permutation(4000)[:1500]
    assert set(chosen[split(rows[chosen], one_in=one_in)[1]]) == set(held) & set(chosen)


def test_the_file_does_not_tell_whether_a_photo_was_held_out(photos, tmp_path):
    """The number of photos that were learned from would: whoever knows the others counts them."""
    folder, out = tmp_path / "album", tmp_path / "m.safetensors"
    shutil.copytree(photos, folder)
    lines = (folder / "labels.csv").read_text().splitlines()
    name, stated, sides = lines[7].split(",")[0], set(), set()
    for shade in range(24):  # the side depends on nothing but the picture; both come soon
        (folder / name).write_bytes(picture((shade, 2 * shade, 3 * shade)))
        (folder / "some.csv").write_text("\n".join(lines))
        train_once = mock.patch("blindsight.tagging.photos.train_once", side_effect=Stopped)
        with train_once as called, contextlib.suppress(Stopped):
            run(
                "train",
                folder,
                "--labels",
                folder / "some.csv",
                "--features",
                "pixels",
                "--size",
                6,
                "--vocabulary",
                "red,green,blue",
                "--out",
                out,
            )
        sides.add(len(called.call_args.args[1]))
        stated.add(called.call_args.kwargs["n_records"])
        if len(sides) == 2:
            break
    assert len(sides) == 2 and len(stated) == 1
    train(folder, out, "--vocabulary", "red,green,blue", "--epsilon", 8)
    assert {PrivateTagger.load(out).public_["n_records"]} == stated


class Stopped(Exception):
    """Nothing is to be trained."""


def test_a_photo_that_is_named_often_and_has_copies_is_one_record(photos, tmp_path):
    lines = (photos / "labels.csv").read_text().splitlines()
    folder = tmp_path / "album"
    shutil.copytree(photos, folder)
    (folder / "new.png").write_bytes(picture((9, 9, 9)))
    (folder / "copy.png").write_bytes(picture((9, 9, 9)))
    bound, without = counts_at_the_door(folder, lines, tmp_path)
    often = [*lines, *["new.png,red", "copy.png,green", "./new.png,blue"] * 20]
    _, with_it = counts_at_the_door(folder, often, tmp_path)
    assert np.linalg.norm(with_it - without) <= bound


def test_a_model_without_its_vault_publishes_nothing_a_second_time(photos, published, tmp_path):
    moved = tmp_path / "moved.safetensors"
    moved.write_bytes(published.read_bytes())
    with pytest.raises(MissingData, match="--vault"):
        run("apply", moved, photos / "000.png")
    first = answers(published, photos / "000.png")
    vault = published.with_name(published.name + ".vault")
    assert answers(moved, photos / "000.png", "--vault", vault) == first


def test_names_of_files_and_labels_command_no_terminal(photos, model, tmp_path):
    for name in ("[/].png", "[red]x.png", "\x1b[31mred.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((photos / "000.png").read_bytes())
    (tmp_path / "\x1bbad.png").write_bytes(b"no picture")
    done = run("apply", model, tmp_path)
    assert all(name in done.stdout for name in ("[/].png", "[red]x.png", r"\x1b[31mred.png"))
    assert "\x1b" not in done.output + done.stderr


def test_features_of_private_photos_are_kept_nowhere(photos, tmp_path, monkeypatch):
    monkeypatch.setattr("blindsight.tagging.photos.encoder_prior", made_up_prior)
    monkeypatch.setattr(
        BuiltIn, "images", lambda self, pixels: np.ones((len(pixels), self.dimensions), np.float32)
    )
    before = {path for path in cache_folder().rglob("*") if path.is_file()}
    out = tmp_path / "net.safetensors"
    words = ("--labels", photos / "labels.csv", "--vocabulary", "red,green,blue", "--out", out)
    trained = run("train", photos, *words, "--public", photos, "--epsilon", 0.5)
    assert "Expect no gain on public knowledge" in " ".join(trained.stderr.split())
    run("apply", out, photos / "000.png")
    assert {path for path in cache_folder().rglob("*") if path.is_file()} <= before


def test_words_alone_start_a_tagger_at_epsilon_zero(tmp_path, monkeypatch):
    monkeypatch.setattr("blindsight.tagging.photos.encoder_prior", made_up_prior)
    out = tmp_path / "words.safetensors"
    report = json.loads(run("start", "dog,beach", "--out", out, "--json").stdout)
    assert report["training"]["epsilon"] == "0"
    assert PrivateTagger.load(out).classes_.tolist() == ["dog", "beach"]


@pytest.fixture(scope="module")
def published(photos, tmp_path_factory):
    """A model for publishing tags, and its vault; written even if its answers happen to be worth
    nothing on the few photos held out.
    """
    out = tmp_path_factory.mktemp("published") / "public.safetensors"
    with mock.patch.object(Quality, "worth_it", True):
        train(photos, out, "--epsilon", 8, "--vocabulary", "red,green,blue", "--publish", 6)
    return out


def answers(*words):
    return {
        row["image"]: row["scores"]
        for row in json.loads(run("apply", *words, "--json").stdout)["answers"]
    }


def test_a_photo_s_tags_are_published_once_and_charged_once_whatever_happens_to_it(
    photos, published, tmp_path
):
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
        run(
            "apply",
            published,
            photos,
            "--vault",
            tmp_path / "new",
            "--ledger",
            place,
            "--dataset",
            "other",
        )


def test_what_is_given_away_may_have_random_ids(photos, published, model, tmp_path):
    vault = ("--vault", tmp_path / "vault")
    copies = tmp_path / "copies"
    copies.mkdir()
    (copies / "again.png").write_bytes((photos / "003.png").read_bytes())
    shown = run("apply", published, photos, copies, *vault, "--ids", "--csv").stdout
    assert ".png" not in shown
    listed = [line.split(",")[0] for line in shown.splitlines()[1:]]
    assert listed == sorted(set(listed))  # an order that tells nothing of the files
    assert len(listed) == 200  # distinct images, however many copies there are
    with pytest.raises(InvalidParameter, match="exact"):
        run("apply", model, photos, "--ids")


def test_the_same_training_run_again_gives_the_same_model_and_is_charged_once(photos, tmp_path):
    out, place = tmp_path / "m.safetensors", str(tmp_path / "ledger.db")
    ledger = Ledger(place, dataset=photos.name)
    ledger.grant(Cost(epsilon=9.0, delta=1e-4, unit="record", neighbours="add or remove one"))
    words = ("--epsilon", 8, "--vocabulary", "red,green,blue", "--ledger", place)
    shown = train(photos, out, *words).stdout
    shown = " ".join(shown.split())  # lines are wrapped where the path of the folder ends
    assert "keep it" in shown and "during training" in shown
    first = out.read_bytes()
    out.unlink()
    train(photos, out, *words)
    assert out.read_bytes() == first
    assert ledger.balance("record", "add or remove one").spent.epsilon == pytest.approx(
        8.0, abs=0.1
    )
    with pytest.raises(BudgetExceeded):
        train(photos, out, *words, "--delta", 1e-6)


@pytest.mark.parametrize("lost", ["models", "vault restored", "killed after the charge"])
def test_one_charge_never_pays_for_two_different_models(photos, tmp_path, lost):
    out, place, vault = tmp_path / "m.safetensors", str(tmp_path / "l.db"), tmp_path / "vault"
    ledger = Ledger(place, dataset=photos.name)
    ledger.grant(Cost(epsilon=30.0, delta=1e-4, unit="record", neighbours="add or remove one"))
    Vault.create(vault)
    shutil.copytree(vault, tmp_path / "backup")
    words = ("--epsilon", 8, "--vocabulary", "red,green,blue", "--ledger", place, "--vault", vault)
    if lost == "killed after the charge":
        with (
            mock.patch.object(PrivateTagger, "save", side_effect=KeyboardInterrupt),
            pytest.raises((KeyboardInterrupt, SystemExit)),
        ):
            train(photos, out, *words)
            raise SystemExit  # the runner turns an interrupt into an exit code
        assert not out.exists()
    train(photos, out, *words)
    first = out.read_bytes()
    out.unlink()
    if lost == "models":
        shutil.rmtree(vault / "models")
    elif lost == "vault restored":
        shutil.rmtree(vault)
        shutil.copytree(tmp_path / "backup", vault)
    with contextlib.suppress(RolledBack):  # refused, with a sentence on what to do
        train(photos, out, *words)
    assert not out.exists() or out.read_bytes() == first
    spent = ledger.balance("record", "add or remove one").spent.epsilon
    assert spent == pytest.approx(8.0, abs=0.1)


def test_photos_in_a_folder_that_cannot_be_read_are_named_and_left_out(photos, model, tmp_path):
    (tmp_path / "good.png").write_bytes((photos / "000.png").read_bytes())
    (tmp_path / "bad.png").write_bytes(b"no picture")
    done = run("apply", model, tmp_path)
    assert "good.png" in done.stdout
    assert "left out" in done.stderr and "bad.png" in done.stderr


def test_answers_that_say_nothing_are_not_sold(photos, tmp_path):
    """Fixed bytes stand in for the operating system's entropy: by chance, answers of pure noise can
    look good on a few held-out photos, and this test must not fail then.
    """
    out = tmp_path / "none.safetensors"
    options = ("--epsilon", 0.01, "--vocabulary", "red,green,blue", "--publish", 0.01)
    with (
        mock.patch("os.urandom", np.random.default_rng(0).bytes),
        pytest.raises(InvalidData, match="No model was written"),
    ):
        train(photos, out, *options)
    assert not out.exists()


def test_tags_of_a_fixed_seed_are_refused_before_anything_is_read(tmp_path):
    with pytest.raises(InvalidParameter, match="--publish and --seed exclude each other"):
        run("train", tmp_path / "nosuch", "--labels", "folders", "--publish", 8, "--seed", 3)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"not an image", b"\x89PNG\r\n\x1a\n" + bytes(30), b"\xff\xd8\xff\xe0" + bytes(100)],
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


@pytest.mark.parametrize(
    "said",
    [
        "pixels",
        {"kind": "pixels", "size": 10**6},
        {"kind": "pixels"},
        {"kind": 3, "size": 6},
        {"size": -1},
        7,
    ],
)
def test_a_model_that_wants_other_features_than_it_has_is_refused(photos, model, tmp_path, said):
    arrays, fields = storage.load(model, kind="private tagger")
    fields["public"]["extractor"] = said
    storage.save(tmp_path / "bad.safetensors", kind="private tagger", arrays=arrays, fields=fields)
    with pytest.raises(HostileFile):
        run("apply", tmp_path / "bad.safetensors", photos / "000.png")


def test_a_label_that_commands_a_terminal_or_a_spreadsheet_is_refused(photos, model, tmp_path):
    arrays, fields = storage.load(model, kind="private tagger")
    for bad in ("\x1b[31mred", "=HYPERLINK(1)", "a;b"):
        fields["public"]["classes"] = [bad, "green", "blue"]
        storage.save(
            tmp_path / "bad.safetensors", kind="private tagger", arrays=arrays, fields=fields
        )
        with pytest.raises(HostileFile):
            run("apply", tmp_path / "bad.safetensors", photos / "000.png")


def test_what_cannot_be_trained_on_is_refused(photos, tmp_path):
    with pytest.raises(InvalidParameter, match="features"):
        run("train", photos, "--labels", photos / "labels.csv", "--features", "magic")
    with pytest.raises(InvalidParameter, match="--labels"):
        run("train", photos)
    with pytest.raises(MissingData, match="--labels"):
        run("train", photos / "labels.csv")
    with pytest.raises(InvalidData, match="multi-label"):
        run("train", "digits")


def test_a_vocabulary_for_a_published_set_names_its_labels(monkeypatch):
    known = MultiLabelSet(np.eye(2, dtype=np.uint8), None, np.eye(2), ("sea", "sky"))
    monkeypatch.setattr("blindsight.data.load", lambda *_, **__: known)
    with pytest.raises(InvalidParameter, match="must name labels that scene has: sea, sky"):
        run("train", "scene", "--vocabulary", "sea,dog")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "image,labels\n",
        "file,tags\na.png,x\n",
        "image,labels\n../../secret.png,x\n",
        "image,labels\n,x\n",
    ],
)
def test_label_files_that_are_wrong_are_refused(tmp_path, text):
    path = tmp_path / "labels.csv"
    path.write_text(text)
    with pytest.raises((InvalidData, MissingData)):
        read_labels(path, tmp_path)


def test_label_files_follow_the_vocabulary_and_leave_out_what_it_does_not_name(photos):
    assert read_labels(photos / "labels.csv", photos).photos.classes == ("blue", "green", "red")
    read = read_labels(photos / "labels.csv", photos, {"Red": (), "yellow": (), "sea": ("BLUE",)})
    assert read.photos.classes == ("Red", "yellow", "sea")
    assert read.photos.labels.sum(axis=0).tolist()[1] == 0
    assert (
        read.photos.labels[:, [0, 2]].sum(axis=0) > 0
    ).all()  # in another case, and by another name
    assert read.left_out == ("green",)


def one_photo(folder, labels, *, name="a.png"):
    Image.new("RGB", (4, 4), (1, 2, 3)).save(folder / name)
    (folder / "labels.csv").write_bytes(labels)
    return read_labels(folder / "labels.csv", folder).photos


def test_label_files_of_spreadsheets_are_read(tmp_path):
    marked = one_photo(
        tmp_path, "\ufeffImage, Labels \r\na.png,  dog ;;cafe\u0301; \r\n\r\n".encode()
    )
    assert marked.classes == ("café", "dog")
    assert one_photo(tmp_path, b'labels,note,image\n"dog;cat","x, y",a.png\n').classes == (
        "cat",
        "dog",
    )
    assert one_photo(
        tmp_path, b"image,labels\na.png\na.png,dog\n./a.png,cat\n"
    ).labels.tolist() == [[1, 1]]
    assert one_photo(tmp_path, b"a.png,dog,cat\n").classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"image,note\na.png,dog\n", "labels.csv has no column with labels: image, note. Name one"),
        (b"image,labels\na.png,dog,cat\n", "line 2 of labels.csv has 3 columns"),
        (b'image,labels\na.png,"dog\n', "Check its quotes"),
        (b"image,labels\na.png,dog\n\0", "Save it as CSV in UTF-8"),
        (b"image,labels\na.png,=1+1\n", "begins with none of ="),
        (b"image,labels\na.png,\x1b[31mdog\n", "printable"),
    ],
)
def test_what_is_wrong_with_a_label_file_is_said(tmp_path, text, says):
    with pytest.raises((InvalidData, InvalidParameter), match=re.escape(says)):
        one_photo(tmp_path, text)


@pytest.mark.parametrize("name", ["no.png", "a" * 300 + ".png", "sub", "/etc/passwd", "../b.png"])
def test_images_that_are_not_there_are_named_and_stop_nothing(tmp_path, name):
    (tmp_path / "sub").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    (tmp_path / "labels.csv").write_text(f"image,labels\na.png,x\n{name},dog\n")
    read = read_labels(tmp_path / "labels.csv", tmp_path)
    assert read.missing == (name,)
    assert read.photos.names.tolist() == ["a.png"]
    (tmp_path / "labels.csv").write_text(f"image,labels\n{name},dog\n")
    with pytest.raises(MissingData, match="none of the 1 photos"):
        read_labels(tmp_path / "labels.csv", tmp_path)


def test_a_vocabulary_is_a_file_or_words(tmp_path):
    (tmp_path / "words.txt").write_text("dog\n\n cat \ndog\n")
    assert list(read_vocabulary(str(tmp_path / "words.txt"))) == ["dog", "cat"]
    assert read_vocabulary("dog, tv = television / screen") == {
        "dog": (),
        "tv": ("television", "screen"),
    }
    for wrong, error in ((" , ", InvalidData), ("missing.txt", MissingData)):
        with pytest.raises(error):
            read_vocabulary(wrong)


def test_a_missing_budget_is_said_before_a_photo_is_read(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "blindsight.app.train_tagger.read_features",
        lambda *_: pytest.fail("photos were read first"),
    )
    with pytest.raises(BudgetExceeded, match="no budget yet"):
        train(
            photos,
            tmp_path / "m.safetensors",
            "--vocabulary",
            "red,green,blue",
            "--ledger",
            tmp_path / "ledger.db",
        )


@pytest.mark.parametrize(
    ("found", "worth"), [((0.5, 0.5), True), ((0.15, 0.5), False), ((0.5, 0.2), False)]
)
def test_answers_are_worth_something_where_they_beat_label_rates_in_order_and_in_tags(found, worth):
    assert Quality(*found, rates_mAP=0.1, rates_OF1=0.3).worth_it is worth
