"""Gradients as sums of few outer products: clipped and added without ever forming one matrix a
pair.

The gradient of every loss here with respect to W is, for one pair or tuple, a sum of one or two
outer products l r'. Norms follow from inner products of the factors, so clipping n gradients of a
d' x d matrix costs O(n (d' + d)) and their sum is one matrix product, where the plain way needs n
matrices in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from blindsight.privacy.door import added

__all__ = ["Gradients", "TupleLoss"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Gradients:
    """Rows for the door: the gradient of each pair or tuple as its factors, left (n, k, d') and
    right (n, k, d).
    """

    left: Floats
    right: Floats

    def __len__(self) -> int:
        return len(self.left)

    def norms(self, order: float) -> Floats:
        """Of each gradient as a whole matrix, l2; for l1 at most the sum of its outer products'."""
        return _frobenius(self.left, self.right) if order == 2 else _absolute(self.left, self.right)

    def weighted_sum(self, weights: Floats) -> Floats:
        """All gradients, each times its weight, added as matrix products."""
        return added(
            weights, lambda n: _added(self.left[n] * weights[n, None, None], self.right[n])
        )


class TupleLoss(ABC):
    """A loss bound to its data: one value and one gradient for each pair or tuple."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of pairs or tuples."""

    @abstractmethod
    def take(self, chosen: NDArray[Any]) -> Self:
        """The same loss on these pairs or tuples only."""

    @abstractmethod
    def values(self, W: Floats) -> Floats:
        """(n,) the loss of each."""

    @abstractmethod
    def factors(self, W: Floats) -> tuple[Floats, Floats]:
        """Left (n, k, d') and right (n, k, d) factors: gradient i is the sum over k of left x
        right'.
        """

    def gradients(self, W: Floats) -> Floats:
        """(n, d', d) all gradients, formed. For tests and small data."""
        left, right = self.factors(W)
        return np.asarray(np.einsum("nkr,nkd->nrd", left, right))

    def mean(self, W: Floats) -> float:
        """The objective: the mean loss."""
        return float(self.values(W).mean())

    def clipped_sum(self, W: Floats, bound: float, *, order: Literal[1, 2] = 2) -> Floats:
        """The sum of the gradients, each as a *whole matrix* scaled into the l1 or l2 (Frobenius)
        ball of `bound`.

        Removing one pair therefore moves the sum by at most `bound`. For l1 with two outer products
        the norm is bounded by the sum of theirs, which clips a little more than needed and never
        less.
        """
        gradients = Gradients(*self.factors(W))
        return gradients.weighted_sum(bound / np.maximum(gradients.norms(order), bound))

    def sum(self, W: Floats) -> Floats:
        """The sum of the gradients, unclipped."""
        return _added(*self.factors(W))


def _added(left: Floats, right: Floats) -> Floats:
    """The sum of all outer products, as one matrix product."""
    return left.reshape(-1, left.shape[2]).T @ right.reshape(-1, right.shape[2])


def _frobenius(left: Floats, right: Floats) -> Floats:
    """|sum_k l_k r_k'|_F: the root of the sum over j, k of (l_j . l_k)(r_j . r_k), never less than
    it is.

    Outer products that nearly cancel leave rounding errors in place of the sum: what those may hide
    is added.
    """
    if left.shape[1] == 1:
        return np.asarray(
            np.sqrt(np.einsum("nkr,nkr->n", left, left) * np.einsum("nkd,nkd->n", right, right))
        )
    inner = np.einsum("njr,nkr->njk", left, left) * np.einsum("njd,nkd->njk", right, right)
    sizes = np.sqrt(np.einsum("nkk->nk", inner)).sum(axis=1)
    hidden = (left.shape[2] + right.shape[2] + 8) * 2.0**-52 * sizes**2
    return np.asarray(np.sqrt(np.maximum(inner.sum(axis=(1, 2)), 0.0) + hidden))


def _absolute(left: Floats, right: Floats) -> Floats:
    return np.asarray((np.abs(left).sum(axis=2) * np.abs(right).sum(axis=2)).sum(axis=1))
