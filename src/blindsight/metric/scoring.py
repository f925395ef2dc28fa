"""How good a metric is: nearest neighbours on held-out records, and held-out pairs told apart.

All of these look at private data without noise. They are for whoever holds the data; to publish one
is a release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData

__all__ = ["Scores", "nearest_neighbours", "split_by_pairs"]


@dataclass(frozen=True)
class Scores:
    """Accuracy, and accuracy averaged over classes (for sets that are mostly one class)."""

    accuracy: float
    balanced: float
    tested: int

    def interval(self) -> tuple[float, float]:
        """Wilson's 95% interval of the accuracy: how little a few tested records say."""
        z, n, p = 1.96, self.tested, self.accuracy
        middle, width = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return (middle - width) / (1 + z * z / n), (middle + width) / (1 + z * z / n)


def nearest_neighbours(
    gallery: Any, classes: Any, queries: Any, truth: Any, *, k: int = 5
) -> Scores:
    """Classify mapped `queries` by majority of the k nearest of the mapped `gallery`; ties go to
    the nearest class.
    """
    import faiss

    classes, truth = np.asarray(classes), np.asarray(truth)
    if len(np.unique(classes)) < 2:
        raise InvalidData(
            "the gallery holds a single class: nearest neighbours have nothing to tell apart."
        )
    if len(truth) == 0:
        raise InvalidData("there are no held-out records to test on.")
    index = faiss.IndexFlatL2(np.shape(gallery)[1])
    index.add(np.ascontiguousarray(gallery, dtype=np.float32))
    _, found = index.search(
        np.ascontiguousarray(queries, dtype=np.float32), min(checks.whole("k", k), len(classes))
    )
    names, codes = np.unique(classes, return_inverse=True)
    votes = np.zeros((len(truth), len(names)))
    near = codes[found]
    for rank in range(near.shape[1]):
        # A little less for each rank breaks ties in favour of the nearer.
        votes[np.arange(len(truth)), near[:, rank]] += 1 - 1e-6 * rank
    hit = names[votes.argmax(axis=1)] == truth
    per_class = [float(hit[truth == name].mean()) for name in np.unique(truth)]
    return Scores(float(hit.mean()), float(np.mean(per_class)), len(truth))


def split_by_pairs(
    edges: NDArray[np.int64], n_records: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The paper's protocol: records in pairs are the gallery, all others are held out."""
    used = np.zeros(n_records, dtype=bool)
    used[edges.ravel()] = True
    return np.flatnonzero(used), np.flatnonzero(~used)
