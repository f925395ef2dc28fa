"""Attacks on sketches, the verdicts on NegDL, and its figures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from blindsight import data
from blindsight.audit.engine.blackbox import (
    Attack,
    Outcomes,
    attack_outcomes,
    attack_release,
    collect,
    distinguish_outcomes,
)
from blindsight.audit.engine.listeners import drawing_from
from blindsight.audit.report.page import Figure, gallery
from blindsight.audit.report.verdict import Verdict
from blindsight.audit.target import Audit
from blindsight.core import checks
from blindsight.core.arrays import Array, Bytes, Floats
from blindsight.core.errors import InvalidData
from blindsight.evaluation.scores import mean_psnr
from blindsight.privacy import Audited, Disclosure, Recovery
from blindsight.sketching import (
    CodebookSketcher,
    FeatureBasis,
    FeatureStatistics,
    FlipParameters,
    FlippedBits,
    NegativeSketcher,
    PrivateHead,
    leak_of,
)
from blindsight.sketching.attackers import Suite, measure, measured_verdict
from blindsight.sketching.negative_database import NegativeDatabase
from blindsight.sketching.paper import disclosure_of
from blindsight.sketching.parameters import QKParameters, SketchParameters, from_bits
from blindsight.sketching.sketches import SketchSet

__all__ = [
    "attack_pixel",
    "attack_prototypes",
    "attack_sender",
    "figures",
    "propagate_beliefs",
    "reverse",
    "sketch_card",
    "verdicts",
]

# Features and width of the toy images that a sender is attacked with.
_TOY_FEATURES, _TOY_WIDTH = 12, 6


def attack_sender(sender: FeatureStatistics | PrivateHead, *, runs: int, seed: int) -> Attack:
    """Release statistics, or a head, many times from 40 toy images, with and without the first one.

    Parameters:
        sender: the fitted sender, whose epsilon, delta and kind of release are attacked.
        runs: releases with the image, and as many without.
        seed: of the noise.
    """
    rng = np.random.default_rng(seed)
    basis = FeatureBasis.learn(rng.random((60, _TOY_FEATURES)), width=_TOY_WIDTH)
    features = rng.random((40, _TOY_FEATURES))
    features[0] = np.eye(_TOY_FEATURES)[0]  # an image that looks like no other
    names = np.array(["a", "b"])[np.arange(40) % 2]
    toy = clone(sender).set_params(
        classes=("a", "b"), basis=basis, public=None, encoder=None, n_records=40, random_state=None
    )
    if isinstance(toy, FeatureStatistics):
        # One image is the unit that is present or absent; the noise for a person is larger.
        toy.set_params(moments=0.5, refuse=False, unit="record", most=1)

    def run(absent: tuple[int, ...], dice: np.random.Generator) -> Array:
        with drawing_from(dice, absent=absent):
            fitted = clone(toy).fit(features, names)
        return np.ravel(next(iter(fitted.released_.values())))

    return attack_outcomes(
        collect(run, (), (0,), trials=runs, seed=seed),
        what="released again with one of 40 images there or not",
        delta=sender.guarantee_.delta,
    )


def propagate_beliefs(
    database: NegativeDatabase, parameters: QKParameters, *, iterations: int = 30
) -> Floats:
    """Return the log odds of a one for every hidden bit, by belief propagation on the records.

    A record is a factor on its K bits: if the set D of them differs from the string, its
    probability is proportional to p_|D| |D|! (K - |D|)! times the product over D of q_j L. No
    record agrees in all its bits; the counts of a sketch do not contain this information. Messages
    pass between records and bits until the bits are decided.
    """
    K, L, m = parameters.specified, parameters.depth, database.length
    if (np.diff(database.offsets) != K).any() or m % L:
        raise InvalidData(
            f"the records must have {K} specified bits each, of strings with {L} bits per pixel."
        )
    positions = database.positions.reshape(-1, K)
    sign = 2.0 * database.values.reshape(-1, K) - 1  # agreement with a 1 is evidence for a one
    with np.errstate(divide="ignore"):
        relative = np.log(np.asarray(parameters.q) * L)[positions % L]
        types = np.array(
            [
                -np.inf,
                *(
                    np.log(p) + math.lgamma(i + 1) + math.lgamma(K - i + 1)
                    for i, p in enumerate(parameters.p, 1)
                ),
            ]
        )
    states = np.array(list(itertools.product((0, 1), repeat=K)))  # 1: this bit differs
    # Weight of each state in each record; impossible states get a floor instead of -infinity.
    weight = np.maximum(
        types[states.sum(axis=1)][None] + np.maximum(relative, -60) @ states.T, -200
    )
    to_record = np.zeros(positions.shape)
    evidence: Array = np.zeros(m)
    for step in range(checks.whole("iterations", iterations)):
        agree = np.clip(to_record * sign, -30, 30)  # log odds that the record's bit agrees
        ln_differ, ln_agree = -np.logaddexp(0, agree), -np.logaddexp(0, -agree)
        joint = weight + ln_differ @ states.T + ln_agree @ (1 - states).T
        message = np.empty_like(to_record)
        for t in range(K):
            inside = states[:, t] == 1
            differ = np.logaddexp.reduce(joint[:, inside], axis=1) - ln_differ[:, t]
            same = np.logaddexp.reduce(joint[:, ~inside], axis=1) - ln_agree[:, t]
            message[:, t] = (same - differ) * sign[:, t]
        evidence = np.bincount(positions.ravel(), weights=message.ravel(), minlength=m)
        fresh = evidence[positions] - message
        if step and np.abs(np.tanh(fresh / 2) - np.tanh(to_record / 2)).max() < 1e-3:
            break
        to_record = 0.5 * to_record + 0.5 * fresh
    return evidence


def reverse(
    database: NegativeDatabase, parameters: QKParameters, *, iterations: int = 30
) -> NDArray[np.uint16]:
    """Return the pixels that belief propagation recovers from the records, as one row."""
    bits = propagate_beliefs(database, parameters, iterations=iterations) > 0
    return from_bits(bits.reshape(-1, parameters.depth))


def attack_pixel(parameters: FlipParameters, *, trials: int, seed: int) -> Attack:
    """Distinguish a pixel of 0 from one of all ones by the likelihood ratio of its bits' counts."""
    top = 2**parameters.depth - 1
    wrong = np.clip(parameters.p_diff, 1e-12, 1 - 1e-12)
    weight = np.log(1 - wrong) - np.log(wrong)

    def statistic(counts: Array) -> Floats:
        """Return the evidence for the pixel of 0: the counts of zeros, bit by bit."""
        return np.asarray((counts[:, :, 0].astype(float) - counts[:, :, 1]) @ weight)

    if isinstance(parameters, FlipParameters):
        sides = [_flipped(parameters, value, trials, seed + value) for value in (0, top)]
        attack, delta = "likelihood ratio of a pixel's flipped bits", 0.0
    else:
        side = 28
        count = -(-trials // (side * side))
        dtype = np.uint8 if parameters.depth <= 8 else np.uint16
        sides = []
        for value in (0, top):
            images = np.full((count, side, side), value, dtype)
            sketcher = NegativeSketcher(parameters, random_state=seed + value).fit(images[:1])
            # (images, bits, 2, pixels) to one row a pixel.
            counts = sketcher.sketch(images).counts[:, 0].reshape(count, parameters.depth, 2, -1)
            sides.append(np.moveaxis(counts, 3, 1).reshape(-1, parameters.depth, 2)[:trials])
        attack, delta = "likelihood ratio of a pixel's counts", leak_of(parameters).delta
    return attack_outcomes(
        Outcomes(sides[0], sides[1]), what=attack, delta=delta, statistic=statistic
    )


def sketch_card(parameters: QKParameters, shape: tuple[int, int, int]) -> tuple[Disclosure, float]:
    """Return the disclosure of sketches with these parameters, and their epsilon per pixel."""
    leak = leak_of(parameters)
    return disclosure_of(parameters, leak, shape), leak.epsilon_pixel


def attack_prototypes(sketcher: CodebookSketcher, *, trials: int, seed: int) -> Attack:
    """Attack the sketcher's own answers about the pictures of two of its prototypes."""
    pictures = np.asarray(sketcher.prototypes_.reshape(-1, *sketcher.image_shape_))
    nearest = sketcher.nearest(pictures)
    pair = pictures[0], pictures[int((nearest != nearest[0]).argmax())]
    cells = np.eye(sketcher.mechanism_.k, dtype=np.uint8)
    attack = "its own answers about two images that it tells apart"
    return attack_release(
        lambda images: cells[sketcher.transform(images)],
        pair,
        what=attack,
        trials=trials,
        seed=seed,
    )


def _flipped(parameters: FlipParameters, value: int, trials: int, seed: int) -> Bytes:
    """Return counts of one pixel of this value as `FlippedBits` releases them, a row per trial."""
    images = np.full((trials, 1, 1, 1), value, np.uint8 if parameters.depth <= 8 else np.uint16)
    with drawing_from(np.random.default_rng(seed)):
        counts = (
            FlippedBits(parameters.epsilon_pixel, depth=parameters.depth)
            .fit(images[:1])
            .transform(images)
        )
    return np.asarray(counts[:, 0, :, :, 0, 0])


_ADVICE = (
    "no Q hides an image from one who knows similar ones; use a proven local input, or keep images "
    "at home"
)


def verdicts(images: Array, *, trials: int, seed: int = 0) -> Iterator[Verdict]:
    """Yield verdicts on one pixel's first bit, on whole pictures, and on the records.

    `images` are uint8 (n, h, w).
    """
    for name in ("Q3", "Q12"):
        yield _first_bit(name, trials=trials, seed=seed)
    for name in ("Q3", "Q6", "Q12"):
        yield _picture(name, images, seed=seed)
    yield _records("Q3", images[0], seed=seed)


def _first_bit(name: str, *, trials: int, seed: int) -> Verdict:
    parameters = QKParameters.paper(name)
    leak = leak_of(parameters)
    sketcher = NegativeSketcher(parameters, random_state=seed).fit(np.zeros((1, 28, 28), np.uint8))
    # Every pixel of a constant image is one trial: its first bit is 0 on one side, 1 on the other.
    per_image = 28 * 28
    count = -(-trials // per_image)
    sides = [
        _first_counts(sketcher, np.full((count, 28, 28), value, np.uint8))[:trials]
        for value in (0, 128)
    ]
    audited = distinguish_outcomes(Outcomes(sides[0], sides[1]), delta=leak.delta)
    return Verdict(
        room="sketching",
        method="NegDL sketch",
        setting=f"{name}, first bit of a pixel",
        unit="bit",
        calibration="paper",
        claimed=None,
        proven=leak.epsilon_bit[0],
        audited=Audited(
            epsilon=audited.epsilon,
            confidence=audited.confidence,
            attack="black box on counts",
            trials=audited.trials,
        ),
    )


def _first_counts(sketcher: NegativeSketcher, images: Array) -> Array:
    """Return the (wrong, true) counts of the first bit of every pixel, one row per pixel."""
    counts = sketcher.sketch(images).counts[:, 0, 0]
    return np.moveaxis(counts, 1, -1).reshape(-1, 2)


def _picture(name: str, images: Array, *, seed: int) -> Verdict:
    sketcher = NegativeSketcher(QKParameters.paper(name), random_state=seed).fit(images)
    best = Suite(sketcher.parameters_).attack(sketcher.sketch(images), images)[0]
    psnr = next(row for row in best.rows() if "PSNR" in row.measure)
    return Verdict(
        room="sketching",
        method="NegDL sketch",
        setting=f"{name}, the picture",
        unit="image",
        calibration="paper",
        claimed=None,
        proven=math.inf,
        promise="irreversible",
        recovered=psnr,
        broken=psnr.value > 20,
        advice=_ADVICE,
    )


def _records(name: str, image: Array, *, seed: int) -> Verdict:
    sketcher = NegativeSketcher(QKParameters.paper(name), random_state=seed).fit(image[None])
    (database,) = sketcher.records(image, unsafe_records=True)
    right = float((reverse(database, sketcher.parameters_) == image.ravel()).mean())
    return Verdict(
        room="sketching",
        method="NegDL records",
        setting=f"{name}, the database itself",
        unit="pixel",
        calibration="paper",
        claimed=None,
        proven=math.inf,
        promise="NP-hard to reverse",
        recovered=Recovery(
            attack="belief propagation",
            measure="share of pixels exactly right",
            value=right,
            chance=1 / 256,
        ),
        broken=right > 0.5,
        advice="never send the records",
    )


_TRAIN, _TEST, _SHOWN, _STEPS = 900, 24, 10, 100
_VALUES = 3_000_000  # pixels times channels of a file that are attacked for the report


def figures(audit: Audit, *, seed: int = 0) -> list[Figure]:
    """Return galleries of what attackers recover under the file's parameters."""
    if isinstance(audit.subject, CodebookSketcher):
        return [_prototypes(audit.subject)]
    digits = data.load("mnist5k")
    order = np.random.default_rng(seed).permutation(len(digits))[: _TRAIN + _TEST]
    own = getattr(audit.subject, "parameters", None) or audit.subject.parameters_
    in_file = [_in_the_file(audit.subject)] if isinstance(audit.subject, SketchSet) else []
    return [*in_file, _gallery(own, digits.array()[order], seed)]


def _drawn(parameters: SketchParameters, images: Array, seed: int) -> SketchSet:
    if isinstance(parameters, QKParameters):
        return NegativeSketcher(parameters, n_jobs=1, random_state=seed).fit(images).sketch(images)
    flipper = FlippedBits(parameters.epsilon_pixel, depth=parameters.depth, random_state=seed).fit(
        images
    )
    return flipper.sketch(images)


def _at_depth(images: Array, depth: int) -> Array:
    scaled = images.astype(np.uint32) * (2**depth - 1) // 255
    return np.asarray(scaled, np.uint8 if depth <= 8 else np.uint16)


def _in_the_file(sketches: SketchSet) -> Figure:
    if not len(sketches):
        return Figure("What is in your file", "The file holds no sketch.", "")
    chosen = np.unique(np.linspace(0, len(sketches) - 1, min(_SHOWN, len(sketches))).astype(int))
    chosen = chosen[: max(1, _VALUES // math.prod(sketches.image_shape))]
    scale = 255 / (2.0**sketches.parameters.depth - 1)
    recovered = Suite(sketches.parameters).recover(sketches[chosen])
    step = max(1, min(sketches.image_shape[1:]) // 96)  # thumbnails are enough to recognise
    pictures = {name: images[:, ::step, ::step] * scale for name, images in recovered.items()}
    width = next(iter(pictures.values())).shape[2]
    return Figure(
        "What is in your file",
        f"What anyone who holds this file sees of {len(chosen)} of its {len(sketches):,} images, "
        "by four attackers who "
        "need nothing but the file. An attacker who knows similar images sees more.",
        gallery(pictures, scale=max(1, 64 // width)),
        [{"sketches": len(sketches), "shown": len(chosen)}],
    )


def _gallery(own: SketchParameters, images: Array, seed: int) -> Figure:
    peak, to_bytes = 2.0**own.depth - 1, 255 / (2.0**own.depth - 1)
    scaled = _at_depth(images, own.depth)
    truth, public = scaled[_TRAIN:], scaled[:_TRAIN]
    suite = Suite(own, public=public, steps=_STEPS, width=12, random_state=seed)
    guesses = suite.recover(_drawn(own, truth, seed + 1))
    results = [measure(name, truth, guess, depth=own.depth) for name, guess in guesses.items()]
    rows = [
        {"from": result.attack, **_measures(result.psnr, result.ssim or 0.0)} for result in results
    ]
    blank = np.broadcast_to(public.mean(axis=0), truth.shape)
    alone = mean_psnr(truth, blank, peak=peak)
    pictures: dict[str, Array] = {"original": truth[:_SHOWN] * to_bytes}
    pictures |= {_caption(row): guesses[row["from"]][:_SHOWN] * to_bytes for row in rows}
    pictures[f"mean image: {alone:.1f} dB"] = blank[:_SHOWN] * to_bytes
    rows.append({"from": "mean image", "PSNR in dB": round(alone, 2), "SSIM": ""})
    return Figure(
        "What can be reconstructed of an image",
        f"Built-in digits under your file's parameters ({own.name}), with the originals beside; "
        "the network learned "
        f"from {_TRAIN:,} public digits. "
        f"{measured_verdict(results, (1, 28, 28), missing=suite.missing)} What is seen "
        "depends on size and content: attack your own file with blindsight sketch recover.",
        gallery(pictures),
        rows,
    )


def _measures(psnr: float, ssim: float) -> dict[str, Any]:
    return {"PSNR in dB": round(psnr, 2), "SSIM": round(ssim, 3)}


def _caption(row: dict[str, Any]) -> str:
    return f"{row['from']}: {row['PSNR in dB']:.1f} dB, SSIM {row['SSIM']:.2f}"


def _prototypes(sketcher: CodebookSketcher) -> Figure:
    """Show the prototypes, one of which is released in place of each image, as many as fit."""
    prototypes = np.asarray(sketcher.prototypes_)[:_SHOWN]
    side = math.isqrt(prototypes[0].size)
    pictures = prototypes.reshape(
        len(prototypes), *((side, side) if side * side == prototypes[0].size else (1, -1))
    )
    true = f"{sketcher.mechanism_.truth_probability:.1%}"
    return Figure(
        "What can be reconstructed of an image",
        f"One of these, of {len(sketcher.prototypes_)} in all, is released in the place of each "
        "image; the true one "
        f"{true} of the time.",
        gallery({"released prototypes": pictures}),
        [{"prototypes": len(sketcher.prototypes_), "true one released": true}],
    )
