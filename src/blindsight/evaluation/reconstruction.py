"""How much of an image an attacker recovered: PSNR, SSIM and the share of exactly recovered pixels.

Images are (n, h, w) or (n, h, w, channels), or one image (h, w). `psnr` and `ssim` return one value
per image. For colour images SSIM is the mean over the channels.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike
from scipy.ndimage import gaussian_filter

from blindsight.core import checks
from blindsight.core.arrays import Array, Floats
from blindsight.core.errors import InvalidData

__all__ = ["exact_pixels", "mean_psnr", "mean_ssim", "psnr", "ssim"]

SIGMA = 1.5  # of Wang et al.'s Gaussian window
TRUNCATE = 3.5  # an 11 x 11 window
_VALUES_PER_STRIP = 1 << 20


def _pair(truth: ArrayLike, guess: ArrayLike) -> tuple[Array, Array]:
    a, b = np.asarray(truth), np.asarray(guess)
    if a.shape != b.shape or a.ndim not in (2, 3, 4) or not a.size:
        raise InvalidData(
            f"truth and guess must be images of one shape, got {a.shape} and {b.shape}."
        )
    return (a[None], b[None]) if a.ndim == 2 else (a, b)


def _strips(a: Array, b: Array, rim: int = 0) -> Iterator[tuple[Floats, Floats]]:
    """Yield strips of a pair of images, each with `rim` more rows above and below, so that memory
    does not grow with the size of a photo.
    """
    height = len(a)
    step = max(1, _VALUES_PER_STRIP // max(1, a[0].size))
    for top in range(rim, height - rim, step):
        rows = slice(top - rim, min(top + step, height - rim) + rim)
        yield checks.finite_array("truth", a[rows]), checks.finite_array("guess", b[rows])


def psnr(truth: ArrayLike, guess: ArrayLike, *, peak: float = 255.0) -> Floats:
    """The peak signal-to-noise ratio of each image in dB; infinite where the guess is exact.

    Parameters:
        truth: the true images.
        guess: what the attacker recovered, of the same shape.
        peak: the largest possible pixel value.

    Raises:
        InvalidData: the shapes differ, or are not those of images.

    Examples:
        >>> psnr([[0.0, 255.0]], [[0.0, 0.0]]).round(2)
        array([3.01])
    """
    peak = checks.positive("peak", peak)
    a, b = _pair(truth, guess)
    squared = np.array(
        [
            sum(float(((x - y) ** 2).sum()) for x, y in _strips(*pair))
            for pair in zip(a, b, strict=True)
        ]
    )
    with np.errstate(divide="ignore"):
        return np.asarray(10 * np.log10(peak**2 * a[0].size / squared))


def ssim(truth: ArrayLike, guess: ArrayLike, *, peak: float = 255.0) -> Floats:
    """The structural similarity of each image, with a Gaussian window of sigma 1.5.

    As Wang et al. (2004) define it, with population covariances, c1 = (0.01 peak)^2 and
    c2 = (0.03 peak)^2; the rim of half a window is left out. Parameters are those of `psnr`.

    Raises:
        InvalidData: the shapes differ, or an image is smaller than the window (11 pixels).
    """
    peak = checks.positive("peak", peak)
    a, b = _pair(truth, guess)
    radius = int(TRUNCATE * SIGMA + 0.5)
    if min(a.shape[1:3]) <= 2 * radius:
        raise InvalidData(
            f"images must be larger than the window, {2 * radius + 1} pixels a side, got "
            f"{a.shape[1]} x {a.shape[2]}."
        )
    inside = a[0, radius:-radius, radius:-radius].size
    return (
        np.array(
            [
                sum(
                    _similarity(x, y, peak)[radius:-radius, radius:-radius].sum()
                    for x, y in _strips(*pair, rim=radius)
                )
                for pair in zip(a, b, strict=True)
            ]
        )
        / inside
    )


def _similarity(a: Floats, b: Floats, peak: float) -> Floats:
    """The similarity at every pixel of one pair of images (h, w, ...)."""
    sigma = (SIGMA, SIGMA, *(0,) * (a.ndim - 2))

    def smooth(values: Array) -> Array:
        return np.asarray(gaussian_filter(values, sigma, truncate=TRUNCATE))

    mean_a, mean_b = smooth(a), smooth(b)
    var_a, var_b = smooth(a * a) - mean_a**2, smooth(b * b) - mean_b**2
    covariance = smooth(a * b) - mean_a * mean_b
    c1, c2 = (0.01 * peak) ** 2, (0.03 * peak) ** 2
    return np.asarray(
        ((2 * mean_a * mean_b + c1) * (2 * covariance + c2))
        / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))
    )


def exact_pixels(truth: ArrayLike, guess: ArrayLike) -> float:
    """The share of pixels whose rounded guess equals the true value."""
    a, b = _pair(truth, guess)
    equal = sum(
        int((np.rint(y) == x).sum()) for pair in zip(a, b, strict=True) for x, y in _strips(*pair)
    )
    return equal / a.size


def mean_psnr(truth: ArrayLike, guess: ArrayLike, *, peak: float = 255.0) -> float:
    """The mean PSNR over images; an image that was recovered exactly counts as 100 dB."""
    return float(np.minimum(psnr(truth, guess, peak=peak), 100.0).mean())


def mean_ssim(truth: ArrayLike, guess: ArrayLike, *, peak: float = 255.0) -> float:
    """The mean SSIM over images."""
    return float(ssim(truth, guess, peak=peak).mean())
