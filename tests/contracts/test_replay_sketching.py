"""The replay contract of the inputs with a proven guarantee: what leaves is what passed the door, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from blindsight.sketching import CodebookSketcher, FlippedBits
from contracts.replay import ReplayContract

PUBLIC = np.random.default_rng(0).integers(0, 256, (120, 5, 5)).astype(np.uint8)
PRIVATE = np.random.default_rng(1).integers(0, 256, (6, 5, 5)).astype(np.float64)


class _Sent(ReplayContract):
    bounds = (0, 255)

    def data(self) -> Any:
        return PRIVATE

    def run(self, data: Any, folder: Path) -> Any:
        fitted = self.make().fit(PUBLIC)
        sent = fitted.transform(data)
        fitted.save(folder / "model.safetensors")
        return {"sent": sent}


class TestCodebookSketcher(_Sent):
    """One of k prototypes per image."""

    def make(self) -> Any:
        return CodebookSketcher(3.0, k=5)


class TestFlippedBits(_Sent):
    """A pixel is the unit: neighbours are images that differ in one."""

    def make(self) -> Any:
        return FlippedBits(3.0)

    def neighbours(self) -> Any:
        from blindsight.audit.engine import Neighbour

        found = []
        for value in (0.0, 255.0):
            other = PRIVATE.copy()
            other[0, 2, 3] = value
            found.append(Neighbour(f"one pixel at {value:g}", other))
        return found
