"""Every route x role x data set: one table says who may, and every combination is asked.

The table stands here and not in the program, so that a route which is opened to somebody by mistake
shows. A route that is missing from it fails the test.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute

from blindsight.app.library.accounts import (
    charge_training,
    set_spending_limit,
    spending_limit,
)
from blindsight.app.library.datasets import Release, today
from blindsight.app.library.photos import release_photos
from blindsight.core.errors import BudgetExceeded, HostileFile, InvalidParameter
from blindsight.workbench import WorkbenchSettings, create_app
from blindsight.workbench.infra.identity import Grant, RequestIdentity
from workbench.asgi import Client

# Who may, besides the owner of the workbench. "set": roles in the data set that the address names.
# "any": roles in some data set, or of the workbench, that open a page or a list.
OWN, SEARCH = {"owner"}, {"owner", "searcher"}
CARD = {"owner", "searcher", "auditor", "keeper"}
HISTORY, ATTACK, BUDGET = {"owner", "auditor", "keeper"}, {"owner", "auditor"}, {"owner", "keeper"}
EVERYBODY = {"owner", "searcher", "auditor", "keeper", "nobody", "aggregator", "monitor"}
PUBLIC = {*EVERYBODY, "stranger"}
RIGHTS: dict[tuple[str, str], tuple[str, set[str]]] = {
    ("GET", "/health"): ("any", PUBLIC),
    ("GET", "/health/live"): ("any", PUBLIC),
    ("GET", "/health/ready"): ("any", PUBLIC),
    ("GET", "/docs"): ("any", PUBLIC),
    ("GET", "/login"): ("any", PUBLIC),
    ("GET", "/login/oidc"): ("any", PUBLIC),
    ("GET", "/login/oidc/callback"): ("any", PUBLIC),
    ("POST", "/logout"): ("any", EVERYBODY),  # a browser needs its page's token
    ("GET", "/metrics"): ("any", {"monitor"}),
    ("GET", "/"): ("any", EVERYBODY),  # to the first page that one may open
    ("GET", "/search"): ("any", SEARCH),
    ("GET", "/protect"): ("any", OWN),
    ("GET", "/tags"): ("any", OWN),
    ("GET", "/compare"): ("any", OWN),
    ("GET", "/together"): ("any", OWN | {"aggregator"}),
    ("GET", "/send"): ("any", OWN),
    ("GET", "/budget"): ("any", HISTORY | {"nobody", "searcher", "aggregator"}),
    ("GET", "/people"): ("any", set()),
    ("GET", "/protect/{dataset}"): ("set", OWN),
    ("GET", "/protect/{dataset}/confirm"): ("set", OWN),
    ("GET", "/protect/{dataset}/{release}"): ("set", OWN),
    ("GET", "/api/datasets/{dataset}/photos/{photo}"): ("set", OWN),
    ("GET", "/api/protect/folders"): ("any", set()),
    ("POST", "/api/protect/folder"): ("any", set()),
    ("POST", "/api/protect/new"): ("any", set()),
    ("POST", "/api/protect/{dataset}/drop"): ("set", OWN),
    ("POST", "/api/protect/{dataset}/scan"): ("set", OWN),
    ("POST", "/api/protect/{dataset}/look"): ("set", OWN),
    ("POST", "/api/protect/{dataset}/release"): ("set", OWN),
    ("GET", "/api/releases/{dataset}/{release}/card.txt"): ("set", CARD),
    ("POST", "/api/search/{dataset}/upload"): ("set", SEARCH),
    ("POST", "/api/search/{dataset}/words"): ("set", SEARCH),
    ("POST", "/api/search/{dataset}/photo/{photo}"): ("set", OWN),
    ("POST", "/api/search/{dataset}/again/{query}"): ("set", SEARCH),
    ("GET", "/api/tags/{dataset}"): ("set", OWN),
    ("POST", "/api/tags/{dataset}"): ("set", OWN),
    ("POST", "/api/tags/{dataset}/names"): ("set", OWN),
    ("POST", "/api/tags/{dataset}/confirm"): ("set", OWN),
    ("POST", "/api/tags/{dataset}/learn"): ("set", OWN),
    ("POST", "/api/tags/{dataset}/words"): ("set", OWN),
    ("POST", "/api/tags/{dataset}/publish"): ("set", OWN),
    ("GET", "/api/tags/{dataset}/export.csv"): ("set", OWN),
    ("GET", "/api/compare/{dataset}"): ("set", OWN),
    ("GET", "/api/compare/{dataset}/{first}/{second}"): ("set", OWN),
    ("POST", "/api/compare/{dataset}"): ("set", OWN),
    ("POST", "/api/compare/{dataset}/learn"): ("set", OWN),
    ("POST", "/api/together/start"): ("set", OWN),
    ("POST", "/api/together/join/upload"): ("set", OWN),
    ("POST", "/api/together/two/{dataset}/upload"): ("set", OWN),
    ("GET", "/api/together/two/{dataset}/{file}"): ("set", OWN),
    ("GET", "/api/together/{run}"): ("any", {"aggregator"}),
    ("GET", "/api/together/{run}/invitation/{number}"): ("any", set()),
    ("GET", "/api/together/{run}/model.zip"): ("any", set()),
    ("POST", "/api/together/{run}/{action}"): ("any", set()),
    ("POST", "/api/send/{dataset}/try"): ("set", OWN),
    ("GET", "/answer"): ("any", OWN),
    ("GET", "/received"): ("any", set()),
    ("GET", "/received/search.html"): ("any", set()),
    ("POST", "/api/answers/{dataset}"): ("set", OWN),
    ("POST", "/api/answers/{dataset}/copies"): ("set", OWN),
    ("POST", "/api/send/{dataset}/statistics"): ("set", OWN),
    ("GET", "/api/budget/{dataset}/agreement"): ("set", HISTORY),
    ("POST", "/api/budget/{dataset}/decide"): ("set", BUDGET),
    ("POST", "/api/budget/{dataset}/set"): ("set", BUDGET),
    ("POST", "/api/budget/{dataset}/close"): ("set", BUDGET),
    ("GET", "/api/history.csv"): ("any", HISTORY),
    ("GET", "/api/books.csv"): ("any", HISTORY),
    ("GET", "/api/releases/{release}/report.html"): ("set", OWN),
    ("POST", "/api/releases/{release}/attack"): ("set", ATTACK),
    ("GET", "/api/ledger/accounts"): ("any", EVERYBODY - {"monitor"}),
    ("GET", "/api/ledger/entries"): ("any", EVERYBODY - {"monitor"}),
    ("POST", "/api/ledger/verify"): ("any", EVERYBODY - {"monitor"}),
    ("GET", "/api/ledger/export.json"): ("any", HISTORY),
    ("GET", "/api/jobs"): ("any", OWN),
    ("GET", "/api/jobs/{job}"): ("set", OWN),
    ("GET", "/api/jobs/{job}/history"): ("set", OWN),
    ("POST", "/api/jobs/{job}/stop"): ("set", OWN),
    ("POST", "/api/jobs/{job}/rerun"): ("set", OWN),
    ("GET", "/api/rights"): ("any", set()),
    ("POST", "/api/rights"): ("any", set()),
    ("POST", "/api/rights/roles"): ("any", set()),
    ("POST", "/api/rights/withdraw"): ("any", set()),
    ("POST", "/api/people/bar"): ("any", set()),
    ("POST", "/api/people/limit"): ("any", set()),
    ("GET", "/api/access"): ("any", HISTORY),
    ("POST", "/api/access/verify"): ("any", HISTORY),
    ("GET", "/api/access/export.{kind}"): ("any", set()),
}
# Signing in with a key has tests of its own: its form carries a token of the page.
ELSEWHERE = {("POST", "/login")}
SET_ROLES = ("owner", "searcher", "auditor", "keeper")
OTHER_ROLES = ("analyst", "aggregator", "monitor")
# Bodies that fit, but start nothing: every job or charge would be refused for another reason.
BODIES: dict[str, Any] = {
    "/api/protect/{dataset}/release": {"epsilon": 8.0, "sure": False},
    "/api/budget/{dataset}/close": {"sure": False},
    "/api/budget/{dataset}/set": {"epsilon": -1},
    "/api/budget/{dataset}/decide": {"decision": "wait"},
    "/api/search/{dataset}/words": {"words": " "},
    "/api/rights": {},
    "/api/rights/roles": {},
    "/api/rights/withdraw": {},
    "/api/people/bar": {},
    "/api/people/limit": {},
    "/api/protect/folder": {},
    "/api/protect/new": {"name": 1},
}


class Ward:
    """A workbench with two data sets, a release of each, a job of each, and somebody of every
    role."""

    def __init__(self, app: Any, folder: Path) -> None:
        self.app, workbench = app, app.state.workbench
        first = workbench.datasets.listed()[0]
        # A second data set with the files of the first: what it holds does not matter here.
        source = workbench.datasets.vault(first)
        other = source.parent / ("0f" * 6)
        shutil.copytree(source, other)
        about = json.loads((other / "about.json").read_bytes())
        about |= {"id": "0f" * 6, "name": "Other ward"}
        for release in about["releases"]:
            release["id"] = "1f" * 6
        (other / "about.json").write_text(json.dumps(about))
        self.sets = (first, workbench.datasets.get("0f" * 6))
        self.jobs = {
            data_set.id: workbench.jobs.add("send", {"dataset": data_set.id}, "me")["id"]
            for data_set in self.sets
        }
        keys = workbench.keys
        self.people: dict[str, Client] = {
            "administrator": self._client(keys.make("me", "owner")),
            "stranger": Client(app),
        }
        for role in OTHER_ROLES:
            self.people["nobody" if role == "analyst" else role] = self._client(
                keys.make(role, role)
            )
        for role in SET_ROLES:
            key = keys.make(f"the {role}", "analyst")
            release = first.releases[0].id if role == "searcher" else ""
            keys.grant(f"the {role}", role, first.id, release=release, actor="me")
            self.people[role] = self._client(key)

    def _client(self, key: str) -> Client:
        return Client(self.app, Authorization=f"Bearer {key}")

    def ask(self, who: str, method: str, path: str, data_set: Any) -> int:
        """The status of an answer, where redirects are not followed."""
        photo = self.app.state.workbench.datasets.photos(data_set)[0].id
        numbers = {
            "{dataset}": data_set.id,
            "{release}": data_set.releases[0].id,
            "{photo}": photo,
            "{first}": photo,
            "{second}": photo,
            "{query}": "0" * 16,
            "{job}": self.jobs[data_set.id],
            "{run}": "0" * 12,
            "{number}": "2",
            "{action}": "pause",
            "{file}": "ours",
            "{kind}": "csv",
        }
        address = path
        for name, value in numbers.items():
            address = address.replace(name, value)
        if path == "/api/together/join/upload":
            address += f"?dataset={data_set.id}"
        body = BODIES.get(path, {})
        if path == "/api/together/start":
            body = {"title": "run", "dataset": data_set.id, "sites": "one"}
        options: dict[str, Any] = {"follow_redirects": False}
        if method == "POST":
            options["json"] = body
        return self.people[who].request(method, address, **options).status_code


@pytest.fixture(scope="module")
def ward(stock: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ward]:
    state = tmp_path_factory.mktemp("ward") / "state"
    shutil.copytree(stock, state)
    app = create_app(
        WorkbenchSettings(
            state=state,
            keys="required",
            public="",
            rate=10**6,
            burst=10**6,
            upload_seconds=60.0,  # the machine may be busy
        )
    )
    yield Ward(app, state)
    app.state.workbench.access_log.close()
    app.state.workbench.budgets.close()
    app.state.workbench.database.close()


def _routes(app: Any) -> Iterator[tuple[str, str]]:
    for route in app.routes:
        if isinstance(route, APIRoute):
            for method in sorted(route.methods - {"HEAD"}):
                yield method, route.path


def test_every_route_role_and_data_set(ward: Ward) -> None:
    routes = set(_routes(ward.app)) - ELSEWHERE
    assert routes == set(RIGHTS), "the table and the program have different routes"
    wrong, asked = [], 0
    for (method, path), (kind, roles) in sorted(RIGHTS.items()):
        for who, data_set in itertools.product(ward.people, ward.sets):
            status = ward.ask(who, method, path, data_set)
            asked += 1
            # A page sends strangers to sign in; everything else says that a key is needed.
            refused = status in (401, 403) or (who == "stranger" and status == 303)
            mine = data_set is ward.sets[0]
            may = who == "administrator" or (
                who in roles and (kind == "any" or mine or who not in SET_ROLES)
            )
            if refused == may or (status >= 500 and status not in (501, 502)):
                wrong.append(f"{who} {method} {path} {'own' if mine else 'other'}: {status}")
    assert not wrong, "\n" + "\n".join(wrong)
    assert asked == len(RIGHTS) * len(ward.people) * 2


def test_lists_and_pages_show_only_what_somebody_has_rights_on(ward: Ward) -> None:
    first, other = ward.sets
    for who in SET_ROLES:
        person = ward.people[who]
        for address in (
            *("/", "/search", "/budget", "/tags", "/protect", "/api/jobs", "/api/access"),
            *("/api/ledger/accounts", "/api/ledger/entries", "/api/ledger/export.json"),
            "/api/history.csv",
        ):
            text = person.get(address).text
            assert other.name not in text, (who, address)
            assert other.id not in text, (who, address)
    assert first.name in ward.people["owner"].get("/").text
    assert first.name in ward.people["keeper"].get("/budget").text
    assert first.id in ward.people["searcher"].get("/search").text


def test_a_searcher_finds_entries_of_the_named_release_without_names_or_photos(ward: Ward) -> None:
    first, _ = ward.sets
    workbench = ward.app.state.workbench
    photo = workbench.datasets.photos(first)[0]
    picture = workbench.datasets.thumbnail(first, photo.id).read_bytes()
    headers = {"Content-Type": "image/jpeg"}
    address = f"/api/search/{first.id}/upload"
    owner = ward.people["owner"].post(address, content=picture, headers=headers).json()
    found = ward.people["searcher"].post(address, content=picture, headers=headers).json()
    assert [g["count"] for g in found["groups"]] == [g["count"] for g in owner["groups"]]
    assert any(hit["name"] for g in owner["groups"] for hit in g["photos"])
    assert not any(hit["name"] for g in found["groups"] for hit in g["photos"])
    assert not any(g["mix"] for g in found["groups"])
    again = f"/api/search/{first.id}/again/{found['query']}"
    assert ward.people["searcher"].post(f"{again}?rerank=true").status_code == 403
    assert ward.people["owner"].post(f"{again}?rerank=true").status_code == 200
    unknown = ward.people["searcher"].post(f"{again}?release={'9' * 12}")
    assert unknown.status_code == 404
    page = ward.people["searcher"].get("/search").text
    assert f"/api/datasets/{first.id}/photos/" not in page


def test_a_searcher_of_an_older_release_does_not_reach_a_newer_one(ward: Ward) -> None:
    first, _ = ward.sets
    datasets = ward.app.state.workbench.datasets
    newer = Release("2f" * 6, "search", "newer", 1.0, 1, today(), False)
    datasets.keep_release(first, newer)
    try:
        address = f"/api/search/{first.id}/again/{'0' * 16}?release={newer.id}"
        assert ward.people["searcher"].post(address).status_code == 404
        card = f"/api/releases/{first.id}/{newer.id}/card.txt"
        assert ward.people["searcher"].get(card).status_code == 403
        assert ward.people["auditor"].get(card).status_code == 404, "there is no file"
    finally:
        datasets.save(first)


def test_a_budget_keeper_sets_the_budget_and_the_ledger_says_who(ward: Ward) -> None:
    first, _ = ward.sets
    keeper = ward.people["keeper"]
    unit = "person" if first.most else "photo"
    order = {"epsilon": 20.0, "unit": unit}
    answer = keeper.post(
        f"/api/budget/{first.id}/set", json=order, headers={"X-Purpose": "spring%20study"}
    )
    assert answer.json()["budget"] == 20.0
    ledger = ward.app.state.workbench.budgets.named(first.account)
    last = list(ledger.entries())[-1]
    assert (last.kind, last.actor, last.purpose) == ("grant", "the keeper", "spring study")
    low = keeper.post(f"/api/budget/{first.id}/set", json={"epsilon": 0.01, "unit": unit})
    assert low.status_code == 422, "less than what is spent"


def test_rights_come_from_groups_and_end_when_withdrawn(ward: Ward) -> None:
    keys, (first, other) = ward.app.state.workbench.keys, ward.sets
    person = keys.person("https://login", "17", "ines@ward.example", "Ines", ("nurses", "night"))
    session = keys.open_session(person)
    keys.grant("nurses", "searcher", first.id, group=True, actor="me")
    keys.grant("ines@ward.example", "auditor", other.id, actor="me")
    keys.read()
    found = keys.known_session(session)
    assert found.grants == {Grant("searcher", first.id), Grant("auditor", other.id)}
    assert (found.role, found.groups) == ("analyst", ("nurses", "night"))
    assert keys.withdraw("nurses", first.id, group=True) == 1
    keys.read()
    assert not keys.known_session(session).can("search", first.id, first.releases[0].id)
    keys.revoke("ines@ward.example")
    keys.read()
    assert keys.known_session(session) is None
    assert keys.person("https://login", "17", "ines@ward.example", "Ines", ()) is None


def test_the_table_of_people_gives_one_role_per_data_set_all_or_none(ward: Ward) -> None:
    keys, (first, other), head = (
        ward.app.state.workbench.keys,
        ward.sets,
        ward.people["administrator"],
    )

    def held(name: str) -> set[Grant]:
        rows = [row for row in keys.grants() if row["subject"] == name]
        return {Grant(row["role"], row["dataset"], row["release"]) for row in rows}

    keys.make("table", "analyst")
    keys.grant("table", "searcher", first.id, release=first.releases[0].id, actor="me")
    limited = Grant("searcher", first.id, first.releases[0].id)
    order = {"subject": "table", "roles": {first.id: "searcher", other.id: "keeper"}}
    assert head.post("/api/rights/roles", json=order).status_code == 200
    assert held("table") == {limited, Grant("keeper", other.id)}, "the named release stays"
    page = head.get("/people").text
    assert f'aria-label="Role of table in {other.name}"' in page
    assert '<option value="keeper" selected>' in page
    for wrong in ({first.id: "owner", "9e" * 6: "owner"}, {first.id: "king"}, {}):
        refused = head.post("/api/rights/roles", json={"subject": "table", "roles": wrong})
        assert refused.status_code in (404, 422)
    unknown = {"subject": "nobody known", "roles": {first.id: "owner"}}
    assert 400 <= head.post("/api/rights/roles", json=unknown).status_code < 500
    assert held("table") == {limited, Grant("keeper", other.id)}, "nothing of it was granted"
    order["roles"] = {first.id: "owner", other.id: ""}
    assert head.post("/api/rights/roles", json=order).status_code == 200
    assert held("table") == {Grant("owner", first.id)}
    assert head.get("/people?show=photos").status_code == 200
    keys.revoke("table")


def test_a_spending_limit_refuses_what_a_person_may_not_release(
    ward: Ward, stocked: Path, make: Callable[..., Any]
) -> None:
    workbench = make(state=stocked).state.workbench
    (data_set,) = workbench.datasets.listed()
    budget = workbench.budgets.named(data_set.account)
    before = budget.head()
    set_spending_limit(workbench.settings, "jonas", 1.0)
    second = Release("2e" * 6, "search", "second", 2.0, 0, today(), False)
    for epsilon in (2.0, 1.5):
        with pytest.raises(BudgetExceeded, match=r"'jonas' may spend ε = 1 .* smaller epsilon"):
            charge_training(
                workbench.datasets, data_set, budget, "run", (epsilon, 1e-9), ["*"], actor="jonas"
            )
    with pytest.raises(BudgetExceeded, match="'jonas' may spend ε = 1 "):
        release_photos(workbench.datasets, data_set, second, accept_chance=True, actor="jonas")
    assert budget.head() == before, "nothing was charged"
    assert not list((stocked / "releases" / "second").glob("*")), "nothing was released"
    set_spending_limit(workbench.settings, "jonas", 3.0)
    release_photos(workbench.datasets, data_set, second, accept_chance=True, actor="jonas")
    assert budget.charged_by("jonas") == {("record", "replace one"): 2.0}
    (limit_file,) = (stocked / "limits").iterdir()
    limit_file.write_text(limit_file.read_text().replace("3.0", "9.0"))
    with pytest.raises(HostileFile):
        spending_limit(workbench.settings, "jonas")


def test_a_spending_limit_is_set_on_the_page(ward: Ward) -> None:
    workbench, head = ward.app.state.workbench, ward.people["administrator"]
    workbench.keys.make("spender", "analyst")
    order: dict[str, Any] = {"subject": "spender", "limit": "4"}
    assert head.post("/api/people/limit", json=order).status_code == 200
    assert spending_limit(workbench.settings, "spender") == 4
    page = head.get("/people").text
    assert 'value="4" aria-label="Epsilon that spender may spend of each data set"' in page
    assert "<small>0 used</small>" in page
    for wrong in ("-1", "four", "inf", "nan", None):
        refused = head.post("/api/people/limit", json={**order, "limit": wrong})
        assert refused.status_code == 422, wrong
    unknown = {"subject": "nobody known", "limit": 4}
    assert head.post("/api/people/limit", json=unknown).status_code == 404
    assert spending_limit(workbench.settings, "spender") == 4
    assert head.post("/api/people/limit", json={**order, "limit": ""}).status_code == 200
    assert spending_limit(workbench.settings, "spender") is None
    workbench.keys.revoke("spender")


def test_a_name_never_passes_to_another_account(ward: Ward) -> None:
    keys = ward.app.state.workbench.keys
    first = keys.person("https://login", "1", "jo@ward.example", "Jo", ())
    same = keys.person("https://login", "1", "renamed@ward.example", "Jo", ())
    thief = keys.person("https://login", "2", "jo@ward.example", "Jo", ())
    key = keys.person("https://login", "3", "me", "Me", ())
    assert first.name == same.name == "jo@ward.example"
    assert len({first.name, thief.name, key.name, "me"}) == 4
    with pytest.raises(InvalidParameter, match="already"):
        keys.make("jo@ward.example", "owner")


def test_a_person_is_not_a_group_of_the_same_name(ward: Ward) -> None:
    keys, (first, _) = ward.app.state.workbench.keys, ward.sets
    keys.make("surgeons", "analyst")
    keys.grant("surgeons", "owner", first.id, group=True, actor="me")
    keys.read()
    by_name = {identity.name: identity for identity in keys._keys.values()}
    assert by_name["surgeons"] == RequestIdentity("surgeons", "analyst")


@pytest.mark.parametrize(
    ("subject", "role", "release", "says"),
    [
        ("nobody known", "owner", "", "signed in"),
        ("me", "king", "", "role must be"),
        ("me", "auditor", "1f" * 6, "searcher only"),
    ],
)
def test_a_grant_that_makes_no_sense_is_refused(
    ward: Ward, subject: str, role: Any, release: str, says: str
) -> None:
    with pytest.raises(InvalidParameter, match=says):
        ward.app.state.workbench.keys.grant(subject, role, ward.sets[0].id, release=release)


def test_an_owner_gets_a_key_whatever_names_are_taken(make: Any) -> None:
    keys = make().state.workbench.keys
    keys.make("owner", "analyst")
    keys.person("https://login", "1", "owner-2", "Olga", ())
    keys.make_owner()
    keys.revoke("owner-3")
    identity = keys.identify(keys.make_owner())
    assert identity is not None and identity.role == "owner"
    assert {row["name"] for row in keys.listed()} == {"owner", "owner-3", "owner-4"}
