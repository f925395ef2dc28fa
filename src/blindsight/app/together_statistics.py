"""Federated training in one round: sites sum feature statistics with noise.

Each site encodes its photos in a public basis, computes class sums, counts and second moments
(`blindsight.sketching.statistics`), and contributes them with its share of the noise to one secure
sum. Every site fits the same classifier to the noisy sum, and nothing needs to be tuned.

`StatisticsPlan` is the plan that the sites agree on. Roles, transport and files are the same as in
every other federation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.federated.agreement import Agreement, agree
from blindsight.federated.deploy.plan import Plan, RoundTask, held_out_records, scaled_counts
from blindsight.federated.noise import RecordShares
from blindsight.federated.sums import Settings
from blindsight.privacy.mechanisms.gaussian import width
from blindsight.sketching import (
    FeatureBasis,
    Statistics,
    StatisticsClassifier,
    StatisticsLayout,
    fit_from_statistics,
)

if TYPE_CHECKING:
    from blindsight.app.train_together import LabelledRows
    from blindsight.encoders import Encoder

__all__ = ["StatisticsPlan", "plan_statistics", "public_directions"]

Vector = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class StatisticsPlan(Plan):
    """A federation that sums its sites' feature statistics once.

    The shared weights are the noisy sum of all statistics and the number of sites in it.

    Parameters:
        basis: the public basis of feature vectors, which is the same at every site.
        moments: the share of the squared norm that is spent on the second moment.
        share: the standard deviation of the noise that one site adds.
    """

    method: ClassVar[str] = "statistics"

    basis: FeatureBasis = field(repr=False)
    moments: float
    share: float

    @classmethod
    def make(
        cls, layout: StatisticsLayout, basis: FeatureBasis, noise: RecordShares, **options: Any
    ) -> Self:
        """Return the plan for a layout, a basis and the agreed noise.

        Parameters:
            layout: the sorted classes and the layout of the summed vector.
            basis: the basis of feature vectors.
            noise: the noise of the settings, see `plan_statistics`.
            options: encoder, holdout and patience of `Plan`.
        """
        return cls(
            initial=np.zeros(layout.size + 1),
            scale=np.vstack([np.zeros(basis.n_features), np.ones(basis.n_features)]),
            classes=layout.n_classes,
            names=layout.classes,
            rounds=1,
            learner=cls.method,
            basis=basis,
            moments=layout.moments,
            share=_share(noise),
            **options,
        )

    def _check_shape(self) -> None:
        checks.positive("share", self.share)
        if self.rounds != 1 or self.examples or self.send != "change" or self.options:
            raise InvalidParameter("statistics are summed once, without further options.")
        if self.initial.shape != (self.layout.size + 1,) or self.initial.any():
            raise InvalidParameter(
                "a plan of statistics must start from zeros, one for each value."
            )
        if self.features != self.basis.n_features:
            raise InvalidParameter(
                f"the features of the plan must be the {self.basis.n_features} of the basis."
            )

    @cached_property
    def layout(self) -> StatisticsLayout:
        """The layout of the summed vector."""
        return StatisticsLayout(self.names, self.basis.width, self.moments)

    @property
    def dimension(self) -> int:
        """The length of the vectors that are summed."""
        return self.layout.size

    @property
    def descent(self) -> None:
        """None: no gradient descent is used."""
        return

    def check(self, settings: Settings) -> None:
        """Refuse settings of the secure sum that do not match the plan.

        Raises:
            InvalidData: length, unit of protection or noise differ.
        """
        if self.dimension != settings.dimension:
            raise InvalidData(
                f"settings are for {settings.dimension} numbers, the plan has {self.dimension}."
            )
        noise = settings.noise
        if not isinstance(noise, RecordShares) or noise.clip < self.layout.bound():
            raise InvalidData("statistics need noise that covers a record's statistics.")
        if not math.isclose(self.share, _share(noise), rel_tol=1e-9):
            raise InvalidData("the plan's noise is not that of the settings.")

    def task(self, X: NDArray[Any], labels: NDArray[Any], *, user: int) -> RoundTask:
        """Return the computation of a site, with its own feature vectors and class numbers."""
        return _SiteStatistics(self, *self.checked(X, labels))

    def advanced(self, weights: Vector, mean: Vector, *, users: int, turn: int) -> Vector:
        """Return the weights after a round: the sum and the number of sites in it."""
        return weights if self.evaluates(turn) else np.append(mean * users, float(users))

    def fit(self, total: Vector, users: int) -> StatisticsClassifier:
        """Fit the classifier to the noisy sum.

        Parameters:
            total: the sum of all sites' statistics, with its noise.
            users: the number of sites in the sum.
        """
        sigma = self.share * math.sqrt(users)  # every contributor adds its share of the noise
        identity = self.encoder.get("identity", {})
        return fit_from_statistics(
            Statistics(self.layout, self.basis, total, sigma, identity, users)
        )

    def learned(self, weights: Vector, settings: Settings) -> StatisticsClassifier | None:
        """Return the classifier; None before the first sum."""
        return self._fitted(weights)

    def _fitted(self, weights: Vector) -> StatisticsClassifier | None:
        users = round(float(weights[-1]))
        return None if users < 1 else self.fit(weights[:-1], users)

    def predicted(self, weights: Vector, X: Vector) -> NDArray[np.int64]:
        """Return the class number of each feature vector; 0 before the first sum."""
        model = self._fitted(weights)
        if model is None or not len(X):
            return np.zeros(len(X), dtype=np.int64)
        return np.asarray(model.decision_function(X).argmax(axis=1), dtype=np.int64)

    def _content(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        stored = ("names", "encoder", "holdout", "patience", "moments", "share")
        arrays = {"mean": self.basis.mean, "directions": self.basis.directions}
        fields = {name: getattr(self, name) for name in stored}
        return arrays, {"method": self.method, **fields}

    @classmethod
    def _from_content(cls, arrays: dict[str, NDArray[Any]], fields: dict[str, Any]) -> Self:
        basis = FeatureBasis(
            np.asarray(arrays["mean"], np.float32), np.asarray(arrays["directions"], np.float32)
        )
        names = tuple(fields["names"])
        layout = StatisticsLayout(names, basis.width, checks.number("moments", fields["moments"]))
        return cls(
            initial=np.zeros(layout.size + 1),
            scale=np.vstack([np.zeros(basis.n_features), np.ones(basis.n_features)]),
            classes=len(names),
            rounds=1,
            learner=cls.method,
            basis=basis,
            **fields,
        )


Plan.METHODS[StatisticsPlan.method] = StatisticsPlan


class _SiteStatistics:
    """A site's statistics, and the accuracy of a model on its held-out records."""

    def __init__(self, plan: StatisticsPlan, X: Vector, labels: NDArray[Any]) -> None:
        self.plan = plan
        held = held_out_records(X, labels, plan.holdout)
        self._held_out = X[held], labels[held]
        self._sum = plan.layout.sum(plan.basis.rows(X[~held]), labels[~held])

    def vector(self, weights: Vector, turn: int, settings: Settings) -> Vector:
        if not self.plan.evaluates(turn):
            return self._sum
        X, labels = self._held_out
        right = self.plan.predicted(weights, X) == labels
        return scaled_counts(int(right.sum()), len(X), settings)


def _share(noise: RecordShares) -> float:
    return float(width(noise.levels) * noise.step)


def plan_statistics(
    basis: FeatureBasis | None = None,
    *,
    sites: int,
    names: Sequence[str],
    epsilon: float,
    public: LabelledRows | None = None,
    encoder: Encoder | None = None,
    features: int | None = None,
    delta: float = 1e-5,
    records: int = 1000,
    **options: Any,
) -> tuple[Agreement, StatisticsPlan]:
    """Plan one sum of feature statistics, and one evaluation of the classifier.

    Parameters:
        basis: the basis of feature vectors; by default learned from public data.
        sites: number of sites.
        names: the names of the classes.
        epsilon: epsilon per record (add or remove one).
        public: public rows; without them, the basis is computed from built-in pictures and the
            encoder's own classifier.
        encoder: the encoder of photos; None if the sites have rows.
        features: number of features of a row, if it is known.
        delta: delta of the guarantee.
        records: approximate number of records of the largest site, which is public.
        options: holders, colluders and least_users of `agree`; holdout, encoder_identity and
            patience of the plan.

    Returns:
        The agreement on the secure sum, and the plan.

    Examples:
        >>> public = np.random.default_rng(0).random((200, 20))
        >>> basis = FeatureBasis.learn(public, width=8)
        >>> agreement, plan = plan_statistics(basis, sites=5, names=["a", "b"], epsilon=1.0)
        >>> plan.rounds, agreement.guarantee(1).unit
        (1, 'record')
    """
    classes = tuple(sorted({str(name).strip() for name in names}))
    total = records * sites  # from public numbers: the true total is private
    layout = StatisticsLayout.choose(classes, n_records=total, epsilon=epsilon, delta=delta)
    if basis is None:
        basis = public_directions(public, encoder, layout.width, features=features)
    layout = StatisticsLayout(classes, basis.width, layout.moments)
    identity = options.pop("encoder_identity", {})
    planned = {name: options.pop(name) for name in ("holdout", "patience") if name in options}
    agreement = agree(
        dimension=layout.size,
        users=sites,
        rounds=1,
        epsilon=epsilon,
        delta=delta,
        clip=layout.bound(),
        records=records,
        # A record trains or is held out, never both.
        contributions=1 + bool(planned.get("holdout", 0.0)),
        **options,
    )
    noise = agreement.settings.noise
    assert isinstance(noise, RecordShares)  # noqa: S101  (records were given)
    return agreement, StatisticsPlan.make(layout, basis, noise, encoder=identity, **planned)


def public_directions(
    public: LabelledRows | None, encoder: Encoder | None, width: int, *, features: int | None = None
) -> FeatureBasis:
    """Return the basis of feature vectors, from public data only.

    Parameters:
        public: public rows.
        encoder: without public rows: the encoder whose classifier gives the directions.
        width: the largest number of directions.
        features: number of features of a vector, if it is known.
    """
    from blindsight.app.labelled_images import public_basis

    if public is not None:
        return FeatureBasis.learn(public.X, width=width)
    if encoder is None:
        raise InvalidParameter(
            "statistics of rows need public rows, from which the basis is computed: public=."
        )
    basis = public_basis(encoder, None, width)
    if features is not None and basis.n_features != features:
        raise InvalidParameter(f"the encoder gives {basis.n_features} features, not {features}.")
    return basis
