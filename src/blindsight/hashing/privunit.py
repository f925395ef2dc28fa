"""Directions instead of bits: principal components of features, released by PrivUnit (Bhowmick et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted, validate_data

from blindsight.core import checks
from blindsight.hashing import saving
from blindsight.hashing.base import Hasher
from blindsight.hashing.cells import unit_rows
from blindsight.hashing.projection import principal_axes, second_moment
from blindsight.hashing.promise import CODE, LEARNED, ONCE, PUBLIC, Source
from blindsight.privacy import Door, Guarantee, Planned
from blindsight.privacy.entropy import RandomState, source_of
from blindsight.privacy.mechanisms import PrivUnit

if TYPE_CHECKING:
    from blindsight.privacy import Ledger

__all__ = ["PrivUnitHasher"]

Array = NDArray[Any]


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
        learned_from: Source = "private",
        random_state: RandomState = None,
    ) -> None:
        self.epsilon = epsilon
        self.n_components = n_components
        self.learned_from = learned_from
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the mean and the principal components."""
        checks.positive("epsilon", self.epsilon)
        checks.one_of("learned_from", self.learned_from, ("public", "private"))
        X = validate_data(self, X, dtype=(np.float64, np.float32), ensure_min_samples=2)
        wanted = min(48, round(4 + self.epsilon / 4)) if self.n_components == "auto" else self.n_components
        Z = unit_rows(X)
        self.mean_ = Z.mean(axis=0)
        axes = principal_axes(second_moment(Z, self.mean_), min(checks.whole("n_components", wanted), X.shape[1]))
        # One feature has no direction to speak of: a second, empty axis keeps the sphere a sphere.
        self.axes_ = np.pad(axes, ((0, 0), (0, max(0, 2 - axes.shape[1]))))
        self._calibrate(self.learned_from)
        return self

    def fit_transform(self, X: Any, y: Any = None, *, ledger: Ledger | None = None) -> NDArray[np.float32]:
        """Learn, and release the vectors of the same images."""
        return self.fit(X, y).transform(X, ledger=ledger)

    def transform(  # type: ignore[override]
        self, X: Any, *, ledger: Ledger | None = None, names: Sequence[str] | None = None
    ) -> NDArray[np.float32]:
        """Release noisy directions, charging `ledger` first; with `names`, noise by name (see `PHashing`)."""
        u = self.query(X)
        what = f"{len(u)} noisy directions in {u.shape[1]} dimensions"
        door = Door(self.guarantee_, what=what, ledger=ledger, random_state=self.random_state)
        return (
            door.release(CODE, u)
            if names is None
            else door.release_each(CODE, u, names, about=saving.fingerprint(self))
        ).astype(np.float32)

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

    def _calibrate(self, source: Source) -> None:
        self.learned_from_ = source
        self.mechanism_ = PrivUnit(epsilon=self.epsilon, dimensions=self.axes_.shape[1], unit="record")
        self.guarantee_ = Guarantee(
            releases=(Planned(what=CODE, mechanism=self.mechanism_),),
            unproven=() if source == "public" else (LEARNED,),
            model="local",
            assumptions=(PUBLIC if source == "public" else LEARNED, ONCE),
            entropy=source_of(self.random_state).name,
        )

    def _project(self, X: Array) -> Array:
        return unit_rows((unit_rows(X) - self.mean_) @ self.axes_)
