"""Train together: invitations, real processes that learn one model, kill -9 in between, and hostile
invitations.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import stat
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import warm
from blindsight import open_shared
from blindsight.app import federation_site
from blindsight.app.federation import load_model
from blindsight.app.library import photos as photo_library
from blindsight.app.library.datasets import DataSet, DataSets
from blindsight.app.library.sending import added_epsilon
from blindsight.app.release import OpenedFile
from blindsight.app.together_statistics import plan_statistics
from blindsight.app.train_together import PlannedFederation
from blindsight.federated.agreement import Agreement
from blindsight.federated.sums import Settings as SumSettings
from blindsight.privacy import Ledger
from blindsight.sketching import FeatureBasis
from blindsight.workbench import WorkbenchSettings
from blindsight.workbench.infra.federations import MODEL_FILE, Federations, Run, read_invitation
from blindsight.workbench.infra.problems import Problem
from blindsight.workbench.pages import together
from ports import held_port
from workbench.asgi import Client
from workbench.photos import ALBUM, album, confirm_names, light, scanned  # noqa: F401

SITES = ("Coast archive", "Harbour museum", "County library", "Tourist office")


def agreed(sites: int, port: int, rounds: int = 2) -> Run:
    return Run(
        "ab" * 6,
        "Common tags",
        1,
        SITES[:sites],
        ("land", "sea"),
        "pixels",
        rounds,
        f"127.0.0.1:{port}",
        "now",
    )


# A site's process dies once, right after it wrote that it has seen a round.
DIES = """
import json, os, signal
from blindsight.app import federation_site
write = federation_site.write_file
def deadly(path, content, *words, **named):
    write(path, content, *words, **named)
    if str(path) == {progress!r} and json.loads(content).get("rounds"):
        if not os.path.exists({died!r}):
            open({died!r}, "x").close()
            os.kill(os.getpid(), signal.SIGKILL)
federation_site.write_file = deadly
"""


def rows(seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, 60)
    return rng.normal(0, 0.4, (60, 8)) + np.where(labels, 0.4, -0.4)[:, None], labels


@pytest.mark.parametrize("sites", [3, 4])
def test_sites_learn_one_model_in_processes_of_their_own_although_one_is_killed(
    tmp_path: Path, sites: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every site makes its own keys and holds its share of every sum; of four, one dies on the
    way.
    """
    monkeypatch.setattr(sys, "executable", warm.python())
    # No round ends without a site that comes late on a busy machine.
    monkeypatch.setattr("blindsight.workbench.infra.federations._PATIENCE", 600.0)
    places = [Federations(WorkbenchSettings(state=tmp_path / str(n))) for n in range(sites)]
    run, planned = agreed(sites, held_port()), None
    if sites == 3:  # one round of statistics; so much epsilon that noise decides nothing
        run = replace(run, method="statistics", epsilon=90.0, rounds=1)
        basis = FeatureBasis.learn(np.random.default_rng(4).normal(0, 0.6, (200, 8)), width=8)
        agreement, plan = plan_statistics(
            basis,
            sites=3,
            names=run.classes,
            epsilon=added_epsilon(90.0),
            records=60,
            patience=600.0,
        )
        planned = PlannedFederation(agreement.settings, plan, agreement.guarantee(1), None)
    run = places[0].start(run, *rows(0), planned)
    keys_here = list((places[0].root / run.id).rglob("keys.bin"))
    assert len(keys_here) == 1, "the host has its own keys and nobody else's"
    for number, place in enumerate(places[1:], 2):
        invited, parties = read_invitation(places[0].invitation(run, number).read_bytes())
        joined = place.join(invited, parties, *rows(number))
        assert (joined.number, joined.sites, joined.needed) == (number, run.sites, run.needed)
        with pytest.raises(Problem):
            place.join(invited, parties, *rows(number))

    died = tmp_path / "died"
    if sites == 4:
        progress = places[1].root / run.id / "progress.json"
        monkeypatch.setenv(warm.FIRST, DIES.format(progress=str(progress), died=str(died)))

    async def everybody() -> None:
        for place in places:
            place.go_on(place.get(run.id))
        await until(lambda: all(place.get(run.id).state == "done" for place in places))
        for place in places:
            await place.close()

    asyncio.run(everybody())
    assert died.exists() == (sites == 4)
    models = {(place.root / run.id / "model.safetensors").read_bytes() for place in places}
    assert len(models) == 1
    shared = unpacked(places[1].shared_model(run), tmp_path / "received")
    assert shared.manifest.kind == "federated model"
    assert shared.guarantee is not None and {shared.file.read_bytes()} == models
    if sites == 3:
        assert 0 < shared.guarantee.epsilon <= added_epsilon(90.0) * (1 + 1e-9)
    else:
        assert "exact sums" in shared.guarantee.card()
    assert load_model(shared.file).predict(rows(9)[0]).shape == (60,)
    said = places[0].progress(run)
    fingerprints = {place.progress(run)["fingerprint"] for place in places}
    assert len(fingerprints) == 1 and len(said["fingerprint"].replace(" ", "")) == 30
    assert [line["who"] for line in said["rounds"]] == [list(range(1, sites + 1))] * run.rounds
    assert said["rounds"][-1]["right"] >= 75
    assert not list((places[0].root / run.id / "invitations").iterdir()), (
        "an invitation outlives the site's coming"
    )
    for path in (places[1].root / run.id).rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 or path.parent.name != "parties", path


def unpacked(packed: bytes, place: Path) -> OpenedFile:
    """What a receiver of the workbench's zip opens."""
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        archive.extractall(place)
    (folder,) = place.iterdir()
    found = open_shared(folder)
    assert isinstance(found, OpenedFile)
    return found


async def until(there: Callable[[], bool], seconds: float = 600) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, "it took too long"
        await asyncio.sleep(0.1)


def test_of_two_who_join_with_one_invitation_at_once_one_is_told_that_it_was_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, site = (Federations(WorkbenchSettings(state=tmp_path / name)) for name in "ab")
    run = host.start(agreed(3, held_port()), *rows(0))
    invited, access = read_invitation(host.invitation(run, 2).read_bytes())
    make_folder, joined = site._folder, []

    def overtaken(run: Run) -> Path:
        monkeypatch.setattr(site, "_folder", make_folder)
        joined.append(site.join(invited, access, *rows(2)))
        return make_folder(run)

    monkeypatch.setattr(site, "_folder", overtaken)
    with pytest.raises(Problem) as refused:
        site.join(invited, access, *rows(2))
    assert refused.value.code == "joined_before"
    assert site.listed() == joined


def test_a_run_that_is_complete_before_it_is_paused_stays_complete(tmp_path: Path) -> None:
    site = Federations(WorkbenchSettings(state=tmp_path))
    run = site.start(agreed(3, held_port()), *rows(0))

    async def ends_first() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        site.save(replace(run, state="done"))

    async def pause() -> Run:
        site._tasks[run.id] = asyncio.create_task(ends_first())
        await asyncio.sleep(0)
        return await site.rest(run)

    assert asyncio.run(pause()).state == "done"
    assert site.get(run.id).state == "done"


def test_a_model_that_is_downloaded_while_it_is_stored_again_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stated = SimpleNamespace(to_json=lambda: "{}")
    agreement = SimpleNamespace(rounds=1, guarantee=lambda rounds: stated)
    monkeypatch.setattr(federation_site, "Agreement", lambda settings: agreement)
    site = SimpleNamespace(folder=tmp_path, party=SimpleNamespace(settings=None, plan=agreement))
    for number in range(2):
        (tmp_path / str(number)).write_bytes(bytes(1000 * (2 - number)))
    federation_site.SiteProcess.keep_model(site, tmp_path / "0")  # type: ignore[arg-type]
    with (tmp_path / MODEL_FILE).open("rb") as download:
        federation_site.SiteProcess.keep_model(site, tmp_path / "1")  # type: ignore[arg-type]
        assert len(download.read()) == 2000
    assert (tmp_path / MODEL_FILE).stat().st_size == 1000


def test_no_run_takes_photos_of_one_reading_and_features_of_another(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would learn from other photos than those that are labelled and charged."""
    folder = album(tmp_path / "coast", each=6)
    datasets = (app := make()).state.workbench.datasets
    one, write, refused = scanned(app, folder), DataSets.write_private, []

    def overtaken(self: DataSets, data_set: DataSet, name: str, content: object) -> None:
        if name == "photos.json":  # the features are new already
            with pytest.raises(Problem) as found:
                together._labelled(datasets, data_set, ALBUM, "statistics")
            refused.append(found.value.code)
        write(self, data_set, name, content)

    monkeypatch.setattr(DataSets, "write_private", overtaken)
    (folder / "dusk" / "IMG_0000.jpg").unlink()
    photo_library.scan(datasets, one)
    assert refused == ["conflict"]
    assert len(together._labelled(datasets, one, ALBUM, "statistics")[0]) == 23


def test_invitations_that_are_not_whole_are_refused_with_the_same_words(tmp_path: Path) -> None:
    place = Federations(WorkbenchSettings(state=tmp_path / "host"))
    run = place.start(agreed(4, 9), *rows(0))
    good = place.invitation(run, 2).read_bytes()
    fields = json.loads(base64.urlsafe_b64decode(good.partition(b":")[2]))

    def packed(**changes: Any) -> bytes:
        changed = {
            "run": {**fields["run"], **changes},
            "access": changes.get("access", fields["access"]),
        }
        changed["run"].pop("access", None)
        return b"blindsight-invitation:" + base64.urlsafe_b64encode(json.dumps(changed).encode())

    bad = (
        b"",
        b"hello",
        good[: len(good) // 2],
        b"another" + good,
        packed(number=9),
        packed(id="../../../../etc"),
        packed(sites=["a"]),
        packed(classes=["x" * 200, "y"]),
        packed(access={}),
        packed(access={**fields["access"], "../user-2": "AAAA"}),
        packed(access={**fields["access"], "ca": "no certificate"}),
        packed(access={**fields["access"], "token": "a token\r\nHost: elsewhere"}),
        packed(address="nowhere"),
        packed(rounds=10**9),
        packed(method="anything"),
        packed(epsilon=2.0),
        packed(classes=["sea", "land"]),
        b"blindsight-invitation:" + base64.urlsafe_b64encode(b"[" * 100_000),
    )
    for text in bad:
        with pytest.raises(Problem) as found:
            read_invitation(text)
        assert found.value.code == "refused_invitation"


def test_a_run_is_started_and_joined_from_the_pages_and_is_paid_where_it_has_noise(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Federations, "go_on", lambda *_: None)
    folder = album(tmp_path / "coast", each=6)
    app = make(photo_budget=10.0)
    one = scanned(app, folder)
    client, reader = Client(app), Client(app)
    assert "Join with an invitation" in reader.get("/together").text
    assert "this machine only" in reader.get("/together").text
    order = {
        "title": "Common tags",
        "dataset": one.id,
        "sites": "Harbour museum, County library",
        "noise": "8",
        "records": 20,
    }
    for wrong in (
        {"sites": "only one"},
        {"sites": "a, a"},
        {"host": "x y"},
        {"title": "\u0000"},
        {"rounds": 0},
    ):
        assert client.post("/api/together/start", json={**order, **wrong}).status_code == 422, wrong
    alone = client.post("/api/together/start", json={**order, "sites": "only one"}).json()
    assert alone["error"] == "two_sites" and "subtracting its own" in alone["message"]
    unconfirmed = client.post("/api/together/start", json=order)
    assert unconfirmed.json()["error"] == "names_unconfirmed"
    confirm_names(app, one)
    made = client.post("/api/together/start", json=order)
    assert made.status_code == 201
    number = made.json()["next"].rpartition("=")[2]
    page = reader.get(f"/together?run={number}").text
    assert "linked to 2 sites" in page
    assert 'id="join-form"' not in page, "no form under a run"
    assert 'id="join-form"' in reader.get("/together?new=true").text
    assert "ε 8" in page and "per photo, over one round" in page
    assert 'id="fingerprint"' in page and "Every site made its own keys" in page
    assert "{&#34;" not in page
    with Ledger(app.state.workbench.settings.ledger_place, dataset=one.account) as ledger:
        assert ledger.balance("record").spent.epsilon == 8
    again = client.post("/api/together/start", json=order)
    assert (again.status_code, again.json()["error"]) == (409, "budget")
    shown = client.get(f"/api/together/{number}").json()
    assert [site["name"] for site in shown["sites"]] == [
        one.name,
        "Harbour museum",
        "County library",
    ]
    text = client.get(shown["sites"][1]["invitation"]).content
    assert not any(
        word.encode() in base64.urlsafe_b64decode(text.partition(b":")[2])
        for word in ("IMG_", str(folder))
    )
    headers = {"content-type": "text/plain"}
    address = f"/api/together/join/upload?dataset={one.id}"
    assert (
        client.post(address, content=b"no invitation", headers=headers).json()["error"]
        == "refused_invitation"
    )
    assert client.post(address, content=text, headers=headers).json()["error"] == "joined_before"
    assert client.post(f"/api/together/{number}/pause").status_code == 200
    assert client.get(f"/api/together/{number}").json()["state"] == "paused"
    address = f"/api/together/{number}/model.zip"
    assert client.get(address).status_code == 404, "nothing is learned yet"
    learned = app.state.workbench.federations.root / number / MODEL_FILE
    learned.write_bytes(b"as a site's process leaves it")
    settings = SumSettings.decode(learned.with_name("settings.bin").read_bytes())
    promised = Agreement(settings).guarantee(1)
    learned.with_name("guarantee.json").write_text(promised.to_json())
    given = client.get(address)
    assert given.headers["content-type"] == "application/zip"
    assert client.get(address).content == given.content, "signed by the vault's key, not a new one"
    shared = unpacked(given.content, tmp_path / "received")
    assert shared.guarantee == promised and shared.file.read_bytes() == learned.read_bytes()
    assert client.post(f"/api/together/{number}/leave").status_code == 200
    assert not (app.state.workbench.federations.root / number / "parties").exists()
    assert client.post(f"/api/together/{number}/go-on").status_code == 409


def test_joining_needs_the_runs_labels(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Federations, "go_on", lambda *_: None)
    host = Federations(WorkbenchSettings(state=tmp_path / "host"))
    run = host.start(agreed(3, 9), *rows(0))
    app = make()
    one = scanned(app, album(tmp_path / "coast", each=6))
    client, headers = Client(app), {"content-type": "text/plain"}
    address = f"/api/together/join/upload?dataset={one.id}"
    text = host.invitation(run, 2).read_bytes()
    assert client.post(address, content=text, headers=headers).json()["error"] == "too_few_labels"
    names = {"names": ", ".join((*ALBUM, "sea", "land"))}
    assert client.post(f"/api/tags/{one.id}/names", json=names).status_code == 200
    for number, photo in enumerate(app.state.workbench.datasets.photos(one)):
        order = {"photo": photo.id, "tag": ("sea", "land")[number % 2], "on": True}
        assert client.post(f"/api/tags/{one.id}", json=order).status_code == 200
    assert client.post(address, content=text, headers=headers).status_code == 201
