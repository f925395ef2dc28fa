"""`DPPMetric`: learn a distance from labelled pairs, and keep the pairs private."""

from __future__ import annotations

import copy
import html
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from blindsight.core import checks, storage
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.data import PairSet
from blindsight.metric import learning
from blindsight.metric.contrastive import Contrastive
from blindsight.metric.graph import PairGraph, pair_labels
from blindsight.metric.kappa import kappa as count_kappa
from blindsight.metric.losses import NPair, Triplet, group_size, tuple_pairs
from blindsight.metric.outer import TupleLoss
from blindsight.metric.records import normalised, read_tuples
from blindsight.metric.selection import select
from blindsight.metric.settings import resolve
from blindsight.privacy.entropy import training_rng
from blindsight.privacy.guarantee import Guarantee

__all__ = ["DPPMetric", "LinearMetric"]

Floats = NDArray[np.float64]
_KIND = "metric"


class _Hidden:
    def __repr__(self) -> str:
        return "<records>"


class LinearMetric(TransformerMixin, BaseEstimator):
    """What every learned linear map can do; `components_`, `norm_` and `n_features_in_` are learned by subclasses."""

    components_: Floats
    norm_: str
    n_features_in_: int

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """As scikit-learn has it, but the records of a preprocessor stay out of it."""
        shown = copy.copy(self)
        if getattr(self, "preprocessor", None) is not None:
            shown.preprocessor = _Hidden()  # type: ignore[attr-defined]
        return BaseEstimator.__repr__(shown, N_CHAR_MAX)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"

    def transform(self, X: Any) -> Floats:
        """Rows normalised as in training, then mapped: Euclidean distance there is the learned distance."""
        return self._unit(X) @ self.components_.T

    def pair_distance(self, pairs: Any) -> Floats:
        """The learned distance of each pair: (m, 2, d) features, or (m, 2) indices into the preprocessor."""
        check_is_fitted(self)
        given = np.asarray(pairs)
        preprocessor = getattr(self, "preprocessor", None)
        if given.ndim == 2:
            records, numbers = read_tuples(given, preprocessor)
            a, b = records[numbers[:, 0]], records[numbers[:, 1]]
        elif given.ndim == 3 and given.shape[1] == 2:
            a, b = given[:, 0], given[:, 1]
        else:
            raise InvalidData(f"pairs must be (m, 2, d) features or (m, 2) indices, got shape {given.shape}.")
        return np.linalg.norm(self.transform(a) - self.transform(b), axis=1)

    def pair_score(self, pairs: Any) -> Floats:
        """Minus the distance: higher is more alike."""
        return -self.pair_distance(pairs)

    def score(self, pairs: Any, y: Any) -> float:
        """Area under the ROC curve of telling similar from dissimilar pairs; 0.5 is chance."""
        from sklearn.metrics import roc_auc_score

        similar = pair_labels(y)
        if similar.all() or not similar.any():
            raise InvalidData("y must hold both similar and dissimilar pairs: with a single class there is no AUC.")
        return float(roc_auc_score(similar, self.pair_score(pairs)))

    def get_metric(self) -> Callable[[Any, Any], float]:
        """A function of two vectors, for scikit-learn's `metric=` and the like."""
        check_is_fitted(self)
        W, norm = self.components_.copy(), self.norm_

        def distance(u: Any, v: Any) -> float:
            both = normalised(checks.finite_array("u and v", [u, v]), norm)  # type: ignore[arg-type]
            return float(np.linalg.norm(W @ (both[0] - both[1])))

        return distance

    def get_mahalanobis_matrix(self) -> Floats:
        """M = W'W, positive semidefinite."""
        check_is_fitted(self)
        return self.components_.T @ self.components_

    def _unit(self, X: Any) -> Floats:
        check_is_fitted(self)
        rows = checks.finite_array("X", X, ndim=2)
        if rows.shape[1] != self.n_features_in_:
            raise InvalidData(f"X must have {self.n_features_in_} columns as in training, got {rows.shape[1]}.")
        return normalised(rows, self.norm_)  # type: ignore[arg-type]


class DPPMetric(LinearMetric):
    """A linear metric learned from private labelled pairs.

    Parameters
    ----------
    n_components: rows of the learned map; None keeps all columns of X.
    epsilon, delta: the budget; delta is spent by Gaussian noise only.
    unit: what the proven guarantee protects: "pair", "kappa pairs" or "record". (The paper's is "kappa pairs".)
    calibration: "proven" (default), or "paper" for Algorithm 1 to the letter.
    loss: "contrastive" on pairs; "triplet" on (anchor, positive, negative); "npair" on (anchor, positive, negatives).
    mechanism: "gaussian", "laplace", "scdf" or "duchi"; "auto" is Gaussian when proven, Laplace as in the paper.
    sensitivity_reduction: DPP-S; paper calibration only, since nothing can be proven of it.
    kappa: how to find kappa ("second", "exact", "bound", "node", "edge"), or a number fixed beforehand, which the
        pairs must then respect.
    transitive, n_classes: how labels imply each other; contradictions are refused.
    select, max_degree: leave pairs out so that the price falls: "all", "forest", "matching", "degree" (max_degree).
    normalize: "l1", "l2" or "none" for each record; margin: a number, or "mean" of dissimilar distances (proven:
        5% of the budget pays for it); margin_ratio: rho, its multiple; clip: the bound h of a gradient.
    batch_size, epochs, step_size, step_rule: of the descent. With proven Gaussian noise batch_size=None takes all pairs
        in each of `epochs` steps, a number samples so many on average, and epochs are passes over the pairs. step_rule
        is "compound" as printed in Algorithm 1, or "root" for eta_0 / sqrt(tau).
    preprocessor: X, where pairs are given as indices into it.
    random_state: None for the operating system's entropy; a seed makes a simulation, and the guarantee says so.

    Guarantee: `guarantee_`, charged to the ledger before anything is learned. The records' features are protected as
    part of their pairs; records that are in no pair are not used.

    >>> rng = np.random.default_rng(0)
    >>> X, c = rng.normal(size=(60, 4)), rng.integers(0, 2, 60)
    >>> pairs = np.column_stack([np.arange(0, 60, 2), np.arange(1, 60, 2)])
    >>> metric = DPPMetric(preprocessor=X, random_state=0).fit(pairs, c[pairs[:, 0]] == c[pairs[:, 1]])
    >>> metric.transform(X).shape, metric.guarantee_.unit
    ((60, 4), 'pair')
    """

    guarantee_: Guarantee

    def __init__(
        self,
        n_components: int | None = None,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        unit: str = "pair",
        calibration: str = "proven",
        loss: str = "contrastive",
        mechanism: str = "auto",
        sensitivity_reduction: bool = False,
        kappa: str | int = "second",
        transitive: bool = True,
        n_classes: int | None = None,
        select: str = "all",
        max_degree: int | None = None,
        normalize: str = "auto",
        margin: float | str = "auto",
        margin_ratio: float = 1.0,
        clip: float | str = "auto",
        batch_size: int | str | None = "auto",
        epochs: int | str = "auto",
        step_size: float | str = "auto",
        step_rule: str = "auto",
        preprocessor: Any = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.unit = unit
        self.calibration = calibration
        self.loss = loss
        self.mechanism = mechanism
        self.sensitivity_reduction = sensitivity_reduction
        self.kappa = kappa
        self.transitive = transitive
        self.n_classes = n_classes
        self.select = select
        self.max_degree = max_degree
        self.normalize = normalize
        self.margin = margin
        self.margin_ratio = margin_ratio
        self.clip = clip
        self.batch_size = batch_size
        self.epochs = epochs
        self.step_size = step_size
        self.step_rule = step_rule
        self.preprocessor = preprocessor
        self.random_state = random_state

    def fit(
        self,
        pairs: Any,
        y: Any = None,
        *,
        ledger: Any = None,
        trace: Any = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Self:
        """Learn from pairs (m, 2, d), or indices (m, 2) with a preprocessor, and y: 1 similar, 0 or -1 dissimilar.

        A `PairSet` of `blindsight.data` holds indices and labels in one.
        Triplets and N-pair tuples take no y. `trace` (paper calibration) records objective and sensitivity.
        """
        settings = resolve(self.get_params(deep=False))
        rng, simulation = training_rng(self.random_state)
        records, numbers, graph = self._read(pairs, y, rng)
        rows = normalised(records, settings.normalize)  # type: ignore[arg-type]
        used = graph.edges if self.loss == "contrastive" else numbers
        task = learning.Task(
            differences=rows[graph.edges[:, 0]] - rows[graph.edges[:, 1]],
            dissimilar=~graph.similar,
            graph=graph,
            loss=lambda margin: self._loss(rows, used, graph, margin),
            n_tuples=len(used),
            n_components=self._width(rows.shape[1]),
            kappa=self._kappa(graph),
            group=lambda unit, kappa: group_size(used, unit, kappa=kappa),
            epsilon=checks.positive("epsilon", self.epsilon),
            delta=checks.positive("delta", self.delta),
            unit=checks.one_of("unit", self.unit, ("pair", "kappa pairs", "record")),  # type: ignore[arg-type]
            reduction=bool(self.sensitivity_reduction),
            margin_ratio=checks.positive("margin_ratio", self.margin_ratio),
            settings=settings,
            simulation=simulation,
            rng=rng,
        )
        learn = learning.paper if self.calibration == "paper" else learning.proven
        learned = learn(task, ledger=ledger, trace=trace, progress=progress)
        self.components_ = learned.components
        self.guarantee_ = learned.guarantee
        self.margin_ = learned.margin
        self.kappa_ = task.kappa
        self.n_pairs_ = len(graph)
        self.norm_ = settings.normalize
        self.n_features_in_ = rows.shape[1]
        return self

    def _read(self, pairs: Any, y: Any, rng: np.random.Generator) -> tuple[Floats, NDArray[np.int64], PairGraph]:
        checks.one_of("loss", self.loss, ("contrastive", "triplet", "npair"))
        if isinstance(pairs, PairSet):
            pairs, y = pairs.indices, pairs.labels if y is None else y
        width = {"contrastive": 2, "triplet": 3, "npair": None}[self.loss]
        records, numbers = read_tuples(pairs, self.preprocessor, width=width)
        if self.loss == "contrastive":
            if y is None:
                raise InvalidData("y must say which pairs are similar (1) and which are not (0).")
            listed, similar = numbers, pair_labels(y)
        else:
            if self.calibration == "paper" or self.select != "all":
                raise InvalidParameter("tuples need calibration='proven' and select='all': the paper's are pairs.")
            listed, similar = tuple_pairs(numbers)
        graph = PairGraph.from_pairs(
            listed, similar, n_nodes=len(records), transitive=self.transitive, n_classes=self.n_classes
        )
        if graph.similar.all() or not graph.similar.any():
            raise InvalidData(
                f"all pairs are {'similar' if graph.similar.all() else 'dissimilar'}: with a single class of pairs the "
                "metric collapses or grows without end. Add pairs of the other kind."
            )
        chosen = select(graph, self.select, max_degree=self.max_degree, rng=rng)  # type: ignore[arg-type]
        return records, numbers, graph.subset(chosen)

    def _loss(self, rows: Floats, used: NDArray[np.int64], graph: PairGraph, margin: float) -> TupleLoss:
        if self.loss == "triplet":
            return Triplet(rows[used], margin=margin)
        if self.loss == "npair":
            return NPair(rows[used])
        return Contrastive(rows[used[:, 0]] - rows[used[:, 1]], ~graph.similar, margin=margin)

    def _width(self, columns: int) -> int:
        if self.n_components is None:
            return columns
        if checks.whole("n_components", self.n_components) > columns:
            raise InvalidParameter(f"n_components must be at most the {columns} columns of X, got {self.n_components}.")
        return self.n_components

    def _kappa(self, graph: PairGraph) -> int:
        if isinstance(self.kappa, str):
            return count_kappa(graph, self.kappa)  # type: ignore[arg-type]
        stated = checks.whole("kappa", self.kappa)
        if count_kappa(graph) > stated:
            raise InvalidData(
                f"the pairs need a larger kappa than the {stated} that was fixed beforehand. Raise it, or use "
                "select= to leave pairs out."
            )
        return stated

    def save(self, path: str | Path, *, about: dict[str, Any] | None = None) -> None:
        """Write map, normalisation and guarantee as one file; no pair and no record is in it.

        `about` is kept beside them (how features were made, say) and comes back as `about_`.
        """
        check_is_fitted(self)
        plain = {k: v for k, v in self.get_params(deep=False).items() if isinstance(v, (str, int, float, bool))}
        fields = {
            "norm": self.norm_,
            "margin": self.margin_,
            "kappa": self.kappa_,
            "n_pairs": self.n_pairs_,
            "guarantee": json.loads(self.guarantee_.to_json()),
            "parameters": plain,
            "about": about or {},
        }
        storage.save(path, kind=_KIND, arrays={"components": self.components_}, fields=fields)

    @classmethod
    def load(cls, path: str | Path) -> DPPMetric:
        """Read back what `save` wrote; anything else is refused."""
        arrays, fields = storage.load(path, kind=_KIND)
        try:
            components = checks.finite_array("components", arrays["components"], ndim=2)
            known = cls._get_param_names()
            metric = cls(**{key: value for key, value in fields["parameters"].items() if key in known})
            metric.norm_ = checks.one_of("norm", fields["norm"], ("l1", "l2", "none"))
            metric.margin_, metric.kappa_ = float(fields["margin"]), int(fields["kappa"])
            metric.n_pairs_ = int(fields["n_pairs"])
            metric.guarantee_ = Guarantee.from_json(json.dumps(fields["guarantee"]))
            metric.about_ = dict(fields["about"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise HostileFile(f"{path} does not hold a metric: {type(error).__name__}.") from error
        metric.components_, metric.n_features_in_ = components, components.shape[1]
        return metric
