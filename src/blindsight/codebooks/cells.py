"""The embedding of features in which codebooks are defined, and the cells of images. All is public.

The head W of a pretrained classifier (one row per class) shows which directions of the features
distinguish photos. With W = A S V', its rows centred, e(x) = unit((S / S_1)^(1/3) V'(x - mean of
x's entries)): directions are weighted by the cube root of their singular values. Nothing is learned
from stored images.

Cells are groups of atoms, pairs of atoms, or groups of a classifier's answers. An atom is a unit
vector that represents something a photo may show: a class of a public classifier, or a public
picture. `assign` returns an image's true cell, which is private until a mechanism releases it;
`similarity` compares a query, whose features are not private, with every cell.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from blindsight.core.checks import core_module
from blindsight.core.errors import HostileFile, InvalidData

__all__ = [
    "CellPartition",
    "ClassCells",
    "Embedding",
    "GroupCells",
    "LabelCells",
    "PairCells",
    "class_points",
    "head_space",
    "unit_rows",
    "ward_groups",
]

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

# Temperature of the soft maximum over the atoms of a group; weight of the second atom of a pair.
_ATOMS, _SECOND = 0.1, 0.6
# The power of a head's singular values by which directions are weighted; see `Embedding.of_head`.
_POWER = 1 / 3
_NEVER, _SURE = -30.0, 1e-6  # ln of the smallest probability; smallest probability of the opposite


def unit_rows(X: NDArray[Any]) -> Floats:
    """Return the rows scaled to norm 1; rows of zeros are unchanged."""
    norm = np.linalg.norm(X, axis=1, keepdims=True)
    return (X / np.where(norm > 0, norm, 1)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Embedding:
    """A map from vectors (n, d) to unit points (n, m), which is public.

    Parameters:
        axes: the directions (d, m), scaled by their weights.
        centre: the mean point (m,) of public pictures of the domain, which is subtracted; or zeros.
        text_centre: the mean (m,) of public texts, if the encoder has a text tower. Images and
            texts have different means in such spaces, and with one shared mean all texts would be
            in a few cells.
        row_mean: whether each vector's own mean is subtracted first. This is for features of a
            classifier, not for vectors of image-text models.
    """

    axes: Floats
    centre: Floats
    text_centre: Floats | None = None
    row_mean: bool = True

    def __post_init__(self) -> None:
        if self.axes.ndim != 2 or self.centre.shape != self.axes.shape[1:]:
            raise HostileFile(
                "the arrays of a codebook's embedding have wrong shapes. Make the codebook again."
            )
        if self.text_centre is not None and self.text_centre.shape != self.centre.shape:
            raise HostileFile(
                "the text centre of a codebook has a wrong shape. Make the codebook again."
            )
        d, m = self.axes.shape
        plain = d == m and bool((self.axes == np.eye(d, dtype=np.float32)).all())
        object.__setattr__(self, "_plain", plain)

    _plain: bool = dataclasses.field(init=False, repr=False)  # whether the axes are the identity

    def __call__(self, X: NDArray[Any]) -> Floats:
        return self.moved(unit_rows(self._projected(X)))

    def texts(self, X: NDArray[Any]) -> Floats:
        """Return the points of text vectors (n, d), centred by the mean of texts."""
        points = unit_rows(self._projected(X))
        centre = self.centre if self.text_centre is None else self.text_centre
        return unit_rows(points - centre) if centre.any() else points

    def moved(self, points: Floats) -> Floats:
        """Return unit points relative to the centre."""
        return unit_rows(points - self.centre) if self.centre.any() else points

    def around(self, pictures: NDArray[Any]) -> Embedding:
        """Return this embedding, centred at the mean of public pictures (vectors)."""
        points = unit_rows(self._projected(pictures))
        return dataclasses.replace(self, centre=points.mean(axis=0).astype(np.float32))

    def around_texts(self, texts: NDArray[Any]) -> Embedding:
        """Return this embedding, with texts centred at the mean of these texts (vectors)."""
        points = unit_rows(self._projected(texts))
        return dataclasses.replace(self, text_centre=points.mean(axis=0).astype(np.float32))

    @classmethod
    def plain(cls, d: int, *, row_mean: bool = True) -> Embedding:
        """Return the embedding with equal weights, for vectors without a classifier."""
        return cls(np.eye(d, dtype=np.float32), np.zeros(d, np.float32), row_mean=row_mean)

    @classmethod
    def of_head(cls, head: NDArray[Any]) -> Embedding:
        """Return the embedding of a classifier's weights (classes, d).

        Directions are weighted by a power of their singular values. On Caltech-101's even classes
        (Lite2, epsilon 8) the mAP was .506 / .508 / .517 / .518 / .520 at powers 1/2, 2/5, 1/3,
        3/10 and 1/4, and .511 to .520 below; words on COCO were worse from 1/4 down, so 1/3 was
        chosen.
        """
        W = np.asarray(head, dtype=np.float64)
        W = W - W.mean(axis=0)
        # The eigenvectors A of W W' take a third of the time of a singular value decomposition;
        # V = W'A / S.
        squares, A = np.linalg.eigh(W @ W.T)
        S, A = np.sqrt(np.maximum(squares[::-1], 0)), A[:, ::-1]
        used = 1e-4 * S[0] < S
        axes = (W.T @ A[:, used] / S[used] * (S[used] / S[0]) ** _POWER).astype(np.float32)
        return cls(axes, np.zeros(axes.shape[1], dtype=np.float32))

    def _projected(self, X: NDArray[Any]) -> NDArray[np.float32]:
        rows = np.asarray(X, dtype=np.float32)
        if rows.ndim != 2 or rows.shape[1] != len(self.axes):
            raise InvalidData(f"features must have shape (n, {len(self.axes)}), got {rows.shape}.")
        if self.row_mean:
            rows = rows - rows.mean(axis=1, keepdims=True)
        return rows if self._plain else np.asarray(rows @ self.axes, dtype=np.float32)


_CLASS_POINTS: WeakKeyDictionary[Embedding, tuple[NDArray[Any], Floats]] = WeakKeyDictionary()


@lru_cache(maxsize=3)
def head_space(network: str) -> tuple[Embedding, Floats]:
    """Return the embedding of a pretrained network's head, and its classes as atoms."""
    from blindsight.encoders.builtin import head_of

    W = head_of(network)
    embedding = Embedding.of_head(W)
    return embedding, class_points(embedding, W)


def class_points(embedding: Embedding, weights: NDArray[Any]) -> Floats:
    """Return a classifier's classes (rows of `weights`) as points of an embedding, not centred.

    The axes of the stored embedding are used, because axes that are computed again may have other
    signs. The result is cached, since every query by words needs it.
    """
    stored = _CLASS_POINTS.get(embedding)
    if stored is not None and stored[0] is weights:
        return stored[1]
    plain = dataclasses.replace(embedding, centre=np.zeros_like(embedding.centre))
    points = plain(weights - weights.mean(axis=0))
    points.flags.writeable = False
    _CLASS_POINTS[embedding] = weights, points
    return points


class CellPartition(Protocol):
    """The interface of a codebook's cells."""

    kind: ClassVar[str]

    @property
    def k(self) -> int:
        """The number of cells."""

    def assign(self, points: Floats) -> Ints:
        """Return the true cell of each point, which is private."""

    def similarity(self, points: Floats) -> Floats:
        """Return the similarity of each point to each cell (m, k)."""

    def middle(self, cells: Ints) -> Floats:
        """Return the centre of each of these cells (m, d)."""

    def likeness(self, cells: Ints) -> Floats:
        """Return the similarity of the centres of these cells to each cell (m, k)."""

    def coarse(self) -> tuple[Ints, int]:
        """Return a group for each cell, and the number of groups; the shares of stored images are
        estimated per group.
        """

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that a file stores."""


@dataclass(frozen=True, eq=False)
class GroupCells:
    """Groups of atoms; an image is in the group with the nearest centre."""

    kind: ClassVar[str] = "groups"
    atoms: Floats  # (a, m)
    group: Ints  # (a,) the group of each atom

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", int(self.group.max(initial=-1)) + 1)
        if self.group.shape != self.atoms.shape[:1] or set(np.unique(self.group)) != set(
            range(self.k)
        ):
            raise HostileFile("the groups of a codebook do not match its atoms. Make it again.")
        order = np.argsort(self.group, kind="stable")
        starts = np.searchsorted(self.group[order], np.arange(self.k))
        sums = np.add.reduceat(self.atoms[order].astype(np.float64), starts, axis=0)
        object.__setattr__(self, "centres", unit_rows(sums))

    # Computed from the two fields above.
    centres: Floats = field(init=False, repr=False)
    k: int = field(init=False, repr=False)

    def assign(self, points: Floats) -> Ints:
        return np.asarray((points @ self.centres.T).argmax(axis=1), dtype=np.int64)

    def similarity(self, points: Floats) -> Floats:
        """Return 0.1 ln of the mean of exp(e(q)'u / 0.1) over a group's atoms, a soft maximum."""
        order = np.argsort(self.group, kind="stable")
        starts = np.searchsorted(self.group[order], np.arange(self.k))
        weight = np.exp((points @ self.atoms[order].T) / np.float32(_ATOMS))
        sums = np.add.reduceat(weight, starts, axis=1)
        size = np.bincount(self.group, minlength=self.k).astype(np.float32)
        return np.float32(_ATOMS) * np.log(sums / size)

    def middle(self, cells: Ints) -> Floats:
        return self.centres[cells]

    def likeness(self, cells: Ints) -> Floats:
        return self.similarity(self.middle(cells))

    def coarse(self) -> tuple[Ints, int]:
        return np.arange(self.k), self.k

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"atoms": self.atoms, "group": self.group}


@dataclass(frozen=True, eq=False)
class PairCells:
    """Pairs of the nearest atom and the neighbour of it that is most similar to the residual, for
    large epsilons.

    Cell c1 * m + j is the pair of atom c1 and its j-th neighbour.
    """

    kind: ClassVar[str] = "pairs"
    atoms: Floats  # (a, d)
    neighbours: Ints  # (a, m)

    def __post_init__(self) -> None:
        fits = self.neighbours.ndim == 2 and len(self.neighbours) == len(self.atoms)
        if not fits or ((self.neighbours < 0) | (self.neighbours >= len(self.atoms))).any():
            raise HostileFile("the pairs of a codebook do not match its atoms. Make it again.")
        # In blocks of atoms, to limit the memory of their products with all others.
        blocks = [slice(i, i + 64) for i in range(0, len(self.atoms), 64)]
        gram = np.concatenate(
            [
                np.take_along_axis(self.atoms[block] @ self.atoms.T, self.neighbours[block], axis=1)
                for block in blocks
            ]
        )
        object.__setattr__(
            self, "norms", np.sqrt(1 + _SECOND**2 + 2 * _SECOND * gram).ravel().astype(np.float32)
        )

    norms: Floats = None  # type: ignore[assignment]  # |u1 + 0.6 u2| of every pair

    @classmethod
    def of(cls, atoms: Floats, m: int) -> PairCells:
        """Return the pairs of every atom with its m nearest atoms."""
        near = atoms @ atoms.T
        np.fill_diagonal(near, -np.inf)
        return cls(atoms, np.argsort(-near, axis=1, kind="stable")[:, :m].astype(np.int64))

    @property
    def k(self) -> int:
        return int(self.neighbours.size)

    def assign(self, points: Floats) -> Ints:
        """Return the nearest atom and its neighbour nearest to the residual x - (x'u) u."""
        near = points @ self.atoms.T
        first = near.argmax(axis=1)
        best = near[np.arange(len(points)), first]
        residual = points - best[:, None] * self.atoms[first]
        others = np.take_along_axis(residual @ self.atoms.T, self.neighbours[first], axis=1)
        return np.asarray(first * self.neighbours.shape[1] + others.argmax(axis=1), dtype=np.int64)

    def similarity(self, points: Floats) -> Floats:
        """Return e(q)'unit(u1 + 0.6 u2) for each query and pair."""
        near = (points @ self.atoms.T).astype(np.float32)
        both = np.repeat(near, self.neighbours.shape[1], axis=1)
        both += np.float32(_SECOND) * near[:, self.neighbours.ravel()]
        return both / self.norms

    def middle(self, cells: Ints) -> Floats:
        first, rank = np.divmod(cells, self.neighbours.shape[1])
        second = self.atoms[self.neighbours[first, rank]]
        return unit_rows(self.atoms[first] + np.float32(_SECOND) * second)

    def likeness(self, cells: Ints) -> Floats:
        return self.similarity(self.middle(cells))

    def coarse(self) -> tuple[Ints, int]:
        """Group pairs by their first atom: there are too many to estimate the share of each."""
        return np.repeat(np.arange(len(self.atoms)), self.neighbours.shape[1]), len(self.atoms)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"atoms": self.atoms, "neighbours": self.neighbours}


@dataclass(frozen=True, eq=False)
class ClassCells:
    """Answers of a classifier of public labelled pictures: the classes, or k groups of answers.

    An answer is the probability of every class. With few classes, groups of answers can be used as
    cells, which also encode uncertainty: "a cat, perhaps a dog" is another cell than "a cat".
    """

    kind: ClassVar[str] = "classes"
    coefficients: Floats  # (classes, d)
    intercept: Floats  # (classes,)
    groups: Floats | None = None  # (k, classes) mean answers; None if the classes are the cells

    def __post_init__(self) -> None:
        if self.coefficients.ndim != 2 or self.intercept.shape != self.coefficients.shape[:1]:
            raise HostileFile(
                "the arrays of a codebook's classifier have wrong shapes. Make the codebook again."
            )
        middle = self._middle
        if (
            middle.ndim != 2
            or middle.shape[1:] != self.intercept.shape
            or middle.min() < 0
            or middle.max() > 1.001
        ):
            raise HostileFile(
                "the groups of a codebook are not answers of its classifier. Make it again."
            )

    @property
    def k(self) -> int:
        return len(self._middle)

    def answers(self, points: Floats) -> Floats:
        """Return the probability (n, classes) of each class."""
        z = self._scores(points)
        z = np.exp(z - z.max(axis=1, keepdims=True))
        return np.asarray(z / z.sum(axis=1, keepdims=True), dtype=np.float32)

    def assign(self, points: Floats) -> Ints:
        return self.nearest(self.answers(points))

    def nearest(self, answers: Floats) -> Ints:
        """Return the cell with the nearest answer, or the most probable class."""
        near = answers
        if self.groups is not None:
            near = answers @ self.groups.T - np.square(self.groups).sum(axis=1) / 2
        return np.asarray(near.argmax(axis=1), dtype=np.int64)

    def similarity(self, points: Floats) -> Floats:
        """Return the log-odds that an image of each cell shares a label with q; see `likely`."""
        return self.likely(self.answers(points))

    def likely(self, answers: Floats) -> Floats:
        """Return the log-odds that an image of each cell shares a label with one of these answers.

        If the classes are the cells, it is ln P of the class instead: not all images of a cell are
        of its class, which odds would ignore.
        """
        shared = self.sharing(answers, self._middle)
        log = np.log(np.maximum(shared, np.float32(np.exp(_NEVER))))
        return np.asarray(
            log if self.groups is None else log - np.log(np.maximum(1 - shared, np.float32(_SURE)))
        )

    def sharing(self, first: Floats, second: Floats) -> Floats:
        """Return the probability (m, k) that images with these answers share a label."""
        return first @ second.T

    def middle(self, cells: Ints) -> Floats:
        """Return the directions of the classes, weighted by the cells' answers."""
        return unit_rows(self._middle[cells] @ self.coefficients)

    def likeness(self, cells: Ints) -> Floats:
        return self.likely(self._middle[cells])

    def often(self, prior: NDArray[Any]) -> float:
        """Return the probability that two images share a label, given the shares (k,) of cells."""
        return float(prior @ self.sharing(self._middle, self._middle) @ prior)

    def coarse(self) -> tuple[Ints, int]:
        return np.arange(self.k), self.k

    def arrays(self) -> dict[str, NDArray[Any]]:
        groups = {} if self.groups is None else {"groups": self.groups}
        return {"coefficients": self.coefficients, "intercept": self.intercept, **groups}

    @property
    def _middle(self) -> Floats:
        return np.eye(len(self.intercept), dtype=np.float32) if self.groups is None else self.groups

    def _scores(self, points: Floats) -> Floats:
        return np.asarray(points @ self.coefficients.T + self.intercept)


class LabelCells(ClassCells):
    """`ClassCells` for pictures with several labels: an answer is the probability of each label."""

    kind: ClassVar[str] = "labels"

    def answers(self, points: Floats) -> Floats:
        """Return the probability (n, labels) of each label."""
        return np.asarray(
            1 / (1 + np.exp(-np.clip(self._scores(points), _NEVER, -_NEVER))), dtype=np.float32
        )

    def sharing(self, first: Floats, second: Floats) -> Floats:
        """Return the probability that at least one label is shared, for independent labels."""
        none = np.ones((len(first), len(second)), dtype=np.float32)
        for first_label, second_label in zip(first.T, second.T, strict=True):
            none *= 1 - np.outer(first_label, second_label)
        return 1 - none


def ward_groups(points: Floats, k: int) -> Ints:
    """Cluster points by Ward's method into at most k groups, numbered in the order of their first
    members.
    """
    if k >= len(points):
        return np.arange(len(points))
    hierarchy = core_module("scipy.cluster.hierarchy")

    # Distances by one matrix product, which is much faster than scipy's distances pair by pair.
    rows = points.astype(np.float64)
    squares = np.square(rows).sum(axis=1)
    a, b = np.triu_indices(len(rows), 1)
    apart = np.sqrt(np.maximum((squares[:, None] + squares - 2 * rows @ rows.T)[a, b], 0))
    clusters = hierarchy.fcluster(hierarchy.linkage(apart, method="ward"), k, criterion="maxclust")
    _, first, group = np.unique(clusters, return_index=True, return_inverse=True)
    if len(first) == 1:  # all points are equal, and k-ary response needs two cells
        group[1:], first = 1, np.array([0, 1])
    return np.argsort(np.argsort(first))[group].astype(np.int64)
