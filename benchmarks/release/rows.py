"""The page of a release in Chromium, from a file: the same hits as the package, size and time."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.harness import Row
from blindsight import data, open_release, protect, search
from blindsight.codebooks import Codebook
from blindsight.core.errors import MissingData
from blindsight.encoders import built_in
from blindsight.index.cell_index import CodebookIndex
from blindsight.release.page import MAX_ENTRIES, PageFacts, search_page

__all__ = ["rows"]

_ENTRIES, _QUERIES, _PUBLIC = 300, 100, 200
#: How a release of each kind of codebook is made.
_KINDS: dict[str, dict[str, object]] = {
    "network": {"encoder": "lite0"},
    "pairs": {"encoder": "lite0", "epsilon": 12},
    "pixels": {"encoder": "pixels"},
    "folder": {"encoder": "lite0", "public": "unlabelled"},
    "labelled": {"encoder": "lite0", "public": "public"},
}
_READY = "body[data-ready]"


def rows(
    *, quick: bool, seed: int = 0, out: Path, progress: Callable[[int, int], None] | None = None
) -> Iterator[Row]:
    """Yield equality and time for each kind of codebook, then sizes, and the largest page."""
    from playwright.sync_api import sync_playwright

    step = progress or (lambda done, total: None)
    chromium = shutil.which("chromium")
    if chromium is None:
        raise MissingData("the page is measured in Chromium: apt-get install chromium.")
    queries = 10 if quick else _QUERIES
    with tempfile.TemporaryDirectory() as name, sync_playwright() as driver:
        base = Path(name)
        _photos(base, queries, seed)
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        equal = asked = 0
        for number, (kind, given) in enumerate(_KINDS.items()):
            step(number, len(_KINDS) + 1)
            options = dict(given)
            if "public" in options:
                options["public"] = base / str(options["public"])
            made = protect(base / "photos", base / kind, accept_chance=True, **options)  # type: ignore[arg-type]
            same, ordered, seconds = _compared(browser, made.release, base / "queries")
            equal, asked = equal + same, asked + queries
            note = f"{_ENTRIES} Caltech-101 photos, {queries} queries, Chromium from file://"
            yield Row(
                id=f"release.page_top10_equal_{kind}",
                value=same / queries,
                unit="share",
                peer="blindsight search",
                seed=seed,
                note=note,
            )
            yield Row(
                id=f"release.page_top10_same_order_{kind}",
                value=ordered / queries,
                unit="share",
                peer="blindsight search",
                seed=seed,
                note=f"{note}; rounding swaps entries whose scores are nearly equal",
            )
            if kind == "network":
                yield Row(
                    id="release.page_first_hit_seconds",
                    value=seconds,
                    unit="s",
                    seed=seed,
                    note="the first query after the page is ready, lite0, wall time",
                )
        yield Row(
            id="release.page_top10_equal",
            value=equal / asked,
            unit="share",
            peer="blindsight search",
            seed=seed,
            note=f"{asked} queries over five kinds of codebooks",
        )
        step(len(_KINDS), len(_KINDS) + 1)
        yield from _largest(browser, base, seed)
        for encoder in ("lite0", "lite2"):
            release = base / "network"
            if encoder != "lite0":
                release = protect(base / "photos", base / encoder, encoder=encoder).release
            text = (release / "search.html").read_text()
            yield Row(
                id=f"release.page_megabytes_{encoder}",
                value=len(text) / 1e6,
                unit="MB",
                seed=seed,
                note="with words" if 'id="words"' in text else "without words",
            )
        browser.close()


def _largest(browser: Any, base: Path, seed: int) -> Iterator[Row]:
    """Size and time of a page with as many entries as a page may hold.

    The codebook is that of a release at epsilon 16, which has more cells than two bytes can
    number. Ids are random and cells are drawn uniformly, which is what compresses worst and fills
    most cells.
    """
    made = protect(base / "queries", base / "few", encoder="lite0", epsilon=16)
    opened = open_release(made.release)
    book = Codebook.load(made.release / "codebook.safetensors")
    rng = np.random.default_rng(seed)
    length = len(opened.entries["id"][0]) // 2
    index = CodebookIndex(book.k, names=True)
    index.add_cells(
        rng.integers(0, book.k, MAX_ENTRIES), [rng.bytes(length).hex() for _ in range(MAX_ENTRIES)]
    )
    facts = PageFacts(opened.manifest.release, "random", book.guarantee())
    path = base / "largest.html"
    path.write_text(search_page(facts, index, book, built_in("lite0")))
    query = str(min((base / "queries").iterdir()))
    page = browser.new_page()
    began = time.perf_counter()
    page.goto(path.as_uri())
    page.wait_for_selector(_READY, timeout=300_000)
    ready = time.perf_counter() - began
    _ask(page, query)
    seconds = time.perf_counter() - began
    ids = page.evaluate("page.answer.hits.slice(0, 10).map((hit) => hit.id)")
    if len(ids) != 10:
        raise AssertionError(f"the page of {MAX_ENTRIES} entries gave {len(ids)} hits.")
    page.close()
    text = path.read_text()
    note = f"{MAX_ENTRIES:,} entries, {book.k:,} cells, lite0, "
    note += "with words" if 'id="words"' in text else "without words"
    yield Row(
        id="release.page_megabytes_largest", value=len(text) / 1e6, unit="MB", seed=seed, note=note
    )
    yield Row(
        id="release.page_load_to_first_hit_seconds_largest",
        value=seconds,
        unit="s",
        seed=seed,
        note=f"{note}; once, wall time, of which {ready:.1f} s until the page is ready",
    )


def _ask(page: Any, query: str) -> None:
    page.evaluate("byId('status').textContent = ''")
    page.set_input_files("#file", query)
    # The page's policy forbids `eval`, which Playwright's own way to wait needs.
    while not str(page.text_content("#status")).startswith(("Searched in", "This ")):
        page.wait_for_timeout(5)


def _photos(base: Path, queries: int, seed: int) -> None:
    """Photos to protect, others to ask with, and public ones with labels and without."""
    images = data.load("caltech101")
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(images))[: _ENTRIES + queries + _PUBLIC].tolist()
    labels = np.asarray(images.labels)
    for number, row in enumerate(chosen):
        picture = Image.fromarray(np.asarray(images.images[row]))
        folders = ["queries"]
        if number < _ENTRIES:
            folders = ["photos"]
        elif number >= _ENTRIES + queries:
            folders = ["unlabelled", f"public/{labels[row] % 4}"]
        for folder in folders:
            (base / folder).mkdir(parents=True, exist_ok=True)
            picture.save(base / folder / f"{number}.png")


def _compared(browser: Any, release: Path, folder: Path) -> tuple[int, int, float]:
    """For how many queries the ten best are the package's, also in order; seconds of the first."""
    page = browser.new_page()
    page.goto((release / "search.html").as_uri())
    page.wait_for_selector(_READY, timeout=300_000)
    queries = sorted(folder.iterdir())
    same, ordered, first = 0, 0, 0.0
    for query in search(release, queries, k=10):
        began = time.perf_counter()
        _ask(page, query.query)
        first = first or time.perf_counter() - began
        ids = page.evaluate("page.answer.hits.slice(0, 10).map((hit) => hit.id)")
        wanted = [hit.hit.id for hit in query.hits]
        same += set(ids) == set(wanted)
        ordered += ids == wanted
    page.close()
    return same, ordered, first
