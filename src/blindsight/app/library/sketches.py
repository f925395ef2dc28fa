"""Try sketches of a data set's photos: what attackers get back, and what is recognised of it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.app.library.datasets import DataSet, DataSets, today
from blindsight.app.library.photos import directions, points_of
from blindsight.app.result import Progress, no_progress
from blindsight.core.plots import data_uri
from blindsight.core.storage import write_atomically

__all__ = ["SETTINGS", "SIDES", "attack", "last_trial", "try_sketches"]

#: Sketch parameters that are tried, by a word for each.
SETTINGS = {"coarse": "Q3", "medium": "Q6", "fine": "Q9"}
#: Pixels on a side of what is sent.
SIDES = (64, 128)
_SHOWN, _PUBLIC, _STEPS, _WIDTH = 6, 300, 60, 12


def try_sketches(
    datasets: DataSets, data_set: DataSet, progress: Progress = no_progress, *, side: int = SIDES[0]
) -> dict[str, Any]:
    """Sketches at three settings, and what every attacker makes of them: measured, and by a search
    among all photos.
    """
    photos, rows = datasets.photos(data_set), points_of(datasets, data_set)
    picked = np.random.default_rng().permutation(len(photos))[:_SHOWN]
    squares = np.stack([_square(datasets, data_set, photos[i].id, side) for i in picked])
    found: dict[str, Any] = {
        "when": today(),
        "photos": [photos[i].id for i in picked],
        "among": len(photos),
    }
    found["side"] = side
    for done, (word, setting) in enumerate(SETTINGS.items()):
        progress(f"sketching and attacking: {word}", done, len(SETTINGS))
        sent, back, verdict = attack(squares, setting)
        known = {
            name: _recognised(pictures, picked, rows, data_set.features)
            for name, pictures in back.items()
        }
        best = max(known, key=lambda name: sum(known[name]))
        found[word] = {
            "sent": [data_uri(image) for image in sent],
            "back": {
                name: [data_uri(image) for image in pictures] for name, pictures in back.items()
            },
            "known": known,
            "best": best,
            "recognised": sum(known[best]),
            "verdict": verdict,
        }
    write_atomically(datasets.vault(data_set) / "send.json", json.dumps(found).encode())
    return {"recognised": {word: found[word]["recognised"] for word in SETTINGS}}


def attack(
    squares: NDArray[np.uint8], setting: str
) -> tuple[NDArray[Any], dict[str, NDArray[Any]], str]:
    """What is sent of grey squares, what attackers get back who know the setting and how photos
    look, and a verdict.
    """
    from blindsight.index.public_images import built_in_images
    from blindsight.sketching import NegativeSketcher
    from blindsight.sketching.attackers import Suite, measure, measured_verdict

    sketches = NegativeSketcher(setting, n_jobs=1).fit(squares).sketch(squares)
    public = np.rint(built_in_images(_PUBLIC, SIDES[0]).mean(axis=3)).astype(np.uint8)
    suite = Suite(sketches.parameters, public=public, steps=_STEPS, width=_WIDTH)
    found = {name: np.clip(pictures, 0, 255) for name, pictures in suite.recover(sketches).items()}
    measured = [measure(name, squares, pictures) for name, pictures in found.items()]
    sent = np.stack([_sent(counts) for counts in sketches.counts[:, 0]])
    return sent, found, measured_verdict(measured, squares.shape, missing=suite.missing)


def _recognised(
    pictures: NDArray[Any], picked: NDArray[Any], rows: NDArray[Any], features: str
) -> list[bool]:
    """Whether a search among all photos with what came back finds the photo itself first."""
    from blindsight.encoders import feature_recipe

    recipe = feature_recipe(features)
    images = np.stack([recipe.prepare(np.rint(image).astype(np.uint8)) for image in pictures])
    scores = directions(recipe.rows(images)) @ rows.T
    return [bool(first == own) for first, own in zip(scores.argmax(axis=1), picked, strict=True)]


def _square(datasets: DataSets, data_set: DataSet, photo: str, side: int) -> NDArray[np.uint8]:
    from PIL import Image

    with Image.open(datasets.thumbnail(data_set, photo)) as image:
        return np.asarray(image.convert("L").resize((side, side), Image.Resampling.BILINEAR))


def _sent(counts: NDArray[Any]) -> NDArray[np.uint8]:
    """The first bit's counts of ones among all sightings: numbers, shown as grey."""
    zeros, ones = counts[0].astype(np.float64)
    return np.asarray(np.rint(255.0 * ones / np.maximum(zeros + ones, 1)), np.uint8)


def last_trial(datasets: DataSets, data_set: DataSet) -> dict[str, Any] | None:
    """Return what the last trial measured, for the owner; None before the first."""
    path = datasets.vault(data_set) / "send.json"
    return json.loads(path.read_bytes()) if path.exists() else None
