"""Sketches: accuracy against leak for every setting of the paper with this file's marked, and what the file shows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import RidgeClassifier

from blindsight import data
from blindsight.audit.figures import Figure, curves, gallery
from blindsight.audit.target import Audit
from blindsight.evaluation.reconstruction import mean_psnr, mean_ssim
from blindsight.sketching import CodebookClassifier, CodebookSketcher, FlippedBits, NegativeSketcher
from blindsight.sketching.attackers import Suite, measure, measured_verdict
from blindsight.sketching.parameters import PAPER_Q, QKParameters
from blindsight.sketching.sketches import SketchSet

__all__ = ["figures"]

_TRAIN, _TEST, _SHOWN = 900, 200, 10
_VALUES = 3_000_000  # pixels times channels of a file that are attacked for the report


def figures(found: Audit, *, seed: int = 0) -> list[Figure]:
    """The curve and the galleries."""
    digits = data.load("mnist5k")
    order = np.random.default_rng(seed).permutation(len(digits))[: _TRAIN + _TEST]
    images, labels = digits.array()[order], np.asarray(digits.labels)[order]
    if isinstance(found.subject, CodebookSketcher):
        return _prototypes(found.subject, images, labels, seed)
    own = getattr(found.subject, "parameters", None) or found.subject.parameters_
    shown = [_in_the_file(found.subject)] if isinstance(found.subject, SketchSet) else []
    return [_curve(own, images, labels, seed), *shown, _gallery(own, images, seed)]


def _sketch(parameters: Any, images: NDArray[Any], seed: int) -> SketchSet:
    """8-bit images at the parameters' depth, sketched or flipped."""
    return _drawn(parameters, _at_depth(images, parameters.depth), seed)


def _drawn(parameters: Any, given: NDArray[Any], seed: int) -> SketchSet:
    if isinstance(parameters, QKParameters):
        return NegativeSketcher(parameters, n_jobs=1, random_state=seed).fit(given).sketch(given)
    flipper = FlippedBits(parameters.epsilon_pixel, depth=parameters.depth, random_state=seed).fit(given)
    return flipper.sketch(given)


def _at_depth(images: NDArray[Any], depth: int) -> NDArray[Any]:
    scaled = images.astype(np.uint32) * (2**depth - 1) // 255
    return scaled.astype(np.uint8 if depth <= 8 else np.uint16)


def _point(parameters: Any, images: NDArray[Any], labels: NDArray[Any], seed: int) -> tuple[float, float]:
    """(PSNR of the best attacker without public images, accuracy of a ridge classifier on the posterior means)."""
    sketches = _sketch(parameters, images, seed)
    means = sketches.pictures()
    rows = means.reshape(len(means), -1) / (2.0**parameters.depth - 1)
    model = RidgeClassifier(alpha=30.0).fit(rows[:_TRAIN], labels[:_TRAIN])
    attacked = sketches[_TRAIN : _TRAIN + _TEST // 4]
    truth = _at_depth(images[_TRAIN : _TRAIN + _TEST // 4], parameters.depth)
    best = Suite(parameters).attack(attacked, truth)[0]
    return best.psnr, float((model.predict(rows[_TRAIN:]) == labels[_TRAIN:]).mean())


def _curve(own: Any, images: NDArray[Any], labels: NDArray[Any], seed: int) -> Figure:
    points = {name: _point(QKParameters.paper(name), images, labels, seed) for name in PAPER_Q}
    same = own.name in points and own == QKParameters.paper(own.name)
    mine = points[own.name] if same else _point(own, images, labels, seed)
    rows = [
        {"setting": name, "PSNR in dB": round(psnr, 2), "accuracy": round(accuracy, 4)}
        for name, (psnr, accuracy) in (*points.items(), ("your file", mine))
    ]
    picture = curves(
        {"Q1 to Q12": list(points.values())},
        xlabel="leak: PSNR of the best attacker without public images, dB",
        ylabel="accuracy",
        own=mine,
        chance=0.1,
        labels=points,
        logarithmic=False,
    )
    return Figure(
        "What is learned, and what leaks",
        f"A ridge classifier on the posterior means of {_TRAIN:,} sketched built-in digits, {_TEST} to test, "
        "against what the best attacker without public images recovers: more to the right is worse. The gallery has "
        "the one who knows digits.",
        picture,
        rows,
    )


def _in_the_file(sketches: SketchSet) -> Figure:
    if not len(sketches):
        return Figure("What is in your file", "The file holds no sketch.", "")
    chosen = np.unique(np.linspace(0, len(sketches) - 1, min(_SHOWN, len(sketches))).astype(int))
    chosen = chosen[: max(1, _VALUES // math.prod(sketches.image_shape))]
    scale = 255 / (2.0**sketches.parameters.depth - 1)
    found = Suite(sketches.parameters).recover(sketches[chosen])
    step = max(1, min(sketches.image_shape[1:]) // 96)  # thumbnails are enough to recognise
    shown = {name: images[:, ::step, ::step] * scale for name, images in found.items()}
    width = next(iter(shown.values())).shape[2]
    return Figure(
        "What is in your file",
        f"What anyone who holds this file sees of {len(chosen)} of its {len(sketches):,} images, by four attackers who "
        "need nothing but the file. One who knows similar images sees more.",
        gallery(shown, scale=max(1, 64 // width)),
        [{"sketches": len(sketches), "shown": len(chosen)}],
    )


def _gallery(own: Any, images: NDArray[Any], seed: int) -> Figure:
    peak, to_bytes = 2.0**own.depth - 1, 255 / (2.0**own.depth - 1)
    given = _at_depth(images, own.depth)
    truth, known = given[_TRAIN:], given[:_TRAIN]
    suite = Suite(own, public=known, steps=100, width=12, random_state=seed)
    guesses = suite.recover(_drawn(own, truth, seed + 1))
    found = [measure(name, truth, guess, depth=own.depth) for name, guess in guesses.items()]
    rows = [{"from": result.attack, **_measures(result.psnr, result.ssim or 0.0)} for result in found]
    blank = np.broadcast_to(known.mean(axis=0), truth.shape)
    alone = mean_psnr(truth, blank, peak=peak)
    pictures: dict[str, NDArray[Any]] = {"original": truth[:_SHOWN] * to_bytes}
    pictures |= {_caption(row): guesses[row["from"]][:_SHOWN] * to_bytes for row in rows}
    pictures[f"mean image: {alone:.1f} dB"] = blank[:_SHOWN] * to_bytes
    rows.append({"from": "mean image", "PSNR in dB": round(alone, 2), "SSIM": ""})
    return Figure(
        "What comes back of an image",
        f"Built-in digits under your file's parameters ({own.name}), with the originals beside; the network learned "
        f"from {_TRAIN:,} public digits. {measured_verdict(found, (1, 28, 28), missing=suite.missing)} What is seen "
        "depends on size and content: attack your own file with blindsight sketch recover.",
        gallery(pictures),
        rows,
    )


def _measures(psnr: float, ssim: float) -> dict[str, Any]:
    return {"PSNR in dB": round(psnr, 2), "SSIM": round(ssim, 3)}


def _caption(row: dict[str, Any]) -> str:
    return f"{row['from']}: {row['PSNR in dB']:.1f} dB, SSIM {row['SSIM']:.2f}"


def _prototypes(sketcher: Any, images: NDArray[Any], labels: NDArray[Any], seed: int) -> list[Figure]:
    """One of k prototypes: what is learned by epsilon, and what the released ones show."""

    def fitted(epsilon: float, k: int | None) -> Any:
        return CodebookSketcher(epsilon, k=k, random_state=seed).fit(images[: _TRAIN // 2])

    def accuracy(book: Any) -> float:
        cells = book.transform(images[_TRAIN // 2 :])
        known = _TRAIN - _TRAIN // 2
        model = CodebookClassifier().fit(cells[:known], labels[_TRAIN // 2 : _TRAIN])
        return float((model.predict(cells[known:]) == labels[_TRAIN:]).mean())

    mine = fitted(float(sketcher.epsilon), min(len(sketcher.prototypes_), _TRAIN // 2))
    points = [(epsilon, accuracy(fitted(epsilon, None))) for epsilon in (2.0, 4.0, 8.0)]
    own = float(sketcher.epsilon), accuracy(mine)
    truth = images[_TRAIN:]
    released = mine.prototypes_[mine.transform(truth)].reshape(truth.shape)
    row = {"from": "released prototype", **_measures(mean_psnr(truth, released), mean_ssim(truth, released))}
    return [
        Figure(
            "What privacy costs",
            "Accuracy of counted classes of prototypes on built-in digits, by proven epsilon per image.",
            curves({"prototypes": points}, xlabel="proven epsilon per image", ylabel="accuracy", own=own, chance=0.1),
            [{"epsilon": e, "accuracy": round(a, 4)} for e, a in (*points, own)],
        ),
        Figure(
            "What comes back of an image",
            "Built-in digits and the prototypes that were released for them.",
            gallery({"original": truth[:_SHOWN], _caption(row): released[:_SHOWN]}),
            [row],
        ),
    ]
