"""What a sketch reveals about its image: the posterior (Equations 5 to 7) and an implied epsilon.

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
    "BitDistribution",
    "Gains",
    "Leak",
    "bit_distribution",
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

SMALL = 1 << 17  # counts that one thread processes at once


def log_odds(p_diff: ArrayLike) -> Floats:
    """Return ln(P_same / P_diff) of each bit, the evidence of one more observation.

    It is infinite if P_diff is 0.
    """
    wrong = np.asarray(p_diff, np.float64)
    with np.errstate(divide="ignore"):
        return np.log1p(-wrong) - np.log(wrong)


def posterior_of_one(n0: ArrayLike, n1: ArrayLike, p_diff: float) -> Floats:
    """Return Pr(bit = 1) by Equation 5, computed in logarithms.

    0 log 0 = 0 for bits that are never observed wrong.
    """
    n0, n1 = np.asarray(n0, np.float64), np.asarray(n1, np.float64)
    log_one = xlogy(n1, 1 - p_diff) + xlogy(n0, p_diff)
    zero = xlogy(n0, 1 - p_diff) + xlogy(n1, p_diff)
    if p_diff in (0.0, 1.0):  # only one value can be observed, or none, which is no evidence
        sure = np.sign(n1 - n0) * (1 if p_diff == 0 else -1)
        return np.asarray(0.5 + 0.5 * sure)
    return np.asarray(expit(log_one - zero))


def posterior_table(p_diff: ArrayLike, top: int) -> Floats32:
    """Return a table (L, 2 top + 1) of Pr(bit j = 1) for n_1 - n_0 from -top to top."""
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
            row, zeros, ones, target = table[j], counts[s, j, 0], counts[s, j, 1], out[s, j]
            for a in range(M):
                target[a] = row[np.int32(ones[a]) - np.int32(zeros[a]) + top]


@njit(nogil=True, cache=True)
def _means(counts: Integers, table: Integers, out: Integers) -> None:
    """Compute Equation 7 by linearity; `table` already contains the weights 2^(L-j)."""
    n, depth, _, M = counts.shape
    top = table.shape[1] // 2
    for s in range(n):
        target = out[s]
        target[:] = 0
        for j in range(depth):
            row, zeros, ones = table[j], counts[s, j, 0], counts[s, j, 1]
            for a in range(M):
                target[a] += row[np.int32(ones[a]) - np.int32(zeros[a]) + top]


def _flat(counts: Array, depth: int) -> Array:
    """Reshape counts (..., L, 2, h, w) or (..., L, 2, M) to (strings, L, 2, M)."""
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
        kernel(counts, table, out)  # threads would cost more time than they save
        return
    step = max(1, min(256, -(-len(counts) // 4)))
    with ThreadPoolExecutor(n_jobs or os.cpu_count() or 1) as pool:
        starts = range(0, len(counts), step)
        list(pool.map(lambda a: kernel(counts[a : a + step], table, out[a : a + step]), starts))


def _table_for(counts: Array, parameters: SketchParameters) -> Floats32:
    """Return a table that covers every possible count of this dtype, also in hostile files."""
    if counts.dtype not in (np.dtype(np.uint8), np.dtype(np.uint16)):
        raise InvalidData(f"a sketch's counts must be uint8 or uint16, got {counts.dtype}.")
    return _cached_table(tuple(parameters.p_diff), int(np.iinfo(counts.dtype).max))


@functools.lru_cache(maxsize=16)
def _cached_table(p_diff: tuple[float, ...], top: int) -> Floats32:
    """Return the table, which is computed once per setting."""
    table = posterior_table(p_diff, top)
    table.flags.writeable = False
    return table


def bit_posteriors(
    counts: Array, parameters: SketchParameters, *, n_jobs: int | None = None
) -> Floats32:
    """Return Pr(bit = 1) of every bit, (n, channels, L, h, w) or (n, L, M).

    The counts have shape (n, channels, L, 2, h, w) or (n, L, 2, M).
    """
    flat = _flat(counts, parameters.depth)
    out = np.empty((len(flat), parameters.depth, flat.shape[3]), np.float32)
    _each(_posteriors, flat, _table_for(counts, parameters), out, n_jobs)
    return out.reshape(*counts.shape[:-3], *counts.shape[-2:]) if counts.ndim == 6 else out


def pixel_means(
    counts: Array, parameters: SketchParameters, *, n_jobs: int | None = None
) -> Floats32:
    """Return the posterior mean of every pixel, (n, channels, h, w), from 0 to 2^L - 1.

    It is the inner part of Equation 7.
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
# The grid of the discretised privacy loss; losses are rounded up, so epsilon is never understated.
GRID = 0.01
DELTA = 1e-5
PARTS = 16  # pixels per side of a thumbnail in which people still recognise what a picture shows
# Leading bits whose bias is always removed: neighbours agree on them, so their noise averages out.
LEADING = 3
# Variance of a bit's noise above which no average over neighbours reduces it enough.
HOPELESS = 400.0


@dataclass(frozen=True)
class BitDistribution:
    """The distribution of n_true - n_wrong of one bit.

    Parameters:
        differences: the possible values.
        probabilities: their probabilities.
        truth: the posterior of the bit's true value, given each difference.
    """

    differences: Ints
    probabilities: Floats
    truth: Floats

    @property
    def guess_bits(self) -> float:
        """The expectation of -log2 of the larger posterior: this bit's part of G (Equation 11)."""
        return float(-(self.probabilities * np.log2(np.maximum(self.truth, 1 - self.truth))).sum())

    @property
    def information(self) -> float:
        """The information of the counts about a fair bit, in bits (at most 1)."""
        p = np.clip(self.truth, 1e-300, 1)
        return float((self.probabilities * (1 + np.log2(p))).sum())

    @property
    def mean(self) -> float:
        """The expected posterior of the true value."""
        return float((self.probabilities * self.truth).sum())

    @property
    def variance(self) -> float:
        """The variance of the posterior of the true value."""
        return float((self.probabilities * self.truth**2).sum() - self.mean**2)

    @property
    def right(self) -> float:
        """The probability that the likelier value is the true one; ties are broken at random."""
        return float((self.probabilities * ((self.truth > 0.5) + 0.5 * (self.truth == 0.5))).sum())


@functools.lru_cache(maxsize=4096)
def bit_distribution(differing: float, agreeing: float) -> BitDistribution:
    """Return the distribution of a bit with the rates lambda_d and lambda_s."""
    spread = 12 * math.sqrt(differing + agreeing + 1) + 12
    differences = np.arange(
        math.floor(agreeing - differing - spread), math.ceil(agreeing - differing + spread) + 1
    )
    if differing == 0 or agreeing == 0:  # Skellam degenerates to a Poisson
        from scipy.stats import poisson

        probabilities = (
            poisson.pmf(differences, agreeing)
            if differing == 0
            else poisson.pmf(-differences, differing)
        )
    else:
        probabilities = skellam.pmf(differences, agreeing, differing)
    probabilities = np.nan_to_num(probabilities)
    total = differing + agreeing
    p_diff = differing / total if total else 0.5
    truth = posterior_of_one(np.maximum(-differences, 0), np.maximum(differences, 0), p_diff)
    return BitDistribution(differences, probabilities / probabilities.sum(), truth)


def _bit_losses(differing: float, agreeing: float) -> tuple[Array, float]:
    """Return the distribution of the privacy loss of a bit on the grid, rounded up.

    Returns:
        The probabilities (of odd length, centred at 0), and the probability of an infinite loss.
    """
    if differing == agreeing:
        return np.ones(1), 0.0
    if min(differing, agreeing) == 0:  # any observation reveals the bit; none reveals nothing
        nothing = math.exp(-(differing + agreeing))
        return np.array([nothing]), 1 - nothing
    distribution = bit_distribution(differing, agreeing)
    losses = distribution.differences * math.log(agreeing / differing)
    cells = np.ceil(losses / GRID - 1e-9).astype(np.int64)
    half = int(np.abs(cells).max())
    return np.bincount(
        cells + half, weights=distribution.probabilities, minlength=2 * half + 1
    ), 0.0


def _epsilon(losses: Array, infinite: float, delta: float) -> float:
    """Return the smallest epsilon with E[(1 - e^(epsilon - loss))+] + infinite <= delta."""
    if infinite > delta:
        return math.inf
    half = losses.size // 2
    values = np.arange(-half, half + 1) * GRID
    values, mass = values[losses > 0], losses[losses > 0]

    def excess(epsilon: float) -> float:
        over = values > epsilon
        return infinite + float((mass[over] * -np.expm1(epsilon - values[over])).sum())

    low, high = 0.0, max(float(values.max()), 0.0)
    if excess(low) <= delta:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > delta else (low, middle)
    return high


def bit_epsilon(differing: float, agreeing: float, *, delta: float = DELTA) -> float:
    """Return the local epsilon at `delta` that the counts of one bit imply."""
    return _epsilon(*_bit_losses(differing, agreeing), delta)


def pixel_epsilon(parameters: Any, *, delta: float = DELTA) -> float:
    """Return the local epsilon of a pixel: all bits may differ, and their losses are convolved."""
    total, infinite = np.ones(1), 0.0
    for differing in parameters.differing_rate:
        losses, never = _bit_losses(float(differing), parameters.agreeing_rate)
        total = np.maximum(fftconvolve(total, losses), 0) if losses.size > 1 else total * losses[0]
        infinite = 1 - (1 - infinite) * (1 - never)
    # Rounding errors of the Fourier transform are about 1e-16 per cell and are removed.
    return _epsilon(np.where(total > 1e-15, total, 0), infinite, delta)


def pixel_epsilon_rdp(rates: ArrayLike, agreeing: float, *, delta: float = DELTA) -> float:
    """Return an upper bound of `pixel_epsilon` by Renyi divergences, which add over the bits."""
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
    """What a sketch with given parameters reveals about any image.

    Parameters:
        delta: probability bound of the implied epsilons.
        epsilon_bit: the implied local epsilon of each bit.
        epsilon_pixel: the implied local epsilon of a whole pixel, tight.
        epsilon_pixel_rdp: the same by Renyi divergences, an upper bound.
        guess_bits: expected -log2 of the probability of guessing one pixel; times the number of
            pixels it is the paper's G.
        bits_right: the probability that the likelier value of each bit is the true one.
        information: the information about a pixel, in bits.
        noise: standard deviation of a pixel's unbiased estimate, as a share of the largest value.

    Examples:
        >>> from blindsight.sketching import QKParameters, leak_of
        >>> leak = leak_of(QKParameters.paper("Q3"))
        >>> len(leak.epsilon_bit), leak.epsilon_pixel <= leak.epsilon_pixel_rdp
        (8, True)
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
        """Return the expectation of G = -log2 p_bf (Equation 11) for a string of pixels."""
        return self.guess_bits * n_attributes

    @property
    def pixels_right(self) -> float:
        """The expected share of pixels recovered exactly by the likelier bits."""
        return float(np.prod(self.bits_right))

    @property
    def verdict(self) -> str:
        """A sentence about a single pixel; `verdict_at` considers the size of the image, too."""
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
                "A noisy picture is recovered directly; averaging over neighbouring pixels, or "
                "knowledge of similar images, removes the noise."
            )
        return (
            "A single pixel reveals little, but a picture much: averaging over neighbouring "
            "pixels recovers shapes, more of them in larger images, and an attacker who knows "
            "similar images recovers even more."
        )

    def verdict_at(self, image_shape: tuple[int, ...]) -> str:
        """Return the verdict for images of (channels, height, width).

        Noise averages out over neighbouring pixels: the noise of the mean of a part whose side is a
        sixteenth of the picture's is `noise` divided by the part's side in pixels. If that is
        small, the part can be recognised, however little a single pixel reveals.
        """
        part = max(1, min(image_shape[-2:]) // PARTS)
        if self.pixels_right > 0.5 or (self.bits_right[0] > 0.9 and part < 2):
            return self.verdict
        clear = -20 * math.log10(max(self.noise / part, 1e-9))
        size = f"{image_shape[-1]} x {image_shape[-2]} pixels"
        if clear > 25:
            return (
                f"At {size} averaging over neighbouring pixels recovers the picture: parts of "
                f"{part} x {part} pixels with {clear:.0f} dB, without any similar image."
            )
        if clear > 15:
            return (
                f"At {size} averaging over neighbouring pixels recovers coarse shapes (parts of "
                f"{part} x {part} pixels with {clear:.0f} dB); an attacker who knows similar "
                "images recovers more."
            )
        return self.verdict


def bit_moments(parameters: SketchParameters) -> tuple[Floats, Floats]:
    """Return mean and variance of the posterior of each bit's true value."""
    if isinstance(parameters, FlipParameters):
        wrong = np.asarray(parameters.beta)
        mean = (1 - wrong) ** 2 + wrong**2
        return mean, (1 - wrong) ** 3 + wrong**3 - mean**2
    distributions = [
        bit_distribution(float(rate), parameters.agreeing_rate)
        for rate in parameters.differing_rate
    ]
    return np.array([bit.mean for bit in distributions]), np.array(
        [bit.variance for bit in distributions]
    )


@dataclass(frozen=True)
class Gains:
    """Factors for the centred posteriors of bits to estimate a pixel's value, and the noise left.

    A posterior is biased towards one half by a factor that does not depend on the image: given the
    true bit, its mean is 1/2 +- (m_j - 1/2), where m_j is the expected posterior of the true value.
    Dividing by 2 m_j - 1 removes the bias. The remaining noise has the same variance for both
    values of the bit and is independent between pixels. So a sketch is the image plus white noise
    whose variance follows from the public parameters.
    """

    factors: Floats
    noise: float

    @classmethod
    def of(cls, parameters: SketchParameters) -> Gains:
        """Remove the whole bias of leading bits; shrink trailing bits, which look like noise."""
        mean, variance = bit_moments(parameters)
        weights = 2.0 ** np.arange(parameters.depth - 1, -1, -1)
        lean = np.maximum(2 * mean - 1, 1e-4)
        # The posterior of a bit without information is always one half: its variance is 0, and its
        # bias cannot be removed.
        noise = np.where(2 * mean - 1 > 1e-4, variance / lean**2, np.inf)
        gain = 0.25 / (0.25 + noise)  # Wiener's gain for a fair bit
        gain[:LEADING] = 1.0
        gain[noise > HOPELESS] = 0.0
        remaining = (
            np.where(gain > 0, gain**2 * np.minimum(noise, HOPELESS), 0) + (1 - gain) ** 2 / 4
        )
        return cls(weights * gain / lean, float(np.sqrt((weights**2 * remaining).sum())))


def leak_of(parameters: QKParameters, *, delta: float = DELTA) -> Leak:
    """Compute what sketches with these parameters reveal.

    Parameters:
        parameters: the parameters of the sketches.
        delta: probability bound of the implied epsilons.

    Returns:
        The leak, which does not depend on the images.
    """
    delta = checks.probability("delta", delta, below_one=True)
    agreeing = parameters.agreeing_rate
    rates = [float(rate) for rate in parameters.differing_rate]
    distributions = [bit_distribution(rate, agreeing) for rate in rates]
    return Leak(
        delta=delta,
        epsilon_bit=tuple(bit_epsilon(rate, agreeing, delta=delta) for rate in rates),
        epsilon_pixel=pixel_epsilon(parameters, delta=delta),
        epsilon_pixel_rdp=pixel_epsilon_rdp(rates, agreeing, delta=delta),
        guess_bits=sum(bit.guess_bits for bit in distributions),
        bits_right=tuple(bit.right for bit in distributions),
        information=sum(bit.information for bit in distributions),
        noise=Gains.of(parameters).noise / (2.0**parameters.depth - 1),
    )
