"""ML-GCN: two graph convolutions turn label vectors into the classifier matrix W, and y = W x
(Equation 1).

H1 = LeakyReLU(Â Z Θ1), W = Â H1 Θ2, with Â the normalised label graph and Z the label vectors. The
paper's sizes are 1024 and 2048 (ResNet-101's features); here the second is the features' dimension
and the first is free. There is no bias: y = Wx, as printed. Features never change, so an epoch is a
few matrix products: seconds for the COCO subset.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from blindsight.core import checks
from blindsight.core.arrays import Array, Floats32
from blindsight.core.errors import InvalidData
from blindsight.evaluation.scores import mean_average_precision

if TYPE_CHECKING:
    from blindsight.tagging.paper import Schedule

__all__ = ["MLGCN", "Curves", "TaggingLoss", "classifier_array", "torch_generator", "train"]


def torch_generator(rng: np.random.Generator) -> torch.Generator:
    """A torch generator seeded by a numpy one: no global seeds.

    Its seed has 32 bits: for initial weights, which protect nobody.
    """
    return torch.Generator().manual_seed(int(rng.integers(0, 2**63 - 1)))


class MLGCN(nn.Module):  # type: ignore[misc]  # torch says no types
    """The graph head: `forward(x)` gives logits (n, C) of features (n, D).

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
    """ML-GCN (Equation 2), P2 (8), RP2 (14) and R-ML-GCN in one; noise is on the outputs that it is
    given.

    As printed, Equations 2, 8 and 14 are log-likelihoods, which are maximised, while the text
    minimises them; and λ||W||² added to a log-likelihood would then reward large weights. Here the
    *negative* log-likelihood is minimised and the Frobenius term is added to it, which is what
    ridge regression (Equation 16) and the text around it ask for.

    Parameters:
        robust: the weight of ||W||_F² against the mean loss; 0 leaves it out.
        decay: how much of the parameters is taken away beside each step, in units of the learning
            rate (decoupled).
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
        """λ against the sum over the records ("ridge", Equations 15 to 18), against the mean loss,
        or as decay.
        """
        if penalty == "ridge":
            return cls(robust / n_records)
        return cls(robust) if penalty == "mean" else cls(0.0, robust)

    def __call__(self, logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """The loss of one batch: summed over labels, averaged over images, plus the Frobenius
        term.
        """
        fit = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum") / len(
            logits
        )
        return fit + self.robust * weights.square().sum() if self.robust > 0 else fit


@dataclass
class Curves:
    """What happened, epoch by epoch. They come from private data: for inside use."""

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
    """Minimise the loss; with `perturb` on noisy outputs, drawn anew at every step (Equation 8).

    Not private.
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
