"""What extractors accept as images: a set, a uint8 array, or a list of images, seen one way."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import InvalidData
from blindsight.data import ImageSet, LazyImages, MultiLabelSet

__all__ = ["as_images", "chunks", "content_key"]


def as_images(images: Any) -> NDArray[np.uint8] | LazyImages:
    """The images of a set, or the array itself, after a look at its type and shape."""
    if isinstance(images, (ImageSet, MultiLabelSet)):
        if images.images is None:
            raise InvalidData(f"{images.name} has no images to compute features from.")
        return images.images
    if isinstance(images, LazyImages) and not isinstance(images, np.ndarray):
        return images
    # The check of shape and type is that of an image set.
    return ImageSet(np.asarray(images)).array()


def content_key(images: NDArray[np.uint8] | LazyImages, index: int) -> bytes:
    """A hash of one image: of the encoded file if there is one, else of the pixels and their
    shape.
    """
    digest = hashlib.blake2b(digest_size=20)
    if isinstance(images, np.ndarray):
        image = np.ascontiguousarray(images[index])
        digest.update(f"pixels {image.shape} ".encode())
        digest.update(image.data)
    else:
        digest.update(b"file ")
        digest.update(images.content(index))
    return digest.digest()


def chunks(n: int, size: int) -> Iterator[range]:
    """The numbers below n in runs of at most `size`."""
    return (range(start, min(start + size, n)) for start in range(0, n, size))
