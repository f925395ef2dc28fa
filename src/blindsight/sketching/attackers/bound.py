"""Hold a goal against all attackers: walk along settings from loud to quiet until the best attacker
stays below.

Settings are measured, not computed, on public images of the size and kind that will be sketched:
half of them teach the network, the other half is attacked. The goal is kept for single images, not
on average, so what is compared with it is a bound on the next image's PSNR: the largest seen, or
further out where few were seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from blindsight.core.errors import InvalidParameter
from blindsight.sketching.attackers.rehearsal import rehearse
from blindsight.sketching.attackers.suite import Suite
from blindsight.sketching.parameters import QKParameters
from blindsight.sketching.preparation import window

__all__ = ["best_psnr", "bound_of", "quietest_needed"]

LEAST = 8  # reference images
ATTACKED = 32  # images that are attacked, at most
VALUES = 4_000_000  # pixels times channels that are attacked, at most: the bound on time
LEVEL = 0.98  # of the bound on the next image
STEPS = 6  # of bisection without the network
QUIETER = (
    0.88,
    0.75,
    0.5,
    0.25,
)  # steps down, in logarithms of the leak, where the network alone is above the goal


def bound_of(each: NDArray[np.float64]) -> float:
    """A bound on the PSNR of one more image of the kind: the largest seen, and a prediction limit
    where few were.
    """
    n = len(each)
    if n < 2:
        return float(each.max())
    far = each.mean() + student.ppf(LEVEL, n - 1) * each.std(ddof=1) * np.sqrt(1 + 1 / n)
    return float(max(each.max(), far))


def best_psnr(
    suite: Suite, images: NDArray[Any], *, rng: np.random.Generator
) -> NDArray[np.float64]:
    """PSNR of whichever attack did best, image by image."""
    found = suite.attack(rehearse(images, suite.parameters, rng=rng), images)
    return np.asarray(np.max([result.each for result in found], axis=0))


def quietest_needed(
    setting: Callable[[float], QKParameters],
    reference: NDArray[Any],
    goal: float,
    *,
    steps: int = 150,
    width: int = 16,
    random_state: Any = 0,
) -> QKParameters:
    """The loudest of the settings, from 1 (loud) to 0 (silent), under which every attacker stays
    below the goal.

    First by bisection without the network, which is quick; then with it, downwards from there.
    """
    images = window(
        np.asarray(reference)
    )  # as much of a large photo as attackers look at: the bound on time
    if len(images) < LEAST:
        raise InvalidParameter(
            f"reference must hold at least {LEAST} images, half to learn from, got {len(images)}."
        )
    rng = np.random.default_rng(random_state)
    order = rng.permutation(len(images))
    known, private = images[order[: len(images) // 2]], images[order[len(images) // 2 :]]
    private = private[: min(ATTACKED, max(4, VALUES // int(np.prod(private.shape[1:]))))]

    def excess(at: float, *, learn: bool) -> float:
        parameters = setting(at)
        suite = Suite(
            parameters,
            public=known if learn else None,
            steps=steps,
            width=width,
            random_state=random_state,
        )
        return bound_of(best_psnr(suite, private, rng=rng)) - goal

    silent = excess(0.0, learn=False)
    if silent > 0:
        raise InvalidParameter(
            f"max_psnr must be above {goal + silent:.2f} dB, which a guess without any sketch may "
            "reach on such "
            f"images, got {goal:g}."
        )
    low, high = 0.0, 1.0
    if excess(1.0, learn=False) <= 0:
        low = 1.0
    for _ in range(STEPS if low < 1 else 0):
        middle = (low + high) / 2
        low, high = (low, middle) if excess(middle, learn=False) > 0 else (middle, high)
    for share in (1.0, *QUIETER):
        over = excess(share * low, learn=True)
        if over <= 0 or low == 0:
            return setting(share * low)
    raise InvalidParameter(
        f"max_psnr cannot be held at {goal:g} dB: whoever learns from such images reaches "
        f"{goal + over:.2f} dB from "
        "next to nothing. Ask for more, or send nothing."
    )
