"""The contrastive loss (Equation 7) and its gradients (Equation 8).

L(W, z) = 1/2 |W dx|^2                       for a similar pair,
L(W, z) = 1/2 max(0, m - |W dx|)^2           for a dissimilar one.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.metric.graph import PairGraph
from blindsight.metric.outer import TupleLoss
from blindsight.metric.records import normalised

__all__ = ["Contrastive", "contrastive_of", "mean_dissimilar_distance"]

Floats = NDArray[np.float64]


class Contrastive(TupleLoss):
    """Equation 7 on (n, d) feature differences; the paper's y = 1 is `dissimilar` here."""

    def __init__(
        self, differences: Floats, dissimilar: NDArray[np.bool_], *, margin: float
    ) -> None:
        self.differences = differences
        self.dissimilar = dissimilar
        self.margin = margin

    def __len__(self) -> int:
        return len(self.differences)

    def take(self, chosen: NDArray[Any]) -> Self:
        """The same loss on these pairs only."""
        return type(self)(self.differences[chosen], self.dissimilar[chosen], margin=self.margin)

    def values(self, W: Floats) -> Floats:
        """Equation 7 for each pair."""
        distance = np.linalg.norm(self.differences @ W.T, axis=1)
        reach = np.where(self.dissimilar, np.maximum(0.0, self.margin - distance), distance)
        return np.asarray(0.5 * reach**2)

    def factors(self, W: Floats) -> tuple[Floats, Floats]:
        """Equation 8: the gradient is c (W dx) dx' with c = 1, (D - m)/D or 0; left = c W dx, right
        = dx.
        """
        projected = self.differences @ W.T
        projected *= self._coefficient(projected)[:, None]
        return projected[:, None, :], self.differences[:, None, :]

    def clipped_rows(
        self, W: Floats, bound: float, *, order: Literal[1, 2] = 1
    ) -> tuple[Floats, Floats]:
        """Algorithm 1, lines 7 and 8: sum of the gradients with *each row* clipped to `bound`, and
        each row's peak.

        The peak g'_r is the largest norm of a clipped row over the batch (the paper prints a
        maximum of vectors).
        """
        left, right = self.factors(W)
        size = np.linalg.norm(self.differences, ord=order, axis=1)
        norm = np.abs(left[:, 0, :]) * size[:, None]
        clipped = left[:, 0, :] / np.maximum(1.0, norm / bound)
        return clipped.T @ right[:, 0, :], np.minimum(norm, bound).max(axis=0)

    def _coefficient(self, projected: Floats) -> Floats:
        distance = np.linalg.norm(projected, axis=1)
        # At distance 0 a dissimilar pair has no direction in which to part; its gradient is taken
        # as 0.
        ratio = np.divide(
            distance - self.margin, distance, out=np.zeros_like(distance), where=distance > 0
        )
        return np.where(self.dissimilar, np.where(distance < self.margin, ratio, 0.0), 1.0)


def mean_dissimilar_distance(
    differences: Floats, dissimilar: NDArray[np.bool_], *, order: Literal[1, 2] = 1
) -> float:
    """The paper's margin (Section VII-B): the mean norm of the differences of dissimilar pairs, or
    1. It is data.
    """
    if not dissimilar.any():
        return 1.0
    return float(np.linalg.norm(differences[dissimilar], ord=order, axis=1).mean())


def contrastive_of(
    records: Floats, graph: PairGraph, norm: Any, margin: float | str
) -> Contrastive:
    """The loss of a graph's pairs on normalised records; margin "mean" is the mean distance of
    dissimilar ones.
    """
    rows = normalised(records, norm)
    differences = rows[graph.edges[:, 0]] - rows[graph.edges[:, 1]]
    if margin == "mean":
        margin = mean_dissimilar_distance(
            differences, ~graph.similar, order=1 if norm == "l1" else 2
        )
    return Contrastive(differences, ~graph.similar, margin=checks.positive("margin", margin))
