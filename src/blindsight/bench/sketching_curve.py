"""Accuracy against leak: the paper's settings, bit posteriors, calibrated q, and inputs with a proven guarantee."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blindsight.audit.sketches import LearnedPrior, measure
from blindsight.bench.harness import Row
from blindsight.bench.sketching_common import Halves, canvas, halves, train_sketches
from blindsight.sketching import NegativeSketcher, leak_of
from blindsight.sketching.calibration import calibrate
from blindsight.sketching.local import CodebookClassifier, CodebookSketcher, FlippedBits

__all__ = ["curve_rows"]

EPOCHS, IMAGES = 3, 15_000


@dataclass(frozen=True)
class _Point:
    family: str
    setting: str
    accuracy: float
    mean_psnr: float
    prior_psnr: float
    promise: str


def curve_rows(*, seed: int, out: Path) -> Iterator[Row]:
    """One row a point; two figures, against the paper's attacker and against the learned prior."""
    whole = halves("mnist", seed=seed)
    # The attacker's and the codebook's public images are not among those that are trained on.
    public = whole.x[-3000:]
    sets = Halves(whole.x[:IMAGES], whole.y[:IMAGES], whole.x_test[:5000], whole.y_test[:5000], whole.name)
    points = []
    for point in _points(sets, public, seed):
        points.append(point)
        setting = point.setting.replace(" ", "_")
        how = "counted" if point.family == "codebook" else f"{EPOCHS} epochs"
        yield Row(
            id=f"sketching.curve.{point.family}.{setting}", value=point.accuracy, unit="%", seed=seed,
            note=f"{point.promise}; PSNR {point.mean_psnr:.2f} dB (posterior mean), {point.prior_psnr:.2f} dB "
            f"(learned prior); {how} on {IMAGES:,} images",
        )  # fmt: skip
    _draw(points, "mean_psnr", "PSNR of the paper's attacker (dB)", out / "sketching-accuracy-leak.svg")
    _draw(points, "prior_psnr", "PSNR of the learned prior (dB)", out / "sketching-accuracy-leak-prior.svg")


def _points(sets: Halves, public: Any, seed: int) -> Iterator[_Point]:
    private = sets.x_test[:300]
    for name in ("Q1", "Q2", "Q3", "Q4"):
        sketcher = NegativeSketcher(name, random_state=seed)
        promise = f"epsilon {leak_of(sketcher.fit(private).parameters_).epsilon_pixel:.3g} per pixel implied"
        leaks = _leaks(sketcher, public, private, seed)
        for family, options in (("paper", {"inputs": "mean", "scaling": "unit"}), ("bits", {"inputs": "bits"})):
            trained = train_sketches(sketcher, sets, epochs=EPOCHS, random_state=seed, **options)
            yield _Point(family, name.lower(), trained.accuracy, *leaks, promise)
    for goal in (7.3, 9.0, 10.5):
        parameters = calibrate(max_psnr=goal, reference=public[:100])
        sketcher = NegativeSketcher(parameters, random_state=seed)
        trained = train_sketches(sketcher, sets, inputs="bits", epochs=EPOCHS, random_state=seed)
        promise = f"epsilon {leak_of(parameters).epsilon_pixel:.3g} per pixel implied"
        yield _Point("calibrated", f"{goal:g}dB", trained.accuracy, *_leaks(sketcher, public, private, seed), promise)
    for epsilon in (0.5, 1.0, 2.0, 4.0):
        flipper = FlippedBits(epsilon, random_state=seed)
        trained = train_sketches(flipper, sets, inputs="bits", epochs=EPOCHS, random_state=seed)
        leaks = _leaks(flipper, public, private, seed)
        yield _Point("flips", f"eps{epsilon:g}", trained.accuracy, *leaks, f"epsilon {epsilon:g} per pixel proven")
    for epsilon in (2.0, 4.0, 8.0):
        book = CodebookSketcher(epsilon, random_state=seed).fit(public)
        # Training and test images under different dice, both private.
        model = CodebookClassifier().fit(book.transform(sets.x), sets.y)
        book.random_state = seed + 1
        released = book.transform(sets.x_test)
        accuracy = 100 * float((model.predict(released) == sets.y_test).mean())
        seen = measure("codebook", sets.x_test[:300], book.pictures(released[:300])).psnr
        yield _Point("codebook", f"eps{epsilon:g}", accuracy, seen, seen, f"epsilon {epsilon:g} per image proven")


def _leaks(sketcher: Any, public: Any, private: Any, seed: int) -> tuple[float, float]:
    """PSNR of the paper's attacker and of the learned prior."""
    fitted = sketcher.fit(private)
    sketches = fitted.sketch(private)
    fresh = type(sketcher)(**{**sketcher.get_params(), "random_state": None}).fit(public)
    attacker = LearnedPrior(epochs=3, width=16, random_state=seed).fit(public, fresh.sketch)
    guesses = (sketches.pictures(), attacker.recover(sketches))
    first, second = (measure("attack", private, guess).psnr for guess in guesses)
    return first, second


def _draw(points: list[_Point], leak: str, label: str, path: Path) -> None:
    figure, axes = canvas()
    names = {
        "paper": "the paper's way", "bits": "bit posteriors", "calibrated": "calibrated q, bit posteriors",
        "flips": "flipped bits, proven per pixel", "codebook": "codebook, proven per image",
    }  # fmt: skip
    for family, words in names.items():
        own = sorted((dataclasses.asdict(p) for p in points if p.family == family), key=lambda p: p[leak])
        axes.plot([p[leak] for p in own], [p["accuracy"] for p in own], "o-", label=words)
        for p in own:
            axes.annotate(p["setting"], (p[leak], p["accuracy"]), fontsize=6)
    axes.set(title="MNIST: accuracy against leak", xlabel=label, ylabel="test accuracy (%)")
    axes.set_ylim(np.floor(min(p.accuracy for p in points) / 10) * 10, 100)
    axes.legend(fontsize=7)
    figure.savefig(path)
