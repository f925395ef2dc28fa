"""Public pictures that are always at hand: to centre an encoder on, and to check it with.

They are crops of two photographs that scikit-learn ships under a free licence, and "dead leaves"
(overlapping random shapes), which have edges and scales like natural pictures.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from blindsight.encoders.base import Encoder, Floats

__all__ = ["built_in_images", "flower", "temple", "typical_vectors"]

Images = NDArray[np.uint8]
# Twenty pictures are enough to find where the images of an encoder lie; these are a few more.
_TYPICAL, _SIDE = 64, 256


def flower() -> Images:
    """The photograph of a flower, RGB."""
    return _photograph("flower.jpg")


def temple() -> Images:
    """The photograph of a Chinese temple, RGB."""
    return _photograph("china.jpg")


@lru_cache(maxsize=2)
def _photograph(name: str) -> Images:
    from sklearn.datasets import load_sample_image

    pixels: Images = np.asarray(load_sample_image(name))
    return pixels


def typical_vectors(encoder: Encoder) -> Floats:
    """Vectors (64, d) of the built-in pictures: where images of this encoder lie.

    Raises:
        InvalidParameter: The encoder is a file of vectors, which cannot encode pictures.
    """
    pictures = built_in_images(_TYPICAL, _SIDE)
    return encoder.images(np.stack([encoder.prepare(picture) for picture in pictures]))


@lru_cache(maxsize=4)
def built_in_images(count: int, size: int) -> Images:
    """`count` public pictures (count, size, size, 3), the same every time; half crops, half leaves.

    Read only.
    """
    rng = np.random.default_rng(20_200_825)
    images = np.concatenate([_crops(count // 2, size, rng), _leaves(count - count // 2, size, rng)])
    images.flags.writeable = False
    return images


def _crops(count: int, size: int, rng: np.random.Generator) -> Images:
    from PIL import Image
    from sklearn.datasets import load_sample_images

    photographs = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    crops = np.empty((count, size, size, 3), dtype=np.uint8)
    for i in range(count):
        picture = photographs[i % len(photographs)]
        side = int(np.exp(rng.uniform(np.log(48), np.log(min(picture.size)))))
        left, top = (int(rng.integers(0, length - side + 1)) for length in picture.size)
        crops[i] = np.asarray(
            picture.crop((left, top, left + side, top + side)).resize((size, size))
        )
    return crops


def _leaves(count: int, size: int, rng: np.random.Generator) -> Images:
    from PIL import Image, ImageDraw

    leaves = np.empty((count, size, size, 3), dtype=np.uint8)
    for i in range(count):
        base, spread = rng.integers(0, 256, 3), rng.uniform(20, 120)
        picture = Image.new("RGB", (size, size), _colour(base, spread, rng))
        draw = ImageDraw.Draw(picture)
        for _ in range(int(rng.integers(5, 80))):
            # Radii fall off as a power: many small leaves, few large ones, at every scale.
            radius = size * min(0.6, 0.04 / max(rng.random(), 1e-3) ** 0.7)
            x, y = rng.uniform(0, size, 2)
            a, b = radius * rng.uniform(0.4, 1.6, 2)
            shape = draw.ellipse if rng.random() < 0.5 else draw.rectangle
            shape((x - a, y - b, x + a, y + b), fill=_colour(base, spread, rng))
        leaves[i] = np.asarray(picture)
    return leaves


def _colour(
    base: NDArray[np.int64], spread: float, rng: np.random.Generator
) -> tuple[int, int, int]:
    red, green, blue = np.clip(base + rng.normal(0, spread, 3), 0, 255).astype(int).tolist()
    return red, green, blue
