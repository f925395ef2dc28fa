"""Reads the digit in each quarter of a scene; learned from public digits only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import storage
from blindsight.core.errors import HostileFile

__all__ = ["DigitReader"]

_SIDE = 20


_WAVES = 1200


_CLASSES = 10


class DigitReader:
    """Random Fourier features of a centred digit, then one linear map; scenes become 10 scores, the
    best quarter's.
    """

    def __init__(
        self, directions: NDArray[Any], phases: NDArray[Any], weights: NDArray[Any], floor: float
    ) -> None:
        self.directions, self.phases, self.weights, self.floor = directions, phases, weights, floor

    @classmethod
    def learn(
        cls, digits: NDArray[np.uint8], labels: NDArray[Any], *, seed: int = 0
    ) -> DigitReader:
        """Ridge regression onto the classes, from public digits."""
        rng = np.random.default_rng(seed)
        rows = np.stack([_centred(digit) for digit in digits])
        directions = rng.standard_normal((rows.shape[1], _WAVES)) * 0.18
        phases = rng.uniform(0, 2 * np.pi, _WAVES)
        waves = np.cos(rows @ directions + phases)
        targets = 2.0 * np.eye(_CLASSES)[labels] - 1
        weights = np.linalg.solve(waves.T @ waves + 2.0 * np.eye(_WAVES), waves.T @ targets)
        # How clearly the least clear of public digits reads; what reads less clearly is no digit.
        floor = float(np.quantile((waves @ weights).max(axis=1), 0.01))
        return cls(directions, phases, weights, floor)

    def features(self, scenes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """(n, 10): for each digit how clearly some quarter shows it, within [-1, 1]."""
        n, height, width = scenes.shape
        half = (height // 2, width // 2)
        quarters = [scenes[:, : half[0], : half[1]], scenes[:, : half[0], half[1] :]]
        quarters += [scenes[:, half[0] :, : half[1]], scenes[:, half[0] :, half[1] :]]
        best = np.full((n, _CLASSES), -1.0)
        for quarter in quarters:
            drawn = (quarter > 60).sum(axis=(1, 2)) > 12
            if drawn.any():
                rows = np.stack([_centred(image) for image in quarter[drawn]])
                best[drawn] = np.maximum(
                    best[drawn], np.cos(rows @ self.directions + self.phases) @ self.weights
                )
        return np.asarray(np.clip(best, -1, 1), np.float32)

    def knows(self, scene: NDArray[np.uint8]) -> bool:
        """Whether a scene looks like drawn digits: light strokes on a dark ground, one read clearly
        enough.
        """
        drawn = scene > 60
        if not 0.005 < drawn.mean() < 0.35 or ((scene > 60) & (scene < 190)).mean() > 0.15:
            return False
        height, width = scene.shape
        best = -np.inf
        for rows in (slice(0, height // 2), slice(height // 2, height)):
            for columns in (slice(0, width // 2), slice(width // 2, width)):
                quarter = scene[rows, columns]
                if (quarter > 60).sum() > 12:
                    wave = np.cos(_centred(quarter) @ self.directions + self.phases)
                    best = max(best, float((wave @ self.weights).max()))
        return best >= self.floor

    def save(self, path: Path) -> None:
        """One safetensors file."""
        arrays = {"directions": self.directions, "phases": self.phases, "weights": self.weights}
        storage.save(path, kind="digit-reader", arrays=arrays, fields={"floor": self.floor})

    @classmethod
    def load(cls, path: Path) -> DigitReader:
        """Read back what `save` wrote."""
        arrays, fields = storage.load(path, kind="digit-reader")
        try:
            return cls(
                arrays["directions"], arrays["phases"], arrays["weights"], float(fields["floor"])
            )
        except (KeyError, TypeError, ValueError):
            raise HostileFile(f"{path.name} is no digit reader.") from None


def _centred(image: NDArray[np.uint8]) -> NDArray[np.float64]:
    """What is drawn, cut out and brought to one size."""
    from PIL import Image

    rows, columns = np.nonzero(image > 60)
    if not len(rows):
        return np.zeros(_SIDE * _SIDE)
    cut = image[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    side = max(cut.shape)
    square = np.zeros((side, side), np.uint8)
    top, left = (side - cut.shape[0]) // 2, (side - cut.shape[1]) // 2
    square[top : top + cut.shape[0], left : left + cut.shape[1]] = cut
    small = np.asarray(Image.fromarray(square).resize((_SIDE, _SIDE), Image.Resampling.BILINEAR))
    return small.ravel() / 255.0
