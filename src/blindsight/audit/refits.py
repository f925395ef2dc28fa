"""Attack what learning gives away: fit the same estimator again and again on two neighbouring toy sets.

The private data are not in a file, so the estimator that it describes learns anew from built-in digits or random
pairs. Its parameters are the file's; sizes are kept small, which favours the attacker.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from blindsight.audit.blackbox import Outcomes, collect, collect_at_once
from blindsight.audit.mechanisms import Attack, attack_outcomes
from blindsight.core import codes
from blindsight.privacy import Guarantee

__all__ = ["attack_hasher", "attack_metric", "attack_sum", "pair_learner", "pair_settings", "toy_pairs"]

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
            return np.concatenate([np.ravel(fitted.released_["centre"]), np.ravel(fitted.weights_)[:8]])
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
    settings = {"random_state": dice, "n_components": None, "preprocessor": None, **pair_settings(metric)}
    return clone(metric).set_params(**{**settings, **changes}).fit(pairs, y)


def pair_settings(metric: Any) -> dict[str, Any]:
    """How `DPPMetric` is set to learn from other pairs as it did from its own; nothing for the paper's estimators.

    By the loss that was used (tuples by pairs), and without bounds, which speak of the file's own columns.
    """
    if "loss" not in metric.get_params():
        return {}
    loss = metric.loss_ if metric.loss_ in ("moments", "contrastive") else "contrastive"
    return {"loss": loss, "scale": metric.scale if isinstance(metric.scale, str) else None, "kappa": "second"}


def attack_sum(model: Any, *, trials: int, seed: int) -> Attack:
    """One coordinate of a round's sum under the model's settings with six users: one sends its bound, or minus it."""
    from blindsight.federated import Pad
    from blindsight.federated.agreement import agree

    asked, colluders = dataclasses.asdict(model.noise), (model.sums or Pad()).colluders
    agreed = agree(dimension=4, users=6, rounds=model.rounds, colluders=colluders, **asked)
    noise: Any = agreed.noise

    def release(values: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        return noise.release(values, rng=rng)

    return attack_outcomes(
        collect_at_once(release, np.array(noise.clip), np.array(-noise.clip), trials=trials, seed=seed),
        what="one round's sum of 6 users, one of them replaced",
        delta=_delta(model.guarantee_, steps=1),
        statistic=lambda sums: sums.astype(np.float64),
    )


def _delta(guarantee: Guarantee, *, steps: int) -> float:
    """What the promise lets pass between inputs that many neighbours apart."""
    return guarantee.cost.per(guarantee.unit, times=steps).delta
