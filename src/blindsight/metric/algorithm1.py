"""Algorithm 1 (DPP-DML) exactly as the paper prints it.

Rows are clipped and noised separately, batches are disjoint, and the step size decreases. What the
paper leaves open is a parameter here. Its mistakes are reproduced, because this module is for
comparison. `metric.guarantee.paper_guarantee` computes what is really guaranteed:

- Each of the d' rows gets noise for epsilon', but all rows depend on the same pairs, so an epoch
  costs d' epsilon'.
- With sensitivity reduction (DPP-S) the noise scale is the batch's own peak. It depends on the
  data, so no epsilon is finite.
- Line 5, eta <- eta / sqrt(tau), compounds to 1/sqrt(tau!) ("compound"). The text's convergence
  conditions hold neither for this nor for eta_0 / sqrt(tau) ("root"), but "root" continues to
  learn.
- g'_r of line 8 is interpreted as a norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from blindsight.core import checks
from blindsight.core.arrays import Floats, Ints
from blindsight.core.errors import InvalidParameter
from blindsight.metric.losses import Contrastive
from blindsight.privacy.accounting import Planned
from blindsight.privacy.door import Door
from blindsight.privacy.guarantee import Assumption, Guarantee
from blindsight.privacy.mechanisms import Duchi, Gaussian, Laplace, Staircase

__all__ = [
    "AS_MEANT",
    "LAPLACE",
    "PRINTED",
    "ROWS_OF_GRADIENTS",
    "SCALE",
    "Batches",
    "RowNoise",
    "StepRule",
    "Steps",
    "Trace",
    "algorithm1",
    "step_sizes",
]

StepRule = Literal["compound", "root", "constant"]
Batches = Sequence[Sequence[Ints]]  # a partition of the pairs for each epoch
ROWS_OF_GRADIENTS = "gradient rows"
SCALE = Assumption("scale from the data", "the noise scale of DPP-S is the batch's own peak")


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The schedule of Algorithm 1.

    Parameters:
        batch_size: |B|, the pairs of a batch.
        epochs: T_max.
        rule: how the step size decreases: "compound", as printed in line 5; "root", eta_0 /
            sqrt(tau), which is presumably meant; or "constant".
        first: eta_0, the first step size.
    """

    batch_size: int = 50
    epochs: int = 10
    rule: StepRule = "compound"
    first: float = 1.0

    def __post_init__(self) -> None:
        checks.whole("batch_size", self.batch_size)
        checks.whole("epochs", self.epochs)
        checks.one_of("rule", self.rule, get_args(StepRule))
        checks.positive("first", self.first)


@dataclass(frozen=True, kw_only=True)
class RowNoise:
    """Noise on every row of the gradient separately, as in the paper.

    Parameters:
        family: "laplace", "scdf", "duchi", or "gaussian" (Appendix C, with l2 norms instead of l1).
        delta: for Gaussian noise only; None is 1e-5.
        reduced: whether sensitivity reduction (DPP-S) is used: Theorem 2, or Corollary 1 for
            "gaussian", instead of Theorem 1. The scale then depends on the data.
    """

    family: str = "laplace"
    delta: float | None = None
    reduced: bool = False

    def __post_init__(self) -> None:
        checks.one_of("family", self.family, ("laplace", "scdf", "duchi", "gaussian"))
        if self.delta is not None and self.family != "gaussian":
            raise InvalidParameter("delta is spent by family='gaussian' only; leave it out.")
        if self.delta is not None:
            checks.positive("delta", self.delta)

    @property
    def order(self) -> Literal[1, 2]:
        """The order of the norm in which rows are clipped."""
        return 2 if self.family == "gaussian" else 1

    @property
    def spent(self) -> float:
        """The delta that this noise spends."""
        return 0.0 if self.family != "gaussian" else 1e-5 if self.delta is None else self.delta

    def plan(
        self,
        batches: Batches,
        *,
        epsilon: float,
        lipschitz: float,
        kappa: int,
        rows: int,
        columns: int,
    ) -> Planned:
        """Plan the releases: sums over batches, with noise for epsilon / epochs on each row.

        A unit is kappa pairs, which may be in as many batches of an epoch. The cost of Laplace and
        Gaussian noise is proportional to the change of a sum, so the worst case has all pairs in
        one batch; the other two mechanisms cost the full epsilon' for every batch that contains a
        pair of the unit.
        """
        share = epsilon / len(batches)  # line 1
        touched = len(batches) * min(kappa, max(len(epoch) for epoch in batches))
        passes, reach = (
            sum(len(epoch) for epoch in batches),
            1.0 if self.reduced else 2 * kappa * lipschitz,
        )
        common: Any = {"unit": "kappa pairs", "neighbours": "replace one"}
        mechanism: Any
        count = len(batches)
        if self.family == "laplace":
            mechanism = Laplace(scale=reach / share, sensitivity=rows * reach, **common)
        elif self.family == "gaussian":
            # Appendix C: sigma = sqrt(2 ln(1.25/delta)) Delta / epsilon.
            sigma = math.sqrt(2 * math.log(1.25 / self.spent)) * reach / share
            mechanism = Gaussian(
                sigma=sigma, sensitivity=math.sqrt(rows) * reach, delta=self.spent, **common
            )
        elif self.family == "scdf":
            # Any change of a coordinate, however small, costs the full epsilon', and all
            # coordinates may change.
            mechanism, count = (
                Staircase(epsilon=share, sensitivity=reach, dimensions=rows * columns, **common),
                touched,
            )
        else:
            mechanism = Duchi(epsilon=share, dimensions=columns, bound=lipschitz, **common)
            count, passes = rows * touched, rows * passes
        return Planned(
            what=ROWS_OF_GRADIENTS,
            mechanism=mechanism,
            count=count,
            group=kappa,
            parts=-(-passes // count),
        )


#: The schedule as printed; the schedule with the step size that is presumably meant; Laplace noise.
PRINTED, AS_MEANT, LAPLACE = Steps(), Steps(rule="root"), RowNoise()


@dataclass
class Trace:
    """The record of a run, for Figure 8.

    Parameters:
        sample: a part of the pairs, over which the objective is computed; None uses all.
        objective: the objective before each step.
        sensitivity: the sensitivity of each row (times kappa) in each step.
    """

    sample: Contrastive | None = None
    objective: list[float] = field(default_factory=list)
    sensitivity: list[Floats] = field(default_factory=list)


def step_sizes(rule: StepRule, count: int, *, first: float = 1.0) -> Floats:
    """Return the step sizes of `count` iterations (`Steps` describes the rules).

    Examples:
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
    batches: Batches,
    *,
    n_components: int,
    rng: np.random.Generator,
    noise: RowNoise | None = None,
    lipschitz: float = math.inf,
    kappa: int = 1,
    epsilon: float = 1.0,
    rule: StepRule = "compound",
    first: float = 1.0,
    start: Floats | None = None,
    door: Door | None = None,
    trace: Trace | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Floats:
    """Run Algorithm 1.

    Parameters:
        loss: the contrastive loss of the pairs.
        batches: the partition of the pairs for each epoch.
        n_components: d', the number of rows of W.
        rng: generator of the initial W, and of the noise of a simulation.
        noise: the noise; None learns without privacy and without clipping.
        lipschitz: h, the clipping bound of each row (l1; l2 for Gaussian noise).
        kappa: the number of pairs of a unit.
        epsilon: the budget as the paper counts it; each epoch gets epsilon' = epsilon / epochs.
        rule: how the step size decreases (`Steps`).
        first: eta_0, the first step size.
        start: the initial W; None draws it.
        door: the door through which `noise.plan` is released; None makes one for a simulation.
        trace: records objective and sensitivity, for the owner only.
        progress: called with (done, total).

    Returns:
        W (d' x d).
    """
    d = loss.differences.shape[1]
    W = rng.standard_normal((n_components, d)) / math.sqrt(d) if start is None else start.copy()
    if noise is not None and door is None:
        facts = {
            "epsilon": epsilon,
            "lipschitz": lipschitz,
            "kappa": kappa,
            "rows": n_components,
            "columns": d,
        }
        releases = (noise.plan(batches, **facts),)
        unproven = (SCALE,) if noise.reduced else ()
        promise = Guarantee(
            releases=releases, unproven=unproven, delta=noise.spent, model="central", entropy="seed"
        )
        door = Door(promise, what="Algorithm 1", random_state=rng)
    listed = [batch for epoch in batches for batch in epoch]
    for tau, (eta, batch) in enumerate(
        zip(step_sizes(rule, len(listed), first=first), listed, strict=True)
    ):
        if trace is not None:
            trace.objective.append((trace.sample or loss).mean(W))
        part = loss.take(batch)
        if noise is None or door is None:
            W = W - eta * part.sum(W) / len(batch)
        else:
            total, peak = part.clipped_rows(W, lipschitz, order=noise.order)
            counterpart = (
                _counterpart(W, lipschitz, loss.margin, noise.order) if noise.reduced else lipschitz
            )
            width = (peak if noise.reduced else lipschitz) + counterpart  # g'_r + g''_r, or 2h
            sensitivity = np.broadcast_to(kappa * width / len(batch), (n_components,))
            W = W - eta * _noisy_mean(door, noise, total, len(batch), sensitivity, lipschitz)
            if trace is not None:
                trace.sensitivity.append(np.array(sensitivity))
        if progress is not None:
            progress(tau + 1, len(listed))
    return W


def _counterpart(W: Floats, h: float, margin: float, order: Literal[1, 2]) -> Floats:
    """Return g''_r (Equation 12; Corollary 1 for l2).

    It is the largest possible norm of a gradient row of a pair outside the batch.
    """
    inactive = 2 * margin * (math.sqrt(len(W)) if order == 1 else 1.0)
    return np.asarray(np.minimum(h, np.maximum(4 * np.linalg.norm(W, ord=order, axis=1), inactive)))


def _noisy_mean(
    door: Door, noise: RowNoise, total: Floats, n: int, sensitivity: Floats, h: float
) -> Floats:
    """Release the mean gradient of a batch of n pairs with noise on each row (line 10)."""
    if noise.family == "duchi":
        # Duchi's mechanism needs a box instead of a sensitivity: a mean of clipped rows is in
        # [-h, h]^d.
        mean = np.clip(total / n, -h, h)
        return np.concatenate([door.release(ROWS_OF_GRADIENTS, row[None]) for row in mean])
    if noise.reduced:
        # Noise of sensitivity 1 is multiplied by each row's own sensitivity. As printed, a row of
        # sensitivity 0 (all its gradients are zero) gets no noise.
        return total / n + sensitivity[:, None] * door.release(
            ROWS_OF_GRADIENTS, np.zeros_like(total)
        )
    return door.release(ROWS_OF_GRADIENTS, total) / n
