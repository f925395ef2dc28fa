"""Recovery of images from sketches without other images: smoothing, denoising, second reading.

Smoothing is a Gaussian filter whose width is chosen without the original, by Stein's unbiased
estimate of the risk. For y = x + white noise of deviation s and a linear filter S, the mean of
(y - Sy)^2 + 2 s^2 S_0 - s^2 equals on average the squared error of the filter against x, where S_0
is the filter's weight on the pixel itself. It needs no original, so an attacker tries all widths
and uses the best.

Denoising thresholds the cosine transforms of overlapping blocks. In a block of a photo few
coefficients are large, while noise is in all of them; the large ones are used, and the result
gives better weights (Wiener's gain, twice). The second reading then takes the denoised value and
its estimated error as the prior of a pixel and the counts of the sketch, bit by bit, as the
likelihood over all 2^L values. Where the noise is weak, this corrects leading bits that were
observed wrong and leaves the trailing bits as the sketch has them.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from scipy.ndimage import gaussian_filter

from blindsight.core.arrays import Floats32
from blindsight.sketching.leak import Gains
from blindsight.sketching.parameters import SketchParameters, to_bits
from blindsight.sketching.sketches import SketchSet

__all__ = [
    "WIDTHS",
    "SketchReading",
    "denoise",
    "moments",
    "read",
    "read_again",
    "smooth",
    "stein_risk",
    "unbiased",
]

WIDTHS = (
    0.0,
    0.4,
    0.5,
    0.6,
    0.8,
    1.0,
    1.3,
    1.6,
    2.0,
    2.5,
    3.0,
    4.0,
    5.0,
    7.0,
    10.0,
    14.0,
    math.inf,
)
TRUNCATE = 4.0


def _filtered(values: Floats32, width: float) -> Floats32:
    if width == 0:
        return values
    if math.isinf(width):
        return np.broadcast_to(values.mean(axis=(1, 2), keepdims=True), values.shape)
    return np.asarray(gaussian_filter(values, (0, width, width), truncate=TRUNCATE))


def _own_weight(width: float, pixels: int) -> float:
    """The filter's weight on the pixel itself: its value at the centre."""
    if width == 0:
        return 1.0
    if math.isinf(width):
        return 1.0 / pixels
    reach = np.arange(-int(TRUNCATE * width + 0.5), int(TRUNCATE * width + 0.5) + 1)
    return float(1 / np.exp(-0.5 * (reach / width) ** 2).sum() ** 2)


def stein_risk(values: Floats32, filtered: Floats32, noise: float, own: float) -> float:
    """Stein's estimate of the mean squared error of a linear filter's output against the unknown
    truth.
    """
    return float(np.mean((values - filtered) ** 2)) + noise**2 * (2 * own - 1)


def smooth(values: Floats32, noise: float) -> tuple[Floats32, float]:
    """Values (channels, h, w) with white noise, filtered at the width of least estimated risk; that
    width.
    """
    pixels = values.shape[1] * values.shape[2]
    best = noise**2, values, 0.0  # no filter at all
    for width in WIDTHS[1:]:
        if not math.isinf(width) and width > max(1.0, min(values.shape[1:]) / 4):
            continue
        filtered = _filtered(values, width)
        risk = stein_risk(values, filtered, noise, _own_weight(width, pixels))
        if risk < best[0]:
            best = risk, filtered, width
    return np.asarray(best[1], np.float32), best[2]


BLOCK = 16
KEEP = 2.7  # coefficients above so many deviations of the noise are kept in the first round
# the estimated error is low: it counts the noise that the gains let through, not the detail they
# took
WIDEN = 1.2
MOST_BITS = 10  # beyond it a table over all values of a pixel is too large
CHUNK = 1 << 22  # entries of that table at a time


def unbiased(planes: Floats32, parameters: SketchParameters) -> tuple[Floats32, float]:
    """Values (..., h, w) around the pixels, unclipped, from posteriors (..., L, h, w); the
    deviation of their noise.
    """
    gains = Gains.of(parameters)
    centred, factors = planes - np.float32(0.5), gains.factors.astype(np.float32)
    values = np.einsum("...lhw,l->...hw", centred, factors, optimize=True)
    return values + np.float32((2.0**parameters.depth - 1) / 2), gains.noise


@functools.cache
def _cosines(n: int) -> Floats32:
    """The orthonormal cosine transform of n values as a matrix; of three channels: brightness and
    two colours.
    """
    k = np.arange(n)[:, None]
    rows = np.sqrt(2 / n) * np.cos(np.pi * (2 * np.arange(n) + 1) * k / (2 * n))
    rows[0] /= np.sqrt(2)
    return np.asarray(rows.astype(np.float32))


def _pass(
    values: Floats32, noise: float, side: int, pilot: Floats32 | None
) -> tuple[Floats32, Floats32]:
    """One round over blocks at every fourth offset: the mean of their estimates, and its estimated
    squared error.
    """
    channels, height, width = values.shape
    rows, columns = -(-height // side) * side + side, -(-width // side) * side + side
    rim = ((0, 0), (side, rows - height), (side, columns - width))
    basis = _cosines(side)

    def grid(image: Floats32, top: int, left: int) -> Floats32:
        part = image[:, top : top + rows, left : left + columns]
        blocks = part.reshape(channels, rows // side, side, columns // side, side).transpose(
            0, 1, 3, 2, 4
        )
        return np.asarray(basis @ blocks @ basis.T, np.float32)

    def laid(blocks: Floats32) -> Floats32:
        full = np.broadcast_to(blocks, (channels, rows // side, columns // side, side, side))
        return full.transpose(0, 1, 3, 2, 4).reshape(channels, rows, columns)

    noisy = np.pad(values, rim, mode="symmetric")
    known = None if pilot is None else np.pad(pilot, rim, mode="symmetric")
    total, weight, error = (np.zeros_like(noisy) for _ in range(3))
    for top in range(0, side, max(1, side // 4)):
        for left in range(0, side, max(1, side // 4)):
            coefficients = grid(noisy, top, left)
            if known is None:
                gain = (np.abs(coefficients) > KEEP * noise).astype(np.float32)
            else:
                power = grid(known, top, left) ** 2
                gain = power / (power + np.float32(noise**2))
            gain[..., 0, 0] = 1
            # Blocks with few coefficients hold little noise and count more.
            share = 1 / (gain**2).sum(axis=(-1, -2), keepdims=True)
            left_over = gain.mean(axis=(-1, -2), keepdims=True) * np.float32(noise**2)
            here = np.s_[:, top : top + rows, left : left + columns]
            total[here] += laid(basis.T @ (coefficients * gain) @ basis * share)
            weight[here] += laid(share)
            error[here] += laid(share * left_over)
    inner = np.s_[:, side : side + height, side : side + width]
    return total[inner] / weight[inner], error[inner] / weight[inner]


def denoise(values: Floats32, noise: float) -> tuple[Floats32, Floats32]:
    """Values (..., channels, h, w) with white noise, denoised, and the estimated deviation of what
    error is left.
    """
    *_, channels, height, width = values.shape
    side = BLOCK
    while side > min(height, width):
        side //= 2
    if side < 4 or noise < 1e-6:
        return values, np.full_like(values, noise)
    across = _cosines(channels)
    # Colours of a photo move together: brightness has most of the signal, and the noise stays
    # white.
    turned = np.einsum("ij,...jhw->...ihw", across, values, optimize=True).reshape(
        -1, height, width
    )
    pilot, error = _pass(turned, noise, side, None)
    for _ in range(2):
        pilot, error = _pass(turned, noise, side, pilot)
    pilot, error = pilot.reshape(values.shape), error.reshape(values.shape)
    clean = np.einsum("ij,...ihw->...jhw", across, pilot, optimize=True)
    return clean, np.sqrt(np.einsum("ij,...ihw->...jhw", across**2, error, optimize=True))


def read_again(
    posteriors: Floats32, prior: Floats32, deviation: Floats32
) -> tuple[Floats32, Floats32]:
    """Each pixel's mean and deviation, shaped as `prior`, given its bits' posteriors and a normal
    prior.

    Posteriors are (..., L, h, w) where the prior is (..., h, w).
    """
    depth = posteriors.shape[-3]
    if depth > MOST_BITS:
        return prior, deviation
    sure = np.clip(np.moveaxis(posteriors, -3, -1).reshape(-1, depth), 1e-7, 1 - 1e-7)
    odds = np.log(sure) - np.log1p(-sure)
    levels = np.arange(2**depth, dtype=np.float32)
    table = to_bits(levels.astype(np.uint16), depth).T.astype(np.float32)
    centre = prior.ravel()[:, None]
    sharpness = (0.5 / np.maximum(WIDEN * deviation, 0.5) ** 2).ravel()[:, None]
    step = max(1, CHUNK // len(levels))
    means, spreads = np.empty(len(odds), np.float32), np.empty(len(odds), np.float32)
    for start in range(0, len(odds), step):
        rows = slice(start, start + step)
        weights = odds[rows] @ table - sharpness[rows] * (levels - centre[rows]) ** 2
        weights -= weights.max(axis=1, keepdims=True)
        np.exp(weights, out=weights)
        total, first, second = (
            weights @ np.stack([np.ones_like(levels), levels, levels**2], axis=1)
        ).T
        means[rows] = first / total
        spreads[rows] = np.sqrt(np.maximum(second / total - means[rows] ** 2, 0))
    return means.reshape(prior.shape), spreads.reshape(prior.shape)


@dataclass(frozen=True)
class SketchReading:
    """What an attacker makes of sketches without having seen another image; arrays (n, channels, h,
    w).
    """

    planes: Floats32  # (n, channels, L, h, w): posteriors of bits
    values: Floats32  # unbiased, with white noise
    noise: float
    clean: Floats32  # denoised
    again: Floats32  # read again
    doubt: Floats32  # the deviation of that


def read(sketches: SketchSet) -> SketchReading:
    """Both steps on every sketch of a set."""
    channels, height, width = sketches.image_shape
    planes = sketches.posteriors().reshape(
        len(sketches), channels, sketches.parameters.depth, height, width
    )
    values, noise = unbiased(planes, sketches.parameters)
    clean, deviation = denoise(values, noise)
    again, doubt = read_again(planes, clean, deviation)
    return SketchReading(planes, values, noise, clean, again, doubt)


def moments(planes: Floats32) -> tuple[Floats32, Floats32]:
    """Posterior mean and deviation of pixels in 0..1, bits taken for independent: all that the
    paper's attacker has.
    """
    depth = planes.shape[-3]
    weights = (2.0 ** np.arange(depth - 1, -1, -1) / (2.0**depth - 1)).astype(np.float32)
    mean = np.einsum("...lhw,l->...hw", planes, weights, optimize=True)
    return mean, np.sqrt(
        np.einsum("...lhw,l->...hw", planes * (1 - planes), weights**2, optimize=True)
    )
