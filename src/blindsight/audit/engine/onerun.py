"""(c) One-run auditing (Steinke, Nasr and Jagielski 2023): many canaries, one training, guesses
about each.

Every canary is in the data with probability one half, by its own coin. After one run the attacker
scores them and guesses "in" for the highest and "out" for the lowest. How often it is right bounds
epsilon from below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.audit.engine.bounds import epsilon_from_guesses
from blindsight.core import checks
from blindsight.core.errors import InvalidData
from blindsight.privacy import Audited

__all__ = ["audit_in_one_run", "audit_scores"]


def audit_in_one_run(
    train: Callable[[NDArray[np.bool_], np.random.Generator], Any],
    score: Callable[[Any], NDArray[np.float64]],
    *,
    canaries: int,
    seed: int = 0,
    confidence: float = 0.95,
    delta: float = 0.0,
) -> Audited:
    """Audit a training: `train(included, rng)` gets the canaries' coins, `score(model)` gives one
    score a canary.
    """
    rng = np.random.default_rng(seed)
    included = rng.random(checks.whole("canaries", canaries, least=4)) < 0.5
    scores = np.asarray(score(train(included, rng)), np.float64)
    return audit_scores(scores, included, confidence=confidence, delta=delta)


def audit_scores(
    scores: NDArray[np.float64],
    included: NDArray[np.bool_],
    *,
    confidence: float = 0.95,
    delta: float = 0.0,
) -> Audited:
    """The bound from scores and coins; how many to guess is tried on a grid, sharing the error over
    it.
    """
    if scores.shape != included.shape or not np.isfinite(scores).all():
        raise InvalidData(
            f"expected one finite score for each of {len(included)} canaries, got shape "
            f"{scores.shape}."
        )
    count = len(scores)
    order = np.argsort(-scores, kind="stable")
    sizes = sorted({max(1, count // part) for part in (2, 4, 8, 16, 32)})
    share = 1 - (1 - confidence) / len(sizes)
    best = 0.0
    for size in sizes:
        correct = int(included[order[:size]].sum() + (~included[order[-size:]]).sum())
        best = max(
            best,
            epsilon_from_guesses(correct, 2 * size, canaries=count, confidence=share, delta=delta),
        )
    return Audited(epsilon=best, confidence=confidence, attack="one run, canaries", trials=count)
