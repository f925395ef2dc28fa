"""What to compare with: no privacy, input perturbation, no learning. (Node privacy is DPPDML(kappa="node").)"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.metric.algorithm1 import Trace, algorithm1
from blindsight.metric.contrastive import Contrastive, mean_dissimilar_distance
from blindsight.metric.descent import descend, orthogonal, reduce_rank
from blindsight.metric.graph import PairGraph
from blindsight.metric.linear import LinearMetric
from blindsight.metric.promise import STRUCTURE
from blindsight.metric.records import normalised, read_tuples
from blindsight.privacy.cost import Cost
from blindsight.privacy.door import Door
from blindsight.privacy.entropy import training_rng
from blindsight.privacy.guarantee import Guarantee
from blindsight.privacy.mechanisms import KaryResponse, Laplace
from blindsight.privacy.plan import Planned

if TYPE_CHECKING:
    from blindsight.privacy.ledger import Ledger

__all__ = ["ContrastiveMetric", "EuclideanMetric", "InputPerturbation"]

Floats = NDArray[np.float64]


class EuclideanMetric(LinearMetric):
    """The plain distance of normalised records, or of a random projection: the control that learns nothing."""

    def __init__(self, n_components: int | None = None, *, normalize: str = "l2", random_state: Any = None) -> None:
        self.n_components = n_components
        self.normalize = normalize
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Only the number of columns is used; X may be records (n, d) or pairs (m, 2, d)."""
        columns = np.asarray(X).shape[-1]
        rows = columns if self.n_components is None else checks.whole("n_components", self.n_components)
        rng, _ = training_rng(self.random_state)
        self.components_ = np.eye(columns) if self.n_components is None else orthogonal(rows, columns, rng=rng)
        self.norm_, self.n_features_in_, self.stretch_ = self.normalize, columns, np.ones(columns)
        return self


class ContrastiveMetric(LinearMetric):
    """The contrastive metric without privacy: by Algorithm 1 without noise ("paper"), or by our descent ("ours")."""

    def __init__(
        self,
        n_components: int | None = None,
        *,
        how: str = "ours",
        normalize: str = "l2",
        margin: float | str = 1.0,
        margin_ratio: float = 1.0,
        epochs: int = 20,
        step_size: float = 12.0,
        step_rule: str = "root",
        batch_size: int = 50,
        preprocessor: Any = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.how = how
        self.normalize = normalize
        self.margin = margin
        self.margin_ratio = margin_ratio
        self.epochs = epochs
        self.step_size = step_size
        self.step_rule = step_rule
        self.batch_size = batch_size
        self.preprocessor = preprocessor
        self.random_state = random_state

    def fit(self, pairs: Any, y: Any, *, trace: Trace | None = None) -> Self:
        """Learn from pairs as `DPPMetric` does, with no protection at all."""
        checks.one_of("how", self.how, ("ours", "paper"))
        records, numbers = read_tuples(pairs, self.preprocessor)
        rng, _ = training_rng(self.random_state)
        graph = PairGraph.from_pairs(numbers, y, n_nodes=len(records))
        return self._learn(records, graph, trace, rng)

    def _learn(self, records: Floats, graph: PairGraph, trace: Trace | None, rng: np.random.Generator) -> Self:
        rows: Any = normalised(records, self.normalize)  # type: ignore[arg-type]
        differences, dissimilar = rows[graph.edges[:, 0]] - rows[graph.edges[:, 1]], ~graph.similar
        margin: Any = self.margin
        if margin == "mean":
            order: Any = 1 if self.normalize == "l1" else 2
            margin = self.margin_ratio * mean_dissimilar_distance(differences, dissimilar, order=order)
        loss = Contrastive(differences, dissimilar, margin=checks.positive("margin", margin))
        columns = rows.shape[1]
        width = columns if self.n_components is None else checks.whole("n_components", self.n_components)
        if self.how == "ours":
            W = descend(loss, orthogonal(columns, columns, rng=rng), steps=self.epochs, step_size=self.step_size)
            self.components_ = reduce_rank(W, width)
        else:
            self.components_ = algorithm1(
                loss,
                lambda: graph.batches(self.batch_size, rng=rng),
                n_components=width,
                lipschitz=math.inf,
                kappa=1,
                epsilon=1.0,
                epochs=self.epochs,
                rng=rng,
                mechanism="none",
                step_rule=self.step_rule,  # type: ignore[arg-type]
                step_size=self.step_size,
                trace=trace,
            )
        self.margin_, self.norm_, self.n_features_in_ = margin, self.normalize, columns
        self.stretch_ = np.ones(columns)
        return self


class InputPerturbation(ContrastiveMetric):
    """InputPer: Laplace noise on every record's features and Warner's flipping of labels, then plain learning.

    Guarantee: local. Records are l1-normalised, so two differ by at most 2 and Lap(2/e_x) on a record costs e_x; a
    label flipped with probability 1/(1 + e^e_y) costs e_y. A pair is two records and a label: 2 e_x + e_y. The paper
    splits its epsilon in two halves (claimed); "proven" gives each record a quarter and the label half.
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        epsilon: float = 1.0,
        calibration: str = "proven",
        how: str = "paper",
        margin: float | str = "mean",
        margin_ratio: float = 1.0,
        epochs: int = 10,
        step_size: float = 1.0,
        step_rule: str = "root",
        batch_size: int = 50,
        preprocessor: Any = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            n_components,
            how=how,
            normalize="l1",
            margin=margin,
            margin_ratio=margin_ratio,
            epochs=epochs,
            step_size=step_size,
            step_rule=step_rule,
            batch_size=batch_size,
            preprocessor=preprocessor,
            random_state=random_state,
        )
        self.epsilon = epsilon
        self.calibration = calibration

    def fit(self, pairs: Any, y: Any, *, trace: Trace | None = None, ledger: Ledger | None = None) -> Self:
        """Perturb, then learn; features are noised once a record, however many pairs it is in."""
        checks.one_of("calibration", self.calibration, ("paper", "proven"))
        epsilon = checks.positive("epsilon", self.epsilon)
        on_label = epsilon / 2
        on_record = epsilon / 2 if self.calibration == "paper" else epsilon / 4
        rng, simulation = training_rng(self.random_state)
        records, numbers = read_tuples(pairs, self.preprocessor)
        graph = PairGraph.from_pairs(numbers, y, n_nodes=len(records))
        degree = int(graph.degrees.max())
        # A pair is two records, each of which moves by at most 2.
        features = Laplace(scale=2.0 / on_record, sensitivity=4.0, unit="pair")
        labels = KaryResponse(epsilon=on_label, k=2, unit="pair")
        guarantee = Guarantee(
            releases=(Planned(what="features", mechanism=features), Planned(what="labels", mechanism=labels)),
            mechanism="Laplace noise on features, Warner's flipping of labels",
            model="local",
            claimed=epsilon if self.calibration == "paper" else None,
            calibration=self.calibration,  # type: ignore[arg-type]
            assumptions=(STRUCTURE,),
            simulation=simulation,
            also=(Cost(epsilon=on_record + degree * on_label, unit="record"),),
        )
        what = f"perturbed input of {len(graph)} pairs"
        door = Door(guarantee, what=what, ledger=ledger, random_state=self.random_state)
        self.guarantee_ = guarantee
        rows = door.release("features", normalised(records, "l1"))
        similar = door.release("labels", graph.similar.astype(np.int64)).astype(bool)
        return self._learn(rows, PairGraph(graph.n_nodes, graph.edges, similar), trace, rng)
