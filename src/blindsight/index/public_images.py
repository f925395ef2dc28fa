"""Images that are public, to learn hash functions from: a folder or a set of your own, or pictures
of nobody's.

Built in are crops of two photographs that scikit-learn ships under a free licence, and "dead
leaves" (overlapping random shapes), which have edges and scales like natural pictures. Neither says
anything about the photos that are to be protected.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import InvalidData
from blindsight.encoders import BuiltIn
from blindsight.index.release_folder import photo_names

__all__ = ["PublicPictures", "built_in_images", "edited", "public_pictures", "refuse_private"]

Images = NDArray[np.uint8]
_MOST = 2000


@dataclass(frozen=True)
class PublicPictures:
    """Squeezed pictures (n, size, size, 3), and the class of each where the folder has one
    subfolder per class.
    """

    images: Images
    classes: tuple[str, ...] | None = None


def public_pictures(place: str, recipe: BuiltIn) -> PublicPictures:
    """The pictures of a public folder, or of a set that is known by name; at most 2,000, spread
    over it.
    """
    from blindsight.data import load
    from blindsight.data.reading import SUFFIXES

    folder = Path(place)
    if not folder.is_dir():
        found = load(place)
        return PublicPictures(found.take(slice(0, _MOST)).array(recipe.size))
    names = list(photo_names(folder, SUFFIXES))
    if not names:
        raise InvalidData(
            f"{folder} holds no pictures ({', '.join(sorted(SUFFIXES))}). Check the path of "
            "--public."
        )
    chosen = names[:: max(1, -(-len(names) // _MOST))]
    images = np.stack([recipe.read(folder / name) for name in chosen])
    return PublicPictures(images, _classes(chosen))


def _classes(names: list[str]) -> tuple[str, ...] | None:
    """The subfolder of each picture, if every picture lies in one, and each of at least two holds
    two or more.
    """
    parts = [Path(name).parts for name in names]
    if any(len(part) < 2 for part in parts):
        return None
    labels = [part[0] for part in parts]
    counts = {label: labels.count(label) for label in set(labels)}
    return tuple(labels) if len(counts) > 1 and min(counts.values()) > 1 else None


def refuse_private(public: str, photos: Path, names: Iterable[str]) -> None:
    """Refuse a public folder that is the photos' own, lies around or inside it, or holds one of the
    photos.

    What is learned from protected photos without noise has no epsilon, whatever the folder is
    called.
    """
    from blindsight.data.reading import SUFFIXES

    folder = Path(public)
    if not folder.is_dir():
        return
    ours, theirs = folder.resolve(), photos.resolve()
    if ours == theirs or ours in theirs.parents or theirs in ours.parents:
        raise InvalidData(
            f"{public} shares files with the photos of {photos}: they are protected, so they are "
            "not public."
        )
    sizes: dict[int, list[Path]] = {}
    for name in photo_names(folder, SUFFIXES):
        sizes.setdefault((folder / name).stat().st_size, []).append(folder / name)
    for name in names:
        path = photos / name
        same = sizes.get(path.stat().st_size, []) if path.is_file() else []
        if any(_digest(other) == _digest(path) for other in same):
            raise InvalidData(
                f"{public} holds a copy of a photo of {photos}: what is protected is not public."
            )


def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


@lru_cache(maxsize=4)
def built_in_images(count: int, size: int) -> Images:
    """`count` public pictures (count, size, size, 3), the same every time; half crops, half leaves.

    Read only.
    """
    rng = np.random.default_rng(20_200_825)
    images = np.concatenate([_crops(count // 2, size, rng), _leaves(count - count // 2, size, rng)])
    images.flags.writeable = False
    return images


def edited(images: Images, *, seed: int = 1) -> Images:
    """The same pictures as a friend might send them back: cropped a little, brighter or darker,
    recompressed.
    """
    from PIL import Image, ImageEnhance

    rng = np.random.default_rng(seed)
    results = []
    for pixels in images:
        picture = Image.fromarray(pixels)
        width, height = picture.size
        left, top = rng.uniform(0, 0.1, 2) * (width, height)
        right, bottom = (width, height) - rng.uniform(0, 0.1, 2) * (width, height)
        picture = picture.crop((int(left), int(top), int(right), int(bottom))).resize(
            (width, height)
        )
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
