"""The paper's Algorithm 1 as an estimator, to the letter, and the same algorithm mended so that it has a proof.

Both are here to compare with. `DPPDML` is what Li, Pan, Sui and Tsang print; its `guarantee_` has their claim beside
what is true of it. `MendedDML` changes as little as a proof needs. `DPPMetric` is the one to use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.metric.algorithm1 import Trace, algorithm1
from blindsight.metric.contrastive import Contrastive, mean_dissimilar_distance
from blindsight.metric.graph import PairGraph, pair_labels
from blindsight.metric.kappa import kappa as count_kappa
from blindsight.metric.linear import LinearMetric
from blindsight.metric.losses import group_size
from blindsight.metric.mended import pure_descent, pure_plan
from blindsight.metric.promise import ABSENT, KAPPA, STRUCTURE, paper_guarantee
from blindsight.metric.records import normalised, read_tuples
from blindsight.privacy.cost import Cost
from blindsight.privacy.door import Door
from blindsight.privacy.entropy import source_of, training_rng
from blindsight.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from blindsight.privacy.ledger import Ledger

__all__ = ["DPPDML", "MendedDML"]

Floats = NDArray[np.float64]
Progress = Callable[[int, int], None]
_PURE = ("laplace", "scdf", "duchi")


class _Algorithm1(LinearMetric):
    """What both readings share: pairs to differences, batches from the graph's components."""

    guarantee_: Guarantee
    n_components: int | None
    preprocessor: Any
    batch_size: int
    random_state: Any

    def _graph(self, pairs: Any, y: Any) -> tuple[Floats, PairGraph]:
        if y is None:
            raise InvalidData("y must say which pairs are similar (1) and which are not (0).")
        records, numbers = read_tuples(pairs, self.preprocessor)
        return records, PairGraph.from_pairs(numbers, pair_labels(y), n_nodes=len(records))

    def _loss(self, records: Floats, graph: PairGraph, norm: Any, margin: Any) -> Contrastive:
        rows = normalised(records, norm)
        differences = rows[graph.edges[:, 0]] - rows[graph.edges[:, 1]]
        if margin == "mean":
            order: Any = 2 if norm == "l2" else 1
            margin = mean_dissimilar_distance(differences, ~graph.similar, order=order)
        return Contrastive(differences, ~graph.similar, margin=checks.positive("margin", margin))

    def _width(self, columns: int) -> int:
        if self.n_components is None:
            return columns
        if checks.whole("n_components", self.n_components) > columns:
            raise InvalidParameter(f"n_components must be at most the {columns} columns of X, got {self.n_components}.")
        return self.n_components

    def _batches(self, graph: PairGraph, rng: np.random.Generator) -> Callable[[], Iterator[NDArray[np.int64]]]:
        size = checks.whole("batch_size", self.batch_size)
        return lambda: graph.batches(size, rng=rng)

    def _charge(self, guarantee: Guarantee, ledger: Ledger | None, pairs: int) -> np.random.Generator:
        """Charge, and only then hand out what noise is drawn from."""
        source = source_of(self.random_state)
        if ledger is not None:
            ledger.charge(guarantee.costs, what=f"metric from {pairs} pairs")
        self.guarantee_ = guarantee
        return source.stream("Algorithm 1", exact=False)

    def _keep(self, W: Floats, norm: str) -> Self:
        self.components_, self.norm_ = W, norm
        self.n_features_in_ = W.shape[1]
        self.stretch_ = np.ones(self.n_features_in_)
        return self

    @property
    def _simulation(self) -> bool:
        return source_of(self.random_state).name == "seed"


class DPPDML(_Algorithm1):
    """Algorithm 1, DPP-DML, as printed.

    Parameters
    ----------
    n_components: d', the rows of W; None keeps all columns.
    epsilon: the budget as the paper counts it, per kappa pairs.
    mechanism: "laplace", "scdf", "duchi", or "gaussian" (Appendix C, records at l2 norm 1 instead of l1).
    delta: of Gaussian noise, and only there.
    sensitivity_reduction: DPP-S (Theorem 2).
    kappa: how kappa is found ("bound" is kappa' of Equation 15, "node" is node privacy), or a number.
    margin: m, or "mean" for the mean distance of dissimilar pairs (Section VII-B), which is data.
    clip: h, the Lipschitz constant; batch_size: |B|; epochs: T_max.
    step_rule: "compound" as printed in line 5, or "root" for eta_0 / sqrt(tau), as it must have been meant.
    preprocessor, random_state: as in `DPPMetric`.

    Guarantee: `guarantee_` has the claim and what is proven, which is nothing for DPP-S and for margin="mean".
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        epsilon: float = 1.0,
        mechanism: str = "laplace",
        delta: float | None = None,
        sensitivity_reduction: bool = False,
        kappa: str | int = "bound",
        margin: float | str = "mean",
        clip: float = 0.5,
        batch_size: int = 50,
        epochs: int = 10,
        step_rule: str = "compound",
        preprocessor: Any = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.mechanism = mechanism
        self.delta = delta
        self.sensitivity_reduction = sensitivity_reduction
        self.kappa = kappa
        self.margin = margin
        self.clip = clip
        self.batch_size = batch_size
        self.epochs = epochs
        self.step_rule = step_rule
        self.preprocessor = preprocessor
        self.random_state = random_state

    def fit(
        self,
        pairs: Any,
        y: Any,
        *,
        ledger: Ledger | None = None,
        trace: Trace | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Learn from pairs as `DPPMetric` does; `trace` records objective and sensitivity, for the owner only."""
        mechanism: Any = checks.one_of("mechanism", self.mechanism, (*_PURE, "gaussian"))
        if self.delta is not None and mechanism != "gaussian":
            raise InvalidParameter("delta is spent by mechanism='gaussian' only; leave it out.")
        delta = 1e-5 if self.delta is None else checks.positive("delta", self.delta)
        records, graph = self._graph(pairs, y)
        width, epochs = self._width(records.shape[1]), checks.whole("epochs", self.epochs)
        self.kappa_ = count_kappa(graph, self.kappa) if isinstance(self.kappa, str) else int(self.kappa)  # type: ignore[arg-type]
        guarantee = paper_guarantee(
            mechanism=mechanism,
            epsilon=checks.positive("epsilon", self.epsilon),
            delta=delta,
            epochs=epochs,
            n_components=width,
            n_features=records.shape[1],
            kappa=checks.whole("kappa", self.kappa_),
            reduction=bool(self.sensitivity_reduction),
            margin_from_data=self.margin == "mean",
            simulation=self._simulation,
        )
        rng = self._charge(guarantee, ledger, len(graph))
        norm = "l2" if mechanism == "gaussian" else "l1"
        loss = self._loss(records, graph, norm, self.margin)
        W = algorithm1(
            loss,
            self._batches(graph, rng),
            n_components=width,
            lipschitz=checks.positive("clip", self.clip),
            kappa=self.kappa_,
            epsilon=self.epsilon,
            epochs=epochs,
            rng=rng,
            mechanism=mechanism,
            delta=delta,
            reduction=bool(self.sensitivity_reduction),
            step_rule=self.step_rule,  # type: ignore[arg-type]
            trace=trace,
            progress=progress,
        )
        return self._keep(W, norm)


class MendedDML(_Algorithm1):
    """Algorithm 1 with pure noise and a proof: the whole matrix of a pair clipped as one vector (`mended`).

    Parameters
    ----------
    n_components: rows of W; None keeps all columns.
    epsilon: the budget per `unit`: "pair", "kappa pairs" (kappa' of Equation 15) or "record".
    mechanism: "laplace", "scdf" or "duchi".
    margin: m, a number known beforehand.
    clip: the l1 bound of a pair's gradient; batch_size and epochs: of the descent.
    preprocessor, random_state: as in `DPPMetric`.

    Guarantee: `guarantee_`, pure epsilon, neighbours "add or remove one"; noise is floating point, the map rounded.
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
        batch_size: int = 50,
        epochs: int = 10,
        preprocessor: Any = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.unit = unit
        self.mechanism = mechanism
        self.margin = margin
        self.clip = clip
        self.batch_size = batch_size
        self.epochs = epochs
        self.preprocessor = preprocessor
        self.random_state = random_state

    def fit(self, pairs: Any, y: Any, *, ledger: Ledger | None = None, progress: Progress | None = None) -> Self:
        """Learn from pairs as `DPPMetric` does."""
        mechanism = checks.one_of("mechanism", self.mechanism, _PURE)
        unit: Any = checks.one_of("unit", self.unit, ("pair", "kappa pairs", "record"))
        records, graph = self._graph(pairs, y)
        self.kappa_ = count_kappa(graph, "bound")
        others: tuple[Any, ...] = ("pair", "kappa pairs", "record")
        groups = {other: group_size(graph.edges, other, kappa=self.kappa_) for other in others}
        epsilon = checks.positive("epsilon", self.epsilon)
        linear = mechanism == "laplace"  # in the number of pairs
        width, clip = self._width(records.shape[1]), checks.positive("clip", self.clip)
        # Where learning starts and how pairs are dealt to batches protects nobody.
        rng, _ = training_rng(self.random_state)
        deal = self._batches(graph, rng)
        batches = [list(deal()) for _ in range(checks.whole("epochs", self.epochs))]
        planned = pure_plan(
            mechanism,  # type: ignore[arg-type]
            batches,
            epsilon=epsilon,
            group=groups[unit],
            clip=clip,
            size=width * records.shape[1],
            unit=unit,
        )
        guarantee = Guarantee(
            releases=(planned,),
            mechanism=f"Algorithm 1 with the whole matrix as one vector, {mechanism} noise, up to {groups[unit]} "
            f"{'pairs' if groups[unit] > 1 else 'pair'} per unit",
            model="central",
            accountant="epochs composed; batches of an epoch are disjoint",
            assumptions=(STRUCTURE, ABSENT, *((KAPPA,) if unit == "kappa pairs" else ())),
            simulation=self._simulation,
            also=tuple(
                Cost(epsilon=epsilon * groups[other] / groups[unit], unit=other, neighbours="add or remove one")
                for other in others
                if linear and other != unit
            ),
        )
        what = f"metric from {len(graph)} pairs"
        door = Door(guarantee, what=what, ledger=ledger, random_state=self.random_state)
        self.guarantee_ = guarantee
        W = pure_descent(
            self._loss(records, graph, "l1", self.margin),
            rng.standard_normal((width, records.shape[1])) / math.sqrt(records.shape[1]),
            batches,
            door,
            clip=clip,
            boxed=mechanism == "duchi",
            progress=progress,
        )
        # To 2^-16: the low bits of floating-point noise can betray what it hides, and nobody needs them.
        return self._keep(np.round(W * 2.0**16) / 2.0**16, "l1")
