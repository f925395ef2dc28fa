"""`SketchDataset`: sketches as PyTorch inputs, estimated by table lookup, batch by batch or once
and for all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from blindsight.core import checks
from blindsight.sketching.sketches import SketchSet

__all__ = ["INPUTS", "SketchDataset"]

INPUTS = ("mean", "bits", "both")
CACHE_BYTES = 1 << 30


class SketchDataset(Dataset):  # type: ignore[misc]
    """(input, label) pairs from sketches; label -1 where there is none.

    Parameters:
        sketches: the set. inputs: "mean" gives posterior means of pixels in [0, 1] (channels, h,
        w), as the paper does; "bits" gives the
            posteriors of all bits (channels L, h, w), from which a network learns more; "both"
            gives the bits and then the means (channels (L + 1), h, w).
        cache: keep the inputs in memory; None does so where they take at most 1 GB.
    """

    def __init__(
        self, sketches: SketchSet, *, inputs: str = "mean", cache: bool | None = None
    ) -> None:
        self.sketches = sketches
        self.inputs = checks.one_of("inputs", inputs, INPUTS)
        channels, height, width = sketches.image_shape
        depth = sketches.parameters.depth
        planes = channels * {"mean": 1, "bits": depth, "both": depth + 1}[inputs]
        self.shape = (planes, height, width)
        size = 4 * len(sketches) * planes * height * width
        self._cached = (
            self._estimate(slice(None))
            if (size <= CACHE_BYTES if cache is None else cache)
            else None
        )
        labels = (
            np.full(len(sketches), -1, np.int64) if sketches.labels is None else sketches.labels
        )
        self.labels = torch.from_numpy(labels)

    def _estimate(self, rows: Any) -> Tensor:
        part = self.sketches[rows]
        given: list[NDArray[np.float32]] = []
        if self.inputs != "mean":
            given.append(part.posteriors())
        if self.inputs != "bits":
            means = part.means()
            means /= np.float32(2**self.sketches.parameters.depth - 1)
            given.append(means)
        return torch.from_numpy(given[0] if len(given) == 1 else np.concatenate(given, axis=1))

    def __len__(self) -> int:
        return len(self.sketches)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.batch(np.array([row]))[0], self.labels[row]

    def __getitems__(self, rows: list[int]) -> list[tuple[Tensor, Tensor]]:
        """A batch for torch's loader, estimated at once."""
        return list(
            zip(self.batch(np.asarray(rows)), self.labels[torch.as_tensor(rows)], strict=True)
        )

    def batch(self, rows: Any) -> Tensor:
        """The inputs at these rows, estimated together."""
        if self._cached is not None:
            return self._cached[torch.as_tensor(rows)]
        order = np.asarray(rows)
        return self._estimate(order)

    def statistics(self, most: int = 4096) -> tuple[Tensor, Tensor]:
        """Mean and deviation of each plane over (at most) the first `most` sketches."""
        values = self.batch(np.arange(min(most, len(self))))
        mean, deviation = values.mean(dim=(0, 2, 3)), values.std(dim=(0, 2, 3))
        return mean, deviation.clamp_min(1e-3)
