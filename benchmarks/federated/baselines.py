"""The two private baselines of the paper's experiments, and plain federated averaging.

Both baselines give a differentially private model, at epsilon 0.2 and delta 0.05 in the paper. A
record takes part in every one-vs-rest classifier and moves every coordinate, so over NC classes of
d + 1 weights the sensitivity is that of the whole matrix. `calibration="paper"` counts one class
(and for RA12 one iteration) as if it were alone; `"proven"` counts everything. Either way little is
left of a hundred classes at epsilon 0.2. Rows are scaled into the unit ball. `"unclipped"` is a
third reading, chosen because it comes near the paper's figures: rows are standardised and left as
long as they are (a public bound of twice the square root of their length apart), and the noise is
that of unit rows. What it really costs is larger by that bound, and its guarantee says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData
from blindsight.federated.learning import linear
from blindsight.federated.learning.linear import LOSSES
from blindsight.privacy import Assumption, Guarantee, Ledger
from blindsight.privacy.accounting import Planned
from blindsight.privacy.door import Door, clip_norm
from blindsight.privacy.entropy import source_of
from blindsight.privacy.mechanisms import Gaussian, Laplace

__all__ = ["Baseline", "federated_averaging", "prr10", "ra12"]

_AVERAGE, _GRADIENTS = "average of classifiers", "gradients"
_CALIBRATIONS = ("paper", "proven", "unclipped")
Matrix = NDArray[np.float64]
Share = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True)
class Baseline:
    """A model (rows, features + 1), what it promises, and how many values had to be encrypted."""

    weights: Matrix = field(repr=False)
    guarantee: Guarantee
    encryptions: int = 0


def prr10(
    shares: Sequence[Share],
    *,
    classes: int,
    epsilon: float = 0.2,
    strength: float = 0.01,
    calibration: str = "proven",
    size: int | None = None,
    random_state: Any = None,
    ledger: Ledger | None = None,
) -> Baseline:
    """Pathak, Rane and Raj 2010: local l2-regularised logistic regression, averaged, Laplace noise
    on the average.

    Replacing one of n records moves the minimiser of (mean logistic loss + strength/2 |w|²) by at
    most 2/(n strength) in l2 (Chaudhuri and Monteleoni 2008), so the average over K users by 2/(K n
    strength), for each class. The noise is encrypted, D values of it, because its scale tells the
    smallest user's size; n counts as public here. `size` is another n for the paper's noise, that
    of the paper's users; the guarantee counts the real one.
    """
    checks.one_of("calibration", calibration, _CALIBRATIONS)
    smallest = min(len(X) for X, _ in _checked(shares))
    norm = _norm(shares, calibration)
    average = np.mean(
        [_logistic(X, linear.targets(labels, classes), strength, norm) for X, labels in shares],
        axis=0,
    )
    one_class = 2 / (smallest * strength)
    # l1 of a vector with D entries is at most sqrt(D) times its l2; classes add up in squares.
    whole = norm * math.sqrt(average.size) * math.sqrt(len(average)) * one_class / len(shares)
    if calibration == "proven":
        noise = Laplace.calibrate(epsilon, sensitivity=whole, unit="record")
    else:
        noise = Laplace(
            scale=2 / (_stated(size, smallest) * strength) / epsilon,
            sensitivity=whole,
            unit="record",
        )
    guarantee = Guarantee(
        releases=(Planned(what=_AVERAGE, mechanism=noise),),
        mechanism=f"PRR10: Laplace noise of scale {noise.scale:.3g} on the average of "
        f"{len(shares)} classifiers",
        model="central",
        claimed=epsilon,
        calibration="proven" if calibration == "proven" else "paper",
        assumptions=(
            _rows_within(norm),
            Assumption("exact minimisers", "local minimisers are found exactly"),
        ),
        entropy=source_of(random_state).name,
    )
    door = Door(guarantee, what="PRR10", ledger=ledger, random_state=random_state)
    return Baseline(door.release(_AVERAGE, average), guarantee, average.size)


def ra12(
    shares: Sequence[Share],
    *,
    classes: int,
    epsilon: float = 0.2,
    delta: float = 0.05,
    strength: float = 0.01,
    iterations: int = 20,
    calibration: str = "proven",
    size: int | None = None,
    random_state: Any = None,
    ledger: Ledger | None = None,
) -> Baseline:
    """Rajkumar and Agarwal 2012: gradient steps on an l2-regularised SVM, averaged over users in
    every iteration.

    Each user's objective gets a random linear term once (Laplace) and its gradient fresh Gaussian
    noise every time. The guarantee counts the Gaussian noise: everything a user sends is made from
    its noisy gradients. A step is 1/sqrt(t) for unit rows, and shorter by as much as rows may be
    longer.
    """
    checks.one_of("calibration", calibration, _CALIBRATIONS)
    norm = _norm(shares, calibration)
    data = [(_bounded(X, norm), linear.targets(labels, classes)) for X, labels in _checked(shares)]
    rows = data[0][1].shape[1]
    smallest = min(len(X) for X, _ in data)
    # Hinge: one record's gradient is no longer than its row.
    whole = norm * math.sqrt(rows) * 2 / smallest
    if calibration == "proven":
        # Rounded toward privacy: composing the iterations rounds once more.
        sigma = (
            math.sqrt(iterations)
            * (1 + 1e-12)
            * Gaussian.calibrate(epsilon, delta=delta, sensitivity=whole, unit="record").sigma
        )
        linear_scale = math.sqrt(rows * data[0][0].shape[1]) * whole / epsilon
    else:
        linear_scale = 2 / _stated(size, smallest) / epsilon
        sigma = math.sqrt(2 * math.log(1.25 / delta)) * linear_scale
    # A record is in one user's gradients, once in every iteration.
    noise = Gaussian(sigma=sigma, sensitivity=whole, delta=delta, unit="record")
    guarantee = Guarantee(
        releases=(Planned(what=_GRADIENTS, mechanism=noise, count=iterations, parts=len(data)),),
        delta=delta,
        mechanism=f"RA12: {iterations} noisy gradients a user, Gaussian of deviation {sigma:.3g}",
        model="local",
        claimed=epsilon,
        calibration="proven" if calibration == "proven" else "paper",
        assumptions=(_rows_within(norm),),
        entropy=source_of(random_state).name,
    )
    door = Door(guarantee, what="RA12", ledger=ledger, random_state=random_state)
    weights = np.zeros((rows, data[0][0].shape[1]))
    # The linear terms are noise alone, of no record: they pass no door, and nothing is charged for
    # them.
    term = Laplace(scale=linear_scale, sensitivity=1.0, unit="record")
    rng = source_of(random_state).stream("RA12/linear terms", exact=False)
    terms = [np.asarray(term.release(np.zeros_like(weights), rng=rng)) for _ in data]
    for t in range(1, iterations + 1):
        gradients = [
            door.release(_GRADIENTS, _hinge_gradient(X, signs, weights)) + extra
            for (X, signs), extra in zip(data, terms, strict=True)
        ]
        weights = weights - (np.mean(gradients, axis=0) + strength * weights) / (
            norm * math.sqrt(t)
        )
    return Baseline(weights, guarantee)


def federated_averaging(
    locals_: Sequence[Callable[[NDArray[np.float64], int], NDArray[np.float64]]],
    initial: NDArray[np.float64],
    *,
    rounds: int,
) -> NDArray[np.float64]:
    """w̄_(t+1) = (1/N) Σ w_t^(n) in the clear: what encryption is compared with."""
    weights = np.array(initial, dtype=np.float64)
    for round in range(1, rounds + 1):
        weights = np.mean([local(weights, round) for local in locals_], axis=0)
    return weights


def _checked(shares: Sequence[Share]) -> Sequence[Share]:
    if len(shares) < 3 or any(len(X) == 0 or len(X) != len(labels) for X, labels in shares):
        raise InvalidData("a baseline needs at least 3 users, each with rows and a label for each.")
    return shares


def _stated(size: int | None, smallest: int) -> int:
    """n in the paper's noise: a user's records, or as many as the paper's users had."""
    return smallest if size is None else checks.whole("size", size)


def _norm(shares: Sequence[Share], calibration: str) -> float:
    """How long a row may be: 1, or what next to no standardised row exceeds."""
    return (
        2 * math.sqrt(np.asarray(shares[0][0]).shape[1] + 1) if calibration == "unclipped" else 1.0
    )


def _bounded(X: NDArray[Any], norm: float) -> Matrix:
    """Rows with a constant for the bias, no longer than `norm`; scaling a row by a positive number
    keeps its class.
    """
    return clip_norm(np.column_stack([X, np.ones(len(X))]), norm)


def _hinge_gradient(X: Matrix, signs: Matrix, weights: Matrix) -> Matrix:
    return np.asarray((LOSSES["hinge"].slope(signs * (X @ weights.T)) * signs).T @ X / len(X))


def _logistic(
    X: NDArray[Any], signs: Matrix, strength: float, norm: float, iterations: int = 400
) -> Matrix:
    """The minimiser, as w = A' X: Nesterov's steps on A need the Gram matrix only."""
    data = _bounded(X, norm)
    gram = data @ data.T
    step = 1 / (0.25 * float(np.linalg.eigvalsh(gram)[-1]) / len(data) + strength)
    shrink = math.sqrt(strength * step)
    momentum = (1 - shrink) / (1 + shrink)
    slope = LOSSES["logistic"].slope
    now = ahead = np.zeros_like(signs)
    for _ in range(iterations):
        after = ahead - step * (
            slope(signs * (gram @ ahead)) * signs / len(data) + strength * ahead
        )
        change, now, ahead = after - now, after, after + momentum * (after - now)
        if np.abs(change).max() <= 1e-9 * np.abs(now).max():
            break
    return now.T @ data


def _rows_within(norm: float) -> Assumption:
    return Assumption("bounded rows", f"rows are no longer than {norm:.3g}")
