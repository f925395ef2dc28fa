"""The label graph of ML-GCN (Chen et al., CVPR 2019): which labels occur together, from the
training labels.

Counts M_ij (images with both labels; M_ii = N_i images with label i) give conditional probabilities
P_ij = P(L_j | L_i) = M_ij / N_i. Rare coincidences are cut at a threshold tau (A_ij = 1 where P_ij
>= tau), and the binary matrix is re-weighted so that smoothing does not drown a label in its
neighbours: A'_ij = p / sum_j A_ij off the diagonal, 1 - p on it. The graph convolution uses D^-1/2
A' D^-1/2.

The counts come from private labels, and a record with s labels touches s² of them.
`LabelGraph.released` scales a record with more than m labels down, so that its part of the counts
has an l2 norm of at most m, and adds discrete Gaussian noise to their sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from blindsight.core import checks
from blindsight.core.arrays import Bytes, Floats, Ints
from blindsight.core.errors import InvalidData
from blindsight.privacy.door import Door, Outer
from blindsight.privacy.entropy import RandomState, source_of
from blindsight.privacy.guarantee import Guarantee
from blindsight.privacy.mechanisms import DiscreteGaussian
from blindsight.privacy.plan import Planned
from blindsight.tagging.labels import label_rows

if TYPE_CHECKING:
    from blindsight.privacy.ledger import Ledger

__all__ = [
    "LabelGraph",
    "conditional",
    "cooccurrence",
    "correlation",
    "label_matrix",
    "normalise",
    "reweight",
]

_COUNTS = "label counts"


def label_matrix(labels: ArrayLike) -> Bytes:
    """Labels as a table of 0 and 1, images by labels; anything else is refused."""
    array = np.asarray(labels)
    if array.ndim != 2 or array.shape[0] == 0 or array.shape[1] == 0:
        raise InvalidData(
            f"labels must be a non-empty table of images by labels, got shape {array.shape}."
        )
    if array.dtype != bool and (array.dtype.kind not in "iuf" or not np.isin(array, (0, 1)).all()):
        raise InvalidData("labels must be 0 or 1: one column a label, 1 where the image has it.")
    return array.astype(np.uint8)


def cooccurrence(labels: ArrayLike) -> Ints:
    """M: how many images have both labels; the diagonal counts each label by itself."""
    y = label_matrix(labels).astype(
        np.float64
    )  # exact below 2^53, and many times as fast as whole numbers
    return (y.T @ y).astype(np.int64)


def conditional(counts: ArrayLike) -> Floats:
    """P_ij = M_ij / N_i, within [0, 1]; a label that never occurs has an empty row.

    The diagonal is 0.
    """
    m = checks.finite_array("counts", counts, ndim=2)
    alone = np.maximum(np.diag(m), 0.0)[:, None]
    p = np.divide(m, alone, out=np.zeros_like(m), where=alone > 0)
    np.fill_diagonal(p, 0.0)
    return np.clip(p, 0.0, 1.0)


def correlation(probabilities: ArrayLike, threshold: float = 0.4) -> Floats:
    """A_ij = 1 where P_ij >= tau: noisy edges are cut (Equation 7 of ML-GCN). No self loops yet."""
    p = checks.finite_array("probabilities", probabilities, ndim=2)
    a = (p >= checks.positive("threshold", threshold)).astype(np.float64)
    np.fill_diagonal(a, 0.0)
    return a


def reweight(adjacency: ArrayLike, p: float = 0.2) -> Floats:
    """A'_ij = p / sum_j A_ij for neighbours, 1 - p for the label itself (Equation 8 of ML-GCN).

    A label without neighbours keeps its whole weight: there is nobody to give p to.
    """
    a = checks.finite_array("adjacency", adjacency, ndim=2).copy()
    share = checks.probability("p", p, below_one=True)
    np.fill_diagonal(a, 0.0)
    degree = a.sum(axis=1, keepdims=True)
    weighted = np.divide(share * a, degree, out=np.zeros_like(a), where=degree > 0)
    np.fill_diagonal(weighted, np.where(degree[:, 0] > 0, 1.0 - share, 1.0))
    return np.asarray(weighted)


def normalise(adjacency: ArrayLike) -> Floats:
    """D^-1/2 A D^-1/2 with D the row sums (Kipf and Welling), for graph convolutions."""
    a = checks.finite_array("adjacency", adjacency, ndim=2)
    scale = 1.0 / np.sqrt(np.maximum(a.sum(axis=1), 1e-12))
    return np.asarray(a * scale[:, None] * scale[None, :])


@dataclass(frozen=True)
class LabelGraph:
    """The label graph: counts, and everything ML-GCN derives from them.

    Examples:
        >>> LabelGraph.from_labels([[1, 1, 0], [1, 1, 0], [0, 1, 1]]).conditional[0]
        array([0., 1., 0.])
    """

    counts: Floats
    threshold: float = 0.4
    p: float = 0.2

    def __post_init__(self) -> None:
        m = checks.finite_array("counts", self.counts, ndim=2)
        if m.shape[0] != m.shape[1] or (m < 0).any() or not np.allclose(m, m.T):
            raise InvalidData("counts must be a symmetric square table without negative values.")
        object.__setattr__(self, "counts", m)

    @classmethod
    def from_labels(
        cls, labels: ArrayLike, *, threshold: float = 0.4, p: float = 0.2
    ) -> LabelGraph:
        """The exact graph of these labels: not private."""
        return cls(cooccurrence(labels).astype(np.float64), threshold, p)

    @classmethod
    def released(
        cls,
        labels: ArrayLike,
        *,
        epsilon: float,
        delta: float,
        max_labels: int = 4,
        threshold: float = 0.4,
        p: float = 0.2,
        ledger: Ledger | None = None,
        random_state: RandomState = None,
    ) -> LabelGraph:
        """The graph of noisy counts: (epsilon, delta) per record, one added or removed; the columns
        are public.

        Most pairs of labels never occur together; half of their noise is positive and would make
        edges of nothing. So pairs below two deviations of the noise, and labels below one, count as
        zero: post-processing.
        """
        y = label_rows(labels).astype(np.float64)
        noise = DiscreteGaussian.calibrate(
            epsilon,
            delta=delta,
            sensitivity=float(checks.whole("max_labels", max_labels)),
            dimensions=y.shape[1] ** 2,
            unit="record",
            neighbours="add or remove one",
        )
        promised = Guarantee(
            releases=(Planned(what=_COUNTS, mechanism=noise),),
            delta=delta,
            model="central",
            entropy=source_of(random_state).name,
        )
        door = Door(promised, what="a label graph", ledger=ledger, random_state=random_state)
        noisy = door.total(_COUNTS, Outer(y, y))
        noisy = (noisy + noisy.T) / 2
        least = noise.sigma * np.where(np.eye(len(noisy)) > 0, 1.0, math.sqrt(2.0))
        return cls(np.where(noisy < least, 0.0, noisy), threshold, p)

    @property
    def n_labels(self) -> int:
        """How many labels there are."""
        return len(self.counts)

    @property
    def conditional(self) -> Floats:
        """P_ij, the probability of label j on an image with label i."""
        return conditional(self.counts)

    @property
    def adjacency(self) -> Floats:
        """The re-weighted matrix A'."""
        return reweight(correlation(self.conditional, self.threshold), self.p)

    @property
    def normalised(self) -> Floats:
        """What the graph convolution multiplies with."""
        return normalise(self.adjacency)

    @property
    def as_published(self) -> Floats:
        """What the authors' code multiplies with: 0.25 A over its column sums, plus I, normalised
        and transposed.
        """
        a = correlation(self.conditional, self.threshold)
        a = 0.25 * a / (a.sum(axis=0, keepdims=True) + 1e-6) + np.eye(len(a))
        return normalise(a).T
