"""Public pictures that are always at hand: to centre an encoder on, and to check it with.

They are crops of two photographs that scikit-learn ships under a free licence, and "dead leaves"
(overlapping random shapes), which have edges and scales like natural pictures. Vectors of what is
public are computed once for each encoder and kept in the cache folder.
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
# Twenty pictures are enough to find where the images of an encoder lie; these are a few more.
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
    """A photograph inside scikit-learn's wheel, without the second that importing it takes."""
    from PIL import Image

    wheel = importlib.util.find_spec("sklearn")
    path = Path((wheel and wheel.origin) or "").parent / "datasets" / "images" / name
    if not path.is_file():  # another layout, or scikit-learn is missing, which this says
        return np.asarray(core_module("sklearn.datasets").load_sample_image(name))
    with Image.open(path) as image:
        return np.asarray(image)


def typical_vectors(encoder: Encoder) -> Floats:
    """Vectors (64, d) of the built-in pictures: where images of this encoder lie.

    Raises:
        InvalidParameter: The encoder is a file of vectors, which cannot encode pictures.
    """
    return built_in_vectors(encoder, _TYPICAL, _SIDE)


def built_in_vectors(encoder: Encoder, count: int, size: int) -> Floats:
    """Vectors (count, d) of `built_in_images`, computed once for each encoder; read only.

    Raises:
        InvalidParameter: The encoder is a file of vectors, which cannot encode pictures.
    """
    from blindsight.encoders.builtin import BuiltIn
    from blindsight.encoders.onnx_folder import OnnxEncoder

    if isinstance(encoder, BuiltIn) and not encoder.networks:  # no quicker from a file
        return _remembered(encoder, count, size)
    if not isinstance(encoder, BuiltIn | OnnxEncoder):  # an identity that may leave something out
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
    """`count` public pictures (count, size, size, 3), the same every time; half crops, half leaves.

    Read only.
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
            # Radii fall off as a power: many small leaves, few large ones, at every scale.
            radius = size * min(0.6, 0.04 / max(rng.random(), 1e-3) ** 0.7)
            # As rng.uniform does it, without arrays of two: thousands of leaves are drawn.
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
    """Vectors of something public: from memory, from disk, or computed and kept.

    Parameters:
        encoder: The digest of everything that changes a vector.
        content: What is encoded; only its digest is kept.
        rows: How many vectors there are.
        compute: Called where no file holds them whole.

    Returns:
        The vectors (rows, d); read only.
    """
    key = hashlib.sha256(encoder.encode() + b"\0" + content).hexdigest()[:32]
    path = cache_folder() / "features" / f"public-{key}.safetensors"
    vectors = _public.get(path)
    if vectors is None:
        vectors = _stored(path, rows)
        if vectors is None:
            vectors = np.ascontiguousarray(compute(), dtype=np.float32)
            with contextlib.suppress(OSError):  # a read-only or full disk: computed again next time
                storage.save(path, kind="public vectors", arrays={"vectors": vectors}, fields={})
        vectors.flags.writeable = False
        _public[path] = vectors
        while len(_public) > _KEPT:
            _public.popitem(last=False)
    return vectors


def _stored(path: Path, rows: int) -> NDArray[np.float32] | None:
    """The vectors of a file; None where it is absent, damaged or without a digest."""
    with contextlib.suppress(BlindsightError, UncheckedFile), warnings.catch_warnings():
        warnings.simplefilter("error", UncheckedFile)
        vectors = storage.load(path, kind="public vectors")[0].get("vectors")
        if vectors is not None and vectors.shape[:1] == (rows,) and np.isfinite(vectors).all():
            return np.array(vectors, dtype=np.float32)
    return None
