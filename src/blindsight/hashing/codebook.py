"""The codebook hasher: one question asked well instead of many asked badly.

A flipped code spends a record's epsilon on c independent bits, and at epsilon 8 over 32 bits each bit is nearly a
coin. Here an image is put into one of k cells and only the cell is released, by k-ary response or subset selection;
whoever searches ranks by the expected similarity of the query to the true cell, given what was released.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from blindsight.core import checks, codes, decoding
from blindsight.core.errors import InvalidParameter
from blindsight.hashing import saving
from blindsight.hashing.cells import Cells, Embedding, learn_cells, learn_embedding
from blindsight.hashing.choosing import cells_by_rule, cells_by_trial
from blindsight.hashing.labels import as_indicator
from blindsight.hashing.private_moments import NoiseBudget
from blindsight.privacy import Cost, Guarantee
from blindsight.privacy.entropy import RandomState, release_rng, training_rng
from blindsight.privacy.mechanisms import SubsetSelection

__all__ = ["CodebookHasher"]

Array = NDArray[Any]
Source = Literal["public", "private"]


class CodebookHasher(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Release one of k cells per image; search by expected similarity.

    `transform` releases packed codes of k bits: the members of the released subset (one, for k-ary response).
    `scores` ranks them for queries, whose features stay with whoever searches.

    Parameters
    ----------
    epsilon, delta: the budget per record; delta only where cells are learned from private images.
    n_cells: k, or "auto": by a rehearsal on public images, by a fixed rule on private ones.
    mechanism: "subset" (the best subset size for the budget) or "k-ary" (subsets of one).
    supervised: whether cells are made of label probabilities; `fit` then needs labels.
    learned_from: "public" if `fit` sees images that need no protection, "private" if it sees the protected ones.
        `fit_transform` always counts as private.
    learning_share: the share of epsilon spent on learning from private images.
    n_components: principal components kept; by default 64, 128 supervised;
        16 where they are learned with noise.

    Guarantee
    ---------
    Pure epsilon per record in the local model with public cells; (epsilon, delta) per record, central, with private
    ones: noisy moments compose with the released cell. Exact sampler for the cells.
    """

    guarantee_: Guarantee
    n_features_in_: int

    def __init__(
        self,
        *,
        epsilon: float = 8.0,
        delta: float = 1e-5,
        n_cells: int | Literal["auto"] = "auto",
        mechanism: Literal["subset", "k-ary"] = "subset",
        supervised: bool = False,
        learned_from: Source = "public",
        learning_share: float = 0.25,
        n_components: int | None = None,
        random_state: RandomState = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.n_cells = n_cells
        self.mechanism = mechanism
        self.supervised = supervised
        self.learned_from = learned_from
        self.learning_share = learning_share
        self.n_components = n_components
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, ledger: Any = None) -> Self:
        """Learn the cells, charging `ledger` first for what learning from private images costs."""
        return self._fit(X, y, self.learned_from, ledger)

    def fit_transform(self, X: Any, y: Any = None, *, ledger: Any = None) -> NDArray[np.uint8]:
        """Learn cells from these very images, with noise, and release their cells."""
        return self._fit(X, y, "private", ledger).transform(X, ledger=ledger)

    def transform(self, X: Any, *, ledger: Any = None) -> NDArray[np.uint8]:
        """Release each image's cell as a packed subset of the k cells, charging `ledger` first."""
        cells = self.assign(X)
        if ledger is not None:
            ledger.charge(self.mechanism_.cost, what=f"cells of {len(cells)} images, {self.n_cells_} cells")
        rng, _ = release_rng(self.random_state)
        return codes.pack(self.mechanism_.release(cells, rng=rng))

    def assign(self, X: Any) -> NDArray[np.int64]:
        """The true cells, without noise: keep them to yourself."""
        return self.cells_.assign(self._points(X))

    def similarity(self, X: Any) -> NDArray[np.float32]:
        """Similarity (m, k) of queries to each cell; supervised, the chance to share a label with it."""
        return self.embedding_.similarity(self._points(X), self.cells_.centres)

    def posterior(self, released: ArrayLike) -> NDArray[np.float32]:
        """The probability (n, k) of each true cell, given released codes."""
        check_is_fitted(self)
        members = codes.unpack(released, self.n_cells_).astype(bool)
        return decoding.cell_posterior(members, self.mechanism_.epsilon, self.cells_.weights)

    def scores(self, X: Any, released: ArrayLike) -> NDArray[np.float32]:
        """Expected similarity (m, n) of queries to stored images; supervised, the probability of a match."""
        return self.similarity(X) @ self.posterior(released).T

    def save(self, path: str | Path) -> None:
        """Write cells, embedding and guarantee to one file without pickle."""
        check_is_fitted(self)
        saving.save(path, self)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read it back; anything else is refused."""
        return saving.load(path, cls)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Learned arrays and JSON-able fields; `restore` reads them back."""
        e = self.embedding_
        arrays = {
            "lift": e.lift,
            "mean": e.mean,
            "axes": e.axes,
            "coefficients": e.coefficients,
            "intercept": e.intercept,
        }
        arrays |= {"centres": self.cells_.centres, "weights": self.cells_.weights}
        fields = {"link": e.link, "from": self.learned_from_, "guarantee": self.guarantee_.to_json()}
        return arrays, fields | {"n_features_in_": int(self.n_features_in_)}

    def restore(self, arrays: dict[str, Array], fields: dict[str, Any]) -> None:
        """Take the learned state from what `state` gave."""
        self._check()
        holder = _Holder()
        saving.take(holder, arrays, ("lift", "mean", "axes", "coefficients", "intercept", "centres", "weights"))
        link = checks.one_of("link", fields["link"], ("direction", "softmax", "sigmoid"))
        self.embedding_ = Embedding(holder.lift, holder.mean, holder.axes, holder.coefficients, holder.intercept, link)
        self.cells_ = Cells(holder.centres, holder.weights)
        saving.require(
            holder.weights.shape == (len(holder.centres),) and bool((holder.weights > 0).all()),
            "its weights do not fit",
        )
        self.n_features_in_ = checks.whole("n_features_in_", fields["n_features_in_"])
        self._calibrate(checks.one_of("from", fields["from"], ("public", "private")), len(holder.centres))
        saved = Guarantee.from_json(fields["guarantee"])
        stated = dataclasses.replace(saved, audited=None, simulation=self.guarantee_.simulation)
        saving.require(stated == self.guarantee_, "its guarantee is not that of its parameters")
        self.guarantee_ = saved
        self.similarity(np.zeros((1, self.n_features_in_)))  # shapes that do not fit show here

    @property
    def _n_features_out(self) -> int:
        return codes.n_bytes(self.n_cells_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.target_tags.required = bool(self.supervised)
        tags.target_tags.multi_output = bool(self.supervised)
        tags.transformer_tags.preserves_dtype = []
        return tags

    def _check(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.one_of("mechanism", self.mechanism, ("subset", "k-ary"))
        checks.one_of("learned_from", self.learned_from, ("public", "private"))
        if self.n_cells != "auto":
            checks.whole("n_cells", self.n_cells, least=2)
        if self.n_components is not None:
            checks.whole("n_components", self.n_components)
        if not 0 < checks.number("learning_share", self.learning_share) < 1:
            raise InvalidParameter(f"learning_share must lie strictly between 0 and 1, got {self.learning_share!r}.")

    def _fit(self, X: Any, y: Any, source: Source, ledger: Any) -> Self:
        self._check()
        labels = None
        if self.supervised:
            X, y = validate_data(self, X, y, dtype=(np.float64, np.float32), multi_output=True, ensure_min_samples=2)
            labels = as_indicator(y)
        else:
            X = validate_data(self, X, dtype=(np.float64, np.float32), ensure_min_samples=2)
        rng, _ = training_rng(self.random_state)
        cost = self._learning_cost(source)
        if ledger is not None and cost is not None:
            ledger.charge(cost, what="cells of a codebook")
        budget = NoiseBudget(cost)
        embedding = learn_embedding(X, labels, self._components(source), budget, rng)
        points = embedding(X)
        k = self._choose(embedding, points, labels, source, rng)
        self.embedding_ = embedding
        self.cells_ = learn_cells(points, k, embedding.link, budget, rng)
        self._calibrate(source, k)
        return self

    def _components(self, source: Source) -> int:
        if self.n_components is not None:
            return self.n_components
        return {"public": (64, 128), "private": (16, 16)}[source][bool(self.supervised)]

    def _choose(
        self, embedding: Embedding, points: Array, labels: Array | None, source: Source, rng: np.random.Generator
    ) -> int:
        if self.n_cells != "auto":
            if self.n_cells > len(points):
                raise InvalidParameter(f"n_cells must be at most the number of images, {len(points)}.")
            return self.n_cells
        if source == "private":  # a trial would cost privacy: a rule looks at nothing
            return min(cells_by_rule(self._code_epsilon(source)), max(2, len(points) // 2))
        return cells_by_trial(embedding, points, labels, self._code_epsilon(source), rng)

    def _code_epsilon(self, source: Source) -> float:
        return self.epsilon * (1 - self.learning_share) if source == "private" else self.epsilon

    def _learning_cost(self, source: Source) -> Cost | None:
        if source == "public":
            return None
        return Cost(epsilon=self.epsilon * self.learning_share, delta=self.delta, unit="record")

    def _points(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        return self.embedding_(validate_data(self, X, dtype=(np.float64, np.float32), reset=False))

    def _calibrate(self, source: Source, k: int) -> None:
        self.learned_from_ = source
        self.n_cells_ = k
        size = 1 if self.mechanism == "k-ary" else None
        self.mechanism_ = SubsetSelection(epsilon=self._code_epsilon(source), k=k, size=size, unit="record")
        learning = self._learning_cost(source)
        release = self.mechanism_.cost if learning is None else self.mechanism_.cost + learning
        once = "an image's cell is released once; each further release adds to the cost"
        first = "the cells were learned from public images" if learning is None else "the number of images is public"
        self.guarantee_ = Guarantee(
            mechanism=f"one of {k} cells by subset selection, {self.mechanism_.size} of {k} released",
            unit="record",
            epsilon=release.epsilon,
            delta=release.delta,
            model="local" if learning is None else "central",
            accountant="pure epsilon" if learning is None else "Gaussian composition for the cells, plus pure epsilon",
            assumptions=(first, once),
            sampler="exact" if learning is None else "float",
            simulation=self.random_state is not None,
        )


class _Holder:
    """A place for arrays read from a file."""

    lift: Array
    mean: Array
    axes: Array
    coefficients: Array
    intercept: Array
    centres: Array
    weights: Array
