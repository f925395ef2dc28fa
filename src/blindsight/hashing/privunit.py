"""PrivUnit (Bhowmick et al. 2018): release a noisy direction instead of bits.

A unit vector u in d dimensions is released as a random unit vector v: with probability p from the cap <v, u> >= gamma,
else from the rest of the sphere, uniformly in either. With q the cap's share of the sphere, the density ratio between
two inputs is at most [p/q] / [(1-p)/(1-q)], so epsilon = ln(p/(1-p)) + ln((1-q)/q), exactly. For each epsilon the cap
with the largest expected inner product <v, u> is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from scipy import special
from scipy.optimize import minimize_scalar
from sklearn.utils.validation import check_is_fitted, validate_data

from blindsight import checks
from blindsight.errors import InvalidData
from blindsight.hashing import saving
from blindsight.hashing.base import Hasher
from blindsight.hashing.cells import unit_rows
from blindsight.hashing.projection import principal_axes, second_moment
from blindsight.privacy import Cost, Guarantee
from blindsight.privacy.entropy import RandomState, training_rng
from blindsight.privacy.guarantee import Sampler, Unit

__all__ = ["PrivUnit", "PrivUnitHasher"]

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class PrivUnit:
    """Release unit vectors of `dimensions` coordinates.

    Guarantee: `epsilon` per unit, pure, in the local model, for the real-valued mechanism; the sampler is floating
    point.
    """

    epsilon: float
    dimensions: int
    unit: Unit
    sampler: Sampler = "float"

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.whole("dimensions", self.dimensions, least=2)

    @property
    def cost(self) -> Cost:
        """epsilon."""
        return Cost(epsilon=self.epsilon, unit=self.unit)

    @property
    def gamma(self) -> float:
        """The cap's height with the largest expected inner product."""
        best = minimize_scalar(lambda g: -self._inner(g), bounds=(0.0, 0.999), method="bounded")
        return float(best.x)

    @property
    def inner_product(self) -> float:
        """E<v, u>: dividing by it makes the release unbiased."""
        return self._inner(self.gamma)

    def cap(self, gamma: float) -> tuple[float, float]:
        """(p, q): the probability of the cap, and its share of the sphere."""
        q = 0.5 * float(special.betainc((self.dimensions - 1) / 2, 0.5, 1 - gamma * gamma))
        q = max(q, 1e-300)
        return float(special.expit(self.epsilon - math.log1p(-q) + math.log(q))), q

    def release(self, x: Any, *, rng: np.random.Generator) -> NDArray[np.float64]:
        """Unit vectors (n, d), or rows of zeros, to random unit vectors (n, d)."""
        u = checks.finite_array("x", x, ndim=2)
        norm = np.linalg.norm(u, axis=1)
        if u.shape[1] != self.dimensions or not np.allclose(norm[norm > 0], 1, atol=1e-6):
            raise InvalidData(f"x must be unit vectors of {self.dimensions} coordinates, got shape {u.shape}.")
        gamma = self.gamma
        p, q = self.cap(gamma)
        inside = rng.random(len(u)) < p
        # The height t = <v, u>: (1 - t)/2 is Beta((d-1)/2, (d-1)/2), and below q in the cap.
        level = rng.random(len(u)) * np.where(inside, q, 1 - q) + np.where(inside, 0.0, q)
        half = (self.dimensions - 1) / 2
        t = 1 - 2 * special.betaincinv(half, half, level)
        # A row of zeros has no direction: any will do, drawn at random.
        blank = norm == 0
        u = np.where(blank[:, None], unit_rows(rng.standard_normal(u.shape)), u)
        side = rng.standard_normal(u.shape)
        side -= (side * u).sum(axis=1, keepdims=True) * u
        return t[:, None] * u + np.sqrt(np.maximum(0, 1 - t * t))[:, None] * unit_rows(side)

    def log_prob(self, released: Any, x: Any) -> NDArray[np.float64]:
        """Log-density with respect to the uniform distribution on the sphere."""
        gamma = self.gamma
        p, q = self.cap(gamma)
        t = (np.asarray(released) * np.asarray(x)).sum(axis=-1)
        return np.where(t >= gamma, math.log(p / q), math.log1p(-p) - math.log1p(-q))

    def _inner(self, gamma: float) -> float:
        p, q = self.cap(gamma)
        log_mass = (self.dimensions - 1) / 2 * math.log1p(-gamma * gamma) - special.betaln(
            0.5, (self.dimensions - 1) / 2
        )
        mass = math.exp(log_mass) / (self.dimensions - 1)  # E[t; t >= gamma]
        return p * mass / q - (1 - p) * mass / (1 - q)


class PrivUnitHasher(Hasher):
    """Principal components of features to a unit vector, released by PrivUnit; search by inner product.

    `transform` gives float32 vectors (n, n_components), not bits. `n_components="auto"` takes 4 + epsilon/4,
    up to 48: more coordinates describe an image better and are told less truly.

    Guarantee
    ---------
    `epsilon` per record, pure, local, given that `fit` saw public images (`learned_from="public"`); none otherwise.
    """

    _learned: ClassVar[tuple[str, ...]] = ("mean_", "axes_")
    guarantee_: Guarantee

    def __init__(
        self,
        *,
        epsilon: float = 8.0,
        n_components: int | Literal["auto"] = "auto",
        learned_from: Literal["public", "private"] = "public",
        random_state: RandomState = None,
    ) -> None:
        self.epsilon = epsilon
        self.n_components = n_components
        self.learned_from = learned_from
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the mean and the principal components."""
        return self._fit(X, self.learned_from)

    def fit_transform(self, X: Any, y: Any = None, *, ledger: Any = None) -> NDArray[np.float32]:
        """Learn from the images whose vectors are released: no epsilon per record is then proven."""
        return self._fit(X, "private").transform(X, ledger=ledger)

    def transform(self, X: Any, *, ledger: Any = None) -> NDArray[np.float32]:  # type: ignore[override]
        """Release noisy directions, charging `ledger` first."""
        u = self.query(X)
        if ledger is not None:
            ledger.charge(self.guarantee_.cost, what=f"{len(u)} noisy directions in {u.shape[1]} dimensions")
        rng, _ = training_rng(self.random_state)
        return self.mechanism_.release(u, rng=rng).astype(np.float32)

    def query(self, X: Any) -> NDArray[np.float64]:
        """The plain directions of queries: keep them to yourself."""
        check_is_fitted(self)
        return self._project(validate_data(self, X, dtype=(np.float64, np.float32), reset=False))

    def scores(self, X: Any, released: Any) -> NDArray[np.float32]:
        """Debiased inner products (m, n) of queries with released directions."""
        query = (self.query(X) / self.mechanism_.inner_product).astype(np.float32)
        return query @ np.asarray(released, dtype=np.float32).T

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Learned arrays and JSON-able fields."""
        arrays = {name: getattr(self, name) for name in self._learned}
        fields = {"from": self.learned_from_, "n_features_in_": int(self.n_features_in_)}
        return arrays, fields | {"guarantee": self.guarantee_.to_json()}

    def restore(self, arrays: dict[str, Array], fields: dict[str, Any]) -> None:
        """Take the learned state from what `state` gave."""
        saving.take(self, arrays, self._learned)
        self.n_features_in_ = checks.whole("n_features_in_", fields["n_features_in_"])
        saving.require(self.axes_.ndim == 2 and self.axes_.shape[0] == self.n_features_in_, "its axes do not fit")
        self._calibrate(checks.one_of("from", fields["from"], ("public", "private")))
        saving.require(
            Guarantee.from_json(fields["guarantee"]).cost == self.guarantee_.cost, "its guarantee does not fit"
        )
        self.guarantee_ = Guarantee.from_json(fields["guarantee"])
        self._project(np.zeros((1, self.n_features_in_)))

    @property
    def _n_features_out(self) -> int:
        return self.axes_.shape[1]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags

    def _fit(self, X: Any, source: Literal["public", "private"]) -> Self:
        checks.positive("epsilon", self.epsilon)
        checks.one_of("learned_from", source, ("public", "private"))
        X = validate_data(self, X, dtype=(np.float64, np.float32), ensure_min_samples=2)
        wanted = min(48, round(4 + self.epsilon / 4)) if self.n_components == "auto" else self.n_components
        Z = unit_rows(X)
        self.mean_ = Z.mean(axis=0)
        axes = principal_axes(second_moment(Z, self.mean_), min(checks.whole("n_components", wanted), X.shape[1]))
        # One feature has no direction to speak of: a second, empty axis keeps the sphere a sphere.
        self.axes_ = np.pad(axes, ((0, 0), (0, max(0, 2 - axes.shape[1]))))
        self._calibrate(source)
        return self

    def _calibrate(self, source: Literal["public", "private"]) -> None:
        self.learned_from_ = source
        self.mechanism_ = PrivUnit(epsilon=self.epsilon, dimensions=self.axes_.shape[1], unit="record")
        first = (
            "learned from public images" if source == "public" else "learned from the protected images without noise"
        )
        self.guarantee_ = Guarantee(
            mechanism=f"PrivUnit in {self.axes_.shape[1]} dimensions",
            unit="record",
            epsilon=self.epsilon if source == "public" else math.inf,
            model="local",
            accountant="pure epsilon",
            assumptions=(f"the projection was {first}", "an image is released once; each further release adds up"),
            simulation=self.random_state is not None,
        )

    def _project(self, X: Array) -> Array:
        return unit_rows((unit_rows(X) - self.mean_) @ self.axes_)
