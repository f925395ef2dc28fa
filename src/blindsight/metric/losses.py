"""Losses of pairs and triplets and their clipped gradients.

The contrastive loss (Equation 7; its gradient is Equation 8) is
    L(W, z) = 1/2 |W dx|^2                  for a similar pair,
    L(W, z) = 1/2 max(0, m - |W dx|)^2      for a dissimilar pair.
The triplet loss (Section VIII) compares three records at once, so a triplet contains two pairs. The
privacy of a pair therefore depends on the number of triplets that contain it; see `group_size`.

The gradient of each loss with respect to W is, for one pair or tuple, a sum of one or two outer
products l r'. Norms follow from inner products of the factors, so clipping n gradients of a d' x d
matrix costs O(n (d' + d)) and their sum is one matrix product; no matrix per pair is formed.

Gradient descent on a loss (`noisy_descent`) takes few large steps over all pairs, from an isotropic
map, and averages the second half of the iterates. Gradients are clipped far below their usual norm,
so that each pair contributes only a direction; this costs little accuracy and makes the step size
independent of the scale of the data.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from blindsight.core import checks
from blindsight.core.arrays import Array, Bools, Floats, Ints
from blindsight.core.errors import InvalidParameter
from blindsight.metric.graph import PairGraph
from blindsight.metric.linear import normalised, orthogonal
from blindsight.privacy.door import added
from blindsight.privacy.guarantee import Unit

__all__ = [
    "CLIP",
    "STEPS",
    "Contrastive",
    "Gradients",
    "Triplet",
    "TupleLoss",
    "contrastive_of",
    "descend",
    "group_size",
    "largest_step",
    "mean_dissimilar_distance",
    "noisy_descent",
    "reduce_rank",
    "start",
    "tuple_pairs",
]


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients of pairs or tuples, as rows for the door.

    They are stored as factors: left (n, k, d') and right (n, k, d).
    """

    left: Floats
    right: Floats

    def __len__(self) -> int:
        return len(self.left)

    def norms(self, order: float) -> Floats:
        """Return the norm of each gradient as a whole matrix.

        For order 1 it is an upper bound: the sum of the l1 norms of its outer products.
        """
        return _frobenius(self.left, self.right) if order == 2 else _absolute(self.left, self.right)

    def weighted_sum(self, weights: Floats) -> Floats:
        """Return the sum of the gradients, each multiplied by its weight."""
        return added(
            weights, lambda n: _added(self.left[n] * weights[n, None, None], self.right[n])
        )


class TupleLoss(ABC):
    """A loss with its data. It has one value and one gradient for each pair or tuple."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of pairs or tuples."""

    @abstractmethod
    def take(self, chosen: Array) -> Self:
        """Return the same loss on these pairs or tuples only."""

    @abstractmethod
    def values(self, W: Floats) -> Floats:
        """Return the loss (n,) of each pair or tuple."""

    @abstractmethod
    def factors(self, W: Floats) -> tuple[Floats, Floats]:
        """Return the left (n, k, d') and right (n, k, d) factors.

        Gradient i is the sum over k of left x right'.
        """

    def gradients(self, W: Floats) -> Floats:
        """Return all gradients (n, d', d), for tests and small data."""
        left, right = self.factors(W)
        return np.asarray(np.einsum("nkr,nkd->nrd", left, right))

    def mean(self, W: Floats) -> float:
        """The objective: the mean loss."""
        return float(self.values(W).mean())

    def clipped_sum(self, W: Floats, bound: float, *, order: Literal[1, 2] = 2) -> Floats:
        """Return the sum of the gradients, each clipped as a *whole matrix* to norm `bound`.

        The norm is l1 or l2 (Frobenius). Removing one pair therefore changes the sum by at most
        `bound`. For l1 with two outer products the sum of their norms is used, which clips a little
        more than needed and never less.
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
    """Return an upper bound of |sum_k l_k r_k'|_F.

    It is the square root of the sum over j, k of (l_j . l_k)(r_j . r_k). If outer products nearly
    cancel, rounding errors dominate the result, so a bound of these errors is added.
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


class Contrastive(TupleLoss):
    """Equation 7 on (n, d) feature differences; the paper's y = 1 is `dissimilar` here."""

    def __init__(self, differences: Floats, dissimilar: Bools, *, margin: float) -> None:
        self.differences = differences
        self.dissimilar = dissimilar
        self.margin = margin

    def __len__(self) -> int:
        return len(self.differences)

    def take(self, chosen: Array) -> Self:
        """Return the same loss on these pairs only."""
        return type(self)(self.differences[chosen], self.dissimilar[chosen], margin=self.margin)

    def values(self, W: Floats) -> Floats:
        """Equation 7 for each pair."""
        distance = np.linalg.norm(self.differences @ W.T, axis=1)
        reach = np.where(self.dissimilar, np.maximum(0.0, self.margin - distance), distance)
        return np.asarray(0.5 * reach**2)

    def factors(self, W: Floats) -> tuple[Floats, Floats]:
        """Return the factors c W dx and dx of the gradient c (W dx) dx' (Equation 8).

        c is 1, (D - m)/D or 0.
        """
        projected = self.differences @ W.T
        projected *= self._coefficient(projected)[:, None]
        return projected[:, None, :], self.differences[:, None, :]

    def clipped_rows(
        self, W: Floats, bound: float, *, order: Literal[1, 2] = 1
    ) -> tuple[Floats, Floats]:
        """Return the sum of the gradients with *each row* clipped, and the peak of each row.

        These are lines 7 and 8 of Algorithm 1. The peak g'_r is the largest norm of a clipped row
        over the batch; the paper prints a maximum of vectors.
        """
        left, right = self.factors(W)
        size = np.linalg.norm(self.differences, ord=order, axis=1)
        norm = np.abs(left[:, 0, :]) * size[:, None]
        clipped = left[:, 0, :] / np.maximum(1.0, norm / bound)
        return clipped.T @ right[:, 0, :], np.minimum(norm, bound).max(axis=0)

    def _coefficient(self, projected: Floats) -> Floats:
        distance = np.linalg.norm(projected, axis=1)
        # At distance 0 a dissimilar pair has no direction in which to separate; its gradient is
        # defined as 0.
        ratio = np.divide(
            distance - self.margin, distance, out=np.zeros_like(distance), where=distance > 0
        )
        return np.where(self.dissimilar, np.where(distance < self.margin, ratio, 0.0), 1.0)


def mean_dissimilar_distance(
    differences: Floats, dissimilar: Bools, *, order: Literal[1, 2] = 1
) -> float:
    """Return the paper's margin (Section VII-B), which depends on the data.

    It is the mean norm of the differences of dissimilar pairs, or 1 if there are none.
    """
    if not dissimilar.any():
        return 1.0
    return float(np.linalg.norm(differences[dissimilar], ord=order, axis=1).mean())


def contrastive_of(
    records: Floats, graph: PairGraph, norm: Any, margin: float | str
) -> Contrastive:
    """Return the loss of a graph's pairs on normalised records.

    The margin "mean" is the mean distance of dissimilar pairs.
    """
    rows = normalised(records, norm)
    differences = rows[graph.edges[:, 0]] - rows[graph.edges[:, 1]]
    if margin == "mean":
        margin = mean_dissimilar_distance(
            differences, ~graph.similar, order=1 if norm == "l1" else 2
        )
    return Contrastive(differences, ~graph.similar, margin=checks.positive("margin", margin))


class Triplet(TupleLoss):
    """max(0, m + |W(a - p)|^2 - |W(a - n)|^2) on (n, 3, d) tuples: anchor, positive, negative."""

    def __init__(self, tuples: Floats, *, margin: float) -> None:
        self.tuples = tuples
        self.margin = margin

    def __len__(self) -> int:
        return len(self.tuples)

    def take(self, chosen: Array) -> Self:
        """Return the same loss on these tuples only."""
        return type(self)(self.tuples[chosen], margin=self.margin)

    def values(self, W: Floats) -> Floats:
        """The loss of each triplet."""
        near, far = self._sides(W)[1]
        return np.asarray(
            np.maximum(0.0, self.margin + (near**2).sum(axis=1) - (far**2).sum(axis=1))
        )

    def factors(self, W: Floats) -> tuple[Floats, Floats]:
        """Return the factors of 2 (W p) p' - 2 (W n) n', which are 0 if the triplet is inactive."""
        right, (near, far) = self._sides(W)
        active = self.margin + (near**2).sum(axis=1) > (far**2).sum(axis=1)
        left = np.stack([2 * near, -2 * far], axis=1) * active[:, None, None]
        return left, right

    def _sides(self, W: Floats) -> tuple[Floats, tuple[Floats, Floats]]:
        right = self.tuples[:, :1] - self.tuples[:, 1:]
        return right, (right[:, 0] @ W.T, right[:, 1] @ W.T)


def tuple_pairs(indices: Ints) -> tuple[Ints, Bools]:
    """Return the pairs (anchor, other) of (n, k) tuples, and which of them are similar."""
    others = indices.shape[1] - 1
    pairs = np.stack([np.repeat(indices[:, :1], others, axis=1), indices[:, 1:]], axis=2).reshape(
        -1, 2
    )
    similar = np.tile(np.arange(others) == 0, len(indices))
    return pairs, similar


def group_size(
    indices: Ints,
    unit: Unit,
    *,
    kappa: int = 1,
    people: Ints | None = None,
) -> int:
    """Return the largest number of tuples by which neighbouring data sets differ.

    For pairs, (n, 2), it is 1 per label and per pair, the largest degree per record, the largest
    number of pairs of a person, and kappa per kappa pairs. It is a function of the structure, which
    must be public. The label of a triplet says which of its last two records is similar.

    Parameters:
        indices: (n, k) numbers of records.
        unit: "label", "pair", "record", "person" or "kappa pairs".
        kappa: for unit "kappa pairs".
        people: (records,) number of the person behind each record, for unit "person".
    """
    checks.one_of("unit", unit, ("label", "pair", "record", "person", "kappa pairs"))
    if unit in ("record", "person"):
        if unit == "person" and people is None:
            raise InvalidParameter("unit 'person' needs people.")
        listed = np.sort(indices if unit == "record" else people[indices], axis=1)  # type: ignore[index]
        fresh = np.ones(listed.shape, dtype=bool)
        fresh[:, 1:] = listed[:, 1:] != listed[:, :-1]
        return int(np.bincount(listed[fresh]).max())
    if unit == "label":
        labelled = np.column_stack([indices[:, :1], np.sort(indices[:, 1:], axis=1)])
        if indices.shape[1] == 2:
            labelled = np.sort(indices, axis=1)
        return int(np.unique(labelled, axis=0, return_counts=True)[1].max())
    pairs = np.sort(tuple_pairs(indices)[0], axis=1)
    most = int(np.unique(pairs, axis=0, return_counts=True)[1].max())
    if unit == "kappa pairs":
        if kappa < 1:
            raise InvalidParameter(f"kappa must be at least 1, got {kappa}.")
        return most * kappa
    return most


# Chosen on digits and fixed: choosing them on private data would cost privacy.
CLIP, STEPS = 0.1, 20
_LARGEST_STEP, _NOISE_REACH = 6.0, 0.5
_WIDEST = 256  # beyond this many columns a square map has more noise than signal


def start(columns: int, n_components: int) -> Floats:
    """Return the initial map: the identity, or a fixed random projection for very wide records.

    Neither depends on the data.
    """
    if columns <= _WIDEST:
        return np.eye(columns)
    return orthogonal(min(n_components, _WIDEST), columns, rng=np.random.default_rng(columns))


def reduce_rank(W: Floats, n_components: int) -> Floats:
    """Return the best approximation of W with fewer rows, from its largest singular values.

    It costs nothing, because W is already released.
    """
    if n_components >= len(W):
        return W
    _, values, right = np.linalg.svd(W, full_matrices=False)
    return np.asarray(values[:n_components, None] * right[:n_components])


def largest_step(coordinates: int, noise: float, steps: int, pairs: int) -> float:
    """Return the step size: 6, or less if the noise alone would change W by half its norm.

    The noise of all steps together changes W by step_size noise sqrt(coordinates / steps) / pairs
    of its norm; all of these numbers are public.
    """
    drift = noise * math.sqrt(coordinates / steps) / pairs
    return min(_LARGEST_STEP, _NOISE_REACH / drift)


def descend(
    loss: TupleLoss, W: Floats, *, steps: int = STEPS, step_size: float, clip: float = CLIP
) -> Floats:
    """`noisy_descent` without noise: the non-private reference."""
    return noisy_descent(
        loss,
        W,
        lambda loss, W: loss.clipped_sum(W, clip),
        steps=steps,
        step_size=step_size,
        clip=clip,
    )


def noisy_descent(
    loss: TupleLoss,
    W: Floats,
    total: Callable[[TupleLoss, Floats], Floats],
    *,
    steps: int = STEPS,
    step_size: float,
    clip: float = CLIP,
    progress: Callable[[int, int], None] | None = None,
) -> Floats:
    """Run gradient descent and return the mean of the second half of the iterates.

    Parameters:
        loss: the loss of all pairs.
        W: the initial map.
        total: returns the noisy sum over all pairs of the gradients at W, each clipped to `clip`.
        steps: the number of steps.
        step_size: the largest change of W by all steps together, in multiples of its norm; it is
            reached if the gradients of all pairs have the same direction.
        clip: the clipping bound of a gradient.
        progress: called with (done, total).
    """
    late = np.zeros_like(W)
    pace = step_size * math.sqrt(min(W.shape)) / (steps * clip)
    for tau in range(steps):
        W = W - pace * total(loss, W) / len(loss)
        late += W if tau >= steps // 2 else 0.0
        if progress is not None:
            progress(tau + 1, steps)
    return late / (steps - steps // 2)
