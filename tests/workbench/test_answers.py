"""Answers: charged before they leave, refused when the budget ends, and never more than a role may
see.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sql
from PIL import Image

from blindsight.index.milvus import MilvusCodebookIndex
from blindsight.index.release_folder import ReleaseFolder
from blindsight.privacy import Ledger
from blindsight.workbench.infra.database import JOBS
from blindsight.workbench.pages.demo.cells import CellIndex
from workbench.asgi import Client, run
from workbench.photos import as_bytes, photo


@pytest.fixture
def keyed(make: Callable[..., Any]) -> tuple[Any, Client, Client]:
    app = make(keys="required", query_budget=10.0, record_budget=9.0)
    keys = app.state.studio.keys
    clients = [
        Client(app, Authorization=f"Bearer {keys.make(role, role)}")
        for role in ("owner", "analyst")
    ]
    return app, clients[0], clients[1]


def spent(app: Any, name: str, unit: Any) -> float:
    with Ledger(app.state.studio.settings.ledger_place, dataset=f"key {name}") as ledger:
        return ledger.balance(unit).spent.epsilon


def test_every_tag_answer_is_charged_and_the_budget_ends(keyed: Any) -> None:
    app, _, analyst = keyed
    answers = [analyst.post("/api/demo/tags/ask?query=1") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 409, 409]
    assert answers[0].json()["remaining"] == 6.0
    assert spent(app, "analyst", "query") == 8.0
    assert answers[2].json()["error"] == "budget"
    assert "tags" not in answers[2].json()


def test_different_images_do_not_add_up(keyed: Any) -> None:
    app, _, analyst = keyed
    answers = [analyst.post(f"/api/demo/tags/ask?query={scene}") for scene in range(20)]
    assert {answer.status_code for answer in answers} == {200}
    assert spent(app, "analyst", "query") == 4.0


def test_nothing_leaves_when_the_ledger_cannot_be_written(
    keyed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, analyst = keyed
    from blindsight.core.errors import LedgerError

    def fail(*_: Any, **__: Any) -> None:
        raise LedgerError("the disk of Ann is full")

    monkeypatch.setattr(Ledger, "charge", fail)
    for address in ("/api/demo/tags/ask?query=1", "/api/demo/search/ask?query=1&epsilon=8"):
        answer = analyst.post(address)
        assert (answer.status_code, answer.json()["error"]) == (503, "ledger")
        assert "Ann" not in answer.text


def test_a_key_pays_once_for_the_codes_it_sees(keyed: Any) -> None:
    app, _, analyst = keyed
    for _ in range(3):
        assert analyst.post("/api/demo/search/ask?query=3&epsilon=8").status_code == 200
    assert spent(app, "analyst", "record") == 8.0
    assert analyst.post("/api/demo/search/ask?query=3&epsilon=2").status_code == 409
    assert spent(app, "analyst", "record") == 8.0


def test_only_the_owner_sees_pictures_and_what_noise_hides(keyed: Any) -> None:
    _, owner, analyst = keyed
    mine = owner.post("/api/demo/search/ask?query=3&epsilon=8&beside=true").json()
    theirs = analyst.post("/api/demo/search/ask?query=3&epsilon=8&beside=true").json()
    assert mine["hits"][0]["picture"].startswith("data:image/png")
    assert len(mine["open_hits"]) == 12
    assert theirs["open_hits"] is None
    assert all("picture" not in hit for hit in theirs["hits"])
    assert owner.post("/api/demo/tags/ask?query=1&beside=true").json()["repeats"][0][0] == 1
    answer = analyst.post("/api/demo/tags/ask?query=1&beside=true").json()
    assert answer["open_tags"] is None
    assert answer["repeats"] is None


def test_an_analyst_sees_its_own_account_only(keyed: Any) -> None:
    _, owner, analyst = keyed
    owner.get("/api/ledger/accounts")
    names = {account["dataset"] for account in analyst.get("/api/ledger/accounts").json()}
    assert names == {"key analyst"}
    assert {"key owner", "gallery mnist5k"} <= {
        a["dataset"] for a in owner.get("/api/ledger/accounts").json()
    }
    assert all(chain["holds"] for chain in owner.post("/api/ledger/verify").json())
    assert {line["dataset"] for line in analyst.get("/api/ledger/entries").json()} == {
        "key analyst"
    }


def test_hits_come_best_first_and_the_threshold_holds(make: Callable[..., Any]) -> None:
    client = Client(make())
    every = client.post("/api/demo/search/ask?query=5&epsilon=8&k=100").json()["hits"]
    chances = [hit["probability"] for hit in every]
    assert chances == sorted(chances, reverse=True)
    some = client.post("/api/demo/search/ask?query=5&epsilon=8&k=100&threshold=0.5").json()["hits"]
    assert all(hit["probability"] >= 0.5 for hit in some)
    assert client.post("/api/demo/search/ask?query=5&epsilon=3").status_code == 422
    assert client.post("/api/demo/search/ask?query=400&epsilon=8").status_code == 422


def test_equal_codes_are_ranked_as_if_each_were_scored() -> None:
    from blindsight.hashing import CodebookHasher

    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((400, 8)), rng.integers(0, 4, 400)
    hasher = CodebookHasher(
        epsilon=1.5, supervised=True, random_state=0, learned_from="public"
    ).fit(X, y)
    codes = hasher.transform(X)
    index = CellIndex(hasher, codes)
    for row in range(5):
        slow = hasher.scores(X[row : row + 1], codes)[0]
        ranked = index.rank(hasher.similarity(X[row : row + 1])[0], 50)
        np.testing.assert_allclose(ranked.chances, np.sort(slow)[::-1][:50], rtol=1e-5)
        np.testing.assert_allclose(slow[ranked.rows], ranked.chances, rtol=1e-5)
        assert len(set(ranked.rows.tolist())) == 50


def test_an_upload_is_searched_sketched_and_tagged(make: Callable[..., Any]) -> None:
    app = make()
    buffer = io.BytesIO()
    digit = app.state.studio.demo.search.get()._asked_images[0]
    Image.fromarray(digit).resize((200, 200)).save(buffer, "PNG")
    client, kind = Client(app), {"content-type": "image/png"}
    by_upload = client.post(
        "/api/demo/search/upload?epsilon=8&k=5", content=buffer.getvalue(), headers=kind
    ).json()
    assert len(by_upload["hits"]) == 5
    shown = client.post(
        "/api/demo/sketch/upload?setting=Q12", content=buffer.getvalue(), headers=kind
    ).json()
    assert shown["psnr"] > 30
    scene = io.BytesIO()
    Image.fromarray(app.state.studio.demo.tags.get().scenes[0]).save(scene, "PNG")
    assert (
        client.post("/api/demo/tags/upload", content=scene.getvalue(), headers=kind).json()["spent"]
        > 0
    )
    run(app.state.studio.decoders.close())


def test_a_photo_is_no_digit_and_that_is_said_without_a_charge(keyed: Any) -> None:
    app, owner, _ = keyed
    kind = {"content-type": "image/jpeg"}
    for number, ground in enumerate(("dusk", "grass", "night", "sand")):
        content = as_bytes(photo(ground, number))
        for address in ("/api/demo/search/upload?epsilon=8", "/api/demo/tags/upload"):
            answer = owner.post(address, content=content, headers=kind)
            assert (answer.status_code, answer.json()["error"]) == (422, "not_of_the_kind"), (
                ground,
                address,
            )
    assert spent(app, "owner", "record") == 0
    assert spent(app, "owner", "query") == 0
    run(app.state.studio.decoders.close())


def test_q3_hides_more_than_q6(make: Callable[..., Any]) -> None:
    client = Client(make())
    hidden, shown = (
        client.post(f"/api/demo/sketch/show?query=2&setting={q}").json() for q in ("Q3", "Q6")
    )
    assert hidden["psnr"] < shown["psnr"]
    assert hidden["right"] < shown["right"]
    assert hidden["recovered_prior"].startswith("data:image/png")


def test_pages_say_what_leaves_the_numbers_and_the_balance(make: Callable[..., Any]) -> None:
    client = Client(make())
    for page in ("search", "sketch", "federation", "metric", "tags", "papers"):
        text = client.get(f"/demo/{page}").text
        for words in (
            "What leaves this machine",
            "promised",
            "proven",
            "reached by attack",
            "Budget left",
            "Keys are off",
            "Skip to",
        ):
            assert words in text, (page, words)
        assert "<script>" not in text
        assert " style=" not in text
    assert client.get("/nothing", headers={"accept": "text/html"}).status_code == 404


def test_what_is_not_prepared_says_so(tmp_path: Any, make: Callable[..., Any]) -> None:
    client = Client(make(state=tmp_path / "empty"))
    for address in ("/api/demo/search", "/api/demo/tags", "/api/demo/sketch/curves.svg"):
        answer = client.get(address)
        assert (answer.status_code, answer.json()["error"]) == (503, "preparing")
        assert "retry-after" in answer.headers
    assert "being prepared" in client.get("/demo/search").text


def test_what_could_not_be_prepared_says_so(tmp_path: Any, make: Callable[..., Any]) -> None:
    app = make(state=tmp_path / "empty")
    job = app.state.studio.jobs.add("demo-tags", {}, "studio")
    with app.state.studio.database.begin() as connection:
        connection.execute(sql.update(JOBS).where(JOBS.c.id == job["id"]).values(state="failed"))
    answer = Client(app).get("/api/demo/tags")
    assert (answer.status_code, answer.json()["error"]) == (503, "not_prepared")
    assert "retry-after" not in answer.headers
    assert Client(app).get("/api/demo/search").json()["error"] == "preparing"


def test_another_index_is_searched_by_upload_and_shows_names(
    tmp_path: Any, make: Callable[..., Any]
) -> None:
    from typer.testing import CliRunner

    from blindsight import data
    from blindsight.cli.main import app as command

    (tmp_path / "photos").mkdir()
    digits = data.load("mnist5k").array()
    for n in range(40):
        Image.fromarray(digits[n * 100]).resize((48, 48)).save(tmp_path / "photos" / f"p{n}.png")
    order = [
        "hash",
        str(tmp_path / "photos"),
        "--out",
        str(tmp_path / "index"),
        "--features",
        "pixels",
        "--json",
    ]
    assert CliRunner().invoke(command, order).exit_code == 0
    app = make(index=str(tmp_path / "index"))
    client, kind = Client(app), {"content-type": "image/png"}
    assert client.get("/api/demo/search").json()["stored"] == 40
    assert client.post("/api/demo/search/ask?query=0&epsilon=8").status_code == 422
    photo = (tmp_path / "photos" / "p3.png").read_bytes()
    found = client.post(
        "/api/demo/search/upload?epsilon=8&k=6", content=photo, headers=kind
    ).json()["hits"]
    assert all(len(hit["id"]) == 32 for hit in found)  # numbers, not names
    assert found[0]["probability"] > 0.5
    assert spent(app, "local", "record") == 8.0
    run(app.state.studio.decoders.close())

    # The same codes behind a Milvus URI.
    milvus = str(tmp_path / "codes.db")
    MilvusCodebookIndex.load(ReleaseFolder.read(tmp_path / "index").codes, milvus).close()
    app = make(index=str(tmp_path / "index"), codes=milvus)
    client = Client(app)
    assert client.get("/api/demo/search").json()["stored"] == 40
    there = client.post(
        "/api/demo/search/upload?epsilon=8&k=6", content=photo, headers=kind
    ).json()["hits"]
    assert all(len(hit["id"]) == 32 for hit in there)
    run(app.state.studio.decoders.close())


def test_a_prepared_part_of_another_version_counts_as_not_prepared(
    make: Callable[..., Any], state: Any
) -> None:
    (state / "prepared" / "tags" / "tagger.safetensors").write_bytes(b"from another time")
    app = make()
    answer = Client(app).post("/api/demo/tags/ask?query=1")
    assert (answer.status_code, answer.json()["error"]) == (503, "preparing")
    assert app.state.studio.demo.tags.broken
