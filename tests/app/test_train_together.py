"""Sites bring photo folders of unequal size, lack classes, hold photos out, and learn one model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from blindsight.app.federation import accept_roster, agree_federation, join_federation, site_rows
from blindsight.app.train_together import (
    LabelledRows,
    plan_federation,
    read_labelled,
    train_together,
)
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.federated import FederatedClassifier
from blindsight.federated.deploy.folders import PartyFolder
from blindsight.privacy import Cost, Ledger

COLOURS = {"amber": (230, 160, 20), "blue": (20, 40, 220), "crimson": (200, 10, 50)}


def photos(folder: Path, counts: dict[str, int], seed: int = 0) -> Path:
    """A folder with a subfolder of noisy pictures of one colour for each class."""
    rng = np.random.default_rng(seed)
    for name, count in counts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            pixels = np.array(COLOURS[name]) + rng.normal(0, 60, (16, 16, 3))
            image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
            image.save(folder / name / f"{number}.png")
    return folder


@pytest.fixture
def sites(tmp_path: Path) -> list[Path]:
    """Three sites of unequal size; the second lacks the first class, the third the last."""
    counts = (
        {"amber": 30, "blue": 30, "crimson": 30},
        {"blue": 12, "crimson": 6},
        {"amber": 10, "blue": 20},
    )
    return [photos(tmp_path / f"site-{n}", c, seed=n) for n, c in enumerate(counts, start=1)]


def test_photo_folders_of_unequal_sites_give_one_model_that_names_classes(
    sites: list[Path], tmp_path: Path
) -> None:
    made = train_together(
        sites, encoder="pixels", encrypt=False, out=tmp_path / "model.safetensors"
    )
    assert made.classes == ("amber", "blue", "crimson")
    assert made.records == 138
    assert made.accuracy is not None and made.accuracy > 0.9
    assert [entry["sites"] for entry in made.rounds] == [3, 3, 3, 3]  # the last is the evaluation
    model = FederatedClassifier.load(tmp_path / "model.safetensors")
    new = read_labelled(photos(tmp_path / "new", {"crimson": 9}, seed=9), encoder="pixels")
    assert (model.predict(new.X) == "crimson").mean() > 0.9
    assert "A classifier of 3 classes, learned by 3 sites" in str(made)
    assert made.to_dict()["classifier"] is None


def test_a_site_that_lacks_a_class_learns_the_same_classes_as_the_others(sites: list[Path]) -> None:
    from blindsight.federated.deploy.plan import class_numbers

    lacking = read_labelled(sites[1], encoder="pixels")
    assert lacking.names == ("blue", "crimson")
    numbers = class_numbers(lacking.labels, ("amber", "blue", "crimson"))
    assert set(numbers.tolist()) == {1, 2}
    with pytest.raises(InvalidData, match="none of the agreed classes"):
        class_numbers(lacking.labels, ("amber", "blue"))


def test_epsilon_per_record_is_charged_before_training(sites: list[Path], tmp_path: Path) -> None:
    with Ledger(tmp_path / "budget.db", dataset="photos") as ledger:
        ledger.grant(Cost(epsilon=9.0, delta=1e-4, unit="record", neighbours="add or remove one"))
        made = train_together(
            sites, encoder="pixels", method="gradients", epsilon=8.0, rounds=8, encrypt=False,
            ledger=ledger,
        )  # fmt: skip
        assert made.guarantee.unit == "record"
        assert ledger.balance("record").spent.epsilon == pytest.approx(8.0, rel=0.02)


def test_the_evaluation_is_the_share_of_all_held_out_records(sites: list[Path]) -> None:
    rows = [read_labelled(site, encoder="pixels") for site in sites]
    planned = plan_federation(
        sites=3, names=list(COLOURS), encoder="pixels", holdout=0.3, records=100
    )
    plan, settings = planned.plan, planned.settings
    numbers = [np.array([sorted(COLOURS).index(name) for name in site.labels]) for site in rows]
    tasks = [plan.task(s.X, n, user=1) for s, n in zip(rows, numbers, strict=True)]
    weights = np.random.default_rng(3).normal(size=len(plan.initial))
    turn = plan.rounds + 1
    vectors = [settings.code.encode(task.vector(weights, turn, settings)) for task in tasks]
    mean = settings.code.decode(np.sum(vectors, axis=0)) / 3
    held = [task.held_out for task in tasks]
    W = weights.reshape(3, -1)
    right = [(X @ W[:, :-1].T + W[:, -1]).argmax(axis=1) == y for X, y in held]
    exact = np.concatenate(right).mean()
    assert plan.evaluation(mean) == pytest.approx(exact, abs=1e-3)
    assert 20 < len(np.concatenate(right)) < 70  # of 138, a share of .3 by each record's hash


def test_leaving_out_a_record_moves_no_other_record_to_the_other_side() -> None:
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(60, 4)), rng.integers(0, 3, 60)
    planned = plan_federation(sites=3, classes=3, features=4, holdout=0.4, records=100)
    whole = planned.plan.task(X, y, user=1).held_out[0]
    without = planned.plan.task(X[1:], y[1:], user=1).held_out[0]
    kept = {row.tobytes() for row in without}
    assert {row.tobytes() for row in whole} - kept <= {X[0].tobytes()}


def test_the_roster_has_the_classes_and_the_encoder_and_photos_are_matched_by_name(
    sites: list[Path], tmp_path: Path
) -> None:
    public = photos(tmp_path / "public", {"amber": 4, "blue": 4, "crimson": 4}, seed=7)
    requests = []
    for number in (1, 2, 3):
        address = "127.0.0.1:9" if number == 1 else None
        made = join_federation(tmp_path / f"p{number}", f"Site {number}", address=address)
        requests.append(made.request)
    agreed = agree_federation(
        tmp_path / "roster", requests, public=public, encoder="pixels", epsilon=4.0, holdout=0.2
    )
    assert agreed.classes == ("amber", "blue", "crimson")
    assert agreed.guarantee.unit == "record"
    party = PartyFolder(tmp_path / "p2")
    assert accept_roster(party.path, tmp_path / "roster").fingerprint == agreed.fingerprint
    X, numbers = site_rows(party, sites[1])
    assert len(X) == 18
    assert set(numbers.tolist()) == {1, 2}
    with pytest.raises(InvalidParameter, match="was made with the encoder"):
        site_rows(party, sites[1], encoder="lite0")
    with pytest.raises(InvalidData, match="none of the agreed classes"):
        (sites[1] / "crimson").rename(sites[1] / "red")
        site_rows(party, sites[1])


def test_labels_may_come_from_a_table(tmp_path: Path) -> None:
    folder = photos(tmp_path / "all", {"amber": 3, "blue": 3})
    lines = ["image,label", "amber/0.png,x", "blue/1.png,y", "blue/2.png,y"]
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    (folder / "blue" / "1.png").write_bytes(b"no picture")
    rows = read_labelled(folder, labels=tmp_path / "labels.csv", encoder="pixels")
    assert sorted(rows.labels.tolist()) == ["x", "y"]
    assert rows.skipped == 4  # three without a label, one that is no picture
    assert rows.files is not None
    assert "photos without exactly one label" in {kind.kind for kind in rows.files.skipped}


def test_what_excludes_each_other_is_refused(sites: list[Path]) -> None:
    with pytest.raises(InvalidParameter, match="need epsilon"):
        train_together(sites, method="gradients", encoder="pixels")
    with pytest.raises(InvalidParameter, match="give the classes"):
        plan_federation(sites=3, features=4)
    with pytest.raises(InvalidData, match="nothing is held out"):
        plan_federation(sites=3, classes=3, features=4, epsilon=1.0, unit="site", holdout=0.2)


def test_statistics_are_summed_once_with_noise_and_name_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from blindsight.privacy.entropy import SystemEntropy
    from blindsight.sketching import StatisticsClassifier

    drawn = np.random.default_rng(5)  # a fixed seed: the accuracy is the same every time
    monkeypatch.setattr(SystemEntropy, "bytes", lambda self, length: drawn.bytes(length))
    rng, centres = np.random.default_rng(6), np.random.default_rng(7).random((3, 12)) * 3
    public = tmp_path / "public.npz"
    np.savez(public, X=rng.random((200, 12)) * 3, y=np.repeat(["a", "b"], 100))
    paths = []
    for site, classes in enumerate((["a", "b", "c"], ["b", "c"], ["a", "c"])):
        labels = rng.choice(classes, 400 + 100 * site)
        rows = centres[[ord(name) - ord("a") for name in labels]] + rng.random((len(labels), 12))
        paths.append(tmp_path / f"{site}.npz")
        np.savez(paths[-1], X=rows, y=labels)
    made = train_together(
        paths, method="statistics", names=["a", "b", "c"], public=public, epsilon=8.0, records=600,
        encrypt=False, out=tmp_path / "model.safetensors",
    )  # fmt: skip
    assert [entry["round"] for entry in made.rounds] == [1, 2]
    assert made.guarantee.unit == "record" and made.guarantee.epsilon <= 8.0
    assert made.accuracy is not None and made.accuracy > 0.8
    loaded = StatisticsClassifier.load(tmp_path / "model.safetensors")
    assert (loaded.predict(centres + 0.5) == ["a", "b", "c"]).all()


def test_statistics_of_too_few_photos_are_advised_against() -> None:
    public = LabelledRows(np.random.default_rng(0).random((60, 12)), np.zeros(60, dtype=int))
    options = {"sites": 3, "method": "statistics", "names": list(COLOURS), "public": public}
    few = plan_federation(epsilon=1.0, records=20, **options)
    assert few.advice is not None and "too few" in few.advice
    enough = plan_federation(epsilon=1.0, records=2000, **options)
    assert enough.advice is None
    assert enough.plan.method == "statistics"
    with pytest.raises(InvalidParameter, match="epsilon per record"):
        plan_federation(**options)
