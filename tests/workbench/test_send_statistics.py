"""The page Send: statistics with a proof come first, are charged once, and are refused in vain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blindsight import open_shared
from blindsight.app.library import sending
from blindsight.privacy import Ledger
from blindsight.sketching import FeatureStatistics
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
    assert "by luck 25 of 100" in text
    assert "At least" in text, "of the epsilons on offer, one is too small for so few photos"
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


def test_too_few_photos_a_class_are_refused_without_a_charge(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    app = make()
    one = scanned(app, album(tmp_path / "coast", each=5))
    assert "hardly more than chance" in Client(app).get("/send").text
    assert Client(app).post(f"/api/send/{one.id}/statistics").status_code == 409
    assert _spent(app, one.account) == 0
