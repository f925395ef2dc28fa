"""What the paper's Figure 5 compares with: noise on the weights' updates, and noise on the input
features.

Each in two ways. As the paper describes them (`paper=True`): Laplace noise of scale 1/ε, on the
gradients [1] or on the features [45], with no bound that would give a sensitivity; nothing is
proven. And proven: noisy descent at (ε, δ) per record (`PrivateTagger`), or features clipped to an
l1 ball of radius B, whose Laplace noise of scale 2B/ε makes each row ε-private.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.privacy.door import clip_norm
from blindsight.privacy.guarantee import Cost
from blindsight.privacy.mechanisms import Laplace
from blindsight.tagging.gcn import MLGCN, TaggingLoss
from blindsight.tagging.paper import Schedule

__all__ = ["FeatureNoise", "noisy_weights"]


@dataclass(frozen=True, kw_only=True)
class FeatureNoise:
    """Laplace noise on every image's features before they are used, one row a record.

    `paper=True` adds Lap(1/ε) to raw features, as the authors' published code does; otherwise rows
    are clipped to an l1 ball of radius `bound` and get Lap(2 · bound / ε), which is ε-private per
    record whatever happens later.
    """

    epsilon: float
    bound: float = 1.0
    paper: bool = False

    @property
    def cost(self) -> Cost:
        """What is proven, per record (replace one)."""
        return Cost(epsilon=float("inf") if self.paper else self.epsilon, unit="record")

    def release(self, x: Any, *, rng: np.random.Generator) -> NDArray[np.float32]:
        """Noisy features of the same shape."""
        if self.paper:
            noise = Laplace(
                scale=1 / checks.positive("epsilon", self.epsilon), sensitivity=1.0, unit="record"
            )
            return np.asarray(noise.release(np.asarray(x, np.float64), rng=rng), np.float32)
        noise = Laplace.calibrate(self.epsilon, sensitivity=2 * self.bound, unit="record")
        return np.asarray(noise.release(clip_norm(x, self.bound, order=1), rng=rng), np.float32)


def noisy_weights(
    head: MLGCN,
    features: NDArray[np.float32],
    labels: NDArray[Any],
    *,
    epsilon: float,
    schedule: Schedule,
    rng: np.random.Generator,
) -> None:
    """The paper's reading of [1]: Laplace noise of scale 1/ε on every batch's gradient sum, and no
    clipping.
    """
    noise = Laplace(scale=1 / checks.positive("epsilon", epsilon), sensitivity=1.0, unit="record")
    loss = TaggingLoss()
    x = torch.as_tensor(np.ascontiguousarray(features, np.float32))
    y = torch.as_tensor(np.ascontiguousarray(labels, np.float32))
    optimiser = torch.optim.Adam(head.parameters(), lr=schedule.learning_rate)
    for _ in range(schedule.epochs):
        for batch in torch.as_tensor(rng.permutation(len(x))).split(schedule.batch_size):
            weights = head.classifier()
            optimiser.zero_grad(set_to_none=True)
            loss(x[batch] @ weights.T, y[batch], weights).backward()
            for parameter in head.parameters():
                assert parameter.grad is not None  # noqa: S101  (every parameter is in the loss)
                drawn = noise.release(np.zeros(parameter.shape, np.float32), rng=rng)
                parameter.grad += torch.from_numpy(drawn) / len(batch)
            optimiser.step()
