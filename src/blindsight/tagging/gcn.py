"""ML-GCN: two graph convolutions turn label vectors into the classifier matrix W, and y = W x (Equation 1).

H1 = LeakyReLU(Â Z Θ1), W = Â H1 Θ2, with Â the normalised label graph and Z the label vectors. The paper's sizes are
1024 and 2048 (ResNet-101's features); here the second is the features' dimension and the first is free.
There is no bias: y = Wx, as printed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from blindsight.core import checks
from blindsight.core.errors import InvalidData

__all__ = ["MLGCN", "classifier_array", "torch_generator"]


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
        a = torch.as_tensor(checks.finite_array("adjacency", adjacency, ndim=2), dtype=torch.float32)
        z = torch.as_tensor(checks.finite_array("vectors", vectors, ndim=2), dtype=torch.float32)
        if a.shape != (len(z), len(z)):
            raise InvalidData(f"adjacency must be {len(z)} by {len(z)} like the labels, got {tuple(a.shape)}.")
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


def classifier_array(head: MLGCN) -> NDArray[np.float32]:
    """W as a numpy array, detached from the graph."""
    with torch.no_grad():
        return np.asarray(head.classifier().cpu().numpy(), np.float32)


def _uniform(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    bound = 1.0 / math.sqrt(columns)
    return (torch.rand(rows, columns, generator=generator) * 2 - 1) * bound
