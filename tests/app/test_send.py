"""Sending statistics of a folder: charged once, the same bytes again, refused where hopeless."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from blindsight.app.send import learn_from_statistics, predict_sending, send_statistics
from blindsight.cli.main import app
from blindsight.core.errors import BudgetExceeded, InvalidData, InvalidParameter
from blindsight.privacy import Cost, Ledger
from blindsight.sketching import FeatureStatistics, PrivateHead


def _write(folder, count=120, seed=0):
    """Red and blue pictures in two subfolders."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        name = ("blue", "red")[number % 2]
        (folder / name).mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 99, (8, 8, 3))
        pixels[..., 0 if number % 2 else 2] += 150
        Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number:03d}.png")
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return _write(tmp_path_factory.mktemp("send") / "photos")


def _ledger(path, epsilon=20.0):
    ledger = Ledger(path, dataset="photos")
    ledger.grant(Cost(epsilon=epsilon, delta=1e-3, unit="record", neighbours="add or remove one"))
    return ledger


def _spent(path):
    (balance,) = Ledger(path, dataset="photos").balances()
    return balance.spent.epsilon


OPTIONS = {"epsilon": 8.0, "encoder": "pixels", "dataset": "photos"}


def test_the_same_again_is_byte_identical_and_free_also_after_the_file_is_lost(photos, tmp_path):
    _ledger(tmp_path / "budget.db")
    out = tmp_path / "sent.statistics"
    first = send_statistics(photos, out, ledger=tmp_path / "budget.db", **OPTIONS)
    content, spent = out.read_bytes(), _spent(tmp_path / "budget.db")
    assert first.charged and spent == pytest.approx(8.0, rel=1e-3)
    out.unlink()
    again = send_statistics(photos, out, ledger=tmp_path / "budget.db", **OPTIONS)
    assert not again.charged
    assert out.read_bytes() == content and _spent(tmp_path / "budget.db") == spent


def test_another_epsilon_is_another_release_with_other_noise_and_another_charge(photos, tmp_path):
    _ledger(tmp_path / "budget.db")
    out = tmp_path / "sent.statistics"
    send_statistics(photos, out, ledger=tmp_path / "budget.db", **OPTIONS)
    changed = {**OPTIONS, "epsilon": 9.0}
    with pytest.raises(InvalidParameter, match="holds another release"):
        send_statistics(photos, out, ledger=tmp_path / "budget.db", **changed)
    assert _spent(tmp_path / "budget.db") == pytest.approx(8.0, rel=1e-3)
    send_statistics(photos, out, ledger=tmp_path / "budget.db", force=True, **changed)
    assert _spent(tmp_path / "budget.db") > 9.0


def test_missing_photos_are_listed_and_nothing_to_learn_is_said_before_the_charge(photos, tmp_path):
    names = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.png"))
    lines = [f"{name},{name[:3]}\n" for name in names]
    (tmp_path / "labels.csv").write_text("".join(["image,label\n", *lines, "nowhere.png,red\n"]))
    _ledger(tmp_path / "budget.db")
    options = {**OPTIONS, "labels": tmp_path / "labels.csv", "ledger": tmp_path / "budget.db"}
    with pytest.raises(InvalidData, match=r"nothing to learn from\. Nothing was charged"):
        send_statistics(photos, tmp_path / "none", classes=["cat", "dog"], **options)
    assert _spent(tmp_path / "budget.db") == 0
    sent = send_statistics(photos, tmp_path / "sent", classes=["blu", "red"], **options)
    assert [kind.first for kind in sent.files.skipped] == [("nowhere.png",)]


def test_without_budget_nothing_is_written(photos, tmp_path):
    _ledger(tmp_path / "budget.db", epsilon=1.0)
    out = tmp_path / "sent.statistics"
    with pytest.raises(BudgetExceeded):
        send_statistics(photos, out, ledger=tmp_path / "budget.db", **OPTIONS)
    assert not out.exists() and _spent(tmp_path / "budget.db") == 0


def test_too_few_images_are_refused_before_a_vault_or_a_charge_exists(photos, tmp_path):
    out = tmp_path / "sent.statistics"
    with pytest.raises(InvalidParameter, match="At least 150 images are needed"):
        send_statistics(photos, out, epsilon=1.0, encoder="pixels", classes="blue,red,a,b")
    assert list(tmp_path.iterdir()) == []
    assert predict_sending(120, 2, epsilon=1.0).level == "poor"


def test_what_is_sent_teaches_a_receiver_and_so_does_a_head(photos, tmp_path):
    own = _write(tmp_path / "own", seed=5)
    sent = send_statistics(photos, tmp_path / "s", random_state=0, **OPTIONS)
    learned = learn_from_statistics(sent.file, test=own, out=tmp_path / "model")
    assert learned.accuracy > 0.95 and learned.chance == 0.5 and "chance: 50.0%" in learned.title
    head = send_statistics(photos, tmp_path / "h", kind="head", random_state=0, **OPTIONS)
    assert head.kind == "head" and PrivateHead.load(head.file).classes_.tolist() == [
        "blue",
        "red",
    ]


def test_senders_with_one_basis_merge(photos, tmp_path):
    _write(tmp_path / "other", seed=3)
    files = [
        send_statistics(
            source, tmp_path / name, random_state=number, senders_images=240, **OPTIONS
        ).file
        for number, (source, name) in enumerate(((photos, "a"), (tmp_path / "other", "b")))
    ]
    learned = learn_from_statistics(files, test=photos)
    assert learned.n_senders == 2 and learned.accuracy > 0.95


def test_a_copy_of_a_picture_is_the_same_record_in_whatever_class(photos, tmp_path):
    folder = _write(tmp_path / "photos")
    copied = folder / "red" / "copy.png"
    copied.write_bytes((folder / "blue" / "000.png").read_bytes())
    sent = send_statistics(folder, tmp_path / "s", **OPTIONS)
    assert sent.n_images == 120


def test_people_are_protected_together(photos, tmp_path):
    table = tmp_path / "people.csv"
    names = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.png"))
    rows = [f"{name},person{number // 4}" for number, name in enumerate(names)]
    table.write_text("\n".join(["image,who", *rows]))
    sent = send_statistics(
        photos, tmp_path / "s", people=f"{table}:who", images_per_person=4, **OPTIONS
    )
    assert sent.guarantee.unit == "person"
    assert sent.guarantee.epsilon == pytest.approx(8.0, rel=1e-2)
    assert FeatureStatistics.load(sent.file).guarantee_ == sent.guarantee


def test_labels_from_a_table_need_stated_classes(photos, tmp_path):
    table = tmp_path / "labels.csv"
    names = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.png"))
    rows = [f"{name},{name.partition('/')[0]}" for name in names]
    table.write_text("\n".join(["image,label", *rows]))
    with pytest.raises(InvalidParameter, match="state the names of the classes"):
        send_statistics(photos, tmp_path / "s", labels=table, **OPTIONS)
    sent = send_statistics(photos, tmp_path / "s", labels=table, classes="blue,red", **OPTIONS)
    assert sent.n_images == 120 and sent.without_class == 0


def test_a_public_folder_that_holds_the_photos_is_refused(photos, tmp_path):
    with pytest.raises(InvalidData):
        send_statistics(photos, tmp_path / "s", public=photos, **OPTIONS)


def test_the_commands_send_predict_and_fit(photos, tmp_path):
    run = CliRunner()
    out = tmp_path / "sent.statistics"
    made = run.invoke(
        app,
        [
            "send",
            str(photos),
            str(out),
            "--epsilon",
            "8",
            "--encoder",
            "pixels",
            "--seed",
            "0",
            "--json",
        ],
    )
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout)["images"] == 120
    told = run.invoke(app, ["send", "predict", "100", "10"])
    assert told.exit_code == 0 and "hardly more than chance" in told.stdout
    fitted = run.invoke(app, ["send", "fit", str(out), "--test", str(photos), "--json"])
    assert fitted.exit_code == 0, fitted.output
    assert json.loads(fitted.stdout)["accuracy"] > 0.95
