"""All attackers on one set of sketches, and the search for settings that all of them fail against.

The strength of a protection is set by its strongest attacker, and which attacker is strongest
depends on the setting, the size and the content of the images: photos are recovered from
neighbouring pixels, digits from knowledge about digits. So every attacker is always run.

`quietest_needed` measures settings on public images of the size and kind that will be sketched:
half of the images train the network, the other half is attacked. The goal must hold for single
images, not on average, so the goal is compared with a bound on the PSNR of the next image: the
largest value observed, or more where few were observed.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import t as student

from blindsight.core.arrays import Array, Bytes, Floats, Floats32
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.evaluation.scores import exact_pixels, psnr, ssim
from blindsight.privacy import Recovery
from blindsight.privacy.entropy import RandomState
from blindsight.sketching.attackers.denoising import read, smooth
from blindsight.sketching.parameters import (
    FlipParameters,
    QKParameters,
    SketchParameters,
    as_images,
    to_bits,
)
from blindsight.sketching.preparation import window
from blindsight.sketching.sampler import Dice, draw_sketches
from blindsight.sketching.sketches import SketchSet

__all__ = [
    "ATTACKS",
    "Recovered",
    "Suite",
    "best_psnr",
    "bound_of",
    "measure",
    "measured_verdict",
    "quietest_needed",
    "rehearse",
]

ATTACKS = ("posterior mean", "smoothing", "denoising", "second reading", "network")
SIDE, RIM = 512, 32  # larger images are taken in tiles, with so much of the neighbours for context
BATCH = 1 << 18  # values of pixels that are attacked at once
CERTAIN = 100.0  # dB that a picture recovered without any error counts as


def rehearse(
    images: Any,
    parameters: SketchParameters,
    *,
    rng: np.random.Generator,
    n_jobs: int | None = None,
) -> SketchSet:
    """Sketches, or flipped bits, of one's own images under somebody else's parameters.

    Not a release.
    """
    given = as_images(images, parameters.depth)
    n, channels, height, width = given.shape
    shape = (n, channels, parameters.depth, 2, height, width)
    if isinstance(parameters, FlipParameters):
        return SketchSet(_flipped(given, parameters, rng).reshape(shape), parameters)
    strings = given.reshape(n * channels, height * width)
    counts = draw_sketches(strings, parameters, dice=Dice.throw(rng), n_jobs=n_jobs)
    return SketchSet(counts.reshape(shape), parameters)


def _flipped(given: Array, parameters: FlipParameters, rng: np.random.Generator) -> Bytes:
    bits = np.moveaxis(to_bits(given, parameters.depth), -1, 2)
    wrong = rng.random(bits.shape) < np.asarray(parameters.beta)[:, None, None]
    ones = bits ^ wrong
    return np.stack([1 - ones, ones], axis=3).astype(np.uint8)


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """How much of the images one attack got back: means over the images, and PSNR of each."""

    attack: str
    psnr: float
    ssim: float | None
    exact: float
    each: Floats = field(repr=False, compare=False)

    def rows(self) -> tuple[Recovery, ...]:
        """As rows of a disclosure card."""
        rows = [("PSNR in dB", self.psnr), ("share of pixels exactly right", self.exact)]
        rows += [("SSIM", self.ssim)] if self.ssim is not None else []
        return tuple(
            Recovery(attack=self.attack, measure=name, value=float(value)) for name, value in rows
        )


def measure(attack: str, images: Array, guess: Array, *, depth: int = 8) -> Recovered:
    """Compare a guess with the images. SSIM needs more than 11 pixels a side."""
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
    """Every attacker there is, against one setting.

    Parameters:
        public: images of the same kind that anyone may have; with them the network is in the suite
        (it needs PyTorch;
            `missing` says so where it is not there).
        steps: of the network, see `LearnedPrior`.
        width: of the network, see `LearnedPrior`.
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
            from blindsight.sketching.attackers.learned import LearnedPrior

            learner = LearnedPrior(steps=steps, width=width, random_state=random_state)
            self._network = learner.fit(public, parameters, progress=progress)

    @property
    def attacks(self) -> tuple[str, ...]:
        """The names of the attacks that run."""
        return ATTACKS if self._network is not None else ATTACKS[:-1]

    def recover(self, sketches: SketchSet) -> dict[str, Floats32]:
        """What each attacker makes of the sketches: images (n, h, w) or (n, h, w, channels), in
        0..2^L - 1.
        """
        if sketches.parameters != self.parameters:
            raise InvalidData(
                f"this suite attacks {self.parameters.name}, got {sketches.parameters.name}."
            )
        found = {
            name: np.empty((len(sketches), *sketches.image_shape), np.float32)
            for name in self.attacks
        }
        for tile, inner, outer in _tiles(sketches):
            for name, guess in self._tile(tile).items():
                found[name][outer] = guess[inner]
        return {name: _as_pictures(images) for name, images in found.items()}

    def _tile(self, sketches: SketchSet) -> dict[str, Floats32]:
        peak = 2.0**sketches.parameters.depth - 1
        means = sketches.means()
        found = {"posterior mean": means} | {
            name: np.empty_like(means) for name in self.attacks[1:]
        }
        start = 0
        for part in sketches.batches(max(1, BATCH // math.prod(sketches.image_shape))):
            here, reading = slice(start, start + len(part)), read(part)
            smoothed = np.stack([smooth(values, reading.noise)[0] for values in reading.values])
            guesses = {
                "smoothing": smoothed,
                "denoising": reading.clean,
                "second reading": reading.again,
            }
            if self._network is not None:
                guesses["network"] = self._network.recover(reading)
            for name, guess in guesses.items():
                found[name][here] = guess.clip(0, peak)
            start += len(part)
        return found

    def attack(self, sketches: SketchSet, images: ArrayLike) -> list[Recovered]:
        """Every attack measured against the images behind the sketches, the best first."""
        truth = _as_pictures(as_images(images, self.parameters.depth))
        guesses = self.recover(sketches)
        found = [
            measure(name, truth, guess, depth=self.parameters.depth)
            for name, guess in guesses.items()
        ]
        return sorted(found, key=lambda result: -result.psnr)


def _tiles(sketches: SketchSet) -> Iterator[tuple[SketchSet, Any, Any]]:
    """Parts of at most SIDE pixels a side with a rim of context: (part, its inner slice, where that
    belongs).
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
    found: list[Recovered], image_shape: tuple[int, ...], *, missing: str | None = None
) -> str:
    """One plain sentence from the best attack on images of this size; what was not tried is
    said.
    """
    best = max(found, key=lambda result: result.psnr)
    alike = best.ssim if best.ssim is not None else float(np.clip((best.psnr - 8) / 24, 0, 1))
    if best.psnr > 35 or alike > 0.95:
        seen = "the images are handed over"
    elif best.psnr > 24 or alike > 0.7:
        seen = "the images are recognisable in detail"
    elif best.psnr > 16 or alike > 0.35:
        seen = "what the images show can be made out"
    else:
        seen = "these attackers see little; others may see more"
    quality = f"{best.psnr:.1f} dB" + ("" if best.ssim is None else f", SSIM {best.ssim:.2f}")
    untried = "" if missing is None else f" Not tried: {missing}."
    return (
        f"At {image_shape[-1]} x {image_shape[-2]} pixels {seen}: {best.attack} reaches "
        f"{quality}.{untried}"
    )


LEAST = 8  # reference images
ATTACKED = 32  # images that are attacked, at most
VALUES = 4_000_000  # pixels times channels that are attacked, at most: the bound on time
LEVEL = 0.98  # of the bound on the next image
STEPS = 6  # of bisection without the network
QUIETER = (
    0.88,
    0.75,
    0.5,
    0.25,
)  # steps down, in logarithms of the leak, where the network alone is above the goal


def bound_of(each: Floats) -> float:
    """A bound on the PSNR of one more image of the kind: the largest seen, and a prediction limit
    where few were.
    """
    n = len(each)
    if n < 2:
        return float(each.max())
    far = each.mean() + student.ppf(LEVEL, n - 1) * each.std(ddof=1) * np.sqrt(1 + 1 / n)
    return float(max(each.max(), far))


def best_psnr(suite: Suite, images: Array, *, rng: np.random.Generator) -> Floats:
    """PSNR of whichever attack did best, image by image."""
    found = suite.attack(rehearse(images, suite.parameters, rng=rng), images)
    return np.asarray(np.max([result.each for result in found], axis=0))


def quietest_needed(
    setting: Callable[[float], QKParameters],
    reference: Array,
    goal: float,
    *,
    steps: int = 150,
    width: int = 16,
    random_state: RandomState = 0,
) -> QKParameters:
    """The loudest of the settings, from 1 (loud) to 0 (silent), under which every attacker stays
    below the goal.

    First by bisection without the network, which is quick; then with it, downwards from there.
    """
    images = window(
        np.asarray(reference)
    )  # as much of a large photo as attackers look at: the bound on time
    if len(images) < LEAST:
        raise InvalidParameter(
            f"reference must hold at least {LEAST} images, half to learn from, got {len(images)}."
        )
    rng = np.random.default_rng(random_state)
    order = rng.permutation(len(images))
    known, private = images[order[: len(images) // 2]], images[order[len(images) // 2 :]]
    private = private[: min(ATTACKED, max(4, VALUES // int(np.prod(private.shape[1:]))))]

    def excess(at: float, *, learn: bool) -> float:
        parameters = setting(at)
        suite = Suite(
            parameters,
            public=known if learn else None,
            steps=steps,
            width=width,
            random_state=random_state,
        )
        return bound_of(best_psnr(suite, private, rng=rng)) - goal

    silent = excess(0.0, learn=False)
    if silent > 0:
        raise InvalidParameter(
            f"max_psnr must be above {goal + silent:.2f} dB, which a guess without any sketch may "
            "reach on such "
            f"images, got {goal:g}."
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
        f"max_psnr cannot be held at {goal:g} dB: whoever learns from such images reaches "
        f"{goal + over:.2f} dB from "
        "next to nothing. Ask for more, or send nothing."
    )
