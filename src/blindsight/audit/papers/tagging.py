"""Private outputs: logits at opposite ends of the clipping range, asked once, and asked again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.audit.blackbox import collect_at_once, distinguish_outcomes
from blindsight.audit.verdict import Verdict
from blindsight.privacy.mechanisms import Laplace
from blindsight.tagging.outputs import LaplaceScores, PaperLaplace

__all__ = ["verdicts"]

_LABELS, _BOUND = 10, 5.0
_HIGH, _LOW = np.full(_LABELS, _BOUND), np.full(_LABELS, -_BOUND)


def verdicts(*, trials: int, seed: int = 0) -> Iterator[Verdict]:
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
    ours = LaplaceScores(epsilon=10.0, n_labels=_LABELS, bound=_BOUND)
    noise = ours.noise
    yield _verdict(
        "P2, proven",
        "10 labels, logits within ±5, ε = 10",
        "proven",
        None,
        ours.cost.epsilon,
        lambda logits, rng: np.asarray(noise.release(logits, rng=rng)),
        _laplace_ratio(float(noise.scale) * noise.grid),
        trials=20 * trials,
        seed=seed,
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
    return lambda answers: (high.log_prob(answers, _HIGH) - high.log_prob(answers, _LOW)).sum(axis=1)


def _average(release: PaperLaplace, logits: NDArray[Any], rng: np.random.Generator) -> NDArray[np.float64]:
    total = np.zeros(logits.shape)
    for _ in range(100):
        total += release.answer(logits, rng=rng).scores
    return total / 100
