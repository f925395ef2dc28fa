"""What learning a hash function gives away: the estimator learns again and again from two neighbouring toy sets."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from blindsight.audit.engine.blackbox import collect
from blindsight.audit.engine.worst_inputs import Attack, attack_outcomes
from blindsight.core import codes

__all__ = ["attack_learning"]


def attack_learning(hasher: Any, *, runs: int, seed: int) -> Attack:
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
    return attack_outcomes(outcomes, what="refit with one of 100 images replaced", delta=hasher.guarantee_.delta)
