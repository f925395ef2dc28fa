"""Protect: photos are read and stay; a release names nobody, is charged once, and goes on after
kill -9.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import stat
import struct
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from blindsight import open_release
from blindsight.app.library import photos as photo_library
from blindsight.app.library import risks
from blindsight.app.library.accounts import account_ledger
from blindsight.app.library.datasets import Release, today
from blindsight.audit.release.measurement import measure
from blindsight.codebooks import Reading
from blindsight.core.errors import HostileFile
from blindsight.data.reading import FORMATS
from blindsight.privacy import Ledger
from blindsight.workbench.pages import budget, protect
from workbench import web
from workbench.asgi import Client, run
from workbench.photos import ALBUM, album, as_bytes, light, photo, released, scanned, work  # noqa: F401


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return album(tmp_path_factory.mktemp("photos") / "coast")


def test_an_empty_home_says_what_to_do(make: Callable[..., Any]) -> None:
    text = Client(make()).get("/").text
    assert "Protect a folder" in text
    assert "Share what your images know, not your images" in text


def test_only_folders_under_an_allowed_root_are_read(
    make: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    (folder / "way-out").symlink_to(tmp_path, target_is_directory=True)
    client = Client(make(photos=(folder,)))
    for path in ("/etc", "..", f"{folder}/..", "way-out", f"{folder}-other", "dusk/../../"):
        assert client.post("/api/protect/folder", json={"folder": path}).status_code == 404, path
    (folder / "way-out").unlink()
    assert client.post("/api/protect/folder", json={"folder": "dusk"}).status_code == 202
    assert (
        Client(make()).post("/api/protect/folder", json={"folder": str(folder)}).status_code == 404
    )


def test_folders_at_any_depth_are_opened_level_by_level_or_found(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    for name in ("2019/beach", "2020/beach", "2020/wood", ".hidden/beach"):
        (tmp_path / "archive" / name).mkdir(parents=True)
    (tmp_path / "archive" / "link").symlink_to(tmp_path / "archive" / "2019")
    client = Client(make(photos=(tmp_path / "archive",)))

    def listed(**query: str) -> list[tuple[str, bool]]:
        rows = client.get("/api/protect/folders", params=query).json()
        return [(row["path"].removeprefix(str(tmp_path)), row["inner"]) for row in rows]

    assert listed() == [("/archive", True)]
    assert listed(under=str(tmp_path / "archive")) == [
        ("/archive/2019", True),
        ("/archive/2020", True),
    ]
    assert listed(find="BEACH") == [("/archive/2019/beach", False), ("/archive/2020/beach", False)]
    assert listed(find="2020/wood") == [("/archive/2020/wood", False)]
    assert client.get("/api/protect/folders", params={"under": "/etc"}).status_code == 404


def test_folders_named_like_people_are_asked_about_before_anything_is_read(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    for place, names in (
        ("staff", ("Ada_Lovelace", "Alan Turing")),
        ("ward", ("patient 1", "Patient_02")),
        ("kinds", ("Blue Whale", "harbour", "street")),
    ):
        for name in names:
            (tmp_path / place / name).mkdir(parents=True)
            photo("dusk", 0).save(tmp_path / place / name / "1.jpg")
    app = make(photos=(tmp_path,))
    client = Client(app)
    for place in ("staff", "ward"):
        asked = client.post("/api/protect/folder", json={"folder": str(tmp_path / place)})
        assert (asked.status_code, asked.json()["error"]) == (409, "whose_folders")
    assert app.state.workbench.datasets.listed() == []
    for order in ({"folder": "kinds"}, {"folder": "staff", "protect": "photo"}):
        order["folder"] = str(tmp_path / order["folder"])
        assert client.post("/api/protect/folder", json=order).status_code == 202, order


def test_a_scan_reads_photos_names_what_it_cannot_read_and_spends_nothing(
    make: Callable[..., Any], folder: Path
) -> None:
    app = make(photos=(folder,))
    one = scanned(app, folder)
    assert one.photos == 80
    assert [name for name, _ in one.refused] == ["broken.jpg"]
    page = Client(app).get(f"/protect/{one.id}").text
    assert "80 photos read" in page
    assert "1 could not be" in page
    for address in (
        "/",
        "/search",
        "/tags",
        "/compare",
        "/send",
        "/together",
        "/budget",
        f"/protect/{one.id}",
    ):
        assert Client(app).get(address).status_code == 200, address
    with Ledger(app.state.workbench.settings.ledger_place, dataset=one.account) as ledger:
        assert ledger.balance("record").spent.epsilon == 0


def test_copies_are_one_record(make: Callable[..., Any], tmp_path: Path) -> None:
    here = album(tmp_path / "album", each=3)
    (here / "again").mkdir()
    (here / "again" / "moved.jpg").write_bytes((here / "dusk" / "IMG_0000.jpg").read_bytes())
    assert scanned(make(), here).photos == 12


def test_a_release_holds_no_name_no_path_and_no_order_of_the_photos(
    make: Callable[..., Any], folder: Path
) -> None:
    app = make()
    one = scanned(app, folder)
    release = released(app, one)
    datasets = app.state.workbench.datasets
    given = b"".join(
        path.read_bytes() for path in datasets.folder(release).rglob("*") if path.is_file()
    )
    for secret in ("IMG_", "coast", str(folder), *ALBUM):
        assert secret.encode() not in given, secret
    received = open_release(datasets.folder(release))
    received.verify(received.manifest.fingerprint)
    with pytest.raises(HostileFile):
        received.verify("0" * 32)
    ids, _, _ = photo_library.released_cells(datasets, one, release)
    assert sorted(received.entries["id"]) == sorted(ids)
    assert sorted(ids) == ids
    assert {photo.id for photo in datasets.photos(one)} == set(ids)
    for path in datasets.vault(one).rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 or path.parent != datasets.vault(
            one
        ), path
    assert stat.S_IMODE(datasets.vault(one).stat().st_mode) == 0o700


def test_a_release_is_charged_once_however_often_its_job_runs(
    make: Callable[..., Any], folder: Path
) -> None:
    app = make()
    one = scanned(app, folder)
    first = released(app, one)
    _, codes, _ = photo_library.released_cells(app.state.workbench.datasets, one, first)
    released(app, one)
    _, again, _ = photo_library.released_cells(app.state.workbench.datasets, one, first)
    np.testing.assert_array_equal(codes, again)
    with Ledger(app.state.workbench.settings.ledger_place, dataset=one.account) as ledger:
        assert ledger.balance("record").spent.epsilon == 8
    assert "Spent: 8 on the search index." in Client(app).get("/").text
    assert "Search index shared,Coast archive,photo,8,8" in Client(app).get("/api/history.csv").text


def test_two_releases_that_wait_together_do_not_share_a_folder(
    make: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    app = make()
    sets = [scanned(app, place) for place in (folder, album(tmp_path / "other", each=3))]
    orders = {}
    for one in sets:
        order = (
            Client(app)
            .post(f"/api/protect/{one.id}/release", json={"epsilon": 8, "sure": True})
            .json()
        )
        orders[one.id] = app.state.workbench.jobs.get(order["job"])["arguments"]
    for arguments in orders.values():
        work(app, protect, arguments)
    made = [app.state.workbench.datasets.get(one.id).releases[0] for one in sets]
    assert made[0].folder != made[1].folder
    for one, release in zip(sets, made, strict=True):
        ids, _, _ = photo_library.released_cells(app.state.workbench.datasets, one, release)
        assert set(ids) == {photo.id for photo in app.state.workbench.datasets.photos(one)}


def test_nothing_is_released_beyond_the_budget_or_without_consent(
    make: Callable[..., Any], folder: Path
) -> None:
    app = make(photo_budget=10.0)
    one = scanned(app, folder)
    client, address = Client(app), f"/api/protect/{one.id}/release"
    for order in ({"epsilon": 8}, {"epsilon": 8, "sure": False}, {"epsilon": -1, "sure": True}):
        assert client.post(address, json=order).status_code == 422
    answer = client.post(address, json={"epsilon": 16, "sure": True})
    assert (answer.status_code, answer.json()["error"]) == (409, "budget")
    assert client.post(address, json={"epsilon": 8, "sure": True}).status_code == 202


def test_an_epsilon_above_32_needs_an_explicit_word(make: Callable[..., Any], folder: Path) -> None:
    app = make(photo_budget=64.0)
    one = scanned(app, folder)
    order = {"epsilon": 40.0, "sure": True, "accept_chance": True}
    refused = Client(app).post(f"/api/protect/{one.id}/release", json=order)
    assert (refused.status_code, refused.json()["error"]) == (409, "large_epsilon")
    agreed = order | {"accept_large_epsilon": True}
    assert Client(app).post(f"/api/protect/{one.id}/release", json=agreed).status_code == 202


def test_the_card_says_whether_epsilon_was_chosen_after_looking(
    make: Callable[..., Any], folder: Path
) -> None:
    app = make(photo_budget=64.0)
    one = scanned(app, folder)
    datasets = app.state.workbench.datasets
    assert (
        "before anything was measured"
        in (datasets.folder(released(app, one)) / "card.txt").read_text()
    )
    Client(app).post(f"/api/protect/{one.id}/look")
    work(app, protect, {"step": "look", "dataset": one.id})
    one = datasets.get(one.id)
    page = Client(app).get(f"/protect/{one.id}?look=own").text
    assert "Strangers name what it shows" in page
    later = Release("cd" * 6, "search", "later", 4.0, 0, today(), one.looked)
    work(app, protect, {"step": "release", "dataset": one.id, "release": later.__dict__})
    assert "after looking" in (datasets.given / "later" / "card.txt").read_text()


def test_the_preview_is_measured_on_public_photos_and_the_card_says_that_nothing_was_looked_at(
    make: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    public = tmp_path / "public"
    for kind in ALBUM:
        (public / kind).mkdir(parents=True)
        for number in range(100, 112):
            photo(kind, number).save(public / kind / f"{number}.png")
    app = make(public=str(public))
    one = scanned(app, folder)
    work(app, protect, {"step": "scan", "dataset": one.id})
    page = Client(app).get(f"/protect/{one.id}").text
    assert "Measured on 48 public photos" in page
    assert page.count("What it shows: ") == 5
    found = risks.seen(app.state.workbench.datasets, one, "public")
    assert found is not None
    own = {p.id for p in app.state.workbench.datasets.photos(one)}
    shown = {name for each in ("plain", "2", "4", "8", "16") for name, _ in found[each]["film"]}
    assert shown and not shown & own
    for name in shown:
        assert Client(app).get(f"/api/datasets/{one.id}/photos/{name}").status_code == 200
    assert found["16"]["guess"] <= found["plain"]["guess"], "protection does not help a stranger"
    release = released(app, one)
    card = (app.state.workbench.datasets.folder(release) / "card.txt").read_text()
    assert "before anything was measured on these photos" in card
    # A copy of what is protected is not public.
    (public / "dusk" / "copy.jpg").write_bytes((folder / "dusk" / "IMG_0001.jpg").read_bytes())
    other = scanned(app, folder, "Again")
    work(app, protect, {"step": "scan", "dataset": other.id})
    assert risks.seen(app.state.workbench.datasets, other, "public") is None


def test_smaller_budgets_tell_less(make: Callable[..., Any], folder: Path) -> None:
    app = make()
    one = scanned(app, folder)
    rows = photo_library.rows_of(app.state.workbench.datasets, one)
    kinds = risks.kinds_shown(app.state.workbench.datasets, one)
    assert [each.source for each in kinds] == ["the folders they lie in"]
    found = [
        measure(
            photo_library.encoder(epsilon, "pixels"), rows, kinds, rng=np.random.default_rng(0)
        ).figures()
        for epsilon in (0.5, 16.0)
    ]
    assert found[0]["guess"] < found[1]["guess"]
    assert found[0]["by_copy"] < found[1]["by_copy"]
    assert found[0]["hits"] <= found[1]["hits"]
    assert found[0]["luck"] == 25


def test_a_release_can_be_attacked_and_the_answer_is_in_words(
    make: Callable[..., Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "blindsight.audit.release._EPSILONS", (2.0,)
    )  # other budgets are the library's to try
    app = make()
    one = scanned(app, folder)
    release = released(app, one)
    work(app, budget, {"dataset": one.id, "release": release.id})
    attack = app.state.workbench.datasets.get(one.id).release(release.id).attack
    assert 0 < attack["epsilon"] <= 8
    assert attack["luck"] == 25
    page = Client(app).get(f"/budget?release={release.id}").text
    assert "The promise held" in page
    assert "What this advises" in page
    assert "times in 100 a stranger who holds the index names what a photo shows" in page
    report = Client(app).get(f"/api/releases/{release.id}/report.html")
    assert report.status_code == 200
    assert "sandbox" in report.headers["content-security-policy"]
    assert "Attacked" in Client(app).get("/").text
    assert "{&#34;" not in page
    assert Client(app).get("/budget?release=000000000000").status_code == 404


def test_a_receiver_can_check_what_the_workbench_shares(
    make: Callable[..., Any], folder: Path
) -> None:
    from blindsight.release.manifest import check_folder

    app = make()
    release = released(app, scanned(app, folder))
    place = app.state.workbench.datasets.folder(release)
    manifest = check_folder(place)
    assert {"card.txt", "release.json"} <= set(manifest.files)


def _figures(page: str) -> list[tuple[str, ...]]:
    """The figures of a release as a page shows them: hits, guesses, copies."""
    return [
        (name, " ".join(re.sub(r"<span class=.word.>.*?</span>|<[^>]*>", " ", shown).split()))
        for name, shown in re.findall(r'data-figure="(\w+)">(.*?)(?:<svg|</p>)', page, re.S)
    ]


def test_every_page_shows_the_same_figures_of_a_release(
    make: Callable[..., Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blindsight.audit.release._EPSILONS", (2.0,))
    app = make(photo_budget=40.0)
    one = scanned(app, folder)
    Client(app).post(f"/api/protect/{one.id}/look")
    work(app, protect, {"step": "look", "dataset": one.id})
    release = released(app, one)

    def shown() -> dict[str, list[tuple[str, ...]]]:
        pages = {
            "Home": "/",
            "History": f"/budget?release={release.id}",
            "release": f"/protect/{one.id}/{release.id}",
        }
        found = {name: _figures(Client(app).get(address).text) for name, address in pages.items()}
        rows = Client(app).get(f"/protect/{one.id}?look=own").text
        row = re.search(r'data-row="8">(.*?)(?:data-row|</section>)', rows, re.S)
        assert row is not None
        return {**found, "Protect": _figures(row[1])}

    figures = shown()
    assert [name for name, _ in figures["Home"]] == ["hits", "guess", "copy"]
    assert all(each == figures["Home"] for each in figures.values()), figures
    measured = app.state.workbench.datasets.get(one.id).release(release.id).figures
    work(app, budget, {"dataset": one.id, "release": release.id})
    assert shown() == figures, "the attack measures the same release with the same draws"
    assert app.state.workbench.datasets.get(one.id).release(release.id).figures == measured
    kept = app.state.workbench.datasets.get(one.id).release(release.id)
    report = kept.attack
    assert report is not None and kept.figures is not None
    assert {name: report[name] for name in kept.figures if name != "photos"} == {
        name: value for name, value in kept.figures.items() if name != "photos"
    }
    path = app.state.workbench.datasets.vault(one) / "audits" / release.id / "report.json"
    written = json.loads(path.read_text())["measured"]
    assert round(100 * written["guessed"]["share"]) == kept.figures["guess"]
    assert round(written["search"]["hits"], 1) == kept.figures["hits"]
    assert written["singled_out"]["top1"] == kept.figures["by_copy"]


def test_photos_that_look_alike_are_not_sold_as_an_index(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blindsight.app.defaults.NETWORKS_OFFERED", {"lite0": "fast"})
    rng = np.random.default_rng(4)
    for number in range(60):
        pixels = np.full((64, 64, 3), 120) + rng.normal(0, 1.0, (64, 64, 3))
        (tmp_path / "scans" / f"{number % 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(
            tmp_path / "scans" / f"{number % 2}" / f"{number}.png"
        )
    app = make()
    one = scanned(app, tmp_path / "scans")
    work(app, protect, {"step": "scan", "dataset": one.id})
    own = risks.seen(app.state.workbench.datasets, one, "own")
    assert own is not None
    page = Client(app).get(f"/protect/{one.id}").text
    warned = "A search index would not be worth its price here" in page
    assert warned == own["8"]["at_chance"]
    assert f"use {own['8']['groups_used']} of {own['8']['groups']} groups" in page
    measured = json.loads(
        (app.state.workbench.datasets.vault(one) / "preview-own.json").read_bytes()
    )
    measured["8"] |= {"at_chance": True, "hits": 5.0, "hits_luck": 5.1, "groups_used": 3}
    path = app.state.workbench.datasets.vault(one) / "preview-own.json"
    path.write_text(json.dumps(measured))
    page = Client(app).get(f"/protect/{one.id}").text
    assert "A search index would not be worth its price here" in page
    assert "Of ten hits 5 would fit; picking photos at random gives 5.1" in page
    assert "If you share it all the same" in page and "Continue all the same" in page
    used, alike = measured["groups"]["used"], measured["groups"]["alike"]
    assert page.count('class="used"') == len(used), "the groups in use are drawn"
    assert 1 < len(alike) <= 10
    assert f"To this encoder these {len(alike)} photos are the same" in page
    datasets = app.state.workbench.datasets
    with account_ledger(datasets, one) as ledger:
        before = ledger.head()
        measured["remedies"] = risks.forecast_remedies(datasets, one)
        assert ledger.head() == before, "a forecast is free"
    now, other = measured["remedies"]
    assert (now["name"], other["name"]) == (one.features, "lite0-128")
    assert now["photos"] == other["photos"] == 60
    assert now["hits_luck"] == other["hits_luck"], "by the same judge, on the same photos"
    path.write_text(json.dumps(measured))
    page = Client(app).get(f"/protect/{one.id}").text
    assert f"{other['hits']:g} of ten hits fit, by chance {other['hits_luck']:g}" in page
    assert "nothing was charged" in page
    for remedy in ("another encoder", "--public FOLDER", f"/send?dataset={one.id}"):
        assert remedy in page[page.index("What you can do") :]


def test_consent_and_the_charge_come_after_the_choice(
    make: Callable[..., Any], folder: Path
) -> None:
    app = make()
    one = scanned(app, folder)
    choice = Client(app).get(f"/protect/{one.id}").text
    assert "nothing is charged yet" in choice and "Continue with" in choice
    assert 'name="sure"' not in choice and f"/api/protect/{one.id}/release" not in choice
    confirm = Client(app).get(f"/protect/{one.id}/confirm?epsilon=4").text
    assert 'name="sure" value="true" required' in confirm
    assert "Make the release for ε 4" in confirm and "12 after this release" in confirm
    assert 'name="accept_chance"' not in confirm
    refused = Client(app).get(f"/protect/{one.id}/confirm?epsilon=3")
    assert refused.status_code == 404, "not on offer"
    released(app, one, 8.0)
    too_much = Client(app).get(f"/protect/{one.id}/confirm?epsilon=16")
    assert (too_much.status_code, too_much.json()["error"]) == (409, "budget")


def test_search_groups_what_codes_cannot_tell_apart_and_spends_nothing(
    make: Callable[..., Any], folder: Path
) -> None:
    app = make()
    one = scanned(app, folder)
    release = released(app, one)
    client = Client(app)
    asked = app.state.workbench.datasets.photos(one)[0]
    found = client.post(f"/api/search/{one.id}/photo/{asked.id}").json()
    assert asked.id not in [hit["id"] for group in found["groups"] for hit in group["photos"]]
    assert sum(group["count"] for group in found["groups"]) >= 1
    for group in found["groups"][:2]:
        assert sum(number for _, number in group["mix"]) == group["count"], "all that it mixes"
        assert {name for name, _ in group["mix"]} <= set(ALBUM)
        assert 0 <= group["noise"] <= group["count"]
    again = client.post(f"/api/search/{one.id}/again/{found['query']}?rerank=true").json()
    assert again["reranked"]
    kind = asked.name.partition("/")[0]
    assert again["groups"][0]["photos"][0]["name"].startswith(kind)
    upload = client.post(
        f"/api/search/{one.id}/upload",
        content=as_bytes(photo("night", 99)),
        headers={"content-type": "image/jpeg"},
    )
    assert upload.status_code == 200
    assert client.post(f"/api/search/{one.id}/again/{'0' * 16}").status_code == 404
    assert (
        client.get(f"/api/datasets/{one.id}/photos/{asked.id}").headers["content-type"]
        == "image/jpeg"
    )
    with Ledger(app.state.workbench.settings.ledger_place, dataset=one.account) as ledger:
        assert ledger.balance("record").spent.epsilon == release.epsilon
    run(app.state.workbench.decoders.close())


def test_nothing_like_this_is_said_where_the_codes_tell_so(
    make: Callable[..., Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When they tell so is tested with the codebooks; of so few photos they hardly ever do."""
    app = make()
    one = scanned(app, folder)
    release = released(app, one)
    index = app.state.workbench.searches.index(app.state.workbench, one, release)
    query = app.state.workbench.searches.remember(index.asked(index.rows[0]))
    assert not Client(app).post(f"/api/search/{one.id}/again/{query}").json()["nothing"]
    monkeypatch.setattr(
        Reading, "present", lambda _self, similarity, *_, **__: np.zeros(len(similarity), np.bool_)
    )
    found = Client(app).post(f"/api/search/{one.id}/again/{query}").json()
    assert "in the nearest group" in found["nothing"]


def test_a_zip_is_bounded_and_its_paths_are_only_words(make: Callable[..., Any]) -> None:
    app = make(drop_files=12, upload_bytes=200_000)
    client = Client(app)
    where = client.post("/api/protect/new", json={"name": "Dropped"}).json()["next"]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(6):
            archive.writestr(f"../../etc/IMG_{number}.jpg", as_bytes(photo("sand", number)))
        archive.writestr("notes.txt", b"no photo")
        archive.writestr("bomb.png", b"\x89PNG\r\n\x1a\n" + bytes(5_000_000))
    answer = client.post(
        f"/api{where}/drop", content=packed.getvalue(), headers={"x-file-name": "album.zip"}
    )
    assert answer.json() == {"taken": 6, "refused": 2}
    vault = app.state.workbench.settings.state / "vaults" / where.rpartition("/")[2]
    assert len(list((vault / "photos").iterdir())) == 6
    lines = (vault / "names.jsonl").read_text().splitlines()
    names = [json.loads(line)[1] for line in lines]
    assert all(".." not in name for name in names)
    many = io.BytesIO()
    with zipfile.ZipFile(many, "w") as archive:
        for number in range(13):
            archive.writestr(f"{number}.jpg", b"x")
    assert client.post(f"/api{where}/drop", content=many.getvalue()).status_code == 413
    assert client.post(f"/api{where}/drop", content=b"PK\x03\x04 no zip").status_code == 422
    assert client.post(f"/api{where}/drop", content=b"plain text").json() == {
        "taken": 0,
        "refused": 1,
    }
    one = photo_library.scan(
        app.state.workbench.datasets,
        app.state.workbench.datasets.get(where.rpartition("/")[2]),
        lambda *_: None,
    )
    assert one.photos == 6
    run(app.state.workbench.decoders.close())


def test_a_zip_that_unpacks_to_more_than_it_says_is_stopped(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make(drop_files=60, upload_bytes=200_000, drop_bytes=1_000_000)
    client = Client(app)
    where = client.post("/api/protect/new", json={"name": "Dropped"}).json()["next"]

    def sent(method: int, *contents: bytes) -> httpx.Response:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", method) as archive:
            for number, content in enumerate(contents):
                archive.writestr(f"{number}.jpg", content)
        return client.post(f"/api{where}/drop", content=packed.getvalue())

    # Python unpacks these two without a bound: a bomb of a kilobyte would take all memory.
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        assert sent(method, as_bytes(photo("sand", 1))).json() == {"taken": 0, "refused": 1}
    assert sent(zipfile.ZIP_DEFLATED, as_bytes(photo("sand", 1))).json() == {
        "taken": 1,
        "refused": 0,
    }
    # Each is too large and refused; so many of them are too much work.
    assert sent(zipfile.ZIP_DEFLATED, *[bytes(5_000_000)] * 30).status_code == 413
    # A list that is longer than that of so many files is not even opened.
    monkeypatch.setattr(zipfile, "ZipFile", None)
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 1, 1, 40_000, 4, 0)
    assert (
        client.post(f"/api{where}/drop", content=b"PK\x03\x04" + bytes(40_000) + end).status_code
        == 413
    )
    large = b"PK\x06\x07" + bytes(16) + struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 1, 1, 0, 4, 0)
    assert client.post(f"/api{where}/drop", content=b"PK\x03\x04" + large).status_code == 413
    run(app.state.workbench.decoders.close())


def test_an_analyst_reaches_no_photo_and_no_page_of_the_owner(
    make: Callable[..., Any], folder: Path
) -> None:
    app = make(keys="required")
    one = scanned(app, folder)
    first = app.state.workbench.datasets.photos(one)[0].id
    key = app.state.workbench.keys.make("ann", "analyst")
    analyst = Client(app, Authorization=f"Bearer {key}")
    owner = Client(app, Authorization=f"Bearer {app.state.workbench.keys.make('me', 'owner')}")
    shown = owner.get(f"/api/datasets/{one.id}/photos/{first}")
    assert (shown.status_code, shown.headers["cache-control"]) == (200, "no-store"), (
        "it would outlive the session"
    )
    assert Client(app).get(f"/api/datasets/{one.id}/photos/{first}").status_code == 401
    for address in (
        f"/api/datasets/{one.id}/photos/{first}",
        f"/api/tags/{one.id}",
        f"/api/compare/{one.id}",
    ):
        assert analyst.get(address).status_code == 403, address
    assert analyst.post(f"/api/search/{one.id}/photo/{first}").status_code == 403
    for page in ("/protect", "/search", "/tags", f"/protect/{one.id}"):
        answer = analyst.get(page)
        assert answer.status_code == 403
        assert one.name not in answer.text
    assert analyst.get("/").url.path == "/budget"


def test_kill_9_in_the_middle_of_protecting_and_a_restart_end_in_one_release_and_one_charge(
    serve: Callable[..., Any],
    state: Path,
    tmp_path: Path,
) -> None:
    here = album(tmp_path / "many", each=12)
    first = serve(PHOTOS=here)
    where = web.post(f"{first.url}/api/protect/folder", json={"folder": str(here)}).json()
    one = where["next"].rpartition("/")[2]
    wait(first.url, where["job"], "done")
    order = web.post(
        f"{first.url}/api/protect/{one}/release", json={"epsilon": 8, "sure": True}
    ).json()
    for _ in range(12_000):
        if any((state / "releases").glob("*/about.json")):
            break
        time.sleep(0.05)
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait()
    second = serve(PHOTOS=here)
    wait(second.url, order["job"], "done")
    about = json.loads((state / "vaults" / one / "about.json").read_text())
    assert [release["photos"] for release in about["releases"]] == [48]
    with Ledger(state / "ledger.db", dataset=f"many ({one[:4]})") as ledger:
        assert [entry.kind for entry in ledger.entries()] == ["grant", "charge"]
        assert ledger.verify().sequence == 2


def wait(url: str, job: str, wanted: str) -> None:
    for _ in range(12_000):
        found = web.get(f"{url}/api/jobs/{job}").json()
        if found["state"] == wanted:
            return
        assert found["state"] in ("queued", "running"), found
        time.sleep(0.05)
    raise AssertionError(found)


def test_the_drop_zone_lists_every_format_that_is_read(make: Callable[..., Any]) -> None:
    page = Client(make()).get("/protect").text
    listed = page[page.index("Takes JPEG") :].split("</p>")[0].upper().replace(" ", "")
    for kind in set(FORMATS) - {"PPM"}:  # which no camera writes
        assert kind in listed, kind
    for other in ("HEIC", "ZIP", "DICOM"):
        assert other in listed


def test_without_a_public_set_the_preview_shows_pictures_of_the_package(
    make: Callable[..., Any], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder_of_sets in ("BLINDSIGHT_DATA", "BLINDSIGHT_CACHE"):
        monkeypatch.setenv(folder_of_sets, str(tmp_path / "empty"))
    monkeypatch.setattr(risks, "_MAX_PUBLIC_PHOTOS", 40)
    app = make(public="caltech101")
    one = scanned(app, folder)
    risks.look_at_public(app.state.workbench.datasets, one)
    page = Client(app).get(f"/protect/{one.id}").text
    assert "Measured on 40 public photos (album), not on yours" in page
    for epsilon in ("2", "4", "8", "16"):
        row = page[page.index(f'data-row="{epsilon}"') :].split("data-row=")[1]
        assert row.count("<img") == 10, "pictures for each epsilon"
