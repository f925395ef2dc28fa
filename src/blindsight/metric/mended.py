"""Algorithm 1 mended: the paper's descent with pure noise and a proof, by taking the whole matrix as one vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from blindsight.metric.algorithm1 import AS_MEANT, Batches, Steps, step_sizes
from blindsight.metric.outer import TupleLoss
from blindsight.privacy.door import Door
from blindsight.privacy.guarantee import Unit
from blindsight.privacy.mechanisms import Duchi, Laplace, Staircase
from blindsight.privacy.plan import Planned

__all__ = ["GRADIENT", "PureMechanism", "pure_descent", "pure_plan"]

PureMechanism = Literal["laplace", "scdf", "duchi"]
Floats = NDArray[np.float64]
GRADIENT = "gradients"


def pure_plan(
    mechanism: PureMechanism, batches: Batches, *, epsilon: float, group: int, clip: float, size: int, unit: Unit
) -> Planned:
    """`epsilon` for a unit of `group` pairs over all epochs, neighbours "add or remove one".

    The gradient of a pair is one vector of `size` coordinates, clipped to l1 norm `clip`. Batches of an epoch are
    disjoint and epochs add up. Laplace noise is linear in the distance, so a group spread over batches pays no more
    than a group in one; the other two mechanisms charge each touched batch in full, and the staircase each coordinate.
    """
    epochs, total = len(batches), sum(len(epoch) for epoch in batches)
    touched = 1 if mechanism == "laplace" else min(group, max(len(epoch) for epoch in batches))
    count = epochs * touched
    share = epsilon / count
    common: Any = {"unit": unit, "neighbours": "add or remove one"}
    noise: Any
    if mechanism == "laplace":
        noise = Laplace.calibrate(share, sensitivity=group * clip, **common)
    elif mechanism == "scdf":
        noise = Staircase.calibrate(share, sensitivity=group * clip, dimensions=size, **common)
    else:
        noise = Duchi(epsilon=share, dimensions=size, bound=clip, **common)
    return Planned(what=GRADIENT, mechanism=noise, count=count, group=group, parts=-(-total // count))


def pure_descent(
    loss: TupleLoss,
    W: Floats,
    batches: Batches,
    door: Door,
    *,
    clip: float,
    boxed: bool,
    steps: Steps = AS_MEANT,
    progress: Callable[[int, int], None] | None = None,
) -> Floats:
    """Descend along what the door lets through: noisy sums over batches, or with `boxed` (Duchi) noisy means."""
    listed = [batch for epoch in batches for batch in epoch]
    sizes = step_sizes(steps.rule, len(listed), first=steps.first)
    for done, batch in enumerate(listed):
        total = loss.take(batch).clipped_sum(W, clip, order=1)
        if boxed:  # Duchi's mechanism needs a box: a mean of clipped rows lies in [-clip, clip]^d
            mean = door.release(GRADIENT, (total / len(batch)).reshape(1, -1)).reshape(W.shape)
        else:
            mean = door.release(GRADIENT, total) / len(batch)
        W = W - sizes[done] * mean
        if progress is not None:
            progress(done + 1, len(listed))
    return W
