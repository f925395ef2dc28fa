"""Training-data privacy: DP-SGD (Opacus) on the graph head, with the accountant's epsilon.

Every record's gradient is clipped to `max_grad_norm` over *all* parameters together, Gaussian noise is added to the sum
of a Poisson sample, and only that sum moves the weights. The GCN's parameters are shared by all labels and all records,
and W does not depend on the record, so the gradient of one record (features x, residual r = σ(y) - labels) has a closed
form:

    linear head  y = (Â V) x:   dV  = (Â' r) x',      of norm |Â' r| |x|
    graph head   W = Â H Θ2:    dΘ2 = (H' Â' r) x',   dΘ1 = (Â Z)' [ f'(Â Z Θ1) ∘ (Â' r)(Θ2 x)' ]

The graph head's is registered with Opacus as the sampler of that module. The linear head's norms are known without
forming a gradient, so its clipped sum is one product, and Opacus' optimiser for gradients that were clipped outside
(fast gradient clipping) adds the noise.

Guarantee: (epsilon, delta) per training record, one record added or removed, for the weights and everything computed
from them, by the privacy-loss distribution of the Poisson-sampled Gaussian. Assumptions: the number of records and all
training settings are public; torch's generator (not a cryptographic one) draws the noise, in floating point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blindsight.core import checks
from blindsight.privacy import accounting
from blindsight.privacy.guarantee import Cost
from blindsight.tagging.gcn import MLGCN, LinearHead, torch_generator
from blindsight.tagging.training import Curves, Progress

__all__ = ["PrivateSchedule", "clipped_sum", "graph_gradients", "train_privately"]

_MOST_FLOATS = 1 << 25


@dataclass(frozen=True, kw_only=True)
class PrivateSchedule:
    """How the budget is spent: steps and noise follow from epsilon, delta and the number of records."""

    epsilon: float
    delta: float
    n_records: int
    epochs: int = 20
    batch_size: int = 256
    learning_rate: float = 0.05
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.positive("delta", checks.probability("delta", self.delta, below_one=True))
        checks.whole("n_records", self.n_records)
        checks.whole("epochs", self.epochs)
        checks.whole("batch_size", self.batch_size)
        checks.positive("learning_rate", self.learning_rate)
        checks.positive("max_grad_norm", self.max_grad_norm)

    @property
    def sampling_rate(self) -> float:
        """The probability that a record is in a step's sample."""
        return min(1.0, self.batch_size / self.n_records)

    @property
    def steps(self) -> int:
        """How many noisy steps there are."""
        return max(1, math.ceil(self.epochs / self.sampling_rate))

    @property
    def noise_multiplier(self) -> float:
        """The noise's deviation over the clipping bound."""
        return _noise_multiplier(self.epsilon, self.delta, self.steps, self.sampling_rate)

    @property
    def cost(self) -> Cost:
        """What the whole training costs, per record."""
        return Cost(epsilon=self.epsilon, delta=self.delta, unit="record", neighbours="add or remove one")


@cache
def _noise_multiplier(epsilon: float, delta: float, steps: int, sampling_rate: float) -> float:
    return accounting.noise_multiplier(epsilon=epsilon, delta=delta, steps=steps, sampling_rate=sampling_rate)


def clipped_sum(layer: LinearHead, x: Tensor, residual: Tensor, bound: float) -> Tensor:
    """The linear head's gradients, each clipped to `bound`, summed; none of them is ever formed."""
    pulled = residual @ layer.adjacency
    norms = pulled.norm(dim=1) * x.norm(dim=1)
    return (pulled * (bound / (norms + 1e-6)).clamp(max=1.0)[:, None]).T @ x


def graph_gradients(layer: MLGCN, activations: list[Tensor], backprops: Tensor) -> dict[Any, Tensor]:
    """Opacus' sampler of the graph head: one gradient a record, for both layers."""
    x = activations[0]
    before, hidden = layer.hidden()
    pulled = backprops @ layer.adjacency  # Â' r, one row a record
    slope = torch.where(before > 0, 1.0, layer.slope)
    into_hidden = pulled[:, :, None] * (x @ layer.theta2.T)[:, None, :] * slope[None]
    return {
        layer.theta2: torch.einsum("nh,nd->nhd", pulled @ hidden, x).detach(),
        layer.theta1: torch.einsum("cz,nch->nzh", layer.smoothed_vectors, into_hidden).detach(),
    }


def train_privately(
    head: MLGCN | LinearHead,
    features: NDArray[np.float32],
    labels: NDArray[Any],
    schedule: PrivateSchedule,
    *,
    rng: np.random.Generator,
    progress: Progress | None = None,
) -> Curves:
    """Poisson samples, clipped gradients, Gaussian noise. The curve is of private data: do not publish it."""
    checks.optional_module("opacus", extra="torch")
    from opacus import GradSampleModule
    from opacus.grad_sample import register_grad_sampler
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping

    register_grad_sampler(MLGCN)(graph_gradients)
    x = torch.as_tensor(np.ascontiguousarray(features, np.float32))
    y = torch.as_tensor(np.ascontiguousarray(labels, np.float32))
    linear = isinstance(head, LinearHead)
    module = None if linear else GradSampleModule(head, loss_reduction="sum")
    inner = torch.optim.SGD(head.parameters(), lr=schedule.learning_rate, momentum=0.9)
    optimiser = (DPOptimizerFastGradientClipping if linear else DPOptimizer)(
        inner,
        noise_multiplier=schedule.noise_multiplier,
        max_grad_norm=schedule.max_grad_norm,
        expected_batch_size=schedule.batch_size,
        loss_reduction="mean",
        generator=torch_generator(rng),
    )
    chunk = max(1, _MOST_FLOATS // sum(p.numel() for p in head.parameters()))
    curves, total, seen = Curves(), 0.0, 0
    mean = [torch.zeros_like(p) for p in head.parameters()]
    half = schedule.steps // 2
    steps, every = schedule.steps, max(1, schedule.steps // schedule.epochs)
    try:
        for step in range(steps):
            sample = torch.as_tensor(np.flatnonzero(rng.random(len(x)) < schedule.sampling_rate))
            if isinstance(head, LinearHead):
                total += _linear_step(head, optimiser, x[sample], y[sample], schedule.max_grad_norm)
            else:
                total += _step(module, optimiser, x, y, sample, chunk)
            seen += len(sample)
            if step >= half:
                for kept, parameter in zip(mean, head.parameters(), strict=True):
                    kept += parameter.detach() / (schedule.steps - half)
            if (step + 1) % every == 0 or step + 1 == steps:
                curves.loss.append(total / max(seen, 1))
                total, seen = 0.0, 0
                if progress is not None:
                    progress(step + 1, steps)
    finally:
        if module is not None:
            module.to_standard_module()
    # The mean of the second half's weights is post-processing, and steadier than the last ones.
    with torch.no_grad():
        for kept, parameter in zip(mean, head.parameters(), strict=True):
            parameter.copy_(kept)
    return curves


def _linear_step(head: LinearHead, optimiser: Any, x: Tensor, y: Tensor, bound: float) -> float:
    optimiser.zero_grad(set_to_none=True)
    with torch.no_grad():
        logits = head(x)
        head.weight.grad = clipped_sum(head, x, torch.sigmoid(logits) - y, bound)
    optimiser.step()
    return float(torch.nn.functional.binary_cross_entropy_with_logits(logits, y, reduction="sum"))


def _step(module: Any, optimiser: Any, x: Tensor, y: Tensor, sample: Tensor, chunk: int) -> float:
    optimiser.zero_grad(set_to_none=True)
    if len(sample) == 0:
        # An empty sample is a step like any other: noise alone moves the weights.
        for parameter in optimiser.params:
            parameter.grad_sample = torch.zeros((0, *parameter.shape))
        optimiser.step()
        return 0.0
    total = 0.0
    parts = sample.split(chunk)
    for number, part in enumerate(parts):
        # Inputs that require gradients keep torch's backward hooks from warning; nothing else uses them.
        logits = module(x[part].requires_grad_(True))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, y[part], reduction="sum")
        loss.backward()
        total += loss.item()
        optimiser.signal_skip_step(do_skip=number + 1 < len(parts))
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    return total
