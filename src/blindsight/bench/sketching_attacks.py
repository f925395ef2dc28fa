"""What stronger attackers recover: a prior learned from public images, and belief propagation on the records."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from blindsight.audit.sketches import LearnedPrior, measure, posterior_mean, propagate_beliefs
from blindsight.bench.harness import Row
from blindsight.bench.sketching_common import halves
from blindsight.sketching import NegativeSketcher, QKParameters
from blindsight.sketching.bits import to_bits
from blindsight.sketching.gallery import draw_gallery
from blindsight.sketching.qk_hidden import hide_image

__all__ = ["attack_rows"]


def attack_rows(*, quick: bool, seed: int, out: Path) -> Iterator[Row]:
    """Learned priors at Q1 to Q3 beside the posterior mean, and records reversed at three r."""
    sets = halves("mnist", seed=seed)
    private = sets.x_test[:200]
    public = sets.x[: 800 if quick else 6000]
    shown: list[tuple[str, Any]] = [("original", private[:8])]
    for name in ("Q3",) if quick else ("Q1", "Q2", "Q3"):
        sketcher = NegativeSketcher(name, random_state=seed).fit(private)
        sketches = sketcher.sketch(private)
        weak = measure("posterior mean", private, posterior_mean(sketches))
        start = time.perf_counter()
        fresh = NegativeSketcher(name).fit(public)
        attacker = LearnedPrior(epochs=2 if quick else 5, random_state=seed).fit(public, fresh.sketch)
        guess = attacker.recover(sketches)
        strong = measure("learned prior", private, guess)
        shown += [(f"{name}, mean", posterior_mean(sketches)[:8]), (f"{name}, learned", guess[:8])]
        note = f"{len(public):,} public images; posterior mean {weak.psnr:.2f} dB, SSIM {weak.ssim:.3f}"
        yield Row(
            id=f"sketching.prior_psnr_{name.lower()}", value=strong.psnr, unit="dB", seed=seed,
            peer="the paper's attacker", seconds=time.perf_counter() - start, note=note,
        )  # fmt: skip
        yield Row(id=f"sketching.prior_ssim_{name.lower()}", value=float(strong.ssim or 0), unit="SSIM", seed=seed)
        yield Row(id=f"sketching.prior_exact_{name.lower()}", value=100 * strong.exact, unit="% of pixels", seed=seed)
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
