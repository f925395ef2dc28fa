"""Every page and its main action in a real Chromium; nothing is asked of another host; keyboard,
phone and dark.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blindsight.app.library import pairs as pair_library
from blindsight.metric import ErrorCurve
from workbench.asgi import BASE, Client
from workbench.photos import album, photo

pytestmark = pytest.mark.real
SIDES = ("left", "right")
PAGES = (
    "",
    "protect",
    "search",
    "received",
    "tags",
    "compare",
    "together",
    "send",
    "budget",
    "people",
)


class Visit:
    """A page, with all it asked for and all it complained about."""

    def __init__(self, browser: Any, live: Any, **options: Any) -> None:
        self.context = browser.new_context(
            **{"viewport": {"width": 1200, "height": 900}, **options}
        )
        self.page = self.context.new_page()
        self.url = live.url
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.refused: list[str] = []  # to say which request a complaint is about
        self.page.on(
            "response",
            lambda answer: (
                answer.status >= 400
                and self.refused.append(f"{answer.status} {answer.request.method} {answer.url}")
            ),
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on(
            "console", lambda word: word.type == "error" and self.complaints.append(word.text)
        )

    def go(self, name: str) -> Any:
        self.page.goto(f"{self.url}/{name}")
        return self.page

    def wait(self, selector: str) -> None:
        """Wait for a job's result; fail at once where the page says that it went wrong."""
        trouble = self.page.locator("#status.bad:visible, [data-again]:visible")
        self.page.locator(selector).or_(trouble).first.wait_for()
        self.page.wait_for_load_state("load")  # the scripts of a new page have run
        assert trouble.count() == 0, self.text("main")

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).inner_text())


@pytest.fixture
def visit(browser: Any, live: Any, tmp_path: Path, request: Any) -> Iterator[Visit]:
    found = Visit(browser, live, **getattr(request, "param", {}))
    failed = request.session.testsfailed
    yield found
    if request.session.testsfailed > failed:
        found.page.screenshot(path=tmp_path / "page.png", full_page=True)
    own = [url for url in found.asked if not url.startswith((found.url, "data:", "blob:"))]
    found.context.close()
    assert own == [], "a page asked another host"
    assert found.complaints == [], found.refused


def test_the_api_page_works_without_a_network(visit: Visit) -> None:
    page = visit.go("docs")
    page.wait_for_selector(".opblock-summary")
    assert page.locator(".opblock").count() >= 20


@pytest.mark.parametrize(
    "visit",
    [
        {"color_scheme": "dark", "viewport": {"width": 390, "height": 844}, "bypass_csp": True},
        {"color_scheme": "light", "viewport": {"width": 1600, "height": 900}, "bypass_csp": True},
    ],
    indirect=True,
)
def test_pages_fit_the_screen_light_or_dark_and_axe_finds_nothing(
    visit: Visit, axe: str | None
) -> None:
    for name in PAGES:
        page = visit.go(name)
        page.wait_for_load_state("load")
        assert not page.evaluate("document.documentElement.scrollWidth > window.innerWidth"), name
        light, dark = page.evaluate(
            "[...document.querySelectorAll('h1')].flatMap(h => [getComputedStyle(h).color, "
            "getComputedStyle(document.body).backgroundColor])"
        )
        assert _contrast(light, dark) > 7
        clean(page, axe)
    if axe is None:
        pytest.skip("pages fit; axe-core cannot be had from npm here")


@pytest.mark.parametrize("visit", [{"viewport": {"width": 390, "height": 844}}], indirect=True)
def test_a_phone_reaches_every_page_by_its_menu(visit: Visit) -> None:
    page = visit.go("")
    page.locator(".menu summary").click()
    words = page.locator(".menu a").all_inner_texts()
    assert words[0] == "Home"
    assert words[-2:] == ["History", "People"]
    page.locator(".menu a", has_text="History").click()
    page.wait_for_url("**/budget")


def test_whoever_signed_in_can_sign_out_on_a_phone_too(browser: Any, serve: Any) -> None:
    server = serve(KEYS="required")
    key = re.search(r"bs_\S+", server.log.read_text())
    assert key is not None
    for width in (1200, 390):
        visit = Visit(browser, server, viewport={"width": width, "height": 844})
        page = visit.go("login")
        page.locator("#key").fill(key[0])
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(server.url + "/")
        if width < 500:
            page.locator(".menu summary").click()
        page.locator("[data-logout]:visible").click()
        page.wait_for_url("**/login")
        assert visit.go("search").url.endswith("/login")
        visit.context.close()


def test_every_control_is_reached_by_keyboard_and_has_a_name(visit: Visit) -> None:
    for name in PAGES:
        page = visit.go(name)
        page.wait_for_load_state("networkidle")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        page.wait_for_function("() => location.hash === '#main'")
        nameless = page.evaluate(
            "[...document.querySelectorAll('input,select,button,a,meter,progress')].filter(e => "
            "!(e.labels?.length || e.getAttribute('aria-label') || e.innerText.trim() || e.type "
            "=== 'hidden' || "
            "!e.checkVisibility())).length"
        )
        assert nameless == 0, name
        assert page.evaluate("[...document.images].every(i => i.hasAttribute('alt'))")
        page.keyboard.press("Tab")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


@pytest.mark.parametrize(
    ("visit", "fold"),
    [
        ({"viewport": {"width": 1400, "height": 900}}, 330),
        ({"viewport": {"width": 390, "height": 844}}, 420),
    ],
    indirect=["visit"],
)
def test_hits_are_near_the_top_and_every_question_has_an_address(visit: Visit, fold: int) -> None:
    page = visit.go("search")
    page.wait_for_load_state("networkidle")
    page.locator("#start .again").first.click()
    page.wait_for_selector("#groups img")
    assert page.locator("#groups img").first.bounding_box()["y"] < fold
    assert "photo=" in page.url
    assert "Noise put about" in visit.text("#groups")
    asked = page.url
    page.locator("#groups .again").first.click()
    page.wait_for_function("was => location.href !== was", arg=asked)
    page.go_back()
    page.wait_for_function("was => location.href === was", arg=asked)
    page.go_back()
    page.wait_for_selector("#start .again")
    assert page.locator("#groups img").count() == 0
    page.go_forward()
    page.wait_for_selector("#groups img")
    page.goto(asked)
    page.wait_for_selector("#groups img")
    page.locator("#rerank").check()
    page.wait_for_selector("text=sorted by your photos")
    assert "sort=own" in page.url
    page.goto(f"{page.url.split('?')[0]}?query=0123456789abcdef")
    page.wait_for_selector("text=kept in memory only")
    visit.complaints.clear()  # the browser names the refused request


def test_a_received_release_is_searched_in_an_origin_of_its_own(
    visit: Visit, tmp_path: Path
) -> None:
    page = visit.go("received")
    page.get_by_role("link", name="harbour").click()
    page.get_by_text("sender not verified").wait_for()
    with visit.context.expect_page() as waiting:
        page.get_by_role("link", name="Search in it").click()
    theirs = waiting.value
    theirs.wait_for_selector("body[data-ready]")
    asked: list[str] = []
    theirs.on("request", lambda request: asked.append(request.url))
    assert theirs.evaluate("self.origin") == "null"
    photo("grass", 1).save(tmp_path / "grass.png")
    theirs.set_input_files("#file", tmp_path / "grass.png")
    theirs.wait_for_selector("text=Searched in")
    nearest, _, _ = theirs.locator("#results").inner_text().partition("Next")
    assert "roughly grass" in " ".join(nearest.split())
    assert [url for url in asked if not url.startswith(("blob:", "data:"))] == []


def test_a_pair_is_checked_one_photo_swapped_and_pairs_answered_by_a_switch(
    browser: Any,
    make: Callable[..., Any],
    stocked: Path,
    monkeypatch: pytest.MonkeyPatch,
    axe: str | None,
) -> None:
    """The browser's requests are answered by an app in this process, whose threshold is given."""
    similar = np.array([600.0, 300.0, 90.0, 10.0])
    curve = ErrorCurve(np.arange(5.0) / 5, similar, similar[::-1], noise=1.0, n_pairs=2000)
    app = make(state=stocked)
    data_set = app.state.workbench.datasets.listed()[0]
    width = pair_library.rows_of(app.state.workbench.datasets, data_set).shape[1]
    metric = SimpleNamespace(curve_=curve, threshold_=0.4, n_features_in_=width)
    monkeypatch.setattr(pair_library, "_last_metric", lambda *_: metric)
    client = Client(app)
    with ThreadPoolExecutor(1) as lane:  # the browser's driver runs a loop of its own in this one

        def answer(route: Any) -> None:
            address = route.request.url.removeprefix(BASE)
            given = lane.submit(client.request, route.request.method, address).result()
            headers = {"Content-Type": given.headers["content-type"]}
            route.fulfill(status=given.status_code, headers=headers, body=given.content)

        for size, scheme in (((1400, 900), "light"), ((390, 844), "dark")):
            context = browser.new_context(
                viewport=dict(zip(("width", "height"), size, strict=True)), color_scheme=scheme
            )
            context.route("**/*", answer)
            page = context.new_page()
            page.goto(f"{BASE}/compare")
            page.wait_for_function(
                "() => document.querySelector('#says').innerText.includes('chance')"
            )
            assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
            clean(page, axe)
            left, right = (page.locator(f"#{side}").get_attribute("src") for side in SIDES)
            page.get_by_role("button", name="Swap one").click()
            page.wait_for_function(
                "was => document.querySelector('#right').getAttribute('src') !== was", arg=right
            )
            assert page.locator("#left").get_attribute("src") == left
            assert not page.get_by_role("button", name="Different").is_visible()
            page.get_by_role("button", name="Answer pairs").click()
            assert page.get_by_role("button", name="Different").is_visible()
            assert not page.get_by_role("button", name="Swap one").is_visible()
            context.close()


def test_an_answer_that_comes_after_going_back_is_not_shown(visit: Visit) -> None:
    page = visit.go("search")
    page.wait_for_load_state("networkidle")
    held: list[Any] = []
    page.route("**/api/search/*/photo/*", lambda route: held.append(route))
    with page.expect_request("**/api/search/*/photo/*"):
        page.locator("#start .again").first.click()
    page.go_back()
    page.wait_for_selector("#start .again")
    with page.expect_response("**/api/search/*/photo/*") as answer:
        held[0].continue_()
    answer.value.finished()
    page.wait_for_timeout(300)  # time to show it, which would be wrong
    assert page.locator("#start .again").first.is_visible()
    assert page.locator("#groups img").count() == 0
    assert not page.locator("#status").is_visible()


def test_a_newcomer_protects_a_folder_searches_compares_and_attacks(
    browser: Any, serve: Any, tmp_path: Path, axe: str | None
) -> None:
    """From an empty home to a release, its search with own thumbnails, tags, compare, and an audit
    of it.
    """
    here = album(tmp_path / "Coast archive", each=10)
    (here / "dusk").rename(here / f"dusk_{'and_what_was_seen_of_it' * 4}")
    server = serve(
        PHOTOS=here.parent,
        KEYS="auto",
        TOKEN="a-secret-of-this-start-up",
        RATE=100_000,
        BURST=100_000,
    )
    visit = Visit(browser, server, bypass_csp=axe is not None)
    page = visit.go("?token=a-secret-of-this-start-up")
    assert "Share what your images know" in visit.text("main")
    clean(page, axe)
    # What is typed before the page's script has come must not be lost.
    held: list[Any] = []
    page.route("**/static/protect.js", lambda route: held.append(route))
    with page.expect_request("**/static/protect.js"):
        page.locator("main a", has_text="Protect a folder").click()
    page.locator("#find").fill("COAST ARCH")
    held.pop().continue_()
    page.unroute("**/static/protect.js")
    page.wait_for_function("() => document.querySelectorAll('#folders input').length > 1")
    page.get_by_role("radio", name=str(here), exact=True).check()
    page.get_by_role("radio", name=str(here / "sand")).wait_for()
    page.locator("#find").fill("")
    page.get_by_role("button", name=f"Folders in {here.parent.name}").click()
    page.get_by_role("radio", name="Coast archive").check()
    page.get_by_role("button", name="Read this folder").click()
    visit.wait("input[name=epsilon]")
    assert "40 photos read, 1 could not be" in visit.text("main")
    clean(page, axe)
    # The page loads anew when the measurement ends, which must not undo what was chosen meanwhile.
    running = {"state": "running", "done": 1, "total": 4, "note": "Step 1 of 1: measuring"}
    page.route("**/api/jobs/*", lambda route: route.fulfill(json=running))
    page.get_by_role("button", name="Measure on my photos").click()
    page.wait_for_url("**look=own")
    visit.wait(".film img")
    page.wait_for_load_state("load")
    if page.locator("[data-job]").count():  # unless it had ended before the page was made
        page.wait_for_selector("text=25% · Step 1 of 1: measuring")
        assert page.get_by_role("button", name="Cancel").is_visible()
    page.locator("input[name=epsilon][value='4.0']").check()
    page.unroute("**/api/jobs/*")
    page.locator("[data-job]").wait_for(state="detached")
    page.wait_for_load_state("load")
    clean(page, axe)
    assert "ε 4" in visit.text("#choice-title")
    # The four lines speak of the choice: what is shared, the guarantee, and what is left after it.
    assert visit.text("[data-claimed]") == "ε 4"
    assert "1 to 29" in visit.text("[data-leaves]")
    assert visit.text("[data-note]").startswith("12 after")
    page.get_by_role("button", name="Continue").click()
    page.wait_for_url("**/confirm?epsilon=4.0")
    clean(page, axe)
    page.get_by_role("button", name="Make the release").click()
    assert page.url.endswith("/confirm?epsilon=4.0"), "nothing happens before the box is ticked"
    page.locator("#purpose").fill("study on coasts")
    page.locator("#sure").check()
    # So few photos at this epsilon may be found hardly better than by chance; then the page asks.
    if page.locator("#chance[required]").count():
        page.get_by_role("button", name="Make the release").click()
        assert page.url.endswith("/confirm?epsilon=4.0"), "nothing happens before this one either"
        page.locator("#chance").check()
    page.get_by_role("button", name="Make the release").click()
    visit.wait("text=Keep one private, share the other")
    assert "study on coasts" in page.request.get(f"{server.url}/api/access/export.json").text()
    assert "12 of ε 16 are left" in visit.text("main")
    with page.expect_download() as waiting:
        page.get_by_role("link", name="The card").click()
    assert "after looking" in Path(waiting.value.path()).read_text()
    clean(page, axe)
    page.get_by_role("link", name="Search in it").click()
    page.wait_for_selector(".again")
    page.wait_for_load_state("networkidle")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.className") == "again"
    page.keyboard.press("Enter")
    page.wait_for_selector("#groups img")
    before = len([url for url in visit.asked if url.endswith("/upload")])
    page.locator("#rerank").check()
    page.wait_for_selector("text=sorted by your photos")
    assert len([url for url in visit.asked if url.endswith("/upload")]) == before
    clean(page, axe)
    page = visit.go("tags")
    assert "Everybody who gets the file can read them" in visit.text("#confirm-names")
    page.get_by_role("button", name="Use these names").click()
    page.locator("#confirm-names").wait_for(state="detached")
    page.wait_for_load_state("load")
    page.locator("#photos .kinds button").first.click()
    page.wait_for_selector("#photos img")
    clean(page, axe)
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390, "a long folder name"
    page.set_viewport_size({"width": 1200, "height": 900})
    page = visit.go("compare")
    # Keys answer a pair that is shown, not one that is still on its way.
    page.wait_for_function("() => document.querySelector('#count').innerText.startsWith('Pair')")
    for key in ("ArrowLeft", "ArrowRight", "Space"):
        was = visit.text("#count")
        page.keyboard.press(key)
        page.wait_for_function("was => document.querySelector('#count').innerText !== was", arg=was)
    assert "3 answered: 1 same, 1 different, 1 not sure" in visit.text("#tally")
    clean(page, axe)
    page = visit.go("")
    with page.expect_navigation():
        page.get_by_role("link", name="Attack it: the search index").click()
    page.get_by_role("button", name="Attack it now").click()
    visit.wait(".verdict")
    assert "The promise held" in visit.text(".verdict")
    assert "Yes" in visit.text("main")
    clean(page, axe)
    assert "no promise refuted" in visit.go("").locator("main").inner_text()
    clean(page, axe)
    page = visit.go("together")
    page.locator("#sites-named").fill("Harbour museum, County library")
    page.get_by_role("button", name="Make the invitations").click()
    page.wait_for_selector("#sites li >> nth=2")
    assert "linked to 2 sites" in visit.text("header")
    with page.expect_download() as waiting:
        page.get_by_role("link", name="Invitation for Harbour museum").click()
    assert Path(waiting.value.path()).read_text().startswith("blindsight-invitation:")
    clean(page, axe)
    assert page.locator("#join-form, #sites-named").count() == 0, "no form under a run"
    labels_stand_apart(page)
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Leave this run").click()
    # Not the state alone: the page that asked for it may say so just before it makes way for the
    # next one.
    page.wait_for_function(
        "() => document.querySelector('#run-state').innerText === 'left' && "
        "document.querySelector('header').innerText.includes('this machine only')"
    )
    own = [url for url in visit.asked if not url.startswith((visit.url, "data:", "blob:"))]
    visit.context.close()
    assert own == [], "a page asked another host"
    assert visit.complaints == [], visit.refused


def labels_stand_apart(page: Any) -> None:
    """No two words of the chart overlap, and all can be read on a phone, whatever the figures."""
    # Right answers, those of the own photos alone (by luck 25), and rounds done of ten.
    cases = [(26, 25, 9), (3, 3, 1), (97, 99, 9), (26, 99, 1)]
    state: dict[str, Any] = {}

    def answer(route: Any) -> None:
        rounds = {"who": [1], "everybody": False, "seconds": 1.0, "bytes": 10}
        right, alone, done = state["case"]
        lines = [rounds | {"round": n + 1, "right": right} for n in range(done)]
        figures = {"rounds": lines, "planned": 10, "alone": alone, "luck": 25, "start": 20}
        route.fulfill(json=route.fetch().json() | figures)

    page.route(re.compile(r"/api/together/\w+$"), answer)
    for width in (1200, 390):
        page.set_viewport_size({"width": width, "height": 844})
        for case in cases:
            state["case"] = case
            page.reload()
            page.wait_for_function(
                "said => document.querySelector('#chart').innerHTML.includes(said)",
                arg=f"your photos alone: {case[1]}",
            )
            overlaps = page.evaluate(_OVERLAPS)
            assert overlaps == [], (width, case, overlaps)
        height = "document.querySelector('#chart text').getBoundingClientRect().height"
        assert page.evaluate(height) >= 12
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.unroute(re.compile(r"/api/together/\w+$"))
    page.set_viewport_size({"width": 1200, "height": 900})
    page.reload()


_OVERLAPS = """() => {
  const words = [...document.querySelectorAll('#chart text')];
  const boxes = words.map((word) => word.getBBox());
  const apart = (a, b) => a.x + a.width <= b.x || b.x + b.width <= a.x
    || a.y + a.height <= b.y || b.y + b.height <= a.y;
  return words.flatMap((one, i) => words.filter((other, j) => j > i && !apart(boxes[i], boxes[j]))
    .map((other) => [one.textContent, other.textContent]));
}"""


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str | None:
    """axe-core's text, from npm where it can be reached; it is not part of the project."""
    where = tmp_path_factory.mktemp("axe")
    npm = shutil.which("npm")
    if npm is None:
        return None
    # One version, so that what a later one looks for fails no test; and without a network no long
    # wait.
    command = [
        npm,
        "pack",
        "axe-core@4.14.0",
        "--silent",
        "--fetch-retries=0",
        "--fetch-timeout=20000",
    ]
    try:
        done = subprocess.run(command, cwd=where, capture_output=True, timeout=60)
    except subprocess.TimeoutExpired:
        return None
    packed = next(where.glob("*.tgz"), None)
    if done.returncode or packed is None:
        return None
    with tarfile.open(packed) as archive:
        found = archive.extractfile("package/axe.min.js")
        return None if found is None else found.read().decode()


def clean(page: Any, axe: str | None) -> None:
    """No violation that axe-core finds; where it cannot be had, the other tests of names and
    contrast remain.
    """
    if axe is not None:
        page.evaluate(axe)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        assert [(one["id"], one["nodes"][0]["target"]) for one in found] == [], page.url


def _contrast(one: str, other: str) -> float:
    def light(colour: str) -> float:
        parts = [int(p) / 255 for p in colour.removeprefix("rgb(").removesuffix(")").split(",")]
        lines = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * lines[0] + 0.7152 * lines[1] + 0.0722 * lines[2]

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)
