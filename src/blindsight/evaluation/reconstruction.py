"""How much of an image an attacker got back: PSNR, SSIM and the share of pixels exactly right.

Images are (n, h, w) or (n, h, w, channels), or one image (h, w); every measure is computed image by image and
`psnr` and `ssim` return one value per image. For colour images SSIM is the mean over the channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.ndimage import gaussian_filter

from blindsight.core import checks
from blindsight.core.errors import InvalidData

__all__ = ["exact_pixels", "mean_psnr", "mean_ssim", "psnr", "ssim"]

SIGMA = 1.5  # of Wang et al.'s Gaussian window
TRUNCATE = 3.5  # an 11 x 11 window


def _pair(truth: ArrayLike, guess: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    a, b = checks.finite_array("truth", truth), checks.finite_array("guess", guess)
    if a.shape != b.shape or a.ndim not in (2, 3, 4) or not a.size:
        raise InvalidData(f"truth and guess must be images of one shape, got {a.shape} and {b.shape}.")
    return (a[None], b[None]) if a.ndim == 2 else (a, b)


def psnr(truth: ArrayLike, guess: ArrayLike, *, peak: float = 255.0) -> NDArray[np.float64]:
    """Peak signal-to-noise ratio in dB, an image (Equations 9 and 10); infinite where the guess is the image."""
    peak = checks.positive("peak", peak)
    a, b = _pair(truth, guess)
    mse = ((a - b) ** 2).mean(axis=tuple(range(1, a.ndim)))
    with np.errstate(divide="ignore"):
        return np.asarray(10 * np.log10(peak**2 / mse))


def ssim(truth: ArrayLike, guess: ArrayLike, *, peak: float = 255.0) -> NDArray[np.float64]:
    """Structural similarity an image (Equation 8) with a Gaussian window of sigma 1.5, as Wang et al. define it.

    Population covariances, c1 = (0.01 peak)^2, c2 = (0.03 peak)^2, the rim of half a window left out.
    """
    peak = checks.positive("peak", peak)
    a, b = _pair(truth, guess)
    radius = int(TRUNCATE * SIGMA + 0.5)
    if min(a.shape[1:3]) <= 2 * radius:
        raise InvalidData(
            f"images must be larger than the window, {2 * radius + 1} pixels a side, got {a.shape[1]} x {a.shape[2]}."
        )
    sigma = (0, SIGMA, SIGMA, *(0,) * (a.ndim - 3))

    def smooth(values: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(gaussian_filter(values, sigma, truncate=TRUNCATE))

    mean_a, mean_b = smooth(a), smooth(b)
    var_a, var_b = smooth(a * a) - mean_a**2, smooth(b * b) - mean_b**2
    covariance = smooth(a * b) - mean_a * mean_b
    c1, c2 = (0.01 * peak) ** 2, (0.03 * peak) ** 2
    similarity = ((2 * mean_a * mean_b + c1) * (2 * covariance + c2)) / (
        (mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2)
    )
    inner = similarity[:, radius:-radius, radius:-radius]
    return np.asarray(inner.mean(axis=tuple(range(1, inner.ndim))))


def exact_pixels(truth: ArrayLike, guess: ArrayLike) -> float:
    """The share of pixels whose rounded guess is the true value."""
    a, b = _pair(truth, guess)
    return float((np.rint(b) == a).mean())


def mean_psnr(truth: ArrayLike, guess: ArrayLike, *, peak: float = 255.0) -> float:
    """The mean over images of their PSNR, as the paper's Table 3; images fully recovered count as 100 dB."""
    return float(np.minimum(psnr(truth, guess, peak=peak), 100.0).mean())


def mean_ssim(truth: ArrayLike, guess: ArrayLike, *, peak: float = 255.0) -> float:
    """The mean over images of their SSIM."""
    return float(ssim(truth, guess, peak=peak).mean())
