"""Attacks on learned metrics: which of two conjectures about private labels gave this metric?

The paper's Figure 1: an attacker who knows all pairs but one label trains a metric for either
conjecture and matches both against the released one. The hub attack asks the same about a person
rather than a pair: whoever knows the classes of those a person was compared with needs only that
person's class, which flips the labels of all its pairs at once. On a star kappa = 1, and yet all k
pairs testify.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from blindsight.audit.engine.blackbox import Outcomes, collect, distinguish_outcomes
from blindsight.audit.engine.bounds import clopper_pearson
from blindsight.audit.engine.worst_inputs import Attack, attack_outcomes
from blindsight.core import checks
from blindsight.core.errors import InvalidData
from blindsight.privacy import Audited, Recovery

__all__ = [
    "Conjectures",
    "attack_metric",
    "flip_hub",
    "flip_pair",
    "match_conjectures",
    "pair_learner",
    "pair_settings",
    "toy_pairs",
]

Learner = Callable[[Any, np.random.Generator], NDArray[np.float64]]
_COLUMNS = 48


@dataclass(frozen=True)
class Conjectures:
    """How often the attacker told two label sets apart, and the lower bound on epsilon that
    follows.
    """

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
        return Recovery(
            attack=self.audited.attack,
            measure="share of right guesses",
            value=self.accuracy,
            chance=0.5,
        )


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
    """Learn `trials` metrics under each of two label sets; train the attacker on half, let it guess
    on the other half.

    Parameters:
        learn: (labels, rng) -> released matrix; a deterministic learner may ignore the dice.
        delta: the release's own, subtracted before the bound on epsilon is drawn.

    The attacker projects a metric on the difference of the mean conjectures and asks which it is
    nearer to, which for a deterministic learner is the paper's matching. Beside the guesses the
    same runs give the lower bound on epsilon.
    """
    outcomes = collect(
        learn,
        first,
        second,
        trials=checks.whole("trials", trials, least=8),
        seed=seed,
        workers=workers,
    )
    half = len(outcomes.data) // 2
    project = _matching(Outcomes(outcomes.data[:half], outcomes.neighbour[:half]))
    said_first, said_second = (
        project(outcomes.data[half:]) > 0,
        project(outcomes.neighbour[half:]) <= 0,
    )
    audited = distinguish_outcomes(outcomes, confidence=confidence, delta=delta, statistic=project)
    return Conjectures(
        int(said_first.sum() + said_second.sum()), len(said_first) + len(said_second), audited
    )


def _matching(known: Outcomes) -> Callable[[NDArray[Any]], NDArray[np.float64]]:
    """Positive where a metric is nearer to the first mean conjecture than to the second."""
    first, second = (
        np.asarray(side, np.float64).reshape(len(side), -1).mean(axis=0)
        for side in (known.data, known.neighbour)
    )
    direction, middle = first - second, (first + second) / 2
    return lambda metrics: (
        (np.asarray(metrics, np.float64).reshape(len(metrics), -1) - middle) @ direction
    )


def toy_pairs(metric: Any, *, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Four pairs, and two conjectures about their labels that differ in the first, whose records
    are far apart.
    """
    columns = min(_COLUMNS, int(metric.n_features_in_))
    pairs = 0.3 * np.random.default_rng(seed).standard_normal((4, 2, columns))
    pairs[0] = np.eye(2, columns) * np.array([[1.0], [-1.0]])
    return pairs, np.array([0, 1, 0, 1]), np.array([1, 1, 0, 1])


def attack_metric(metric: Any, *, runs: int, seed: int) -> Attack:
    """Change one pair's label: do its learned distance, and the map's size, tell?"""
    pairs, similar, other = toy_pairs(metric, seed=seed)
    outcomes: Outcomes = collect(
        pair_learner(metric, pairs), similar, other, trials=runs, seed=seed
    )
    # A changed label is a pair removed and a pair added: two steps of "add or remove one".
    steps = 2 if metric.guarantee_.neighbours == "add or remove one" else 1
    return attack_outcomes(
        outcomes,
        what="refit with one of 4 labels changed",
        delta=metric.guarantee_.cost.per(metric.guarantee_.unit, times=steps).delta,
        steps=steps,
    )


def pair_learner(
    metric: Any, pairs: NDArray[Any], **changes: Any
) -> Callable[[Any, np.random.Generator], NDArray[np.float64]]:
    """(labels, rng) -> what the attacker looks at of the metric they give: the first pair's
    distance, and the size.
    """
    first = pairs[0, 0] - pairs[0, 1]

    def run(y: Any, dice: np.random.Generator) -> NDArray[np.float64]:
        M = refitted(metric, pairs, y, dice, **changes).get_mahalanobis_matrix()
        return np.array([first @ M @ first, np.trace(M)])

    return run


def refitted(metric: Any, pairs: Any, y: Any, dice: np.random.Generator, **changes: Any) -> Any:
    """The same estimator, learned from these pairs."""
    settings = {
        "random_state": dice,
        "n_components": None,
        "preprocessor": None,
        **pair_settings(metric),
    }
    return clone(metric).set_params(**{**settings, **changes}).fit(pairs, y)


def pair_settings(metric: Any) -> dict[str, Any]:
    """How `DPPMetric` is set to learn from other pairs as it did from its own; nothing for the
    paper's estimators.

    By the loss that was used (tuples by pairs), and without bounds, which speak of the file's own
    columns.
    """
    if "loss" not in metric.get_params():
        return {}
    loss = metric.loss_ if metric.loss_ in ("moments", "contrastive") else "contrastive"
    return {
        "loss": loss,
        "scale": metric.scale if isinstance(metric.scale, str) else None,
        "kappa": "second",
    }
