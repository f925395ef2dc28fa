"""The replay contract of what commands write: `compare learn` and `sketch make --flip-epsilon`;
`protect` is in `test_replay_index`.

What a command prints is for the owner, who sees the data anyway; the files are what leaves.
"""

from __future__ import annotations

import csv
import inspect
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

from blindsight.audit.engine import Neighbour
from blindsight.cli import compare, sketch
from blindsight.cli.protect import protect
from contracts.replay import ReplayContract
from contracts.test_replay_index import SCENES_OF_PROTECT

RNG = np.random.default_rng(5)
RECORDS = RNG.normal(size=(10, 3))
PAIRS = [(number, (number + step) % 10) for number in range(10) for step in (1, 2)]
SIMILAR = RNG.integers(0, 2, len(PAIRS))
IMAGES = RNG.integers(0, 256, (4, 8, 8), dtype=np.uint8)


@contextmanager
def _for_the_owner() -> Iterator[None]:
    """What is printed meanwhile is not compared."""
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        yield


class TestMetricLearn(ReplayContract):
    """The model and its card; features of records and labels of pairs are private."""

    asked: ClassVar[dict[str, Any]] = {"epsilon": 4.0, "unit": "record"}

    def data(self) -> Any:
        return RECORDS, SIMILAR

    def neighbours(self) -> list[Neighbour]:
        """One record's features, or the labels of its pairs."""
        found = []
        mine = np.array([0 in pair for pair in PAIRS])
        for name, value in (("far", 1e6), ("zero", 0.0), ("huge", 1e300), ("opposite", -1.0)):
            records = RECORDS.copy()
            records[0] = value * RECORDS[0] if name == "opposite" else value
            for label in (0, 1):
                found.append(
                    Neighbour(
                        f"{name}, labels {label}", (records, np.where(mine, label, SIMILAR)), 0
                    )
                )
        return found

    def unrelated(self) -> list[Any]:
        rng = np.random.default_rng(6)
        return [
            (rng.normal(size=RECORDS.shape) * 9, rng.integers(0, 2, len(PAIRS))),
            (np.zeros_like(RECORDS), np.ones_like(SIMILAR)),
        ]

    def run(self, data: Any, folder: Path) -> Any:
        records, similar = data
        with tempfile.TemporaryDirectory() as kept, _for_the_owner():
            features, pairs = Path(kept) / "features.csv", Path(kept) / "pairs.csv"
            with features.open("w", newline="") as file:
                csv.writer(file).writerows(
                    [["id", "a", "b", "c"], *([f"r{i}", *row] for i, row in enumerate(records))]
                )
            with pairs.open("w", newline="") as file:
                csv.writer(file).writerows(
                    [
                        ["first", "second", "same"],
                        *(
                            [f"r{a}", f"r{b}", int(label)]
                            for (a, b), label in zip(PAIRS, similar, strict=True)
                        ),
                    ]
                )
            compare.learn(pairs, features=features, out=folder / "metric.safetensors", **self.asked)


class TestMetricLearnByPair(TestMetricLearn):
    """Another unit, loss, choice of pairs and number of dimensions."""

    asked: ClassVar[dict[str, Any]] = {
        "epsilon": 4.0,
        "unit": "pair",
        "loss": "moments",
        "scale": "private",
        "components": 2,
        "select": "all",
        "json": True,
    }

    def neighbours(self) -> list[Neighbour]:
        changed = np.where(np.arange(len(SIMILAR)) == 0, 1 - SIMILAR, SIMILAR)
        return [Neighbour("the other label, pair 0", (RECORDS, changed), 0)]


class TestSketchFlips(ReplayContract):
    """Sketches of flipped bits."""

    asked: ClassVar[dict[str, Any]] = {"flip_epsilon": 4.0}

    def data(self) -> Any:
        return IMAGES

    def neighbours(self) -> list[Neighbour]:
        """One pixel is the unit."""
        found = []
        for value in (0, 255, 255 - int(IMAGES[0, 0, 0])):
            images = IMAGES.copy()
            images[0, 0, 0] = value
            found.append(Neighbour(f"a pixel of {value}", images, 0))
        return found

    def run(self, data: Any, folder: Path) -> Any:
        with tempfile.TemporaryDirectory() as kept, _for_the_owner():
            photos = Path(kept) / "photos"
            photos.mkdir()
            for number, pixels in enumerate(data):
                Image.fromarray(pixels).save(photos / f"{number}.png")
            sketch.make(str(photos), folder / "given.sketch", **self.asked)


class TestSketchFlipsUnderAVault(TestSketchFlips):
    """Permanent noise: an image has one sketch."""

    def run(self, data: Any, folder: Path) -> Any:
        with tempfile.TemporaryDirectory() as vault:
            self.asked = {"flip_epsilon": 4.0, "vault": Path(vault) / "vault", "grey": True}
            super().run(data, folder)


# Why an option needs no scene of its own.
INPUT = "says where private data are, which the scene itself does"
LEDGER = "every audit charges a ledger once"
SEED = "a simulation, whose guarantee says so"
OWNER = "shown to the owner only"
SKETCHES = "sketches without flips carry no privacy guarantee"
SCHEDULE = "the same work in other processes, tested in tests/index"
WITHOUT_SCENE = {
    "protect": {
        "folder": INPUT,
        "out": INPUT,
        "vault": INPUT,
        "ledger": LEDGER,
        "dataset": LEDGER,
        "seed": SEED,
        "json": OWNER,
        "ray": SCHEDULE,
        "calibration": "the paper's noise, for which nothing is proven",
        "unit": "a bit's epsilon; the mechanism is the same",
        "public": "public pictures",
        "encoder": "computes each photo's features by itself",
        "new_release": "a whole release again, charged again: tested in tests/privacy",
        "fast": "chooses a public network",
        "own_names": "public words; a scene of its own in test_replay_index.py",
        "check_first": OWNER,
        "actor": LEDGER,
        "accept_chance": "releases what would be refused; the mechanism is the same",
        "embeddings": INPUT,
        "model": "names the model of the vectors",
        "public_embeddings": "public vectors",
        "purpose": LEDGER,
        "large_epsilon": "releases what would be refused; the mechanism is the same",
        "card": OWNER,
    },
    "compare learn": {
        "pairs": INPUT,
        "features": INPUT,
        "images": INPUT,
        "triplets": INPUT,
        "encoder": "computes each image's features by itself",
        "out": INPUT,
        "person": "public, like who was compared; the unit is tested in tests/contracts",
        "force": "writes over another file",
        "delta": "a number in the plan",
        "kappa": "counted on the pairs, which are public",
        "intransitive": "a fact about the labels that the owner states",
        "vault": "the same noise again instead of fresh noise: tested in tests/metric",
        "class_column": OWNER,
        "neighbours": OWNER,
        "ledger": LEDGER,
        "dataset": LEDGER,
        "actor": LEDGER,
        "purpose": LEDGER,
        "seed": SEED,
        "large_epsilon": "releases what would be refused; the mechanism is the same",
    },
    "sketch make": {
        **dict.fromkeys(
            ("q", "p", "r", "max_psnr", "epsilon_per_pixel", "attacker", "reference"), SKETCHES
        ),
        "unsafe_records": SKETCHES,
        "source": INPUT,
        "out": INPUT,
        "split": "chooses among public data sets",
        "size": "resizes each image by itself",
        "ledger": LEDGER,
        "dataset": LEDGER,
        "actor": LEDGER,
        "purpose": LEDGER,
        "seed": SEED,
        "json": OWNER,
        "ray": SCHEDULE,
        "force": "a whole release again, charged again",
    },
}


@pytest.mark.parametrize(
    ("command", "function", "scenes"),
    [
        ("protect", protect, SCENES_OF_PROTECT),
        ("compare learn", compare.learn, (TestMetricLearn, TestMetricLearnByPair)),
        ("sketch make", sketch.make, (TestSketchFlips,)),
    ],
)
def test_every_option_of_a_releasing_command_has_a_scene_or_a_reason(
    command: str, function: Any, scenes: Any
) -> None:
    used = {name for scene in scenes for name in scene.asked}
    used |= {"vault", "grey"} if command == "sketch make" else {"features"}
    options = set(inspect.signature(function).parameters)
    assert not options - used - set(WITHOUT_SCENE[command])
    assert not set(WITHOUT_SCENE[command]) - options, "a reason for an option that is gone"
