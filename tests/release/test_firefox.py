"""`search.html` in Firefox, where Debian's is installed: the same hits, and no connection."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from blindsight import protect, search
from ports import listening
from release.firefox import Firefox

pytestmark = pytest.mark.skipif(
    not (shutil.which("firefox-esr") or shutil.which("firefox")),
    reason="Firefox is not installed: apt-get install firefox-esr",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("photos")
    for part, seeds in (("photos", range(20)), ("queries", range(100, 104))):
        (base / part).mkdir()
        for seed in seeds:
            rng = np.random.default_rng(seed)
            small = Image.fromarray(rng.integers(0, 256, (3, 4, 3), dtype=np.uint8))
            small.resize((70 + seed, 60), Image.Resampling.BICUBIC).save(
                base / part / f"{seed}.png"
            )
    return base


@pytest.fixture(scope="module")
def firefox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    started = Firefox(tmp_path_factory.mktemp("firefox"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def release(folder: Path, firefox: Firefox) -> Path:
    """A release whose page is open."""
    made = protect(folder / "photos", folder / "release", encoder="pixels")
    firefox("WebDriver:Navigate", url=(made.release / "search.html").as_uri())
    shown = firefox.script(
        "while (!document.body.dataset.ready) await new Promise((done) => setTimeout(done, 50));"
        "return document.getElementById('signature').textContent;"
    )
    assert made.fingerprint in shown, "the signature is checked in Firefox, too"
    return made.release


def test_firefox_finds_what_the_package_finds(release: Path, folder: Path, firefox: Firefox):
    queries = sorted((folder / "queries").iterdir())
    for query in search(release, queries, k=1000):
        firefox.script("document.getElementById('status').textContent = '';")
        firefox.choose("#file", Path(query.query))
        status = firefox.script(
            "const status = document.getElementById('status');"
            "while (!/^(Searched|This)/.test(status.textContent))"
            " await new Promise((done) => setTimeout(done, 20));"
            "return status.textContent;"
        )
        assert status.startswith("Searched in"), status
        shown = firefox.script(
            "return [...document.querySelectorAll('#results .chips li[title]')]"
            ".map((chip) => chip.title).slice(0, 10);"
        )
        # The page lists the entries of the three best groups; more are folded away.
        assert len(shown) >= 3
        # Cells whose scores differ by rounding alone may change places.
        scores = {hit.hit.id: hit.hit.score for hit in query.hits}
        best = sorted(scores.values(), reverse=True)[: len(shown)]
        assert [scores[key] for key in shown] == pytest.approx(best, abs=5e-3)


def test_firefox_lets_nothing_out(release: Path, firefox: Firefox):
    """By a script in the page, which nobody but Marionette can run; a socket would notice."""
    with listening() as (port, arrived):
        firefox.script(
            """
            const at = `http://127.0.0.1:${words[0]}/`;
            const wait = () => new Promise((done) => setTimeout(done, 500));
            for (const tag of ["img", "audio", "script"]) {
              const made = document.createElement(tag);
              try { made.src = at; document.body.append(made); } catch {}
            }
            navigator.sendBeacon(at, "x");
            await wait();
            """,
            port,
        )
    assert arrived == []
