"""Second moments of a kind of image: what an informed attacker and a network get from a sketch.

In digits that are nearly black and white, all bits of a pixel are nearly equal. The paper's
posterior mean ignores that: it takes bits as independent and weights them by 2^(L-j), so it misses
a leak through the trailing bits that any other attacker uses. Both quantities here are computed
from public images:

- the leak: the squared error of the best linear estimate of a pixel from the counts of all its
  bits;
- the use: the information about the factor that neighbouring pixels share. A network recognises
  shapes, which are what neighbours have in common; a bit that depends on its own pixel only is
  noise to the network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from blindsight.core.arrays import Floats
from blindsight.core.errors import InvalidParameter
from blindsight.sketching.parameters import to_bits
from blindsight.sketching.preparation import window

__all__ = ["ImageStatistics", "signal"]

_VALUES = (
    4_000_000  # pixels that moments are taken of, at most: more would cost memory and change little
)


def signal(differing: ArrayLike, agreeing: float) -> Floats:
    """Signal to noise a bit: n_1 - n_0 moves by 2 (lambda_s - lambda_d) with the bit, and has
    variance their sum.
    """
    wrong = np.asarray(differing, np.float64)
    return 4 * (agreeing - wrong) ** 2 / np.maximum(agreeing + wrong, 1e-300)


@dataclass(frozen=True)
class ImageStatistics:
    """Second moments of a kind of image: of a pixel's value, of its bits, and of the factor that
    neighbouring pixels share.
    """

    peak: float
    variance: float
    bits: Floats = field(repr=False)
    with_value: Floats = field(repr=False)
    loadings: Floats = field(repr=False)

    @classmethod
    def of(cls, reference: ArrayLike, depth: int) -> ImageStatistics:
        """Learn the moments from public images (n, h, w), or (n, h, w, channels) with channels
        taken alike.
        """
        images = np.asarray(reference)
        if images.ndim == 4:
            images = np.moveaxis(images, -1, 1).reshape(-1, *images.shape[1:3])
        if (
            images.ndim != 3
            or images.dtype.kind not in "iu"
            or min(images.shape[1:], default=0) < 2
            or not len(images)
        ):
            raise InvalidParameter(
                f"reference must be images of whole numbers, at least 2 x 2, got {images.shape}."
            )
        if images.min() < 0 or images.max() >= 2**depth:
            raise InvalidParameter(f"reference must be images of whole numbers below {2**depth}.")
        images = window(images)
        most = max(1, _VALUES // images[0].size)
        if len(images) > most:
            images = images[np.sort(np.random.default_rng(0).permutation(len(images))[:most])]
        value = images.astype(np.float64)
        if value.var() == 0:
            raise InvalidParameter(
                "reference must not be of one colour: it tells nothing of your images."
            )
        planes = to_bits(images, depth).astype(np.float64)
        planes -= planes.mean(axis=(0, 1, 2))
        flat, pixels = planes.reshape(-1, depth), value.size
        across = np.einsum("nhwi,nhwj->ij", planes[:, 1:], planes[:, :-1], optimize=True)
        along = np.einsum("nhwi,nhwj->ij", planes[:, :, 1:], planes[:, :, :-1], optimize=True)
        pairs = value[:, 1:].size + value[:, :, 1:].size
        common = (across + along + across.T + along.T) / (2 * pairs)
        strengths, directions = np.linalg.eigh(common)
        loadings = math.sqrt(max(float(strengths[-1]), 0.0)) * directions[:, -1]
        return cls(
            peak=2.0**depth - 1,
            variance=float(value.var()),
            bits=flat.T @ flat / pixels,
            with_value=flat.T @ (value.ravel() - value.mean()) / pixels,
            loadings=loadings,
        )

    @property
    def blind_psnr(self) -> float:
        """What guessing the mean pixel reaches, without any sketch."""
        return 10 * math.log10(self.peak**2 / self.variance)

    def psnr(self, differing: ArrayLike, agreeing: float) -> float:
        """PSNR of the best linear guess of a pixel from its own counts at these rates."""
        scale = np.sqrt(signal(differing, agreeing))
        seen = scale * self.with_value
        explained = float(
            seen @ np.linalg.solve(np.eye(scale.size) + scale[:, None] * self.bits * scale, seen)
        )
        return 10 * math.log10(self.peak**2 / max(self.variance - explained, 1e-9))

    def shared(self, differing: ArrayLike, agreeing: float) -> float:
        """Bits of information a pixel about the factor that it shares with its neighbours."""
        strength = signal(differing, agreeing)
        own = np.maximum(np.diag(self.bits) - self.loadings**2, 0)
        return 0.5 * math.log2(
            1 + float((strength * self.loadings**2 / (1 + strength * own)).sum())
        )
