"""From a task to a map and its guarantee: the paper's way and the proven ways, each charged before it learns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.metric.algorithm1 import Trace, algorithm1
from blindsight.metric.contrastive import Contrastive, mean_dissimilar_distance
from blindsight.metric.graph import PairGraph
from blindsight.metric.outer import TupleLoss
from blindsight.metric.price import ACCOUNTANT, descent_epsilon, descent_noise, gaussian_epsilon, gaussian_noise
from blindsight.metric.private import noisy_descent, noisy_margin, orthogonal, pure_descent, reduce_rank
from blindsight.metric.promise import paper_guarantee, proven_guarantee
from blindsight.metric.settings import Settings
from blindsight.privacy.guarantee import Cost, Guarantee, Unit

__all__ = ["Learned", "Task", "paper", "proven"]

Floats = NDArray[np.float64]
Progress = Callable[[int, int], None]
_MARGIN_SHARE = 0.05
_LARGEST_STEP, _NOISE_REACH = 6.0, 0.5
_WIDEST = 256  # beyond this many columns a square map has more noise than signal


@dataclass(frozen=True)
class Task:
    """Everything a learner needs, checked."""

    differences: Floats
    dissimilar: NDArray[np.bool_]
    graph: PairGraph
    loss: Callable[[float], TupleLoss]
    n_tuples: int
    n_components: int
    kappa: int
    group: Callable[[Unit, int], int]
    epsilon: float
    delta: float
    unit: Unit
    reduction: bool
    margin_ratio: float
    settings: Settings
    simulation: bool
    rng: np.random.Generator

    def batches(self) -> Iterator[NDArray[np.int64]]:
        """A fresh partition: of pairs along the graph's components, of tuples at random."""
        size = self.settings.batch_size or self.n_tuples
        if self.n_tuples == len(self.graph):
            return self.graph.batches(size, rng=self.rng)
        order = self.rng.permutation(self.n_tuples)
        return (order[first : first + size] for first in range(0, len(order), size))


@dataclass(frozen=True)
class Learned:
    """A map, what it promises, and the margin that was used."""

    components: Floats
    guarantee: Guarantee
    margin: float


def paper(task: Task, *, ledger: Any, trace: Trace | None, progress: Progress | None) -> Learned:
    """Algorithm 1 to the letter."""
    settings: Any = task.settings
    from_data = settings.margin == "mean"
    guarantee = paper_guarantee(
        mechanism=settings.mechanism,
        epsilon=task.epsilon,
        delta=task.delta,
        epochs=settings.epochs,
        n_components=task.n_components,
        n_features=task.differences.shape[1],
        kappa=task.kappa,
        reduction=task.reduction,
        margin_from_data=from_data,
        simulation=task.simulation,
    )
    _charge(ledger, guarantee, len(task.graph))
    order: Any = 2 if settings.normalize == "l2" else 1
    margin = settings.margin
    if from_data:
        margin = task.margin_ratio * mean_dissimilar_distance(task.differences, task.dissimilar, order=order)
    W = algorithm1(
        Contrastive(task.differences, task.dissimilar, margin=margin),
        task.batches,
        n_components=task.n_components,
        lipschitz=settings.clip,
        kappa=task.kappa,
        epsilon=task.epsilon,
        epochs=settings.epochs,
        rng=task.rng,
        mechanism=settings.mechanism,
        delta=task.delta,
        reduction=task.reduction,
        step_rule=settings.step_rule,
        step_size=settings.step_size,
        trace=trace,
        progress=progress,
    )
    return Learned(W, guarantee, margin)


def proven(task: Task, *, ledger: Any, trace: Trace | None, progress: Progress | None) -> Learned:
    """Gaussian descent (ours), or Algorithm 1 mended for a pure mechanism."""
    group = task.group(task.unit, task.kappa)
    from_data = task.settings.margin == "mean"
    share = _MARGIN_SHARE if from_data else 0.0
    plan: Any = _gaussian_plan if task.settings.mechanism == "gaussian" else _pure_plan
    run, guarantee = plan(task, group, share)
    _charge(ledger, guarantee, len(task.graph))
    margin = task.settings.margin
    if from_data:
        margin = task.margin_ratio * noisy_margin(
            task.differences,
            task.dissimilar,
            epsilon=share * task.epsilon,
            delta=share * task.delta,
            group=group,
            rng=task.rng,
            unit=task.unit,
        )
    return Learned(_coarse(run(margin, progress)), guarantee, margin)


def _coarse(W: Floats) -> Floats:
    """Rounded to 2^-16: the low bits of floating-point noise can betray what it hides, and nobody needs them."""
    return np.round(W * 2.0**16) / 2.0**16


def _gaussian_plan(task: Task, group: int, share: float) -> tuple[Callable[..., Floats], Guarantee]:
    settings = task.settings
    rate = 1.0 if settings.batch_size is None else min(1.0, settings.batch_size / task.n_tuples)
    steps = settings.epochs if rate == 1 else max(1, round(settings.epochs / rate))
    epsilon, delta = (1 - share) * task.epsilon, (1 - share) * task.delta
    noise = descent_noise(epsilon=epsilon, delta=delta, steps=steps, rate=rate, group=group)
    how = "all pairs" if rate == 1 else f"Poisson sampling at rate {rate:.3g}"
    guarantee = proven_guarantee(
        mechanism=f"{steps} Gaussian gradient steps, {how}, noise {noise:.3g} times the clipping bound",
        unit=task.unit,
        epsilon=task.epsilon,
        delta=task.delta,
        group=group,
        accountant=ACCOUNTANT,
        also=_gaussian_also(task, group, share, noise, steps, rate),
        simulation=task.simulation,
    )

    def run(margin: float, progress: Progress | None) -> Floats:
        columns = task.differences.shape[1]
        rows = columns if columns <= _WIDEST else min(task.n_components, _WIDEST)
        W = noisy_descent(
            task.loss(margin),
            orthogonal(rows, columns, rng=task.rng),
            noise=noise,
            steps=steps,
            rate=rate,
            clip=settings.clip,
            step_size=_step_size(settings.step_size, rows * columns, noise, steps, rate * task.n_tuples),
            rng=task.rng,
            unit=task.unit,
            delta=task.delta,
            progress=progress,
        )
        return reduce_rank(W, task.n_components)

    return run, guarantee


def _step_size(stated: Any, coordinates: int, noise: float, steps: int, pairs: float) -> float:
    """As stated; by default as large as helps (6), but no larger than that the noise alone moves W by half its norm.

    Noise of all steps together moves W by step_size noise sqrt(coordinates / steps) / pairs of its norm: all public.
    """
    if stated != "noise":
        return float(stated)
    drift = noise * math.sqrt(coordinates / steps) / pairs
    return min(_LARGEST_STEP, _NOISE_REACH / drift)


def _gaussian_also(task: Task, group: int, share: float, noise: float, steps: int, rate: float) -> tuple[Cost, ...]:
    """The same release per pair, per kappa pairs and per record, where the closed form answers at once."""
    costs = []
    for unit in ("pair", "kappa pairs", "record"):
        size = task.group(unit, task.kappa)
        if unit == task.unit or rate < 1:
            continue
        delta = (1 - share) * task.delta
        epsilon = descent_epsilon(noise=noise, steps=steps, rate=rate, group=size, delta=delta)
        if share:
            single = gaussian_noise(share * task.epsilon, share * task.delta)
            epsilon += gaussian_epsilon(single * group / size, share * task.delta)
        costs.append(Cost(epsilon=epsilon, delta=task.delta, unit=unit, neighbours="add or remove one"))
    return tuple(costs)


def _pure_plan(task: Task, group: int, share: float) -> tuple[Callable[..., Floats], Guarantee]:
    settings: Any = task.settings
    epsilon = (1 - share) * task.epsilon
    also = []
    if settings.mechanism == "laplace" and not share:  # linear in the number of pairs
        for unit in ("pair", "kappa pairs", "record"):
            size = task.group(unit, task.kappa)
            if unit != task.unit:
                cost = Cost(epsilon=task.epsilon * size / group, unit=unit, neighbours="add or remove one")
                also.append(cost)
    guarantee = proven_guarantee(
        mechanism=f"Algorithm 1 with the whole matrix as one vector, {settings.mechanism} noise",
        unit=task.unit,
        epsilon=task.epsilon,
        delta=share * task.delta,
        group=group,
        accountant="epochs composed; batches of an epoch are disjoint",
        also=tuple(also),
        simulation=task.simulation,
    )

    def run(margin: float, progress: Progress | None) -> Floats:
        columns = task.differences.shape[1]
        start = task.rng.standard_normal((task.n_components, columns)) / np.sqrt(columns)
        return pure_descent(
            task.loss(margin),
            start,
            task.batches,
            mechanism=settings.mechanism,
            epsilon=epsilon,
            group=group,
            epochs=settings.epochs,
            clip=settings.clip,
            rng=task.rng,
            unit=task.unit,
            step_rule=settings.step_rule,
            step_size=settings.step_size,
            progress=progress,
        )

    return run, guarantee


def _charge(ledger: Any, guarantee: Guarantee, pairs: int) -> None:
    if ledger is not None:
        ledger.charge(guarantee.cost, what=f"metric from {pairs} pairs")
