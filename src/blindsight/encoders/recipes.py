"""From an image to its row of numbers, by a name that is kept with what was made of it: the one
path for all verbs.

| name | network | side | JPEG |
|---|---|---|---|
| `efficientnet` | EfficientNet-Lite0 | 128 | decoded whole |
| `efficientnet-reduced` | EfficientNet-Lite0 | 128 | at reduced scale: for camera photos |
| `lite2` | EfficientNet-Lite2 | 224 | decoded whole |
| `pixels` | none | 16 | decoded whole |

Queries and stored images must go by the same name. Nothing is kept on disk.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import one_of
from blindsight.data import read_image, to_rgb
from blindsight.encoders.weights import available

__all__ = ["RECIPES", "FeatureRecipe", "default_recipe", "feature_recipe"]

_BATCH = 16
# A JPEG at reduced scale keeps at least this many times the side that it is squeezed to.
_SPARE = 4


@dataclass(frozen=True)
class FeatureRecipe:
    """How an image is read, squeezed and described."""

    name: str
    size: int
    network: str | None = None
    reduced: bool = False

    @property
    def at_least(self) -> int | None:
        """The side that a JPEG may be decoded at, None for whole."""
        return _SPARE * self.size if self.reduced else None

    def read(self, source: str | os.PathLike[str] | bytes) -> NDArray[np.uint8]:
        """One image file, squeezed to RGB (size, size, 3)."""
        return to_rgb(read_image(source, at_least=self.at_least), self.size)

    def rows(self, images: NDArray[np.uint8], *, threads: int = 1) -> NDArray[np.float32]:
        """Features (n, d) of squeezed images (n, size, size, 3)."""
        if self.network is None:
            return images.reshape(len(images), -1).astype(np.float32) / np.float32(255)
        from blindsight.encoders.network import DIMENSIONS, network

        result = np.empty((len(images), DIMENSIONS), dtype=np.float32)
        run = network(self.network, self.size, threads)
        for start in range(0, len(images), _BATCH):
            result[start : start + _BATCH] = run(
                np.ascontiguousarray(images[start : start + _BATCH])
            )
        return result


#: every way from image to features, by name.
RECIPES = {
    recipe.name: recipe
    for recipe in (
        FeatureRecipe("efficientnet", 128, "lite0"),
        FeatureRecipe("efficientnet-reduced", 128, "lite0", reduced=True),
        FeatureRecipe("lite2", 224, "lite2"),
        FeatureRecipe("pixels", 16),
    )
}


def feature_recipe(name: Any) -> FeatureRecipe:
    """The recipe of that name, or an error that lists them."""
    return RECIPES[one_of("features", name, tuple(RECIPES))]


def default_recipe() -> str:
    """The pretrained network where it is installed, else pixels."""
    engine = any(importlib.util.find_spec(name) for name in ("onnxruntime", "torch"))
    return "efficientnet" if engine and available("lite0") else "pixels"
