"""The pictures of the workbench, made anew: `python docs/pictures/make.py [FOLDER]`, with `--all`
also dark and narrow.

A real workbench is started on painted scenes, and a real Chromium goes the way of a newcomer. Needs
Debian's chromium and the package playwright.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))

from scenes import album

WIDTHS = {"": 1400, "-phone": 390}
LONG = 900_000
SHOWN = {"home-empty", "protect", "protect-made", "search-reranked", "tags"}  # in the documentation


@contextmanager
def workbench(state: Path, photos: Path) -> Iterator[str]:
    """A server of its own, ended with the context."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    given = {
        "KEYS": "auto",
        "STATE": state,
        "PORT": port,
        "PHOTOS": photos,
        "RATE": 10**6,
    }
    given |= {
        "TOKEN": "the-secret-of-these-pictures",
        "BURST": 10**6,
        "PHOTO_BUDGET": 24,
        "PUBLIC": "",
    }
    environment = {
        **os.environ,
        **{f"BLINDSIGHT_WORKBENCH_{name}": str(value) for name, value in given.items()},
    }
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        [sys.executable, "-m", "blindsight", "serve"], env=environment, stdout=quiet
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{url}/health", timeout=2)  # noqa: S310  (its own server)
                break
            except OSError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(30)


class Camera:
    """A browser, and every page that it is shown."""

    def __init__(self, browser: Any, url: str, out: Path, every: bool) -> None:
        self.browser, self.url, self.out, self.every = browser, url, out, every
        self.context = browser.new_context(viewport={"width": 1400, "height": 900})
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)

    def go(self, address: str) -> Any:
        self.page.goto(f"{self.url}/{address}")
        self.page.wait_for_load_state("networkidle")
        return self.page

    def shoot(self, name: str) -> None:
        """The page as it stands: on a desktop, and if asked for, in the dark and on a phone."""
        if not self.every and name not in SHOWN:
            return
        page = self.page
        page.mouse.move(0, 0)
        for tone, scheme in (("", "light"), ("-dark", "dark")) if self.every else (("", "light"),):
            for wide, width in WIDTHS.items() if self.every else (("", 1400),):
                page.emulate_media(color_scheme=scheme)
                page.set_viewport_size({"width": width, "height": 900})
                # As high as the page: a bar at the lower edge of the screen covers nothing.
                height = page.evaluate("document.documentElement.scrollHeight")
                page.set_viewport_size({"width": width, "height": height})
                page.wait_for_load_state("networkidle")
                page.wait_for_timeout(200)
                path = self.out / f"{name}{wide}{tone}.png"
                page.screenshot(path=path, full_page=True)
                # A third of the bytes, and no eye sees it.
                Image.open(path).convert("RGB").quantize(200, dither=Image.Dither.NONE).save(
                    path, optimize=True
                )
        page.emulate_media(color_scheme="light")
        page.set_viewport_size({"width": 1400, "height": 900})


def walk(camera: Camera, folder: Path) -> None:
    """From an empty home to a protected folder, and then through every page."""
    page = camera.go("?token=the-secret-of-these-pictures")
    camera.shoot("home-empty")
    camera.go("protect")
    _choose(page, folder)
    page.locator("#name").fill("Travel album")
    camera.shoot("protect-choose")
    page.get_by_role("button", name="Read this folder").click()
    page.wait_for_selector("input[name=epsilon]", timeout=LONG)
    camera.shoot("protect-before-looking")
    page.get_by_role("button", name="Measure on my photos").click()
    page.wait_for_url("**look=own")
    page.wait_for_selector(".film img", timeout=LONG)
    page.locator("[data-job]").wait_for(state="detached", timeout=LONG)
    page.wait_for_load_state("networkidle")
    camera.shoot("protect")
    page.get_by_role("button", name="Continue").click()
    page.locator("#sure").check()
    if page.locator("#chance").count():
        page.locator("#chance").check()
    camera.shoot("protect-confirm")
    page.get_by_role("button", name="Make the release").click()
    page.wait_for_selector("text=Keep one private, share the other", timeout=LONG)
    camera.shoot("protect-made")
    camera.go("search")
    page.locator("#start .again").first.click()
    page.wait_for_selector("#groups img")
    page.wait_for_load_state("networkidle")
    camera.shoot("search")
    page.locator("#rerank").check()
    page.wait_for_selector("text=sorted by your photos")
    camera.shoot("search-reranked")
    if page.locator("#words").is_enabled():
        page.locator("#rerank").uncheck()
        page.locator("#words").fill("a giraffe")
        page.keyboard.press("Enter")
        page.wait_for_selector("#groups section, #nothing:visible")
        page.wait_for_load_state("networkidle")
        camera.shoot("search-words")
    camera.go("tags")
    page.get_by_role("button", name="Use these names").click()
    page.locator("#confirm-names").wait_for(state="detached")
    page.get_by_role("button", name="Learn for").click()
    page.wait_for_selector("text=How good it is", timeout=LONG)
    page.wait_for_load_state("networkidle")
    camera.shoot("tags")
    if camera.every:
        _further(camera)


def _choose(page: Any, folder: Path) -> None:
    page.locator("#find").fill(folder.name)
    page.get_by_role("radio", name=str(folder), exact=True).check()


def _further(camera: Camera) -> None:
    """The pages that only a full set shows."""
    page = camera.page
    camera.go("budget")
    page.get_by_role("button", name="Attack it now").click()
    page.wait_for_selector(".verdict", timeout=LONG)
    page.wait_for_load_state("networkidle")
    camera.shoot("budget")
    camera.go("")
    camera.shoot("home")
    _together(camera)
    camera.go("compare")
    page.wait_for_function("() => document.querySelector('#count').innerText.startsWith('Pair')")
    _answer(page, 40)
    page.get_by_role("button", name="Learn for").click()
    page.wait_for_selector("text=What the last learning changed", timeout=LONG)
    page.wait_for_load_state("networkidle")
    camera.shoot("compare")
    camera.go("send")
    page.get_by_role("button", name="Sketch and attack").click()
    page.wait_for_selector(".pictures img", timeout=LONG)
    page.wait_for_load_state("networkidle")
    camera.shoot("send")


def _answer(page: Any, pairs: int) -> None:
    """Say what the folders say: photos of one folder are the same kind."""
    for _ in range(pairs):
        was = page.locator("#count").inner_text()
        page.keyboard.press("ArrowLeft" if _same(page) else "ArrowRight")
        page.wait_for_function("was => document.querySelector('#count').innerText !== was", arg=was)


def _same(page: Any) -> bool:
    """Whether two scenes have much the same colours."""
    colours = page.evaluate(
        "async () => Promise.all(['left', 'right'].map(async (id) => { const image = "
        "document.getElementById(id);"
        "await image.decode(); const canvas = new OffscreenCanvas(1, 1), pen = "
        "canvas.getContext('2d');"
        "pen.drawImage(image, 0, 0, 1, 1); return [...pen.getImageData(0, 0, 1, 1).data]; }))"
    )
    return sum(abs(a - b) for a, b in zip(*colours, strict=True)) < 70


def _together(camera: Camera) -> None:
    """A run of three sites; the other two are played by workbenches of their own."""
    page = camera.go("together")
    page.locator("#sites-named").fill("Harbour museum, County library")
    page.get_by_role("button", name="Make the invitations").click()
    page.wait_for_selector("#sites li")
    camera.shoot("together-invitations")
    invitations = []
    for link in page.locator("#sites a").all():
        with page.expect_download() as waiting:
            link.click()
        invitations.append(Path(waiting.value.path()))
    with tempfile.TemporaryDirectory(prefix="blindsight-sites-") as place:
        sites = []
        try:
            for n, invitation in enumerate(invitations):
                folder = album(Path(place) / f"photos-{n}" / "Scenes", each=6)
                server = workbench(Path(place) / f"state-{n}", folder.parent)
                sites.append(server)
                _join(camera.browser, server.__enter__(), folder, invitation)
            page.wait_for_selector("#rounds tr:nth-child(3)", timeout=LONG)
            camera.shoot("together")
        finally:
            for server in sites:
                server.__exit__(None, None, None)


def _join(browser: Any, url: str, folder: Path, invitation: Path) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(LONG)
    page.goto(f"{url}/?token=the-secret-of-these-pictures")
    page.goto(f"{url}/protect")
    _choose(page, folder)
    page.get_by_role("button", name="Read this folder").click()
    page.wait_for_selector("input[name=epsilon]")
    page.goto(f"{url}/together")
    page.locator("#invitation-file").set_input_files(invitation)
    page.get_by_role("button", name="Join", exact=True).click()
    page.wait_for_selector("#run")
    context.close()


def main() -> None:
    """Make all pictures."""
    from playwright.sync_api import sync_playwright

    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    out = Path(words[0]) if words else Path(__file__).parent
    out.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("Debian's chromium is needed.")
    place = Path(tempfile.gettempdir()) / "blindsight"  # it is seen on the pages
    shutil.rmtree(place, ignore_errors=True)
    with sync_playwright() as driver:
        folder = album(place / "photos" / "travel", each=30)
        browser = driver.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        with workbench(place / "state", folder.parent) as url:
            walk(Camera(browser, url, out, "--all" in sys.argv), folder)
        browser.close()
    shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
