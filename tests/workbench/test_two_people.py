"""Two people with different rights in Chromium, who come with their organisation's sign-in."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import warm
from workbench.conftest import Server
from workbench.test_sign_on import PATIENCE, provider

__all__ = ["provider"]


@pytest.fixture
def ward(
    serve: Callable[..., Server], stocked: Path, provider: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[Server, str]:
    """A server with single sign-on, and the number of its data set."""
    patient = f"from blindsight.workbench.infra import sign_on; sign_on._TIMEOUT = {PATIENCE}"
    monkeypatch.setenv(warm.FIRST, patient)
    server = serve(
        stocked,
        KEYS="required",
        OIDC_ISSUER=provider,
        OIDC_CLIENT="workbench",
        OIDC_SECRET="known to both",
        OIDC_OWNERS="heads",
    )
    return server, next((stocked / "vaults").glob("*/about.json")).parent.name


def _come(browser: Any, url: str, person: str) -> Any:
    page = browser.new_context().new_page()
    page.goto(f"{url}/")
    assert page.url.endswith("/login")
    page.get_by_role("link", name="Sign in with your organisation").click()
    page.locator("input[name=sub]").first.fill(person)
    page.locator("button[type=submit]").first.click()
    page.wait_for_url(re.compile(re.escape(url) + "/(search|budget)?$"))
    return page


@pytest.mark.real
def test_two_people_with_different_rights_see_different_things(
    browser: Any, ward: tuple[Server, str]
) -> None:
    server, dataset = ward
    head = _come(browser, server.url, "2")
    assert head.locator("nav.nav").get_by_text("People").is_visible()
    nurse = _come(browser, server.url, "1")
    assert nurse.url.endswith("/budget"), "nothing was granted yet"
    # The head gives the nurses' group a right, on the page.
    head.goto(f"{server.url}/people")
    head.locator("#subject").fill("nurses")
    head.locator("#kind").select_option("group")
    head.locator("#role").select_option("searcher")
    head.locator("#dataset").select_option(dataset)
    head.get_by_role("button", name="Grant", exact=True).click()
    head.get_by_text("Withdraw").first.wait_for()
    for _ in range(100):  # rights hold within two seconds
        nurse.goto(f"{server.url}/")
        if nurse.url.endswith("/search"):
            break
        nurse.wait_for_timeout(200)
    assert nurse.url.endswith("/search")
    pages = nurse.locator("nav.nav a").all_inner_texts()
    assert pages == ["Search", "History"]
    assert nurse.locator("#search img[src*='/photos/']").count() == 0, "no photo is shown"
    refused = nurse.goto(f"{server.url}/people")
    assert refused is not None
    assert refused.status == 403
    photo = head.request.get(f"{server.url}/api/tags/{dataset}").json()["photos"][0]["id"]
    thumbnail = f"{server.url}/api/datasets/{dataset}/photos/{photo}"
    assert head.request.get(thumbnail).status == 200
    assert nurse.request.get(thumbnail).status == 403
    log = head.request.get(f"{server.url}/api/access").json()
    did = {(line["actor"], line["outcome"]) for line in log if line["dataset"] == dataset}
    assert ("ines@ward.example", "refused") in did
    assert ("boss@ward.example", "done") in did
    nurse.goto(f"{server.url}/search")
    nurse.locator("[data-logout]").first.click()
    nurse.wait_for_url("**/end_session?**")  # the session at the provider ends too
    assert nurse.request.get(thumbnail).status == 401
    for page in (head, nurse):
        page.context.close()
