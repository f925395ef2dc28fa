"""People are protected as one however many photos they are on; tags are published with a price, or exported for you."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blindsight.features.words import words_available
from blindsight.privacy import Ledger
from blindsight.service.infra.datasets import DataSet, Release, today
from blindsight.service.pages import budget, photo_library, protect, send, tag_learning
from service.asgi import Client
from service.photos import ALBUM, album, light, scanned, state  # noqa: F401
from service.test_protect import work


def people(app: Any, folder: Path, person: str, most: int) -> DataSet:
    from blindsight.service.pages.home import open_account

    datasets = app.state.studio.datasets
    one = datasets.add("Albums", folder, person=person, most=most)
    open_account(app.state.studio, one)
    return photo_library.scan(datasets, one, lambda *_: None)


def released(app: Any, one: DataSet, epsilon: float) -> Release:
    datasets = app.state.studio.datasets
    made = Release(one.id, "search", datasets.new_folder(one, "search", epsilon), epsilon, 0, today(), False)
    work(app, protect, {"step": "release", "dataset": one.id, "release": made.__dict__})
    found: Release = datasets.get(one.id).release(made.id)
    return found


def spent(app: Any, one: DataSet, unit: str) -> float:
    with Ledger(app.state.studio.settings.ledger_place, dataset=one.account) as ledger:
        return float(ledger.balance(unit).spent.epsilon)  # type: ignore[arg-type]


def table(folder: Path, skip: int = 2) -> None:
    """A table of persons for all photos of an album but `skip` of them."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("IMG_*.jpg"))
    with (folder / "people.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["photo", "person"])
        writer.writerows([name, f"Anna Mueller {n % 5}"] for n, name in enumerate(names[skip:]))


@pytest.mark.parametrize("person", ["folder", "people.csv:person"])
def test_of_each_person_at_most_so_many_photos_are_released_and_the_books_speak_of_people(
    make: Callable[..., Any], tmp_path: Path, person: str
) -> None:
    folder = album(tmp_path / "study", each=10)
    if person != "folder":
        table(folder)
    (folder / "broken.jpg").unlink()
    app = make()
    one = people(app, folder, person, 4)
    count = 4 if person == "folder" else 5
    assert (one.people, one.unit, one.photos) == (count, "person", 40 if person == "folder" else 38)
    assert [why for _, why in one.refused] == [] if person == "folder" else ["nobody is known whose it is"] * 2
    release = released(app, one, 4.0)
    assert (release.photos, release.left_out) == (4 * count, one.photos - 4 * count)
    assert (spent(app, one, "record"), spent(app, one, "person")) == (4.0, 16.0)
    card = (app.state.studio.datasets.folder(release) / "card.txt").read_text()
    assert "person" in card
    given = b"".join(
        path.read_bytes() for path in app.state.studio.datasets.folder(release).rglob("*") if path.is_file()
    )
    assert b"Mueller" not in given
    page = Client(app).get("/").text
    assert "each <b>person</b> is protected" in page
    assert "because a person may give at most 4" in page
    refused = Client(app).post(f"/api/protect/{one.id}/release", json={"epsilon": 4, "sure": True})
    assert (refused.status_code, refused.json()["error"]) == (409, "budget"), "24 per person allows one such release"


def test_whom_to_protect_is_chosen_on_the_page_and_a_table_must_be_there(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    folder = album(tmp_path / "study", each=2)
    table(folder, skip=0)
    client = Client(make(photos=(folder,)))
    order = {"folder": str(folder), "protect": "table", "table": "people.csv", "column": "person", "most": 2}
    for wrong in ({"table": "none.csv"}, {"column": "none"}, {"table": "../people.csv"}, {"table": "/etc/passwd"}):
        assert client.post("/api/protect/folder", json={**order, **wrong}).status_code == 422, wrong
    assert client.post("/api/protect/folder", json={**order, "most": 0}).status_code == 422
    assert client.post("/api/protect/folder", json=order).status_code == 202
    assert client.post("/api/protect/new", json={"name": "Drop", "protect": "dicom"}).status_code == 422
    assert client.post("/api/protect/new", json={"name": "Drop", "protect": "folder"}).status_code == 201


def thought(app: Any, one: DataSet) -> None:
    """Tags as a model might have given them: each photo's folder, surely."""
    datasets = app.state.studio.datasets
    chances = {p.id: [0.9 if p.name.startswith(name) else 0.1 for name in ALBUM] for p in datasets.photos(one)}
    stored = {"names": list(ALBUM), "chances": chances, "quality": {"when": "now", "epsilon": 4.0, "held": 1}}
    stored["quality"] |= {"right": 90, "found": 90}
    (datasets.vault(one) / "tags.json").write_text(json.dumps(stored))


def test_published_tags_have_no_name_are_charged_once_and_are_the_same_again(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    app = make()
    one = scanned(app, album(tmp_path / "coast", each=15))
    client = Client(app)
    assert client.post(f"/api/tags/{one.id}/publish", json={"sure": True}).status_code == 409, "before there are tags"
    thought(app, one)
    assert client.post(f"/api/tags/{one.id}/publish", json={}).status_code == 422
    assert client.post(f"/api/tags/{one.id}/publish", json={"sure": True}).status_code == 202
    order = {"dataset": one.id, "step": "publish", "release": "cd" * 6}
    work(app, tag_learning, order)
    path = next(app.state.studio.datasets.given.glob("*/tags.csv"))
    first = path.read_text()
    rows = list(csv.DictReader(io.StringIO(first)))
    assert len(rows) == 60
    assert not any(word in first for word in ("IMG_", "coast", str(tmp_path)))
    names = {photo.id: photo.name for photo in app.state.studio.datasets.photos(one)}
    right = sum(names[row["photo"]].startswith(row["tag"]) for row in rows)
    # 95 of 100 tell the truth: fewer than 42 of 60 would happen once in 10^9 runs.
    assert right >= 42
    work(app, tag_learning, order)
    assert path.read_text() == first
    assert spent(app, one, "record") == 4.0
    assert "Published tags" in Client(app).get("/").text
    work(app, budget, {"dataset": one.id, "release": order["release"]})
    attack = app.state.studio.datasets.get(one.id).release(order["release"]).attack
    assert 0 < attack["epsilon"] <= 4
    assert not attack["refuted"]
    assert "The promise held" in Client(app).get(f"/budget?release={order['release']}").text
    exported = Client(app).get(f"/api/tags/{one.id}/export.csv").text
    assert "IMG_0000.jpg" in exported


def test_of_people_tags_are_learned_and_published_of_at_most_so_many_photos(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    folder = album(tmp_path / "study", each=10)
    table(folder, skip=0)
    app = make(person_budget=64.0)
    one = people(app, folder, "people.csv:person", 3)
    thought(app, one)
    work(app, tag_learning, {"dataset": one.id, "step": "publish", "release": "cd" * 6})
    text = next(app.state.studio.datasets.given.glob("*/tags.csv")).read_text()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 15
    assert (spent(app, one, "record"), spent(app, one, "person")) == (4.0, 12.0)


def test_a_spreadsheet_cannot_be_made_to_run_a_name(make: Callable[..., Any], tmp_path: Path) -> None:
    folder = album(tmp_path / "coast", each=1)
    (folder / "sand" / "IMG_0000.jpg").rename(folder / "sand" / "x.jpg")
    (folder / "=cmd").mkdir()
    (folder / "sand" / "x.jpg").rename(folder / "=cmd" / "x.jpg")
    app = make()
    one = scanned(app, folder)
    text = Client(app).get(f"/api/tags/{one.id}/export.csv").text
    assert not any(cell[:1] in "=+-@" for line in csv.reader(io.StringIO(text)) for cell in line if cell)


def test_every_attacker_is_shown_what_it_gets_back_and_the_verdict_knows_the_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from PIL import Image

    from service.photos import photo

    squares = np.stack(
        [np.asarray(photo(kind, 1).convert("L").resize((64, 64), Image.Resampling.BILINEAR)) for kind in ALBUM]
    )
    monkeypatch.setattr(send, "_STEPS", 3)  # what a network learns is the library's to test
    sent, back, verdict = send.attack(squares, "Q6")
    assert sent.shape == squares.shape
    assert set(back) >= set(list(send.ATTACKERS)[:4])
    assert set(back) <= set(send.ATTACKERS)
    assert "64 x 64" in verdict


@pytest.mark.real
def test_words_find_photos_where_their_files_are(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make()
    one = scanned(app, album(tmp_path / "coast", each=3))
    released(app, one, 8.0)
    answer = Client(app).post(f"/api/search/{one.id}/words", json={"words": "a dog"})
    assert answer.json()["error"] == "needs_words", "photos that no network read know no words"
    if not words_available():
        pytest.skip("the files for words are not on this machine")
    monkeypatch.setattr("blindsight.index.encoder.default_features", lambda: "efficientnet")
    two = scanned(app, album(tmp_path / "coast", each=3), "Again")
    released(app, two, 8.0)
    found = Client(app).post(f"/api/search/{two.id}/words?rerank=true", json={"words": "a meadow"}).json()
    assert Counter(len(hit["id"]) for hit in found["groups"][0]["photos"]) == {32: found["groups"][0]["count"]}
    assert Client(app).post(f"/api/search/{two.id}/words", json={"words": "   "}).status_code == 422
    again = Client(app).post(f"/api/search/{two.id}/again/{found['query']}").json()
    assert not again["reranked"]
    assert Client(app).post(f"/api/search/{one.id}/again/{found['query']}").status_code == 404
