"""Negative databases: the sketch's counts are told apart bit by bit, the records are solved by
belief propagation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.audit.engine.blackbox import Outcomes, distinguish_outcomes
from blindsight.audit.methods.sketching.attacks import reverse
from blindsight.audit.report.verdict import Verdict
from blindsight.privacy import Audited, Recovery
from blindsight.sketching import NegativeSketcher, leak_of
from blindsight.sketching.attackers import Suite
from blindsight.sketching.parameters import QKParameters

__all__ = ["verdicts"]

_ADVICE = (
    "no Q hides an image from one who knows similar ones; use a proven local input, or keep images "
    "at home"
)


def verdicts(images: NDArray[Any], *, trials: int, seed: int = 0) -> Iterator[Verdict]:
    """`images` are uint8 (n, h, w): the first bit of one pixel by its counts, the picture, and the
    records.
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
    # Every pixel of a flat image is one trial: its first bit is 0 on one side, 1 on the other.
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


def _first_counts(sketcher: NegativeSketcher, images: NDArray[Any]) -> NDArray[Any]:
    """(wrong, true) sightings of the first bit of every pixel, one row a pixel."""
    counts = sketcher.sketch(images).counts[:, 0, 0]
    return np.moveaxis(counts, 1, -1).reshape(-1, 2)


def _picture(name: str, images: NDArray[Any], *, seed: int) -> Verdict:
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


def _records(name: str, image: NDArray[Any], *, seed: int) -> Verdict:
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
