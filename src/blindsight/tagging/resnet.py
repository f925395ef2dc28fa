"""The paper's extractor, for those who have its weights: ResNet-101 at 448 x 448, 2048 features.

The weights come from the user, as a safetensors file with the usual names (`layer3.22.conv2.weight`); pickles are not
read. Features are the maximum over the last map, as in ML-GCN.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from blindsight.core import checks
from blindsight.core.errors import HostileFile, MissingData
from blindsight.data import ImageSet

__all__ = ["DIMENSIONS", "ResNet101"]

DIMENSIONS = 2048
_BLOCKS, _WIDTHS = (3, 4, 23, 3), (64, 128, 256, 512)
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class _Bottleneck(nn.Module):  # type: ignore[misc]  # torch says no types
    """1x1, 3x3, 1x1, and the way round."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        outside = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outside, 1, bias=False), nn.BatchNorm2d(outside)
        self.downsample: nn.Module | None = None
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride=stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The block."""
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn2(self.conv2(y)).relu()
        y = self.bn3(self.conv3(y))
        return (y + (x if self.downsample is None else self.downsample(x))).relu()


class _Network(nn.Module):  # type: ignore[misc]
    """ResNet-101 without its classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(64)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        inside = 64
        for number, (count, width) in enumerate(zip(_BLOCKS, _WIDTHS, strict=True), start=1):
            blocks = []
            for block in range(count):
                blocks.append(_Bottleneck(inside, width, 2 if block == 0 and number > 1 else 1))
                inside = 4 * width
            setattr(self, f"layer{number}", nn.Sequential(*blocks))

    def forward(self, x: Tensor) -> Tensor:
        """Features (n, 2048)."""
        y = self.pool(self.bn1(self.conv1(x)).relu())
        for number in range(1, 5):
            y = getattr(self, f"layer{number}")(y)
        return y.amax(dim=(2, 3))


class ResNet101:
    """Images to the paper's 2048 features, with the user's own weights."""

    def __init__(self, weights: str | Path, *, size: int = 448, batch_size: int = 8) -> None:
        self.size, self.batch_size = checks.whole("size", size, least=32), checks.whole("batch_size", batch_size)
        self._network = _load(Path(weights))

    def transform(self, images: Any, *, progress: Any = None) -> NDArray[np.float32]:
        """Features (n, 2048) of an image set or a uint8 array."""
        held = images if hasattr(images, "array") else ImageSet(images)
        result = np.empty((len(held), DIMENSIONS), np.float32)
        mean, deviation = torch.tensor(_MEAN).view(3, 1, 1), torch.tensor(_DEVIATION).view(3, 1, 1)
        for start in range(0, len(held), self.batch_size):
            part = held[start : start + self.batch_size].array(self.size)
            x = torch.as_tensor(part).permute(0, 3, 1, 2).float() / 255
            with torch.no_grad():
                result[start : start + len(part)] = self._network((x - mean) / deviation).numpy()
            if progress is not None:
                progress(min(start + self.batch_size, len(held)), len(held))
        return result


def _load(path: Path) -> _Network:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise MissingData(f"{path} does not exist: give a safetensors file with ResNet-101's weights.")
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise HostileFile(f"{path.name} is not a safetensors file: {error}.") from error
    network = _Network()
    network.eval()
    kept = {name: value for name, value in weights.items() if not name.startswith("fc.")}
    try:
        found = network.load_state_dict(kept, strict=False)
    except RuntimeError as error:
        raise HostileFile(f"{path.name} does not hold ResNet-101's weights: a table has another shape.") from error
    lost = [name for name in found.missing_keys if not name.endswith("num_batches_tracked")]
    if lost or found.unexpected_keys:
        name = (lost or found.unexpected_keys)[0]
        raise HostileFile(f"{path.name} does not hold ResNet-101's weights: {name} does not fit.")
    return network
