"""The figures of one release, as every page, the card of the release and the report show them.

`python -m benchmarks.workbench.figures [FOLDER]` protects a folder of photos (by default public
pictures that come with the package, in folders year/kind) in a new workbench, attacks the release,
and prints one row for each place. It ends with exit code 1 where two places differ.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from blindsight.app import defaults
from blindsight.app.library.datasets import DataSet, Release, today
from blindsight.app.library.photos import scan
from blindsight.app.library.risks import look_at_own
from blindsight.workbench import WorkbenchSettings, create_app
from blindsight.workbench.infra.jobs import JobContext
from blindsight.workbench.pages import budget, protect
from blindsight.workbench.pages.home import open_account

__all__ = ["figures_by_place", "main"]

_FIGURE = re.compile(r'data-figure="(\w+)">(.*?)(?:<svg|</p>)', re.S)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.workbench.figures", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="photos of your own")
    parser.add_argument("--encoder", default="lite0", help="lite0 or lite2")
    parser.add_argument("--epsilon", type=float, default=8.0, help="one of those on offer")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="blindsight-figures-") as made:
        folder = given.folder or _album(Path(made) / "album")
        places = figures_by_place(folder, Path(made) / "state", given.encoder, given.epsilon)
    for place, figures in places.items():
        cells = "  ".join(f"{name}: {value}" for name, value in figures.items())
        sys.stdout.write(f"{place:<40}{cells}\n")
    equal = len({tuple(figures.items()) for figures in places.values()}) == 1
    sys.stdout.write("All places show the same figures.\n" if equal else "The places DIFFER.\n")
    sys.exit(0 if equal else 1)


def figures_by_place(
    folder: Path, state: Path, encoder: str = "lite0", epsilon: float = 8.0
) -> dict[str, dict[str, str]]:
    """Return the figures of one release by the place that shows them.

    Parameters:
        folder: the photos.
        state: a new folder for the workbench.
        encoder: what reads the photos.
        epsilon: the epsilon of the release per photo.
    """
    state.mkdir(parents=True, exist_ok=True)
    app = create_app(WorkbenchSettings(state=state, photos=(folder,), keys="off", public=""))
    workbench = app.state.workbench
    data_set = workbench.datasets.add("Album", folder, encoder=encoder)
    open_account(workbench, data_set)
    data_set = scan(workbench.datasets, data_set)
    look_at_own(workbench.datasets, data_set)
    asyncio.run(_ask(app, "POST", f"/api/protect/{data_set.id}/look"))
    release = _release(app, data_set, epsilon)
    places: dict[str, dict[str, str]] = {}
    for when in ("", " (after the attack)"):
        if when:
            _work(app, budget, {"dataset": data_set.id, "release": release.id}, "attack")
        for place, address in {
            "Home": "/",
            "History": f"/budget?release={release.id}",
            "Protect, the release": f"/protect/{data_set.id}/{release.id}",
        }.items():
            places[place + when] = _shown(asyncio.run(_ask(app, "GET", address)))
        rows = asyncio.run(_ask(app, "GET", f"/protect/{data_set.id}?look=own"))
        own = rows.partition(f'data-row="{epsilon:g}"')[2].partition("data-row")[0]
        places["Protect, the choice" + when] = _shown(own)
    report = workbench.datasets.vault(data_set) / "audits" / release.id / "report.json"
    places["Report"] = _of_report(json.loads(report.read_text(encoding="utf-8"))["measured"])
    workbench.budgets.close()
    workbench.database.close()
    return places


def _release(app: Any, data_set: DataSet, epsilon: float) -> Release:
    datasets, number = app.state.workbench.datasets, "ab" * 6
    folder = datasets.named(data_set, "search", epsilon, number)
    order = Release(number, "search", folder, epsilon, 0, today(), data_set.looked)
    arguments = {"step": "release", "dataset": data_set.id, "release": order.__dict__}
    _work(app, protect, arguments | {"accept_chance": True}, "protect")
    release: Release = datasets.get(data_set.id).release(number)
    return release


def _work(app: Any, page: Any, arguments: dict[str, Any], kind: str) -> None:
    """Run a page's job in this process."""
    jobs = app.state.workbench.jobs
    number = jobs.add(kind, arguments, "local")["id"]
    while (row := jobs.claim()) is not None and row["id"] != number:
        pass  # those that the pages ordered are not waited for
    context = JobContext(app.state.workbench.settings, number, 1)
    context.finish(page.run(arguments, context))
    context.database.close()


async def _ask(app: Any, method: str, address: str) -> str:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answer = await client.request(method, address)
        answer.raise_for_status()
        return answer.text


def _shown(page: str) -> dict[str, str]:
    """Every figure of a page as a reader sees it."""
    found = {name: re.sub(r"<[^>]+>", " ", text) for name, text in _FIGURE.findall(page)}
    return {name: " ".join(text.rpartition(":")[2].split()) for name, text in found.items()}


def _of_report(measured: dict[str, Any]) -> dict[str, str]:
    """The figures of the report, in the words of the pages."""
    often = float(measured["singled_out"]["top1"])
    copy = f"{round(100 * often)} in 100" if often > 0.3 else f"1 in {round(1 / often):,}"
    shown = {"hits": f"{round(measured['search']['hits'], 1):g} of 10"}
    if measured["guessed"] is not None:
        shown["guess"] = f"{round(100 * measured['guessed']['share'])} of 100"
    return shown | {"copy": copy if often else "never"}


def _album(folder: Path) -> Path:
    """Public pictures that come with the package, in folders year/kind."""
    from PIL import Image

    from blindsight.data import load

    pictures = load(defaults.BUNDLED_PICTURES)
    labels = np.zeros(len(pictures), np.int64) if pictures.labels is None else pictures.labels
    for number, (image, label) in enumerate(zip(pictures.images, labels, strict=True)):
        place = folder / str(2020 + number % 3) / f"kind {label}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(image)).save(place / f"{number:04}.png")
    return folder


if __name__ == "__main__":
    main()
