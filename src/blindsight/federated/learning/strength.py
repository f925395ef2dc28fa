"""The regularisation's strength, adapted until the local weights are as sparse as wanted (Section
3.2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.federated.learning.linear import sparsity
from blindsight.federated.learning.proximal import Proximal
from blindsight.federated.learning.sgd import SGD

__all__ = ["adapt"]

Learner = TypeVar("Learner", Proximal, SGD)
Matrix = NDArray[np.float64]
_WEAKEST, _STRONGEST = 1e-8, 1e4


def adapt(
    learner: Learner,
    fit: Callable[[Learner], Matrix],
    *,
    target: float,
    tolerance: float = 0.01,
    trials: int = 14,
) -> tuple[Matrix, Learner]:
    """The weights, and the learner with the least strength found that makes a `target` share of
    them zero.

    `fit` trains a learner and returns its weights. The search doubles or halves from the learner's
    own strength until the target is bracketed, then halves the bracket on the logarithmic scale. It
    stops within `tolerance` above the target, because past it accuracy goes: at 99.9% sparsity
    nearly nothing is left.
    """
    checks.probability("target", target, below_one=True)
    low: float | None = None
    high: float | None = None
    best: tuple[Matrix, Learner] | None = None
    tried = replace(learner, strength=max(learner.strength, _WEAKEST))
    for _ in range(checks.whole("trials", trials)):
        weights = fit(tried)
        reached = sparsity(weights)
        if reached >= target:
            best, high = (weights, tried), tried.strength
            if reached <= target + tolerance or high <= _WEAKEST:
                break
        else:
            low = tried.strength
            if low >= _STRONGEST:
                break
        tried = replace(tried, strength=_between(low, high))
    if best is None:  # nothing reached the target: the sparsest there is
        best = fit(replace(learner, strength=_STRONGEST)), replace(learner, strength=_STRONGEST)
    return best


def _between(low: float | None, high: float | None) -> float:
    if low is None or high is None:
        given: Any = high / 4 if low is None and high is not None else (low or 1.0) * 4
        return float(np.clip(given, _WEAKEST, _STRONGEST))
    return float(np.sqrt(low * high))
