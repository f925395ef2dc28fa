"""The gate: keys and roles, cross-site requests, hosts, sizes, rates, headers; refusals that tell nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from blindsight.service.problems import PROBLEMS
from blindsight.service.traffic import Buckets
from service.asgi import BASE, Client

client = Client


@pytest.fixture
def keyed(make: Callable[..., Any]) -> tuple[Any, dict[str, str]]:
    app = make(keys="required")
    keys = app.state.studio.keys
    return app, {role: keys.make(f"the {role}", role) for role in ("owner", "analyst", "aggregator")}


def bearer(app: Any, key: str) -> Client:
    return client(app, Authorization=f"Bearer {key}")


def test_without_a_key_nothing_is_told(keyed: Any) -> None:
    app, _ = keyed
    for address in ("/api/search", "/api/jobs", "/api/ledger/accounts", "/metrics"):
        answer = client(app).get(address)
        assert answer.status_code == 401
        assert answer.json() == {"error": "key_needed", "message": PROBLEMS["key_needed"][1]}
    assert client(app).get("/health").status_code == 200
    assert client(app).get("/search", follow_redirects=False).headers["location"] == "/login"


@pytest.mark.parametrize(
    ("address", "method", "allowed"),
    [
        ("/api/search", "GET", {"owner", "analyst"}),
        ("/api/tags", "GET", {"owner", "analyst"}),
        ("/api/sketch", "GET", {"owner", "analyst", "aggregator"}),
        ("/api/federation", "POST", {"owner", "aggregator"}),
        ("/api/metric", "POST", {"owner"}),
        ("/api/audit", "POST", {"owner"}),
        ("/api/ledger/export.json", "GET", {"owner"}),
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
    studio = app.state.studio
    raw = b"".join(path.read_bytes() for path in studio.settings.state.glob("studio.db*"))
    assert not any(key.encode() in raw for key in keys.values())
    studio.keys.revoke("the analyst")
    assert bearer(app, keys["analyst"]).get("/api/search").status_code == 401


def test_a_page_is_reached_by_signing_in_and_left_by_signing_out(keyed: Any) -> None:
    app, keys = keyed
    visitor = client(app)
    visitor.get("/login")
    form = {"csrf": visitor.cookies["blindsight_csrf"], "key": "wrong"}
    assert visitor.post("/login", data=form).status_code == 401
    assert visitor.post("/login", data={**form, "csrf": "x", "key": keys["owner"]}).status_code == 403
    assert visitor.post("/login", data={**form, "key": keys["owner"]}).url.path == "/search"
    flags = visitor.get("/search").request.headers["cookie"]
    assert "blindsight_session" in flags
    assert visitor.post("/logout").status_code == 403
    token = {"X-CSRF-Token": visitor.cookies["blindsight_csrf"]}
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
        {"Cookie": "blindsight_csrf=abc"},
        {"Cookie": "blindsight_csrf=abc", "X-CSRF-Token": "abd"},
    ],
)
def test_another_sites_page_cannot_act(make: Callable[..., Any], headers: dict[str, str]) -> None:
    answer = client(make()).post("/api/ledger/verify", headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (403, "cross_site")


def test_the_studios_own_page_can_act(make: Callable[..., Any]) -> None:
    headers = {"Cookie": "blindsight_csrf=abc", "X-CSRF-Token": "abc", "Origin": BASE, "Sec-Fetch-Site": "same-origin"}
    assert client(make()).post("/api/ledger/verify", headers=headers).status_code == 200


def test_a_strange_host_is_refused_where_keys_are_off(make: Callable[..., Any]) -> None:
    app = make(hosts=("studio.example",))
    for host, status in (("evil.example", 400), ("studio.example:80", 200), ("localhost:8731", 200)):
        assert client(app).get("/health", headers={"Host": host}).status_code == status


@pytest.mark.parametrize("address", ["/search", "/api/jobs", "/static/studio.css", "/nothing", "/docs", "/health"])
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
        "/static/../settings.py",
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


def test_a_caller_in_a_hurry_gets_429_and_others_do_not(keyed: Any, make: Callable[..., Any]) -> None:
    app = make(keys="required", rate=1, burst=5)
    keys = [app.state.studio.keys.make(name, "owner") for name in "ab"]
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
    assert client(app).post("/api/audit", content=b"x" * 1001).status_code == 413

    async def pieces() -> Any:
        for _ in range(20):
            yield b" " * 100

    assert client(app).post("/api/audit", content=pieces()).status_code == 413


def test_errors_are_the_same_whatever_the_data(make: Callable[..., Any]) -> None:
    app = client(make())
    bodies = {
        app.post("/api/federation", json=body).text
        for body in ({"users": 1}, {"users": "Ann"}, {"patient": "Ann"}, [], {"epsilon": -1}, {"users": 10**30})
    }
    assert len(bodies) == 1
    assert "Ann" not in bodies.pop()
    assert app.post("/api/audit", content=b"{", headers={"content-type": "application/json"}).status_code == 422


def test_a_mistake_of_ours_is_told_without_its_words(make: Callable[..., Any], caplog: Any) -> None:
    app = make()

    def fail() -> None:
        raise RuntimeError("pixels of Ann")

    app.state.studio.jobs.listed = fail
    answer = client(app).get("/api/jobs")
    assert (answer.status_code, answer.json()["error"]) == (500, "failed")
    assert "Ann" not in answer.text + caplog.text
    assert "RuntimeError" in caplog.text


def test_metrics_count_routes_not_addresses(make: Callable[..., Any]) -> None:
    app = client(make())
    app.get("/api/jobs/0123456789abcdef")
    app.get("/some/secret/name")
    text = app.get("/metrics").text
    assert 'route="/api/jobs/{job}",status="404"' in text
    assert "0123456789abcdef" not in text
    assert "secret" not in text
    assert "blindsight_resident_bytes" in text
