"""Photos: what every attacker gets back of them without any public image, and whether a calibrated
goal is held.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Row
from blindsight import data
from blindsight.core.errors import MissingData
from blindsight.sketching import QKParameters, calibrate
from blindsight.sketching.attackers import Suite, best_psnr, measure, rehearse
from blindsight.sketching.paper import draw_gallery

__all__ = ["photo_rows", "photos"]

GOAL = 22.0  # dB, for calibration on photos of SMALL pixels a side
LARGE, SMALL = 256, 64


def photos(n: int, side: int, *, start: int = 0) -> tuple[NDArray[np.uint8], str]:
    """Colour photos and where they are from: the COCO subset, or tiles of the two that come with
    scikit-learn.
    """
    try:
        return data.load("coco-subset")[start : start + n].array(side), "COCO"
    except MissingData:
        from sklearn.datasets import load_sample_images

        wholes = load_sample_images().images
        rng = np.random.default_rng(start)
        step = 1 if side > 100 else 3
        tiles = []
        for k in range(n):
            whole = wholes[k % 2][::step, ::step]
            top, left = (int(rng.integers(max(1, extent - side))) for extent in whole.shape[:2])
            tiles.append(whole[top : top + side, left : left + side])
        return np.stack(tiles), "scikit-learn's two photos"


def photo_rows(*, quick: bool, seed: int, out: Path) -> Iterator[Row]:
    """Q1 to Q6 on photos, and the share of held-out photos whose best attacker stays under a
    calibrated goal.
    """
    images, source = photos(2 if quick else 8, LARGE)
    shown: list[tuple[str, Any]] = [("original", images[:6])]
    for name in ("Q3",) if quick else ("Q1", "Q2", "Q3", "Q4", "Q5", "Q6"):
        parameters, low = QKParameters.paper(name), name.lower()
        sketches = rehearse(images, parameters, rng=np.random.default_rng(seed))
        start = time.process_time()
        guesses = Suite(parameters).recover(sketches)
        seconds = (time.process_time() - start) / len(images)
        found = {attack: measure(attack, images, guess) for attack, guess in guesses.items()}
        weak, smooth = found["posterior mean"], found["smoothing"]
        best = max(found.values(), key=lambda result: result.psnr)
        shown.append((f"{name}, {best.attack}", guesses[best.attack][:6]))
        note = (
            f"{len(images)} photos ({source}), {LARGE} x {LARGE}, no public image; posterior mean "
            f"{weak.psnr:.2f} dB"
        )
        yield Row(
            id=f"sketching.smoothing_psnr_{low}_photos",
            value=smooth.psnr,
            unit="dB",
            seed=seed,
            peer="the paper's attacker",
            note=f"{note}, SSIM {weak.ssim:.2f}; smoothed SSIM {smooth.ssim:.2f}",
        )
        yield Row(
            id=f"sketching.best_attacker_psnr_{low}_photos",
            value=best.psnr,
            unit="dB",
            seed=seed,
            seconds=seconds,
            peer="the paper's attacker",
            note=f"{best.attack}, SSIM {best.ssim:.2f} (denoising "
            f"{found['denoising'].psnr:.2f} dB); {note}; CPU seconds per image",
        )
    draw_gallery(out / "sketching-photos.png", shown)
    yield from _holds(quick=quick, seed=seed)


def _holds(*, quick: bool, seed: int) -> Iterator[Row]:
    reference, source = photos(32 if quick else 100, SMALL)
    held_out, _ = photos(20 if quick else 200, SMALL, start=1000)
    start = time.process_time()
    parameters = calibrate(max_psnr=GOAL, reference=reference, steps=20 if quick else 100)
    seconds = time.process_time() - start
    # The attacker who comes later learns for longer than the one that the goal was held against.
    suite = Suite(parameters, public=reference, steps=30 if quick else 250, random_state=seed + 1)
    best = best_psnr(suite, held_out, rng=np.random.default_rng(seed))
    yield Row(
        id="sketching.calibration_holds",
        value=float(np.mean(best <= GOAL)),
        unit="share of photos",
        seed=seed,
        seconds=seconds,
        note=f"{len(held_out)} held-out photos ({source}), {SMALL} x {SMALL}, "
        f"goal {GOAL:g} dB, "
        f"{parameters.name}, r {parameters.r:.3g}; best attacker's mean {best.mean():.2f}, largest "
        f"{best.max():.2f} dB",
    )
