"""Gradient descent on a loss of pairs or tuples: the whole matrix clipped once per pair, no scale
that depends on data.

Few large steps over all pairs from a map that keeps all directions alike, the later half averaged.
Clipping far below the usual gradient makes each pair vote with its direction only, which costs
little here and makes the step size free of scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from blindsight.core.arrays import Floats
from blindsight.metric.linear import orthogonal
from blindsight.metric.losses import TupleLoss

__all__ = [
    "CLIP",
    "STEPS",
    "descend",
    "largest_step",
    "noisy_descent",
    "reduce_rank",
    "start",
]

# Chosen once, on digits, and left alone: choosing anew on private data would itself cost privacy.
CLIP, STEPS = 0.1, 20
_LARGEST_STEP, _NOISE_REACH = 6.0, 0.5
_WIDEST = 256  # beyond this many columns a square map has more noise than signal


def start(columns: int, n_components: int) -> Floats:
    """Where descent begins: the identity, or for very wide records a fixed random projection.

    No data in either.
    """
    if columns <= _WIDEST:
        return np.eye(columns)
    return orthogonal(min(n_components, _WIDEST), columns, rng=np.random.default_rng(columns))


def reduce_rank(W: Floats, n_components: int) -> Floats:
    """The best map of fewer rows: same singular vectors, only the largest values.

    Free, since W is released already.
    """
    if n_components >= len(W):
        return W
    _, values, right = np.linalg.svd(W, full_matrices=False)
    return np.asarray(values[:n_components, None] * right[:n_components])


def largest_step(coordinates: int, noise: float, steps: int, pairs: int) -> float:
    """As large as helps (6), but no larger than that the noise alone moves W by half its norm.

    Noise of all steps together moves W by step_size noise sqrt(coordinates / steps) / pairs of its
    norm: all public.
    """
    drift = noise * math.sqrt(coordinates / steps) / pairs
    return min(_LARGEST_STEP, _NOISE_REACH / drift)


def descend(
    loss: TupleLoss, W: Floats, *, steps: int = STEPS, step_size: float, clip: float = CLIP
) -> Floats:
    """`noisy_descent` without noise: the non-private reference."""
    return noisy_descent(
        loss,
        W,
        lambda loss, W: loss.clipped_sum(W, clip),
        steps=steps,
        step_size=step_size,
        clip=clip,
    )


def noisy_descent(
    loss: TupleLoss,
    W: Floats,
    total: Callable[[TupleLoss, Floats], Floats],
    *,
    steps: int = STEPS,
    step_size: float,
    clip: float = CLIP,
    progress: Callable[[int, int], None] | None = None,
) -> Floats:
    """The mean of the later half of the iterates from the map W.

    Parameters:
        total: gives the sum over all pairs of the loss's gradients at W, each clipped to `clip`,
            with noise: the door.
        step_size: how far all steps together may move W, in multiples of its norm, if every pair
            agreed.
    """
    late = np.zeros_like(W)
    pace = step_size * math.sqrt(min(W.shape)) / (steps * clip)
    for tau in range(steps):
        W = W - pace * total(loss, W) / len(loss)
        late += W if tau >= steps // 2 else 0.0
        if progress is not None:
            progress(tau + 1, steps)
    return late / (steps - steps // 2)
