"""The data of the tagging bench: scenes of digits always; COCO, scene, corel5k and VOC2007 where
they are.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from benchmarks.harness import Row
from blindsight import data
from blindsight.core.errors import MissingData, MissingDependency
from blindsight.encoders import built_in, encode_images
from blindsight.evaluation.scores import MultiLabelScores
from blindsight.tagging import Prior, encoder_prior

__all__ = [
    "Problem",
    "half_width",
    "load_sets",
    "mean_scores",
    "scene_features",
    "scenes",
    "spread_note",
]

Matrix = NDArray[np.float32]
# catalogue entry -> (epochs at which Figures 1 and 2 look, directions of public features for
# DP-SGD)
REAL: dict[str, tuple[tuple[int, ...], int]] = {
    "coco-subset": ((10, 15, 20, 25), 96),
    "scene": ((40, 60, 80, 100), 64),
    "corel5k": ((10, 15, 20, 25), 64),
    "voc2007": ((40, 60, 80, 100), 64),
    "voc2012-subset": ((40, 60, 80, 100), 64),
    "coco": ((10, 15, 20, 25), 128),
}


@dataclass(frozen=True)
class Problem:
    """Features and labels to train and test on; `public` features and a `prior` help where there
    are any.

    `vectors` are ML-GCN's own GloVe vectors of the labels where they are; else they are random.
    `looks` are the epochs of Figures 1 and 2, `lambdas` and `bound_factors` the grids of Figure 3.
    """

    name: str
    train: Matrix
    labels: NDArray[np.uint8]
    test: Matrix
    truth: NDArray[np.uint8]
    classes: tuple[str, ...]
    public: Matrix | None = None
    components: int = 64
    looks: tuple[int, ...] = (10, 15, 20, 25)
    lambdas: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    bound_factors: tuple[float, ...] = (0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
    prior: Prior | None = None
    vectors: NDArray[np.float64] | None = None
    compared: int | None = None  # the epoch of Figures 3 to 5; None is the third look


def spread_note(values: Sequence[float]) -> str:
    """How many seeds, and the 95% interval of their mean."""
    if len(values) < 2:
        return "one seed"
    return f"mean of {len(values)} seeds, 95% within {half_width(values):.3f}"


def half_width(values: Sequence[float]) -> float:
    """Half of the 95% interval of the mean, by Student's t; 0 for one value."""
    if len(values) < 2:
        return 0.0
    return (
        float(t.ppf(0.975, len(values) - 1))
        * float(np.std(values, ddof=1))
        / math.sqrt(len(values))
    )


def mean_scores(scores: Sequence[MultiLabelScores]) -> MultiLabelScores:
    """Every metric's mean."""
    tables = [one.to_dict() for one in scores]
    mean = {name: float(np.mean([table[name] for table in tables])) for name in tables[0]}
    return MultiLabelScores(**{**mean, "labels_counted": scores[0].labels_counted})  # type: ignore[arg-type]


def scene_features(images: NDArray[np.uint8], *, width: int = 512, seed: int = 0) -> Matrix:
    """A public extractor for scenes of digits: each quarter cropped to its ink, random ReLU
    features, summed.
    """
    side, half = 14, images.shape[1] // 2
    rng = np.random.default_rng(seed)
    directions = (rng.standard_normal((side * side, width)) * (3 / side)).astype(np.float32)
    offset = (rng.standard_normal(width) * 0.3).astype(np.float32)
    total = np.zeros((len(images), width), np.float32)
    for top in (0, half):
        for left in (0, half):
            patches, there = _cropped(images[:, top : top + half, left : left + half], side)
            total += np.maximum(patches @ directions - offset, 0) * there[:, None]
    return total


def _cropped(tiles: NDArray[np.uint8], side: int) -> tuple[Matrix, NDArray[np.bool_]]:
    """The inked square of every tile at side x side pixels, and which tiles have ink."""
    size = tiles.shape[1]
    ink: NDArray[np.bool_] = np.greater(tiles, 40)
    rows, columns = np.any(ink, axis=2), np.any(ink, axis=1)
    top, bottom = rows.argmax(axis=1), size - rows[:, ::-1].argmax(axis=1)
    left, right = columns.argmax(axis=1), size - columns[:, ::-1].argmax(axis=1)
    span = np.maximum(bottom - top, right - left)[:, None]
    steps = (np.arange(side) + 0.5) / side
    y = np.clip((top + bottom)[:, None] / 2 + span * (steps - 0.5), 0, size - 1).astype(int)
    x = np.clip((left + right)[:, None] / 2 + span * (steps - 0.5), 0, size - 1).astype(int)
    picked = tiles[np.arange(len(tiles))[:, None, None], y[:, :, None], x[:, None, :]]
    return picked.reshape(len(tiles), -1).astype(np.float32) / 255, np.any(rows, axis=1)


def scenes(n: int, *, seed: int) -> Problem:
    """`n` scenes to learn from, 2,000 more that count as public, and 2,000 of other digits to test
    on.
    """
    drawn = data.scenes(n + 2000, seed=seed, split="train")
    asked = data.scenes(2000, seed=seed + 1, split="test")
    assert isinstance(drawn.images, np.ndarray)  # noqa: S101  (scenes are made in memory)
    assert isinstance(asked.images, np.ndarray)  # noqa: S101
    x = scene_features(drawn.images)
    return Problem(
        "scenes",
        x[2000:],
        drawn.labels[2000:],
        scene_features(asked.images),
        asked.labels,
        drawn.classes,
        public=x[:2000],
        components=256 if n >= 10_000 else 128,
    )


def load_sets(*, quick: bool) -> Iterator[Problem | Row]:
    """Every real set that is on the machine, and a row for each that is not."""
    for name, (looks, components) in REAL.items():
        if quick and name != "scene":
            continue
        try:
            yield _load(name, looks, components)
        except (MissingData, MissingDependency) as error:
            yield Row(id=f"tagging.skipped.{name}", value=0, unit="skipped", note=str(error))


def _load(name: str, looks: tuple[int, ...], components: int) -> Problem:
    train, test = data.load(name, split="train"), data.load(name, split="test")
    prior = encoder_prior(train.classes, built_in("lite0")) if train.features is None else None
    return Problem(
        name,
        _features(train),
        train.labels,
        _features(test),
        test.labels,
        train.classes,
        components=components,
        looks=looks,
        prior=prior,
        vectors=_published_vectors(name),
        compared=40 if name.startswith("voc") else None,  # Figure 3 to 5's own on VOC2007
    )


def _features(chosen: Any) -> Matrix:
    if chosen.features is not None:
        return np.asarray(chosen.features, np.float32)
    return encode_images(built_in("lite0"), chosen.images)


def _published_vectors(name: str) -> NDArray[np.float64] | None:
    """The 300-dimensional GloVe vectors that ML-GCN publishes, for COCO and VOC2007."""
    file = {
        "coco-subset": "mlgcn_coco",
        "coco": "mlgcn_coco",
        "voc2007": "mlgcn_voc2007",
        "voc2012-subset": "mlgcn_voc2007",
    }.get(name)
    folder = os.environ.get("BLINDSIGHT_DATA")
    if file is None or folder is None:
        return None
    path = Path(folder) / "label_graphs" / f"{file}.npz"
    if not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as stored:
        return np.asarray(stored["glove300"], np.float64)
