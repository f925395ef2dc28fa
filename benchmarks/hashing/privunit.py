"""Directions instead of bits: principal components of features, released by PrivUnit (Bhowmick et
al. 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted, validate_data

from blindsight.core import checks
from blindsight.hashing.base import require
from blindsight.hashing.guarantee import CODE, LEARNED, ONCE, PUBLIC, ReleasesCodes, Source, fact
from blindsight.hashing.plain import principal_axes, second_moment, unit_rows
from blindsight.privacy import Guarantee, Planned
from blindsight.privacy.door import finite_rows
from blindsight.privacy.entropy import RandomState
from blindsight.privacy.mechanisms import PrivUnit

if TYPE_CHECKING:
    from blindsight.privacy import Ledger

__all__ = ["PrivUnitHasher"]

Array = NDArray[Any]


class PrivUnitHasher(ReleasesCodes):
    """Principal components of features to a unit vector, released by PrivUnit; search by inner
    product.

    `transform` gives float32 vectors (n, n_components), not bits. `n_components="auto"` takes 4 +
    epsilon/4, up to 48: more coordinates describe an image better and are told less truly.

    Guarantee:
        `epsilon` per record, pure, local, given that `fit` saw public images
        (`learned_from="public"`); none otherwise.
    """

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

    def promise(self, **public: Any) -> Guarantee:
        """What a direction in `n_components` dimensions promises."""
        noise = PrivUnit(
            epsilon=self.epsilon, dimensions=fact(public, "n_components"), unit="record"
        )
        proven = checks.one_of("learned_from", self.learned_from, ("public", "private")) == "public"
        return Guarantee(
            releases=(Planned(what=CODE, mechanism=noise),),
            unproven=() if proven else (LEARNED,),
            model="local",
            assumptions=(PUBLIC if proven else LEARNED, ONCE),
            entropy=self.entropy_,
        )

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the mean and the principal components."""
        checks.positive("epsilon", self.epsilon)
        X = X if self.learned_from == "public" else finite_rows(X)
        X = validate_data(self, X, dtype=(np.float64, np.float32), ensure_min_samples=2)
        wanted = (
            min(48, round(4 + self.epsilon / 4))
            if self.n_components == "auto"
            else self.n_components
        )
        Z = unit_rows(X)
        mean = Z.mean(axis=0)
        axes = principal_axes(
            second_moment(Z, mean), min(checks.whole("n_components", wanted), X.shape[1])
        )
        # One feature has no direction to speak of: a second, empty axis keeps the sphere a sphere.
        axes = np.pad(axes, ((0, 0), (0, max(0, 2 - axes.shape[1]))))
        self.public_, self.released_ = {"n_components": axes.shape[1]}, {}
        self.guarantee_ = self.promise(**self.public_)
        part = self.public_ if self.learned_from == "public" else self.released_
        part |= {"mean": mean, "axes": axes}
        return self._settle_in()

    def fit_transform(
        self, X: Any, y: Any = None, *, ledger: Ledger | None = None
    ) -> NDArray[np.float32]:
        """Learn, and release the vectors of the same images."""
        return self.fit(X, y).transform(X, ledger=ledger)

    def transform(
        self, X: Any, *, ledger: Ledger | None = None, names: Sequence[str] | None = None
    ) -> NDArray[np.float32]:
        """Release noisy directions, charging `ledger` first; with `names`, noise by name (see
        `PHashing`).
        """
        u = self.query(finite_rows(X))
        what = f"{len(u)} noisy directions in {u.shape[1]} dimensions"
        sent = self._send(u, what=what, ledger=ledger, names=names, promised=self.guarantee_)
        return sent.astype(np.float32)

    def query(self, X: Any) -> NDArray[np.float64]:
        """The plain directions of queries: keep them to yourself."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=(np.float64, np.float32), reset=False)
        return unit_rows((unit_rows(rows) - self.mean_) @ self.axes_)

    def scores(self, X: Any, released: Any) -> NDArray[np.float32]:
        """Debiased inner products (m, n) of queries with released directions."""
        query = (self.query(X) / self.mechanism_.inner_product).astype(np.float32)
        return np.asarray(query @ np.asarray(released, dtype=np.float32).T)

    @property
    def _n_features_out(self) -> int:
        return int(self.axes_.shape[1])

    def _settle(self) -> None:
        part = self.public_ if self.learned_from == "public" else self.released_
        self.mean_, self.axes_ = (
            np.asarray(part[name], dtype=np.float64) for name in ("mean", "axes")
        )
        require(
            self.axes_.shape == (len(self.mean_), self.public_["n_components"]),
            "its axes do not fit",
        )
        self.n_features_in_ = len(self.mean_)
        self.mechanism_ = PrivUnit(
            epsilon=self.epsilon, dimensions=self.axes_.shape[1], unit="record"
        )
