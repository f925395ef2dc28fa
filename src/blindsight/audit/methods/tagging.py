"""Attacks on taggers, the verdicts on P2- and RP2-ML-GCN, and their figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
from sklearn.base import clone

from blindsight.audit.engine.blackbox import (
    Attack,
    attack_mechanism,
    attack_outcomes,
    attack_release,
    collect,
    collect_at_once,
    distinguish,
    distinguish_outcomes,
)
from blindsight.audit.engine.listeners import drawing_from
from blindsight.audit.report.page import Figure, curves
from blindsight.audit.report.verdict import Verdict
from blindsight.audit.target import Audit
from blindsight.core import checks
from blindsight.core.arrays import Array, Floats
from blindsight.core.errors import BudgetExceeded
from blindsight.privacy import Guarantee, Recovery
from blindsight.privacy.mechanisms import Laplace
from blindsight.tagging import (
    P2MLGCN,
    DPTraining,
    Exact,
    GraphHead,
    PrivateTagger,
    Schedule,
)
from blindsight.tagging.guarantee import LaplaceAnswers
from blindsight.tagging.labels import label_names
from blindsight.tagging.paper import PaperLaplace

__all__ = [
    "attack_answers",
    "attack_plan",
    "attack_printed",
    "attack_training",
    "average_answers",
    "figures",
    "membership_scores",
    "repeated_queries",
    "verdicts",
]

Ask = Callable[[Array], Floats]
_COLUMNS, _LABELS = 16, 8  # of toy records
_RAW = 5.0  # the range of raw logits of ordinary images


def average_answers(ask: Ask, images: Array, *, repeats: int) -> tuple[Floats, int]:
    """Ask about the same images repeatedly, until the budget ends.

    Returns:
        The mean answer, and the number of rounds that were answered.
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


def repeated_queries(ask: Ask, images: Array, secret: Floats, *, repeats: int) -> Recovery:
    """Return the rank correlation of averaged answers with the model's own outputs (`secret`)."""
    from scipy.stats import spearmanr

    scores, answered = average_answers(ask, images, repeats=repeats)
    correlation = 0.0
    if answered and np.ptp(scores) > 0:
        correlation = float(spearmanr(scores.ravel(), np.asarray(secret).ravel()).statistic)
    return Recovery(
        attack=f"averaging {answered} answers about the same images",
        measure="rank correlation with the unprotected outputs",
        value=correlation,
        chance=0.0,
    )


def membership_scores(scores: Floats, labels: Array) -> Floats:
    """Return for each record the mean score of its true labels minus that of the other labels."""
    on = np.asarray(labels) > 0
    inside = (scores * on).sum(axis=1) / np.maximum(on.sum(axis=1), 1)
    outside = (scores * ~on).sum(axis=1) / np.maximum((~on).sum(axis=1), 1)
    return np.asarray(inside - outside)


def attack_answers(tagger: PrivateTagger, *, trials: int, seed: int) -> list[Attack]:
    """Attack one answer in two ways.

    The first attacks the tagger's own answers about opposite logits; the second attacks its noise
    by the likelihood ratio on its worst inputs.
    """
    # Twice the bound, which reveals a missing clipping.
    reach = 2 * float(getattr(tagger.answer_mechanism_, "bound", _RAW))
    mixed = reach * np.where(
        np.arange(tagger.n_labels_) % 2, -1.0, 1.0
    )  # with equal logits all labels would be the top tags
    noise = tagger.answer_mechanism_.noise(tagger.n_labels_)

    def answer(logits: Array) -> Array:
        answers = tagger.noisy(logits)
        return np.hstack([answers.scores, answers.tags])

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


def attack_training(tagger: PrivateTagger, *, runs: int, seed: int) -> Attack:
    """Train many times on 40 toy records, with and without the first one."""
    rng = np.random.default_rng(seed)
    columns, labels = min(_COLUMNS, tagger.n_features_in_), min(_LABELS, tagger.n_labels_)
    rows, targets = (
        rng.standard_normal((40, columns)),
        (rng.random((40, labels)) < 0.3).astype(np.uint8),
    )
    rows[0], targets[0] = 5 * np.eye(columns)[0], 1  # a record that looks like no other
    named = (
        None if tagger.classes is None else label_names(tagger.classes, tagger.n_labels_)[:labels]
    )
    toy = clone(tagger).set_params(
        answers=Exact(), classes=named, public=None, prior=None, random_state=None
    )

    def run(absent: tuple[int, ...], dice: np.random.Generator) -> Array:
        with drawing_from(dice, absent=absent):
            fitted = clone(toy).fit(rows, targets)
        return np.concatenate([fitted.logits(rows[:1])[0], np.ravel(fitted.released_["counts"])])

    return attack_outcomes(
        collect(run, (), (0,), trials=runs, seed=seed),
        what="trained again with one of 40 records there or not",
        delta=tagger.guarantee_.delta,
    )


def attack_printed(release: Any, *, trials: int, seed: int) -> Attack:
    """Attack the paper's answer about opposite images by its likelihood ratio."""
    bound = _RAW if release.clip is None else float(release.clip)
    # The paper does not clip raw logits.
    reach = bound if release.clip is None else 2 * bound
    high, low = np.full(release.n_labels, reach), np.full(release.n_labels, -reach)
    noise = Laplace(scale=release.scale, sensitivity=1.0, unit="query")
    ends = np.clip(high, -bound, bound), np.clip(low, -bound, bound)
    # The noise is cheap to draw and the claimed epsilons are large, which takes more runs to
    # measure.
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


def attack_plan(guarantee: Guarantee, *, trials: int, seed: int) -> list[Attack]:
    """Attack all releases about a record together, each on its worst pair of inputs.

    The statistic is the sum of the log-likelihood ratios.
    """
    parts = [
        (item.mechanism, item.mechanism.worst_pair())
        for item in guarantee.releases
        for _ in range(item.count)
    ]
    if not parts or guarantee.unproven:
        return []
    first, second = (np.concatenate([np.ravel(pair[side]) for _, pair in parts]) for side in (0, 1))
    widths = np.cumsum([0] + [np.size(pair[0]) for _, pair in parts])

    def release(values: Array, rng: Any) -> Array:
        return np.hstack([
            np.asarray(noise.release(values[:, start:end], rng=rng))
            for (noise, _), start, end in zip(parts, widths, widths[1:], strict=False)
        ])  # fmt: skip

    def statistic(released: Array) -> Floats:
        total = np.zeros(len(released))
        for (noise, pair), start, end in zip(parts, widths, widths[1:], strict=False):
            part = released[:, start:end]
            total += (noise.log_prob(part, pair[0]) - noise.log_prob(part, pair[1])).sum(axis=1)
        return total

    outcomes = collect_at_once(release, first, second, trials=trials, seed=seed)
    attack = f"likelihood ratio of all {len(parts)} releases on their worst inputs"
    return [attack_outcomes(outcomes, what=attack, delta=guarantee.delta, statistic=statistic)]


_TOY_LABELS, _BOUND = 10, 5.0
_HIGH, _LOW = np.full(_TOY_LABELS, _BOUND), np.full(_TOY_LABELS, -_BOUND)


def verdicts(*, trials: int, fits: int, seed: int = 0) -> Iterator[Verdict]:
    """Yield verdicts on ten labels with logits within ±5, on the two worst images."""
    paper = PaperLaplace(epsilon=10.0, n_labels=_TOY_LABELS, clip=_BOUND)
    yield _verdict(
        "P2-ML-GCN outputs",
        "10 labels, logits within ±5, ε = 10",
        "paper",
        paper.claimed,
        paper.cost.epsilon,
        lambda logits, rng: paper.answer(logits, rng=rng).scores,
        _laplace_ratio(paper.scale),
        trials=100 * trials,
        seed=seed,
        advice="calibrate the noise to the whole clipped vector, or release a word of a codebook",
    )
    weak = PaperLaplace(epsilon=1.0, n_labels=_TOY_LABELS, clip=_BOUND)
    yield _verdict(
        "P2-ML-GCN outputs",
        "the same, ε = 1, asked 100 times",
        "paper",
        weak.claimed,
        100 * weak.cost.epsilon,
        lambda logits, rng: _average(weak, logits, rng),
        lambda means: means.sum(axis=1),
        trials=trials // 10,
        seed=seed,
        advice="charge every answer to a ledger",
    )
    yield _weights(trials=fits, seed=seed)
    yield from _features(trials=100 * trials, seed=seed)
    tagger = _toy(LaplaceAnswers(10.0, bound=_BOUND), seed)
    noise = tagger.answer_mechanism_.noise(_TOY_LABELS)
    yield _verdict(
        "P2, proven",
        "10 labels, logits within ±5, ε = 10",
        "proven",
        None,
        noise.cost.epsilon,
        lambda logits, rng: _answered(tagger, logits, rng),
        _laplace_ratio(float(noise.scale) * noise.grid),
        trials=20 * trials,
        seed=seed,
    )


def _toy(answers: Any, seed: int) -> PrivateTagger:
    """Return a small tagger for attacks on its answers only."""
    rng = np.random.default_rng(seed)
    rows, targets = (
        rng.standard_normal((20, 4)),
        (rng.random((20, _TOY_LABELS)) < 0.4).astype(np.uint8),
    )
    names = tuple(f"label {number}" for number in range(_TOY_LABELS))
    return PrivateTagger(DPTraining(steps=2), answers, classes=names, random_state=seed).fit(
        rows, targets
    )


def _answered(tagger: PrivateTagger, logits: Array, rng: np.random.Generator) -> Array:
    with drawing_from(rng):
        return np.asarray(tagger.noisy(logits).scores)


def _weights(*, trials: int, seed: int) -> Verdict:
    """Attack Theorem 2: noise in the loss averages out, so the weights reveal a record."""
    rng = np.random.default_rng(seed)
    X, Y = np.zeros((40, 8)), (rng.random((40, 3)) < 0.4).astype(int)
    X[:, :7] = rng.random((40, 7))
    X[0] = np.eye(8)[7] * 5.0  # one record that looks like no other
    tagger = P2MLGCN(
        1.0,
        head=GraphHead(hidden=8),
        schedule=Schedule(epochs=20, batch_size=40, learning_rate=0.1),
    )

    def run(labels: int, dice: np.random.Generator) -> Array:
        changed = Y.copy()
        changed[0] = labels
        fitted = clone(tagger).set_params(random_state=int(dice.integers(2**31))).fit(X, changed)
        return np.asarray(fitted.logits(X[:1])[0])

    return Verdict(
        room="tagging",
        method="P2-ML-GCN weights",
        setting="Theorem 2, 20 steps, ε = 1",
        unit="record",
        calibration="paper",
        claimed=1.0,
        proven=math.inf,
        audited=distinguish(
            run, 1, 0, trials=trials, seed=seed, statistic=lambda logits: logits.sum(axis=1)
        ),
        advice="train with PrivateTagger(DPTraining(epsilon=2)): near free at ε = 1 to 2 with "
        "enough records",
    )


def _features(*, trials: int, seed: int) -> Iterator[Verdict]:
    """Attack Theorem 3 and Corollary 2, which claim that noise on outputs protects the features x.

    The claimed ε shrinks with the weights. The attack uses ten weights of 1/γ and one feature,
    which is 0 or γ: every output is 0 or 1 with noise Lap(1), so the ten outputs together cost
    ε = 10 for every γ. Theorem 3 claims ε (x̄ + γ max α)/γ² = ε (1 + max α)/γ, which goes to 0 with
    1/γ; max α is set to 12, which is exceeded once in 30,000 answers. Corollary 2 claims ε Q with x
    at most γ²Q, which is ε/γ for this x.
    """
    epsilon, gamma, largest = 10.0, 100.0, 12.0
    release = PaperLaplace(epsilon=epsilon, n_labels=_TOY_LABELS)
    weights = np.full((_TOY_LABELS, 1), 1 / gamma)
    noise = release.noise

    def disturbed(x: Array, rng: np.random.Generator) -> Array:
        """Return x_α by each label's own row, which suffices for an attacker who knows W."""
        return np.asarray(noise.release(x @ weights.T, rng=rng) * gamma)

    def ratio(answers: Array) -> Floats:
        outputs, high, low = answers / gamma, np.ones(_TOY_LABELS), np.zeros(_TOY_LABELS)
        log_ratio = (noise.log_prob(outputs, high) - noise.log_prob(outputs, low)).sum(axis=1)
        return np.asarray(log_ratio, np.float64)

    outcomes = collect_at_once(
        disturbed, np.array([gamma]), np.array([0.0]), trials=trials, seed=seed
    )
    audited = distinguish_outcomes(outcomes, statistic=ratio)
    for setting, claimed in (
        ("Theorem 3, 10 labels, ε = 10, γ = 100", epsilon * (1 + largest) / gamma),
        ("Corollary 2, 10 labels, ε = 10, γ = 100", epsilon / gamma),
    ):
        yield Verdict(
            room="tagging",
            method="P2-ML-GCN features",
            setting=setting,
            unit="query",
            calibration="paper",
            claimed=claimed,
            proven=_TOY_LABELS / release.scale,
            audited=audited,
            advice="count what moves an answer: clip the outputs and calibrate to the whole vector",
        )


def _verdict(
    method: str,
    setting: str,
    calibration: Literal["proven", "paper"],
    claimed: float | None,
    proven: float,
    release: Callable[[Array, np.random.Generator], Array],
    statistic: Callable[[Array], Floats],
    *,
    trials: int,
    seed: int,
    advice: str = "",
) -> Verdict:
    outcomes = collect_at_once(release, _HIGH, _LOW, trials=trials, seed=seed)
    return Verdict(
        room="tagging",
        method=method,
        setting=setting,
        unit="query",
        calibration=calibration,
        claimed=claimed,
        proven=proven,
        audited=distinguish_outcomes(outcomes, statistic=statistic),
        advice=advice,
    )


def _laplace_ratio(scale: float) -> Callable[[Array], Floats]:
    high = Laplace(scale=scale, sensitivity=1.0, unit="query")
    return lambda answers: (high.log_prob(answers, _HIGH) - high.log_prob(answers, _LOW)).sum(
        axis=1
    )


def _average(release: PaperLaplace, logits: Array, rng: np.random.Generator) -> Floats:
    total = np.zeros(logits.shape)
    for _ in range(100):
        total += release.answer(logits, rng=rng).scores
    return total / 100


def figures(audit: Audit, *, seed: int = 0) -> list[Figure]:
    """Draw the averaged answers; empty if answers carry no noise."""
    tagger: PrivateTagger = audit.subject
    if isinstance(tagger, PrivateTagger) and isinstance(tagger.answer_mechanism_, Exact):
        return []
    rng = np.random.default_rng(seed)
    # Outputs of this many images, anywhere in the range: the noise does not depend on them.
    n_labels = int(
        tagger.n_labels_ if isinstance(tagger, PrivateTagger) else tagger.release_.n_labels
    )
    logits = rng.normal(0, 2, (40, n_labels))
    points = [
        (
            float(repeats),
            repeated_queries(
                lambda rows: _answered_scores(tagger, rows, rng), logits, logits, repeats=repeats
            ),
        )
        for repeats in (1, 3, 10, 30, 100)
    ]
    line = [(repeats, recovery.value) for repeats, recovery in points]
    return [
        Figure(
            "What asking again reveals",
            "A tagger gives no pictures back; asking again is how its noise is removed. Rank "
            "correlation of averaged "
            "answers with the outputs behind them, by how often the same question was asked: 1 is "
            "everything. Every "
            "answer costs its epsilon again, which is why a ledger must count them.",
            curves(
                {"averaged answers, as your file releases": line},
                xlabel="times asked",
                ylabel="rank correlation",
            ),
            [{"times asked": int(n), "rank correlation": round(value, 4)} for n, value in line],
        )
    ]


def _answered_scores(tagger: PrivateTagger, logits: Array, rng: np.random.Generator) -> Floats:
    """Simulate the noise of the release on logits; nothing is released."""
    if not isinstance(tagger, PrivateTagger):
        return np.asarray(tagger.release_.answer(logits, rng=rng).scores)
    mechanism: Any = tagger.answer_mechanism_
    released = mechanism.noise(tagger.n_labels_).release(mechanism.value(logits), rng=rng)
    read = mechanism.read(released)
    return np.asarray(read.scores)
