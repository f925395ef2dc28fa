"""Attackers that recover images from sketches. All of them are run, and the best result counts.

| attacker | knows |
|---|---|
| posterior mean | the parameters: the paper's attacker |
| smoothing | that neighbouring pixels are similar |
| denoising, second reading | that few cosines make up a patch of a photo |
| network | public images of the same kind |

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

The strength of a protection is set by its strongest attacker, and which attacker is strongest
depends on the setting, the size and the content of the images: photos are recovered from
neighbouring pixels, digits from knowledge about digits. So every attacker is always run.

`quietest_needed` measures settings on public images of the size and kind that will be sketched:
half of the images train the network, the other half is attacked. The goal must hold for single
images, not on average, so it is compared with a bound on the PSNR of the next image: the largest
value observed, or a higher prediction limit if few images were attacked.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.ndimage import gaussian_filter
from scipy.stats import t as student

from blindsight.core.arrays import Array, Bytes, Floats, Floats32
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.evaluation.scores import exact_pixels, psnr, ssim
from blindsight.privacy import Recovery
from blindsight.privacy.entropy import RandomState
from blindsight.sketching.leak import Gains
from blindsight.sketching.parameters import (
    FlipParameters,
    QKParameters,
    SketchParameters,
    as_images,
    to_bits,
    window,
)
from blindsight.sketching.sampler import Dice, draw_sketches
from blindsight.sketching.sketches import SketchSet

__all__ = [
    "ATTACKS",
    "WIDTHS",
    "Recovered",
    "SketchReading",
    "Suite",
    "best_psnr",
    "bound_of",
    "denoise",
    "measure",
    "measured_verdict",
    "moments",
    "quietest_needed",
    "read",
    "read_again",
    "rehearse",
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
    """Return the filter's weight on the pixel itself."""
    if width == 0:
        return 1.0
    if math.isinf(width):
        return 1.0 / pixels
    reach = np.arange(-int(TRUNCATE * width + 0.5), int(TRUNCATE * width + 0.5) + 1)
    return float(1 / np.exp(-0.5 * (reach / width) ** 2).sum() ** 2)


def stein_risk(values: Floats32, filtered: Floats32, noise: float, own: float) -> float:
    """Return Stein's estimate of the mean squared error of a linear filter, without the truth."""
    return float(np.mean((values - filtered) ** 2)) + noise**2 * (2 * own - 1)


def smooth(values: Floats32, noise: float) -> tuple[Floats32, float]:
    """Filter values (channels, h, w) with white noise, at the width of least estimated risk.

    Returns:
        The filtered values and the width.
    """
    pixels = values.shape[1] * values.shape[2]
    best = noise**2, values, 0.0  # no filter
    for width in WIDTHS[1:]:
        if not math.isinf(width) and width > max(1.0, min(values.shape[1:]) / 4):
            continue
        filtered = _filtered(values, width)
        risk = stein_risk(values, filtered, noise, _own_weight(width, pixels))
        if risk < best[0]:
            best = risk, filtered, width
    return np.asarray(best[1], np.float32), best[2]


BLOCK = 16
KEEP = 2.7  # threshold of coefficients in the first round, in standard deviations of the noise
# The estimated error is too low, because it includes the remaining noise but not the lost detail.
WIDEN = 1.2
MOST_BITS = 10  # with more bits, a table over all values of a pixel is too large
CHUNK = 1 << 22  # entries of that table at a time


def unbiased(planes: Floats32, parameters: SketchParameters) -> tuple[Floats32, float]:
    """Return unbiased estimates (..., h, w) of the pixels from posteriors (..., L, h, w).

    They are not clipped. The second result is the standard deviation of their noise.
    """
    gains = Gains.of(parameters)
    centred, factors = planes - np.float32(0.5), gains.factors.astype(np.float32)
    values = np.einsum("...lhw,l->...hw", centred, factors, optimize=True)
    return values + np.float32((2.0**parameters.depth - 1) / 2), gains.noise


@functools.cache
def _cosines(n: int) -> Floats32:
    """Return the orthonormal cosine transform of n values as a matrix.

    For three channels it gives brightness and two colour differences.
    """
    k = np.arange(n)[:, None]
    rows = np.sqrt(2 / n) * np.cos(np.pi * (2 * np.arange(n) + 1) * k / (2 * n))
    rows[0] /= np.sqrt(2)
    return np.asarray(rows.astype(np.float32))


def _pass(
    values: Floats32, noise: float, side: int, pilot: Floats32 | None
) -> tuple[Floats32, Floats32]:
    """Denoise blocks at every fourth offset.

    Returns:
        The mean of their estimates, and its estimated squared error.
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
    padded_pilot = None if pilot is None else np.pad(pilot, rim, mode="symmetric")
    total, weight, error = (np.zeros_like(noisy) for _ in range(3))
    for top in range(0, side, max(1, side // 4)):
        for left in range(0, side, max(1, side // 4)):
            coefficients = grid(noisy, top, left)
            if padded_pilot is None:
                gain = (np.abs(coefficients) > KEEP * noise).astype(np.float32)
            else:
                power = grid(padded_pilot, top, left) ** 2
                gain = power / (power + np.float32(noise**2))
            gain[..., 0, 0] = 1
            # Blocks with few coefficients contain little noise and get a larger weight.
            share = 1 / (gain**2).sum(axis=(-1, -2), keepdims=True)
            left_over = gain.mean(axis=(-1, -2), keepdims=True) * np.float32(noise**2)
            block = np.s_[:, top : top + rows, left : left + columns]
            total[block] += laid(basis.T @ (coefficients * gain) @ basis * share)
            weight[block] += laid(share)
            error[block] += laid(share * left_over)
    inner = np.s_[:, side : side + height, side : side + width]
    return total[inner] / weight[inner], error[inner] / weight[inner]


def denoise(values: Floats32, noise: float) -> tuple[Floats32, Floats32]:
    """Denoise values (..., channels, h, w) that have white noise.

    Returns:
        The denoised values, and the estimated standard deviation of the remaining error.
    """
    *_, channels, height, width = values.shape
    side = BLOCK
    while side > min(height, width):
        side //= 2
    if side < 4 or noise < 1e-6:
        return values, np.full_like(values, noise)
    across = _cosines(channels)
    # The colours of a photo are correlated: brightness has most of the signal, and the transformed
    # noise is still white.
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
    """Return the posterior mean and standard deviation of each pixel (..., h, w).

    They follow from the posteriors (..., L, h, w) of its bits and a normal prior.
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
    """What an attacker computes from sketches without other images; arrays (n, channels, h, w)."""

    planes: Floats32  # (n, channels, L, h, w): posteriors of bits
    values: Floats32  # unbiased, with white noise
    noise: float
    clean: Floats32  # denoised
    again: Floats32  # second reading
    doubt: Floats32  # standard deviation of the second reading


def read(sketches: SketchSet) -> SketchReading:
    """Denoise every sketch of a set and compute its second reading."""
    channels, height, width = sketches.image_shape
    planes = sketches.posteriors().reshape(
        len(sketches), channels, sketches.parameters.depth, height, width
    )
    values, noise = unbiased(planes, sketches.parameters)
    clean, deviation = denoise(values, noise)
    again, doubt = read_again(planes, clean, deviation)
    return SketchReading(planes, values, noise, clean, again, doubt)


def moments(planes: Floats32) -> tuple[Floats32, Floats32]:
    """Return posterior mean and standard deviation of the pixels, in 0..1.

    Bits are assumed to be independent, as by the paper's attacker.
    """
    depth = planes.shape[-3]
    weights = (2.0 ** np.arange(depth - 1, -1, -1) / (2.0**depth - 1)).astype(np.float32)
    mean = np.einsum("...lhw,l->...hw", planes, weights, optimize=True)
    return mean, np.sqrt(
        np.einsum("...lhw,l->...hw", planes * (1 - planes), weights**2, optimize=True)
    )


ATTACKS = ("posterior mean", "smoothing", "denoising", "second reading", "network")
SIDE, RIM = 512, 32  # larger images are processed in tiles, with a margin of context
BATCH = 1 << 18  # values of pixels that are attacked at once
CERTAIN = 100.0  # the PSNR in dB that is reported for an exactly recovered picture


def rehearse(
    images: Any,
    parameters: SketchParameters,
    *,
    rng: np.random.Generator,
    n_jobs: int | None = None,
) -> SketchSet:
    """Draw sketches, or flipped bits, of an attacker's own images with given parameters.

    This is not a release.
    """
    pixels = as_images(images, parameters.depth)
    n, channels, height, width = pixels.shape
    shape = (n, channels, parameters.depth, 2, height, width)
    if isinstance(parameters, FlipParameters):
        return SketchSet(_flipped(pixels, parameters, rng).reshape(shape), parameters)
    strings = pixels.reshape(n * channels, height * width)
    counts = draw_sketches(strings, parameters, dice=Dice.throw(rng), n_jobs=n_jobs)
    return SketchSet(counts.reshape(shape), parameters)


def _flipped(pixels: Array, parameters: FlipParameters, rng: np.random.Generator) -> Bytes:
    bits = np.moveaxis(to_bits(pixels, parameters.depth), -1, 2)
    wrong = rng.random(bits.shape) < np.asarray(parameters.beta)[:, None, None]
    ones = bits ^ wrong
    return np.stack([1 - ones, ones], axis=3).astype(np.uint8)


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """How much of the images an attack recovered.

    Parameters:
        attack: its name.
        psnr: mean PSNR over the images, in dB.
        ssim: mean SSIM over the images; None if they are too small.
        exact: share of pixels that are exactly right.
        each: PSNR of each image.
    """

    attack: str
    psnr: float
    ssim: float | None
    exact: float
    each: Floats = field(repr=False, compare=False)

    def rows(self) -> tuple[Recovery, ...]:
        """Return the results as rows of a disclosure card."""
        rows = [("PSNR in dB", self.psnr), ("share of pixels exactly right", self.exact)]
        rows += [("SSIM", self.ssim)] if self.ssim is not None else []
        return tuple(
            Recovery(attack=self.attack, measure=name, value=float(value)) for name, value in rows
        )


def measure(attack: str, images: Array, guess: Array, *, depth: int = 8) -> Recovered:
    """Compare a guess with the images. SSIM needs more than 11 pixels per side."""
    peak = 2.0**depth - 1
    each = np.minimum(psnr(images, guess, peak=peak), CERTAIN)
    large = min(np.shape(images)[1:3]) > 11
    return Recovered(
        attack=attack,
        psnr=float(each.mean()),
        ssim=float(ssim(images, guess, peak=peak).mean()) if large else None,
        exact=exact_pixels(images, guess),
        each=each,
    )


class Suite:
    """All attackers against one setting.

    Parameters:
        parameters: the parameters of the sketches.
        public: public images of the same kind. With them the network is in the suite, if PyTorch is
            installed; otherwise `missing` says why it is not.
        steps: training steps of the network (`LearnedPrior`).
        width: channels of the network (`LearnedPrior`).
        random_state: seed of the network's training.
        progress: called with (done, total).
    """

    def __init__(
        self,
        parameters: SketchParameters,
        *,
        public: ArrayLike | None = None,
        steps: int = 120,
        width: int = 24,
        random_state: RandomState = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.parameters = parameters
        self.missing: str | None = None
        self._network: Any = None
        if public is None:
            self.missing = "network: no public images of the kind were given"
        elif importlib.util.find_spec("torch") is None:
            self.missing = "network: PyTorch is not installed"
        else:
            from blindsight.sketching.networks import LearnedPrior

            learner = LearnedPrior(steps=steps, width=width, random_state=random_state)
            self._network = learner.fit(public, parameters, progress=progress)

    @property
    def attacks(self) -> tuple[str, ...]:
        """The names of the attacks that run."""
        return ATTACKS if self._network is not None else ATTACKS[:-1]

    def recover(self, sketches: SketchSet) -> dict[str, Floats32]:
        """Return the images that each attacker recovers, with values from 0 to 2^L - 1.

        They have shape (n, h, w) or (n, h, w, channels).
        """
        if sketches.parameters != self.parameters:
            raise InvalidData(
                f"this suite attacks {self.parameters.name}, got {sketches.parameters.name}."
            )
        recovered = {
            name: np.empty((len(sketches), *sketches.image_shape), np.float32)
            for name in self.attacks
        }
        for tile, inner, outer in _tiles(sketches):
            for name, guess in self._tile(tile).items():
                recovered[name][outer] = guess[inner]
        return {name: _as_pictures(images) for name, images in recovered.items()}

    def _tile(self, sketches: SketchSet) -> dict[str, Floats32]:
        peak = 2.0**sketches.parameters.depth - 1
        means = sketches.means()
        recovered = {"posterior mean": means} | {
            name: np.empty_like(means) for name in self.attacks[1:]
        }
        start = 0
        for part in sketches.batches(max(1, BATCH // math.prod(sketches.image_shape))):
            rows, reading = slice(start, start + len(part)), read(part)
            smoothed = np.stack([smooth(values, reading.noise)[0] for values in reading.values])
            guesses = {
                "smoothing": smoothed,
                "denoising": reading.clean,
                "second reading": reading.again,
            }
            if self._network is not None:
                guesses["network"] = self._network.recover(reading)
            for name, guess in guesses.items():
                recovered[name][rows] = guess.clip(0, peak)
            start += len(part)
        return recovered

    def attack(self, sketches: SketchSet, images: ArrayLike) -> list[Recovered]:
        """Run every attack and compare it with the true images; the best result comes first."""
        truth = _as_pictures(as_images(images, self.parameters.depth))
        guesses = self.recover(sketches)
        results = [
            measure(name, truth, guess, depth=self.parameters.depth)
            for name, guess in guesses.items()
        ]
        return sorted(results, key=lambda result: -result.psnr)


def _tiles(sketches: SketchSet) -> Iterator[tuple[SketchSet, Any, Any]]:
    """Yield tiles of at most SIDE pixels per side with a margin of context.

    Each item is the tile, the slice of its inner part, and the slice of the image to which that
    part belongs.
    """
    _, height, width = sketches.image_shape
    for top in range(0, height, SIDE):
        for left in range(0, width, SIDE):
            (a, b), (c, d) = (
                (max(0, top - RIM), max(0, left - RIM)),
                (top + SIDE + RIM, left + SIDE + RIM),
            )
            part = SketchSet(sketches.counts[..., a:c, b:d], sketches.parameters)
            down, right = min(SIDE, height - top), min(SIDE, width - left)
            inner = np.s_[:, :, top - a : top - a + down, left - b : left - b + right]
            yield part, inner, np.s_[:, :, top : top + down, left : left + right]


def _as_pictures(images: Array) -> Array:
    return images[:, 0] if images.shape[1] == 1 else np.moveaxis(images, 1, -1)


def measured_verdict(
    results: list[Recovered], image_shape: tuple[int, ...], *, missing: str | None = None
) -> str:
    """Return a sentence about the best attack on images of this size.

    It also names an attack that was not tried.
    """
    best = max(results, key=lambda result: result.psnr)
    alike = best.ssim if best.ssim is not None else float(np.clip((best.psnr - 8) / 24, 0, 1))
    if best.psnr > 35 or alike > 0.95:
        finding = "the images are handed over"
    elif best.psnr > 24 or alike > 0.7:
        finding = "the images are recognisable in detail"
    elif best.psnr > 16 or alike > 0.35:
        finding = "what the images show can be made out"
    else:
        finding = "these attackers see little; others may see more"
    quality = f"{best.psnr:.1f} dB" + ("" if best.ssim is None else f", SSIM {best.ssim:.2f}")
    untried = "" if missing is None else f" Not tried: {missing}."
    return (
        f"At {image_shape[-1]} x {image_shape[-2]} pixels {finding}: {best.attack} reaches "
        f"{quality}.{untried}"
    )


LEAST = 8  # reference images
ATTACKED = 32  # images that are attacked, at most
VALUES = 4_000_000  # pixels times channels that are attacked, at most, which bounds the time
LEVEL = 0.98  # confidence level of the bound on the next image
STEPS = 6  # of bisection without the network
# Factors on the logarithmic scale of the leak, tried in turn while the network exceeds the goal.
QUIETER = (0.88, 0.75, 0.5, 0.25)


def bound_of(each: Floats) -> float:
    """Return a bound on the PSNR of one more image.

    It is the largest value observed, or a prediction limit if that is higher.
    """
    n = len(each)
    if n < 2:
        return float(each.max())
    far = each.mean() + student.ppf(LEVEL, n - 1) * each.std(ddof=1) * np.sqrt(1 + 1 / n)
    return float(max(each.max(), far))


def best_psnr(suite: Suite, images: Array, *, rng: np.random.Generator) -> Floats:
    """Return the PSNR of the best attack on each image."""
    results = suite.attack(rehearse(images, suite.parameters, rng=rng), images)
    return np.asarray(np.max([result.each for result in results], axis=0))


def quietest_needed(
    setting: Callable[[float], QKParameters],
    reference: Array,
    goal: float,
    *,
    steps: int = 150,
    width: int = 16,
    random_state: RandomState = 0,
) -> QKParameters:
    """Return the setting with the largest leak under which every attacker is below the goal.

    The leak is on a scale from 0 (none) to 1. The search first bisects without the network, which
    is quick, and then goes down with it.

    Parameters:
        setting: the parameters at each point of the scale.
        reference: public images of the size and kind that will be sketched.
        goal: the PSNR in dB that no attacker may reach.
        steps: training steps of the network.
        width: channels of the network.
        random_state: seed of the network's training and of the sketches.

    Raises:
        InvalidParameter: there are too few images, or the goal cannot be met.
    """
    images = window(np.asarray(reference))  # the middle of large photos, which bounds the time
    if len(images) < LEAST:
        raise InvalidParameter(
            f"reference must hold at least {LEAST} images, half to learn from, got {len(images)}."
        )
    rng = np.random.default_rng(random_state)
    order = rng.permutation(len(images))
    public, private = images[order[: len(images) // 2]], images[order[len(images) // 2 :]]
    private = private[: min(ATTACKED, max(4, VALUES // int(np.prod(private.shape[1:]))))]

    def excess(at: float, *, learn: bool) -> float:
        parameters = setting(at)
        suite = Suite(
            parameters,
            public=public if learn else None,
            steps=steps,
            width=width,
            random_state=random_state,
        )
        return bound_of(best_psnr(suite, private, rng=rng)) - goal

    silent = excess(0.0, learn=False)
    if silent > 0:
        raise InvalidParameter(
            f"max_psnr must be above {goal + silent:.2f} dB, which a guess without any sketch may "
            f"reach on such images, got {goal:g}."
        )
    low, high = 0.0, 1.0
    if excess(1.0, learn=False) <= 0:
        low = 1.0
    for _ in range(STEPS if low < 1 else 0):
        middle = (low + high) / 2
        low, high = (low, middle) if excess(middle, learn=False) > 0 else (middle, high)
    for share in (1.0, *QUIETER):
        over = excess(share * low, learn=True)
        if over <= 0 or low == 0:
            return setting(share * low)
    raise InvalidParameter(
        f"max_psnr of {goal:g} dB cannot be met: an attacker who learns from such images reaches "
        f"{goal + over:.2f} dB with almost no information. Use a higher max_psnr, or send nothing."
    )
