"""Denoising: thresholded cosine transforms of overlapping blocks, then every pixel read again with that as its prior.

Two steps, neither of which has seen another image. First the block transform: in a block of a photo few coefficients
are large, noise is in all of them alike; keep the large ones, and use the result to weigh them better (Wiener's gain,
twice). Then the second reading: the denoised value and its estimated error are a prior for the pixel, and the sketch's
counts, bit by bit, its likelihood over all 2^L values. Where noise is weak this corrects the leading bits that were
seen wrong, and leaves the trailing ones as the sketch has them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from blindsight.sketching.bits import to_bits

__all__ = ["denoise", "read_again"]

BLOCK = 16
KEEP = 2.7  # coefficients above so many deviations of the noise are kept in the first round
WIDEN = 1.2  # the estimated error is low: it counts the noise that the gains let through, not the detail they took
MOST_BITS = 10  # beyond it a table over all values of a pixel is too large
CHUNK = 1 << 22  # entries of that table at a time


@functools.cache
def _cosines(n: int) -> NDArray[np.float32]:
    """The orthonormal cosine transform of n values as a matrix; of three channels: brightness and two colours."""
    k = np.arange(n)[:, None]
    rows = np.sqrt(2 / n) * np.cos(np.pi * (2 * np.arange(n) + 1) * k / (2 * n))
    rows[0] /= np.sqrt(2)
    return rows.astype(np.float32)


def _pass(
    values: NDArray[np.float32], noise: float, side: int, pilot: NDArray[np.float32] | None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """One round over blocks at every fourth offset: the mean of their estimates, and its estimated squared error."""
    channels, height, width = values.shape
    rows, columns = -(-height // side) * side + side, -(-width // side) * side + side
    rim = ((0, 0), (side, rows - height), (side, columns - width))
    basis = _cosines(side)

    def grid(image: NDArray[np.float32], top: int, left: int) -> NDArray[np.float32]:
        part = image[:, top : top + rows, left : left + columns]
        blocks = part.reshape(channels, rows // side, side, columns // side, side).transpose(0, 1, 3, 2, 4)
        return np.asarray(basis @ blocks @ basis.T, np.float32)

    def laid(blocks: NDArray[np.float32]) -> NDArray[np.float32]:
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


def denoise(values: NDArray[np.float32], noise: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Values (channels, h, w) with white noise, denoised, and the estimated deviation of what error is left."""
    side = BLOCK
    while side > min(values.shape[1:]):
        side //= 2
    if side < 4 or noise < 1e-6:
        return values, np.full_like(values, noise)
    across = _cosines(len(values))
    # Colours of a photo move together: brightness has most of the signal, and the noise stays white.
    turned = np.tensordot(across, values, 1)
    pilot, error = _pass(turned, noise, side, None)
    for _ in range(2):
        pilot, error = _pass(turned, noise, side, pilot)
    return np.tensordot(across.T, pilot, 1), np.sqrt(np.tensordot(across.T**2, error, 1))


def read_again(
    posteriors: NDArray[np.float32], prior: NDArray[np.float32], deviation: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Each pixel's mean (channels, h, w) given the posteriors of its bits (channels, L, h, w) and a normal prior."""
    channels, depth, height, width = posteriors.shape
    if depth > MOST_BITS:
        return prior
    sure = np.clip(posteriors, 1e-7, 1 - 1e-7).reshape(channels, depth, -1)
    odds = np.moveaxis(np.log(sure) - np.log1p(-sure), 1, -1).reshape(-1, depth)
    levels = np.arange(2**depth, dtype=np.float32)
    table = to_bits(levels.astype(np.uint16), depth).T.astype(np.float32)
    centre = prior.ravel()[:, None]
    sharpness = (0.5 / np.maximum(WIDEN * deviation, 0.5) ** 2).ravel()[:, None]
    return _each_chunk(
        lambda rows: odds[rows] @ table - sharpness[rows] * (levels - centre[rows]) ** 2, len(odds), levels
    ).reshape(channels, height, width)


def _each_chunk(
    likelihood: Callable[[slice], NDArray[np.float32]], n: int, levels: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The mean of the levels under exp(likelihood), a few rows at a time."""
    step = max(1, CHUNK // len(levels))
    means = np.empty(n, np.float32)
    for start in range(0, n, step):
        rows = slice(start, min(start + step, n))
        weights = likelihood(rows)
        weights -= weights.max(axis=1, keepdims=True)
        np.exp(weights, out=weights)
        means[rows] = weights @ levels / weights.sum(axis=1)
    return means
