"""The built-in encoders: EfficientNet-Lite networks trained on ImageNet, gradients, plain pixels.

| name | network | side | JPEG files |
|---|---|---|---|
| `lite0` | EfficientNet-Lite0 | 128 | decoded whole |
| `lite0-224` | EfficientNet-Lite0 | 224 | decoded whole |
| `lite0-reduced` | EfficientNet-Lite0 | 128 | decoded at reduced scale, for camera photos |
| `lite2` | EfficientNet-Lite2 | 224 | decoded whole |
| `both` | Lite0 at 128 and Lite2 at 224 | 224 | decoded whole |
| `both-large` | Lite0 and Lite2, both at 224 | 224 | decoded whole |
| `pixels` | none | 16 | decoded whole |
| `gradients` | none: directions of edges, for handwriting | 28 | decoded whole |

A stored index keeps the full name of its encoder (`lite0-128`), which also fixes how images are
resized. The names `efficientnet`, `efficientnet-reduced`, `lite2` and `pixels` in stored files
mean the same networks with the order of resizing left to Pillow.

Oriented gradients are features for handwriting and grey drawings that need no network: networks
trained on photos distinguish pen strokes poorly, and histograms of edge directions do it well. The
gradient of each pixel is shared between the two nearest of 8 directions and the four nearest of
7 x 7 cells; every square of 2 x 2 cells is scaled to about norm 1 and contributes 32 numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import one_of
from blindsight.core.errors import InvalidParameter
from blindsight.encoders.base import (
    Classes,
    Floats,
    Identity,
    Images,
    Preparation,
    Source,
    resized,
    unit_rows,
)
from blindsight.encoders.network import NETWORKS, available, head

__all__ = [
    "BUILT_IN",
    "GRADIENT_DIMENSIONS",
    "GRADIENT_SIZE",
    "STORED",
    "BuiltIn",
    "built_in",
    "default_recipe",
    "feature_recipe",
    "head_of",
    "oriented_gradients",
]

#: The side in pixels to which images are resized for oriented gradients.
GRADIENT_SIZE = 28
_DIRECTIONS, _CELLS, _BLOCK = 8, 7, 2
#: The length of a vector of oriented gradients.
GRADIENT_DIMENSIONS = _DIRECTIONS * (_BLOCK * (_CELLS - _BLOCK + 1)) ** 2
_FLOOR = 0.01
_BATCH = 512


def oriented_gradients(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Compute oriented gradients (n, 1152) of prepared images (n, 28, 28, 3).

    Examples:
        >>> oriented_gradients(np.zeros((2, 28, 28, 3), np.uint8)).shape
        (2, 1152)
    """
    parts = [_of_batch(images[start : start + _BATCH]) for start in range(0, len(images), _BATCH)]
    return np.concatenate(parts) if parts else np.empty((0, GRADIENT_DIMENSIONS), np.float32)


def _of_batch(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    grey = images.mean(axis=3, dtype=np.float32) / np.float32(255)
    padded = np.pad(grey, ((0, 0), (1, 1), (1, 1)), mode="edge")
    across = (padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]) / 2
    down = (padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]) / 2
    strength = np.hypot(across, down)
    turn = np.mod(np.arctan2(down, across) / (2 * np.pi), 1.0) * _DIRECTIONS
    lower = np.floor(turn).astype(np.int64)
    share = (turn - lower).astype(np.float32)
    middle = (np.arange(GRADIENT_SIZE) + 0.5) / GRADIENT_SIZE * _CELLS - 0.5
    near = np.maximum(0.0, 1 - np.abs(middle - np.arange(_CELLS)[:, None])).astype(np.float32)
    cells = np.empty((len(grey), _DIRECTIONS, _CELLS, _CELLS), np.float32)
    for direction in range(_DIRECTIONS):
        part = np.where(lower % _DIRECTIONS == direction, 1 - share, 0)
        part += np.where((lower + 1) % _DIRECTIONS == direction, share, 0)
        cells[:, direction] = near @ (strength * part) @ near.T
    blocks = [
        cells[:, :, row : row + _BLOCK, column : column + _BLOCK].reshape(len(grey), -1)
        for row in range(_CELLS - _BLOCK + 1)
        for column in range(_CELLS - _BLOCK + 1)
    ]
    scaled = [
        block / np.sqrt((block * block).sum(axis=1, keepdims=True) + _FLOOR) for block in blocks
    ]
    return np.concatenate(scaled, axis=1)


_NETWORK_BATCH = 16
_SIZES = {"lite0": 128, "lite2": 224}
_GRADIENTS = "gradients"


@dataclass(frozen=True)
class BuiltIn:
    """A built-in encoder.

    Parameters:
        name: The full name, as stored files keep it.
        preparation: How images are read and resized.
        network: "lite0", "lite2", "both", "both-large", "gradients", or None for plain pixels.

    Examples:
        >>> pixels = built_in("pixels")
        >>> pixels.images(np.full((1, 16, 16, 3), 7, np.uint8)).shape
        (1, 768)
    """

    name: str
    preparation: Preparation
    network: str | None = None

    @property
    def size(self) -> int:
        """The side in pixels of a prepared image."""
        return self.preparation.size

    @property
    def at_least(self) -> int | None:
        """The smallest side at which a JPEG file may be decoded; None for its full size."""
        return self.preparation.at_least

    @property
    def networks(self) -> tuple[str, ...]:
        """The networks whose features are concatenated; none for pixels and gradients."""
        return () if self.network in (None, _GRADIENTS) else _parts(str(self.network))

    def network_size(self, name: str) -> int:
        """The side in pixels that one of the networks takes."""
        return _SIZES[name] if self.network == "both" else self.size

    @property
    def dimensions(self) -> int:
        """The length of a vector."""
        from blindsight.encoders.network import DIMENSIONS

        if self.network == _GRADIENTS:
            return GRADIENT_DIMENSIONS
        return len(self.networks) * DIMENSIONS or 3 * self.size**2

    def read(self, source: Source) -> Images:
        """Read and prepare one image file."""
        return self.preparation.read(source)

    def prepare(self, image: NDArray[np.uint8]) -> Images:
        return self.preparation.prepare(image)

    def images(self, pixels: Images) -> Floats:
        """Unit vectors of prepared pixels."""
        return unit_rows(self.rows(pixels))

    def texts(self, texts: Sequence[str]) -> None:
        """Return None: words are mapped to the classes of a built-in network instead."""
        return

    def classes(self) -> Classes | None:
        """The 1,000 classes of ImageNet with the classifier's weights; None without a network."""
        if not self.networks:
            return None
        from blindsight.encoders.words import class_names

        return Classes(class_names(), head_of(str(self.network)))

    def identity(self) -> Identity:
        """The name, the checksums of the weights and the preparation."""
        return {
            "kind": "built-in",
            "name": self.name,
            "dimensions": self.dimensions,
            "files": {name: NETWORKS[name].sha256 for name in self.networks},
            "preparation": self.preparation.to_fields(),
        }

    def rows(self, images: Images, *, threads: int = 1) -> Floats:
        """The networks' own features (n, dimensions), not scaled to norm 1.

        With two networks the features of each are centred and scaled first, so that both have
        the same weight.
        """
        if self.network is None:
            return images.reshape(len(images), -1).astype(np.float32) / np.float32(255)
        if self.network == _GRADIENTS:
            return oriented_gradients(images)
        parts = [self._features(name, images, threads) for name in self.networks]
        return parts[0] if len(parts) == 1 else np.concatenate([_centred(x) for x in parts], axis=1)

    def _features(self, name: str, images: Images, threads: int) -> Floats:
        from blindsight.encoders.network import DIMENSIONS, network

        size = self.network_size(name)
        run = network(name, size, threads)
        result = np.empty((len(images), DIMENSIONS), np.float32)
        for start in range(0, len(images), _NETWORK_BATCH):
            batch = images[start : start + _NETWORK_BATCH]
            if size != self.size:
                batch = np.stack([resized(image, size, size) for image in batch])
            result[start : start + _NETWORK_BATCH] = run(np.ascontiguousarray(batch))
        return result


def head_of(network: str) -> Floats:
    """The classifier's weights (1000, dimensions) over the vectors of a built-in encoder."""
    if len(_parts(network)) == 1:
        return head(network)
    # Both blocks are scaled and centred like the features, so that neither network outweighs the
    # other.
    blocks = [head(name) - head(name).mean(axis=1, keepdims=True) for name in _parts(network)]
    return np.concatenate([block / np.linalg.norm(block) for block in blocks], axis=1)


def _parts(network: str) -> tuple[str, ...]:
    return ("lite0", "lite2") if network in ("both", "both-large") else (network,)


def _centred(rows: Floats) -> Floats:
    return unit_rows(rows - rows.mean(axis=1, keepdims=True))


def _encoders(pinned: bool, names: dict[str, str]) -> dict[str, BuiltIn]:
    sizes = {
        "pixels": (16, None),
        "gradients": (GRADIENT_SIZE, _GRADIENTS),
        "lite0": (128, "lite0"),
        "lite0-224": (224, "lite0"),
        "lite2": (224, "lite2"),
    }
    encoders = {}
    for short, name in names.items():
        plain = short.removesuffix("-reduced")
        size, network = sizes.get(plain, (224, plain))
        preparation = Preparation(size=size, reduced=plain != short, pinned=pinned)
        encoders[short if pinned else name] = BuiltIn(name, preparation, network)
    return encoders


#: The built-in encoders by the names that users write.
BUILT_IN = _encoders(
    True,
    {
        "lite0": "lite0-128",
        "lite0-224": "lite0-224",
        "lite0-reduced": "lite0-128-reduced",
        "lite2": "lite2-224",
        "both": "both-224",
        "both-large": "both-224-large",
        "pixels": "pixels-16",
        "gradients": "gradients-28",
    },
)
#: Every encoder that a stored file may name, including those of earlier versions.
STORED = {encoder.name: encoder for encoder in BUILT_IN.values()} | _encoders(
    False,
    {
        "lite0": "efficientnet",
        "lite0-reduced": "efficientnet-reduced",
        "lite2": "lite2",
        "pixels": "pixels",
    },
)


def built_in(name: str) -> BuiltIn:
    """The built-in encoder of that name.

    Raises:
        InvalidParameter: There is no encoder of that name; the message lists all names.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    current = {encoder.name: encoder for encoder in BUILT_IN.values()}
    if name not in current:
        raise InvalidParameter(
            f"encoder must be one of {', '.join(map(repr, BUILT_IN))}, a folder of ONNX files or "
            f"hub:owner/model@commit, got {name[:100]!r}."
        )
    return current[name]


def feature_recipe(name: str) -> BuiltIn:
    """The encoder that a stored file names.

    Raises:
        InvalidParameter: There is no encoder of that name; the message lists all names.
    """
    return STORED[one_of("features", name, tuple(STORED))]


def default_recipe(*, fast: bool = False) -> str:
    """The stored name of the encoder that is used if none is given.

    Parameters:
        fast: Use the small network, which is about four times as fast.

    Returns:
        Lite2 if its weights are on this machine, else Lite0, else pixels. Both networks together
        were no better on the classes of Caltech-101 that are used to choose settings.
    """
    if not available("lite0"):
        return BUILT_IN["pixels"].name
    if fast or not available("lite2"):
        return BUILT_IN["lite0"].name
    return BUILT_IN["lite2"].name
