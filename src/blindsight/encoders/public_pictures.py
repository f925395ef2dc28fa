"""Public pictures that are always available, to centre an encoder and to check it.

They are crops of two photographs that scikit-learn ships under a free licence, and "dead leaves"
(overlapping random shapes), which have edges and scales like natural pictures. Vectors of
public content are computed once for each encoder and stored in the cache folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import warnings
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from blindsight.core import storage
from blindsight.core.checks import core_module
from blindsight.core.errors import BlindsightError, UncheckedFile
from blindsight.data import cache_folder
from blindsight.encoders.base import identity_digest

if TYPE_CHECKING:
    from blindsight.encoders.base import Encoder, Floats

__all__ = [
    "built_in_images",
    "built_in_vectors",
    "flower",
    "public_vectors",
    "temple",
    "typical_vectors",
]

Images = NDArray[np.uint8]
# Twenty pictures are enough to estimate the mean of an encoder's vectors; these are a few more.
_TYPICAL, _SIDE = 64, 256
_BATCH = 16  # pictures that are prepared before they are encoded
_KEPT = 8  # arrays of public vectors that one process holds
_public: OrderedDict[Path, NDArray[np.float32]] = OrderedDict()


def flower() -> Images:
    """The photograph of a flower, RGB."""
    return _photograph("flower.jpg")


def temple() -> Images:
    """The photograph of a Chinese temple, RGB."""
    return _photograph("china.jpg")


@lru_cache(maxsize=2)
def _photograph(name: str) -> Images:
    """Read a photograph of scikit-learn without importing the package, which takes a second."""
    from PIL import Image

    wheel = importlib.util.find_spec("sklearn")
    path = Path((wheel and wheel.origin) or "").parent / "datasets" / "images" / name
    if not path.is_file():  # The layout differs, or scikit-learn is missing: then this raises.
        return np.asarray(core_module("sklearn.datasets").load_sample_image(name))
    with Image.open(path) as image:
        return np.asarray(image)


def typical_vectors(encoder: Encoder) -> Floats:
    """Vectors (64, d) of the built-in pictures, whose mean centres the encoder.

    Raises:
        InvalidParameter: The encoder is a file of vectors, which cannot encode pictures.
    """
    return built_in_vectors(encoder, _TYPICAL, _SIDE)


def built_in_vectors(encoder: Encoder, count: int, size: int) -> Floats:
    """Vectors (count, d) of `built_in_images`, computed once for each encoder; read-only.

    Raises:
        InvalidParameter: The encoder is a file of vectors, which cannot encode pictures.
    """
    from blindsight.encoders.builtin import BuiltIn
    from blindsight.encoders.onnx_folder import OnnxEncoder

    if isinstance(encoder, BuiltIn) and not encoder.networks:  # A file would be no faster.
        return _remembered(encoder, count, size)
    if not isinstance(encoder, BuiltIn | OnnxEncoder):  # Its identity may be incomplete.
        return _encoded(encoder, count, size)
    digest, pictures = identity_digest(encoder.identity()), built_in_images(count, size)
    return public_vectors(digest, pictures.tobytes(), count, lambda: _encoded(encoder, count, size))


def _encoded(encoder: Encoder, count: int, size: int) -> Floats:
    pictures, blocks = built_in_images(count, size), []
    for start in range(0, count, _BATCH):
        batch = pictures[start : start + _BATCH]
        blocks.append(encoder.images(np.stack([encoder.prepare(each) for each in batch])))
    vectors = np.concatenate(blocks)
    vectors.flags.writeable = False
    return vectors


_remembered = lru_cache(maxsize=2)(_encoded)


@lru_cache(maxsize=4)
def built_in_images(count: int, size: int) -> Images:
    """`count` public pictures (count, size, size, 3): half crops of photographs, half dead leaves.

    They are the same on every call. The array is read-only.
    """
    rng = np.random.default_rng(20_200_825)
    images = np.concatenate([_crops(count // 2, size, rng), _leaves(count - count // 2, size, rng)])
    images.flags.writeable = False
    return images


def _crops(count: int, size: int, rng: np.random.Generator) -> Images:
    from PIL import Image

    photographs = [Image.fromarray(pixels) for pixels in (temple(), flower())]
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
        base, spread = rng.integers(0, 256, 3).tolist(), rng.uniform(20, 120)
        picture = Image.new("RGB", (size, size), _colour(base, spread, rng))
        draw = ImageDraw.Draw(picture)
        for _ in range(int(rng.integers(5, 80))):
            # Radii follow a power law: many small leaves and few large ones, at every scale.
            radius = size * min(0.6, 0.04 / max(rng.random(), 1e-3) ** 0.7)
            # The same as rng.uniform without arrays of length two, because thousands are drawn.
            x, y = size * rng.random(), size * rng.random()
            a, b = (radius * (0.4 + (1.6 - 0.4) * rng.random()) for _ in range(2))
            shape = draw.ellipse if rng.random() < 0.5 else draw.rectangle
            shape((x - a, y - b, x + a, y + b), fill=_colour(base, spread, rng))
        leaves[i] = np.asarray(picture)
    return leaves


def _colour(base: list[int], spread: float, rng: np.random.Generator) -> tuple[int, int, int]:
    red, green, blue = (int(min(max(x + rng.normal(0, spread), 0), 255)) for x in base)
    return red, green, blue


def public_vectors(
    encoder: str, content: bytes, rows: int, compute: Callable[[], NDArray[np.float32]]
) -> NDArray[np.float32]:
    """Vectors of public content: from memory, from disk, or computed and then stored.

    Parameters:
        encoder: The digest of everything that changes a vector.
        content: What is encoded; only its digest is stored.
        rows: How many vectors there are.
        compute: Called if no complete file exists.

    Returns:
        The vectors (rows, d), read-only.
    """
    key = hashlib.sha256(encoder.encode() + b"\0" + content).hexdigest()[:32]
    path = cache_folder() / "features" / f"public-{key}.safetensors"
    vectors = _public.get(path)
    if vectors is None:
        vectors = _stored(path, rows)
        if vectors is None:
            vectors = np.ascontiguousarray(compute(), dtype=np.float32)
            with contextlib.suppress(OSError):  # Computed again if the disk is full or read-only.
                storage.save(path, kind="public vectors", arrays={"vectors": vectors}, fields={})
        vectors.flags.writeable = False
        _public[path] = vectors
        while len(_public) > _KEPT:
            _public.popitem(last=False)
    return vectors


def _stored(path: Path, rows: int) -> NDArray[np.float32] | None:
    """The vectors of a file; None if it is absent, damaged or without a digest."""
    with contextlib.suppress(BlindsightError, UncheckedFile), warnings.catch_warnings():
        warnings.simplefilter("error", UncheckedFile)
        vectors = storage.load(path, kind="public vectors")[0].get("vectors")
        if vectors is not None and vectors.shape[:1] == (rows,) and np.isfinite(vectors).all():
            return np.array(vectors, dtype=np.float32)
    return None
