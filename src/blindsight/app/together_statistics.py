"""One round may be enough: sites sum feature statistics, with the noise added once.

Each site turns its photos into rows by public means, adds up class sums, counts and second moments
(`blindsight.sketching.statistics`), and contributes the vector to one secure sum with shares of
noise. Everybody fits the same classifier from the noisy sum. There is nothing to tune.

`StatisticsPlan` is what the sites of a federation agree on; the roles, carriers and files are those
of every other federation.
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
        basis: how feature vectors become rows; public, the same at every site.
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
        """The plan for a layout, a basis and the noise that was agreed on.

        Parameters:
            layout: the classes, in sorted order, and what is summed.
            basis: how feature vectors become rows.
            noise: of the settings, see `plan_statistics`.
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
            raise InvalidParameter("statistics are summed once, and need no further options.")
        if self.initial.shape != (self.layout.size + 1,) or self.initial.any():
            raise InvalidParameter("a plan of statistics starts from nothing.")
        if self.features != self.basis.n_features:
            raise InvalidParameter(f"the basis takes {self.basis.n_features} features.")

    @cached_property
    def layout(self) -> StatisticsLayout:
        """What is summed."""
        return StatisticsLayout(self.names, self.basis.width, self.moments)

    @property
    def dimension(self) -> int:
        """The length of the vectors that are summed."""
        return self.layout.size

    @property
    def descent(self) -> None:
        """Nothing is learned by descent."""
        return

    def check(self, settings: Settings) -> None:
        """Refuse settings of the sum that do not fit.

        Raises:
            InvalidData: length, unit of privacy or width of the noise do not fit.
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
        """What a site does, with its own feature vectors and class numbers."""
        return _SiteStatistics(self, *self.checked(X, labels))

    def advanced(self, weights: Vector, mean: Vector, *, users: int, turn: int) -> Vector:
        """The sum and the number of sites in it; the evaluation changes nothing."""
        return weights if self.evaluates(turn) else np.append(mean * users, float(users))

    def fit(self, total: Vector, users: int) -> StatisticsClassifier:
        """The classifier that everybody fits from the noisy sum.

        Parameters:
            total: the sum of all sites' statistics, with its noise.
            users: how many sites are in it.
        """
        sigma = self.share * math.sqrt(users)  # every contributor adds a share
        identity = self.encoder.get("identity", {})
        return fit_from_statistics(
            Statistics(self.layout, self.basis, total, sigma, identity, users)
        )

    def learned(self, weights: Vector, settings: Settings) -> StatisticsClassifier | None:
        """The classifier; None before there is a sum."""
        return self._fitted(weights)

    def _fitted(self, weights: Vector) -> StatisticsClassifier | None:
        users = round(float(weights[-1]))
        return None if users < 1 else self.fit(weights[:-1], users)

    def predicted(self, weights: Vector, X: Vector) -> NDArray[np.int64]:
        """The class number of each feature vector; 0 before there is a sum."""
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
    """A site's statistics, and how many of its held-out records a model names rightly."""

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
    """Agree on one sum of feature statistics, and one evaluation of what is learned from it.

    Parameters:
        basis: how feature vectors become rows; by default learned from what is public.
        sites: how many sites there are.
        names: the classes.
        epsilon: per record, add or remove one.
        public: rows that anybody may see; without, built-in pictures and the encoder's own
            classifier give the directions.
        encoder: how photos become rows; None: rows are given.
        features: how many features a row has, where it is known.
        delta: of the guarantee.
        records: about how many records the largest site has; public.
        options: holders, colluders and least_users of `agree`; holdout, encoder_identity and
            patience of the plan.

    Returns:
        The agreement on the sum, and the plan.

    Examples:
        >>> public = np.random.default_rng(0).random((200, 20))
        >>> basis = FeatureBasis.learn(public, width=8)
        >>> agreement, plan = plan_statistics(basis, sites=5, names=["a", "b"], epsilon=1.0)
        >>> plan.rounds, agreement.guarantee(1).unit
        (1, 'record')
    """
    classes = tuple(sorted({str(name).strip() for name in names}))
    total = records * sites  # as the sites said: the true number is not public
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
    """How feature vectors become rows of statistics, from public pictures only.

    Parameters:
        public: rows that anybody may see.
        encoder: without public rows: whose classifier and built-in pictures give the directions.
        width: the largest length of a row.
        features: how many features a vector has, where it is known.
    """
    from blindsight.app.labelled_images import public_basis

    if public is not None:
        return FeatureBasis.learn(public.X, width=width)
    if encoder is None:
        raise InvalidParameter(
            "statistics of rows need public rows, which give the directions: public=."
        )
    basis = public_basis(encoder, None, width)
    if features is not None and basis.n_features != features:
        raise InvalidParameter(f"the encoder gives {basis.n_features} features, not {features}.")
    return basis
