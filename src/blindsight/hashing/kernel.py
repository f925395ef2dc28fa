"""Kernel features on anchors, which KSH and SDH share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks

__all__ = ["AnchorKernel"]

Array = NDArray[Any]


@dataclass(frozen=True)
class AnchorKernel:
    """Gaussian kernel values to anchors, centred: k(x) = exp(-|x - a|^2 / width) - mean."""

    anchors: Array
    width: float
    mean: Array

    @classmethod
    def learn(cls, X: Array, n_anchors: int, rng: np.random.Generator) -> AnchorKernel:
        """Anchors drawn from the rows; the width is the mean squared distance to them."""
        count = min(checks.whole("n_anchors", n_anchors), len(X))
        anchors = X[np.sort(rng.choice(len(X), count, replace=False))]
        sample = X[np.sort(rng.choice(len(X), min(len(X), 2000), replace=False))]
        width = max(float(_squared_distances(sample, anchors).mean()), np.finfo(np.float64).tiny)
        raw = cls(anchors, width, np.zeros(count, dtype=X.dtype))
        return cls(anchors, width, raw(X).mean(axis=0, dtype=np.float64).astype(X.dtype))

    def __call__(self, X: Array) -> Array:
        values = _squared_distances(X, self.anchors)
        values /= -self.width
        np.exp(values, out=values)
        values -= self.mean
        return values


def _squared_distances(X: Array, anchors: Array) -> Array:
    distances = X @ (-2 * anchors.T)
    distances += np.square(X).sum(axis=1)[:, None]
    distances += np.square(anchors).sum(axis=1)
    return np.asarray(np.maximum(distances, 0, out=distances))
