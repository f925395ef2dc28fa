"""Accuracy against leak: the paper's way, the same sketches read better, calibrated q, and proven
inputs.

One network, one schedule, the same images for every family; the leak is measured on sketches made
as those that are trained on, by the paper's attacker and by the best of all of them. Calibration
sees public images only, which are neither trained nor tested on.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Row
from benchmarks.plots import label_points, legend_below
from benchmarks.sketching.attacks import Attacked, attack, public_images
from benchmarks.sketching.common import Halves, canvas, halves, train_sketches
from blindsight.sketching import PAPER_Q, NegativeSketcher, QKParameters, leak_of
from blindsight.sketching.attackers import measure
from blindsight.sketching.calibration import calibrate
from blindsight.sketching.estimator import CodebookClassifier, CodebookSketcher, FlippedBits

__all__ = ["Point", "above_the_curve", "codebook_points", "curve_rows", "point_row"]

EPOCHS, IMAGES = 4, 12_000
GOALS = (
    11.0,
    11.5,
    12.5,
    14.0,
    16.0,
    18.0,
    20.0,
)  # of the informed attacker, in dB; a blind guess has 10.2
# The paper's input, standardised: with so few epochs its own [0, 1] would do worse (45% instead of
# 82% at Q3).
THE_PAPERS: dict[str, Any] = {"inputs": "mean"}
OURS: dict[str, Any] = {"inputs": "both"}
FAMILIES = {
    "paper": "the paper's way",
    "both": "the same sketches, bits and means",
    "calibrated": "calibrated q, bits and means",
    "flips": "flipped bits, proven per pixel",
    "codebook": "codebook, proven per image",
}
ATTACKERS = {"mean": "the paper's attacker", "strong": "the best of all attackers"}


@dataclass(frozen=True)
class Point:
    family: str
    setting: str
    accuracy: float
    mean: float
    strong: float
    promise: str


def curve_rows(*, seed: int, out: Path) -> Iterator[Row]:
    """One row a point, then what the claim to be above the paper's curve comes to; a figure an
    attacker.
    """
    whole = halves("mnist", seed=seed)
    kept = len(whole.x) - len(public_images(whole))
    sets = whole.first(min(IMAGES, kept))
    points = []
    for point in itertools.chain(_points(sets, whole, seed), codebook_points(sets, whole, seed)):
        points.append(point)
        yield point_row(point, sets, seed)
    yield from _claims(points, seed)
    for attacker, words in ATTACKERS.items():
        _draw(
            points,
            attacker,
            f"PSNR of {words} (dB)",
            out / f"sketching-accuracy-leak-{attacker}.svg",
        )


def point_row(point: Point, sets: Halves, seed: int) -> Row:
    """A point of the curve: its accuracy, with what it promises and what attackers see in the
    note.
    """
    how = "counted" if point.family == "codebook" else f"LeNet-5, {EPOCHS} epochs"
    return Row(
        id=f"sketching.curve.{point.family}.{point.setting}",
        value=point.accuracy,
        unit="%",
        seed=seed,
        note=f"{point.promise}; PSNR {point.mean:.2f} dB ({ATTACKERS['mean']}), {point.strong:.2f} "
        "dB "
        f"({ATTACKERS['strong']}); {how} on {len(sets.x):,} images",
    )


def _points(sets: Halves, whole: Halves, seed: int) -> Iterator[Point]:
    for name in PAPER_Q:
        sketcher, attacked = NegativeSketcher(name, random_state=seed), attack(name, seed=seed)
        promise = f"epsilon {leak_of(QKParameters.paper(name)).epsilon_pixel:.3g} per pixel implied"
        for family, options in (("paper", THE_PAPERS), ("both", OURS)):
            yield _trained(family, name.lower(), sketcher, sets, attacked, promise, seed, options)
    for goal in GOALS:
        parameters = calibrate(
            max_psnr=goal, reference=public_images(whole)[:500], attacker="informed"
        )
        promise = f"epsilon {leak_of(parameters).epsilon_pixel:.3g} per pixel implied"
        sketcher = NegativeSketcher(parameters, random_state=seed)
        attacked = attack(parameters, seed=seed)
        yield _trained("calibrated", f"{goal:g}dB", sketcher, sets, attacked, promise, seed, OURS)
    for epsilon in (1.0, 2.0, 4.0):
        flipper = FlippedBits(epsilon, random_state=seed)
        promise = f"epsilon {epsilon:g} per pixel proven"
        yield _trained(
            "flips",
            f"eps{epsilon:g}",
            flipper,
            sets,
            attack(epsilon, seed=seed),
            promise,
            seed,
            OURS,
        )


def codebook_points(sets: Halves, whole: Halves, seed: int) -> Iterator[Point]:
    """One of k public prototypes per image, proven; training and test images are both private."""
    for epsilon in (2.0, 4.0, 8.0, 16.0):
        book = CodebookSketcher(epsilon, random_state=seed).fit(public_images(whole))
        # Training and test images under different dice, both private.
        model = CodebookClassifier().fit(book.transform(sets.x), sets.y)
        book.random_state = seed + 1
        released = book.transform(sets.x_test)
        accuracy = 100 * float((model.predict(released) == sets.y_test).mean())
        seen = measure("codebook", sets.x_test[:300], book.pictures(released[:300])).psnr
        yield Point(
            "codebook",
            f"eps{epsilon:g}",
            accuracy,
            seen,
            seen,
            f"epsilon {epsilon:g} per image proven",
        )


def _trained(
    family: str,
    setting: str,
    sketcher: Any,
    sets: Halves,
    attacked: Attacked,
    promise: str,
    seed: int,
    options: dict[str, Any],
) -> Point:
    found = train_sketches(sketcher, sets, epochs=EPOCHS, random_state=seed, **options)
    return Point(family, setting, found.accuracy, attacked.weak.psnr, attacked.strongest, promise)


def above_the_curve(
    leak: list[float], accuracy: list[float], paper_leak: list[float], paper_accuracy: list[float]
) -> list[float]:
    """How far each point lies above the paper's curve at the same leak, in points of accuracy.

    The paper's curve runs straight from one setting to the next, and never falls: whoever may leak
    more may also leak less. Left of its least leak it is held at that setting's accuracy, right of
    its greatest at its best.
    """
    order = np.argsort(paper_leak)
    best = np.maximum.accumulate(np.asarray(paper_accuracy, float)[order])
    found: list[float] = (
        np.asarray(accuracy) - np.interp(leak, np.asarray(paper_leak, float)[order], best)
    ).tolist()
    return found


def _claims(points: list[Point], seed: int) -> Iterator[Row]:
    """The claims, so that they can fail: same sketch, more accuracy; same leak, more accuracy."""
    own = {family: [p for p in points if p.family == family] for family in FAMILIES}
    gains = {
        b.setting: b.accuracy - p.accuracy for p, b in zip(own["paper"], own["both"], strict=True)
    }
    told = ", ".join(f"{name} {gain:+.1f}" for name, gain in gains.items())
    yield Row(
        id="sketching.curve.same_sketch_gain",
        value=min(gains.values()),
        unit="points",
        seed=seed,
        note="the smallest gain of bits and means over posterior means on the same sketch (same "
        f"leak): {told}",
    )
    paper = own["paper"]
    smallest = []
    for attacker, words in ATTACKERS.items():
        margins = above_the_curve(
            [getattr(p, attacker) for p in own["calibrated"]],
            [p.accuracy for p in own["calibrated"]],
            [getattr(p, attacker) for p in paper],
            [p.accuracy for p in paper],
        )
        smallest.append(min(margins))
        told = ", ".join(
            f"{p.setting} {margin:+.1f}"
            for p, margin in zip(own["calibrated"], margins, strict=True)
        )
        above = sum(margin > 0 for margin in margins)
        yield Row(
            id=f"sketching.curve.above_paper_{attacker}",
            value=min(margins),
            unit="points",
            seed=seed,
            note="smallest margin of the calibrated points over the paper's curve at the same "
            f"PSNR of {words}; "
            f"{above} of {len(margins)} points above: {told}",
        )
    yield Row(
        id="sketching.curve.above_paper",
        value=min(smallest),
        unit="points",
        seed=seed,
        note="the smaller of the two margins; below 0 the calibrated curve is not above the "
        "paper's everywhere",
    )
    ours, theirs = (
        max(own[family], key=lambda p: p.accuracy) for family in ("calibrated", "paper")
    )
    yield Row(
        id="sketching.curve.best_against_best",
        value=ours.accuracy - theirs.accuracy,
        unit="points",
        seed=seed,
        note=f"calibrated at its best ({ours.setting}, {ours.strong:.1f} dB) less the paper's way "
        "at its best "
        f"({theirs.setting}, {theirs.strong:.1f} dB), wherever that lies",
    )


def _draw(points: list[Point], leak: str, label: str, path: Path) -> None:
    figure, axes = canvas(7.0, 5.5)
    # Most points lie between 90% and 97%: equal factors of error, not equal differences, are
    # equally far apart.
    axes.set_yscale(
        "function", functions=(lambda a: -np.log(100.5 - a), lambda z: 100.5 - np.exp(-z))
    )
    for family, words in FAMILIES.items():
        own = sorted(
            (dataclasses.asdict(p) for p in points if p.family == family), key=lambda p: p[leak]
        )
        axes.plot([p[leak] for p in own], [p["accuracy"] for p in own], "o-", label=words)
    axes.set(
        title="MNIST: accuracy against leak",
        xlabel=label,
        ylabel="test accuracy (%)",
        xlim=(None, 30),
    )
    axes.set_ylim(np.floor(min(p.accuracy for p in points) / 10) * 10, 97.5)
    axes.set_yticks(
        [tick for tick in (20, 50, 70, 80, 85, 90, 93, 95, 96, 97) if tick >= axes.get_ylim()[0]]
    )
    legend_below(figure, axes, columns=2)
    label_points(axes, [(p.setting, (getattr(p, leak), p.accuracy)) for p in points])
    figure.savefig(path)
