"""The codebook hasher: one question asked well instead of many asked badly.

A flipped code spends a record's epsilon on c independent bits, and at epsilon 8 over 32 bits each bit is nearly a
coin. Here an image is put into one of k cells and only the cell is released, by k-ary response or subset selection;
whoever searches ranks by the expected similarity of the query to the true cell, given what was released.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from blindsight.core import checks, codes, decoding
from blindsight.core.errors import InvalidParameter
from blindsight.hashing import moments, saving
from blindsight.hashing.cells import Cells, Embedding, Link, learn_cells, learn_embedding, learning_shares
from blindsight.hashing.choosing import cells_by_rule, cells_by_trial
from blindsight.hashing.labels import as_indicator
from blindsight.hashing.moments import NoNoise, Sums
from blindsight.hashing.promise import CODE, ONCE, PUBLIC, PUBLIC_NUMBER, Source
from blindsight.privacy import Assumption, Door, Guarantee, Planned
from blindsight.privacy.entropy import RandomState, source_of, training_rng
from blindsight.privacy.mechanisms import SubsetSelection

if TYPE_CHECKING:
    from blindsight.privacy import Ledger

__all__ = ["CodebookHasher"]

Array = NDArray[Any]
_LABEL_SPACE = Assumption(
    "private label space",
    "the classes were taken from the private labels, so that their number tells of single records: pass classes=",
)


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
    learned_from: "public" if `fit` sees images that need no protection, "private" (the default) if it sees the
        protected ones.
    classes: the public label space, for labels (n,) of private images; taken from the labels themselves it would tell
        of single records, and nothing would be proven.
    learning_share: the share of epsilon spent on learning from private images.
    n_components: principal components kept; by default 64, 128 supervised;
        16 where they are learned with noise.

    Guarantee
    ---------
    Pure epsilon per record in the local model with public cells; (epsilon, delta) per record, central, with private
    ones: noisy moments compose with the released cell. Exact samplers throughout.
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
        learned_from: Source = "private",
        classes: Sequence[Any] | None = None,
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
        self.classes = classes
        self.learning_share = learning_share
        self.n_components = n_components
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, ledger: Ledger | None = None) -> Self:
        """Learn the cells, charging `ledger` first for what learning from private images costs."""
        self._check()
        labels, link = None, None
        if self.supervised:
            X, y = validate_data(self, X, y, dtype=(np.float64, np.float32), multi_output=True, ensure_min_samples=2)
            labels = as_indicator(y, self.classes)
            link = self._link(np.asarray(y), labels)
        else:
            X = validate_data(self, X, dtype=(np.float64, np.float32), ensure_min_samples=2)
        n_classes = 0 if labels is None else labels.shape[1]
        seeded = source_of(self.random_state).name == "seed"
        rng, _ = training_rng(self.random_state if seeded else None)
        door: Sums = NoNoise()
        k = 0
        if self.learned_from == "private":
            k = self._private_cells(len(X))
            learning = self._learning(k, n_classes)
            door = Door(learning, what="cells of a codebook", ledger=ledger, random_state=self.random_state)
        embedding = learn_embedding(X, labels, self._components(), door, rng, link=link or "direction")
        points = embedding(X)
        k = k or self._public_cells(embedding, points, labels, rng)
        self.embedding_ = embedding
        self.cells_ = learn_cells(points, k, embedding.link, door, rng)
        self._calibrate(self.learned_from, k, n_classes)
        return self

    def fit_transform(self, X: Any, y: Any = None, *, ledger: Ledger | None = None) -> NDArray[np.uint8]:
        """Learn cells from these very images and release their cells."""
        return self.fit(X, y, ledger=ledger).transform(X, ledger=ledger)

    def transform(
        self, X: Any, *, ledger: Ledger | None = None, names: Sequence[str] | None = None
    ) -> NDArray[np.uint8]:
        """Release each image's cell as a packed subset of the k cells, charging `ledger` first.

        With `names`, a record's noise depends on its name and the source alone: a vault's key, or a seed.
        """
        cells = self.assign(X)
        what = f"cells of {len(cells)} images, {self.n_cells_} cells"
        door = Door(self._codes(self.n_cells_), what=what, ledger=ledger, random_state=self.random_state)
        return codes.pack(
            door.release(CODE, cells)
            if names is None
            else door.release_each(CODE, cells, names, about=saving.fingerprint(self))
        )

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
        public = {"n_features_in_": int(self.n_features_in_), "n_classes": int(self.n_classes_)}
        return arrays, fields | public

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
        source: Source = checks.one_of("from", fields["from"], ("public", "private"))
        n_classes = checks.whole("n_classes", fields["n_classes"], least=0)
        saving.require(link == "direction" or n_classes == holder.coefficients.shape[1], "its classes do not fit")
        self._calibrate(source, len(holder.centres), n_classes)
        saved, due = Guarantee.from_json(fields["guarantee"]), self.guarantee_
        stated = dataclasses.replace(saved, audited=None, entropy=due.entropy, simulation=due.simulation)
        saving.require(stated == due, "its guarantee is not that of its parameters")
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

    def _link(self, y: Array, labels: Array) -> Link:
        """One label per image or several: from the labels' shape where they are private, never from their values."""
        if self.learned_from == "private":
            return "softmax" if y.ndim == 1 else "sigmoid"
        return "softmax" if (labels.sum(axis=1) == 1).all() else "sigmoid"

    def _components(self) -> int:
        if self.n_components is not None:
            return self.n_components
        return {"public": (64, 128), "private": (16, 16)}[self.learned_from][bool(self.supervised)]

    def _private_cells(self, n: int) -> int:
        """A trial would cost privacy: a rule looks at nothing but the number of images, which is public."""
        if self.n_cells != "auto":
            return self._few_enough(self.n_cells, n)
        return min(cells_by_rule(self._code_epsilon("private")), max(2, n // 2))

    def _public_cells(self, embedding: Embedding, points: Array, labels: Array | None, rng: np.random.Generator) -> int:
        if self.n_cells != "auto":
            return self._few_enough(self.n_cells, len(points))
        return cells_by_trial(embedding, points, labels, self._code_epsilon("public"), rng)

    @staticmethod
    def _few_enough(k: int, n: int) -> int:
        if k > n:
            raise InvalidParameter(f"n_cells must be at most the number of images, {n}.")
        return k

    def _code_epsilon(self, source: Source) -> float:
        return self.epsilon * (1 - self.learning_share) if source == "private" else self.epsilon

    def _points(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        return self.embedding_(validate_data(self, X, dtype=(np.float64, np.float32), reset=False))

    def _calibrate(self, source: Source, k: int, n_classes: int) -> None:
        self.learned_from_, self.n_cells_, self.n_classes_ = source, k, n_classes
        self.mechanism_ = self._mechanism(source, k)
        self.guarantee_ = self._codes(k)
        if source == "private":
            self.guarantee_ = self._learning(k, n_classes, codes=self.guarantee_)

    def _mechanism(self, source: Source, k: int) -> SubsetSelection:
        size = 1 if self.mechanism == "k-ary" else None
        return SubsetSelection(epsilon=self._code_epsilon(source), k=k, size=size, unit="record")

    def _codes(self, k: int) -> Guarantee:
        return Guarantee(
            releases=(Planned(what=CODE, mechanism=self._mechanism(self.learned_from_, k)),),
            model="local",
            assumptions=(PUBLIC if self.learned_from_ == "public" else PUBLIC_NUMBER, ONCE),
            entropy=source_of(self.random_state).name,
        )

    def _learning(self, k: int, n_classes: int, *, codes: Guarantee | None = None) -> Guarantee:
        """What learning from private images promises; with `codes`, the whole."""
        shares = learning_shares(self.n_features_in_, n_components=self._components(), k=k, classes=n_classes)
        plan = moments.plan_for(shares, epsilon=self.epsilon * self.learning_share, delta=self.delta)
        hidden = self.supervised and self.classes is None
        return Guarantee(
            releases=plan if codes is None else (*plan, *codes.releases),
            unproven=(_LABEL_SPACE,) if hidden else (),
            delta=self.delta,
            model="central",
            assumptions=(PUBLIC_NUMBER, ONCE, *((_LABEL_SPACE,) if hidden else ())),
            entropy=source_of(self.random_state).name,
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
