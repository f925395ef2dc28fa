"""Pairwise privacy: rows that see the same pair compose, and a noise scale taken from the batch
tells by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from blindsight.audit.engine.blackbox import distinguish
from blindsight.audit.methods.metric.attacks import attack_metric
from blindsight.audit.report.verdict import Verdict
from blindsight.metric import Contrastive, DPPMetric, RowNoise, algorithm1
from blindsight.metric.guarantee import paper_guarantee

__all__ = ["verdicts"]

_ROWS, _COLUMNS, _H = 16, 4, 0.5
_START = np.full((_ROWS, _COLUMNS), 2.0)
_PAIR = np.array([[0.4, 0.1, 0.0, 0.0]])
_FAR = np.eye(1, 64)
_DELTA = 1e-5
_ONE = [[np.arange(1)]]  # one epoch of one batch of one pair


def verdicts(*, trials: int, seed: int = 0, workers: int = 1) -> Iterator[Verdict]:
    """One pair whose label is in question, one epoch: everything the released gradient tells."""
    common: dict[str, Any] = {"trials": trials, "seed": seed, "workers": workers}
    yield _rows_compose(**common)
    yield _scale_of_the_batch(**common)
    losses: tuple[Literal["moments", "contrastive"], ...] = ("moments", "contrastive")
    for loss in losses:
        yield _ours(loss, trials=trials // 25, seed=seed)


def _paper_promise(*, rows: int, columns: int, reduction: bool) -> Any:
    return paper_guarantee(
        RowNoise(reduced=reduction),
        _ONE,
        epsilon=1.0,
        lipschitz=_H,
        kappa=1,
        rows=rows,
        columns=columns,
        margin_from_data=False,
        simulation=True,
    )


def _epoch(
    difference: NDArray[Any],
    dissimilar: bool,
    rng: np.random.Generator,
    *,
    start: NDArray[Any],
    **options: Any,
) -> NDArray[Any]:
    """One epoch of Algorithm 1 at claimed epsilon 1; returns the noisy gradient, which is all there
    is to see.
    """
    loss = Contrastive(difference, np.array([dissimilar]), margin=options.pop("margin"))
    learned = algorithm1(
        loss,
        _ONE,
        n_components=len(start),
        rng=rng,
        noise=RowNoise(**options),
        lipschitz=_H,
        start=start,
    )
    return start - learned


def _toward_first(outcomes: NDArray[Any]) -> NDArray[np.float64]:
    """The likelihood ratio of Laplace noise around the two clipped gradients, up to a factor."""
    row = _H * _PAIR[0] / np.abs(_PAIR[0]).sum()
    return np.asarray((np.abs(outcomes + row) - np.abs(outcomes - row)).sum(axis=(1, 2)))


def _rows_compose(*, trials: int, seed: int, workers: int) -> Verdict:
    audited = distinguish(
        lambda dissimilar, rng: _epoch(_PAIR, dissimilar, rng, start=_START, margin=10.0),
        False,
        True,
        trials=trials,
        seed=seed,
        statistic=_toward_first,
        workers=workers,
    )
    guarantee = _paper_promise(rows=_ROWS, columns=_COLUMNS, reduction=False)
    verdict = Verdict.of(
        guarantee,
        audited,
        room="metric",
        method="DPP-DML",
        setting=f"one epoch, {_ROWS} rows, ε = 1",
        advice="clip the whole matrix of a pair once and compose the rows: DPPMetric",
    )
    return dataclasses.replace(verdict, unit="pair")


def _scale_of_the_batch(*, trials: int, seed: int, workers: int) -> Verdict:
    start = np.full((1, 64), 2.0)
    audited = distinguish(
        lambda far, rng: _epoch(_FAR, far, rng, start=start, margin=1.0, reduced=True),
        True,
        False,
        trials=trials,
        seed=seed,
        statistic=lambda outcomes: -np.abs(outcomes).sum(axis=(1, 2)),
        workers=workers,
    )
    guarantee = _paper_promise(rows=1, columns=64, reduction=True)
    verdict = Verdict.of(
        guarantee,
        audited,
        room="metric",
        method="DPP-S",
        setting="noise scale from the batch, ε = 1",
        advice="fix the noise's scale before looking at the data: DPPMetric",
    )
    return dataclasses.replace(verdict, unit="pair")


def _ours(loss: Literal["moments", "contrastive"], *, trials: int, seed: int) -> Verdict:
    """The estimator as it is, learned again and again from four pairs of which one changes its
    label.
    """
    rng = np.random.default_rng(seed)
    metric = DPPMetric(epsilon=1.0, loss=loss, transitive=False).fit(
        rng.standard_normal((8, 2, 4)), np.arange(8) % 2
    )
    attack = attack_metric(metric, runs=trials, seed=seed)
    setting = f"{loss}, learned again with one label changed, ε = 1"
    return Verdict.of(
        metric.guarantee_, attack.audited, room="metric", method="DPPMetric (ours)", setting=setting
    )
