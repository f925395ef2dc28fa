"""What an attacker who only asks gets: by asking again, and by telling members of the training
set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.harness import Row
from blindsight.audit.engine.blackbox import Outcomes, collect_at_once, distinguish_outcomes
from blindsight.audit.engine.inference import roc
from blindsight.audit.methods.tagging import average_answers, membership_scores, repeated_queries
from blindsight.core import checks
from blindsight.core.arrays import Array, Bools, Floats
from blindsight.privacy.guarantee import Audited, Recovery

__all__ = ["attack_rows", "distinguish_images", "largest_auc", "membership_from_answers"]

Ask = Callable[[Array], Floats]


def distinguish_images(
    answer: Callable[[Floats, np.random.Generator], Floats],
    here: Floats,
    there: Floats,
    *,
    trials: int = 10_000,
    repeats: int = 1,
    seed: int = 0,
    confidence: float = 0.95,
    delta: float = 0.0,
) -> Audited:
    """A lower bound on the epsilon of `repeats` answers: were they about the image `here` or
    `there` (logits)?

    `answer(logits, rng)` answers one row a query. The mean over repeats is what is looked at.
    """
    answers = collect_at_once(answer, here, there, trials=trials * repeats, seed=seed)
    means = (
        side.reshape(trials, repeats, -1).mean(axis=1) for side in (answers.data, answers.neighbour)
    )
    return distinguish_outcomes(Outcomes(*means), confidence=confidence, delta=delta)


def membership_from_answers(
    ask: Ask,
    images: Array,
    labels: Array,
    included: Bools,
    *,
    repeats: int = 1,
) -> Recovery:
    """The area under the ROC curve of "answers fit the labels well, so it was a training
    record".
    """
    scores, answered = average_answers(ask, images, repeats=repeats)
    auc = 0.5
    if answered:
        fpr, tpr = roc(membership_scores(scores, labels), np.asarray(included, bool))
        auc = float(np.trapezoid(tpr, fpr))
    return Recovery(
        attack=f"membership from {answered} answers a record",
        measure="area under the ROC curve",
        value=auc,
        chance=0.5,
    )


def largest_auc(epsilon: float, delta: float = 0.0) -> float:
    """The largest area under the ROC curve that (epsilon, delta)-privacy of the training set leaves
    possible.

    Every attack's curve lies below min(e^ε f + δ, 1 - e^-ε (1 - δ - f)) (Kairouz, Oh and Viswanath
    2015).
    """
    grow = math.exp(min(checks.non_negative("epsilon", epsilon, infinite=True), 700))
    f = np.linspace(0, 1, 200_001)
    curve = np.minimum(np.minimum(grow * f + delta, 1 - (1 - delta - f) / grow), 1.0)
    return float(np.trapezoid(np.clip(curve, 0, 1), f))


def attack_rows(*, quick: bool, seed: int) -> Iterator[Row]:
    """Repeats and membership, with no protection, under paper calibration, and proven."""
    from blindsight.tagging import P2MLGCN, DPTraining, GraphHead, PrivateTagger, Schedule, Tagger

    rng = np.random.default_rng(seed)
    count = 200 if quick else 400
    x = rng.normal(size=(2 * count, 200)).astype(np.float32)
    y = (x @ rng.normal(size=(200, 8)) + 6 * rng.normal(size=(2 * count, 8)) > 4).astype(np.uint8)
    included = np.arange(2 * count) < count
    common = {"head": GraphHead(hidden=128), "schedule": Schedule(30, learning_rate=3e-3)}
    plain = Tagger(random_state=rng, **common).fit(x[included], y[included])
    paper = P2MLGCN(10.0, random_state=rng, **common).fit(x[included], y[included])
    proven = PrivateTagger(DPTraining(epsilon=1.0), classes=8, random_state=rng).fit(
        x[included], y[included]
    )
    cost = proven.guarantee_.cost
    views = (
        ("unprotected", plain.logits, 1, None),
        ("paper.once", paper.decision_function, 1, None),
        ("paper.100_repeats", paper.decision_function, 100, None),
        ("proven.exact", proven.decision_function, 1, largest_auc(cost.epsilon, cost.delta)),
    )
    for name, ask, repeats, bound in views:
        found = membership_from_answers(ask, x, y, included, repeats=repeats)
        limit = (
            "" if bound is None else f"; the bound at record ε = {cost.epsilon:.3g} is {bound:.3f}"
        )
        yield Row(id=f"tagging.attack.membership.{name}", value=found.value, unit="AUC", seed=seed,
                  note=found.attack + limit)  # fmt: skip
    for repeats in (1, 10, 100):
        found = repeated_queries(
            paper.decision_function, x[:50], paper.logits(x[:50]), repeats=repeats
        )
        yield Row(
            id=f"tagging.attack.averaging.{repeats}",
            value=found.value,
            unit="rank correlation",
            seed=seed,
            note="paper calibration, claimed ε = 10; a ledger per query stops the repeats",
        )
