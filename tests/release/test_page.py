"""`search.html` in a real browser: the same hits as the package, no connection, no damage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from blindsight import answer_request, protect, search
from blindsight.codebooks import Codebook
from blindsight.codebooks.cells import Embedding, PairCells, unit_rows
from blindsight.core.errors import HostileFile, InvalidParameter
from blindsight.encoders import network
from blindsight.index.cell_index import CodebookIndex
from blindsight.release import page as page_module
from blindsight.release.page import MAX_CELLS, MAX_ENTRIES, PageFacts, code_digest, search_page
from blindsight.workbench.pages.search import OTHERS_PAGE
from ports import listening

KINDS = ["network", "pixels", "folder", "labelled", "pairs", "flipped", "rotated"]


def picture(seed: int) -> Image.Image:
    """A few coloured discs and bars; sizes and shapes differ, tall and wide ones among them."""
    rng = np.random.default_rng(seed)
    width, height = rng.integers(40, 200, 2)
    y, x = np.mgrid[:height, :width]
    pixels = np.zeros((height, width, 3)) + rng.integers(0, 256, 3)
    for _ in range(4):
        centre, radius = rng.random(2) * (height, width), rng.integers(8, 60)
        inside = (y - centre[0]) ** 2 + (x - centre[1]) ** 2 < radius**2
        pixels[inside if rng.random() < 0.5 else np.abs(x - centre[1]) < radius / 4] = rng.integers(
            0, 256, 3
        )
    return Image.fromarray(pixels.astype(np.uint8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """30 photos to protect, 5 to look for, and a labelled public folder."""
    base = tmp_path_factory.mktemp("page")
    for part, seeds in (("photos", range(30)), ("queries", range(100, 105))):
        (base / part).mkdir()
        for seed in seeds:
            picture(seed).save(base / part / f"{seed}.png")
    for seed in range(200, 304):
        place = base / "public" / ("odd" if seed % 2 else "even")
        place.mkdir(parents=True, exist_ok=True)
        picture(seed).save(place / f"{seed}.png")
    (base / "unlabelled").mkdir()
    for path in base.glob("public/*/*.png"):
        shutil.copy(path, base / "unlabelled")
    return base


@pytest.fixture(scope="module")
def releases(folder, words):
    """One release of each kind of codebook that the machine can make."""
    options = {
        "pixels": {"encoder": "pixels"},
        "folder": {"encoder": "pixels", "public": folder / "unlabelled"},
        "labelled": {"encoder": "pixels", "public": folder / "public"},
        "pairs": {"encoder": "pixels", "epsilon": 12},
        "flipped": {"encoder": "pixels", "method": "phashing-lsh", "bits": 24, "unit": "bit"},
        "rotated": {"encoder": "pixels", "method": "phashing-itq", "bits": 16, "unit": "bit"},
    }
    if network.available("lite0"):
        options["network"] = {"encoder": "lite0"}
    return {
        kind: protect(folder / "photos", folder / kind, **given) for kind, given in options.items()
    }


@pytest.fixture(scope="module")
def window(browser):
    """One window for all tests that only open a page in it: a new one is a process of its own."""
    page = browser.new_page(viewport={"width": 1200, "height": 800})
    yield page
    page.close()


def opened(window, path: Path):
    window.goto(path.as_uri())
    window.wait_for_selector("body[data-ready], #results h2")
    return window


def searched(page, path: Path) -> str:
    """Give the page a file, wait for its answer, and return what it says of it."""
    page.evaluate("byId('status').textContent = ''")
    page.set_input_files("#file", path)
    page.wait_for_selector("#status:not(:empty)")
    while page.text_content("#status") in ("", "Searching …"):
        page.wait_for_timeout(20)
    return page.text_content("#status")


def ask(page, path: Path) -> dict:
    return {"status": searched(page, path)} | page.evaluate("({...page.answer})")


def check_hits(found: list[dict], wanted: list, rounding: float) -> int:
    """The page's first hits are the package's; cells whose scores differ by rounding alone may
    change places. How many hits are sure to be among them.
    """
    scores = [hit.score for hit in wanted]
    assert [hit["score"] for hit in found[: len(wanted)]] == pytest.approx(scores, abs=rounding)
    sure = {hit.id for hit in wanted if hit.score > scores[-1] + rounding}
    assert sure <= {hit["id"] for hit in found[: len(wanted)]}
    return len(sure)


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_finds_what_the_package_finds(kind, releases, folder, window):
    if kind not in releases:
        pytest.skip("the network's weights are not installed")
    if kind == "pairs":
        book = Codebook.load(releases[kind].release / "codebook.safetensors")
        assert isinstance(book.cells, PairCells)
    page = opened(window, releases[kind].release / "search.html")
    assert releases[kind].fingerprint in page.text_content("#signature")
    queries = sorted((folder / "queries").iterdir())
    for query in search(releases[kind].release, queries, k=10):
        answer = ask(page, Path(query.query))
        assert answer["status"].startswith("Searched in"), answer
        assert answer["present"] == query.present
        check_hits(answer["hits"], [each.hit for each in query.hits], 5e-3)


@pytest.fixture(scope="module")
def of_vectors(tmp_path_factory):
    """A release of vectors that were computed elsewhere, and five queries."""
    base = tmp_path_factory.mktemp("vectors")
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(6, 16))
    for name, count in (("public", 300), ("own", 60)):
        rows = centres[rng.integers(0, 6, count)] + rng.normal(size=(count, 16)) / 3
        np.save(base / f"{name}.npy", rows.astype(np.float32))
    made = protect(
        embeddings=base / "own.npy",
        model="a model <b>",
        release=base / "release",
        public_embeddings=base / "public.npy",
    )
    queries = centres + rng.normal(size=(6, 16)) / 3
    return base, made, queries


def test_a_page_without_its_encoder_takes_vectors_and_says_so(of_vectors, window):
    base, made, queries = of_vectors
    page = opened(window, made.release / "search.html")
    assert "vector of a model <b>" in page.inner_text("#status")
    for number, row in enumerate(queries):
        path = base / f"query.{'npy' if number % 2 else 'json'}"
        if number % 2:
            np.save(path, row)
        else:
            path.write_text(str(row.tolist()))
        answer = ask(page, path)
        assert answer["status"].startswith("Searched in"), answer["status"]
        (wanted,) = search(made.release, vector=row, k=10)
        check_hits(answer["hits"], [each.hit for each in wanted.hits], 5e-3)
    for name, content, sentence in (
        ("short.json", b"[1, 2]", "has 16 numbers, this one has 2"),
        ("text.json", b'["1"]', "not a list of numbers"),
        ("not.npy", b"hello, no numpy", "not an .npy file"),
    ):
        (base / name).write_bytes(content)
        assert sentence in ask(page, base / name)["status"]


def test_the_largest_page_opens_and_a_larger_one_is_refused(window, tmp_path, monkeypatch):
    """200,000 entries in 75,000 cells, which two bytes cannot number."""
    rng = np.random.default_rng(0)
    # Atoms that 16-bit floats hold exactly, as a page stores them.
    atoms = unit_rows(rng.normal(size=(300, 16))).astype(np.float16).astype(np.float32)
    book = Codebook(Embedding.plain(16, row_mean=False), PairCells.of(atoms, 250), epsilon=12.0)
    index = CodebookIndex(book.k, names=True)
    cells = rng.integers(0, book.k, MAX_ENTRIES)
    index.add_cells(cells, [f"{number:08x}" for number in rng.permutation(MAX_ENTRIES)])
    facts = PageFacts("0" * 32, "random", book.guarantee(), encoder="a model")
    path = tmp_path / "search.html"
    path.write_text(search_page(facts, index, book, None))
    page = opened(window, path)
    assert page.evaluate("page.ids.length") == MAX_ENTRIES == 200_000
    assert page.evaluate("page.book.k") == book.k == 75_000
    queries = atoms[[0, 100, 200, 270, 299]] + rng.normal(size=(5, 16)) / 8
    ranked = index.search_codebook(book, book.similarity(queries), k=10)
    for number, (row, wanted) in enumerate(zip(queries, ranked, strict=True)):
        query = tmp_path / f"{number}.json"
        query.write_text(str(row.tolist()))
        assert searched(page, query).startswith("Searched in")
        found = page.evaluate("page.answer.hits.slice(0, 10)")
        assert [hit["cell"] for hit in found] == index.cells_of([h["id"] for h in found]).tolist()
        assert check_hits(found, list(wanted), 1e-5) >= 3
    assert ranked.cells.max() > 65_535, "hits among them whose cells two bytes cannot number"
    assert page.evaluate("[LIMITS.entries, LIMITS.cells]") == [MAX_ENTRIES, MAX_CELLS]
    index.add_cells([0], ["one more"])
    with pytest.raises(InvalidParameter, match="at most 200,000 entries, the release has 200,001"):
        search_page(facts, index, book, None)
    monkeypatch.setattr(page_module, "MAX_CELLS", book.k - 1)
    small = CodebookIndex(book.k, names=True)
    with pytest.raises(InvalidParameter, match="at most 74,999 cells, the codebook has 75,000"):
        search_page(facts, small, book, None)


@pytest.mark.parametrize("shown_by", ["file", "workbench"])
def test_words_are_understood_or_named(shown_by, releases, browser, words):
    if "network" not in releases:
        pytest.skip("the network's weights are not installed")
    if not words:
        pytest.skip("the files for words are not on this machine and cannot be fetched")
    path = releases["network"].release / "search.html"
    if shown_by == "file":
        page = opened(browser.new_page(), path)
    else:  # in the sandbox in which the workbench shows somebody else's release
        page = browser.new_page()
        sandboxed = {"Content-Type": "text/html", **OTHERS_PAGE}
        page.route(
            "http://received.test/", lambda route: route.fulfill(path=path, headers=sandboxed)
        )
        page.goto("http://received.test/")
        page.wait_for_selector("body[data-ready]")
        assert page.evaluate("self.origin") == "null"
    page.fill("#text", "dogs on a xqzt beach")
    page.click("#search")
    assert "Searched for: dog, beach" in page.inner_text("#results")
    assert "Unknown words, left out: xqzt" in page.inner_text("#results")
    page.fill("#text", "xqzt blorf")
    page.click("#search")
    assert "These words are not known here" in page.inner_text("#results")
    page.close()


def test_words_that_are_fetched_later_are_in_the_next_page(folder, words, tmp_path, monkeypatch):
    """Also within one process, which may have written pages without them."""
    if not (words and network.available("lite0")):
        pytest.skip("the network's weights or the files for words are not on this machine")
    page_module._words_block.cache_clear()
    photos = tmp_path / "photos"
    photos.mkdir()
    shutil.copy(folder / "photos" / "0.png", photos)
    for fetched in (False, True):
        with monkeypatch.context() as patch:
            if not fetched:
                patch.setattr("blindsight.encoders.words.words_available", lambda: False)
            made = protect(photos, tmp_path / f"fetched {fetched}", encoder="lite0")
        assert ('id="words"' in (made.release / "search.html").read_text()) == fetched


def test_the_page_can_reach_nobody(releases, browser):
    """The ways out that a script has, tried inside the page, with a socket that would notice.

    A frame is left out: Chromium connects to its address before it looks at the policy, and sends
    nothing. Only the page's own code, which makes no frame, can run.
    """
    page = opened(browser.new_page(), releases["pixels"].release / "search.html")
    with listening() as (port, arrived):
        requests: list[str] = []
        page.on("requestfinished", lambda request: requests.append(request.url))
        tried = page.evaluate(
            """async (port) => {
              const at = `127.0.0.1:${port}/`, result = {};
              const soon = () => new Promise((done) => setTimeout(() => done("nothing"), 400));
              const attempt = async (name, run) => {
                try { result[name] = String(await Promise.race([run(), soon()])); }
                catch (error) { result[name] = error.name; }
              };
              await attempt("fetch", () => fetch("http://" + at).then(() => "sent"));
              await attempt("beacon", () => navigator.sendBeacon("http://" + at, "x"));
              await attempt("socket", () => new Promise((done) => {
                new WebSocket("ws://" + at).onopen = () => done("sent");
              }));
              const tags = ["img", "script", "link", "audio", "object"];
              await Promise.all(tags.map((tag) =>
                attempt(tag, () => new Promise(() => {
                  const made = document.createElement(tag);
                  if (tag === "link") { made.rel = "stylesheet"; made.href = "http://" + at; }
                  else if (tag === "object") made.data = "http://" + at;
                  else made.src = "http://" + at;
                  document.body.append(made);
                }))));
              await attempt("rtc", () => new RTCPeerConnection() && "made");
              await attempt("html", () => { document.body.innerHTML = "<b>x</b>"; return "set"; });
              await attempt("code", () => { eval("1"); return "run"; });
              return result;
            }""",
            port,
        )
    assert arrived == []
    assert "sent" not in tried.values(), tried
    assert tried["rtc"] == "ReferenceError"
    assert tried["html"] != "set"
    assert tried["code"] != "run"
    assert [url for url in requests if not url.startswith(("blob:", "file:"))] == []
    page.close()


@pytest.mark.parametrize("block", ["codes", "book", "about"])
def test_a_changed_page_says_so(releases, window, tmp_path, block):
    text = (releases["pixels"].release / "search.html").read_text()
    at = text.index(f'id="{block}">') + len(f'id="{block}">') + 30
    other = "A" if text[at] != "A" else "B"
    (tmp_path / "search.html").write_text(text[:at] + other + text[at + 1 :])
    page = opened(window, tmp_path / "search.html")
    assert "Do not use this page" in page.inner_text("#results")


def test_changed_code_does_not_run(releases, browser, tmp_path):
    text = (releases["pixels"].release / "search.html").read_text()
    changed = text.replace("const LIMITS", "globalThis.changed = 1; const LIMITS", 1)
    (tmp_path / "search.html").write_text(changed)
    page = browser.new_page()
    page.goto((tmp_path / "search.html").as_uri())
    assert page.evaluate("typeof globalThis.changed") == "undefined"
    assert "Opening the release" in page.inner_text("#results")
    page.close()


def test_hostile_names_are_shown_as_text(folder, browser, tmp_path):
    names = [
        "<img src=x onerror=alert(1)>.png",
        "</script><script>alert(2)</script>.png".replace("/", "\u2215"),
        "a" * 200 + ".png",
        "\u202egnp.exe.png",
    ]
    (tmp_path / "photos").mkdir()
    for seed, name in enumerate(names):
        picture(seed).save(tmp_path / "photos" / name)
    protect(tmp_path / "photos", tmp_path / "release", encoder="pixels", names="keep")
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.on("dialog", lambda dialog: pytest.fail(f"a name ran as code: {dialog.message}"))
    page.goto((tmp_path / "release" / "search.html").as_uri())
    page.wait_for_selector("body[data-ready]")
    ask(page, folder / "queries" / "100.png")
    # Noise decides into how many groups the four fall; beyond three they are folded away.
    page.evaluate("document.querySelectorAll('#results details').forEach(d => { d.open = true; })")
    page.wait_for_function("document.querySelectorAll('#results .chips li').length === 4")
    assert page.evaluate("document.querySelectorAll('#results img, #results script').length") == 0
    shown = page.locator("#results .chips li").all_text_contents()
    # What turns the direction of text is written out.
    assert sorted(shown) == sorted(name.replace("\u202e", "\\u202e") for name in names)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") == 0
    page.close()


def test_what_is_no_picture_and_what_is_too_large_is_refused_with_a_sentence(
    releases, window, tmp_path
):
    page = opened(window, releases["pixels"].release / "search.html")
    (tmp_path / "no.jpg").write_bytes(b"\xff\xd8hello")
    assert ask(page, tmp_path / "no.jpg")["status"].startswith("This picture cannot be read.")
    header = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (60_000).to_bytes(4, "big") * 2 + bytes(9)
    (tmp_path / "bomb.png").write_bytes(header)
    assert "60 million pixels" in ask(page, tmp_path / "bomb.png")["status"]


def test_a_request_is_saved_and_names_the_hits(releases, folder, window, tmp_path):
    page = opened(window, releases["pixels"].release / "search.html")
    answer = ask(page, folder / "queries" / "100.png")
    page.click("#results .chips li button >> nth=1")
    page.fill("#message", 'for a "study" \u2028 in Köln')
    with page.expect_download() as download:
        page.click("text=Save a request")
    path = tmp_path / "request.json"
    download.value.save_as(path)
    found = answer_request(path, releases["pixels"].release)
    assert [key for key, _ in found.photos] == [answer["hits"][1]["id"]], "what was clicked"
    assert 'for a "study"' in found.message
    assert found.signed_by is not None
    page.wait_for_selector(f"text={found.signed_by}")
    fields = json.loads(path.read_bytes())
    for change in ({"message": "for fun"}, {"ids": []}, {"signature": "00"}, {"key": "zz"}):
        path.write_text(json.dumps(fields | change))
        with pytest.raises(HostileFile, match="not a request"):
            answer_request(path, releases["pixels"].release)


def test_the_code_of_the_page_is_the_same_for_every_release(releases):
    pages = [(made.release / "search.html").read_text() for made in releases.values()]
    scripts = {page[page.rindex("<script>") : page.rindex("</script>")] for page in pages}
    assert len(scripts) == 1


def test_the_documentation_publishes_the_hash_of_the_code():
    """A receiver can compute it from any page, as the documentation tells."""
    text = (Path(__file__).parents[2] / "docs" / "tasks" / "share.md").read_text()
    assert f"`{code_digest()}`" in text, f"the code changed: publish {code_digest()}"
