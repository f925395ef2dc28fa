"""A small probability model of label sets, read off the co-occurrence counts: the Chow-Liu tree.

Of all distributions in which every label depends on at most one other, the tree of largest mutual information is the
nearest to the data (Chow and Liu 1968), and it needs pair counts only. So whatever is computed from it is
post-processing of the noisy counts and costs nothing more: samples of label sets (for codebooks) and the posterior of
labels given noisy scores (for answers).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks

__all__ = ["LabelTree"]

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class LabelTree:
    """Labels in an order where every parent comes before its children.

    Fields: `order` (labels), `parent` (label index or -1 for the root), `rate` (C,) marginals, and `table` (C, 2):
    the probability of the label given that its parent is absent, present.
    """

    order: NDArray[np.int64]
    parent: NDArray[np.int64]
    rate: Matrix
    table: Matrix

    @classmethod
    def from_counts(cls, counts: Any, n_records: int) -> LabelTree:
        """The tree of (noisy) co-occurrence counts; `n_records` is public."""
        m = checks.finite_array("counts", counts, ndim=2)
        n = float(checks.whole("n_records", n_records))
        # Half a record keeps every probability off 0 and 1, where logarithms and odds have no value.
        rate = np.clip(np.diag(m), 0.5, n - 0.5 if n > 1 else 0.5) / n
        most = np.minimum(rate[:, None], rate[None, :])
        least = np.maximum(rate[:, None] + rate[None, :] - 1.0, 0.0)
        both = np.clip(m / n, least + 1e-9, most - 1e-9)
        order, parent = _spanning_tree(_mutual_information(rate, both))
        table = np.stack([rate, rate], axis=1)
        for label in order:
            up = parent[label]
            if up >= 0:
                table[label, 1] = both[label, up] / rate[up]
                table[label, 0] = (rate[label] - both[label, up]) / (1.0 - rate[up])
        return cls(order, parent, rate, np.clip(table, 1e-6, 1.0 - 1e-6))

    def sample(self, n: int, *, rng: np.random.Generator) -> NDArray[np.uint8]:
        """Label sets drawn from the tree, one a row."""
        drawn = np.zeros((n, len(self.order)), np.uint8)
        for label in self.order:
            up = self.parent[label]
            chance = self.table[label][drawn[:, up]] if up >= 0 else self.rate[label]
            drawn[:, label] = rng.random(n) < chance
        return drawn

    def posterior(self, log_evidence: Any) -> Matrix:
        """P(label | evidence) for every row, by exact belief propagation.

        `log_evidence` (n, C) is ln P(what was seen | label on) - ln P(what was seen | label off).
        """
        evidence = checks.finite_array("log_evidence", log_evidence, ndim=2)
        n, c = evidence.shape
        up = np.zeros((n, c, 2))
        up[:, :, 1] = evidence
        sent = np.zeros((n, c, 2))
        for label in self.order[::-1]:
            parent = self.parent[label]
            if parent >= 0:
                sent[:, label] = _through(up[:, label], self.table[label])
                up[:, parent] += sent[:, label]
        belief = np.zeros((n, c, 2))
        for label in self.order:
            parent = self.parent[label]
            if parent < 0:
                belief[:, label] = up[:, label] + np.log([1 - self.rate[label], self.rate[label]])
            else:
                rest = belief[:, parent] - sent[:, label]
                chance = self.table[label]
                off = np.logaddexp(rest[:, 0] + np.log1p(-chance[0]), rest[:, 1] + np.log1p(-chance[1]))
                on = np.logaddexp(rest[:, 0] + np.log(chance[0]), rest[:, 1] + np.log(chance[1]))
                belief[:, label] = up[:, label] + np.stack([off, on], axis=1)
        odds = np.clip(belief[:, :, 1] - belief[:, :, 0], -500, 500)
        return 1.0 / (1.0 + np.exp(-odds))


def _through(message: Matrix, chance: Matrix) -> Matrix:
    """What a child's evidence says about its parent being off or on."""
    sides = [np.logaddexp(message[:, 0] + np.log1p(-p), message[:, 1] + np.log(p)) for p in chance]
    return np.stack(sides, axis=1)


def _mutual_information(rate: Matrix, both: Matrix) -> Matrix:
    total = np.zeros_like(both)
    a, b = rate[:, None], rate[None, :]
    cells = ((both, a * b), (a - both, a * (1 - b)), (b - both, (1 - a) * b), (1 - a - b + both, (1 - a) * (1 - b)))
    for joint, product in cells:
        joint = np.maximum(joint, 1e-12)
        total += joint * np.log(joint / product)
    return total


def _spanning_tree(weight: Matrix) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Prim's algorithm for the heaviest tree, from label 0."""
    c = len(weight)
    parent, best = np.full(c, -1), np.full(c, -np.inf)
    done, order = np.zeros(c, bool), []
    best[0] = np.inf
    for _ in range(c):
        label = int(np.argmax(np.where(done, -np.inf, best)))
        done[label] = True
        order.append(label)
        closer = ~done & (weight[label] > best)
        parent[closer], best[closer] = label, weight[label][closer]
    return np.array(order, np.int64), parent.astype(np.int64)
