"""Images that belong to nobody, to learn hash functions from: crops of two published photographs, and drawn leaves.

scikit-learn ships two photographs under a free licence; "dead leaves" (overlapping random shapes) have edges and
scales like natural pictures. Neither says anything about the photos that are to be protected.
"""

from __future__ import annotations

import io
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["built_in_images", "edited"]

Images = NDArray[np.uint8]


@lru_cache(maxsize=4)
def built_in_images(count: int, size: int) -> Images:
    """`count` public pictures (count, size, size, 3), the same every time; half crops, half leaves. Read only."""
    rng = np.random.default_rng(20_200_825)
    images = np.concatenate([_crops(count // 2, size, rng), _leaves(count - count // 2, size, rng)])
    images.flags.writeable = False
    return images


def edited(images: Images, *, seed: int = 1) -> Images:
    """The same pictures as a friend might send them back: cropped a little, brighter or darker, recompressed."""
    from PIL import Image, ImageEnhance

    rng = np.random.default_rng(seed)
    results = []
    for pixels in images:
        picture = Image.fromarray(pixels)
        width, height = picture.size
        left, top = rng.uniform(0, 0.1, 2) * (width, height)
        right, bottom = (width, height) - rng.uniform(0, 0.1, 2) * (width, height)
        picture = picture.crop((int(left), int(top), int(right), int(bottom))).resize((width, height))
        picture = ImageEnhance.Brightness(picture).enhance(rng.uniform(0.85, 1.15))
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=int(rng.integers(50, 90)))
        results.append(np.asarray(Image.open(buffer).convert("RGB")))
    return np.stack(results)


def _crops(count: int, size: int, rng: np.random.Generator) -> Images:
    from PIL import Image
    from sklearn.datasets import load_sample_images

    photographs = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    crops = np.empty((count, size, size, 3), dtype=np.uint8)
    for i in range(count):
        picture = photographs[i % len(photographs)]
        side = int(np.exp(rng.uniform(np.log(48), np.log(min(picture.size)))))
        left, top = (int(rng.integers(0, length - side + 1)) for length in picture.size)
        crops[i] = np.asarray(picture.crop((left, top, left + side, top + side)).resize((size, size)))
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


def _colour(base: NDArray[np.int64], spread: float, rng: np.random.Generator) -> tuple[int, int, int]:
    red, green, blue = np.clip(base + rng.normal(0, spread, 3), 0, 255).astype(int).tolist()
    return red, green, blue
