"""What attackers recover of digits: every one of the suite at each setting, and belief propagation
on the records.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Row
from benchmarks.sketching.common import Halves, halves
from blindsight.audit.methods.sketching import propagate_beliefs
from blindsight.sketching import PAPER_Q, NegativeSketcher, QKParameters
from blindsight.sketching.attackers import Recovered, Suite, measure
from blindsight.sketching.estimator import FlippedBits
from blindsight.sketching.negative_database import hide_image
from blindsight.sketching.paper import draw_gallery
from blindsight.sketching.parameters import to_bits

__all__ = ["Attacked", "attack", "attack_rows", "public_images"]

PUBLIC = 3000
STEPS = 100


def public_images(sets: Halves) -> NDArray[np.uint8]:
    """What the attacker, the codebook and the calibration may know: the end of the training set,
    trained on by none.
    """
    return sets.x[-min(PUBLIC, len(sets.x) // 4) :]


@dataclass(frozen=True)
class Attacked:
    """What every attacker got back of the first test images under one setting."""

    found: dict[str, Recovered]
    guesses: dict[str, NDArray[np.float32]]
    seconds: float

    @property
    def weak(self) -> Recovered:
        """The paper's attacker."""
        return self.found["posterior mean"]

    @property
    def best(self) -> Recovered:
        """Whichever did best."""
        return max(self.found.values(), key=lambda result: result.psnr)

    @property
    def strongest(self) -> float:
        """PSNR of the best."""
        return self.best.psnr


@functools.cache
def attack(setting: str | QKParameters | float, *, seed: int, quick: bool = False) -> Attacked:
    """Sketch (a name or parameters) or flip (an epsilon per pixel) test images, and attack them;
    remembered.
    """
    sets = halves("mnist", seed=seed)
    private = sets.x_test[: 50 if quick else 200]
    public = public_images(sets)[: 800 if quick else None]
    kind: Any = FlippedBits if isinstance(setting, float) else NegativeSketcher
    sketches = kind(setting, random_state=seed).fit(private).sketch(private)
    start = time.perf_counter()
    suite = Suite(
        sketches.parameters, public=public, steps=20 if quick else STEPS, random_state=seed
    )
    guesses = suite.recover(sketches)
    found = {name: measure(name, private, guess) for name, guess in guesses.items()}
    shown = {name: guess[:8] for name, guess in guesses.items()}
    return Attacked(found=found, guesses=shown, seconds=time.perf_counter() - start)


def attack_rows(
    *, quick: bool, seed: int, out: Path, names: Sequence[str] = tuple(PAPER_Q)
) -> Iterator[Row]:
    """Every attacker at these settings beside the posterior mean, and records reversed at three
    r.
    """
    private = halves("mnist", seed=seed).x_test
    shown: list[tuple[str, Any]] = [("original", private[:8])]
    for name in ("Q3",) if quick else names:
        found = attack(name, seed=seed, quick=quick)
        weak, network, best, low = found.weak, found.found["network"], found.best, name.lower()
        shown += [
            (f"{name}, {attacker}", found.guesses[attacker])
            for attacker in ("posterior mean", "network")
        ]
        note = (
            f"{800 if quick else PUBLIC:,} public images, {20 if quick else STEPS} steps; "
            "posterior mean "
        )
        note += f"{weak.psnr:.2f} dB, SSIM {weak.ssim:.3f}"
        yield Row(
            id=f"sketching.best_attacker_psnr_{low}",
            value=best.psnr,
            unit="dB",
            seed=seed,
            peer="the paper's attacker",
            seconds=found.seconds,
            note=f"{best.attack}, {note}",
        )
        yield Row(
            id=f"sketching.prior_psnr_{low}", value=network.psnr, unit="dB", seed=seed, note=note
        )
        yield Row(
            id=f"sketching.prior_ssim_{low}", value=float(network.ssim or 0), unit="SSIM", seed=seed
        )
        yield Row(
            id=f"sketching.prior_exact_{low}",
            value=100 * network.exact,
            unit="% of pixels",
            seed=seed,
        )
    draw_gallery(out / "sketching-learned-prior.svg", shown)
    for r in (6.5,) if quick else (6.5, 3.0, 1.5):
        parameters = QKParameters.paper("Q3", r=r)
        start = time.perf_counter()
        right = []
        for k, image in enumerate(private[: 1 if quick else 5]):
            beliefs = propagate_beliefs(
                hide_image(image, parameters, random_state=seed + k), parameters
            )
            right.append(((beliefs > 0) == to_bits(image.ravel(), 8).ravel()).mean())
        yield Row(
            id=f"sketching.records_bits_recovered_r{r:g}",
            value=100 * float(np.mean(right)),
            unit="% of bits",
            paper="NP-hard",
            seed=seed,
            seconds=(time.perf_counter() - start) / len(right),
            note="belief propagation on the records at Q3; seconds per image",
        )
