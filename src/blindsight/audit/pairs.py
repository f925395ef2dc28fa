"""Attacks on learned metrics: which of two conjectures about private labels gave this metric?

The paper's Figure 1: an attacker who knows all pairs but one label trains a metric for either conjecture and matches
both against the released one. The hub attack asks the same about a person rather than a pair: whoever knows the
classes of those a person was compared with needs only that person's class, which flips the labels of all its pairs at
once. On a star kappa = 1, and yet all k pairs testify.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.audit.blackbox import Outcomes, collect, distinguish_outcomes
from blindsight.audit.bounds import clopper_pearson
from blindsight.core import checks
from blindsight.core.errors import InvalidData
from blindsight.privacy import Audited, Recovery

__all__ = ["Conjectures", "flip_hub", "flip_pair", "match_conjectures"]

Learner = Callable[[Any, np.random.Generator], NDArray[np.float64]]


@dataclass(frozen=True)
class Conjectures:
    """How often the attacker told two label sets apart, and the lower bound on epsilon that follows."""

    right: int
    guesses: int
    audited: Audited

    @property
    def accuracy(self) -> float:
        """The share of right guesses; 0.5 is chance."""
        return self.right / self.guesses

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Clopper-Pearson bounds on the accuracy."""
        return clopper_pearson(self.right, self.guesses, error=(1 - confidence) / 2)

    def recovery(self) -> Recovery:
        """The result as a row of a card."""
        return Recovery(attack=self.audited.attack, measure="share of right guesses", value=self.accuracy, chance=0.5)


def flip_pair(y: Any, pair: int) -> NDArray[np.bool_]:
    """The other conjecture about one pair's label."""
    other = np.array(y, dtype=bool)
    other[pair] = ~other[pair]
    return other


def flip_hub(pairs: Any, y: Any, hub: int) -> NDArray[np.bool_]:
    """The labels if the hub were of the other of two classes: all its pairs change."""
    touched = (np.asarray(pairs) == hub).any(axis=1)
    if not touched.any():
        raise InvalidData("the hub must be in a pair; this record is in none.")
    return np.where(touched, ~np.asarray(y, dtype=bool), np.asarray(y, dtype=bool))


def match_conjectures(
    learn: Learner,
    first: Any,
    second: Any,
    *,
    trials: int,
    seed: int = 0,
    delta: float = 0.0,
    confidence: float = 0.95,
    workers: int = 1,
) -> Conjectures:
    """Learn `trials` metrics under each of two label sets; train the attacker on half, let it guess on the other half.

    Parameters
    ----------
    learn: (labels, rng) -> released matrix; a deterministic learner may ignore the dice.
    delta: the release's own, subtracted before the bound on epsilon is drawn.

    The attacker projects a metric on the difference of the mean conjectures and asks which it is nearer to, which for
    a deterministic learner is the paper's matching. Beside the guesses the same runs give the lower bound on epsilon.
    """
    outcomes = collect(learn, first, second, trials=checks.whole("trials", trials, least=8), seed=seed, workers=workers)
    half = len(outcomes.data) // 2
    project = _matching(Outcomes(outcomes.data[:half], outcomes.neighbour[:half]))
    said_first, said_second = project(outcomes.data[half:]) > 0, project(outcomes.neighbour[half:]) <= 0
    audited = distinguish_outcomes(outcomes, confidence=confidence, delta=delta, statistic=project)
    return Conjectures(int(said_first.sum() + said_second.sum()), len(said_first) + len(said_second), audited)


def _matching(known: Outcomes) -> Callable[[NDArray[Any]], NDArray[np.float64]]:
    """Positive where a metric is nearer to the first mean conjecture than to the second."""
    first, second = (
        np.asarray(side, np.float64).reshape(len(side), -1).mean(axis=0) for side in (known.data, known.neighbour)
    )
    direction, middle = first - second, (first + second) / 2
    return lambda metrics: (np.asarray(metrics, np.float64).reshape(len(metrics), -1) - middle) @ direction
