"""`DPPMetric`: learn a distance from labelled pairs, and keep the pairs private."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from blindsight.core import checks, storage
from blindsight.core.arrays import Floats
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.data import PairSet
from blindsight.metric.graph import PairGraph, pair_labels, person_numbers, select
from blindsight.metric.guarantee import bins_for, metric_guarantee, reach, unit_noise
from blindsight.metric.kappa import kappa as count_kappa
from blindsight.metric.linear import (
    ComparisonAnswer,
    ErrorCurve,
    LinearMetric,
    OperatingPoint,
    orthogonal,
    read_tuples,
)
from blindsight.metric.losses import (
    CLIP,
    STEPS,
    Contrastive,
    Gradients,
    Triplet,
    TupleLoss,
    group_size,
    largest_step,
    noisy_descent,
    reduce_rank,
    start,
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
    worth_learning,
    worth_moments,
)
from blindsight.privacy.door import Door
from blindsight.privacy.entropy import RandomState
from blindsight.privacy.estimator import Protected
from blindsight.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from blindsight.privacy.ledger import Ledger
    from blindsight.privacy.vault import Vault

__all__ = ["LOSSES", "UNITS", "DPPMetric", "MetricForecast", "learn_once"]

LOSSES = ("auto", "plain", "moments", "contrastive", "triplet")
UNITS = ("label", "pair", "kappa pairs", "record", "person")


@dataclass(frozen=True)
class MetricForecast:
    """Whether learning is expected to be better than the plain distance, from public numbers.

    Parameters:
        loss: how `DPPMetric` will learn; "plain" uses the plain distance.
        n_pairs: the number of pairs (or triplets).
        needed: the number of pairs from which learning is expected to be better than the plain
            distance; None if there are too many columns for any number of pairs.
    """

    loss: str
    n_pairs: int
    needed: int | None

    @property
    def learns(self) -> bool:
        """Whether a map is learned."""
        return self.loss != "plain"

    def __str__(self) -> str:
        if self.learns:
            return f"Learning is expected to beat the plain distance; it is done by {self.loss}."
        needed = (
            "these features have too many columns for it"
            if self.needed is None
            else f"it takes about {self.needed:,} pairs here, and there are {self.n_pairs:,}"
        )
        return (
            "The plain distance is kept, because learning is not expected to beat it: "
            f"{needed}. The whole budget goes into the threshold and its error rates."
        )


class DPPMetric(LinearMetric, Protected):
    """A distance for private labelled pairs, with a threshold and its error rates.

    Parameters:
        n_components: rows of the learned map; None keeps all columns of X.
        epsilon: the budget per unit, from which every release of `fit` is paid.
        delta: the probability bound of the guarantee; well below one over the number of pairs.
        unit: what is protected. "label": the label of one pair is replaced by the other label, and
            the compared records are public; "pair": a pair is added or removed; "person": all
            pairs that contain one person (`fit(people=)`); "record": all pairs of one record; or
            the paper's "kappa pairs". The cost in the other units is stated, too.
        loss: "plain", the distance of the records as they are, where only the threshold is
            learned; "moments", a closed form that is better with many pairs; "contrastive",
            gradient descent, which is better with few; "triplet", gradient descent for (anchor,
            positive, negative), without y. "auto" chooses by the public numbers of pairs and
            columns and by the noise, and uses the plain distance if learning is not expected to
            be better (`forecast`).
        scale: how columns are scaled: bounds (low, high) of each column, known beforehand;
            "private", from the pairs themselves within the budget; None leaves the columns as they
            are and scales every record to norm 1.
        select: which pairs are used: "all", or fewer to lower the cost: "forest", "matching", or
            the largest number of pairs per record (per person, if people are given).
        kappa: how kappa is computed ("second", "exact", "bound", "node", "edge"), or a number
            fixed beforehand, which the pairs must then respect. Its cost is stated for every unit.
        transitive: whether similarity is transitive, on which kappa depends.
        preprocessor: the records that indices refer to: an array, or a function from indices to
            rows.
        random_state: None for the operating system's entropy; a seed makes a simulation, and the
            guarantee says so.

    Guarantee:
        `guarantee_` is charged before anything is learned. Which records were compared is public.
        `fit` learns from any labels, even if they contradict each other or are all equal, because
        an error would reveal that; the owner can check them with `check_pairs`.

    Attributes:
        threshold_: pairs at most this far apart count as the same.
        curve_: false accepts and false rejects at every threshold (`ErrorCurve`).
        loss_: the loss that was used.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> X, c = rng.normal(size=(600, 4)), rng.integers(0, 2, 600)
        >>> X[:, 0] += 3 * c
        >>> pairs = rng.permutation(600).reshape(300, 2)
        >>> similar = c[pairs[:, 0]] == c[pairs[:, 1]]
        >>> metric = DPPMetric(epsilon=4.0, preprocessor=X, random_state=0).fit(pairs, similar)
        >>> metric.transform(X).shape, metric.guarantee_.unit, metric.loss_
        ((600, 4), 'label', 'moments')
    """

    _kind: ClassVar[str] = "metric"

    def __init__(
        self,
        n_components: int | None = None,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        unit: str = "label",
        loss: str = "auto",
        scale: Any = None,
        select: str | int = "all",
        kappa: str | int = "second",
        transitive: bool = True,
        preprocessor: Any = None,
        random_state: RandomState = None,
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
        tuples: bool = False,
        threshold: float | None = None,
        about: dict[str, Any] | None = None,
    ) -> Guarantee:
        """Return the guarantee, from parameters and public facts only.

        Parameters:
            n_pairs: number of pairs or triplets.
            n_features: number of columns.
            groups: how many pairs may contain one unit, by unit ("label", "pair", ...).
            kappa: a public fact of a saved model; it does not change the guarantee.
            named: whether records are given as indices; otherwise each row of features counts as a
                separate record.
            tuples: whether there are triplets rather than pairs.
            threshold: a public fact of a saved model; it does not change the guarantee.
            about: other public facts of a saved model (`describe`); they do not change the
                guarantee.

        Returns:
            The guarantee.
        """
        columns = checks.whole("n_features", n_features)
        guarantee = metric_guarantee(
            self._resolved(n_pairs, columns, groups, tuples),
            bins=bins_for(n_pairs, self._noise(groups, "distances")),
            tuples=tuples,
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

    def forecast(
        self, *, n_pairs: int, n_features: int, groups: dict[str, int], tuples: bool = False
    ) -> MetricForecast:
        """Forecast whether learning is better than the plain distance; see `promise`."""
        loss = self._resolved(n_pairs, n_features, groups, tuples)
        needed = worth_learning(n_features, self._noise(groups, "gradients"))
        return MetricForecast(loss, n_pairs, needed)

    def forecast_of(
        self, pairs: ArrayLike, y: ArrayLike | None = None, *, people: ArrayLike | None = None
    ) -> MetricForecast:
        """Return the forecast for these pairs, of which only public facts are used."""
        public = self._read(pairs, y, people)[1]
        return self.forecast(
            n_pairs=public["n_pairs"],
            n_features=public["n_features"],
            groups=public["groups"],
            tuples=public["tuples"],
        )

    def inputs_text(
        self, pairs: ArrayLike | PairSet, y: ArrayLike | None, *, people: ArrayLike | None = None
    ) -> str:
        """Return all inputs of a fit as text: digests of the tables, and the settings."""
        data, public = self._read(pairs, y, people)
        tables = {"records": data.records, "pairs": data.numbers, "similar": data.alike}
        settings = self._saved_parameters() | {"groups": public["groups"]}
        return storage.digest("learning a metric", tables) + json.dumps(settings, sort_keys=True)

    def fit(
        self,
        pairs: ArrayLike | PairSet,
        y: ArrayLike | None = None,
        *,
        people: ArrayLike | None = None,
        ledger: Ledger | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Self:
        """Learn a distance and its threshold.

        Parameters:
            pairs: (m, 2, d) features, or (m, 2) indices with a preprocessor; a `PairSet` of
                `blindsight.data`, which holds the labels, too; or triplets, (m, 3, d) or (m, 3).
            y: 1 for similar pairs, 0 or -1 for dissimilar ones; None for triplets.
            people: the person behind each record: one name for each row of the preprocessor, or
                (m, 2) names if pairs are features. Needed for unit "person"; the cost per person
                is then stated for every unit.
            ledger: charged before anything is learned.
            progress: called with (done, total).

        Returns:
            The metric.

        Raises:
            BudgetExceeded: if the ledger has too little left; nothing is learned.
            InvalidData: if pairs, labels or people do not fit each other.
        """
        data, public = self._read(pairs, y, people)
        columns = data.records.shape[1]
        guarantee = self.promise(**public)
        self._question_delta(len(data))
        # If the charge is refused, the results of an earlier fit remain unchanged.
        door = Door(
            guarantee,
            what=f"metric from {len(data)} {'triplets' if public['tuples'] else 'pairs'}",
            ledger=ledger,
            random_state=self.random_state,
        )
        self.guarantee_, self.public_ = guarantee, public
        loss = self._resolved(len(data), columns, public["groups"], public["tuples"])
        self.released_ = {}
        if isinstance(self.scale, str):
            counts = door.total("column sizes", data.spread())
            self.released_["stretch"] = counted_stretch(
                counts, columns, noise=_sigma(door, "column sizes")
            )
        prepared = data.prepared(self._stretch(columns), self._norm())
        if loss == "plain":
            # Records of norm 1 are seldom more than root 2 apart; larger distances are counted in
            # the last cell.
            self._count(door, prepared, farthest=1.6 if self._norm() == "l2" else 3.0)
            return self._settle_in()
        W = (
            self._moments(door, prepared)
            if loss == "moments"
            else self._descent(door, prepared, loss, progress)
        )
        self.released_["components"] = reduce_rank(W, self._width(columns))
        # The closed form scales its map to a mean square of 1; for other maps the range of
        # distances follows from the norm of the map.
        self._count(door, prepared, farthest=3.0 if loss == "moments" else 3 * _typical(W))
        return self._settle_in()

    def answers(
        self, pairs: ArrayLike, *, point: OperatingPoint | None = None, share_same: float = 0.5
    ) -> list[ComparisonAnswer]:
        """Answer whether each pair is the same, with the error rate of such answers.

        Parameters:
            pairs: as for `pair_distance`.
            point: an operating point of `curve_`; None is that of `threshold_`.
            share_same: expected share of same pairs among all questions.

        Returns:
            One answer for each pair.

        Raises:
            InvalidParameter: if noise hides the error rates (`curve_.known` is False).
        """
        check_is_fitted(self)
        if not self.curve_.known:
            raise InvalidParameter(
                "noise hides how often this metric errs: there are too few pairs for this epsilon. "
                "Learn with a larger epsilon or more pairs."
            )
        chosen = self.curve_.at_threshold(self.threshold_) if point is None else point
        return [
            chosen.answer(float(away), share_same=share_same) for away in self.pair_distance(pairs)
        ]

    def set_threshold(self, threshold: float) -> Self:
        """Set the largest distance of pairs that count as similar, chosen without private data."""
        super().set_threshold(threshold)
        self.public_["threshold"] = float(self.threshold_)
        return self

    def describe(self, **facts: Any) -> Self:
        """Store public facts with the model, for example how features were computed.

        They are available as `about_`, also after the model was saved and loaded.
        """
        self.public_["about"] = facts
        return self._settle_in()

    def _read(
        self,
        pairs: ArrayLike | PairSet,
        y: ArrayLike | None,
        people: ArrayLike | None = None,
    ) -> tuple[Comparisons, dict[str, Any]]:
        """Return the comparisons and their public facts."""
        loss = checks.one_of("loss", self.loss, LOSSES)
        checks.one_of("unit", self.unit, UNITS)
        if isinstance(pairs, PairSet):
            y = pairs.labels if y is None else y
            pairs = pairs.indices
        shape = np.shape(pairs)
        tuples = loss == "triplet" or (
            loss in ("auto", "plain") and len(shape) in (2, 3) and shape[1] == 3
        )
        records, numbers = read_tuples(pairs, self.preprocessor, width=3 if tuples else 2)
        persons = None if people is None else person_numbers(people, pairs, len(records))
        if persons is None and self.unit == "person":
            raise InvalidParameter(
                "unit 'person' needs people=: the name of the person behind each record."
            )
        if tuples:
            if self.select != "all" or y is not None:
                raise InvalidParameter(
                    "triplets take no y and no select: the second record of a triplet is the "
                    "similar one."
                )
            graph = PairGraph.from_pairs(
                *tuple_pairs(numbers), n_nodes=len(records), transitive=self.transitive
            )
            alike = np.zeros((len(numbers), 2), dtype=np.bool_)
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
            graph = graph.subset(select(graph, self.select, people=persons))
            numbers, alike = graph.edges, graph.similar[:, None]
        kappa = self._kappa(graph)
        groups = {
            unit: group_size(numbers, unit, kappa=max(1, kappa), people=persons)  # type: ignore[arg-type]
            for unit in UNITS
            if unit != "person" or persons is not None
        }
        public = {
            "n_pairs": len(numbers),
            "n_features": records.shape[1],
            "groups": groups,
            "kappa": kappa,
            "named": len(shape) == 2,
            "tuples": tuples,
        }
        return Comparisons(records, numbers, alike), public

    def _kappa(self, graph: PairGraph) -> int:
        if isinstance(self.kappa, str):
            return count_kappa(graph, self.kappa)  # type: ignore[arg-type]
        stated = checks.whole("kappa", self.kappa)
        if count_kappa(graph) > stated:
            raise InvalidData(
                f"the pairs need a larger kappa than the {stated} that was fixed beforehand. Raise "
                "it, or use select= to leave pairs out."
            )
        return stated

    def _noise(self, groups: dict[str, int], what: str) -> float:
        """Return the noise that the sum `what` would need if it were the only release.

        It is a standard deviation in units of the norm of one pair's row.
        """
        epsilon = checks.positive("epsilon", self.epsilon)
        delta = checks.positive("delta", self.delta)
        return groups[self.unit] * reach(what, self.unit) * unit_noise(epsilon, delta)

    def _resolved(
        self, n_pairs: int, columns: int, groups: dict[str, int], tuples: bool = False
    ) -> str:
        if checks.one_of("loss", self.loss, LOSSES) != "auto":
            return self.loss
        needed = worth_learning(columns, self._noise(groups, "gradients"))
        if needed is None or n_pairs < needed:
            return "plain"
        if tuples:
            return "triplet"
        enough = worth_moments(n_pairs, columns, self._noise(groups, "second moments"))
        return "moments" if enough else "contrastive"

    def _question_delta(self, n_pairs: int) -> None:
        if self.delta * n_pairs > 1:
            warnings.warn(
                f"delta = {self.delta:g} allows one in {1 / self.delta:,.0f} pairs to be revealed "
                f"completely, and there are {n_pairs:,}. Use a delta well below "
                f"{1 / n_pairs:.1g}.",
                UserWarning,
                stacklevel=3,
            )

    def _norm(self) -> Any:
        """Return how records are normalised: to norm 1 if their scale is not known."""
        scale = check_scale(self.scale)
        hidden = isinstance(scale, str) and bool((self.released_["stretch"] == 1.0).all())
        return "l2" if scale is None or hidden else "none"

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
        return Contrastive(
            data.differences[:, 0], ~data.alike[:, 0], margin=self.released_["margin"]
        )

    def _count(self, door: Door, data: Comparisons, *, farthest: float) -> None:
        """Release histograms of the mapped distances, for the threshold and its error rates."""
        (planned,) = (item for item in door.guarantee.releases if item.what == "distances")
        bins = planned.mechanism.dimensions // 2  # type: ignore[attr-defined]
        edges = np.linspace(0, max(farthest, 1e-12), bins + 1)
        W = self._map(data.records.shape[1])
        counts = door.total("distances", data.distances(W, edges))
        self.released_["edges"] = edges
        self.released_["similar"], self.released_["dissimilar"] = counts[:bins], counts[bins:]

    def _map(self, columns: int) -> Floats | None:
        """Return the released map; None for the plain distance of all columns."""
        if "components" in self.released_:
            return np.asarray(self.released_["components"])
        width = self._width(columns)
        if width == columns:
            return None
        return orthogonal(width, columns, rng=np.random.default_rng(columns))

    def _settle(self) -> None:
        public, released = self.public_, self.released_
        self.n_features_in_, self.n_pairs_ = int(public["n_features"]), int(public["n_pairs"])
        self.kappa_, self.about_ = int(public["kappa"]), dict(public.get("about") or {})
        tuples = bool(public.get("tuples", False))
        self.loss_ = self._resolved(self.n_pairs_, self.n_features_in_, public["groups"], tuples)
        self.norm_, self.stretch_ = self._norm(), self._stretch(self.n_features_in_)
        W = self._map(self.n_features_in_)
        self.identity_ = W is None
        self.components_ = (
            np.eye(self.n_features_in_)
            if W is None
            else checks.finite_array("components", W, ndim=2)
        )
        if self.components_.shape[1] != self.n_features_in_ or self.stretch_.shape != (
            self.n_features_in_,
        ):
            raise InvalidData("the map does not fit the number of columns.")
        self.margin_ = None if "margin" not in released else float(released["margin"])
        (counted,) = (item for item in self.guarantee_.releases if item.what == "distances")
        self.curve_ = ErrorCurve(
            checks.finite_array("edges", released["edges"], ndim=1),
            checks.finite_array("similar", released["similar"], ndim=1),
            checks.finite_array("dissimilar", released["dissimilar"], ndim=1),
            noise=float(counted.mechanism.sigma),  # type: ignore[attr-defined]
            n_pairs=self.n_pairs_,
            each=2 if tuples else 1,
        )
        # If noise hides the error rates, the threshold is a third of the range, the typical
        # distance.
        edges = self.curve_.edges
        chosen = self.curve_.best().threshold if self.curve_.known else float(edges[-1]) / 3
        self.threshold_ = checks.non_negative("threshold", public.get("threshold", chosen))

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
    people: ArrayLike | None = None,
    records: Sequence[str] = (),
    out: str | os.PathLike[str] | None = None,
    account: Callable[[str], Ledger] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> DPPMetric:
    """Fit a metric with noise from a vault, and charge it once.

    The noise is derived from the vault's key and the id of the release, which is a function of the
    records, the pairs, the labels and all settings. Repeating the same learning, after a crash or
    with a copy of the vault, gives the same metric under the same charge. With any other input it
    is another release and another charge.

    Parameters:
        metric: the metric to fit; one with a seed is a simulation and keeps its seed.
        pairs: as for `DPPMetric.fit`.
        y: as for `DPPMetric.fit`.
        people: as for `DPPMetric.fit`.
        vault: the vault of the owner; None draws fresh noise, and a second run is charged again.
        ledger: the account to charge.
        records: ids in the vault of the images that are in a pair; every account whose data set
            contains one of them is charged.
        out: the path to which the metric will be written (`Vault.charge`).
        account: called with the release's id, returns the account to charge instead of `ledger`,
            for callers that charge further units.
        progress: called with (done, total).

    Returns:
        The metric, fitted.

    Raises:
        RolledBack: if the vault or the ledger is an older copy; nothing is released.
        BudgetExceeded: if the account has too little left; nothing is released.
    """
    if vault is None:
        return metric.fit(pairs, y, people=people, ledger=ledger, progress=progress)
    number = vault.release_of(metric.inputs_text(pairs, y, people=people))
    random_state = metric.random_state
    charged = None
    if account is not None:
        charged = account(number)
    elif ledger is not None or random_state is None:
        charged = vault.account(ledger, release=number, records=records, out=out)
    if random_state is None:
        metric.random_state = vault.training_source(number)
    try:
        return metric.fit(pairs, y, people=people, ledger=charged, progress=progress)
    finally:
        metric.random_state = random_state


def _sigma(door: Door, what: str) -> float:
    """Return the standard deviation of the noise of a planned release, which is public."""
    (planned,) = (item for item in door.guarantee.releases if item.what == what)
    return float(planned.mechanism.sigma)  # type: ignore[attr-defined]


def _margin(released: Floats, sigma: float, n_pairs: int) -> float:
    """Return the mean distance of dissimilar pairs, or 1 if noise hides it."""
    total, count = released
    if sigma > n_pairs / 32 or count <= 0:
        return 1.0
    return float(np.clip(2 * total / count, 0.05, 2.0))


def _typical(W: Floats) -> float:
    """Return the average mapped length of a difference of length 1 in a random direction."""
    return float(np.linalg.norm(W)) / math.sqrt(min(W.shape))
