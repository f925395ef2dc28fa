"""The label graph of ML-GCN (Chen et al., CVPR 2019): which labels occur together, from the training labels.

Counts M_ij (images with both labels; M_ii = N_i images with label i) give conditional probabilities
P_ij = P(L_j | L_i) = M_ij / N_i. Rare coincidences are cut at a threshold tau (A_ij = 1 where P_ij >= tau), and the
binary matrix is re-weighted so that smoothing does not drown a label in its neighbours: A'_ij = p / sum_j A_ij off the
diagonal, 1 - p on it. The graph convolution uses D^-1/2 A' D^-1/2.

The counts come from private labels. One record with s labels touches s(s+1)/2 of the C(C+1)/2 distinct counts, and s is
not bounded by itself; so `noisy_counts` first keeps at most m labels of each record, and then adds exact discrete noise
for l1 sensitivity m(m+1)/2 (Laplace) or l2 sensitivity sqrt(m(m+1)/2) (Gaussian), one record added or removed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData
from blindsight.privacy.entropy import Rng
from blindsight.privacy.guarantee import Cost
from blindsight.privacy.mechanisms import DiscreteGaussian, DiscreteLaplace

__all__ = [
    "CountsRelease",
    "LabelGraph",
    "clip_labels",
    "conditional",
    "cooccurrence",
    "correlation",
    "label_matrix",
    "normalise",
    "reweight",
]

Matrix = NDArray[np.float64]


def label_matrix(labels: Any) -> NDArray[np.uint8]:
    """Labels as a table of 0 and 1, images by labels; anything else is refused."""
    array = np.asarray(labels)
    if array.ndim != 2 or array.shape[0] == 0 or array.shape[1] == 0:
        raise InvalidData(f"labels must be a non-empty table of images by labels, got shape {array.shape}.")
    if array.dtype != bool and (array.dtype.kind not in "iuf" or not np.isin(array, (0, 1)).all()):
        raise InvalidData("labels must be 0 or 1: one column a label, 1 where the image has it.")
    return array.astype(np.uint8)


def cooccurrence(labels: Any) -> NDArray[np.int64]:
    """M: how many images have both labels; the diagonal counts each label by itself."""
    y = label_matrix(labels).astype(np.int64)
    return y.T @ y


def conditional(counts: Any) -> Matrix:
    """P_ij = M_ij / N_i, within [0, 1]; a label that never occurs has an empty row. The diagonal is 0."""
    m = checks.finite_array("counts", counts, ndim=2)
    alone = np.maximum(np.diag(m), 0.0)[:, None]
    p = np.divide(m, alone, out=np.zeros_like(m), where=alone > 0)
    np.fill_diagonal(p, 0.0)
    return np.clip(p, 0.0, 1.0)


def correlation(probabilities: Any, threshold: float = 0.4) -> Matrix:
    """A_ij = 1 where P_ij >= tau: noisy edges are cut (Equation 7 of ML-GCN). No self loops yet."""
    p = checks.finite_array("probabilities", probabilities, ndim=2)
    a = (p >= checks.positive("threshold", threshold)).astype(np.float64)
    np.fill_diagonal(a, 0.0)
    return a


def reweight(adjacency: Any, p: float = 0.2) -> Matrix:
    """A'_ij = p / sum_j A_ij for neighbours, 1 - p for the label itself (Equation 8 of ML-GCN).

    A label without neighbours keeps its whole weight: there is nobody to give p to.
    """
    a = checks.finite_array("adjacency", adjacency, ndim=2).copy()
    share = checks.probability("p", p, below_one=True)
    np.fill_diagonal(a, 0.0)
    degree = a.sum(axis=1, keepdims=True)
    weighted = np.divide(share * a, degree, out=np.zeros_like(a), where=degree > 0)
    np.fill_diagonal(weighted, np.where(degree[:, 0] > 0, 1.0 - share, 1.0))
    return weighted


def normalise(adjacency: Any) -> Matrix:
    """D^-1/2 A D^-1/2 with D the row sums (Kipf and Welling), for graph convolutions."""
    a = checks.finite_array("adjacency", adjacency, ndim=2)
    scale = 1.0 / np.sqrt(np.maximum(a.sum(axis=1), 1e-12))
    return a * scale[:, None] * scale[None, :]


def clip_labels(labels: Any, most: int, *, rng: Rng) -> NDArray[np.uint8]:
    """Keep at most `most` labels of every record, chosen at random and record by record."""
    y, limit = label_matrix(labels), checks.whole("most", most)
    if limit >= y.shape[1]:
        return y
    # Ranks, not a cut value: two equal draws must not let one label too many through.
    order = np.argsort(np.where(y > 0, rng.random(y.shape), 2.0), axis=1, kind="stable")[:, :limit]
    kept = np.zeros_like(y)
    np.put_along_axis(kept, order, 1, axis=1)
    return kept & y


@dataclass(frozen=True, kw_only=True)
class CountsRelease:
    """Co-occurrence counts with noise for one record added or removed.

    `delta = 0` adds discrete Laplace noise, `delta > 0` discrete Gaussian noise, which is far smaller when records may
    hold several labels (the l2 sensitivity grows like m, the l1 like m squared).
    """

    epsilon: float
    delta: float = 0.0
    max_labels: int = 5

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.probability("delta", self.delta, below_one=True)
        checks.whole("max_labels", self.max_labels)

    @property
    def touched(self) -> int:
        """How many of the distinct counts one record can change by one: m(m+1)/2."""
        return self.max_labels * (self.max_labels + 1) // 2

    def mechanism(self, n_labels: int) -> DiscreteLaplace | DiscreteGaussian:
        """The exact sampler, calibrated to what one record can change."""
        touched = min(self.touched, n_labels * (n_labels + 1) // 2)
        if self.delta > 0:
            return DiscreteGaussian.calibrate(
                self.epsilon,
                delta=self.delta,
                sensitivity=math.sqrt(touched),
                dimensions=0,  # counts are whole already: rounding widens nothing
                unit="record",
                neighbours="add or remove one",
            )
        return DiscreteLaplace.calibrate(
            self.epsilon,
            sensitivity=float(touched),
            grid=1.0,
            dimensions=0,
            unit="record",
            neighbours="add or remove one",
        )

    def cost(self, n_labels: int) -> Cost:
        """What the release spends, per record."""
        return self.mechanism(n_labels).cost

    def release(self, labels: Any, *, rng: Rng) -> Matrix:
        """The noisy counts, symmetric, and zero where noise would drown them.

        Most pairs of labels never occur together; half of their noise is positive and would make edges of nothing. So
        pairs below two deviations of the noise, and labels below one, count as zero: post-processing.
        """
        m = cooccurrence(clip_labels(labels, self.max_labels, rng=rng))
        upper = np.triu_indices(len(m))
        mechanism = self.mechanism(len(m))
        noisy = np.asarray(mechanism.release(m[upper].astype(np.float64), rng=rng), np.float64)
        deviation = float(mechanism.scale) if isinstance(mechanism, DiscreteLaplace) else mechanism.sigma
        least = np.where(upper[0] == upper[1], deviation, 2 * deviation)
        result = np.zeros(m.shape)
        result[upper] = np.where(noisy < least, 0.0, noisy)
        return np.maximum(result, result.T)


@dataclass(frozen=True)
class LabelGraph:
    """The label graph: counts, and everything ML-GCN derives from them.

    >>> LabelGraph.from_labels([[1, 1, 0], [1, 1, 0], [0, 1, 1]]).conditional[0]
    array([0., 1., 0.])
    """

    counts: Matrix
    threshold: float = 0.4
    p: float = 0.2

    def __post_init__(self) -> None:
        m = checks.finite_array("counts", self.counts, ndim=2)
        if m.shape[0] != m.shape[1] or (m < 0).any() or not np.allclose(m, m.T):
            raise InvalidData("counts must be a symmetric square table without negative values.")
        object.__setattr__(self, "counts", m)

    @classmethod
    def from_labels(cls, labels: Any, *, threshold: float = 0.4, p: float = 0.2) -> LabelGraph:
        """The exact graph of these labels: not private."""
        return cls(cooccurrence(labels).astype(np.float64), threshold, p)

    @property
    def n_labels(self) -> int:
        """How many labels there are."""
        return len(self.counts)

    @property
    def conditional(self) -> Matrix:
        """P_ij, the probability of label j on an image with label i."""
        return conditional(self.counts)

    @property
    def adjacency(self) -> Matrix:
        """The re-weighted matrix A'."""
        return reweight(correlation(self.conditional, self.threshold), self.p)

    @property
    def normalised(self) -> Matrix:
        """What the graph convolution multiplies with."""
        return normalise(self.adjacency)
