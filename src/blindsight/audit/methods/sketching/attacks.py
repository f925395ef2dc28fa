"""Attacks on sketches and on negative databases: what an attacker gets back of the images.

The attackers on sketches live beside them (`blindsight.sketching.attackers`), since calibration
must hold against them. Here is the one on the records, had they been sent (`propagate_beliefs`):
reversing a negative database is NP-hard in the worst case, and takes a second on these; and the
card with what all of them recovered (`attack_card`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.audit.engine.blackbox import Outcomes
from blindsight.audit.engine.listeners import drawing_from
from blindsight.audit.engine.worst_inputs import Attack, attack_outcomes, attack_release
from blindsight.core import checks
from blindsight.core.errors import InvalidData
from blindsight.privacy import Disclosure, Recovery
from blindsight.sketching import FlipParameters, FlippedBits, leak_of
from blindsight.sketching.attackers import Suite, measured_verdict
from blindsight.sketching.negative_database import NegativeDatabase
from blindsight.sketching.paper import NegativeSketcher, disclosure_of
from blindsight.sketching.parameters import QKParameters, as_images, from_bits

__all__ = [
    "attack_card",
    "attack_pixel",
    "attack_prototypes",
    "propagate_beliefs",
    "reverse",
    "sketch_card",
]


def propagate_beliefs(
    database: NegativeDatabase, parameters: QKParameters, *, iterations: int = 30
) -> NDArray[np.float64]:
    """Log odds of a one for every hidden bit, by belief propagation on the records.

    A record is a factor on its K bits: if D of them differ from the string, its probability is
    proportional to p_|D| |D|! (K - |D|)! times the product over D of q_j L; no record agrees on all
    its bits, which the counts of a sketch cannot say. Messages pass between records and bits until
    the bits are decided.
    """
    K, L, m = parameters.specified, parameters.depth, database.length
    if (np.diff(database.offsets) != K).any() or m % L:
        raise InvalidData(
            f"the records must have {K} specified bits each, of strings with {L} bits per pixel."
        )
    positions = database.positions.reshape(-1, K)
    sign = 2.0 * database.values.reshape(-1, K) - 1  # agreeing with a 1 speaks for a one
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
    # Weight of each state in each record; impossible states at a floor instead of minus infinity.
    weight = np.maximum(
        types[states.sum(axis=1)][None] + np.maximum(relative, -60) @ states.T, -200
    )
    to_record = np.zeros(positions.shape)
    evidence: NDArray[Any] = np.zeros(m)
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
    """The pixels that belief propagation reads out of the records, as one row."""
    bits = propagate_beliefs(database, parameters, iterations=iterations) > 0
    return from_bits(bits.reshape(-1, parameters.depth))


def attack_card(
    sketcher: NegativeSketcher,
    images: NDArray[Any],
    *,
    public: NDArray[Any] | None = None,
    records: int = 1,
    steps: int = 300,
    progress: Callable[[int, int], None] | None = None,
) -> Disclosure:
    """The disclosure of a sketcher with what every attacker recovered of these images, and a
    verdict from the best.

    With `public` images the attacker who learns from them runs too (`steps` of training); `records`
    images are attacked through their records, which are made here and thrown away.
    """
    fitted = sketcher.fit(images)
    suite = Suite(fitted.parameters_, public=public, steps=steps, progress=progress)
    found = suite.attack(fitted.sketch(images), images)
    rows = [row for result in found for row in result.rows()]
    depth = fitted.parameters_.depth
    right = []
    for image in images[:records]:
        for database, channel in zip(
            fitted.records(image, unsafe_records=True),
            as_images(image[None], depth)[0],
            strict=True,
        ):
            right.append((reverse(database, fitted.parameters_) == channel.ravel()).mean())
    if right:
        rows.append(
            Recovery(
                attack="belief propagation, had the records been sent",
                measure="share of pixels exactly right",
                value=float(np.mean(right)),
            )
        )
    verdict = (
        f"At {fitted.parameters_.name}: "
        f"{measured_verdict(found, fitted.image_shape_, missing=suite.missing)}"
    )
    return fitted.disclosure_.with_recovery(*rows, verdict=verdict)


def attack_pixel(parameters: Any, *, trials: int, seed: int) -> Attack:
    """A pixel of 0 or of all ones, by the likelihood ratio of its bits' counts."""
    top = 2**parameters.depth - 1
    wrong = np.clip(parameters.p_diff, 1e-12, 1 - 1e-12)
    weight = np.log(1 - wrong) - np.log(wrong)

    def statistic(counts: NDArray[Any]) -> NDArray[np.float64]:
        """Sightings of zeros speak for the pixel of 0, bit by bit."""
        return np.asarray((counts[:, :, 0].astype(float) - counts[:, :, 1]) @ weight)

    if isinstance(parameters, FlipParameters):
        sides = [_flipped(parameters, value, trials, seed + value) for value in (0, top)]
        what, delta = "likelihood ratio of a pixel's flipped bits", 0.0
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
        what, delta = "likelihood ratio of a pixel's counts", leak_of(parameters).delta
    return attack_outcomes(
        Outcomes(sides[0], sides[1]), what=what, delta=delta, statistic=statistic
    )


def sketch_card(parameters: Any, shape: tuple[int, int, int]) -> tuple[Disclosure, float]:
    """The disclosure of sketches with these parameters, and the epsilon per pixel that they
    imply.
    """
    leak = leak_of(parameters)
    return disclosure_of(parameters, leak, shape), leak.epsilon_pixel


def attack_prototypes(sketcher: Any, *, trials: int, seed: int) -> Attack:
    """The sketcher's own answers about two of its prototypes' pictures."""
    pictures = np.asarray(sketcher.prototypes_.reshape(-1, *sketcher.image_shape_))
    nearest = sketcher.nearest(pictures)
    pair = pictures[0], pictures[int((nearest != nearest[0]).argmax())]
    cells = np.eye(sketcher.mechanism_.k, dtype=np.uint8)
    what = "its own answers about two images that it tells apart"
    return attack_release(
        lambda images: cells[sketcher.transform(images)], pair, what=what, trials=trials, seed=seed
    )


def _flipped(parameters: Any, value: int, trials: int, seed: int) -> NDArray[np.uint8]:
    """Counts of one pixel of this value, a row per trial, as `FlippedBits` itself releases them."""
    images = np.full((trials, 1, 1, 1), value, np.uint8 if parameters.depth <= 8 else np.uint16)
    with drawing_from(np.random.default_rng(seed)):
        counts = (
            FlippedBits(parameters.epsilon_pixel, depth=parameters.depth)
            .fit(images[:1])
            .transform(images)
        )
    return np.asarray(counts[:, 0, :, :, 0, 0])
