"""`DPPMetric`: learn a distance from labelled pairs, and keep the pairs private."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks, storage
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.data import PairSet
from blindsight.metric.descent import CLIP, STEPS, largest_step, noisy_descent, reduce_rank, start
from blindsight.metric.graph import PairGraph, pair_labels, select
from blindsight.metric.guarantee import BINS, metric_guarantee, unit_noise
from blindsight.metric.kappa import kappa as count_kappa
from blindsight.metric.linear import LinearMetric, cut, read_tuples
from blindsight.metric.losses import (
    Contrastive,
    Gradients,
    NPair,
    Triplet,
    TupleLoss,
    group_size,
    tuple_pairs,
)
from blindsight.metric.moments import (
    Comparisons,
    MomentRows,
    bounds_stretch,
    check_scale,
    clipped,
    counted_stretch,
    map_of_moments,
    worth_moments,
)
from blindsight.privacy.door import Door
from blindsight.privacy.estimator import Protected
from blindsight.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from blindsight.privacy.ledger import Ledger
    from blindsight.privacy.vault import Vault

__all__ = ["LOSSES", "DPPMetric", "learn_once"]

Floats = NDArray[np.float64]
LOSSES = ("auto", "moments", "contrastive", "triplet", "npair")
_UNITS = ("pair", "kappa pairs", "record")
_WIDTHS = {"triplet": 3, "npair": None}


class DPPMetric(LinearMetric, Protected):
    """A linear metric learned from private labelled pairs.

    Parameters:
        n_components: rows of the learned map; None keeps all columns of X.
        epsilon: the budget per unit, from which every release of `fit` is paid.
        delta: the probability bound of the guarantee; well below one over the number of pairs.
        unit: what is protected: "pair", "record", or the paper's "kappa pairs".
        loss: "moments", a closed form that is better with many pairs; "contrastive", descent that
            is better with few; "auto" chooses between them by the public number of pairs and
            columns and the noise. "triplet" takes (anchor, positive, negative), "npair" (anchor,
            positive, negatives); neither takes y.
        scale: how columns are brought to one size: bounds (low, high) of each column, known
            beforehand; "private", from the pairs themselves within the budget; None leaves columns
            as they are and gives every record length 1.
        select: leave pairs out to lower the cost: "all", "forest", "matching", or a number of
            pairs for each record.
        kappa: how kappa is computed ("second", "exact", "bound", "node", "edge"), or a number
            fixed beforehand, which the pairs must then respect. Its cost is stated for every unit.
        transitive: whether being similar carries over, on which kappa depends.
        preprocessor: what indices point to: an array, or a function from indices to rows.
        random_state: None for the operating system's entropy; a seed makes a simulation, and the
            guarantee says so.

    Guarantee:
        `guarantee_` is charged before anything is learned. Which records were compared is public.
        `fit` learns from any labels, contradictory or all of one kind; `check_pairs` is for the
        owner.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> X, c = rng.normal(size=(60, 4)), rng.integers(0, 2, 60)
        >>> pairs = np.column_stack([np.arange(0, 60, 2), np.arange(1, 60, 2)])
        >>> similar = c[pairs[:, 0]] == c[pairs[:, 1]]
        >>> metric = DPPMetric(preprocessor=X, random_state=0).fit(pairs, similar)
        >>> metric.transform(X).shape, metric.guarantee_.unit, metric.loss_
        ((60, 4), 'pair', 'contrastive')
    """

    _kind: ClassVar[str] = "metric"

    def __init__(
        self,
        n_components: int | None = None,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        unit: str = "pair",
        loss: str = "auto",
        scale: Any = None,
        select: str | int = "all",
        kappa: str | int = "second",
        transitive: bool = True,
        preprocessor: Any = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.unit = unit
        self.loss = loss
        self.scale = scale
        self.select = select
        self.kappa = kappa
        self.transitive = transitive
        self.preprocessor = preprocessor
        self.random_state = random_state

    def promise(  # type: ignore[override]
        self,
        *,
        n_pairs: int,
        n_features: int,
        groups: dict[str, int],
        kappa: int = 1,
        named: bool = True,
        threshold: float | None = None,
        about: dict[str, Any] | None = None,
    ) -> Guarantee:
        """What will be promised, from parameters and public facts only.

        Parameters:
            n_pairs: pairs (or tuples) and columns.
            n_features: pairs (or tuples) and columns.
            groups: how many pairs one unit may be in, by unit ("pair", "kappa pairs", "record").
            kappa: other public facts of a model, which promise nothing.
            threshold: other public facts of a model, which promise nothing.
            about: other public facts of a model, which promise nothing.
            named: whether records are named by indices; rows of an array of features are each a
                record of their own.
        """
        columns = checks.whole("n_features", n_features)
        guarantee = metric_guarantee(
            self._resolved(n_pairs, columns, groups),
            scaled=isinstance(check_scale(self.scale), str),
            columns=columns,
            rows=len(start(columns, self._width(columns))),
            epsilon=checks.positive("epsilon", self.epsilon),
            delta=checks.positive("delta", self.delta),
            unit=self.unit,  # type: ignore[arg-type]
            groups=groups,
            named=named,
            entropy=self.entropy_,
        )
        return replace(guarantee, entropy=self.entropy_)

    def fit(
        self,
        pairs: Any,
        y: Any = None,
        *,
        ledger: Ledger | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Self:
        """Learn from pairs (m, 2, d), or indices (m, 2) with a preprocessor, and y: 1 similar, 0 or
        -1 dissimilar.

        A `PairSet` of `blindsight.data` holds indices and labels in one.
        """
        data, kappa, groups = self._read(pairs, y)
        columns = data.records.shape[1]
        public = {
            "n_pairs": len(data),
            "n_features": columns,
            "groups": groups,
            "kappa": kappa,
            "named": np.ndim(getattr(pairs, "indices", pairs)) == 2,
        }
        guarantee = self.promise(**public)
        self._question_delta(len(data))
        # A refused charge leaves what an earlier fit learned as it was.
        door = Door(
            guarantee,
            what=f"metric from {len(data)} pairs",
            ledger=ledger,
            random_state=self.random_state,
        )
        self.guarantee_, self.public_ = guarantee, public
        loss = self._resolved(len(data), columns, groups)
        self.released_ = {}
        if isinstance(self.scale, str):
            counts = door.total("column sizes", data.spread())
            self.released_["stretch"] = counted_stretch(
                counts, columns, noise=_sigma(door, "column sizes")
            )
        prepared = data.prepared(self._stretch(columns), self._norm())
        W = (
            self._moments(door, prepared)
            if loss == "moments"
            else self._descent(door, prepared, loss, progress)
        )
        self.released_["components"] = reduce_rank(W, self._width(columns))
        # The closed form scales its map to a mean square of 1; elsewhere the map's own size says
        # what is far.
        self._part(door, prepared, typical=1.0 if loss == "moments" else _typical(W))
        return self._settle_in()

    def set_threshold(self, threshold: float) -> Self:
        """Pairs at most this far apart count as similar from now on; a number chosen without
        private data.
        """
        super().set_threshold(threshold)
        self.public_["threshold"] = float(self.threshold_)
        return self

    def describe(self, **about: Any) -> Self:
        """Keep public facts (how features were made, say) with the model; they come back as
        `about_`.
        """
        self.public_["about"] = about
        return self._settle_in()

    def _read(self, pairs: Any, y: Any) -> tuple[Comparisons, int, dict[str, int]]:
        loss = checks.one_of("loss", self.loss, LOSSES)
        checks.one_of("unit", self.unit, _UNITS)
        if isinstance(pairs, PairSet):
            pairs, y = pairs.indices, pairs.labels if y is None else y
        of_tuples = loss in _WIDTHS
        records, numbers = read_tuples(
            pairs, self.preprocessor, width=_WIDTHS[loss] if of_tuples else 2
        )
        if of_tuples:
            if self.select != "all" or y is not None:
                raise InvalidParameter(
                    "tuples take no y and no select: which record is alike is said by its place."
                )
            graph = PairGraph.from_pairs(
                *tuple_pairs(numbers), n_nodes=len(records), transitive=self.transitive
            )
            alike = np.zeros((len(numbers), numbers.shape[1] - 1), dtype=np.bool_)
            alike[:, 0] = True
        else:
            if y is None:
                raise InvalidData("y must say which pairs are similar (1) and which are not (0).")
            graph = PairGraph.from_pairs(
                numbers,
                pair_labels(y, private=True),
                n_nodes=len(records),
                transitive=self.transitive,
            )
            graph = graph.subset(select(graph, self.select))
            numbers, alike = graph.edges, graph.similar[:, None]
        kappa = self._kappa(graph)
        groups = {unit: group_size(numbers, unit, kappa=max(1, kappa)) for unit in _UNITS}  # type: ignore[arg-type]
        return Comparisons(records, numbers, alike), kappa, groups

    def _kappa(self, graph: PairGraph) -> int:
        if isinstance(self.kappa, str):
            return count_kappa(graph, self.kappa)  # type: ignore[arg-type]
        stated = checks.whole("kappa", self.kappa)
        if count_kappa(graph) > stated:
            raise InvalidData(
                f"the pairs need a larger kappa than the {stated} that was fixed beforehand. Raise "
                "it, or use "
                "select= to leave pairs out."
            )
        return stated

    def _resolved(self, n_pairs: int, columns: int, groups: dict[str, int]) -> str:
        if checks.one_of("loss", self.loss, LOSSES) != "auto":
            return self.loss
        epsilon, delta = (
            checks.positive("epsilon", self.epsilon),
            checks.positive("delta", self.delta),
        )
        noise = groups[self.unit] * unit_noise(epsilon, delta)
        return "moments" if worth_moments(n_pairs, columns, noise) else "contrastive"

    def _question_delta(self, n_pairs: int) -> None:
        if self.delta * n_pairs > 1:
            warnings.warn(
                f"delta = {self.delta:g} lets one in {1 / self.delta:,.0f} pairs be given away "
                "whole, and there are "
                f"{n_pairs:,}. Take it well below {1 / n_pairs:.1g}.",
                UserWarning,
                stacklevel=3,
            )

    def _norm(self) -> Any:
        return "l2" if check_scale(self.scale) is None else "none"

    def _stretch(self, columns: int) -> Floats:
        scale = check_scale(self.scale)
        if scale is None:
            return np.ones(columns)
        return (
            self.released_["stretch"] if isinstance(scale, str) else bounds_stretch(scale, columns)
        )

    def _moments(self, door: Door, data: Comparisons) -> Floats:
        rows = MomentRows(clipped(data.differences[:, 0]), data.alike[:, 0])
        released = door.total("second moments", rows)
        columns = data.records.shape[1]
        return map_of_moments(
            released, columns=columns, n_pairs=len(data), sigma=_sigma(door, "second moments")
        )

    def _descent(
        self, door: Door, data: Comparisons, loss: str, progress: Callable[[int, int], None] | None
    ) -> Floats:
        if loss != "npair":
            self.released_["margin"] = _margin(
                door.total("margin", data.far()), _sigma(door, "margin"), len(data)
            )
        W = start(data.records.shape[1], self._width(data.records.shape[1]))
        noise = _sigma(door, "gradients") / CLIP

        def total(loss: TupleLoss, W: Floats) -> Floats:
            return door.total("gradients", Gradients(*loss.factors(W)))

        step = largest_step(W.size, noise, STEPS, len(data))
        return noisy_descent(self._losses(data, loss), W, total, step_size=step, progress=progress)

    def _losses(self, data: Comparisons, loss: str) -> TupleLoss:
        if loss == "triplet":
            return Triplet(data.records[data.numbers], margin=self.released_["margin"])
        if loss == "npair":
            return NPair(data.records[data.numbers])
        return Contrastive(
            data.differences[:, 0], ~data.alike[:, 0], margin=self.released_["margin"]
        )

    def _part(self, door: Door, data: Comparisons, *, typical: float) -> None:
        """Noisy histograms of the mapped distances, from which the threshold follows."""
        W = self.released_["components"]
        edges = np.linspace(0, 3 * max(typical, 1e-12), BINS + 1)
        counts = door.total("distances", data.distances(W, edges))
        self.released_["threshold"] = cut(
            counts[:BINS], counts[BINS:], edges, noise=_sigma(door, "distances")
        )

    def _settle(self) -> None:
        public, released = self.public_, self.released_
        self.n_features_in_, self.n_pairs_ = int(public["n_features"]), int(public["n_pairs"])
        self.kappa_, self.about_ = int(public["kappa"]), dict(public.get("about") or {})
        self.loss_ = self._resolved(self.n_pairs_, self.n_features_in_, public["groups"])
        self.norm_, self.stretch_ = self._norm(), self._stretch(self.n_features_in_)
        self.components_ = checks.finite_array("components", released["components"], ndim=2)
        if self.components_.shape[1] != self.n_features_in_ or self.stretch_.shape != (
            self.n_features_in_,
        ):
            raise InvalidData("the map does not fit the number of columns.")
        self.margin_ = None if "margin" not in released else float(released["margin"])
        self.threshold_ = checks.non_negative(
            "threshold", public.get("threshold", released["threshold"])
        )

    def _saved_parameters(self) -> dict[str, Any]:
        fields = super()._saved_parameters()
        scale = check_scale(self.scale)
        fields["scale"] = [part.tolist() for part in scale] if isinstance(scale, tuple) else scale
        return fields


def learn_once(
    metric: DPPMetric,
    pairs: ArrayLike | PairSet,
    y: ArrayLike | None = None,
    *,
    vault: Vault | None,
    ledger: Ledger | None = None,
    records: Sequence[str] = (),
    out: str | os.PathLike[str] | None = None,
    account: Callable[[str], Ledger] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> DPPMetric:
    """Fit a metric with noise from a vault, and charge it once.

    The noise is derived from the vault's key and the id of the release, which stands for the
    records, the pairs, the labels and all settings. The same learning again, after a crash or with
    a copy of the vault, gives the same metric under the same charge. Anything else is another
    release and another charge.

    Parameters:
        metric: the metric to fit; one with a seed is a simulation and keeps its seed.
        pairs: as for `DPPMetric.fit`.
        y: as for `DPPMetric.fit`.
        vault: the vault of the owner; None draws fresh noise, and a second run is charged again.
        ledger: the account to charge.
        records: ids in the vault of the images that are in a pair; every account whose data set
            contains one of them is charged.
        out: where the metric goes (`Vault.charge`).
        account: called with the release's id, gives what is charged in place of the ledger, for
            whoever charges further units.
        progress: called with (done, total).

    Returns:
        The metric, fitted.

    Raises:
        RolledBack: if the vault or the ledger is an older copy; nothing is released.
        BudgetExceeded: if the account has too little left; nothing is released.
    """
    if vault is None:
        return metric.fit(pairs, y, ledger=ledger, progress=progress)
    number = vault.release_of(_inputs_text(metric, pairs, y))
    given = metric.random_state
    charged = None
    if account is not None:
        charged = account(number)
    elif ledger is not None or given is None:
        charged = vault.account(ledger, release=number, records=records, out=out)
    if given is None:
        metric.random_state = vault.training_source(number)
    try:
        return metric.fit(pairs, y, ledger=charged, progress=progress)
    finally:
        metric.random_state = given


def _inputs_text(metric: DPPMetric, pairs: ArrayLike | PairSet, y: ArrayLike | None) -> str:
    """Everything that a fitted metric depends on, as text: digests of tables, and settings."""
    data, _, _ = metric._read(pairs, y)
    tables = {"records": data.records, "pairs": data.numbers, "similar": data.alike}
    settings = metric._saved_parameters()
    return storage.digest("learning a metric", tables) + json.dumps(settings, sort_keys=True)


def _sigma(door: Door, what: str) -> float:
    """The noise of a planned release: public."""
    (planned,) = (item for item in door.guarantee.releases if item.what == what)
    return float(planned.mechanism.sigma)  # type: ignore[attr-defined]


def _margin(released: Floats, sigma: float, n_pairs: int) -> float:
    """The mean distance of dissimilar ones; 1 where the noise, or its count, leaves nothing to
    see.
    """
    total, count = released
    if sigma > n_pairs / 32 or count <= 0:
        return 1.0
    return float(np.clip(2 * total / count, 0.05, 2.0))


def _typical(W: Floats) -> float:
    """How long a difference of length 1 is on average once mapped, if all directions are alike."""
    return float(np.linalg.norm(W)) / math.sqrt(min(W.shape))
