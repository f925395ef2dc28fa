"""Attacks on learned metrics, the verdicts on DPP metric learning, and its figures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone

from blindsight.audit.engine.blackbox import (
    Attack,
    Outcomes,
    attack_outcomes,
    clopper_pearson,
    collect,
    distinguish,
    distinguish_outcomes,
)
from blindsight.audit.report.page import Figure, guesses
from blindsight.audit.report.verdict import Verdict
from blindsight.audit.target import Audit
from blindsight.core import checks
from blindsight.core.arrays import Array, Floats
from blindsight.metric import Contrastive, DPPMetric, RowNoise, algorithm1
from blindsight.metric.guarantee import paper_guarantee
from blindsight.privacy import Audited, Guarantee, Recovery

__all__ = [
    "Conjectures",
    "attack_metric",
    "figures",
    "match_conjectures",
    "pair_learner",
    "pair_settings",
    "toy_pairs",
    "verdicts",
]

Learner = Callable[[Any, np.random.Generator], Floats]
_COLUMNS = 48


@dataclass(frozen=True)
class Conjectures:
    """How often the attacker distinguished two label sets, and the resulting bound on epsilon."""

    right: int
    guesses: int
    audited: Audited

    @property
    def accuracy(self) -> float:
        """The share of correct guesses; 0.5 is chance."""
        return self.right / self.guesses

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return Clopper-Pearson bounds on the accuracy."""
        return clopper_pearson(self.right, self.guesses, error=(1 - confidence) / 2)

    def recovery(self) -> Recovery:
        """Return the result as a row of a card."""
        return Recovery(
            attack=self.audited.attack,
            measure="share of right guesses",
            value=self.accuracy,
            chance=0.5,
        )


def match_conjectures(
    learn: Learner,
    first: ArrayLike,
    second: ArrayLike,
    *,
    trials: int,
    seed: int = 0,
    delta: float = 0.0,
    confidence: float = 0.95,
    workers: int = 1,
) -> Conjectures:
    """Learn `trials` metrics under each of two label sets, and let an attacker distinguish them.

    The attacker is trained on half of the metrics and guesses on the other half. It projects a
    metric on the difference of the two mean metrics and chooses the nearer one; for a deterministic
    learner this is the paper's matching. The same runs give the lower bound on epsilon.

    Parameters:
        learn: (labels, rng) -> released matrix; a deterministic learner may ignore the generator.
        first: one label set.
        second: the other label set.
        trials: metrics learned under each label set.
        seed: of the runs' generators.
        delta: the delta of the release.
        confidence: the probability with which the bound holds.
        workers: processes that learn metrics.
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


def _matching(outcomes: Outcomes) -> Callable[[Array], Floats]:
    """Return a statistic that is positive where a metric is nearer to the first mean metric."""
    first, second = (
        np.asarray(side, np.float64).reshape(len(side), -1).mean(axis=0)
        for side in (outcomes.data, outcomes.neighbour)
    )
    direction, middle = first - second, (first + second) / 2
    return lambda metrics: (
        (np.asarray(metrics, np.float64).reshape(len(metrics), -1) - middle) @ direction
    )


def toy_pairs(metric: DPPMetric, *, seed: int = 0) -> tuple[Array, Array, Array]:
    """Return four pairs, and two label sets that differ in the label of the first pair.

    The records of the first pair are far apart.
    """
    columns = min(_COLUMNS, int(metric.n_features_in_))
    pairs = 0.3 * np.random.default_rng(seed).standard_normal((4, 2, columns))
    pairs[0] = np.eye(2, columns) * np.array([[1.0], [-1.0]])
    return pairs, np.array([0, 1, 0, 1]), np.array([1, 1, 0, 1])


def attack_metric(metric: DPPMetric, *, runs: int, seed: int) -> Attack:
    """Infer one pair's label from its learned distance and the size of the map."""
    pairs, similar, changed = toy_pairs(metric, seed=seed)
    outcomes: Outcomes = collect(
        pair_learner(metric, pairs), similar, changed, trials=runs, seed=seed
    )
    # A changed label is one pair removed and one added: two steps of "add or remove one".
    steps = 2 if metric.guarantee_.neighbours == "add or remove one" else 1
    return attack_outcomes(
        outcomes,
        what="refit with one of 4 labels changed",
        delta=metric.guarantee_.cost.per(metric.guarantee_.unit, times=steps).delta,
        steps=steps,
    )


def pair_learner(
    metric: DPPMetric, pairs: Array, **changes: Any
) -> Callable[[Any, np.random.Generator], Floats]:
    """Return a function (labels, rng) -> the attacker's statistics of the learned metric.

    They are the first pair's distance, the size of the map, and the counts of similar and
    dissimilar pairs at that distance.
    """
    first = pairs[0, 0] - pairs[0, 1]

    def run(y: ArrayLike, dice: np.random.Generator) -> Floats:
        learned = refitted(metric, pairs, y, dice, **changes)
        M = learned.get_mahalanobis_matrix()
        statistics = [first @ M @ first, np.trace(M)]
        if hasattr(learned, "curve_"):
            curve = learned.curve_
            away = float(learned.pair_distance(pairs[:1])[0])
            cell = int(np.clip(np.searchsorted(curve.edges, away) - 1, 0, len(curve.similar) - 1))
            statistics.append(curve.similar[cell] - curve.dissimilar[cell])
        return np.array(statistics)

    return run


def refitted(
    metric: DPPMetric, pairs: ArrayLike, y: ArrayLike, dice: np.random.Generator, **changes: Any
) -> Any:
    """Return a copy of the estimator, fitted on these pairs."""
    settings = {
        "random_state": dice,
        "n_components": None,
        "preprocessor": None,
        **pair_settings(metric),
    }
    return clone(metric).set_params(**{**settings, **changes}).fit(pairs, y)


def pair_settings(metric: DPPMetric) -> dict[str, Any]:
    """Return the settings with which `DPPMetric` learns from other pairs as it did from its own.

    They name the loss that was used (pairs in place of tuples) and leave out bounds, which are for
    the columns of its own data. For the paper's estimators there are none.
    """
    if "loss" not in metric.get_params():
        return {}
    loss = "contrastive" if metric.loss_ == "triplet" else metric.loss_
    return {
        "loss": loss,
        "scale": metric.scale if isinstance(metric.scale, str) else None,
        "kappa": "second",
    }


_ROWS, _TOY_COLUMNS, _H = 16, 4, 0.5
_START = np.full((_ROWS, _TOY_COLUMNS), 2.0)
_PAIR = np.array([[0.4, 0.1, 0.0, 0.0]])
_FAR = np.eye(1, 64)
_DELTA = 1e-5
_ONE = [[np.arange(1)]]  # one epoch of one batch of one pair


def verdicts(*, trials: int, seed: int = 0, workers: int = 1) -> Iterator[Verdict]:
    """Yield verdicts on one epoch with one pair, whose label the attacker infers."""
    common: dict[str, Any] = {"trials": trials, "seed": seed, "workers": workers}
    yield _rows_compose(**common)
    yield _scale_of_the_batch(**common)
    losses: tuple[Literal["plain", "moments", "contrastive"], ...] = (
        "plain",
        "moments",
        "contrastive",
    )
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
    difference: Array,
    dissimilar: bool,
    rng: np.random.Generator,
    *,
    start: Array,
    **options: Any,
) -> Array:
    """Run one epoch of Algorithm 1 at claimed epsilon 1, and return the released gradient."""
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


def _toward_first(outcomes: Array) -> Floats:
    """Return the log-likelihood ratio of Laplace noise around two gradients, up to a factor."""
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
    guarantee = _paper_promise(rows=_ROWS, columns=_TOY_COLUMNS, reduction=False)
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


def _ours(loss: Literal["plain", "moments", "contrastive"], *, trials: int, seed: int) -> Verdict:
    """Attack our estimator, fitted many times on four pairs of which one changes its label."""
    rng = np.random.default_rng(seed)
    metric = DPPMetric(epsilon=1.0, loss=loss, transitive=False).fit(
        rng.standard_normal((8, 2, 4)), np.arange(8) % 2
    )
    attack = attack_metric(metric, runs=trials, seed=seed)
    setting = f"{loss}, learned again with one label changed, ε = 1"
    return Verdict.of(
        metric.guarantee_, attack.audited, room="metric", method="DPPMetric (ours)", setting=setting
    )


def figures(audit: Audit, *, seed: int = 0, trials: int = 60) -> list[Figure]:
    """Draw the paper's Figure 1: how often the attacker infers one label from a metric."""
    own, card = audit.subject, audit.card
    assert isinstance(card, Guarantee)  # noqa: S101  (a metric's card)
    pairs, first, second = toy_pairs(own, seed=seed)
    settings = {"your file's settings": {}, "hardly any noise (ε = 10,000)": {"epsilon": 1e4}}
    results = {
        name: match_conjectures(
            pair_learner(own, pairs, **changes), first, second, trials=trials, seed=seed
        )
        for name, changes in settings.items()
    }
    bars = {name: (result.accuracy, *result.interval()) for name, result in results.items()}
    steps = audit.attacks[0].steps if audit.attacks else 1
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
    figure = Figure(
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
    return [figure]
