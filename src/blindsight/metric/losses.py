"""Beyond pairs (Section VIII): the triplet loss and the N-pair loss, with gradients as two outer
products each.

One tuple speaks about several pairs (a triplet about two, an N-pair tuple about N), so a pair's
privacy depends on how many tuples it is in: see `group_size`.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter
from blindsight.metric.outer import TupleLoss
from blindsight.privacy.guarantee import Unit

__all__ = ["NPair", "Triplet", "group_size", "tuple_pairs"]

Floats = NDArray[np.float64]


class Triplet(TupleLoss):
    """max(0, m + |W(a - p)|^2 - |W(a - n)|^2) on (n, 3, d) tuples: anchor, positive, negative."""

    def __init__(self, tuples: Floats, *, margin: float) -> None:
        self.tuples = tuples
        self.margin = margin

    def __len__(self) -> int:
        return len(self.tuples)

    def take(self, chosen: NDArray[Any]) -> Self:
        """The same loss on these tuples only."""
        return type(self)(self.tuples[chosen], margin=self.margin)

    def values(self, W: Floats) -> Floats:
        """The loss of each triplet."""
        near, far = self._sides(W)[1]
        return np.asarray(
            np.maximum(0.0, self.margin + (near**2).sum(axis=1) - (far**2).sum(axis=1))
        )

    def factors(self, W: Floats) -> tuple[Floats, Floats]:
        """2 (W p) p' - 2 (W n) n' where the triplet is active."""
        right, (near, far) = self._sides(W)
        active = self.margin + (near**2).sum(axis=1) > (far**2).sum(axis=1)
        left = np.stack([2 * near, -2 * far], axis=1) * active[:, None, None]
        return left, right

    def _sides(self, W: Floats) -> tuple[Floats, tuple[Floats, Floats]]:
        right = self.tuples[:, :1] - self.tuples[:, 1:]
        return right, (right[:, 0] @ W.T, right[:, 1] @ W.T)


class NPair(TupleLoss):
    """log(1 + sum_j exp(f_a.f_j - f_a.f_p)) with f = W x (Sohn 2016), on (n, N + 1, d): anchor,
    positive, negatives.
    """

    def __init__(self, tuples: Floats) -> None:
        self.tuples = tuples

    def __len__(self) -> int:
        return len(self.tuples)

    def take(self, chosen: NDArray[Any]) -> Self:
        """The same loss on these tuples only."""
        return type(self)(self.tuples[chosen])

    def values(self, W: Floats) -> Floats:
        """The loss of each tuple."""
        return np.asarray(np.logaddexp.reduce(np.pad(self._gaps(W), ((0, 0), (1, 0))), axis=1))

    def factors(self, W: Floats) -> tuple[Floats, Floats]:
        """(W a) v' + (W v) a', v the softmax-weighted mean of (negative - positive)."""
        gaps = np.pad(self._gaps(W), ((0, 0), (1, 0)))
        weight = np.exp(gaps - np.logaddexp.reduce(gaps, axis=1, keepdims=True))[:, 1:]
        anchor = self.tuples[:, 0]
        v = np.einsum("nj,njd->nd", weight, self.tuples[:, 2:] - self.tuples[:, 1:2])
        left = np.stack([anchor @ W.T, v @ W.T], axis=1)
        return left, np.stack([v, anchor], axis=1)

    def _gaps(self, W: Floats) -> Floats:
        projected = self.tuples @ W.T
        return np.asarray(
            np.einsum("nd,njd->nj", projected[:, 0], projected[:, 2:] - projected[:, 1:2])
        )


def tuple_pairs(indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The pairs that (n, k) tuples of record numbers speak about: (anchor, other) and which of them
    are similar.
    """
    others = indices.shape[1] - 1
    pairs = np.stack([np.repeat(indices[:, :1], others, axis=1), indices[:, 1:]], axis=2).reshape(
        -1, 2
    )
    similar = np.tile(np.arange(others) == 0, len(indices))
    return pairs, similar


def group_size(indices: NDArray[np.int64], unit: Unit, *, kappa: int = 1) -> int:
    """How many tuples one unit can be part of: by how many gradients neighbouring data differ.

    For pairs, (n, 2), this is 1 per pair, the largest degree per record and kappa per kappa pairs.
    It is a function of the structure, which must be public.
    """
    checks.one_of("unit", unit, ("pair", "record", "kappa pairs"))
    if unit == "record":
        listed = np.sort(indices, axis=1)
        fresh = np.ones(listed.shape, dtype=bool)
        fresh[:, 1:] = listed[:, 1:] != listed[:, :-1]
        return int(np.bincount(listed[fresh]).max())
    pairs = np.sort(tuple_pairs(indices)[0], axis=1)
    most = int(np.unique(pairs, axis=0, return_counts=True)[1].max())
    if unit == "kappa pairs":
        if kappa < 1:
            raise InvalidParameter(f"kappa must be at least 1, got {kappa}.")
        return most * kappa
    return most
