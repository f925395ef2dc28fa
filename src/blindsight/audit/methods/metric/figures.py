"""A metric: how often an attacker is right about one label."""

from __future__ import annotations

import math

from blindsight.audit.methods.metric.attacks import match_conjectures, pair_learner, toy_pairs
from blindsight.audit.report.figures import Figure, guesses
from blindsight.audit.target import Audit
from blindsight.privacy import Guarantee

__all__ = ["figures"]


def figures(found: Audit, *, seed: int = 0, trials: int = 60) -> list[Figure]:
    """The paper's Figure 1: which of two conjectures about one label gave this metric?"""
    own, card = found.subject, found.card
    assert isinstance(card, Guarantee)  # noqa: S101  (a metric's card)
    pairs, first, second = toy_pairs(own, seed=seed)
    settings = {"your file's settings": {}, "hardly any noise (ε = 10,000)": {"epsilon": 1e4}}
    told = {
        name: match_conjectures(
            pair_learner(own, pairs, **changes), first, second, trials=trials, seed=seed
        )
        for name, changes in settings.items()
    }
    bars = {name: (result.accuracy, *result.interval()) for name, result in told.items()}
    steps = found.attacks[0].steps if found.attacks else 1
    most = 1.0 if math.isinf(card.epsilon) else 1 / (1 + math.exp(-min(steps * card.epsilon, 700)))
    rows = [
        {
            "settings": name,
            "right guesses": round(mid, 3),
            "at least": round(low, 3),
            "at most": round(high, 3),
        }
        for name, (mid, low, high) in bars.items()
    ]
    shown = Figure(
        "What the metric tells about one label",
        "There are no pictures in a metric. The attacker knows all of four pairs but one label, "
        "learns the metric "
        "under either conjecture, and says which one a released metric came from: share of right "
        "guesses of "
        f"{trials}, with 95% intervals. One half is chance; the green line is the most that the "
        "proven epsilon "
        "leaves possible.",
        guesses(bars, most=most if most < 1 else None),
        rows,
    )
    return [shown]
