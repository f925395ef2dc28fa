"""What stronger attackers recover: a prior learned from public images, and belief propagation on the records."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Row
from benchmarks.sketching.common import Halves, halves
from blindsight.audit.sketches import LearnedPrior, Recovered, measure, posterior_mean, propagate_beliefs
from blindsight.sketching import PAPER_Q, NegativeSketcher, QKParameters
from blindsight.sketching.bits import to_bits
from blindsight.sketching.gallery import draw_gallery
from blindsight.sketching.local import FlippedBits
from blindsight.sketching.qk_hidden import hide_image
from blindsight.sketching.sketches import SketchSet

__all__ = ["Attacked", "attack", "attack_rows", "public_images"]

PUBLIC = 3000
EPOCHS = 3


def public_images(sets: Halves) -> NDArray[np.uint8]:
    """What the attacker, the codebook and the calibration may know: the end of the training set, trained on by none."""
    return sets.x[-min(PUBLIC, len(sets.x) // 4) :]


@dataclass(frozen=True)
class Attacked:
    """What two attackers got back of the first test images under one setting."""

    sketches: SketchSet
    weak: Recovered
    strong: Recovered
    guess: NDArray[np.float32]
    seconds: float

    @property
    def strongest(self) -> float:
        """PSNR of whichever did better; where bits are certain, a network only blurs them."""
        return max(self.weak.psnr, self.strong.psnr)


@functools.cache
def attack(setting: str | QKParameters | float, *, seed: int, quick: bool = False) -> Attacked:
    """Sketch (a name or parameters) or flip (an epsilon per pixel) test images, and attack them; remembered."""
    sets = halves("mnist", seed=seed)
    private = sets.x_test[:300]
    public = public_images(sets)[: 800 if quick else None]
    kind: Any = FlippedBits if isinstance(setting, float) else NegativeSketcher
    sketches = kind(setting, random_state=seed).fit(private).sketch(private)
    start = time.perf_counter()
    fresh = kind(setting).fit(public)
    attacker = LearnedPrior(epochs=2 if quick else EPOCHS, width=16, random_state=seed).fit(public, fresh.sketch)
    guess = attacker.recover(sketches)
    return Attacked(
        sketches=sketches,
        weak=measure("posterior mean", private, posterior_mean(sketches)),
        strong=measure("learned prior", private, guess),
        guess=guess[:8],
        seconds=time.perf_counter() - start,
    )


def attack_rows(*, quick: bool, seed: int, out: Path) -> Iterator[Row]:
    """Learned priors at Q1 to Q12 beside the posterior mean, and records reversed at three r."""
    private = halves("mnist", seed=seed).x_test
    shown: list[tuple[str, Any]] = [("original", private[:8])]
    for name in ("Q3",) if quick else tuple(PAPER_Q):
        found = attack(name, seed=seed, quick=quick)
        weak, strong, low = found.weak, found.strong, name.lower()
        shown += [(f"{name}, mean", posterior_mean(found.sketches[:8])), (f"{name}, learned", found.guess)]
        note = f"{800 if quick else PUBLIC:,} public images, {2 if quick else EPOCHS} epochs; posterior mean "
        note += f"{weak.psnr:.2f} dB, SSIM {weak.ssim:.3f}"
        yield Row(
            id=f"sketching.prior_psnr_{low}", value=strong.psnr, unit="dB", seed=seed, peer="the paper's attacker",
            seconds=found.seconds, note=note,
        )  # fmt: skip
        yield Row(id=f"sketching.prior_ssim_{low}", value=float(strong.ssim or 0), unit="SSIM", seed=seed)
        yield Row(id=f"sketching.prior_exact_{low}", value=100 * strong.exact, unit="% of pixels", seed=seed)
    draw_gallery(out / "sketching-learned-prior.svg", shown)
    for r in (6.5,) if quick else (6.5, 3.0, 1.5):
        parameters = QKParameters.paper("Q3", r=r)
        start = time.perf_counter()
        right = []
        for k, image in enumerate(private[: 1 if quick else 5]):
            beliefs = propagate_beliefs(hide_image(image, parameters, random_state=seed + k), parameters)
            right.append(((beliefs > 0) == to_bits(image.ravel(), 8).ravel()).mean())
        yield Row(
            id=f"sketching.records_bits_recovered_r{r:g}", value=100 * float(np.mean(right)), unit="% of bits",
            paper="NP-hard", seed=seed, seconds=(time.perf_counter() - start) / len(right),
            note="belief propagation on the records at Q3; seconds an image",
        )  # fmt: skip
