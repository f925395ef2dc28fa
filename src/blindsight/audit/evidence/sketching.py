"""Sketches: accuracy against leak for every setting of the paper with this file's marked, and what the file shows."""

from __future__ import annotations

import importlib.util
import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import RidgeClassifier

from blindsight import data
from blindsight.audit.figures import Figure, curves, gallery
from blindsight.audit.reconstruction import reconstruct
from blindsight.audit.sketches import LearnedPrior
from blindsight.audit.target import Audit
from blindsight.evaluation.reconstruction import mean_psnr, mean_ssim
from blindsight.sketching import CodebookClassifier, CodebookSketcher, FlippedBits, NegativeSketcher
from blindsight.sketching.parameters import PAPER_Q, QKParameters
from blindsight.sketching.sketches import SketchSet

__all__ = ["figures"]

_TRAIN, _TEST, _SHOWN = 900, 200, 10


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
    """(PSNR of the posterior means, accuracy of a ridge classifier on them)."""
    peak = 2.0**parameters.depth - 1
    means = _sketch(parameters, images, seed).pictures()
    rows = means.reshape(len(means), -1) / peak
    model = RidgeClassifier(alpha=30.0).fit(rows[:_TRAIN], labels[:_TRAIN])
    psnr = mean_psnr(_at_depth(images[_TRAIN:], parameters.depth), means[_TRAIN:], peak=peak)
    return psnr, float((model.predict(rows[_TRAIN:]) == labels[_TRAIN:]).mean())


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
        xlabel="leak: PSNR of the posterior means, dB",
        ylabel="accuracy",
        own=mine,
        chance=0.1,
        labels=points,
        logarithmic=False,
    )
    return Figure(
        "What is learned, and what leaks",
        f"A ridge classifier on the posterior means of {_TRAIN:,} sketched built-in digits, {_TEST} to test, "
        "against how near those means are to the pictures: more to the right is worse. This is the weakest "
        "attacker; the gallery has stronger ones.",
        picture,
        rows,
    )


def _in_the_file(sketches: SketchSet) -> Figure:
    chosen = np.unique(np.linspace(0, len(sketches) - 1, min(_SHOWN, len(sketches))).astype(int))
    if not len(sketches):
        return Figure("What is in your file", "The file holds no sketch.", "")
    pictures = sketches[chosen].pictures() * (255 / (2.0**sketches.parameters.depth - 1))
    step = max(1, min(pictures.shape[1:3]) // 96)  # thumbnails are enough to recognise
    shown = pictures[:, ::step, ::step]
    return Figure(
        "What is in your file",
        f"What anyone who holds this file sees of {len(chosen)} of its {len(sketches):,} images: the posterior mean of "
        "every pixel, which needs nothing but the file.",
        gallery({"from your file": shown}, scale=max(1, 64 // shown.shape[2])),
        [{"sketches": len(sketches), "shown": len(chosen)}],
    )


def _gallery(own: Any, images: NDArray[Any], seed: int) -> Figure:
    peak = 2.0**own.depth - 1
    given = _at_depth(images, own.depth)
    means = _sketch(own, images, seed + 1).pictures()
    truth, seen = given[_TRAIN:], means[_TRAIN:]
    to_bytes = 255 / peak
    rows = [
        {"from": "posterior mean", **_measures(mean_psnr(truth, seen, peak=peak), mean_ssim(truth, seen, peak=peak))}
    ]
    pictures: dict[str, NDArray[Any]] = {
        "original": truth[:_SHOWN] * to_bytes,
        _caption(rows[0]): seen[:_SHOWN] * to_bytes,
    }
    shown = np.rint(given * to_bytes).astype(np.uint8)
    ridge = reconstruct(means[:_TRAIN], shown[:_TRAIN], seen, shown[_TRAIN:], seed=seed)
    rows.append({"from": "ridge, from public digits", **_measures(ridge.psnr, ridge.ssim)})
    pictures[_caption(rows[-1])] = ridge.images[:_SHOWN]
    network = _network(own, given, seed)
    quality = mean_psnr(truth, network, peak=peak), mean_ssim(truth, network, peak=peak)
    rows.append({"from": "network, from public digits", **_measures(*quality)})
    pictures[_caption(rows[-1])] = network[:_SHOWN] * to_bytes
    rows.append({"from": "mean image", "PSNR in dB": round(ridge.psnr_of_mean, 2), "SSIM": ""})
    pictures[f"mean image: {ridge.psnr_of_mean:.1f} dB"] = np.broadcast_to(
        shown[:_TRAIN].mean(axis=0), (_SHOWN, 28, 28)
    )
    return Figure(
        "What comes back of an image",
        f"Built-in digits under your file's parameters ({own.name}), with the originals beside: the posterior mean, "
        f"and attackers who learned to undo the sketch from {_TRAIN:,} public digits.",
        gallery(pictures),
        rows,
    )


def _network(own: Any, given: NDArray[Any], seed: int) -> NDArray[Any]:
    """What a small convolutional network makes of sketches of the last images; a plain one where torch is missing."""
    dice = itertools.count(seed + 2)

    def sketch(images: NDArray[Any]) -> SketchSet:
        return _drawn(own, images, next(dice))

    if importlib.util.find_spec("torch") is None:
        known, private = sketch(given[:_TRAIN]).pictures(), sketch(given[_TRAIN:]).pictures()
        scale = (2.0**own.depth - 1) / 255
        shown = np.rint(given / scale).astype(np.uint8)
        found = reconstruct(known, shown[:_TRAIN], private, shown[_TRAIN:], decoder="network", seed=seed)
        return found.images * scale
    attacker = LearnedPrior(epochs=4, width=8, random_state=seed).fit(given[:_TRAIN], sketch)
    return attacker.recover(sketch(given[_TRAIN:]))


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
