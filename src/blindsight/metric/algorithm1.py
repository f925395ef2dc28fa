"""Algorithm 1, DPP-DML, to the letter: rows clipped and noised one by one, disjoint batches, a falling step size.

What the paper leaves open is a parameter here, and what it gets wrong stays as it is printed, because this module is
for comparing. What it really guarantees is worked out in `promise`:

- each of the d' rows gets noise for epsilon', but all rows see the same pairs, so an epoch costs d' epsilon';
- with sensitivity reduction (DPP-S) the noise scale is the batch's own peak: it is data, and no epsilon is finite;
- line 5, eta <- eta / sqrt(tau), compounds to 1/sqrt(tau!) ("compound"); the text's convergence conditions hold for
  neither reading, but eta_0 / sqrt(tau) ("root") at least goes on learning;
- line 8's g'_r is read as a norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.metric.contrastive import Contrastive
from blindsight.privacy.mechanisms import Duchi, Gaussian, Laplace, Staircase

__all__ = ["PaperMechanism", "StepRule", "Trace", "algorithm1", "step_sizes"]

PaperMechanism = Literal["laplace", "scdf", "duchi", "gaussian", "none"]
StepRule = Literal["compound", "root", "constant"]
Floats = NDArray[np.float64]


@dataclass
class Trace:
    """What Figure 8 shows: the objective before each step, and each row's sensitivity (times kappa) in it.

    With `sample`, the objective is taken over that part of the pairs: cheaper on large sets.
    """

    sample: Contrastive | None = None
    objective: list[float] = field(default_factory=list)
    sensitivity: list[Floats] = field(default_factory=list)


def step_sizes(rule: StepRule, count: int, *, first: float = 1.0) -> Floats:
    """The step sizes of `count` iterations: compounding as printed, eta_0 / sqrt(tau), or constant.

    >>> step_sizes("root", 4).round(3).tolist(), step_sizes("compound", 4).round(3).tolist()
    ([1.0, 0.707, 0.577, 0.5], [1.0, 0.707, 0.408, 0.204])
    """
    checks.one_of("step_rule", rule, get_args(StepRule))
    fall: Any = np.arange(1, count + 1) ** -0.5
    if rule == "compound":
        fall = np.cumprod(fall)
    elif rule == "constant":
        fall = np.ones(count)
    return np.asarray(first * fall, dtype=np.float64)


def algorithm1(
    loss: Contrastive,
    batches: Callable[[], Iterable[NDArray[np.int64]]],
    *,
    n_components: int,
    lipschitz: float,
    kappa: int,
    epsilon: float,
    epochs: int,
    rng: np.random.Generator,
    mechanism: PaperMechanism = "laplace",
    delta: float = 1e-5,
    reduction: bool = False,
    step_rule: StepRule = "compound",
    step_size: float = 1.0,
    start: Floats | None = None,
    trace: Trace | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Floats:
    """Learn W (d' x d).

    Parameters
    ----------
    batches: gives a partition of the pairs, anew for each epoch.
    lipschitz: h, the clipping bound of each row (l1; l2 for "gaussian").
    epsilon: the budget as the paper counts it; each epoch gets epsilon' = epsilon / epochs.
    mechanism: whose noise; "none" is the non-private learner (no clipping either).
    reduction: DPP-S, Theorem 2 (Corollary 1 for "gaussian") in place of Theorem 1.
    """
    d = loss.differences.shape[1]
    W = rng.standard_normal((n_components, d)) / math.sqrt(d) if start is None else start.copy()
    plan = [batch for _ in range(checks.whole("epochs", epochs)) for batch in batches()]
    sizes = step_sizes(step_rule, len(plan), first=step_size)
    share = epsilon / epochs  # line 1: epsilon' for an epoch; batches of an epoch are disjoint
    for tau, (eta, batch) in enumerate(zip(sizes, plan, strict=True)):
        if trace is not None:
            trace.objective.append((trace.sample or loss).mean(W))
        part = loss.take(batch)
        if mechanism == "none":
            W = W - eta * part.sum(W) / len(batch)
        else:
            order: Literal[1, 2] = 2 if mechanism == "gaussian" else 1
            total, peak = part.clipped_rows(W, lipschitz, order=order)
            counterpart = _counterpart(W, lipschitz, loss.margin, order) if reduction else lipschitz
            width = (peak if reduction else lipschitz) + counterpart  # g'_r + g''_r, or 2h
            sensitivity = np.broadcast_to(kappa * width / len(batch), (n_components,))
            mean = total / len(batch)
            W = W - eta * _noisy_rows(mean, sensitivity, share, delta, mechanism, lipschitz, rng)
            if trace is not None:
                trace.sensitivity.append(np.array(sensitivity))
        if progress is not None:
            progress(tau + 1, len(plan))
    return W


def _counterpart(W: Floats, h: float, margin: float, order: Literal[1, 2]) -> Floats:
    """g''_r (Equation 12; Corollary 1 for l2): how large a gradient row a pair outside the batch could have."""
    inactive = 2 * margin * (math.sqrt(len(W)) if order == 1 else 1.0)
    return np.minimum(h, np.maximum(4 * np.linalg.norm(W, ord=order, axis=1), inactive))


def _noisy_rows(
    mean: Floats,
    sensitivity: Floats,
    epsilon: float,
    delta: float,
    mechanism: PaperMechanism,
    h: float,
    rng: np.random.Generator,
) -> Floats:
    """Line 10, row by row. Unit and cost of these values are the paper's claim for one row, not ours for the step."""
    if mechanism == "duchi":
        # Duchi's mechanism needs a box, not a sensitivity: a mean of clipped rows lies in [-h, h]^d.
        box = Duchi(epsilon=epsilon, dimensions=mean.shape[1], bound=h, unit="kappa pairs")
        return box.release(np.clip(mean, -h, h), rng=rng)
    # Noise of sensitivity 1, each row then stretched to its own: all three families scale. A row without sensitivity
    # (every gradient zero, under DPP-S) gets none, as printed.
    still = np.zeros_like(mean)
    if mechanism == "laplace":
        noise = Laplace(scale=1 / epsilon, sensitivity=1.0, unit="kappa pairs").release(still, rng=rng)
    elif mechanism == "scdf":
        noise = Staircase(epsilon=epsilon, sensitivity=1.0, unit="kappa pairs").release(still, rng=rng)
    else:
        # Appendix C: sigma = sqrt(2 ln(1.25/delta)) Delta / epsilon.
        sigma = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
        noise = Gaussian(sigma=sigma, sensitivity=1.0, delta=delta, unit="kappa pairs").release(still, rng=rng)
    return mean + sensitivity[:, None] * noise
