"""What a sketch reveals about its image: the posterior of Equations 5 to 7 and the epsilon implied.

Equation 5 is a logistic function of n_1 - n_0 alone: the log odds of a one are (n_1 - n_0)
ln(P_same / P_diff). So a table over all differences holds every posterior of a bit, and Equation
7's sum over the 2^L values of a pixel is, by linearity of the mean, the sum over its L bits of
2^(L-j) Pr(bit j = 1).

No epsilon is *claimed* for sketches. But the two counts of a bit have a known distribution (for
long strings the wrong observations are Poisson with mean lambda_d, the true ones with mean
lambda_s), so the epsilon that a sketch implies can be computed before it is made: the privacy loss
of a bit is Skellam(lambda_d, lambda_s) times ln(lambda_d / lambda_s), and the losses of the bits of
a pixel add.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.signal import fftconvolve
from scipy.special import expit, xlogy
from scipy.stats import skellam

from blindsight.core import checks
from blindsight.core.arrays import Array, Floats, Floats32, Integers, Ints
from blindsight.core.checks import njit
from blindsight.core.errors import InvalidData
from blindsight.sketching.parameters import FlipParameters, QKParameters, SketchParameters

__all__ = [
    "BitLaw",
    "Gains",
    "Leak",
    "bit_law",
    "bit_moments",
    "bit_posteriors",
    "leak_of",
    "log_odds",
    "pixel_epsilon",
    "pixel_epsilon_rdp",
    "pixel_means",
    "posterior_of_one",
    "posterior_table",
]

SMALL = 1 << 17  # counts that one thread deals with at once


def log_odds(p_diff: ArrayLike) -> Floats:
    """ln(P_same / P_diff) a bit: what one more sighting is worth; infinite where P_diff is 0."""
    wrong = np.asarray(p_diff, np.float64)
    with np.errstate(divide="ignore"):
        return np.log1p(-wrong) - np.log(wrong)


def posterior_of_one(n0: ArrayLike, n1: ArrayLike, p_diff: float) -> Floats:
    """Equation 5 as printed, Pr(bit = 1), in logarithms; 0 log 0 = 0 guards bits that never show a
    wrong value.
    """
    n0, n1 = np.asarray(n0, np.float64), np.asarray(n1, np.float64)
    one = xlogy(n1, 1 - p_diff) + xlogy(n0, p_diff)
    zero = xlogy(n0, 1 - p_diff) + xlogy(n1, p_diff)
    if p_diff in (0.0, 1.0):  # sightings of both values cannot be, and none at all tell nothing
        sure = np.sign(n1 - n0) * (1 if p_diff == 0 else -1)
        return np.asarray(0.5 + 0.5 * sure)
    return np.asarray(expit(one - zero))


def posterior_table(p_diff: ArrayLike, top: int) -> Floats32:
    """Pr(bit j = 1) for every difference n_1 - n_0 from -top to top: table (L, 2 top + 1)."""
    differences = np.arange(-top, top + 1)
    rows = [
        posterior_of_one(np.maximum(-differences, 0), np.maximum(differences, 0), p)
        for p in np.asarray(p_diff)
    ]
    return np.stack(rows).astype(np.float32)


@njit(nogil=True, cache=True)
def _posteriors(counts: Integers, table: Integers, out: Integers) -> None:
    n, depth, _, M = counts.shape
    top = table.shape[1] // 2
    for s in range(n):
        for j in range(depth):
            row, zeros, ones, here = table[j], counts[s, j, 0], counts[s, j, 1], out[s, j]
            for a in range(M):
                here[a] = row[np.int32(ones[a]) - np.int32(zeros[a]) + top]


@njit(nogil=True, cache=True)
def _means(counts: Integers, table: Integers, out: Integers) -> None:
    """Equation 7 by linearity; `table` already carries the weights 2^(L-j)."""
    n, depth, _, M = counts.shape
    top = table.shape[1] // 2
    for s in range(n):
        here = out[s]
        here[:] = 0
        for j in range(depth):
            row, zeros, ones = table[j], counts[s, j, 0], counts[s, j, 1]
            for a in range(M):
                here[a] += row[np.int32(ones[a]) - np.int32(zeros[a]) + top]


def _flat(counts: Array, depth: int) -> Array:
    """Counts (..., L, 2, h, w) or (..., L, 2, M) as (strings, L, 2, M)."""
    if counts.ndim == 6 and counts.shape[2:4] == (depth, 2):
        return counts.reshape(-1, depth, 2, counts.shape[4] * counts.shape[5])
    if counts.ndim == 4 and counts.shape[1:3] == (depth, 2):
        return counts
    raise InvalidData(
        f"a sketch at depth {depth} must have shape (n, channels, {depth}, 2, height, width), got "
        f"{counts.shape}."
    )


def _each(
    kernel: Callable[..., None],
    counts: Array,
    table: Array,
    out: Array,
    n_jobs: int | None,
) -> None:
    if counts.size <= SMALL or n_jobs == 1:
        kernel(counts, table, out)  # threads cost more than they bring
        return
    step = max(1, min(256, -(-len(counts) // 4)))
    with ThreadPoolExecutor(n_jobs or os.cpu_count() or 1) as pool:
        starts = range(0, len(counts), step)
        list(pool.map(lambda a: kernel(counts[a : a + step], table, out[a : a + step]), starts))


def _table_for(counts: Array, parameters: SketchParameters) -> Floats32:
    """A table that no stored count can fall outside of, hostile counts included."""
    if counts.dtype not in (np.dtype(np.uint8), np.dtype(np.uint16)):
        raise InvalidData(f"a sketch's counts must be uint8 or uint16, got {counts.dtype}.")
    return _kept_table(tuple(parameters.p_diff), int(np.iinfo(counts.dtype).max))


@functools.lru_cache(maxsize=16)
def _kept_table(p_diff: tuple[float, ...], top: int) -> Floats32:
    """The table, made once per setting: a single sketch must not pay for it."""
    table = posterior_table(p_diff, top)
    table.flags.writeable = False
    return table


def bit_posteriors(
    counts: Array, parameters: SketchParameters, *, n_jobs: int | None = None
) -> Floats32:
    """Pr(bit = 1) for every bit: (n, channels, L, h, w) from counts (n, channels, L, 2, h, w), or
    (n, L, M).
    """
    flat = _flat(counts, parameters.depth)
    out = np.empty((len(flat), parameters.depth, flat.shape[3]), np.float32)
    _each(_posteriors, flat, _table_for(counts, parameters), out, n_jobs)
    return out.reshape(*counts.shape[:-3], *counts.shape[-2:]) if counts.ndim == 6 else out


def pixel_means(
    counts: Array, parameters: SketchParameters, *, n_jobs: int | None = None
) -> Floats32:
    """The posterior mean of every pixel (Equation 7's inner part): (n, channels, h, w), in 0..2^L -
    1.
    """
    flat = _flat(counts, parameters.depth)
    weights = 2.0 ** np.arange(parameters.depth - 1, -1, -1)
    table = (_table_for(counts, parameters) * weights[:, None]).astype(np.float32)
    out = np.empty((len(flat), flat.shape[3]), np.float32)
    _each(_means, flat, table, out, n_jobs)
    return out.reshape(*counts.shape[:2], *counts.shape[-2:]) if counts.ndim == 6 else out


ORDERS = np.concatenate(
    [1 + np.geomspace(1e-3, 1, 60), np.linspace(2, 64, 125), np.geomspace(65, 4096, 60)]
)
GRID = (
    0.01  # of the discretised privacy loss; losses are rounded up, so epsilon is never understated
)
DELTA = 1e-5
PARTS = 16  # of a picture's side: what people still recognise in a thumbnail of that many pixels
LEADING = (
    3  # bits whose lean is always removed: neighbours agree on them, so their noise averages out
)
# noise of a bit, in units of its own square, beyond which no neighbourhood averages it out
HOPELESS = 400.0


@dataclass(frozen=True)
class BitLaw:
    """The law of n_true - n_wrong of one bit: differences, their probabilities, and the posterior
    of the truth.
    """

    differences: Ints
    probabilities: Floats
    truth: Floats

    @property
    def guess_bits(self) -> float:
        """E[-log2 of the larger posterior]: this bit's part of G (Equation 11)."""
        return float(-(self.probabilities * np.log2(np.maximum(self.truth, 1 - self.truth))).sum())

    @property
    def information(self) -> float:
        """Bits of information that the counts carry about the bit (of a fair bit, at most 1)."""
        p = np.clip(self.truth, 1e-300, 1)
        return float((self.probabilities * (1 + np.log2(p))).sum())

    @property
    def mean(self) -> float:
        """E[posterior of the true value]."""
        return float((self.probabilities * self.truth).sum())

    @property
    def variance(self) -> float:
        """Variance of the posterior."""
        return float((self.probabilities * self.truth**2).sum() - self.mean**2)

    @property
    def right(self) -> float:
        """How often the likelier value is the true one; ties by a coin."""
        return float((self.probabilities * ((self.truth > 0.5) + 0.5 * (self.truth == 0.5))).sum())


@functools.lru_cache(maxsize=4096)
def bit_law(differing: float, agreeing: float) -> BitLaw:
    """The law of a bit with these two rates (lambda_d, lambda_s)."""
    spread = 12 * math.sqrt(differing + agreeing + 1) + 12
    differences = np.arange(
        math.floor(agreeing - differing - spread), math.ceil(agreeing - differing + spread) + 1
    )
    if differing == 0 or agreeing == 0:  # Skellam degenerates to a Poisson
        from scipy.stats import poisson

        law = (
            poisson.pmf(differences, agreeing)
            if differing == 0
            else poisson.pmf(-differences, differing)
        )
    else:
        law = skellam.pmf(differences, agreeing, differing)
    law = np.nan_to_num(law)
    total = differing + agreeing
    p_diff = differing / total if total else 0.5
    truth = posterior_of_one(np.maximum(-differences, 0), np.maximum(differences, 0), p_diff)
    return BitLaw(differences, law / law.sum(), truth)


def _bit_losses(differing: float, agreeing: float) -> tuple[Array, float]:
    """The privacy loss of a bit on the grid, rounded up: (probabilities with odd length, centred;
    mass at inf).
    """
    if differing == agreeing:
        return np.ones(1), 0.0
    if min(differing, agreeing) == 0:  # any sighting tells the truth; none at all tells nothing
        nothing = math.exp(-(differing + agreeing))
        return np.array([nothing]), 1 - nothing
    law = bit_law(differing, agreeing)
    losses = law.differences * math.log(agreeing / differing)
    cells = np.ceil(losses / GRID - 1e-9).astype(np.int64)
    half = int(np.abs(cells).max())
    return np.bincount(cells + half, weights=law.probabilities, minlength=2 * half + 1), 0.0


def _epsilon(losses: Array, infinite: float, delta: float) -> float:
    """The smallest epsilon with E[(1 - e^(epsilon - loss))+] + infinite <= delta."""
    if infinite > delta:
        return math.inf
    half = losses.size // 2
    values = np.arange(-half, half + 1) * GRID
    values, law = values[losses > 0], losses[losses > 0]

    def excess(epsilon: float) -> float:
        over = values > epsilon
        return infinite + float((law[over] * -np.expm1(epsilon - values[over])).sum())

    low, high = 0.0, max(float(values.max()), 0.0)
    if excess(low) <= delta:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > delta else (low, middle)
    return high


def bit_epsilon(differing: float, agreeing: float, *, delta: float = DELTA) -> float:
    """The local epsilon at `delta` that one bit's counts imply."""
    return _epsilon(*_bit_losses(differing, agreeing), delta)


def pixel_epsilon(parameters: Any, *, delta: float = DELTA) -> float:
    """The local epsilon of a whole pixel: all L bits may differ, and their losses are convolved."""
    total, infinite = np.ones(1), 0.0
    for differing in parameters.differing_rate:
        losses, never = _bit_losses(float(differing), parameters.agreeing_rate)
        total = np.maximum(fftconvolve(total, losses), 0) if losses.size > 1 else total * losses[0]
        infinite = 1 - (1 - infinite) * (1 - never)
    # What the transform leaves behind is of order 1e-16 per cell; it stands for nothing.
    return _epsilon(np.where(total > 1e-15, total, 0), infinite, delta)


def pixel_epsilon_rdp(rates: ArrayLike, agreeing: float, *, delta: float = DELTA) -> float:
    """The same by Renyi orders (the bits' divergences add), never below `pixel_epsilon`."""
    differing = np.asarray(rates, np.float64)
    if agreeing == 0 or (differing == 0).any():
        return math.inf
    rho = differing / agreeing
    a = ORDERS[:, None]
    with np.errstate(over="ignore"):
        divergence = (differing * (rho ** (a - 1) - 1) + agreeing * (rho ** (1 - a) - 1)) / (a - 1)
        orders = divergence.sum(axis=1)
        converted = (
            orders + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
        )
    return float(max(0.0, np.nanmin(converted)))


@dataclass(frozen=True, kw_only=True)
class Leak:
    """What a sketch with these parameters reveals, whatever the image.

    epsilon_bit: local epsilon of each bit; epsilon_pixel: of the whole pixel, tight;
    epsilon_pixel_rdp: by Renyi orders; guess_bits: expected -log2 of the chance to guess one pixel
    (times the pixels: the paper's G); bits_right: how often the likelier value of each bit is the
    true one; noise: of a pixel's unbiased value, as a share of the largest value.
    """

    delta: float
    epsilon_bit: tuple[float, ...]
    epsilon_pixel: float
    epsilon_pixel_rdp: float
    guess_bits: float
    bits_right: tuple[float, ...]
    information: float
    noise: float

    def G(self, n_attributes: int) -> float:
        """Equation 11's G = -log2 p_bf for a string of this many pixels, in expectation."""
        return self.guess_bits * n_attributes

    @property
    def pixels_right(self) -> float:
        """The expected share of pixels recovered exactly by the likelier bits."""
        return float(np.prod(self.bits_right))

    @property
    def verdict(self) -> str:
        """One plain sentence about a pixel taken alone; `verdict_at` says what an image's size
        adds.
        """
        first, second = self.bits_right[0], self.bits_right[min(1, len(self.bits_right) - 1)]
        if self.pixels_right > 0.5:
            return "The image is handed over: most pixels are recovered exactly."
        if first > 0.97 and second > 0.97:
            return (
                "The image is recognisable to anyone: its leading bits are recovered almost "
                "without error."
            )
        if first > 0.9:
            return "The image is recognisable: its leading bit is recovered; finer detail is noisy."
        if first > 0.75:
            return (
                "A noisy picture is recovered at once; averaging neighbours, or knowing similar "
                "images, clears it."
            )
        return (
            "A pixel alone tells little, a picture much: averaging neighbours brings shapes back, "
            "the more the larger "
            "the image, and an attacker who knows similar images sees more still."
        )

    def verdict_at(self, image_shape: tuple[int, ...]) -> str:
        """The verdict for images of (channels, height, width): neighbours agree, and their noise
        averages out.

        A part a sixteenth as wide as the picture holds so many pixels that its mean has `noise`
        divided by its side; where that is small, the part stands out, whatever a single pixel
        tells.
        """
        part = max(1, min(image_shape[-2:]) // PARTS)
        if self.pixels_right > 0.5 or (self.bits_right[0] > 0.9 and part < 2):
            return self.verdict
        clear = -20 * math.log10(max(self.noise / part, 1e-9))
        size = f"{image_shape[-1]} x {image_shape[-2]} pixels"
        if clear > 25:
            return (
                f"At {size} the picture comes back by averaging neighbours: parts of {part} x "
                f"{part} pixels are seen "
                f"with {clear:.0f} dB, without knowing any similar image."
            )
        if clear > 15:
            return (
                f"At {size} coarse shapes come back by averaging neighbours (parts of {part} x "
                f"{part} pixels with "
                f"{clear:.0f} dB); an attacker who knows similar images sees more."
            )
        return self.verdict


def bit_moments(parameters: SketchParameters) -> tuple[Floats, Floats]:
    """Mean and variance, a bit, of the posterior that an attacker gives to the bit's true value."""
    if isinstance(parameters, FlipParameters):
        wrong = np.asarray(parameters.beta)
        mean = (1 - wrong) ** 2 + wrong**2
        return mean, (1 - wrong) ** 3 + wrong**3 - mean**2
    laws = [bit_law(float(rate), parameters.agreeing_rate) for rate in parameters.differing_rate]
    return np.array([law.mean for law in laws]), np.array([law.variance for law in laws])


@dataclass(frozen=True)
class Gains:
    """What each bit's centred posterior is multiplied by to give a pixel's value, and the noise
    that is left.

    A posterior leans towards one half by a factor that does not depend on the image: given the true
    bit, its mean is 1/2 +- (m_j - 1/2), with m_j the expected posterior of the truth. Dividing by 2
    m_j - 1 takes the lean away, and leaves noise whose variance is the same for either value of the
    bit and independent from pixel to pixel. So a sketch is the image plus white noise of a size
    that the public parameters tell.
    """

    factors: Floats
    noise: float

    @classmethod
    def of(cls, parameters: SketchParameters) -> Gains:
        """The lean is removed in full from leading bits; trailing ones, which look like noise
        anyway, are shrunk.
        """
        mean, variance = bit_moments(parameters)
        weights = 2.0 ** np.arange(parameters.depth - 1, -1, -1)
        lean = np.maximum(2 * mean - 1, 1e-4)
        # A bit that tells nothing always has the posterior one half: no variance, and no way to
        # remove its lean.
        noise = np.where(2 * mean - 1 > 1e-4, variance / lean**2, np.inf)
        kept = 0.25 / (0.25 + noise)  # Wiener's gain for a fair bit
        kept[:LEADING] = 1.0
        kept[noise > HOPELESS] = 0.0
        left = np.where(kept > 0, kept**2 * np.minimum(noise, HOPELESS), 0) + (1 - kept) ** 2 / 4
        return cls(weights * kept / lean, float(np.sqrt((weights**2 * left).sum())))


def leak_of(parameters: QKParameters, *, delta: float = DELTA) -> Leak:
    """The leak of sketches made with these parameters."""
    delta = checks.probability("delta", delta, below_one=True)
    agreeing = parameters.agreeing_rate
    rates = [float(rate) for rate in parameters.differing_rate]
    laws = [bit_law(rate, agreeing) for rate in rates]
    return Leak(
        delta=delta,
        epsilon_bit=tuple(bit_epsilon(rate, agreeing, delta=delta) for rate in rates),
        epsilon_pixel=pixel_epsilon(parameters, delta=delta),
        epsilon_pixel_rdp=pixel_epsilon_rdp(rates, agreeing, delta=delta),
        guess_bits=sum(law.guess_bits for law in laws),
        bits_right=tuple(law.right for law in laws),
        information=sum(law.information for law in laws),
        noise=Gains.of(parameters).noise / (2.0**parameters.depth - 1),
    )
