"""The codebook hasher: release one of k cells per image instead of many flipped bits.

Flipping spends a record's epsilon on c independent bits, and at epsilon 8 over 32 bits each
released bit is nearly a fair coin. Here an image is assigned to one of k cells
(`blindsight.codebooks`) and only the cell is released, by k-ary response or subset selection. The
receiver ranks images by the posterior of the true cell given the released one.

Cells are learned from public images, or from the protected images through noisy sums over unit
rows. Principal components of d features meet noise of size sqrt(d) against eigenvalues of size n,
so private features are first projected at random, at no privacy cost, to a dimension that is low
enough for the components to exceed the noise. Cells are learned within the leading components and
stored as directions of the projected space.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted, validate_data

from blindsight.codebooks import Codebook, Reading, number_of_cells
from blindsight.codebooks.build import MOST_CELLS, from_labels, from_pictures
from blindsight.codebooks.cells import ClassCells, Embedding, GroupCells
from blindsight.core import checks, codes
from blindsight.core.arrays import Array, Bytes, Floats, Floats32, Ints
from blindsight.core.errors import InvalidData, InvalidParameter, TooFewRecords
from blindsight.hashing.base import as_indicator, require
from blindsight.hashing.guarantee import (
    CODE,
    ONCE,
    PUBLIC,
    PUBLIC_NUMBER,
    ReleasesCodes,
    Share,
    Source,
    Sums,
    fact,
    plan_for,
    private_cross_moment,
    private_mean,
    private_second_moment,
)
from blindsight.hashing.plain import principal_axes, random_rotation, unit_rows
from blindsight.privacy import Assumption, Door, Guarantee, Planned
from blindsight.privacy.door import Outer, clip_norm, finite_rows
from blindsight.privacy.entropy import RandomState, training_rng
from blindsight.privacy.mechanisms import DiscreteGaussian, SubsetSelection

if TYPE_CHECKING:
    from blindsight.privacy import Ledger

__all__ = ["CodebookHasher", "learn_classes", "learn_groups", "learning_shares"]


_DIMENSIONS = 128  # of the random projection of the features
_COMPONENTS = 16  # principal components of the projection in which cells are learned
_STEPS = 4  # of Lloyd's algorithm; each step spends budget
# Factor from least-squares scores of one-hot labels to those of a logistic classifier.
_SHARPNESS = 10.0


def learning_shares(d: int, *, k: int, classes: int) -> tuple[Share, ...]:
    """Divide the learning budget among what is learned; `classes` is 0 without labels."""
    lifted = min(d, _DIMENSIONS)
    components = min(_COMPONENTS, lifted)
    space = (
        Share("mean", 0.1, 2.0, lifted),
        Share("second moment", 0.3, math.sqrt(2), lifted * (lifted + 1) // 2),
    )
    if not classes:
        sums = Share("cell sums", 0.5, 2.0, k * components, _STEPS)
        return (*space, sums, Share("cell counts", 0.1, math.sqrt(2), k))
    width = components + 1
    directions = Share("directions' moment", 0.3, math.sqrt(2), width * (width + 1) // 2)
    return (*space, directions, Share("labels' moment", 0.3, 2.0, width * classes))


def learn_groups(
    X: Array, k: int, door: Sums, rng: np.random.Generator
) -> tuple[Embedding, GroupCells, Floats]:
    """Learn k directions by Lloyd's algorithm on the sphere, and the share of images in each."""
    embedding, G, axes = _space(X, door, rng)
    # The initial directions are independent of the images.
    centres = unit_rows(rng.standard_normal((k, G.shape[1])))
    for _ in range(_STEPS):
        centres = unit_rows(door.total("cell sums", Outer(_members(G, centres), G)))
    counts = np.maximum(door.release("cell counts", _members(G, centres).sum(axis=0)), 1)
    cells = GroupCells((centres @ axes.T).astype(np.float32), np.arange(k))
    return embedding, cells, counts / counts.sum()


def learn_classes(
    X: Array, labels: Array, door: Sums, rng: np.random.Generator
) -> tuple[Embedding, ClassCells, Floats]:
    """Learn a least-squares classifier from noisy moments, and the share of each class.

    Each row of `labels` (n, C) has at most one 1.
    """
    embedding, G, axes = _space(X, door, rng)
    # The constant column is scaled so that a row (g, 1)/sqrt(2) has norm 1.
    H = np.concatenate([G, np.ones((len(G), 1))], axis=1) / math.sqrt(2)
    second = private_second_moment(H, door, what="directions' moment")
    cross = private_cross_moment(H, clip_norm(labels, 1.0), door, what="labels' moment")
    # Noise may make the moment indefinite: the ridge makes up for its most negative eigenvalue.
    low = float(np.linalg.eigvalsh(second)[0])
    ridge = 1e-2 * len(G) / len(second) + 2 * max(0.0, -low)
    W = _SHARPNESS * np.linalg.solve(second + ridge * np.eye(len(second)), cross) / math.sqrt(2)
    cells = ClassCells((axes @ W[:-1]).T.astype(np.float32), W[-1].astype(np.float32))
    counts = np.maximum(cross[-1], 1)  # the constant column counts the classes, up to its scale
    return embedding, cells, counts / counts.sum()


def _space(X: Array, door: Sums, rng: np.random.Generator) -> tuple[Embedding, Floats, Floats]:
    """Learn the embedding of X in m dimensions and its p leading components.

    Returns:
        The embedding, the coordinates (n, p) of the rows in these components, clipped to the unit
        ball, and the components (m, p).
    """
    d = X.shape[1]
    lift = random_rotation(d, _DIMENSIONS, rng) if d > _DIMENSIONS else np.eye(d)
    axes = lift.astype(np.float32)
    around = private_mean(Embedding(axes, np.zeros(axes.shape[1], np.float32))(X), door)
    embedding = Embedding(axes, around.astype(np.float32))
    points = clip_norm(embedding(X), 1.0)
    leading = principal_axes(private_second_moment(points, door), min(_COMPONENTS, axes.shape[1]))
    return embedding, clip_norm(points @ leading, 1.0), leading


def _members(G: Floats, centres: Floats) -> Floats:
    member = np.zeros((len(G), len(centres)))
    member[np.arange(len(G)), (G @ centres.T).argmax(axis=1)] = 1
    return member


_LABEL_SPACE = Assumption(
    "private label space",
    "the classes were taken from the private labels, so that their number tells of single records: "
    "pass classes=",
)
# Most public images from which cells are learned: Ward's clustering of more is slow and gains
# little.
_MOST_IMAGES, _MOST_LABELLED = 2000, 10_000
# Most cells that are learned from private images: sums over a cell's images must exceed the noise.
_MOST_NOISY = 96


class CodebookHasher(ReleasesCodes):
    """Release one of k cells per image, and rank images by the posterior of their true cells.

    `transform` releases packed codes of k bits: the released cell, or the members of a subset.
    `scores` ranks them for queries, whose features stay with the person who searches.

    Parameters:
        epsilon: the budget per record, for learning and releasing together.
        delta: used only if cells are learned from private images.
        n_cells: the number k of cells, or "auto" to derive it from the budget and the number of
            images. With one label per image the classes are the cells; leave it out.
        mechanism: "k-ary" (one cell is released) or "subset" (a set of cells that contains the
            true one with the most informative probability for this epsilon).
        supervised: whether cells are classes; `fit` then needs labels. With several labels per
            image, which must be public, cells are groups of label sets.
        learned_from: "public" if `fit` sees images that need no protection, "private" (the
            default, which is safe) if it sees the protected images. Learning from private images
            needs thousands of them; with fewer, `fit` warns (`TooFewRecords`).
        classes: the public label space, for labels (n,) of private images. Without it the number
            of classes depends on single records, and nothing is proven.
        learning_share: the share of epsilon spent on learning from private images.
        random_state: None for the operating system's entropy; a seed makes a simulation.

    Guarantee:
        Pure epsilon per record in the local model with public cells; (epsilon, delta) per record
        in the central model with private cells, where noisy moments compose with the released
        cell. All samplers are exact.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> public, private = rng.normal(size=(200, 8)), rng.normal(size=(5, 8))
        >>> hasher = CodebookHasher(epsilon=4.0, learned_from="public", random_state=0).fit(public)
        >>> released = hasher.transform(private)
        >>> len(released), hasher.guarantee_.epsilon, hasher.scores(private[:1], released).shape
        (5, 4.0, (1, 5))
    """

    n_features_in_: int

    def __init__(
        self,
        *,
        epsilon: float = 8.0,
        delta: float = 1e-5,
        n_cells: int | Literal["auto"] = "auto",
        mechanism: Literal["k-ary", "subset"] = "k-ary",
        supervised: bool = False,
        learned_from: Source = "private",
        classes: Sequence[Any] | None = None,
        learning_share: float = 0.25,
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
        self.random_state = random_state

    def promise(self, **public: object) -> Guarantee:
        """Return the guarantee, given the public number `n_cells`.

        If the cells are learned from private images, it includes the cost of learning and needs
        `n_features` too, and with labels `named_classes`: whether the label space is public.
        """
        self._check()
        k = fact(public, "n_cells")
        released = self._codes(k)
        if self.learned_from == "public":
            return released
        named = bool(public.get("named_classes", True))
        return self._learning(fact(public, "n_features"), k, named, codes=released)

    def fit(
        self, X: ArrayLike, y: ArrayLike | None = None, *, ledger: Ledger | None = None
    ) -> Self:
        """Learn the cells, charging `ledger` first for what learning from private images costs."""
        self._check()
        labels = None
        rows = finite_rows(X) if self.learned_from == "private" else X
        if self.supervised:
            rows, targets = self._with_labels(rows, y)
            labels = as_indicator(targets, self.classes)
            self._check_labels(np.asarray(targets))
        else:
            rows = validate_data(self, rows, dtype=(np.float64, np.float32), ensure_min_samples=2)
        rng, _ = training_rng(self.random_state if self.entropy_ == "seed" else None)
        self.public_ = {"n_features": np.shape(rows)[1], "named_classes": self.classes is not None}
        self.released_ = {}
        learn = self._learn_public if self.learned_from == "public" else self._learn_private
        book, weights = learn(np.asarray(rows), labels, rng, ledger)
        self.public_["n_cells"] = book.k
        arrays, fields = book.to_parts()
        part = self.public_ if self.learned_from == "public" else self.released_
        part |= {"codebook": fields, **arrays, "weights": weights}
        self.guarantee_ = self.promise(**self.public_)
        return self._settle_in()

    def fit_transform(
        self, X: ArrayLike, y: ArrayLike | None = None, *, ledger: Ledger | None = None
    ) -> Bytes:
        """Learn cells from the images and release the cell of each."""
        return self.fit(X, y, ledger=ledger).transform(X, ledger=ledger)

    def transform(
        self, X: ArrayLike, *, ledger: Ledger | None = None, names: Sequence[str] | None = None
    ) -> Bytes:
        """Release each image's cell as a packed subset of the k cells, charging `ledger` first.

        With `names`, a record's noise depends only on its name and on `random_state`, which is then
        a vault's source or a seed.
        """
        cells = self.assign(finite_rows(X))
        what = f"cells of {len(cells)} images, {self.n_cells_} cells"
        promised = self._codes(self.n_cells_)
        return codes.pack(
            self._send(cells, what=what, ledger=ledger, names=names, promised=promised)
        )

    def assign(self, X: ArrayLike) -> Ints:
        """Return the true cell of each row, without noise. It must stay private."""
        return self.codebook_.assign(self._rows(X))

    def similarity(self, X: ArrayLike) -> Floats32:
        """Return how likely (m, k) an image of each cell is relevant to each query.

        With supervised cells this is the probability that they share a label.
        """
        return self._reading.relevance(self.codebook_.similarity(self._rows(X))).astype(np.float32)

    def posterior(self, released: ArrayLike) -> Floats32:
        """Return the posterior probability (n, k) of each true cell, given released codes."""
        check_is_fitted(self)
        members = codes.unpack(released, self.n_cells_).astype(bool)
        return codes.cell_posterior(members, self.mechanism_.epsilon, self.weights_)

    def scores(self, X: ArrayLike, released: ArrayLike) -> Floats32:
        """Return how likely (m, n) each stored image is relevant to each query.

        With supervised cells this is the probability of a match.
        """
        return np.asarray(self.similarity(X) @ self.posterior(released).T)

    @property
    def _n_features_out(self) -> int:
        return codes.n_bytes(self.n_cells_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = bool(self.supervised)
        tags.target_tags.multi_output = bool(self.supervised)
        return tags

    def _check(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.one_of("mechanism", self.mechanism, ("subset", "k-ary"))
        checks.one_of("learned_from", self.learned_from, ("public", "private"))
        if self.n_cells != "auto":
            checks.whole("n_cells", self.n_cells, least=2)
        if not 0 < checks.number("learning_share", self.learning_share) < 1:
            raise InvalidParameter(
                f"learning_share must lie strictly between 0 and 1, got {self.learning_share!r}."
            )

    def _check_labels(self, y: Array) -> None:
        """Check the labels by their shape only, never by private values."""
        several = y.ndim == 2 and y.shape[1] > 1
        if self.n_cells != "auto" and not several:
            raise InvalidParameter(
                "n_cells is the number of classes where there is one label per image: leave it out."
            )
        if several and self.learned_from == "private":
            raise InvalidParameter(
                "several labels per image: cells are learned from public images only."
            )

    def _learn_public(
        self, X: Array, labels: Array | None, rng: np.random.Generator, ledger: Ledger | None
    ) -> tuple[Codebook, Array]:
        order = rng.permutation(len(X))
        some = np.sort(order[:_MOST_IMAGES])
        if labels is not None:
            wanted = None if self.n_cells == "auto" else self.n_cells
            learn = np.sort(order[:_MOST_LABELLED])
            book = from_labels(X[learn], labels[learn], self.epsilon, n_cells=wanted)
        else:
            book = from_pictures(
                X[some], self.epsilon, network=None, n_cells=self._how_many(len(some)), least=2
            )
        counts = np.bincount(book.assign(X), minlength=book.k) + 0.5
        return book, counts / counts.sum()

    def _learn_private(
        self, X: Array, labels: Array | None, rng: np.random.Generator, ledger: Ledger | None
    ) -> tuple[Codebook, Array]:
        k = self._how_many(len(X)) if labels is None else labels.shape[1]
        learning = self._learning(X.shape[1], k, self.classes is not None)
        self._warn_of_few(len(X), learning)
        door = Door(
            learning, what="cells of a codebook", ledger=ledger, random_state=self.random_state
        )
        learned: Any = (
            learn_groups(X, k, door, rng) if labels is None else learn_classes(X, labels, door, rng)
        )
        embedding, cells, weights = learned
        # With classes, relevance is proportional to P(class | query), a slope of 1; for cells
        # without classes the codebook chooses the slope.
        slope = None if labels is None else 1.0
        return Codebook(embedding, cells, self._code_epsilon, "protected images", slope), weights

    def _warn_of_few(self, n: int, learning: Guarantee) -> None:
        """Warn, by public numbers only, if noise hides the components that cells are made of."""
        mechanism = next(
            item.mechanism for item in learning.releases if item.what == "second moment"
        )
        if not isinstance(mechanism, DiscreteGaussian):
            raise AssertionError("moments are released with Gaussian noise on a grid")
        width = (math.isqrt(1 + 8 * mechanism.dimensions) - 1) // 2
        # The largest eigenvalue of symmetric noise (width, width) is about 2 sigma sqrt(width), and
        # unit rows give each of `_COMPONENTS` equal components n / _COMPONENTS.
        needed = math.ceil(2 * mechanism.sigma * math.sqrt(width) * _COMPONENTS)
        if n < needed:
            warnings.warn(
                f"cells are learned from {n:,} protected images, and at this budget the noise "
                f"hides what fewer than about {needed:,} show: search will be near chance. If the "
                "images are public, say learned_from='public'; otherwise make the cells from "
                "public images.",
                TooFewRecords,
                stacklevel=4,
            )

    def _how_many(self, n: int) -> int:
        """Return the number of cells, from the budget and the public number of images only."""
        if self.n_cells == "auto":
            if self.learned_from == "private":
                return number_of_cells(self._code_epsilon, "few", most=min(_MOST_NOISY, n // 2))
            return number_of_cells(self._code_epsilon, "some", most=min(MOST_CELLS, n // 2))
        if self.n_cells > n:
            raise InvalidParameter(f"n_cells must be at most the number of images, {n}.")
        return self.n_cells

    @property
    def _code_epsilon(self) -> float:
        return (
            self.epsilon * (1 - self.learning_share)
            if self.learned_from == "private"
            else self.epsilon
        )

    def _with_labels(self, X: ArrayLike, y: ArrayLike | None) -> tuple[Array, Array]:
        """Validate rows and labels. With public classes, no private label is refused by value."""
        form: Any = {"dtype": (np.float64, np.float32), "ensure_min_samples": 2}
        if self.learned_from == "public" or self.classes is None:
            both: tuple[Array, Array] = validate_data(self, X, y, multi_output=True, **form)
            return both
        if y is None:
            raise InvalidData(
                "a supervised codebook requires y to be passed, but the target y is None"
            )
        rows: Array = validate_data(self, X, **form)
        labels = np.asarray(y)
        if labels.ndim == 0 or len(labels) != len(rows):
            raise InvalidData(f"y must have a label for each of {len(rows)} images.")
        return rows, labels

    def _rows(self, X: ArrayLike) -> Array:
        check_is_fitted(self)
        return np.asarray(validate_data(self, X, dtype=(np.float64, np.float32), reset=False))

    def _settle(self) -> None:
        part = dict(self.public_ if self.learned_from == "public" else self.released_)
        fields, self.weights_ = (
            part.pop("codebook"),
            np.asarray(part.pop("weights"), dtype=np.float64),
        )
        arrays = {key: value for key, value in part.items() if isinstance(value, np.ndarray)}
        self.codebook_ = Codebook.from_parts(arrays, fields)
        self.n_cells_, self.n_features_in_ = self.codebook_.k, len(self.codebook_.embedding.axes)
        self.mechanism_ = self._mechanism(self.n_cells_)
        stated = (self.public_["n_cells"], self.public_["n_features"], self.codebook_.epsilon)
        require(
            stated == (self.n_cells_, self.n_features_in_, self._code_epsilon),
            "its cells do not fit",
        )
        fits = self.weights_.shape == (self.n_cells_,) and bool((self.weights_ > 0).all())
        require(fits, "its weights do not fit")

    @property
    def _reading(self) -> Reading:
        return self.codebook_.reading_of(self.weights_)

    def _mechanism(self, k: int) -> SubsetSelection:
        size = 1 if self.mechanism == "k-ary" else None
        return SubsetSelection(epsilon=self._code_epsilon, k=k, size=size, unit="record")

    def _codes(self, k: int) -> Guarantee:
        return Guarantee(
            releases=(Planned(what=CODE, mechanism=self._mechanism(k)),),
            model="local",
            assumptions=(PUBLIC if self.learned_from == "public" else PUBLIC_NUMBER, ONCE),
            entropy=self.entropy_,
        )

    def _learning(
        self, d: int, k: int, named: bool, *, codes: Guarantee | None = None
    ) -> Guarantee:
        """Return the guarantee of learning from private images, and with `codes` of both."""
        shares = learning_shares(d, k=k, classes=k if self.supervised else 0)
        plan = plan_for(shares, epsilon=self.epsilon * self.learning_share, delta=self.delta)
        hidden = self.supervised and not named
        return Guarantee(
            releases=plan if codes is None else (*plan, *codes.releases),
            unproven=(_LABEL_SPACE,) if hidden else (),
            delta=self.delta,
            model="central",
            assumptions=(PUBLIC_NUMBER, ONCE, *((_LABEL_SPACE,) if hidden else ())),
            entropy=self.entropy_,
        )
