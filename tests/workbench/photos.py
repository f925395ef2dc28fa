"""Small photographs made here, in one folder for each kind, and a data set of them that is ready to
use.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from blindsight.app.library import photos as photo_library
from blindsight.app.library.datasets import DataSet, DataSets, Release, today
from blindsight.app.library.tags import keep_labels, labels_of
from blindsight.workbench.infra.jobs import JobContext
from blindsight.workbench.pages import protect
from blindsight.workbench.pages.home import open_account

__all__ = [
    "ALBUM",
    "album",
    "as_bytes",
    "confirm_names",
    "light",
    "photo",
    "released",
    "scanned",
    "work",
]

ALBUM = ("dusk", "grass", "night", "sand")
_GROUNDS = {
    "dusk": (200, 90, 60),
    "grass": (60, 150, 50),
    "night": (15, 20, 60),
    "sand": (220, 190, 130),
}


@pytest.fixture(autouse=True)
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features of pixels: the network is not what is tested here."""
    monkeypatch.setattr("blindsight.index.encoder.default_features", lambda **_: "pixels")


def photo(kind: str, number: int) -> Image.Image:
    """A ground of its kind's colour, with shapes that differ from photo to photo."""
    rng = np.random.default_rng([ALBUM.index(kind), number])
    pixels = np.full((72, 96, 3), _GROUNDS[kind], np.float64) + rng.normal(0, 12, (72, 96, 3))
    for _ in range(3):
        top, left = int(rng.integers(0, 50)), int(rng.integers(0, 70))
        pixels[top : top + 14, left : left + 18] += rng.normal(0, 30, 3)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def album(folder: Path, each: int = 20, *, first: int = 0) -> Path:
    """A folder of photos in subfolders; from the first photo on, with one file that is none."""
    for kind in ALBUM:
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for number in range(first, first + each):
            photo(kind, number).save(folder / kind / f"IMG_{number:04}.jpg", quality=92)
    if not first:
        (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff not a photo")
    return folder


def as_bytes(image: Image.Image) -> bytes:
    """A photo as a JPEG."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


def scanned(app: Any, folder: Path, name: str = "Coast archive") -> DataSet:
    """A data set of a folder, read in this process."""
    datasets: DataSets = app.state.workbench.datasets
    one = datasets.add(name, folder)
    open_account(app.state.workbench, one)
    return photo_library.scan(datasets, one, lambda *_: None)


def confirm_names(app: Any, dataset: DataSet) -> None:
    """Agree to share the label names of a data set, as its owner does on the pages."""
    datasets: DataSets = app.state.workbench.datasets
    keep_labels(datasets, dataset, labels_of(datasets, dataset) | {"confirmed": True})


def work(app: Any, kind: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run a job of a page's module in this process."""
    jobs = app.state.workbench.jobs
    job = jobs.add("protect", arguments, "local")["id"]
    while (row := jobs.claim()) is not None and row["id"] != job:
        pass
    context = JobContext(app.state.workbench.settings, job, 1)
    try:
        result: dict[str, Any] = kind.run(arguments, context)
        context.finish(result)
    finally:
        context.database.close()
    return result


def released(app: Any, dataset: DataSet, epsilon: float = 8.0, number: str = "ab" * 6) -> Release:
    """The search index of a data set, made in this process."""
    datasets: DataSets = app.state.workbench.datasets
    folder = datasets.named(dataset, "search", epsilon, number)
    order = Release(number, "search", folder, epsilon, 0, today(), dataset.looked)
    work(app, protect, {"step": "release", "dataset": dataset.id, "release": order.__dict__})
    return datasets.get(dataset.id).release(order.id)
