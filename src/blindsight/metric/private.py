"""Gradient descent with noise that is proven: the whole matrix clipped once a pair, no scale that depends on data.

Two learners. `noisy_descent` is ours: Gaussian noise on the sum over all pairs (or over a Poisson sample), few large
steps from an orthogonal map, the later half averaged. Clipping far below the usual gradient makes each pair vote with
its direction only, which costs little here and makes the step size free of scale. `pure_descent` is the paper's
Algorithm 1 mended: disjoint batches and a pure-epsilon mechanism, but with the whole matrix as one vector.

Both call two data sets neighbours when one lacks a unit's pairs: their gradients count as zero, while how many pairs
there are and who is in them (the structure) is public.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from blindsight.metric.algorithm1 import StepRule, step_sizes
from blindsight.metric.outer import TupleLoss
from blindsight.metric.price import gaussian_noise
from blindsight.privacy.guarantee import Unit
from blindsight.privacy.mechanisms import Duchi, Gaussian, Laplace, Staircase

__all__ = ["PureMechanism", "descend", "noisy_descent", "noisy_margin", "orthogonal", "pure_descent", "reduce_rank"]

PureMechanism = Literal["laplace", "scdf", "duchi"]
Floats = NDArray[np.float64]
Progress = Callable[[int, int], None]


def orthogonal(rows: int, columns: int, *, rng: np.random.Generator) -> Floats:
    """A random map with orthonormal rows (columns, when there are more rows): it keeps all directions alike."""
    q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    q = q * np.sign(np.diag(r))
    return q if rows >= columns else q.T


def reduce_rank(W: Floats, n_components: int) -> Floats:
    """The best map of fewer rows: same singular vectors, only the largest values. Free, since W is released already."""
    if n_components >= len(W):
        return W
    _, values, right = np.linalg.svd(W, full_matrices=False)
    return values[:n_components, None] * right[:n_components]


def descend(loss: TupleLoss, W: Floats, *, steps: int, step_size: float, clip: float) -> Floats:
    """`noisy_descent` without noise and with all pairs: the non-private reference."""
    late = np.zeros_like(W)
    for tau in range(steps):
        W = W - _pace(step_size, steps, clip, W) * loss.clipped_sum(W, clip) / len(loss)
        late += W if tau >= steps // 2 else 0.0
    return late / (steps - steps // 2)


def noisy_descent(
    loss: TupleLoss,
    W: Floats,
    *,
    noise: float,
    steps: int,
    rate: float,
    clip: float,
    step_size: float,
    rng: np.random.Generator,
    unit: Unit = "pair",
    delta: float = 1e-5,
    progress: Progress | None = None,
) -> Floats:
    """DP-SGD from the map W; returns the mean of the later half of the iterates.

    Parameters
    ----------
    noise: sigma over `clip`, from `price.descent_noise`.
    rate: each pair joins a step with this probability, independently; 1 takes all.
    step_size: how far all steps together may move W, in multiples of its norm, if every pair agreed.

    Guarantee: `price.descent_epsilon` of (noise, steps, rate).
    """
    n = len(loss)
    late = np.zeros_like(W)
    mechanism = Gaussian(sigma=noise * clip, sensitivity=clip, delta=delta, unit=unit, neighbours="add or remove one")
    for tau in range(steps):
        part = loss if rate == 1 else loss.take(np.flatnonzero(rng.random(n) < rate))
        total = part.clipped_sum(W, clip) if len(part) else np.zeros_like(W)
        # Divide by the expected size: the true one would be data.
        W = W - _pace(step_size, steps, clip, W) * mechanism.release(total, rng=rng) / (rate * n)
        late += W if tau >= steps // 2 else 0.0
        if progress is not None:
            progress(tau + 1, steps)
    return late / (steps - steps // 2)


def _pace(step_size: float, steps: int, clip: float, W: Floats) -> float:
    """Gradient to step: `steps` mean gradients of norm `clip` in one direction would move W by step_size sqrt(d')."""
    return step_size * math.sqrt(min(W.shape)) / (steps * clip)


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
    step_size: float = 1.0,
    progress: Progress | None = None,
) -> Floats:
    """Algorithm 1 with a proof: `epsilon` for a unit of `group` pairs over all epochs.

    The gradient of a pair is one vector of d' d coordinates, clipped to l1 norm `clip`. Batches of an epoch are
    disjoint and epochs add up. Laplace noise is linear in the distance, so a group spread over batches pays no more
    than a group in one; the other two mechanisms charge each touched batch in full, and the staircase each coordinate.
    """
    plan = [list(batches()) for _ in range(epochs)]
    share = epsilon / epochs
    touched = min(group, max(len(epoch) for epoch in plan))
    total = sum(len(epoch) for epoch in plan)
    sizes = step_sizes(step_rule, total, first=step_size)
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


def noisy_margin(
    differences: Floats,
    dissimilar: NDArray[np.bool_],
    *,
    epsilon: float,
    delta: float,
    group: int,
    rng: np.random.Generator,
    unit: Unit = "pair",
) -> float:
    """The mean distance of dissimilar pairs, from a noisy sum and a noisy count; 1 where the noise would drown both.

    Guarantee: (epsilon, delta) per unit of `group` pairs. Distances are clipped to 2, the diameter of the unit ball.
    Whether it is worth asking depends on the noise and on the number of all pairs only, which are public.
    """
    reach = group * math.sqrt(2.0)
    sigma = gaussian_noise(epsilon, delta) * reach
    mechanism = Gaussian(sigma=sigma, sensitivity=reach, delta=delta, unit=unit, neighbours="add or remove one")
    if mechanism.sigma > len(differences) / 8:
        return 1.0
    distance = np.minimum(np.linalg.norm(differences[dissimilar], axis=1), 2.0)
    total, count = mechanism.release(np.array([distance.sum() / 2, len(distance)]), rng=rng)
    return float(np.clip(2 * total / count, 0.05, 2.0)) if count > 0 else 1.0
