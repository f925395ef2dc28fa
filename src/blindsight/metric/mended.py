"""Algorithm 1 mended: the paper's descent with pure noise and a proof, by taking the whole matrix as one vector."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from blindsight.metric.algorithm1 import StepRule, step_sizes
from blindsight.metric.outer import TupleLoss
from blindsight.privacy.guarantee import Unit
from blindsight.privacy.mechanisms import Duchi, Laplace, Staircase

__all__ = ["PureMechanism", "pure_descent"]

PureMechanism = Literal["laplace", "scdf", "duchi"]
Floats = NDArray[np.float64]


def pure_descent(
    loss: TupleLoss,
    W: Floats,
    batches: Callable[[], Iterable[NDArray[np.int64]]],
    *,
    mechanism: PureMechanism,
    epsilon: float,
    group: int,
    epochs: int,
    clip: float,
    rng: np.random.Generator,
    unit: Unit = "pair",
    step_rule: StepRule = "root",
    progress: Callable[[int, int], None] | None = None,
) -> Floats:
    """`epsilon` for a unit of `group` pairs over all epochs, neighbours "add or remove one".

    The gradient of a pair is one vector of d' d coordinates, clipped to l1 norm `clip`. Batches of an epoch are
    disjoint and epochs add up. Laplace noise is linear in the distance, so a group spread over batches pays no more
    than a group in one; the other two mechanisms charge each touched batch in full, and the staircase each coordinate.
    """
    plan = [list(batches()) for _ in range(epochs)]
    share = epsilon / epochs
    touched = min(group, max(len(epoch) for epoch in plan))
    total = sum(len(epoch) for epoch in plan)
    sizes = step_sizes(step_rule, total)
    common: Any = {"unit": unit, "neighbours": "add or remove one"}
    for done, batch in enumerate((batch for epoch in plan for batch in epoch), start=1):
        mean = loss.take(batch).clipped_sum(W, clip, order=1) / len(batch)
        reach = clip / len(batch)
        if mechanism == "laplace":
            noisy = Laplace.calibrate(share, sensitivity=group * reach, **common).release(mean, rng=rng)
        elif mechanism == "scdf":
            noise = Staircase.calibrate(share / touched, sensitivity=group * reach, dimensions=mean.size, **common)
            noisy = noise.release(mean, rng=rng)
        else:
            box = Duchi(epsilon=share / touched, dimensions=mean.size, bound=clip, **common)
            noisy = box.release(np.clip(mean.ravel(), -clip, clip), rng=rng).reshape(mean.shape)
        W = W - sizes[done - 1] * noisy
        if progress is not None:
            progress(done, total)
    return W
