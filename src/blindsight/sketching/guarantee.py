"""Guarantees of flipped bits and of codebook prototypes, computed before any image is read.

Sketches carry no privacy guarantee (`paper`); their disclosure states what they reveal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from blindsight.core import checks
from blindsight.core.arrays import Array, Floats
from blindsight.privacy import Assumption, Cost, Guarantee, Planned
from blindsight.privacy.cost import Neighbours, Sampler
from blindsight.privacy.entropy import EntropyName, Rng
from blindsight.privacy.mechanisms import BitFlip, KaryResponse, register
from blindsight.privacy.mechanisms.base import Cells
from blindsight.privacy.mechanisms.kary import check_cells
from blindsight.sketching.parameters import FlipParameters, from_bits, to_bits

__all__ = ["CELL", "PIXEL", "PixelFlip", "codebook_guarantee", "flips_guarantee"]

#: the names of the two releases in a plan.
PIXEL, CELL = "pixel", "cell"

_ONCE = Assumption("released once", "each image is sent once; each further time adds to the cost")
_LABELS = Assumption(
    "labels in clear",
    "labels that are sent beside the images for training go in clear: this epsilon covers the "
    "image, not its label",
)
_ONE_VALUE = Assumption("a pixel is one value", "a pixel is one value of one channel")
_PUBLIC = Assumption(
    "public cells", "the prototypes, and their labels if given, were learned from public images"
)


@register
@dataclass(frozen=True, kw_only=True)
class PixelFlip:
    """Randomised response on a pixel: flip bit j of its value with probability beta_j.

    Bits are flipped independently.

    Guarantee:
        Pure epsilon per pixel in the local model: the sum over bits of |ln((1 - beta_j)/beta_j)|.
        The sampler is exact.
    """

    beta: tuple[float, ...]
    unit: Literal["pixel"] = "pixel"
    neighbours: ClassVar[Neighbours] = "replace one"
    sampler: ClassVar[Sampler] = "exact"

    def __post_init__(self) -> None:
        object.__setattr__(self, "beta", FlipParameters(beta=self.beta).beta)
        checks.one_of("unit", self.unit, ("pixel",))

    @property
    def _bits(self) -> list[BitFlip]:
        return [BitFlip(beta=beta) for beta in self.beta]

    @property
    def says(self) -> str:
        return f"random flipping of each of {len(self.beta)} bits of a pixel"

    @property
    def cost(self) -> Cost:
        """The sum of the epsilons of all bits, because all bits of a pixel may differ."""
        return Cost(epsilon=math.fsum(bit.epsilon_per_bit for bit in self._bits), unit="pixel")

    @property
    def domain(self) -> Cells:
        """The whole numbers with `len(beta)` bits."""
        return Cells(2 ** len(self.beta))

    def worst_pair(self) -> tuple[Array, Array]:
        """Return the pair of values with all bits 0 and all bits 1."""
        return np.array([0]), np.array([2 ** len(self.beta) - 1])

    def release(self, x: ArrayLike, *, rng: Rng) -> Array:
        """Return a flipped value for each value, with the same shape and integer type."""
        values = check_cells(x, 2 ** len(self.beta))
        planes = to_bits(values, len(self.beta))
        for j, bit in enumerate(self._bits):
            planes[..., j] = bit.release(planes[..., j], rng=rng)
        return from_bits(planes).astype(values.dtype)

    def log_prob(self, released: ArrayLike, x: ArrayLike) -> Floats:
        """Return ln Pr(released | x) of each pixel."""
        flipped, true = (to_bits(np.asarray(value), len(self.beta)) for value in (released, x))
        parts = [bit.log_prob(flipped[..., j], true[..., j]) for j, bit in enumerate(self._bits)]
        return np.asarray(np.sum(parts, axis=0))


def flips_guarantee(
    parameters: FlipParameters,
    image_shape: tuple[int, int, int],
    *,
    entropy: EntropyName = "system",
) -> Guarantee:
    """Return the guarantee of flipped bits, per pixel and per image (channels, height, width)."""
    mechanism = PixelFlip(beta=parameters.beta)
    return Guarantee(
        releases=(Planned(what=PIXEL, mechanism=mechanism),),
        model="local",
        assumptions=(_ONE_VALUE, _ONCE, _LABELS),
        entropy=entropy,
        also=(mechanism.cost.per("record", times=math.prod(image_shape)),),
    )


def codebook_guarantee(mechanism: KaryResponse, *, entropy: EntropyName = "system") -> Guarantee:
    """Return the guarantee per image of releasing one of k prototypes."""
    return Guarantee(
        releases=(Planned(what=CELL, mechanism=mechanism),),
        model="local",
        assumptions=(_PUBLIC, _ONCE, _LABELS),
        entropy=entropy,
    )
