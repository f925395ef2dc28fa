"""Training the graph head on frozen features, with learning curves.

Features never change, so an epoch is a few matrix products: minutes on a CPU for the COCO subset. The curves hold the
training loss of every epoch and, where validation data are given, the mean average precision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from blindsight.evaluation.multilabel import mean_average_precision
from blindsight.tagging.gcn import MLGCN
from blindsight.tagging.losses import TaggingLoss

if TYPE_CHECKING:
    from blindsight.tagging.paper import Schedule

__all__ = ["Curves", "train"]

Progress = Callable[[int, int], None]


@dataclass
class Curves:
    """What happened, epoch by epoch. They come from private data: for inside use."""

    loss: list[float] = field(default_factory=list)
    validation_map: list[float] = field(default_factory=list)

    def to_dict(self) -> dict[str, list[float]]:
        """Plain values for JSON."""
        return {"loss": list(self.loss), "validation_mAP": list(self.validation_map)}


def train(
    head: MLGCN,
    features: NDArray[np.float32],
    labels: NDArray[Any],
    loss: TaggingLoss,
    schedule: Schedule,
    *,
    rng: np.random.Generator,
    perturb: Callable[[NDArray[np.float32]], NDArray[Any]] | None = None,
    validation: tuple[Any, Any] | None = None,
    on_epoch: Callable[[int, MLGCN], None] | None = None,
    progress: Progress | None = None,
) -> Curves:
    """Minimise the loss; with `perturb` on noisy outputs, drawn anew at every step (Equation 8). Not private."""
    x = torch.as_tensor(np.ascontiguousarray(features, np.float32))
    y = torch.as_tensor(np.ascontiguousarray(labels, np.float32))
    optimiser = torch.optim.AdamW(head.parameters(), lr=schedule.learning_rate, weight_decay=loss.decay, fused=True)
    steps = schedule.steps(len(x))
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=steps, eta_min=schedule.learning_rate / 50)
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


def _validate(head: MLGCN, features: Any, labels: Any) -> float:
    with torch.no_grad():
        logits = head(torch.as_tensor(np.ascontiguousarray(features, np.float32)))
    return mean_average_precision(labels, logits.numpy())
