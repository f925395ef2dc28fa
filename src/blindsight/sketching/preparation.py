"""Images of any kind brought to one shape: one's own before they are sketched, other people's to be
like them.

A folder has photos of several sizes, some of them grey. Whether they fit together is found out
before anything is charged or drawn: a job that stops at the ninth photo would have paid for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from blindsight.core.arrays import Array, Bytes
from blindsight.core.errors import InvalidData
from blindsight.data import ImageSet, to_rgb

__all__ = ["ImagePreparation", "read_like", "window"]

# pixels a side of what is kept of larger public images: attackers look no farther than that
WINDOW = 512
PUBLIC_VALUES = 600_000_000  # bytes of public images that are read, at most
_LUMINANCE = np.array([0.299, 0.587, 0.114])


@dataclass(frozen=True)
class ImagePreparation:
    """Turns a slice of a set into one array (n, h, w), or (n, h, w, 3) where the set has colour."""

    size: int | None
    grey: bool

    @classmethod
    def of(
        cls, images: ImageSet, *, size: int | None = None, grey: bool = False
    ) -> ImagePreparation:
        """For this set: grey where it is asked for or all images are, and of one size, or refused
        in a sentence.

        Grey images stay grey when they are resized: three equal channels would be sketched with
        three noises, and tell three times as much.
        """
        if isinstance(images.images, np.ndarray):
            return cls(size, grey or images.images.ndim == 3)
        shapes = [np.shape(image) for image, _ in images]
        sizes = sorted({shape[:2] for shape in shapes})
        if size is None and len(sizes) > 1:
            raise InvalidData(
                f"the images have {len(sizes)} sizes, from {_pixels(sizes[0])} to "
                f"{_pixels(sizes[-1])}, and sketches "
                "of one set have one. Say which (--size 256), or sort them into folders."
            )
        return cls(size, grey or all(len(shape) == 2 for shape in shapes))

    def __call__(self, part: Any) -> Bytes:
        array = part.array() if self.size is None else part.array(self.size)
        return _coloured(array, not self.grey)


def read_like(images: ImageSet, image_shape: tuple[int, int, int], *, most: int) -> Bytes:
    """Other people's images as an attacker would use them: of (channels, height, width), at most so
    many.

    What is larger than `WINDOW` is cut to its middle, and fewer are read where they are large:
    memory is bounded.
    """
    channels, height, width = image_shape
    kept = channels * min(height, WINDOW) * min(width, WINDOW)
    read = []
    for image, _ in images[: min(most, max(16, PUBLIC_VALUES // kept))]:
        if image.shape[:2] != (height, width):
            image = np.asarray(
                Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC)
            )
        read.append(window(_coloured(image[None], channels == 3)))
    if not read:
        raise InvalidData("there are no public images to learn from.")
    return np.concatenate(read)


def window(images: Array, side: int = WINDOW) -> Array:
    """The middle of images (n, h, w, ...), at most so many pixels a side."""
    top, left = (max(0, (length - side) // 2) for length in images.shape[1:3])
    return images[:, top : top + side, left : left + side]


def _coloured(array: Bytes, colour: bool) -> Bytes:
    """Images (n, h, w) or (n, h, w, 3) with or without colour."""
    if colour:
        return np.stack([to_rgb(image) for image in array]) if array.ndim == 3 else array
    return np.rint(array @ _LUMINANCE).astype(np.uint8) if array.ndim == 4 else array


def _pixels(size: tuple[int, ...]) -> str:
    return f"{size[1]} x {size[0]}"
