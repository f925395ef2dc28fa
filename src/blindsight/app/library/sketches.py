"""Try sketches of a data set's photos: what attackers get back, and what is recognised of it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.app import defaults
from blindsight.app.library.datasets import DataSet, DataSets, today
from blindsight.app.library.photos import directions, points_of
from blindsight.app.result import Progress, no_progress
from blindsight.core.plots import data_uri
from blindsight.core.storage import write_atomically

__all__ = ["SETTINGS", "SHOWN", "SIDES", "TRIED", "attack", "last_trial", "try_sketches"]

#: Sketch parameters that are tried, by a word for each.
SETTINGS = {"coarse": "Q3", "medium": "Q6", "fine": "Q9"}
#: Pixels on a side of what is sent.
SIDES = (64, 128)
#: Photos that are sketched and attacked, and how many of them are shown.
TRIED, SHOWN = 24, 6
_PUBLIC, _STEPS, _WIDTH = 300, 60, 12


def try_sketches(
    datasets: DataSets, data_set: DataSet, progress: Progress = no_progress, *, side: int = SIDES[0]
) -> dict[str, Any]:
    """Sketches at three settings, and what every attacker makes of them: measured, and by a search
    among all photos.
    """
    photos, rows = datasets.photos(data_set), points_of(datasets, data_set)
    rng = np.random.default_rng()
    # Found again among all photos, or among so many that they can be compared here.
    among = rng.permutation(len(photos))[: defaults.MEASURED_PHOTOS]
    picked = np.arange(min(TRIED, len(among)))
    progress("reading photos", 0, len(SETTINGS))
    squares = np.stack([_square(datasets, data_set, photos[row].id, side) for row in among])
    tried: dict[str, Any] = {
        "when": today(),
        "photos": [photos[row].id for row in among[picked[:SHOWN]]],
        "tried": len(picked),
        "among": len(among),
        "side": side,
    }
    for done, (word, setting) in enumerate(SETTINGS.items()):
        progress(f"sketching and attacking: {word}", done, len(SETTINGS))
        sent, back, verdict = attack(squares[picked], setting)
        known = {
            name: _recognised(pictures, picked, squares, rows[among], data_set.features)
            for name, pictures in back.items()
        }
        best = max(known, key=lambda name: sum(known[name]))
        tried[word] = {
            "sent": [data_uri(image) for image in sent[:SHOWN]],
            "back": {
                name: [data_uri(image) for image in pictures[:SHOWN]]
                for name, pictures in back.items()
            },
            "known": known,
            "best": best,
            # A photo is found again if any attacker finds it by any matcher.
            "recognised": sum(any(flags) for flags in zip(*known.values(), strict=True)),
            "verdict": verdict,
        }
    write_atomically(datasets.vault(data_set) / "send.json", json.dumps(tried).encode())
    return {"recognised": {word: tried[word]["recognised"] for word in SETTINGS}}


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
    pictures: NDArray[Any],
    own: NDArray[np.int64],
    squares: NDArray[np.uint8],
    rows: NDArray[Any],
    features: str,
) -> list[bool]:
    """Whether what came back finds its photo first among all, by the better of two matchers."""
    from blindsight.app.library.photos import image_encoder
    from blindsight.audit.release.measurement import found_again

    recipe = image_encoder(features)
    images = np.stack([recipe.prepare(np.rint(image).astype(np.uint8)) for image in pictures])
    by_matcher = found_again(
        pictures, own, squares, vectors=directions(recipe.rows(images)), gallery=rows
    )
    return [any(flags) for flags in zip(*by_matcher.values(), strict=True)]


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
