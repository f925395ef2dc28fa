"""The gate: keys and roles, cross-site requests, hosts, sizes, rates, headers; refusals that tell
nothing.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sql

from blindsight.workbench.infra import identity
from blindsight.workbench.infra.database import SESSIONS
from blindsight.workbench.infra.guard import Buckets
from blindsight.workbench.infra.identity import Keys, RequestIdentity
from blindsight.workbench.infra.problems import PROBLEMS
from workbench.asgi import BASE, Client

client = Client
TOKEN = "a-secret-of-this-start-up"


@pytest.fixture
def keyed(make: Callable[..., Any]) -> tuple[Any, dict[str, str]]:
    app = make(keys="required")
    keys = app.state.workbench.keys
    return app, {
        role: keys.make(f"the {role}", role) for role in ("owner", "analyst", "aggregator")
    }


@pytest.fixture
def no_refill(monkeypatch: pytest.MonkeyPatch) -> None:
    """An allowance does not grow back while the test runs, however busy the machine is."""
    assert Buckets.__init__.__kwdefaults__ is not None
    monkeypatch.setitem(Buckets.__init__.__kwdefaults__, "clock", lambda: 0.0)


def bearer(app: Any, key: str) -> Client:
    return client(app, Authorization=f"Bearer {key}")


def test_without_a_key_nothing_is_told(keyed: Any) -> None:
    app, _ = keyed
    for address in ("/api/tags/000000000000", "/api/jobs", "/api/ledger/accounts", "/metrics"):
        answer = client(app).get(address)
        assert answer.status_code == 401
        assert answer.json() == {"error": "key_needed", "message": PROBLEMS["key_needed"][1]}
    assert client(app).get("/health").status_code == 200
    assert client(app).get("/search", follow_redirects=False).headers["location"] == "/login"


@pytest.mark.parametrize(
    ("address", "method", "allowed"),
    [
        ("/api/jobs", "GET", {"owner"}),
        ("/api/tags/000000000000", "GET", {"owner"}),
        ("/api/protect/new", "POST", {"owner"}),
        ("/api/search/000000000000/words", "POST", {"owner"}),
        ("/api/together/000000000000", "GET", {"owner", "aggregator"}),
        ("/api/ledger/accounts", "GET", {"owner", "analyst", "aggregator"}),
        ("/api/ledger/export.json", "GET", {"owner"}),
        ("/api/history.csv", "GET", {"owner"}),
        ("/metrics", "GET", {"owner"}),
    ],
)
def test_each_role_may_do_its_own(keyed: Any, address: str, method: str, allowed: set[str]) -> None:
    app, keys = keyed
    for role, key in keys.items():
        answer = bearer(app, key).request(method, address, json={} if method == "POST" else None)
        assert (answer.status_code != 403) == (role in allowed), (role, answer.text)


def test_keys_are_stored_as_digests_and_end_when_revoked(keyed: Any) -> None:
    app, keys = keyed
    workbench = app.state.workbench
    raw = b"".join(path.read_bytes() for path in workbench.settings.state.glob("workbench.db*"))
    assert not any(key.encode() in raw for key in keys.values())
    workbench.keys.revoke("the analyst")
    assert bearer(app, keys["analyst"]).get("/api/ledger/accounts").status_code == 401


def test_a_page_is_reached_by_signing_in_and_left_by_signing_out(keyed: Any) -> None:
    app, keys = keyed
    visitor = client(app)
    visitor.get("/login")
    form = {"csrf": visitor.cookies["blindsight_csrf_8731"], "key": "wrong"}
    assert visitor.post("/login", data=form).status_code == 401
    assert (
        visitor.post("/login", data={**form, "csrf": "x", "key": keys["owner"]}).status_code == 403
    )
    assert visitor.post("/login", data={**form, "key": keys["owner"]}).url.path == "/"
    flags = visitor.get("/search").request.headers["cookie"]
    assert "blindsight_session_8731" in flags
    assert visitor.post("/logout").status_code == 403
    token = {"X-CSRF-Token": visitor.cookies["blindsight_csrf_8731"]}
    assert visitor.post("/logout", headers=token).status_code == 204
    assert visitor.get("/api/jobs").status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "null"},
        {"Origin": BASE},
        {"Cookie": "blindsight_csrf_8731=abc"},
        {"Cookie": "blindsight_csrf_8731=abc", "X-CSRF-Token": "abd"},
    ],
)
def test_another_sites_page_cannot_act(make: Callable[..., Any], headers: dict[str, str]) -> None:
    answer = client(make()).post("/api/ledger/verify", headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (403, "cross_site")


def test_the_workbenchs_own_page_can_act(make: Callable[..., Any]) -> None:
    headers = {"Cookie": "blindsight_csrf_8731=abc", "X-CSRF-Token": "abc", "Origin": BASE}
    headers["Sec-Fetch-Site"] = "same-origin"
    assert client(make()).post("/api/ledger/verify", headers=headers).status_code == 200


def test_two_workbenches_on_one_machine_keep_their_sessions_apart(make: Callable[..., Any]) -> None:
    first, second = (make(keys="auto", token=TOKEN, port=port) for port in (8731, 9000))
    browser = client(first)
    browser.get(f"/?token={TOKEN}")
    jar = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    other = client(second, Cookie=jar)
    assert other.get("/api/jobs").status_code == 401
    names = {
        cookie.partition("=")[0]
        for cookie in other.get(f"/?token={TOKEN}", follow_redirects=False).headers.get_list(
            "set-cookie"
        )
    }
    assert names and not names & set(browser.cookies)


def test_a_cookie_made_to_be_slow_to_read_is_read_at_once(make: Callable[..., Any]) -> None:
    """Python's own reader takes time that grows with the square of its backslashes."""
    app = make(keys="required")
    for cookie in ('x="' + "\\" * 30_000 + '"', 'x="' + '\\"' * 15_000 + '"'):
        before = time.thread_time()
        assert client(app).get("/login", headers={"Cookie": cookie}).status_code == 200
        assert time.thread_time() - before < 1.0


def test_a_strange_host_is_refused_where_keys_are_off(make: Callable[..., Any]) -> None:
    app = make(hosts=("workbench.example",))
    for host, status in (
        ("evil.example", 400),
        ("workbench.example:80", 200),
        ("localhost:8731", 200),
    ):
        assert client(app).get("/health", headers={"Host": host}).status_code == status


def test_any_other_host_is_refused_where_no_further_name_was_set(make: Callable[..., Any]) -> None:
    for mode in ("off", "auto"):
        app = make(keys=mode, token=None if mode == "off" else TOKEN)
        for host in ("evil.example", "evil.example:8731", "", "127.0.0.1.evil.example"):
            assert client(app).get("/health", headers={"Host": host}).status_code == 400, (
                mode,
                host,
            )


@pytest.mark.parametrize(
    "header", ["X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Forwarded", "Via"]
)
def test_a_forwarded_request_is_refused_where_the_owner_needs_no_key(
    make: Callable[..., Any], header: str
) -> None:
    for mode in ("off", "auto"):
        app = make(keys=mode, token=None if mode == "off" else TOKEN)
        answer = client(app).get("/api/jobs", headers={header: "203.0.113.9"})
        assert (answer.status_code, answer.json()["error"]) == (400, "forwarded")
    assert (
        client(make(proxies=("127.0.0.1",)))
        .get("/api/jobs", headers={header: "203.0.113.9"})
        .status_code
        == 200
    )


@pytest.mark.usefixtures("no_refill")
def test_a_forwarding_header_buys_no_further_requests(make: Callable[..., Any]) -> None:
    app = make(keys="required", rate=1, burst=3)
    found = [
        client(app).get("/api/jobs", headers={"X-Forwarded-For": f"10.0.0.{n}"}).status_code
        for n in range(5)
    ]
    assert found == [401, 401, 401, 429, 429]


def test_a_page_of_a_neighbouring_site_cannot_act_even_with_the_token(
    make: Callable[..., Any],
) -> None:
    token = {"Cookie": "blindsight_csrf_8731=abc", "X-CSRF-Token": "abc"}
    for site, status in (
        ("same-site", 403),
        ("cross-site", 403),
        ("same-origin", 200),
        ("none", 200),
    ):
        answer = client(make()).post(
            "/api/ledger/verify", headers={**token, "Sec-Fetch-Site": site}
        )
        assert answer.status_code == status, site


def test_a_key_that_nobody_has_does_not_excuse_from_the_check_of_origin(
    make: Callable[..., Any],
) -> None:
    headers = {"Authorization": "Bearer bs_nobody", "Origin": "http://evil.example"}
    answer = client(make()).post("/api/ledger/verify", headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (403, "cross_site")


def test_a_path_with_dots_is_refused_also_where_it_ends_inside(make: Callable[..., Any]) -> None:
    app = make()
    assert client(app).get("/static/workbench.css").status_code == 200
    answer = client(app).get("/static/none/%2e%2e/workbench.css")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/json"


def test_the_owner_of_this_machine_comes_by_the_link_that_was_printed(
    make: Callable[..., Any],
) -> None:
    app = make(keys="auto", token=TOKEN)
    assert client(app).get("/api/jobs").status_code == 401
    assert client(app).get("/").url.path == "/login"
    assert (
        client(app).get("/?token=" + "x" * 24, follow_redirects=False).headers["location"]
        == "/login"
    )
    visitor = client(app)
    answer = visitor.get(f"/?token={TOKEN}")
    assert TOKEN not in str(answer.url)
    assert visitor.get("/api/jobs").status_code == 200
    assert bearer(app, TOKEN).get("/metrics").status_code == 200
    # A session outlives the process, and ends where keys are required.
    cookie = {"Cookie": f"blindsight_session_8731={visitor.cookies['blindsight_session_8731']}"}
    assert (
        client(make(keys="auto", token="y" * 24)).get("/api/jobs", headers=cookie).status_code
        == 200
    )
    assert client(make(keys="required")).get("/api/jobs", headers=cookie).status_code == 401


def test_a_link_signs_nobody_in_with_a_key(keyed: Any) -> None:
    """Somebody else's key in a link would make its reader work under another's name."""
    app, keys = keyed
    visitor = client(app)
    for key in keys.values():
        assert visitor.get(f"/?token={key}").url.path == "/login"
    assert visitor.get("/api/jobs").status_code == 401


def test_jobs_on_the_owners_photos_are_the_owners(keyed: Any) -> None:
    app, keys = keyed
    jobs = app.state.workbench.jobs
    own = jobs.add("attack", {"dataset": "ab" * 6, "release": "Anna's scans"}, "the owner")["id"]
    for role, key in keys.items():
        for address in ("/api/jobs", f"/api/jobs/{own}"):
            seen = bearer(app, key).get(address)
            assert seen.status_code == (200 if role == "owner" else 403)
            assert ("Anna" in seen.text) == (role == "owner")


@pytest.mark.usefixtures("no_refill")
def test_made_up_keys_pay_by_address_and_do_not_read_the_database_each_time(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("blindsight.workbench.infra.identity.time.monotonic", lambda: now[0])
    app = make(keys="required", rate=1, burst=4)
    readings, read = [], app.state.workbench.keys.read

    def counted() -> None:
        readings.append(now[0])
        read()

    app.state.workbench.keys.read = counted
    found = [bearer(app, f"bs_{n}").get("/api/jobs").status_code for n in range(10)]
    assert found == [401] * 4 + [429] * 6
    assert len(readings) == 1


@pytest.mark.usefixtures("no_refill")
@pytest.mark.parametrize("mode", ["required", "auto"])
def test_strangers_without_a_key_cannot_use_up_the_allowance_of_whoever_has_one(
    make: Callable[..., Any], mode: str
) -> None:
    app = make(keys=mode, token=TOKEN, rate=1, burst=50)
    secret = app.state.workbench.keys.make("ann", "owner") if mode == "required" else TOKEN
    visitor = client(app)
    if mode == "auto":
        visitor.get(f"/?token={TOKEN}")
    found = [client(app).get("/api/jobs").status_code for _ in range(60)]
    found += [bearer(app, f"bs_{n}").get("/api/jobs").status_code for n in range(20)]
    assert found[-25:] == [429] * 25, "strangers at this address have used up theirs"
    assert {bearer(app, secret).get("/api/jobs").status_code for _ in range(20)} == {200}
    if mode == "auto":
        assert {visitor.get("/api/jobs").status_code for _ in range(10)} == {200}
        assert client(app).get(f"/?token={TOKEN}").status_code == 200, "the link still opens"


def test_a_key_made_or_revoked_by_another_process_is_known_soon(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("blindsight.workbench.infra.identity.time.monotonic", lambda: now[0])
    app = make(keys="required")
    assert bearer(app, "bs_nobody").get("/api/jobs").status_code == 401
    elsewhere = Keys(app.state.workbench.database)
    key = elsewhere.make("ann", "owner")
    now[0] += 0.6
    assert bearer(app, key).get("/api/jobs").status_code == 200
    elsewhere.revoke("ann")
    now[0] += 2.1
    assert bearer(app, key).get("/api/jobs").status_code == 401


@pytest.mark.parametrize("change", ["session", "revoked"])
def test_what_changes_while_the_list_of_keys_is_read_is_known_at_once(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    keys = make(keys="required").state.workbench.keys
    key = keys.make("ann", "owner")
    rows, tokens = keys.database.rows, []

    def overtaken(statement: Any) -> Any:
        found = rows(statement)
        if SESSIONS in statement.get_final_froms() and not tokens:  # all rows were read
            tokens.append(keys.open_session(RequestIdentity("ann", "owner")))
            if change == "revoked":
                keys.revoke("ann")
        return found

    monkeypatch.setattr(keys.database, "rows", overtaken)
    keys.read()
    assert keys.needs_reading(known=True)
    assert (keys.identify(key) is None) == (change == "revoked")
    assert (keys.known_session(tokens[0]) is None) == (change == "revoked")


@pytest.mark.parametrize("way", ["grant", "set_roles"])
def test_a_role_that_is_given_twice_at_once_is_given_once(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    keys = make(keys="required").state.workbench.keys
    keys.make("ann", "analyst")
    now, others = identity._now, []

    def give() -> None:
        if way == "grant":
            keys.grant("ann", "auditor", "1")
        else:
            keys.set_roles("ann", {"1": "auditor"})

    def overtaken() -> str:
        if not others:  # after the grants were read, and before this one is written
            others.append(threading.Thread(target=give))
            others[0].start()
            others[0].join(1.0)  # it waits for the end of this one
        return now()

    monkeypatch.setattr(identity, "_now", overtaken)
    give()
    others[0].join()
    assert [(row["dataset"], row["role"]) for row in keys.grants()] == [("1", "auditor")]


def test_two_sign_ins_of_a_new_person_at_once_both_succeed(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = make(keys="required").state.workbench.keys
    account = ("https://login", "1", "jo", "Jo", ())
    begin, others = keys.database.begin, [account, ("https://login", "2", "jo", "Jo", ())]

    class Overtaken:
        """A connection on which another sign-in is stored just before the first new row."""

        def __init__(self, connection: Any) -> None:
            self._connection = connection

        def execute(self, statement: Any) -> Any:
            if isinstance(statement, sql.Insert) and others:
                keys.person(*others.pop(0))
            return self._connection.execute(statement)

    @contextlib.contextmanager
    def transaction() -> Any:
        with begin() as connection:
            yield Overtaken(connection)

    monkeypatch.setattr(keys.database, "begin", transaction)
    second = keys.person(*account)
    # The other account with this name was the first of the three.
    assert [row["name"] for row in keys.people()] == ["jo", second.name]


@pytest.mark.parametrize("address", ["/health", "/", "/search", "/static/workbench.css"])
def test_head_is_answered_like_get_without_a_body(make: Callable[..., Any], address: str) -> None:
    app = make()
    head, get = (client(app).request(method, address) for method in ("HEAD", "GET"))
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers["content-type"] == get.headers["content-type"]


@pytest.mark.parametrize(
    "path", ["a\x00b", "x" * 999, "/".join(["y" * 200] * 30), "../" * 200, "\udc80", "~", "."]
)
def test_a_folder_that_no_file_system_knows_is_not_found(
    make: Callable[..., Any], tmp_path: Any, path: str
) -> None:
    (tmp_path / "photos").mkdir()
    app = make(photos=(tmp_path / "photos",))
    body = json.dumps({"folder": path}).encode("utf-8", "surrogatepass")
    answer = client(app).post(
        "/api/protect/folder", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code in ({202} if path == "." else {404, 422}), answer.text
    table = {"folder": ".", "protect": "table", "table": path[:200], "column": path[:100]}
    body = json.dumps(table).encode("utf-8", "surrogatepass")
    answer = client(app).post(
        "/api/protect/folder", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 422, answer.text


@pytest.mark.parametrize(
    "address", ["/search", "/api/jobs", "/static/workbench.css", "/nothing", "/docs", "/health"]
)
def test_every_answer_carries_the_headers(make: Callable[..., Any], address: str) -> None:
    found = client(make()).get(address).headers
    assert "default-src 'self'" in found["content-security-policy"]
    assert "script-src 'self';" in found["content-security-policy"]
    assert found["x-content-type-options"] == "nosniff"
    assert found["x-frame-options"] == "DENY"
    assert found["referrer-policy"] == "same-origin"


@pytest.mark.parametrize(
    "address",
    [
        "/static/../app.py",
        "/static/%2e%2e/settings.py",
        "/static/..%5csettings.py",
        "/api/jobs/0123456789abcdef/files/..%2fx",
        "/api/jobs/../../etc/passwd",
        "/static/%00",
        "/static//etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
    ],
)
def test_no_path_leads_out(make: Callable[..., Any], address: str) -> None:
    answer = client(make()).get(address)
    assert answer.status_code in (404, 422)
    assert "root:" not in answer.text
    assert "dataclass" not in answer.text


@pytest.mark.usefixtures("no_refill")
def test_a_caller_in_a_hurry_gets_429_and_others_do_not(make: Callable[..., Any]) -> None:
    app = make(keys="required", rate=1, burst=5)
    keys = [app.state.workbench.keys.make(name, "owner") for name in "ab"]
    found = [bearer(app, keys[0]).get("/api/jobs").status_code for _ in range(8)]
    assert found == [200] * 5 + [429] * 3
    assert bearer(app, keys[1]).get("/api/jobs").status_code == 200
    assert "retry-after" in bearer(app, keys[0]).get("/api/jobs").headers


def test_an_allowance_grows_back() -> None:
    now = [0.0]
    buckets = Buckets(60, 2, clock=lambda: now[0])
    assert [buckets.take("a") for _ in range(3)] == [True, True, False]
    now[0] = 1.0
    assert buckets.take("a")
    for n in range(20_000):
        buckets.take(str(n))
    assert len(buckets) <= 10_000


def test_a_body_beyond_its_limit_is_refused_also_without_a_length(make: Callable[..., Any]) -> None:
    app = make(body_bytes=1000)
    assert client(app).post("/api/protect/new", content=b"x" * 1001).status_code == 413

    async def pieces() -> Any:
        for _ in range(20):
            yield b" " * 100

    assert client(app).post("/api/protect/new", content=pieces()).status_code == 413


def test_errors_are_the_same_whatever_the_data(make: Callable[..., Any]) -> None:
    app = client(make())
    bodies = {
        app.post("/api/protect/new", json=body).text
        for body in (
            {"most": 0},
            {"most": "Ann"},
            {"patient": "Ann"},
            [],
            {"name": -1},
            {"most": 10**30},
        )
    }
    assert len(bodies) == 1
    assert "Ann" not in bodies.pop()
    assert (
        app.post(
            "/api/protect/new", content=b"{", headers={"content-type": "application/json"}
        ).status_code
        == 422
    )


def test_a_mistake_of_ours_is_told_without_its_words(make: Callable[..., Any], caplog: Any) -> None:
    app = make()

    def fail(**_: Any) -> None:
        raise RuntimeError("pixels of Ann")

    app.state.workbench.jobs.listed = fail
    answer = client(app).get("/api/jobs")
    assert (answer.status_code, answer.json()["error"]) == (500, "failed")
    assert "Ann" not in answer.text + caplog.text
    assert "RuntimeError" in caplog.text


def test_metrics_count_routes_not_addresses(make: Callable[..., Any]) -> None:
    app = client(make())
    app.get("/api/jobs/0123456789abcdef")
    app.get("/some/secret/name")
    app.post("/api/compare/0123456789ab/learn", headers={"Origin": "https://elsewhere.example"})
    text = app.get("/metrics").text
    assert 'route="/api/jobs/{job}",status="404"' in text
    assert 'route="/api/compare/{dataset}/learn",status="403"' in text, "also where it was refused"
    assert "0123456789ab" not in text
    assert "secret" not in text
    assert "blindsight_resident_bytes" in text
