"""What to compare with: no privacy, input perturbation, no learning. (Node privacy is
DPPDML(kappa="node").)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter
from blindsight.metric.algorithm1 import AS_MEANT, Steps, Trace, algorithm1
from blindsight.metric.graph import PairGraph
from blindsight.metric.guarantee import STRUCTURE
from blindsight.metric.linear import LinearMetric, normalised, orthogonal, read_tuples
from blindsight.metric.losses import contrastive_of, descend, reduce_rank
from blindsight.privacy.accounting import Planned
from blindsight.privacy.cost import Cost
from blindsight.privacy.door import Door
from blindsight.privacy.entropy import training_rng
from blindsight.privacy.guarantee import Guarantee
from blindsight.privacy.mechanisms import KaryResponse, Laplace

if TYPE_CHECKING:
    from blindsight.privacy.ledger import Ledger

__all__ = ["ContrastiveMetric", "Descent", "InputPerturbation"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Our descent: so many steps over all pairs, which together move the map by at most `size`
    times its norm.
    """

    steps: int = 20
    size: float = 12.0

    def __post_init__(self) -> None:
        checks.whole("steps", self.steps)
        checks.positive("size", self.size)


OURS = Descent()


class ContrastiveMetric(LinearMetric):
    """The contrastive metric without privacy: by our `Descent`, or by Algorithm 1's `Steps` without
    noise.
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        steps: Descent | Steps = OURS,
        normalize: str = "l2",
        margin: float | str = 1.0,
        preprocessor: Any = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.steps = steps
        self.normalize = normalize
        self.margin = margin
        self.preprocessor = preprocessor
        self.random_state = random_state

    def fit(self, pairs: Any, y: Any, *, trace: Trace | None = None) -> Self:
        """Learn from pairs as `DPPMetric` does, with no protection at all."""
        records, numbers = read_tuples(pairs, self.preprocessor)
        rng, _ = training_rng(self.random_state)
        graph = PairGraph.from_pairs(numbers, y, n_nodes=len(records))
        return self._learn(records, graph, trace, rng)

    def _learn(
        self, records: Floats, graph: PairGraph, trace: Trace | None, rng: np.random.Generator
    ) -> Self:
        loss = contrastive_of(records, graph, self.normalize, self.margin)
        columns = records.shape[1]
        width, steps = self._width(columns), self.steps
        if isinstance(steps, Descent):
            W = descend(
                loss, orthogonal(columns, columns, rng=rng), steps=steps.steps, step_size=steps.size
            )
            self.components_ = reduce_rank(W, width)
        elif isinstance(steps, Steps):
            batches = [list(graph.batches(steps.batch_size, rng=rng)) for _ in range(steps.epochs)]
            self.components_ = algorithm1(
                loss,
                batches,
                n_components=width,
                rng=rng,
                rule=steps.rule,
                first=steps.first,
                trace=trace,
            )
        else:
            raise InvalidParameter(
                f"steps must be a Descent or the paper's Steps, got {type(steps).__name__}."
            )
        self.margin_, self.norm_, self.n_features_in_ = loss.margin, self.normalize, columns
        self.stretch_ = np.ones(columns)
        return self


class InputPerturbation(ContrastiveMetric):
    """InputPer: Laplace noise on every record's features and Warner's flipping of labels, then
    plain learning.

    Guarantee: local. Records are l1-normalised, so two differ by at most 2 and Lap(2/e_x) on a
    record costs e_x; a label flipped with probability 1/(1 + e^e_y) costs e_y. A pair is two
    records and a label: 2 e_x + e_y. The paper splits its epsilon in two halves (claimed); "proven"
    gives each record a quarter and the label half.
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        epsilon: float = 1.0,
        calibration: str = "proven",
        steps: Descent | Steps = AS_MEANT,
        margin: float | str = "mean",
        preprocessor: Any = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            n_components, steps=steps, normalize="l1", margin=margin, preprocessor=preprocessor,
            random_state=random_state,
        )  # fmt: skip
        self.epsilon = epsilon
        self.calibration = calibration

    def fit(
        self, pairs: Any, y: Any, *, trace: Trace | None = None, ledger: Ledger | None = None
    ) -> Self:
        """Perturb, then learn; features are noised once per record, however many pairs it is in."""
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
            releases=(
                Planned(what="features", mechanism=features),
                Planned(what="labels", mechanism=labels),
            ),
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
