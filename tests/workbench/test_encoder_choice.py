"""Protect offers networks and folders of ONNX files, and asks what the photos are about."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from blindsight.app.encoders import export_encoder
from blindsight.app.library import photos as photo_library
from blindsight.app.library import sending
from blindsight.app.library.search import open_index
from blindsight.core.errors import InvalidParameter, MissingData
from blindsight.encoders import OnnxEncoder
from blindsight.privacy import Ledger
from blindsight.sketching import FeatureStatistics
from blindsight.workbench.infra.federations import Federations
from blindsight.workbench.pages import budget, compare, protect, send, tags
from public_knowledge import few_public_names_and_pictures
from workbench.asgi import Client
from workbench.photos import album, as_bytes, confirm_names, light, photo, scanned, work  # noqa: F401


@pytest.fixture(scope="module", autouse=True)
def few_names() -> Iterator[None]:
    with few_public_names_and_pictures("beach", "sunset", "forest", "sand", "sea", "dusk"):
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with photos and an image-text pair in CLIP's layout."""
    root = tmp_path_factory.mktemp("root")
    album(root / "coast", each=10)
    try:
        export_encoder("lite0", root / "pair", pair=True)
    except MissingData as error:
        pytest.skip(str(error))
    return root


def test_a_pair_goes_through_every_page(
    make: Callable[..., Any], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Federations, "go_on", lambda *_: None)
    for module in (sending, send):
        monkeypatch.setattr(module, "SEND_EPSILON", 16.0)
    app = make(photos=(root,), photo_budget=100.0)
    client, reader, datasets = Client(app), Client(app), app.state.workbench.datasets
    pair = OnnxEncoder(root / "pair")

    # Protect: choose, read, measure, release.
    page = reader.get("/protect").text
    assert "What are your photos about? (public words)" in page and "your own: pair" in page
    order = {"folder": "coast", "encoder": str(root / "pair"), "about": "beach, sunset, forest"}
    answer = client.post("/api/protect/folder", json=order)
    assert answer.status_code == 202, answer.text
    number = answer.json()["next"].rpartition("/")[2]
    work(app, protect, {"step": "scan", "dataset": number})
    one = datasets.get(number)
    assert one.own_names == ("beach", "sunset", "forest")
    assert photo_library.rows_of(datasets, one).shape == (40, pair.dimensions)
    assert "photos read" in reader.get(f"/protect/{number}").text
    order = {"epsilon": 8, "sure": True, "accept_chance": True}
    job = client.post(f"/api/protect/{number}/release", json=order).json()["job"]
    work(app, protect, app.state.workbench.jobs.get(job)["arguments"])
    one = datasets.get(number)
    (release,) = one.releases
    about = json.loads((datasets.folder(release) / "about.json").read_bytes())
    assert about["recipe"]["identity"] == pair.identity()
    assert about["recipe"]["own_names"] == ["beach", "sunset", "forest"]
    assert str(root) not in (datasets.folder(release) / "about.json").read_text()

    # Search: by a picture, by a stored photo and by a sentence of any words.
    assert open_index(datasets, one, release).takes_words
    picture = as_bytes(photo("sand", 3))
    headers = {"content-type": "image/jpeg"}
    hits = client.post(f"/api/search/{number}/upload", content=picture, headers=headers)
    assert hits.json()["searched"] == 40, hits.text
    words = client.post(f"/api/search/{number}/words", json={"words": "a beach at dusk"}).json()
    assert words["groups"] and words["ignored"] == []
    stored = datasets.photos(one)[0].id
    assert client.post(f"/api/search/{number}/photo/{stored}").json()["groups"]

    # Tags from words, learned tags, statistics, comparisons, and the attack on the release.
    confirm_names(app, one)
    assert client.post(f"/api/tags/{number}/words").status_code == 202
    work(app, tags, {"dataset": number, "step": "words"})
    work(app, tags, {"dataset": number})
    work(app, send, {"dataset": number, "step": "statistics"})
    photos = datasets.photos(one)
    kinds = [photo.name.partition("/")[0] for photo in photos]
    answers = [
        [photos[a].id, photos[b].id, "same" if kinds[a] == kinds[b] else "different"]
        for step in (1, 2, 3)
        for a, b in zip(range(40), (*range(step, 40), *range(step)), strict=True)
    ]
    (datasets.vault(one) / "pairs.json").write_text(json.dumps(answers))
    work(app, compare, {"dataset": number})
    releases = {each.kind: each for each in datasets.get(number).releases}
    assert {"search", "tags", "statistics", "metric"} <= set(releases)
    sent = datasets.folder(releases["statistics"]) / sending.STATISTICS_FILE
    assert FeatureStatistics.load(sent).public_["encoder"] == pair.identity()
    assert work(app, budget, {"release": release.id}) == {"refuted": False}
    for address in ("/", "/search", "/tags", "/compare", "/send", "/together", "/budget"):
        assert reader.get(f"{address}?dataset={number}").status_code == 200, address

    # Together: the invitation names the encoder by its digest, and other photos are refused.
    order = {"title": "Tags", "dataset": number, "sites": "Harbour, County", "noise": "8"}
    made = client.post("/api/together/start", json=order)
    assert made.status_code == 201, made.text
    run = made.json()["next"].rpartition("=")[2]
    label = app.state.workbench.federations.get(run).features
    assert "lite0-128-pair" in label and str(root) not in label
    site = client.get(f"/api/together/{run}").json()["sites"][1]["invitation"]
    text = client.get(site).content
    other = scanned(app, root / "coast", "Read as pixels")
    join = f"/api/together/join/upload?dataset={other.id}"
    refused = client.post(join, content=text, headers={"content-type": "text/plain"})
    assert refused.json()["error"] == "other_features"


def test_features_of_an_encoder_that_has_changed_are_refused(
    make: Callable[..., Any], root: Path, tmp_path: Path
) -> None:
    app = make(photos=(root, tmp_path))
    shutil.copytree(root / "pair", tmp_path / "pair")
    datasets = app.state.workbench.datasets
    one = datasets.add(
        "Coast", root / "coast", encoder=str(tmp_path / "pair"), own_names=("sea", "land")
    )
    one = photo_library.scan(datasets, one)
    settings = json.loads((tmp_path / "pair" / "encoder.json").read_bytes())
    settings["template"] = "a photo of {}"
    (tmp_path / "pair" / "encoder.json").write_text(json.dumps(settings))
    photo_library.image_encoder.cache_clear()
    with pytest.raises(InvalidParameter, match=r"features of Coast .* was made with the encoder"):
        photo_library.rows_of(datasets, one)


@pytest.mark.parametrize("encoder", ["/etc", "..", "resnet", "coast"])
def test_an_encoder_outside_of_the_roots_or_without_a_network_is_refused(
    make: Callable[..., Any], root: Path, encoder: str
) -> None:
    order = {"folder": "coast", "encoder": encoder}
    answer = Client(make(photos=(root,))).post("/api/protect/folder", json=order)
    expected = (422, "bad_encoder") if encoder == "coast" else (404, "not_found")
    assert (answer.status_code, answer.json()["error"]) == expected


def test_one_word_for_all_photos_is_refused(make: Callable[..., Any], root: Path) -> None:
    order = {"folder": "coast", "about": "coast, "}
    answer = Client(make(photos=(root,))).post("/api/protect/folder", json=order)
    assert (answer.status_code, answer.json()["error"]) == (422, "one_name")


def test_what_is_at_chance_is_released_only_with_an_explicit_word(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    app = make()
    one = scanned(app, album(tmp_path / "coast", each=3))
    workbench = app.state.workbench
    figures = {"at_chance": True, "hits": 2.5, "hits_luck": 2.4, "groups": 300, "groups_used": 2}
    preview = workbench.datasets.vault(one) / "preview-own.json"
    preview.write_text(json.dumps({"8": figures | {"by_copy": 0.1, "film": []}}))
    client, address = Client(app), f"/api/protect/{one.id}/release"
    page = Client(app).get(f"/protect/{one.id}").text
    assert "Search finds little more than chance." in page
    assert 'name="accept_chance"' in Client(app).get(f"/protect/{one.id}/confirm?epsilon=8").text
    refused = client.post(address, json={"epsilon": 8, "sure": True})
    assert (refused.status_code, refused.json()["error"]) == (409, "at_chance")
    order = {"epsilon": 8, "sure": True, "accept_chance": True}
    job = workbench.jobs.get(client.post(address, json=order).json()["job"])
    with pytest.raises(InvalidParameter, match="Nothing was charged"):
        work(app, protect, job["arguments"] | {"accept_chance": False})
    # Run again, such an order would be refused again: its page asks for the word, and orders anew.
    late = workbench.jobs.add("protect", job["arguments"] | {"accept_chance": False}, "local")
    workbench.jobs._set(late["id"], state="failed", note="refused")
    asked = Client(app).get(f"/protect/{one.id}/{job['arguments']['release']['id']}").text
    assert "all the same</button>" in asked and f"/api/jobs/{late['id']}/rerun" not in asked
    with Ledger(workbench.settings.ledger_place, dataset=one.account) as ledger:
        assert ledger.balance("record").spent.epsilon == 0
    assert work(app, protect, job["arguments"]) == {"photos": 12}
