"""Private outputs: logits at opposite ends of the clipping range, asked once, and asked again and
again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from blindsight.audit.engine.blackbox import collect_at_once, distinguish, distinguish_outcomes
from blindsight.audit.engine.listeners import drawing_from
from blindsight.audit.report.verdict import Verdict
from blindsight.privacy.mechanisms import Laplace
from blindsight.tagging import P2MLGCN, DPTraining, GraphHead, PrivateTagger, Schedule
from blindsight.tagging.answers import LaplaceAnswers, PaperLaplace

__all__ = ["verdicts"]

_LABELS, _BOUND = 10, 5.0
_HIGH, _LOW = np.full(_LABELS, _BOUND), np.full(_LABELS, -_BOUND)


def verdicts(*, trials: int, fits: int, seed: int = 0) -> Iterator[Verdict]:
    """Ten labels, logits within ±5: the worst two images that could have been asked about."""
    paper = PaperLaplace(epsilon=10.0, n_labels=_LABELS, clip=_BOUND)
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
    weak = PaperLaplace(epsilon=1.0, n_labels=_LABELS, clip=_BOUND)
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
    tagger = _toy(LaplaceAnswers(10.0, bound=_BOUND), seed)
    noise = tagger.answer_mechanism_.noise(_LABELS)
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
    """A tagger whose training is not the question."""
    rng = np.random.default_rng(seed)
    rows, said = rng.standard_normal((20, 4)), (rng.random((20, _LABELS)) < 0.4).astype(np.uint8)
    names = tuple(f"label {number}" for number in range(_LABELS))
    return PrivateTagger(DPTraining(steps=2), answers, classes=names, random_state=seed).fit(
        rows, said
    )


def _answered(
    tagger: PrivateTagger, logits: NDArray[Any], rng: np.random.Generator
) -> NDArray[Any]:
    with drawing_from(rng):
        return np.asarray(tagger.noisy(logits).scores)


def _weights(*, trials: int, seed: int) -> Verdict:
    """Theorem 2: noise in the loss is drawn anew each step and averages out, so the weights
    remember a record.
    """
    rng = np.random.default_rng(seed)
    X, Y = np.zeros((40, 8)), (rng.random((40, 3)) < 0.4).astype(int)
    X[:, :7] = rng.random((40, 7))
    X[0] = np.eye(8)[7] * 5.0  # one record that looks like no other
    tagger = P2MLGCN(
        1.0,
        head=GraphHead(hidden=8, label_vectors="random"),
        schedule=Schedule(epochs=20, batch_size=40, learning_rate=0.1),
    )

    def run(labels: int, dice: np.random.Generator) -> NDArray[Any]:
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


def _verdict(
    method: str,
    setting: str,
    calibration: Any,
    claimed: float | None,
    proven: float,
    release: Callable[[NDArray[Any], np.random.Generator], NDArray[Any]],
    statistic: Callable[[NDArray[Any]], NDArray[np.float64]],
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


def _laplace_ratio(scale: float) -> Callable[[NDArray[Any]], NDArray[np.float64]]:
    high = Laplace(scale=scale, sensitivity=1.0, unit="query")
    return lambda answers: (high.log_prob(answers, _HIGH) - high.log_prob(answers, _LOW)).sum(
        axis=1
    )


def _average(
    release: PaperLaplace, logits: NDArray[Any], rng: np.random.Generator
) -> NDArray[np.float64]:
    total = np.zeros(logits.shape)
    for _ in range(100):
        total += release.answer(logits, rng=rng).scores
    return total / 100
