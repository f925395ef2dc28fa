"""Sketches: what the file shows, and what attackers get back under its parameters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight import data
from blindsight.audit.report.figures import Figure, gallery
from blindsight.audit.target import Audit
from blindsight.evaluation.reconstruction import mean_psnr
from blindsight.sketching import CodebookSketcher, FlippedBits, NegativeSketcher
from blindsight.sketching.attackers import Suite, measure, measured_verdict
from blindsight.sketching.parameters import QKParameters
from blindsight.sketching.sketches import SketchSet

__all__ = ["figures"]

_TRAIN, _TEST, _SHOWN, _STEPS = 900, 24, 10, 100
_VALUES = 3_000_000  # pixels times channels of a file that are attacked for the report


def figures(found: Audit, *, seed: int = 0) -> list[Figure]:
    """The galleries."""
    if isinstance(found.subject, CodebookSketcher):
        return [_prototypes(found.subject)]
    digits = data.load("mnist5k")
    order = np.random.default_rng(seed).permutation(len(digits))[: _TRAIN + _TEST]
    own = getattr(found.subject, "parameters", None) or found.subject.parameters_
    shown = [_in_the_file(found.subject)] if isinstance(found.subject, SketchSet) else []
    return [*shown, _gallery(own, digits.array()[order], seed)]


def _drawn(parameters: Any, given: NDArray[Any], seed: int) -> SketchSet:
    if isinstance(parameters, QKParameters):
        return NegativeSketcher(parameters, n_jobs=1, random_state=seed).fit(given).sketch(given)
    flipper = FlippedBits(parameters.epsilon_pixel, depth=parameters.depth, random_state=seed).fit(
        given
    )
    return flipper.sketch(given)


def _at_depth(images: NDArray[Any], depth: int) -> NDArray[Any]:
    scaled = images.astype(np.uint32) * (2**depth - 1) // 255
    return np.asarray(scaled, np.uint8 if depth <= 8 else np.uint16)


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
        f"What anyone who holds this file sees of {len(chosen)} of its {len(sketches):,} images, "
        "by four attackers who "
        "need nothing but the file. One who knows similar images sees more.",
        gallery(shown, scale=max(1, 64 // width)),
        [{"sketches": len(sketches), "shown": len(chosen)}],
    )


def _gallery(own: Any, images: NDArray[Any], seed: int) -> Figure:
    peak, to_bytes = 2.0**own.depth - 1, 255 / (2.0**own.depth - 1)
    given = _at_depth(images, own.depth)
    truth, known = given[_TRAIN:], given[:_TRAIN]
    suite = Suite(own, public=known, steps=_STEPS, width=12, random_state=seed)
    guesses = suite.recover(_drawn(own, truth, seed + 1))
    found = [measure(name, truth, guess, depth=own.depth) for name, guess in guesses.items()]
    rows = [
        {"from": result.attack, **_measures(result.psnr, result.ssim or 0.0)} for result in found
    ]
    blank = np.broadcast_to(known.mean(axis=0), truth.shape)
    alone = mean_psnr(truth, blank, peak=peak)
    pictures: dict[str, NDArray[Any]] = {"original": truth[:_SHOWN] * to_bytes}
    pictures |= {_caption(row): guesses[row["from"]][:_SHOWN] * to_bytes for row in rows}
    pictures[f"mean image: {alone:.1f} dB"] = blank[:_SHOWN] * to_bytes
    rows.append({"from": "mean image", "PSNR in dB": round(alone, 2), "SSIM": ""})
    return Figure(
        "What comes back of an image",
        f"Built-in digits under your file's parameters ({own.name}), with the originals beside; "
        "the network learned "
        f"from {_TRAIN:,} public digits. "
        f"{measured_verdict(found, (1, 28, 28), missing=suite.missing)} What is seen "
        "depends on size and content: attack your own file with blindsight sketch recover.",
        gallery(pictures),
        rows,
    )


def _measures(psnr: float, ssim: float) -> dict[str, Any]:
    return {"PSNR in dB": round(psnr, 2), "SSIM": round(ssim, 3)}


def _caption(row: dict[str, Any]) -> str:
    return f"{row['from']}: {row['PSNR in dB']:.1f} dB, SSIM {row['SSIM']:.2f}"


def _prototypes(sketcher: CodebookSketcher) -> Figure:
    """One of k prototypes is all that is released of an image: here they are, as many as fit."""
    kept = np.asarray(sketcher.prototypes_)[:_SHOWN]
    side = math.isqrt(kept[0].size)
    pictures = kept.reshape(len(kept), *((side, side) if side * side == kept[0].size else (1, -1)))
    true = f"{sketcher.mechanism_.truth_probability:.1%}"
    return Figure(
        "What comes back of an image",
        f"One of these, of {len(sketcher.prototypes_)} in all, is released in the place of each "
        "image; the true one "
        f"{true} of the time.",
        gallery({"released prototypes": pictures}),
        [{"prototypes": len(sketcher.prototypes_), "true one released": true}],
    )
