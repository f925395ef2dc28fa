"""The attacker rehearses: parameters are public, so anyone can sketch images of their own, as often
as they like.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.sketching.bits import as_images, to_bits
from blindsight.sketching.flips import FlipParameters, Law
from blindsight.sketching.sampler import Dice, draw_sketches
from blindsight.sketching.sketches import SketchSet

__all__ = ["rehearse"]


def rehearse(
    images: Any, parameters: Law, *, rng: np.random.Generator, n_jobs: int | None = None
) -> SketchSet:
    """Sketches, or flipped bits, of one's own images under somebody else's parameters.

    Not a release.
    """
    given = as_images(images, parameters.depth)
    n, channels, height, width = given.shape
    shape = (n, channels, parameters.depth, 2, height, width)
    if isinstance(parameters, FlipParameters):
        return SketchSet(_flipped(given, parameters, rng).reshape(shape), parameters)
    strings = given.reshape(n * channels, height * width)
    counts = draw_sketches(strings, parameters, dice=Dice.throw(rng), n_jobs=n_jobs)
    return SketchSet(counts.reshape(shape), parameters)


def _flipped(
    given: NDArray[Any], parameters: FlipParameters, rng: np.random.Generator
) -> NDArray[np.uint8]:
    bits = np.moveaxis(to_bits(given, parameters.depth), -1, 2)
    wrong = rng.random(bits.shape) < np.asarray(parameters.beta)[:, None, None]
    ones = bits ^ wrong
    return np.stack([1 - ones, ones], axis=3).astype(np.uint8)
