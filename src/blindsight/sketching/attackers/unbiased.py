"""Pixels as unbiased values with noise of known size: what every denoiser wants to be given.

A posterior leans towards one half by a factor that does not depend on the image: given the true bit, its mean is
1/2 +- (m_j - 1/2), with m_j the expected posterior of the truth. Dividing by 2 m_j - 1 takes the lean away, and leaves
noise whose variance is the same for either value of the bit and independent from pixel to pixel. So a sketch is the
image plus white noise of a size that the public parameters tell.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blindsight.sketching.flips import FlipParameters, Law
from blindsight.sketching.leak import bit_law
from blindsight.sketching.sketches import SketchSet

__all__ = ["Gains", "bit_moments", "unbiased"]

LEADING = 3  # bits whose lean is always removed: neighbours agree on them, so their noise averages out
HOPELESS = 400.0  # noise of a bit, in units of its own square, beyond which no neighbourhood averages it out


def bit_moments(parameters: Law) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and variance, a bit, of the posterior that an attacker gives to the bit's true value."""
    if isinstance(parameters, FlipParameters):
        wrong = np.asarray(parameters.beta)
        mean = (1 - wrong) ** 2 + wrong**2
        return mean, (1 - wrong) ** 3 + wrong**3 - mean**2
    laws = [bit_law(float(rate), parameters.agreeing_rate) for rate in parameters.differing_rate]
    return np.array([law.mean for law in laws]), np.array([law.variance for law in laws])


@dataclass(frozen=True)
class Gains:
    """What each bit's centred posterior is multiplied by to give a pixel's value, and the noise that is left."""

    factors: NDArray[np.float64]
    noise: float

    @classmethod
    def of(cls, parameters: Law) -> Gains:
        """The lean is removed in full from leading bits; trailing ones, which look like noise anyway, are shrunk."""
        mean, variance = bit_moments(parameters)
        weights = 2.0 ** np.arange(parameters.depth - 1, -1, -1)
        lean = np.maximum(2 * mean - 1, 1e-4)
        # A bit that tells nothing always has the posterior one half: no variance, and no way to remove its lean.
        noise = np.where(2 * mean - 1 > 1e-4, variance / lean**2, np.inf)
        kept = 0.25 / (0.25 + noise)  # Wiener's gain for a fair bit
        kept[:LEADING] = 1.0
        kept[noise > HOPELESS] = 0.0
        left = np.where(kept > 0, kept**2 * np.minimum(noise, HOPELESS), 0) + (1 - kept) ** 2 / 4
        return cls(weights * kept / lean, float(np.sqrt((weights**2 * left).sum())))


def unbiased(sketches: SketchSet) -> tuple[NDArray[np.float32], float]:
    """Values (n, channels, h, w) around the pixels, unclipped, and the standard deviation of their noise."""
    gains = Gains.of(sketches.parameters)
    (channels, height, width), depth = sketches.image_shape, sketches.parameters.depth
    planes = sketches.posteriors().reshape(len(sketches), channels, depth, height, width)
    values = np.einsum("nclhw,l->nchw", planes - np.float32(0.5), gains.factors.astype(np.float32), optimize=True)
    return values + np.float32((2.0**depth - 1) / 2), gains.noise
