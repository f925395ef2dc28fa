"""Attack what learning gives away: fit the same estimator again and again on two neighbouring toy sets.

The private data are not in a file, so the estimator that it describes learns anew from built-in digits or random
pairs. Its parameters are the file's; sizes are kept small, which favours the attacker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from blindsight import codes
from blindsight.audit.blackbox import Outcomes, collect
from blindsight.audit.mechanisms import Attack, attack_outcomes
from blindsight.privacy import Guarantee

__all__ = ["attack_classifier", "attack_hasher", "attack_metric", "pair_learner", "toy_pairs"]

_COLUMNS = 48


def attack_hasher(hasher: Any, *, runs: int, seed: int) -> Attack:
    """Replace one of 100 digits: do the released projection, cells or codes tell whose image it was?"""
    from blindsight import data

    rows = data.load("digits").array()[:100].reshape(100, -1) / 255.0
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    other = rows.copy()
    other[0] = rows[int((rows @ rows[0]).argmin())]
    small = {"n_bits": min(16, hasher.n_bits)} if hasattr(hasher, "n_bits") else {}

    def run(given: NDArray[Any], dice: np.random.Generator) -> NDArray[Any]:
        fitted = clone(hasher).set_params(random_state=dice, **small).fit(given)
        if not hasattr(fitted, "projection_"):
            return np.concatenate([np.ravel(fitted.embedding_.mean), np.ravel(fitted.cells_.weights)[:8]])
        # The released mean and plane on both images, and whose code the released one is nearer to.
        mean = fitted.mean_ @ (rows[0] - other[0])
        plane = [((x - fitted.mean_) @ fitted.projection_) @ ((x - fitted.mean_) @ fitted.projection_) for x in pair]
        released = fitted.transform(given[:1])
        mine, theirs = (codes.hamming(released, fitted.query(x[None]))[0, 0] for x in pair)
        return np.array([mean, *plane, float(theirs) - float(mine)])

    pair = rows[0], other[0]
    outcomes = collect(run, rows, other, trials=runs, seed=seed)
    return attack_outcomes(
        outcomes, what="refit with one of 100 images replaced", delta=_delta(hasher.guarantee_, steps=1)
    )


def toy_pairs(metric: Any, *, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Four pairs, and two conjectures about their labels that differ in the first, whose records are far apart."""
    columns = min(_COLUMNS, int(metric.n_features_in_))
    pairs = 0.3 * np.random.default_rng(seed).standard_normal((4, 2, columns))
    pairs[0] = np.eye(2, columns) * np.array([[1.0], [-1.0]])
    return pairs, np.array([0, 1, 0, 1]), np.array([1, 1, 0, 1])


def attack_metric(metric: Any, *, runs: int, seed: int) -> Attack:
    """Change one pair's label: do its learned distance, and the map's size, tell?"""
    pairs, similar, other = toy_pairs(metric, seed=seed)
    outcomes: Outcomes = collect(pair_learner(metric, pairs), similar, other, trials=runs, seed=seed)
    # A changed label is a pair removed and a pair added: two steps of "add or remove one".
    steps = 2 if metric.guarantee_.neighbours == "add or remove one" else 1
    return attack_outcomes(
        outcomes,
        what="refit with one of 4 labels changed",
        delta=_delta(metric.guarantee_, steps=steps),
        steps=steps,
    )


def pair_learner(
    metric: Any, pairs: NDArray[Any], **changes: Any
) -> Callable[[Any, np.random.Generator], NDArray[np.float64]]:
    """(labels, rng) -> what the attacker looks at of the metric they give: the first pair's distance, and the size."""
    first = pairs[0, 0] - pairs[0, 1]

    def run(y: Any, dice: np.random.Generator) -> NDArray[np.float64]:
        M = refitted(metric, pairs, y, dice, **changes).get_mahalanobis_matrix()
        return np.array([first @ M @ first, np.trace(M)])

    return run


def refitted(metric: Any, pairs: Any, y: Any, dice: np.random.Generator, **changes: Any) -> Any:
    """The same estimator, learned from these pairs."""
    settings = {"random_state": dice, "n_components": None, "preprocessor": None, **changes}
    for name in ("transitive", "n_classes"):
        if name in metric.get_params():
            settings.setdefault(name, {"transitive": False, "n_classes": None}[name])
    return clone(metric).set_params(**settings).fit(pairs, y)


def attack_classifier(model: Any, *, runs: int, seed: int) -> Attack:
    """Replace one user's rows: does the federated model tell? Encryption is left out, since it hides no sum."""
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((24, 4)), np.arange(24) % 2
    groups = np.repeat(np.arange(6), 4)
    X[:4] = np.where(y[:4, None] > 0, 2.0, -2.0)

    def run(sign: float, dice: np.random.Generator) -> NDArray[Any]:
        given = X.copy()
        given[:4] *= sign
        fresh = clone(model).set_params(encrypt=False, random_state=int(dice.integers(2**31)), rounds=1)
        fresh.fit(given, y, groups=groups)
        return np.append(fresh.coef_.ravel(), fresh.intercept_.ravel())

    return attack_outcomes(
        collect(run, 1.0, -1.0, trials=runs, seed=seed),
        what="refit, one round, with the rows of one of 6 users replaced",
        delta=_delta(model.guarantee_, steps=1),
    )


def _delta(guarantee: Guarantee, *, steps: int) -> float:
    """What the promise lets pass between inputs that many neighbours apart."""
    return guarantee.cost.per(guarantee.unit, times=steps).delta
