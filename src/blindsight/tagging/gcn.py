"""ML-GCN (Chen et al., CVPR 2019): the label graph, and two graph convolutions on it.

*Network.* Two graph convolutions turn label vectors into the classifier matrix W, and y = W x
(Equation 1): H1 = LeakyReLU(Â Z Θ1), W = Â H1 Θ2, with Â the normalised label graph and Z the label
vectors. The paper's sizes are 1024 and 2048 (ResNet-101's features); here the second is the
features' dimension and the first is free. There is no bias: y = Wx, as printed. Features never
change, so an epoch is a few matrix products: seconds for the COCO subset.

*Label graph.* It states which labels occur together in the training labels. Counts M_ij (images
with both labels; M_ii = N_i images with label i) give conditional probabilities P_ij = P(L_j | L_i)
= M_ij / N_i. Rare co-occurrences are removed by a threshold tau (A_ij = 1 where P_ij >= tau), and
the binary matrix is re-weighted so that smoothing does not hide a label among its neighbours: A'_ij
= p / sum_j A_ij off the diagonal, 1 - p on it. The graph convolution uses D^-1/2 A' D^-1/2.

The counts come from private labels, and a record with s labels changes s² of them.
`LabelGraph.released` scales down a record with more than m labels, so that its contribution to the
counts has an l2 norm of at most m, and adds discrete Gaussian noise to their sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from blindsight.core import checks
from blindsight.core.arrays import Array, Bytes, Floats, Floats32, Ints
from blindsight.core.errors import InvalidData
from blindsight.evaluation.scores import mean_average_precision
from blindsight.privacy.accounting import Planned
from blindsight.privacy.door import Door, Outer
from blindsight.privacy.entropy import RandomState, source_of
from blindsight.privacy.guarantee import Guarantee
from blindsight.privacy.mechanisms import DiscreteGaussian
from blindsight.tagging.labels import label_rows

if TYPE_CHECKING:
    from blindsight.privacy.ledger import Ledger
    from blindsight.tagging.paper import Schedule

__all__ = [
    "MLGCN",
    "Curves",
    "LabelGraph",
    "TaggingLoss",
    "classifier_array",
    "conditional",
    "cooccurrence",
    "correlation",
    "label_matrix",
    "normalise",
    "reweight",
    "torch_generator",
    "train",
]


def torch_generator(rng: np.random.Generator) -> torch.Generator:
    """Make a torch generator that is seeded by a numpy generator, without a global seed.

    Its seed has 32 bits, which is enough for initial weights, because they protect nobody.
    """
    return torch.Generator().manual_seed(int(rng.integers(0, 2**63 - 1)))


class MLGCN(nn.Module):  # type: ignore[misc]  # torch has no types
    """The graph head: `forward(x)` returns logits (n, C) of features (n, D).

    Parameters:
        adjacency: Â, the normalised label graph (C, C).
        vectors: Z, the label vectors (C, d).
        n_features: D.
        hidden: the width of the first graph convolution.
        slope: LeakyReLU's negative slope (0.2 in ML-GCN).
        weight_ceiling: Corollary 1's bound on the largest entry of W, or None.
        weight_floor: Corollary 2's bound: |W_ij| is at least this, or None.
    """

    def __init__(
        self,
        adjacency: Any,
        vectors: Any,
        *,
        n_features: int,
        hidden: int = 1024,
        slope: float = 0.2,
        weight_ceiling: float | None = None,
        weight_floor: float | None = None,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        a = torch.as_tensor(
            checks.finite_array("adjacency", adjacency, ndim=2), dtype=torch.float32
        )
        z = torch.as_tensor(checks.finite_array("vectors", vectors, ndim=2), dtype=torch.float32)
        if a.shape != (len(z), len(z)):
            raise InvalidData(
                f"adjacency must be {len(z)} by {len(z)} like the labels, got {tuple(a.shape)}."
            )
        self.adjacency, self.smoothed_vectors, self.slope = a, a @ z, slope
        self.weight_ceiling, self.weight_floor = weight_ceiling, weight_floor
        self.theta1 = nn.Parameter(_uniform(z.shape[1], hidden, generator))
        self.theta2 = nn.Parameter(_uniform(hidden, n_features, generator))

    def hidden(self) -> tuple[Tensor, Tensor]:
        """The first layer before and after its non-linearity."""
        before = self.smoothed_vectors @ self.theta1
        return before, nn.functional.leaky_relu(before, self.slope)

    def classifier(self) -> Tensor:
        """W (C, D), the output of the second graph convolution."""
        w = self.adjacency @ self.hidden()[1] @ self.theta2
        if self.weight_ceiling is not None:
            w = w.clamp(max=self.weight_ceiling)
        if self.weight_floor is not None:
            sign = torch.where(w < 0, -1.0, 1.0)
            w = sign * w.abs().clamp(min=self.weight_floor)
        return w

    def forward(self, x: Tensor) -> Tensor:
        """Equation 1: the labels' scores."""
        return x @ self.classifier().T


def classifier_array(head: MLGCN) -> Floats32:
    """W as a numpy array, detached from the graph."""
    with torch.no_grad():
        return np.asarray(head.classifier().cpu().numpy(), np.float32)


def _uniform(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    bound = 1.0 / math.sqrt(columns)
    return (torch.rand(rows, columns, generator=generator) * 2 - 1) * bound


@dataclass(frozen=True)
class TaggingLoss:
    """The loss of ML-GCN (Equation 2), P2 (8), RP2 (14) and R-ML-GCN.

    Noise is added to the outputs before they are passed to the loss. As printed, Equations 2, 8
    and 14 are log-likelihoods, which are maximised, while the text minimises them; and λ||W||²
    added to a log-likelihood would then reward large weights. Here the *negative* log-likelihood
    is minimised and the Frobenius term is added to it, as ridge regression (Equation 16) and the
    text around it require.

    Parameters:
        robust: the weight of ||W||_F² against the mean loss; 0 leaves it out.
        decay: the decoupled weight decay of each step, in units of the learning rate.
    """

    robust: float = 0.0
    decay: float = 0.0

    def __post_init__(self) -> None:
        checks.non_negative("robust", self.robust)
        checks.non_negative("decay", self.decay)

    @classmethod
    def of(
        cls, robust: float, penalty: Literal["ridge", "mean", "decay"], *, n_records: int
    ) -> TaggingLoss:
        """Make the loss for λ against the sum over the records, the mean loss, or as decay.

        "ridge" is the sum over the records (Equations 15 to 18).
        """
        if penalty == "ridge":
            return cls(robust / n_records)
        return cls(robust) if penalty == "mean" else cls(0.0, robust)

    def __call__(self, logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """Return the loss of a batch: summed over labels, averaged over images, plus ||W||_F²."""
        fit = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum") / len(
            logits
        )
        return fit + self.robust * weights.square().sum() if self.robust > 0 else fit


@dataclass
class Curves:
    """Learning curves by epoch. They are computed from private data, for the owner only."""

    loss: list[float] = field(default_factory=list)
    validation_map: list[float] = field(default_factory=list)


def train(
    head: MLGCN,
    features: Floats32,
    labels: Array,
    loss: TaggingLoss,
    schedule: Schedule,
    *,
    rng: np.random.Generator,
    perturb: Callable[[Floats32], Array] | None = None,
    validation: tuple[Any, Any] | None = None,
    on_epoch: Callable[[int, MLGCN], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Curves:
    """Minimise the loss. Training is not private.

    With `perturb`, noise is added to the outputs, drawn again at every step (Equation 8).
    """
    x = torch.as_tensor(np.ascontiguousarray(features, np.float32))
    y = torch.as_tensor(np.ascontiguousarray(labels, np.float32))
    optimiser = torch.optim.AdamW(
        head.parameters(), lr=schedule.learning_rate, weight_decay=loss.decay, fused=True
    )
    steps = schedule.steps(len(x))
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimiser, T_max=steps, eta_min=schedule.learning_rate / 50
    )
    curves = Curves()
    for epoch in range(schedule.epochs):
        order = torch.as_tensor(rng.permutation(len(x)))
        total = 0.0
        for batch in order.split(schedule.batch_size):
            weights = head.classifier()
            logits = x[batch] @ weights.T
            if perturb is not None:
                outputs = logits.detach().numpy()
                logits = logits + torch.from_numpy(perturb(outputs) - outputs)  # Equation 6
            value = loss(logits, y[batch], weights)
            optimiser.zero_grad(set_to_none=True)
            value.backward()
            optimiser.step()
            decay.step()
            total += value.item() * len(batch)
        curves.loss.append(total / len(x))
        if validation is not None:
            curves.validation_map.append(_validate(head, *validation))
        if on_epoch is not None:
            on_epoch(epoch + 1, head)
        if progress is not None:
            progress(epoch + 1, schedule.epochs)
    return curves


def _validate(head: MLGCN, features: Array, labels: Array) -> float:
    with torch.no_grad():
        logits = head(torch.as_tensor(np.ascontiguousarray(features, np.float32)))
    return mean_average_precision(labels, logits.numpy())


_COUNTS = "label counts"


def label_matrix(labels: ArrayLike) -> Bytes:
    """Return labels as a table of 0 and 1, images by labels; raise `InvalidData` otherwise."""
    array = np.asarray(labels)
    if array.ndim != 2 or array.shape[0] == 0 or array.shape[1] == 0:
        raise InvalidData(
            f"labels must be a non-empty table of images by labels, got shape {array.shape}."
        )
    if array.dtype != bool and (array.dtype.kind not in "iuf" or not np.isin(array, (0, 1)).all()):
        raise InvalidData("labels must be 0 or 1: one column a label, 1 where the image has it.")
    return array.astype(np.uint8)


def cooccurrence(labels: ArrayLike) -> Ints:
    """Return M, the number of images with both labels; the diagonal counts each label."""
    y = label_matrix(labels).astype(
        np.float64
    )  # exact below 2^53, and many times as fast as with integers
    return (y.T @ y).astype(np.int64)


def conditional(counts: ArrayLike) -> Floats:
    """Return P_ij = M_ij / N_i, clipped to [0, 1].

    The diagonal and the rows of labels that never occur are 0.
    """
    m = checks.finite_array("counts", counts, ndim=2)
    alone = np.maximum(np.diag(m), 0.0)[:, None]
    p = np.divide(m, alone, out=np.zeros_like(m), where=alone > 0)
    np.fill_diagonal(p, 0.0)
    return np.clip(p, 0.0, 1.0)


def correlation(probabilities: ArrayLike, threshold: float = 0.4) -> Floats:
    """Return A_ij = 1 where P_ij >= tau, else 0 (Equation 7 of ML-GCN), without self loops."""
    p = checks.finite_array("probabilities", probabilities, ndim=2)
    a = (p >= checks.positive("threshold", threshold)).astype(np.float64)
    np.fill_diagonal(a, 0.0)
    return a


def reweight(adjacency: ArrayLike, p: float = 0.2) -> Floats:
    """Return A'_ij = p / sum_j A_ij for neighbours, 1 - p on the diagonal (Equation 8 of ML-GCN).

    A label without neighbours has weight 1 on the diagonal.
    """
    a = checks.finite_array("adjacency", adjacency, ndim=2).copy()
    share = checks.probability("p", p, below_one=True)
    np.fill_diagonal(a, 0.0)
    degree = a.sum(axis=1, keepdims=True)
    weighted = np.divide(share * a, degree, out=np.zeros_like(a), where=degree > 0)
    np.fill_diagonal(weighted, np.where(degree[:, 0] > 0, 1.0 - share, 1.0))
    return np.asarray(weighted)


def normalise(adjacency: ArrayLike) -> Floats:
    """Return D^-1/2 A D^-1/2 with D the row sums (Kipf and Welling), for graph convolutions."""
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
        """Make the exact graph of these labels, which is not private."""
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
        """Make the graph of noisy counts, with (epsilon, delta) per record, one added or removed.

        The columns are public. Most pairs of labels never occur together; half of their noise is
        positive and would create false edges. So counts of pairs below two standard deviations of
        the noise, and of labels below one, are set to zero, which is post-processing.
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
        """The number of labels."""
        return len(self.counts)

    @property
    def conditional(self) -> Floats:
        """P_ij, the probability of label j on an image with label i."""
        return conditional(self.counts)

    @property
    def adjacency(self) -> Floats:
        """The re-weighted correlation matrix A' of the labels."""
        return reweight(correlation(self.conditional, self.threshold), self.p)

    @property
    def normalised(self) -> Floats:
        """The matrix that the graph convolution multiplies with."""
        return normalise(self.adjacency)

    @property
    def as_published(self) -> Floats:
        """The matrix of the authors' code.

        It is 0.25 A over its column sums, plus I, normalised and transposed.
        """
        a = correlation(self.conditional, self.threshold)
        a = 0.25 * a / (a.sum(axis=0, keepdims=True) + 1e-6) + np.eye(len(a))
        return normalise(a).T
