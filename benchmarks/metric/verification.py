"""Rows `pairs.*`: same or different at the default settings, and whether more budget ever gives
less.

Protocol: half of the records (or half of the classes) give the labelled pairs, the other half is
for testing only; half of the pairs are similar. Everything is per label, the default unit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.encoders.rows import encoder_vectors
from benchmarks.harness import Row
from benchmarks.metric.protocol import balanced_pairs
from blindsight import data
from blindsight.audit import distinguish
from blindsight.core.errors import MissingData
from blindsight.metric import DPPMetric, EuclideanMetric
from blindsight.metric.guarantee import MIN_BINS

__all__ = ["verification_rows"]

Floats = NDArray[np.float64]
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
#: A mean AUC that is lower by less than this counts as equal: it is below the standard error.
TOLERANCE = 0.002
PAIRS = {"wine": 1600, "breast_cancer": 4000, "digits": 2400}
CALTECH_PAIRS = 3800


def verification_rows(*, quick: bool, seed: int) -> Iterator[Row]:
    """All rows of verification."""
    repeats = 1 if quick else 10
    tables = _tables()
    yield from _threshold_rows(tables, repeats, seed)
    yield from _label_audit_rows(quick, seed)
    curves: dict[str, list[float]] = {}
    for name, (X, y, scale) in tables.items():
        curves[name] = _curve(X, y, PAIRS[name], scale, repeats, seed)
    try:
        yield from _caltech_rows(repeats=1 if quick else 5, seed=seed, curves=curves)
    except MissingData as error:
        yield Row(id="pairs.skipped.caltech", value=0, unit="skipped", note=str(error))
    yield from _monotone_rows(curves, seed, repeats)


def _tables() -> dict[str, tuple[Floats, NDArray[np.int64], str | None]]:
    """Records, classes and scale, as `learn_metric` would choose it: tables are scaled."""
    from sklearn.datasets import load_breast_cancer, load_digits, load_wine

    wine, cancer, digits = (
        load(return_X_y=True) for load in (load_wine, load_breast_cancer, load_digits)
    )
    return {
        "wine": (*wine, "private"),
        "breast_cancer": (*cancer, "private"),
        "digits": (*digits, None),
    }


def _split(
    y: NDArray[np.int64], n_pairs: int, repeat: int, *, by_class: bool = False
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Labelled pairs of one half, and test pairs of the other half."""
    rng = np.random.default_rng(repeat)
    if by_class:
        classes = rng.permutation(np.unique(y))
        first = np.flatnonzero(np.isin(y, classes[: len(classes) // 2]))
    else:
        first = rng.permutation(len(y))[: len(y) // 2]
    second = np.setdiff1d(np.arange(len(y)), first)
    return balanced_pairs(first, y, n_pairs, rng), balanced_pairs(second, y, n_pairs, rng)


def _auc(metric: Any, X: Floats, test: tuple[Any, Any]) -> float:
    return float(metric.score(X[test[0]], test[1]))


def _curve(
    X: Floats, y: Any, n_pairs: int, scale: str | None, repeats: int, seed: int, **split: bool
) -> list[float]:
    """Mean AUC of held-out pairs at epsilon 0 (the plain distance) and at each epsilon."""
    scores = []
    for repeat in range(seed, seed + repeats):
        (pairs, similar), test = _split(y, n_pairs, repeat, **split)
        row = [_auc(EuclideanMetric().fit(X), X, test)]
        for epsilon in EPSILONS:
            metric = DPPMetric(
                epsilon=epsilon, scale=scale, preprocessor=X, random_state=repeat
            ).fit(pairs, similar)
            row.append(_auc(metric, X, test))
        scores.append(row)
    return [float(value) for value in np.mean(scores, axis=0)]


def _threshold_rows(tables: Any, repeats: int, seed: int) -> Iterator[Row]:
    """How often the private threshold is right about held-out pairs at epsilon 0.5 per label."""
    accuracies = {}
    for name in ("wine", "breast_cancer"):
        X, y, scale = tables[name]
        right, stated = [], []
        for repeat in range(seed, seed + repeats):
            (pairs, similar), test = _split(y, PAIRS[name], repeat)
            metric = DPPMetric(epsilon=0.5, scale=scale, preprocessor=X, random_state=repeat).fit(
                pairs, similar
            )
            right.append(float(((metric.predict(X[test[0]]) == 1) == test[1]).mean()))
            if metric.curve_.known:
                stated.append(1 - metric.curve_.at_threshold(metric.threshold_).error)
        accuracies[name] = float(np.mean(right))
        yield Row(
            id=f"pairs.threshold_accuracy_eps05_{name}",
            value=accuracies[name],
            unit="accuracy",
            seed=seed,
            note=f"{PAIRS[name]:,} labelled pairs asked for, {repeats} splits, worst "
            f"{min(right):.3f}; the released curve says {np.mean(stated or [np.nan]):.3f}",
        )
    yield Row(
        id="pairs.threshold_accuracy_eps05",
        value=min(accuracies.values()),
        unit="accuracy",
        seed=seed,
        note="the smaller of wine and breast cancer; epsilon 0.5 per label, delta 1e-5",
    )


def _caltech_rows(*, repeats: int, seed: int, curves: dict[str, list[float]]) -> Iterator[Row]:
    """Pairs of classes that no labelled pair was about, by the encoder's whole features."""
    from sklearn.metrics import roc_curve

    y = np.asarray(data.load("caltech101").labels)
    for network in ("lite0", "lite2"):
        X = np.asarray(encoder_vectors("caltech101", network), np.float64)
        found = []
        for repeat in range(seed, seed + repeats):
            (pairs, similar), test = _split(y, CALTECH_PAIRS, repeat, by_class=True)
            metric = DPPMetric(preprocessor=X, random_state=repeat).fit(pairs, similar)
            false, true, _ = roc_curve(test[1], metric.pair_score(X[test[0]]))
            right = float(((metric.predict(X[test[0]]) == 1) == test[1]).mean())
            found.append((_auc(metric, X, test), float(true[false <= 0.01].max()), right))
        auc, accepted, right = np.mean(found, axis=0)
        suffix = "" if network == "lite0" else f"_{network}"
        note = (
            f"{network}, {repeats} halves of the classes, about {len(similar):,} labelled pairs; "
            f"done by {metric.loss_}; the private threshold is right in {right:.3f}"
        )
        yield Row(
            id=f"pairs.unseen_caltech_auc_eps1{suffix}",
            value=float(auc),
            unit="pair AUC",
            seed=seed,
            note=note,
        )
        yield Row(
            id=f"pairs.unseen_caltech_tar_at_far1{suffix}",
            value=float(accepted),
            unit="true accepts",
            seed=seed,
            note=f"at 1% false accepts; {network}, {repeats} halves of the classes",
        )
        if network == "lite0":
            curves["caltech"] = _curve(
                X, y, CALTECH_PAIRS, None, min(repeats, 2), seed, by_class=True
            )


def _monotone_rows(curves: dict[str, list[float]], seed: int, repeats: int) -> Iterator[Row]:
    """The share of steps from one epsilon to the next at which the mean AUC does not fall."""
    steps: list[bool] = []
    texts, worst = [], 0.0
    for name, values in curves.items():
        change = np.diff(values)
        steps.extend((change >= -TOLERANCE).tolist())
        worst = min(worst, float(change.min()))
        texts.append(f"{name} {', '.join(f'{value:.3f}' for value in values)}")
    yield Row(
        id="pairs.monotone_in_epsilon",
        value=float(np.mean(steps)),
        unit="share of steps",
        seed=seed,
        note=f"mean AUC at epsilon 0, {', '.join(f'{e:g}' for e in EPSILONS)} per label over "
        f"{repeats} splits, a step down of less than {TOLERANCE} being none (largest "
        f"{-worst:.4f}): {'; '.join(texts)}",
    )


def _label_audit_rows(quick: bool, seed: int) -> Iterator[Row]:
    """One pair whose label is replaced, seen through the cell that its distance falls into."""
    records, pairs = np.eye(2), np.array([[0, 1]])
    cell = int(np.sqrt(2) / 1.6 * MIN_BINS)
    trials = 200 if quick else 1000
    for unit in ("label", "pair"):

        def run(similar: bool, rng: np.random.Generator, unit: str = unit) -> float:
            metric = DPPMetric(
                epsilon=8.0, unit=unit, loss="plain", preprocessor=records, random_state=rng
            )
            curve = metric.fit(pairs, [similar]).curve_
            return float(curve.similar[cell] - curve.dissimilar[cell])

        audited = distinguish(
            run, True, False, trials=trials, seed=seed, delta=1e-5, statistic=np.ravel
        )
        yield Row(
            id=f"pairs.label_audited_eps8_by_{unit}",
            value=audited.epsilon,
            unit="epsilon at least",
            seed=seed,
            note=f"one label replaced, epsilon 8 per {unit} stated, {trials:,} trials, 95%",
        )
