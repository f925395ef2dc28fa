"""The paper's Algorithm 1 as an estimator: as printed, and corrected with a proven guarantee.

Both are for comparison; use `DPPMetric` for your own data. `DPPDML` is the algorithm of Li, Pan,
Sui and Tsang; its `guarantee_` states the paper's claim and what is proven. `MendedDML` changes
only what the proof needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from blindsight.core import checks
from blindsight.core.arrays import Floats, Ints
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.metric.algorithm1 import (
    AS_MEANT,
    LAPLACE,
    PRINTED,
    Batches,
    RowNoise,
    Steps,
    Trace,
    algorithm1,
    step_sizes,
)
from blindsight.metric.graph import PairGraph, pair_labels
from blindsight.metric.guarantee import ABSENT, KAPPA, STRUCTURE, paper_guarantee
from blindsight.metric.kappa import kappa as count_kappa
from blindsight.metric.linear import LinearMetric, read_tuples
from blindsight.metric.losses import TupleLoss, contrastive_of, group_size
from blindsight.privacy.accounting import Planned
from blindsight.privacy.cost import Cost, Unit
from blindsight.privacy.door import Door
from blindsight.privacy.entropy import RandomState, source_of, training_rng
from blindsight.privacy.guarantee import Guarantee
from blindsight.privacy.mechanisms import Duchi, Laplace, Staircase

if TYPE_CHECKING:
    from blindsight.privacy.ledger import Ledger

__all__ = ["DPPDML", "MendedDML", "pure_descent", "pure_plan"]

Progress = Callable[[int, int], None]
_PURE = ("laplace", "scdf", "duchi")
GRADIENT = "gradients"


class _Algorithm1(LinearMetric):
    """The base class of both versions: the pair graph, and batches from its components."""

    guarantee_: Guarantee
    n_components: int | None
    preprocessor: Any
    steps: Steps
    random_state: RandomState

    def _graph(self, pairs: ArrayLike, y: ArrayLike | None) -> tuple[Floats, PairGraph]:
        if y is None:
            raise InvalidData("y must say which pairs are similar (1) and which are not (0).")
        records, numbers = read_tuples(pairs, self.preprocessor)
        return records, PairGraph.from_pairs(
            numbers, pair_labels(y, private=True), n_nodes=len(records)
        )

    def _batches(self, graph: PairGraph, rng: np.random.Generator) -> list[list[Ints]]:
        """Partition the pairs for each epoch, using the public structure only."""
        if not isinstance(self.steps, Steps):
            raise InvalidParameter(
                f"steps must be Steps(batch_size=, epochs=, ...), got {type(self.steps).__name__}."
            )
        return [
            list(graph.batches(self.steps.batch_size, rng=rng)) for _ in range(self.steps.epochs)
        ]

    def _set_map(self, W: Floats, norm: str) -> Self:
        self.components_, self.norm_ = W, norm
        self.n_features_in_ = W.shape[1]
        self.stretch_ = np.ones(self.n_features_in_)
        return self

    @property
    def _simulation(self) -> bool:
        return source_of(self.random_state).name == "seed"


class DPPDML(_Algorithm1):
    """Algorithm 1, DPP-DML, as printed.

    Parameters:
        n_components: d', the rows of W; None keeps all columns.
        epsilon: the budget as the paper counts it, per kappa pairs.
        noise: a `RowNoise`: Laplace, "scdf", "duchi" or "gaussian", with or without sensitivity
            reduction (DPP-S).
        kappa: how kappa is computed ("bound" is kappa' of Equation 15, "node" is node privacy), or
            a number.
        margin: m, or "mean" for the mean distance of dissimilar pairs (Section VII-B), which
            depends on the data.
        clip: h, the Lipschitz constant.
        steps: batches, epochs and step sizes.
        preprocessor: rows of features, where pairs are given as row numbers.
        random_state: None for the operating system's entropy; a seed makes a simulation.

    Guarantee:
        `guarantee_` states the paper's claim and what is proven. For DPP-S and for margin="mean" no
        finite epsilon is proven.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> pairs, y = rng.normal(size=(20, 2, 3)), np.repeat([0, 1], 10)
        >>> DPPDML(margin=1.0, random_state=0).fit(pairs, y).pair_distance(pairs).shape
        (20,)
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        epsilon: float = 1.0,
        noise: RowNoise = LAPLACE,
        kappa: str | int = "bound",
        margin: float | str = "mean",
        clip: float = 0.5,
        steps: Steps = PRINTED,
        preprocessor: Any = None,
        random_state: RandomState = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.noise = noise
        self.kappa = kappa
        self.margin = margin
        self.clip = clip
        self.steps = steps
        self.preprocessor = preprocessor
        self.random_state = random_state

    def fit(
        self,
        pairs: ArrayLike,
        y: ArrayLike,
        *,
        ledger: Ledger | None = None,
        trace: Trace | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Learn W; charge `ledger` first.

        Parameters:
            pairs: as for `DPPMetric.fit`.
            y: as for `DPPMetric.fit`.
            ledger: the ledger to charge; it refuses a release without a proven guarantee.
            trace: records objective and sensitivity, for the owner only.
            progress: called with (done, total).
        """
        if not isinstance(self.noise, RowNoise):
            raise InvalidParameter(
                f"noise must be RowNoise(family=, ...), got {type(self.noise).__name__}."
            )
        records, graph = self._graph(pairs, y)
        stated = self.kappa
        self.kappa_ = (
            count_kappa(graph, stated)  # type: ignore[arg-type]
            if isinstance(stated, str)
            else checks.whole("kappa", stated)
        )
        # The privacy does not depend on the initial map or on the partition into batches.
        rng, _ = training_rng(self.random_state)
        batches = self._batches(graph, rng)
        width, columns = self._width(records.shape[1]), records.shape[1]
        facts: Any = {
            "epsilon": checks.positive("epsilon", self.epsilon),
            "lipschitz": checks.positive("clip", self.clip),
            "kappa": self.kappa_,
        }
        guarantee = paper_guarantee(
            self.noise,
            batches,
            rows=width,
            columns=columns,
            margin_from_data=self.margin == "mean",
            simulation=self._simulation,
            **facts,
        )
        what = f"metric from {len(graph)} pairs"
        door = Door(guarantee, what=what, ledger=ledger, random_state=self.random_state)
        self.guarantee_ = guarantee
        norm = "l2" if self.noise.order == 2 else "l1"
        W = algorithm1(
            contrastive_of(records, graph, norm, self.margin),
            batches,
            n_components=width,
            rng=rng,
            noise=self.noise,
            rule=self.steps.rule,
            first=self.steps.first,
            door=door,
            trace=trace,
            progress=progress,
            **facts,
        )
        return self._set_map(W, norm)


def pure_plan(
    mechanism: str,
    batches: Batches,
    *,
    epsilon: float,
    group: int,
    clip: float,
    size: int,
    unit: Unit,
) -> Planned:
    """Plan the releases for `epsilon` per unit of `group` pairs over all epochs.

    Neighbours add or remove one unit. The gradient of a pair is one vector of `size` coordinates,
    clipped to l1 norm `clip`. Batches of an epoch are disjoint, and epochs compose. The cost of
    Laplace noise is linear in the distance, so a group in several batches costs no more than a
    group in one. The other two mechanisms cost the full epsilon of a batch for every batch that
    contains a pair of the unit, and the staircase mechanism for every coordinate.
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
    return Planned(
        what=GRADIENT, mechanism=noise, count=count, group=group, parts=-(-total // count)
    )


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
    """Run gradient descent with released sums over batches, or means if `boxed` (Duchi)."""
    listed = [batch for epoch in batches for batch in epoch]
    sizes = step_sizes(steps.rule, len(listed), first=steps.first)
    for done, batch in enumerate(listed):
        total = loss.take(batch).clipped_sum(W, clip, order=1)
        if boxed:  # Duchi's mechanism needs a box: a mean of clipped rows is in [-clip, clip]^d
            mean = door.release(GRADIENT, (total / len(batch)).reshape(1, -1)).reshape(W.shape)
        else:
            mean = door.release(GRADIENT, total) / len(batch)
        W = W - sizes[done] * mean
        if progress is not None:
            progress(done + 1, len(listed))
    return W


class MendedDML(_Algorithm1):
    """Algorithm 1 with a proven pure epsilon.

    The whole gradient matrix of a pair is clipped as one vector (`pure_plan`).

    Parameters:
        n_components: rows of W; None keeps all columns.
        epsilon: the budget per `unit`: "pair", "kappa pairs" (kappa' of Equation 15) or "record".
        mechanism: "laplace", "scdf" or "duchi".
        margin: m, a number known beforehand.
        clip: the l1 bound of a pair's gradient.
        steps: batches, epochs and step sizes.
        preprocessor: rows of features, where pairs are given as row numbers.
        random_state: None for the operating system's entropy; a seed makes a simulation.

    Guarantee:
        `guarantee_`: pure epsilon, with neighbours "add or remove one". The noise is
        floating-point, and the released map is rounded.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> pairs, y = rng.normal(size=(20, 2, 3)), np.repeat([0, 1], 10)
        >>> MendedDML(random_state=0).fit(pairs, y).guarantee_.epsilon
        1.0
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        epsilon: float = 1.0,
        unit: str = "pair",
        mechanism: str = "laplace",
        margin: float = 1.0,
        clip: float = 0.5,
        steps: Steps = AS_MEANT,
        preprocessor: Any = None,
        random_state: RandomState = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.unit = unit
        self.mechanism = mechanism
        self.margin = margin
        self.clip = clip
        self.steps = steps
        self.preprocessor = preprocessor
        self.random_state = random_state

    def fit(
        self,
        pairs: ArrayLike,
        y: ArrayLike,
        *,
        ledger: Ledger | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Learn W from pairs, as for `DPPMetric.fit`; charge `ledger` first."""
        mechanism = checks.one_of("mechanism", self.mechanism, _PURE)
        unit: Any = checks.one_of("unit", self.unit, ("pair", "kappa pairs", "record"))
        records, graph = self._graph(pairs, y)
        self.kappa_ = count_kappa(graph, "bound")
        others: tuple[Any, ...] = ("pair", "kappa pairs", "record")
        groups = {other: group_size(graph.edges, other, kappa=self.kappa_) for other in others}
        epsilon = checks.positive("epsilon", self.epsilon)
        linear = mechanism == "laplace"  # in the number of pairs
        width, clip = self._width(records.shape[1]), checks.positive("clip", self.clip)
        margin = checks.positive("margin", self.margin)  # never "mean", which is data
        # The privacy does not depend on the initial map or on the partition into batches.
        rng, _ = training_rng(self.random_state)
        batches = self._batches(graph, rng)
        planned = pure_plan(
            mechanism,
            batches,
            epsilon=epsilon,
            group=groups[unit],
            clip=clip,
            size=width * records.shape[1],
            unit=unit,
        )
        guarantee = Guarantee(
            releases=(planned,),
            mechanism=f"Algorithm 1 with the whole matrix as one vector, {mechanism} noise, up to "
            f"{groups[unit]} "
            f"{'pairs' if groups[unit] > 1 else 'pair'} per unit",
            model="central",
            accountant="epochs composed; batches of an epoch are disjoint",
            assumptions=(STRUCTURE, ABSENT, *((KAPPA,) if unit == "kappa pairs" else ())),
            simulation=self._simulation,
            also=tuple(
                Cost(
                    epsilon=epsilon * groups[other] / groups[unit],
                    unit=other,
                    neighbours="add or remove one",
                )
                for other in others
                if linear and other != unit
            ),
        )
        what = f"metric from {len(graph)} pairs"
        door = Door(guarantee, what=what, ledger=ledger, random_state=self.random_state)
        self.guarantee_ = guarantee
        W = pure_descent(
            contrastive_of(records, graph, "l1", margin),
            rng.standard_normal((width, records.shape[1])) / math.sqrt(records.shape[1]),
            batches,
            door,
            clip=clip,
            boxed=mechanism == "duchi",
            steps=self.steps,
            progress=progress,
        )
        # W is rounded to multiples of 2^-16, because the low bits of floating-point noise can
        # reveal what it hides.
        return self._set_map(np.round(W * 2.0**16) / 2.0**16, "l1")
