"""The replay contract of private sketches: flipped bits per pixel, prototypes per image."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from blindsight.audit.engine import Neighbour
from blindsight.index.bulk import sketch_to
from blindsight.privacy.vault import Vault
from blindsight.sketching import (
    CodebookSketcher,
    FeatureBasis,
    FeatureStatistics,
    FlippedBits,
    PrivateHead,
    fit_from_statistics,
    sample_rows,
)
from blindsight.sketching.sketches import Permanent
from contracts.replay import ReplayContract

RNG = np.random.default_rng(3)
PUBLIC = RNG.integers(0, 16, (40, 1, 3, 3)).astype(np.uint8)
IMAGES = RNG.integers(0, 16, (6, 1, 3, 3)).astype(np.uint8)


class TestFlippedBits(ReplayContract):
    """Per pixel: one value changes."""

    def data(self) -> Any:
        return IMAGES

    def neighbours(self) -> list[Neighbour]:
        found = []
        for value in (0, 15, int(15 - IMAGES[0, 0, 1, 1]), 200):  # the last one beyond the depth
            other = IMAGES.copy()
            other[0, 0, 1, 1] = value
            found.append(Neighbour(f"a pixel of {value}", other, record=0))
        return found

    def run(self, data: Any, folder: Path) -> Any:
        sketcher = FlippedBits(6.0, depth=4).fit(data)
        sketcher.save(folder / "flips.safetensors")
        return sketcher.transform(data), sketcher.guarantee_


class TestPermanentFlips(TestFlippedBits):
    """Under a vault's key: an image has the same sketch whenever it is asked for, and every image
    noise of its own.
    """

    def run(self, data: Any, folder: Path) -> Any:
        with tempfile.TemporaryDirectory() as kept:
            noise = Permanent(Vault.create(Path(kept) / "vault"))
            sketcher = FlippedBits(6.0, depth=4, random_state=noise).fit(data)
            return sketcher.transform(data), sketcher.transform(data[:2])


class TestSketchesInBulk(TestFlippedBits):
    """Blocks of a set into one file."""

    def run(self, data: Any, folder: Path) -> Any:
        sketcher = FlippedBits(6.0, depth=4).fit(data)
        found = sketch_to(folder / "sent.sketches", data, sketcher, block=2)
        return np.asarray(found.counts)


class TestCodebookSketcher(ReplayContract):
    """Per image: one of k public prototypes."""

    def data(self) -> Any:
        return IMAGES

    def run(self, data: Any, folder: Path) -> Any:
        sketcher = CodebookSketcher(4.0, k=5).fit(PUBLIC)
        released = sketcher.transform(data)
        sketcher.save(folder / "prototypes.safetensors")
        return released, sketcher.pictures(released)


FEATURES = RNG.random((12, 6)).astype(np.float32)
PICTURES = RNG.random((30, 6)).astype(np.float32)
NAMES = np.arange(12) % 2
BASIS = FeatureBasis.learn(PICTURES, width=4)


class TestFeatureStatistics(ReplayContract):
    """Class sums, counts and the second moment; an image that is not finite counts nothing."""

    def make(self) -> Any:
        return FeatureStatistics(2.0, classes=("0", "1"), basis=BASIS, moments=0.5, refuse=False)

    def data(self) -> Any:
        return (FEATURES, NAMES)

    def removed(self) -> bool:
        return True

    def answers(self, fitted: Any) -> Any:
        model = fit_from_statistics(fitted.statistics_)
        return model.decision_function(PICTURES[:5]), sample_rows(
            fitted.statistics_, 3, random_state=0
        )


class TestStatisticsOfPeople(ReplayContract):
    """All images of a person are one unit: replaced together."""

    people = np.repeat(np.arange(6), 2)

    def data(self) -> Any:
        return (FEATURES, NAMES)

    def neighbours(self) -> list[Neighbour]:
        made = []
        for name, value in (("zeros", 0.0), ("far out", 1e6), ("not finite", np.nan)):
            features = FEATURES.copy()
            features[:2] = value
            made.append(Neighbour(f"images of {name}", (features, NAMES), record=0))
        same = FEATURES.copy()
        same[:2] = same[2]
        return [*made, Neighbour("equal images", (same, NAMES), record=0)]

    def run(self, data: Any, folder: Path) -> Any:
        features, names = data
        sender = FeatureStatistics(
            2.0,
            classes=("0", "1"),
            basis=BASIS,
            moments=0.3,
            unit="person",
            most=2,
            refuse=False,
        ).fit(features, names, units=self.people[: len(features)])
        sender.save(folder / "statistics.safetensors")
        return sender.released_, sender.guarantee_


class TestPrivateHead(ReplayContract):
    """Gradients of logistic regression; an image that is not finite has none."""

    def make(self) -> Any:
        return PrivateHead(2.0, classes=("0", "1"), basis=BASIS, steps=3)

    def data(self) -> Any:
        return (FEATURES, NAMES)

    def removed(self) -> bool:
        return True

    def answers(self, fitted: Any) -> Any:
        return fitted.decision_function(PICTURES[:5])
