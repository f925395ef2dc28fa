"""Attacks on a tagger that only sees its answers: asking again and again, and telling members of
the training set.

Repeated queries: noise that is drawn anew for every answer averages out, so a hundred answers about
one image are nearly the answer without noise. Membership: a model fits its training records better
than others, and the answers show it. Both succeed against answers without protection, and against
fresh noise with enough repeats; a budget that counts every answer stops the first, and
differentially private training bounds the second.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from blindsight.audit.engine.blackbox import (
    Outcomes,
    collect,
    collect_at_once,
    distinguish_outcomes,
)
from blindsight.audit.engine.listeners import drawing_from
from blindsight.audit.engine.membership import roc
from blindsight.audit.engine.worst_inputs import (
    Attack,
    attack_mechanism,
    attack_outcomes,
    attack_release,
)
from blindsight.core import checks
from blindsight.core.errors import BudgetExceeded
from blindsight.privacy import Audited, Recovery
from blindsight.privacy.mechanisms import Laplace
from blindsight.tagging.answers import Exact
from blindsight.tagging.labels import label_names

__all__ = [
    "attack_answers",
    "attack_plan",
    "attack_printed",
    "attack_training",
    "average_answers",
    "distinguish_images",
    "largest_auc",
    "membership_from_answers",
    "membership_scores",
    "repeated_queries",
]

Ask = Callable[[NDArray[Any]], NDArray[np.float64]]
_COLUMNS, _LABELS = 16, 8  # of toy records
_RAW = 5.0  # what raw logits are within, for an attacker who asks about ordinary images


def average_answers(
    ask: Ask, images: NDArray[Any], *, repeats: int
) -> tuple[NDArray[np.float64], int]:
    """The mean of many answers about the same images, and how many rounds were answered before the
    budget ended.
    """
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


def repeated_queries(
    ask: Ask, images: NDArray[Any], secret: NDArray[np.float64], *, repeats: int
) -> Recovery:
    """How well the averaged answers follow the model's own outputs (`secret`): their rank
    correlation.
    """
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
    """A lower bound on the epsilon of `repeats` answers: were they about the image `here` or
    `there` (logits)?

    `answer(logits, rng)` answers one row a query. The mean over repeats is what is looked at.
    """
    answers = collect_at_once(answer, here, there, trials=trials * repeats, seed=seed)
    means = (
        side.reshape(trials, repeats, -1).mean(axis=1) for side in (answers.data, answers.neighbour)
    )
    return distinguish_outcomes(Outcomes(*means), confidence=confidence, delta=delta)


def membership_scores(scores: NDArray[np.float64], labels: NDArray[Any]) -> NDArray[np.float64]:
    """How well answers fit the true labels of each record: the mean score of its labels minus that
    of the others.
    """
    on = np.asarray(labels) > 0
    inside = (scores * on).sum(axis=1) / np.maximum(on.sum(axis=1), 1)
    outside = (scores * ~on).sum(axis=1) / np.maximum((~on).sum(axis=1), 1)
    return np.asarray(inside - outside)


def membership_from_answers(
    ask: Ask,
    images: NDArray[Any],
    labels: NDArray[Any],
    included: NDArray[np.bool_],
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


def attack_answers(tagger: Any, *, trials: int, seed: int) -> list[Attack]:
    """One answer: the tagger's own about opposite logits, and its noise by the likelihood ratio on
    its worst inputs.
    """
    # Twice the bound: a clipping that is forgotten shows.
    reach = 2 * float(getattr(tagger.answer_mechanism_, "bound", _RAW))
    mixed = reach * np.where(
        np.arange(tagger.n_labels_) % 2, -1.0, 1.0
    )  # all alike would all be the top tags
    noise = tagger.answer_mechanism_.noise(tagger.n_labels_)

    def answer(logits: NDArray[Any]) -> NDArray[Any]:
        found = tagger.noisy(logits)
        return np.hstack([found.scores, found.tags])

    return [
        attack_mechanism(noise, trials=trials, seed=seed),
        attack_release(
            answer,
            (mixed, -mixed),
            what="one answer about opposite images",
            trials=max(1000, trials // 5),
            seed=seed,
            delta=noise.cost.delta,
        ),
    ]


def attack_training(tagger: Any, *, runs: int, seed: int) -> Attack:
    """Training itself, again and again from 40 toy records: was the first of them there?"""
    rng = np.random.default_rng(seed)
    columns, labels = min(_COLUMNS, tagger.n_features_in_), min(_LABELS, tagger.n_labels_)
    rows, said = (
        rng.standard_normal((40, columns)),
        (rng.random((40, labels)) < 0.3).astype(np.uint8),
    )
    rows[0], said[0] = 5 * np.eye(columns)[0], 1  # a record that looks like no other
    named = (
        None if tagger.classes is None else label_names(tagger.classes, tagger.n_labels_)[:labels]
    )
    toy = clone(tagger).set_params(
        answers=Exact(), classes=named, public=None, prior=None, random_state=None
    )

    def run(absent: tuple[int, ...], dice: np.random.Generator) -> NDArray[Any]:
        with drawing_from(dice, absent=absent):
            fitted = clone(toy).fit(rows, said)
        return np.concatenate([fitted.logits(rows[:1])[0], np.ravel(fitted.released_["counts"])])

    return attack_outcomes(
        collect(run, (), (0,), trials=runs, seed=seed),
        what="trained again with one of 40 records there or not",
        delta=tagger.guarantee_.delta,
    )


def attack_printed(release: Any, *, trials: int, seed: int) -> Attack:
    """The paper's answer about opposite images, by its likelihood ratio."""
    bound = _RAW if release.clip is None else float(release.clip)
    # Raw logits have no clipping to forget.
    reach = bound if release.clip is None else 2 * bound
    high, low = np.full(release.n_labels, reach), np.full(release.n_labels, -reach)
    noise = Laplace(scale=release.scale, sensitivity=1.0, unit="query")
    ends = np.clip(high, -bound, bound), np.clip(low, -bound, bound)
    # The noise is cheap to draw and the claims are large: more runs lift the ceiling of what can be
    # measured.
    outcomes = collect_at_once(
        lambda logits, rng: release.answer(logits, rng=rng).scores,
        high,
        low,
        trials=max(1000, 5 * trials),
        seed=seed,
    )
    return attack_outcomes(
        outcomes,
        what="one answer about opposite images",
        statistic=lambda scores: (
            noise.log_prob(scores, ends[0]) - noise.log_prob(scores, ends[1])
        ).sum(axis=1),
    )


def attack_plan(guarantee: Any, *, trials: int, seed: int) -> list[Attack]:
    """Everything that is released about a record, together: each release on its worst pair, by the
    likelihood ratio.
    """
    parts = [
        (item.mechanism, item.mechanism.worst_pair())
        for item in guarantee.releases
        for _ in range(item.count)
    ]
    if not parts or guarantee.unproven:
        return []
    here, there = (np.concatenate([np.ravel(pair[side]) for _, pair in parts]) for side in (0, 1))
    widths = np.cumsum([0] + [np.size(pair[0]) for _, pair in parts])

    def release(values: NDArray[Any], rng: Any) -> NDArray[Any]:
        return np.hstack([
            np.asarray(noise.release(values[:, start:end], rng=rng))
            for (noise, _), start, end in zip(parts, widths, widths[1:], strict=False)
        ])  # fmt: skip

    def statistic(released: NDArray[Any]) -> NDArray[np.float64]:
        total = np.zeros(len(released))
        for (noise, pair), start, end in zip(parts, widths, widths[1:], strict=False):
            seen = released[:, start:end]
            total += (noise.log_prob(seen, pair[0]) - noise.log_prob(seen, pair[1])).sum(axis=1)
        return total

    outcomes = collect_at_once(release, here, there, trials=trials, seed=seed)
    what = f"likelihood ratio of all {len(parts)} releases on their worst inputs"
    return [attack_outcomes(outcomes, what=what, delta=guarantee.delta, statistic=statistic)]
