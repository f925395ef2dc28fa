"""A metric: how well it tells pairs apart by proven epsilon, and how often the pair-conjecture attack is right."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.base import clone

from blindsight import data
from blindsight.audit.figures import Figure, curves, guesses
from blindsight.audit.pairs import match_conjectures
from blindsight.audit.refits import pair_learner, pair_settings, toy_pairs
from blindsight.audit.target import Audit
from blindsight.privacy import Guarantee

__all__ = ["figures"]

_EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)


def figures(found: Audit, *, seed: int = 0) -> list[Figure]:
    """The curve and the attack."""
    return [_curve(found, seed), _conjectures(found, seed)]


def _curve(found: Audit, seed: int) -> Figure:
    digits = data.load("digits")
    X, labels = digits.array().reshape(len(digits), -1) / 255.0, np.asarray(digits.labels)
    pairs = np.random.default_rng(seed).permutation(len(X))[:1796].reshape(-1, 2)
    similar = labels[pairs[:, 0]] == labels[pairs[:, 1]]
    # Similar pairs are rare among random ones: join some within each digit.
    alike = np.concatenate([np.flatnonzero(labels == digit)[:80].reshape(-1, 2) for digit in range(10)])
    learn = np.concatenate([pairs[:500], alike])
    y = np.concatenate([similar[:500], np.ones(len(alike), bool)])
    own: Any = found.subject
    common: dict[str, Any] = {
        "preprocessor": X,
        "random_state": seed,
        "n_components": min(own.components_.shape[0], 64),
        **pair_settings(own),
    }

    def score(**settings: Any) -> float:
        return clone(own).set_params(**common | settings).fit(learn, y).score(pairs[500:], similar[500:])

    line = [(epsilon, score(epsilon=epsilon)) for epsilon in _EPSILONS]
    card: Any = found.card
    mine = float(card.epsilon), score()
    rows: list[dict[str, Any]] = [{"epsilon": e, "AUC": round(a, 4)} for e, a in line]
    rows.append({"epsilon": "your file: none proven" if math.isinf(mine[0]) else mine[0], "AUC": round(mine[1], 4)})
    return Figure(
        "What privacy costs",
        "Area under the ROC curve of telling similar from dissimilar pairs of built-in digits (learned from 900 "
        f"pairs), by proven epsilon per {card.unit}: the same estimator at other budgets, and your file's own.",
        curves(
            {"proven, as yours": line}, xlabel=f"proven epsilon per {card.unit}", ylabel="AUC", own=mine, chance=0.5
        ),
        rows,
    )


def _conjectures(found: Audit, seed: int, *, trials: int = 60) -> Figure:
    """The paper's Figure 1: which of two conjectures about one label gave this metric?"""
    own, card = found.subject, found.card
    assert isinstance(card, Guarantee)  # noqa: S101  (a metric's card)
    pairs, first, second = toy_pairs(own, seed=seed)
    settings = {"your file's settings": {}, "hardly any noise (ε = 10,000)": {"epsilon": 1e4}}
    told = {
        name: match_conjectures(pair_learner(own, pairs, **changes), first, second, trials=trials, seed=seed)
        for name, changes in settings.items()
    }
    bars = {name: (result.accuracy, *result.interval()) for name, result in told.items()}
    steps = found.attacks[0].steps if found.attacks else 1
    most = 1.0 if math.isinf(card.epsilon) else 1 / (1 + math.exp(-min(steps * card.epsilon, 700)))
    rows = [
        {"settings": name, "right guesses": round(mid, 3), "at least": round(low, 3), "at most": round(high, 3)}
        for name, (mid, low, high) in bars.items()
    ]
    return Figure(
        "What the metric tells about one label",
        "There are no pictures in a metric. The attacker knows all of four pairs but one label, learns the metric "
        "under either conjecture, and says which one a released metric came from: share of right guesses of "
        f"{trials}, with 95% intervals. One half is chance; the green line is the most that the proven epsilon "
        "leaves possible.",
        guesses(bars, most=most if most < 1 else None),
        rows,
    )
