"""Sign-in with an identity provider: a real OpenID Connect server in a process of its own."""

from __future__ import annotations

import html
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet, RSAKey

from blindsight.workbench.infra.sign_on import SignOn
from ports import held_port
from workbench.asgi import Client, run

PEOPLE = {
    "1": {"email": "ines@ward.example", "email_verified": True, "groups": ["nurses"]},
    "2": {"email": "boss@ward.example", "email_verified": True, "groups": ["heads"]},
    "3": {"email": "boss@ward.example", "email_verified": False, "groups": []},
}
CALLBACK = "/login/oidc/callback"
PATIENCE = 600.0  # seconds for an answer of the provider: the machine may be busy


@pytest.fixture(scope="session")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the identity provider, with three people."""
    port = held_port()
    log = tmp_path_factory.mktemp("provider") / "log"
    command = [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(port)]
    command += ["--require-nonce", "true"]
    for number, claims in PEOPLE.items():
        command += ["--user-claims", json.dumps({"sub": number, **claims})]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    address = f"http://127.0.0.1:{port}"
    for _ in range(6000):
        try:
            described = f"{address}/.well-known/openid-configuration"
            httpx.get(described, timeout=PATIENCE).raise_for_status()
            break
        except httpx.HTTPError:
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
    else:
        pytest.fail(f"the identity provider does not answer: {log.read_text()}")
    yield address
    process.terminate()
    process.wait(600)


@pytest.fixture
def workbench(make: Callable[..., Any], provider: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("blindsight.workbench.infra.sign_on._TIMEOUT", PATIENCE)
    return make(
        keys="required",
        oidc_issuer=provider,
        oidc_client="workbench",
        oidc_secret="known to both",
        oidc_owners=("heads",),
    )


def choose(address: str, person: str) -> str:
    """Sign in at the provider as its page asks, and where it sends the browser then."""
    with httpx.Client(timeout=PATIENCE) as browser:
        page = browser.get(address)
        assert page.status_code == 200, page.text
        answer = browser.post(address, data={"sub": person})
        return html.unescape(answer.headers["location"])


def signed_in(app: Any, person: str) -> Client:
    browser = Client(app)
    begin = browser.get("/login/oidc", follow_redirects=False)
    assert begin.status_code == 303
    back = choose(begin.headers["location"], person)
    answer = browser.get(f"{CALLBACK}?{urlsplit(back).query}")
    assert answer.status_code == 200, answer.text
    return browser


def test_people_come_with_their_groups_rights_and_name(workbench: Any) -> None:
    keys = workbench.state.workbench.keys
    keys.grant("nurses", "auditor", "*", group=True)
    nurse, head = signed_in(workbench, "1"), signed_in(workbench, "2")
    assert nurse.get("/api/access").status_code == 200
    assert nurse.get("/api/rights").status_code == 403
    assert head.get("/api/rights").status_code == 200
    assert "ines@ward.example" in nurse.get("/budget").text
    assert {row["name"] for row in keys.people()} == {"ines@ward.example", "boss@ward.example"}
    log = [(r.actor, r.action) for r in workbench.state.workbench.access_log.records()]
    assert ("ines@ward.example", "sign in") in log


def test_an_address_that_the_provider_did_not_verify_names_nobody(workbench: Any) -> None:
    signed_in(workbench, "2")
    other = signed_in(workbench, "3")
    assert other.get("/api/rights").status_code == 403
    names = {row["name"] for row in workbench.state.workbench.keys.people()}
    assert names == {"boss@ward.example", "person 3"}


def test_signing_out_ends_the_session_at_once(workbench: Any) -> None:
    person = signed_in(workbench, "2")
    person.get("/people")
    token = {"X-CSRF-Token": person.cookies["blindsight_csrf_8731"]}
    stolen = dict(person.cookies)
    assert person.post("/logout", headers=token).status_code in (200, 204)
    again = Client(workbench, Cookie="; ".join(f"{k}={v}" for k, v in stolen.items()))
    assert again.get("/api/rights").status_code == 401


def test_somebody_who_was_barred_stays_out(workbench: Any) -> None:
    person = signed_in(workbench, "1")
    workbench.state.workbench.keys.revoke("ines@ward.example")
    assert person.get("/api/ledger/accounts").status_code == 401
    browser = Client(workbench)
    begin = browser.get("/login/oidc", follow_redirects=False)
    back = choose(begin.headers["location"], "1")
    answer = browser.get(f"{CALLBACK}?{urlsplit(back).query}")
    assert (answer.status_code, "may not use" in answer.text) == (403, True)


def test_an_answer_serves_the_browser_that_asked_and_only_once(workbench: Any) -> None:
    victim, thief = Client(workbench), Client(workbench)
    begin = victim.get("/login/oidc", follow_redirects=False)
    back = urlsplit(choose(begin.headers["location"], "1")).query
    assert thief.get(f"{CALLBACK}?{back}").status_code == 403, "no cookie of this sign-in"
    thief.get("/login/oidc", follow_redirects=False)
    assert thief.get(f"{CALLBACK}?{back}").status_code == 403, "of another sign-in"
    assert victim.get(f"{CALLBACK}?{back}").status_code == 200
    assert victim.get(f"{CALLBACK}?{back}").status_code in (403, 502), "the code is used up"
    for query in ("", "state=", "code=1", "error=access_denied&state=x", "state=%00&code=%ff"):
        assert Client(workbench).get(f"{CALLBACK}?{query}").status_code in (403, 502)


def test_the_request_asks_for_a_code_with_pkce_and_a_nonce(workbench: Any) -> None:
    begin = Client(workbench).get("/login/oidc", follow_redirects=False)
    asked = parse_qs(urlsplit(begin.headers["location"]).query)
    assert asked["response_type"] == ["code"]
    assert asked["code_challenge_method"] == ["S256"]
    assert len(asked["nonce"][0]) >= 32
    assert asked["redirect_uri"] == ["http://127.0.0.1/login/oidc/callback"]
    cookie = begin.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert "known" not in begin.headers["location"]


FORGERIES: dict[str, dict[str, Any]] = {
    "another issuer": {"iss": "https://other.example"},
    "another receiver": {"aud": "someone else"},
    "two receivers, issued to another": {"aud": ["workbench", "x"], "azp": "x"},
    "expired": {"exp": 1},
    "another sign-in": {"nonce": "stale"},
    "no nonce": {"nonce": None},
    "nobody": {"sub": None},
}


@pytest.mark.parametrize("forgery", [*FORGERIES, "unsigned", "signed by a stranger", "fits"])
def test_a_token_that_does_not_hold_lets_nobody_in(workbench: Any, forgery: str) -> None:
    sign_on: SignOn = workbench.state.workbench.sign_on
    run(sign_on._describe())
    key, stranger = RSAKey.generate_key(2048), RSAKey.generate_key(2048)
    kept, sign_on._keys = sign_on._keys, KeySet([key])
    issuer = str(workbench.state.workbench.settings.oidc_issuer)
    now = int(time.time())
    claims = {
        "iss": issuer,
        "aud": "workbench",
        "sub": "1",
        "nonce": "n" * 40,
        "iat": now,
        "exp": now + 60,
    }
    claims = {
        name: value
        for name, value in (claims | FORGERIES.get(forgery, {})).items()
        if value is not None
    }
    signer = stranger if forgery == "signed by a stranger" else key
    token = jwt.encode({"alg": "RS256"}, claims, signer)
    if forgery == "unsigned":
        import base64

        head = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
        token = f"{head}.{token.split('.')[1]}."
    try:
        if forgery == "fits":
            assert run(sign_on._claims(token, "n" * 40, {}))["sub"] == "1"
        else:
            with pytest.raises((JoseError, ValueError)):
                run(sign_on._claims(token, "n" * 40, {}))
    finally:
        sign_on._keys = kept


def test_a_provider_that_cannot_be_reached_leaves_keys_and_pages_working(
    make: Callable[..., Any],
) -> None:
    app = make(
        keys="required", oidc_issuer=f"http://127.0.0.1:{held_port()}", oidc_client="workbench"
    )
    answer = Client(app).get("/login/oidc")
    assert (answer.status_code, "identity provider" in answer.text) == (502, True)
    assert "Sign in with your organisation" in Client(app).get("/login").text
    key = app.state.workbench.keys.make("me", "owner")
    assert Client(app, Authorization=f"Bearer {key}").get("/people").status_code == 200


def test_without_a_provider_there_is_no_such_page(make: Callable[..., Any]) -> None:
    app = make(keys="required")
    assert Client(app).get("/login/oidc").status_code == 404
    assert Client(app).get(CALLBACK).status_code == 404
    assert "organisation" not in Client(app).get("/login").text


def test_the_secret_of_the_provider_is_in_no_file(workbench: Any) -> None:
    state: Path = workbench.state.workbench.settings.state
    assert not any(
        b"known to both" in path.read_bytes() for path in state.rglob("*") if path.is_file()
    )
