"""The page Send: statistics with a proof come first, are charged once, and are refused in vain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blindsight import open_shared
from blindsight.app.library import sending
from blindsight.privacy import Ledger
from blindsight.sketching import FeatureStatistics, StatisticsClassifier
from blindsight.workbench.pages import budget, send
from workbench.asgi import Client
from workbench.photos import ALBUM, album, confirm_names, light, scanned, work  # noqa: F401


def _spent(app: Any, account: str) -> float:
    with Ledger(app.state.workbench.settings.ledger_place, dataset=account) as ledger:
        return float(ledger.balance("record").spent.epsilon)


def test_statistics_are_shown_first_released_with_a_card_and_charged_once(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "SEND_EPSILONS", (1.0, 6.0))
    app = make()
    one = scanned(app, album(tmp_path / "coast", each=20))
    text = Client(app).get("/send").text
    assert text.index("Statistics, with a proof") < text.index("Sketches: the paper")
    assert "by chance 25 of 100" in text
    assert "At least" in text, "of the epsilons on offer, one is too small for so few photos"
    tiles = text.partition("label by label")[2]
    for kind in ALBUM:
        assert f"<b>{kind}</b><br>20 photos" in tiles, "each label has its own expectation"
    assert ": too few</span>" in tiles and 'data-at="6.0"' in tiles
    client, address = Client(app), f"/api/send/{one.id}/statistics"
    unconfirmed = client.post(address, json={"epsilon": 6.0})
    assert unconfirmed.json()["error"] == "names_unconfirmed"
    assert _spent(app, one.account) == 0
    assert "dusk" in Client(app).get("/send").text.partition("names will be shared")[2][:1000]
    confirm_names(app, one)
    assert "names will be shared" not in Client(app).get("/send").text
    assert client.post(address, json={"epsilon": 1.0}).status_code == 409, "refused in vain"
    assert client.post(address, json={"epsilon": 3.0}).status_code == 422, "not on offer"
    assert client.post(address, json={"epsilon": 6.0}).status_code == 202
    for _ in range(2):
        work(app, send, {"dataset": one.id, "step": "statistics", "epsilon": 6.0})
        assert _spent(app, one.account) == pytest.approx(6.0, rel=1e-2)
    datasets = app.state.workbench.datasets
    (release,) = datasets.get(one.id).releases
    assert (release.kind, release.photos, release.epsilon) == ("statistics", 80, 6.0)
    folder = datasets.folder(release)
    shared = open_shared(folder)
    assert shared.manifest.kind == "statistics"
    assert shared.guarantee is not None and shared.guarantee.epsilon <= 6.0
    sent = FeatureStatistics.load(folder / sending.STATISTICS_FILE)
    assert tuple(sent.classes_) == ALBUM
    assert "add or remove one" in (folder / "card.txt").read_text()
    given = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert b"IMG_" not in given
    assert "Statistics for training" in Client(app).get("/").text
    assert "The receiver runs" in Client(app).get("/send").text
    found = work(app, budget, {"release": release.id})
    assert found == {"refuted": False}


def test_too_few_to_learn_a_class_are_refused_without_a_charge(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    app = make()
    one = scanned(app, album(tmp_path / "coast", each=5))
    assert "hardly more than chance" in Client(app).get("/send").text
    refused = Client(app).post(f"/api/send/{one.id}/statistics")
    assert (refused.status_code, refused.json()["error"]) == (409, "too_few_to_learn")
    assert _spent(app, one.account) == 0


def test_a_label_with_few_photos_is_expected_to_be_recognised_less(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    folder = album(tmp_path / "coast", each=20)
    for number in range(4, 20):
        (folder / "sand" / f"IMG_{number:04}.jpg").unlink()
    app = make()
    one = scanned(app, folder)
    plan = sending.sending_plan(app.state.workbench.datasets, one)
    by_name = {label.name: label for label in plan.labels}
    assert (by_name["sand"].photos, by_name["dusk"].photos) == (4, 20)
    for epsilon in sending.SEND_EPSILONS:
        few, many = (by_name[name].forecasts[epsilon].accuracy for name in ("sand", "dusk"))
        assert few <= many <= plan.forecasts[epsilon].noiseless
    assert by_name["sand"].example != by_name["dusk"].example != ""


def test_two_sites_train_with_noise_in_each_part(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "SEND_EPSILONS", (6.0,))
    monkeypatch.setattr(sending, "SEND_EPSILON", 6.0)
    order = {"epsilon": 6.0, "together": 120}
    parts, clients, sets = {}, {}, {}
    for site, each in (("museum", 20), ("library", 10)):
        app = make(state=tmp_path / site)
        one = scanned(app, album(tmp_path / f"{site} photos", each=each), site)
        client, address = Client(app), f"/api/together/two/{one.id}"
        page = Client(app).get("/together").text
        assert "each site subtracts its own part" in page and "Release your part" in page
        assert 'id="two-form"' not in page, "nothing to fit before the own part is released"
        assert client.get(f"{address}/ours").status_code == 404
        confirm_names(app, one)
        answer = client.post(f"/api/send/{one.id}/statistics", json=order)
        assert answer.status_code == 202 and answer.json()["next"].startswith("/together?")
        work(app, send, {"dataset": one.id, "step": "statistics", **order})
        assert _spent(app, one.account) == pytest.approx(6.0, rel=1e-2), "each site pays"
        parts[site] = client.get(f"{address}/ours").content
        clients[site], sets[site] = client, one
    address = f"/api/together/two/{sets['museum'].id}"
    museum = clients["museum"]
    for wrong in (b"no statistics", parts["museum"]):
        refused = museum.post(f"{address}/upload", content=wrong)
        assert (refused.status_code, refused.json()["error"]) == (422, "refused_statistics")
    assert museum.get(f"{address}/model").status_code == 404
    assert museum.post(f"{address}/upload", content=parts["library"]).status_code == 201
    model = tmp_path / "model.safetensors"
    model.write_bytes(museum.get(f"{address}/model").content)
    assert tuple(StatisticsClassifier.load(model).classes_) == ALBUM
    page = museum.get("/together").text
    assert "Right answers together, by chance 25" in page and "From your part alone" in page
    assert "on new photos both are right less often" in page
