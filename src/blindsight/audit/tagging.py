"""Attacks on a tagger that only sees its answers: asking again and again, and telling members of the training set.

Repeated queries: noise that is drawn anew for every answer averages out, so a hundred answers about one image are
nearly the answer without noise. Membership: a model fits its training records better than others, and the answers show
it. Both succeed against answers without protection, and against fresh noise with enough repeats; a budget that counts
every answer stops the first, and differentially private training bounds the second.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.audit.blackbox import Outcomes, collect_at_once, distinguish_outcomes
from blindsight.audit.membership import roc
from blindsight.core import checks
from blindsight.core.errors import BudgetExceeded
from blindsight.privacy import Audited, Recovery

__all__ = [
    "average_answers",
    "distinguish_images",
    "largest_auc",
    "membership_from_answers",
    "membership_scores",
    "repeated_queries",
]

Ask = Callable[[NDArray[Any]], NDArray[np.float64]]


def average_answers(ask: Ask, images: NDArray[Any], *, repeats: int) -> tuple[NDArray[np.float64], int]:
    """The mean of many answers about the same images, and how many rounds were answered before the budget ended."""
    total, answered = None, 0
    for _ in range(checks.whole("repeats", repeats)):
        try:
            scores = np.asarray(ask(images), np.float64)
        except BudgetExceeded:
            break
        total = scores if total is None else total + scores
        answered += 1
    if total is None:
        return np.zeros((len(images), 0)), 0
    return total / answered, answered


def repeated_queries(ask: Ask, images: NDArray[Any], secret: NDArray[np.float64], *, repeats: int) -> Recovery:
    """How well the averaged answers follow the model's own outputs (`secret`): their rank correlation."""
    from scipy.stats import spearmanr

    scores, answered = average_answers(ask, images, repeats=repeats)
    found = 0.0
    if answered and np.ptp(scores) > 0:
        found = float(spearmanr(scores.ravel(), np.asarray(secret).ravel()).statistic)
    return Recovery(
        attack=f"averaging {answered} answers about the same images",
        measure="rank correlation with the unprotected outputs",
        value=found,
        chance=0.0,
    )


def distinguish_images(
    answer: Callable[[NDArray[np.float64], np.random.Generator], NDArray[np.float64]],
    here: NDArray[np.float64],
    there: NDArray[np.float64],
    *,
    trials: int = 10_000,
    repeats: int = 1,
    seed: int = 0,
    confidence: float = 0.95,
    delta: float = 0.0,
) -> Audited:
    """A lower bound on the epsilon of `repeats` answers: were they about the image `here` or `there` (logits)?

    `answer(logits, rng)` answers one row a query. The mean over repeats is what is looked at.
    """
    answers = collect_at_once(answer, here, there, trials=trials * repeats, seed=seed)
    means = (side.reshape(trials, repeats, -1).mean(axis=1) for side in (answers.data, answers.neighbour))
    return distinguish_outcomes(Outcomes(*means), confidence=confidence, delta=delta)


def membership_scores(scores: NDArray[np.float64], labels: NDArray[Any]) -> NDArray[np.float64]:
    """How well answers fit the true labels of each record: the mean score of its labels minus that of the others."""
    on = np.asarray(labels) > 0
    inside = (scores * on).sum(axis=1) / np.maximum(on.sum(axis=1), 1)
    outside = (scores * ~on).sum(axis=1) / np.maximum((~on).sum(axis=1), 1)
    return inside - outside


def membership_from_answers(
    ask: Ask, images: NDArray[Any], labels: NDArray[Any], included: NDArray[np.bool_], *, repeats: int = 1
) -> Recovery:
    """The area under the ROC curve of "answers fit the labels well, so it was a training record"."""
    scores, answered = average_answers(ask, images, repeats=repeats)
    auc = 0.5
    if answered:
        fpr, tpr = roc(membership_scores(scores, labels), np.asarray(included, bool))
        auc = float(np.trapezoid(tpr, fpr))
    return Recovery(
        attack=f"membership from {answered} answers a record", measure="area under the ROC curve", value=auc, chance=0.5
    )


def largest_auc(epsilon: float, delta: float = 0.0) -> float:
    """The largest area under the ROC curve that (epsilon, delta)-privacy of the training set leaves possible.

    Every attack's curve lies below min(e^ε f + δ, 1 - e^-ε (1 - δ - f)) (Kairouz, Oh and Viswanath 2015).
    """
    grow = math.exp(min(checks.non_negative("epsilon", epsilon, infinite=True), 700))
    f = np.linspace(0, 1, 200_001)
    curve = np.minimum(np.minimum(grow * f + delta, 1 - (1 - delta - f) / grow), 1.0)
    return float(np.trapezoid(np.clip(curve, 0, 1), f))
