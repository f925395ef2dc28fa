"""What all pages promise: they say what leaves, and nothing is released that was not charged."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import blindsight.workbench
from blindsight.core.errors import LedgerError
from blindsight.privacy import Cost, Ledger
from blindsight.workbench.pages.home import budget_of
from workbench.asgi import Client
from workbench.photos import light, released  # noqa: F401

PAGES = ("search", "tags", "compare", "together", "send", "protect/{dataset}")


def test_pages_say_what_leaves_the_numbers_and_the_balance(
    make: Callable[..., Any], stocked: Path
) -> None:
    app = make(state=stocked)
    dataset = app.state.workbench.datasets.listed()[0].id
    for page in PAGES:
        text = Client(app).get(f"/{page.format(dataset=dataset)}").text
        said = ("What leaves this machine", "promised", "proven", "by attack", "Budget left")
        line = text.count('<details class="trust">')
        assert line == (not page.startswith("protect/")), "one line with details, but on Protect"
        if page.startswith("protect/"):  # the four lines of the choice instead
            said = ("You share", "You keep private", "Guarantee", "Price", "proven")
        for words in (*said, "Keys are off", "Skip to"):
            assert words in text, (page, words)
        if page != "search":  # which reads one photo that is asked for
            assert "photos read" in text and "what to do" in text, page
        assert "<script>" not in text
        assert " style=" not in text


def test_an_unknown_address_is_not_found_in_words(make: Callable[..., Any]) -> None:
    for address in ("/nothing", "/demo", "/demo/search"):
        answer = Client(make()).get(address, headers={"accept": "text/html"})
        assert answer.status_code == 404
        assert "Page not found" in answer.text


def test_nothing_leaves_when_the_ledger_cannot_be_written(
    make: Callable[..., Any], stocked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make(state=stocked)
    datasets = app.state.workbench.datasets
    dataset = datasets.listed()[0]
    before = sorted(path for path in datasets.given.rglob("*") if path.is_file())

    def fail(*_: Any, **__: Any) -> None:
        raise LedgerError("the disk of Ann is full")

    monkeypatch.setattr(Ledger, "charge", fail)
    with pytest.raises(LedgerError):
        released(app, dataset, 2.0, "cd" * 6)
    assert sorted(path for path in datasets.given.rglob("*") if path.is_file()) == before
    monkeypatch.setattr(Ledger, "balance", fail)
    answer = Client(app).post(
        f"/api/protect/{dataset.id}/release", json={"epsilon": 2, "sure": True}
    )
    assert (answer.status_code, answer.json()["error"]) == (503, "ledger")
    assert "Ann" not in answer.text


def test_an_analyst_sees_its_own_account_only(make: Callable[..., Any], stocked: Path) -> None:
    app = make(state=stocked, keys="required")
    workbench = app.state.workbench
    owner, analyst = (
        Client(app, Authorization=f"Bearer {workbench.keys.make(role, role)}")
        for role in ("owner", "analyst")
    )
    assert analyst.get("/api/ledger/accounts").json() == []
    ledger = workbench.budgets.named("key analyst", create=True)
    ledger.grant(Cost(epsilon=3.0, unit="record"), what="budget")
    for address in ("/api/ledger/accounts", "/api/ledger/entries"):
        assert {line["dataset"] for line in analyst.get(address).json()} == {"key analyst"}
    account = workbench.datasets.listed()[0].account
    assert {account, "key analyst"} <= {
        line["dataset"] for line in owner.get("/api/ledger/accounts").json()
    }
    assert all(chain["holds"] for chain in owner.post("/api/ledger/verify").json())
    assert account not in analyst.get("/budget").text


def test_a_budget_that_is_set_again_leaves_in_the_history_what_is_left(
    make: Callable[..., Any], stocked: Path
) -> None:
    app = make(state=stocked)
    client, one = Client(app), app.state.workbench.datasets.listed()[0]
    assert client.post(f"/api/budget/{one.id}/set", json={"epsilon": 40}).status_code == 200
    left = budget_of(app.state.workbench, one).left
    assert 0 < left < 40, "something was released before"
    newest = next(csv.DictReader(io.StringIO(client.get("/api/history.csv").text)))
    assert float(newest["left"]) == left


def test_pages_have_one_word_for_each_thing() -> None:
    root = Path(blindsight.workbench.__file__).parent
    other = (
        r"\b(books?|gives? away|way to compare|reached by attack|locked update|"
        r"without looking|same as an API{})\b"
    )
    scripts, pages = list((root / "static").glob("*.js")), list((root / "templates").glob("*.html"))
    said = {path.name: re.findall(other.format(""), path.read_text(), re.I) for path in scripts}
    for path in pages:  # without expressions and tags, which have names of their own
        text = re.sub(r"\{[{%#].*?[}%#]\}|<[^>]*>", " ", path.read_text(), flags=re.DOTALL)
        said[path.name] = re.findall(other.format("|cells?"), text, re.IGNORECASE)
    assert scripts and pages and not any(said.values()), said
