"""Where codebooks live, and the cells that images are put in. All of it is public.

The head W of a pretrained classifier (one row per class) is a public statement of which directions
of the features tell photos apart. With W = A S V', its rows centred, e(x) = unit((S / S_1)^(1/3)
V'(x - mean of x's entries)): strong directions count more, but only by the cube root, and nothing
is cut. Nothing is learned from any stored image.

Cells are groups of atoms, pairs of atoms, or a classifier's answers.

An atom is a unit vector that stands for something a photo may show: a class of a public classifier,
or a public picture. `assign` gives an image's true cell (private, until a mechanism has answered
for it); `similarity` says how well a query, whose features are not private, fits every cell.
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

# Temperature of the soft maximum over the atoms of a group; the second atom's weight beside the
# first.
_ATOMS, _SECOND = 0.1, 0.6
# The power of a head's singular values by which its directions count; see `Embedding.of_head`.
_POWER = 1 / 3
_NEVER, _SURE = -30.0, 1e-6  # ln of a probability not worth telling from 0; the least doubt


def unit_rows(X: NDArray[Any]) -> Floats:
    """Every row scaled to norm 1; rows of zeros stay."""
    norm = np.linalg.norm(X, axis=1, keepdims=True)
    return (X / np.where(norm > 0, norm, 1)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Embedding:
    """Vectors (n, d) to unit points (n, m). Everything in it is public.

    Parameters:
        axes: the directions (d, m), weighted by how much they count.
        centre: the mean point (m,) of public pictures of the domain, or zeros: what all pictures
            share does not tell them apart.
        text_centre: the mean (m,) of public texts where the encoder has a text tower. Images and
            texts lie apart in such spaces, and each side is centred by its own mean; one shared
            mean would put all texts into a few cells.
        row_mean: whether each vector's own mean is removed first. It is for the features of a
            classifier, and senseless for vectors of image-text models.
    """

    axes: Floats
    centre: Floats
    text_centre: Floats | None = None
    row_mean: bool = True

    def __post_init__(self) -> None:
        if self.axes.ndim != 2 or self.centre.shape != self.axes.shape[1:]:
            raise HostileFile(
                "the embedding of a codebook has shapes that do not fit. Make it again."
            )
        if self.text_centre is not None and self.text_centre.shape != self.centre.shape:
            raise HostileFile(
                "the text centre of a codebook has a shape that does not fit. Make it again."
            )
        d, m = self.axes.shape
        plain = d == m and bool((self.axes == np.eye(d, dtype=np.float32)).all())
        object.__setattr__(self, "_plain", plain)

    _plain: bool = dataclasses.field(init=False, repr=False)  # the axes would change nothing

    def __call__(self, X: NDArray[Any]) -> Floats:
        return self.moved(unit_rows(self._projected(X)))

    def texts(self, X: NDArray[Any]) -> Floats:
        """Points of text vectors (n, d), seen from the texts' own centre."""
        points = unit_rows(self._projected(X))
        centre = self.centre if self.text_centre is None else self.text_centre
        return unit_rows(points - centre) if centre.any() else points

    def moved(self, points: Floats) -> Floats:
        """Points on the sphere as seen from the centre."""
        return unit_rows(points - self.centre) if self.centre.any() else points

    def around(self, pictures: NDArray[Any]) -> Embedding:
        """The same, centred at public pictures of the domain (vectors)."""
        points = unit_rows(self._projected(pictures))
        return dataclasses.replace(self, centre=points.mean(axis=0).astype(np.float32))

    def around_texts(self, texts: NDArray[Any]) -> Embedding:
        """The same, with texts (vectors) centred at the mean of these."""
        points = unit_rows(self._projected(texts))
        return dataclasses.replace(self, text_centre=points.mean(axis=0).astype(np.float32))

    @classmethod
    def plain(cls, d: int, *, row_mean: bool = True) -> Embedding:
        """Every direction alike: for vectors without a classifier."""
        return cls(np.eye(d, dtype=np.float32), np.zeros(d, np.float32), row_mean=row_mean)

    @classmethod
    def of_head(cls, head: NDArray[Any]) -> Embedding:
        """From a classifier's weights (classes, d).

        Directions count by a power of their singular values. On Caltech-101's even classes (Lite2,
        epsilon 8) the mAP was .506 / .508 / .517 / .518 / .520 at powers 1/2, 2/5, 1/3, 3/10 and
        1/4, and .511 to .520 below; words on COCO were worse from 1/4 down, so 1/3 was taken.
        """
        W = np.asarray(head, dtype=np.float64)
        W = W - W.mean(axis=0)
        # By the eigenvectors A of W W': a third of the time of a singular value decomposition, and
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
    """The embedding of a pretrained network's head, and its classes as atoms in it."""
    from blindsight.encoders.builtin import head_of

    W = head_of(network)
    embedding = Embedding.of_head(W)
    return embedding, class_points(embedding, W)


def class_points(embedding: Embedding, weights: NDArray[Any]) -> Floats:
    """A classifier's classes (rows of `weights`) as points of a codebook's own space, not centred.

    Always by the codebook's own axes: those that this machine would make now may have other signs,
    or be those of another version. Computed once for each embedding: every query by words needs
    them.
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
    """What a codebook asks of its cells."""

    kind: ClassVar[str]

    @property
    def k(self) -> int:
        """How many cells."""

    def assign(self, points: Floats) -> Ints:
        """The true cell of each point: keep it to yourself."""

    def similarity(self, points: Floats) -> Floats:
        """How well each point fits each cell (m, k); larger is better."""

    def middle(self, cells: Ints) -> Floats:
        """A point in the middle of each of these cells (m, d): what a cell alone says of an
        image.
        """

    def likeness(self, cells: Ints) -> Floats:
        """How well something that lies in the middle of these cells fits each cell (m, k)."""

    def coarse(self) -> tuple[Ints, int]:
        """For each cell the group whose share of the stored images can be told apart, and how many
        groups.
        """

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What rebuilds them."""


@dataclass(frozen=True, eq=False)
class GroupCells:
    """Atoms in groups; an image is in the group with the nearest centre."""

    kind: ClassVar[str] = "groups"
    atoms: Floats  # (a, m)
    group: Ints  # (a,) the group of each atom

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", int(self.group.max(initial=-1)) + 1)
        if self.group.shape != self.atoms.shape[:1] or set(np.unique(self.group)) != set(
            range(self.k)
        ):
            raise HostileFile("the groups of a codebook do not fit its atoms. Make it again.")
        order = np.argsort(self.group, kind="stable")
        starts = np.searchsorted(self.group[order], np.arange(self.k))
        sums = np.add.reduceat(self.atoms[order].astype(np.float64), starts, axis=0)
        object.__setattr__(self, "centres", unit_rows(sums))

    # Set at birth from the two above.
    centres: Floats = field(init=False, repr=False)
    k: int = field(init=False, repr=False)

    def assign(self, points: Floats) -> Ints:
        """The group with the nearest centre."""
        return np.asarray((points @ self.centres.T).argmax(axis=1), dtype=np.int64)

    def similarity(self, points: Floats) -> Floats:
        """0.1 ln of the mean, over a group's atoms, of exp(e(q)'u / 0.1): its best atoms speak for
        it.
        """
        order = np.argsort(self.group, kind="stable")
        starts = np.searchsorted(self.group[order], np.arange(self.k))
        weight = np.exp((points @ self.atoms[order].T) / np.float32(_ATOMS))
        sums = np.add.reduceat(weight, starts, axis=1)
        size = np.bincount(self.group, minlength=self.k).astype(np.float32)
        return np.float32(_ATOMS) * np.log(sums / size)

    def middle(self, cells: Ints) -> Floats:
        return self.centres[cells]

    def likeness(self, cells: Ints) -> Floats:
        """As of the groups' centres."""
        return self.similarity(self.middle(cells))

    def coarse(self) -> tuple[Ints, int]:
        """Every group by itself."""
        return np.arange(self.k), self.k

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Atoms and their groups."""
        return {"atoms": self.atoms, "group": self.group}


@dataclass(frozen=True, eq=False)
class PairCells:
    """The nearest atom, and which of its neighbours matches best what is left: for budgets that can
    afford it.

    Cell c1 * m + j is the pair of atom c1 and its j-th neighbour.
    """

    kind: ClassVar[str] = "pairs"
    atoms: Floats  # (a, d)
    neighbours: Ints  # (a, m)

    def __post_init__(self) -> None:
        fits = self.neighbours.ndim == 2 and len(self.neighbours) == len(self.atoms)
        if not fits or ((self.neighbours < 0) | (self.neighbours >= len(self.atoms))).any():
            raise HostileFile("the pairs of a codebook do not fit its atoms. Make it again.")
        # A few atoms at a time: their products with all others need little memory that way.
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

    norms: Floats = None  # type: ignore[assignment]  # |u1 + 0.6 u2| of every pair, set at birth

    @classmethod
    def of(cls, atoms: Floats, m: int) -> PairCells:
        """Every atom with its m nearest others."""
        near = atoms @ atoms.T
        np.fill_diagonal(near, -np.inf)
        return cls(atoms, np.argsort(-near, axis=1, kind="stable")[:, :m].astype(np.int64))

    @property
    def k(self) -> int:
        """Atoms times neighbours."""
        return int(self.neighbours.size)

    def assign(self, points: Floats) -> Ints:
        """The nearest atom, then its neighbour nearest to the residual x - (x'u) u."""
        near = points @ self.atoms.T
        first = near.argmax(axis=1)
        best = near[np.arange(len(points)), first]
        residual = points - best[:, None] * self.atoms[first]
        others = np.take_along_axis(residual @ self.atoms.T, self.neighbours[first], axis=1)
        return np.asarray(first * self.neighbours.shape[1] + others.argmax(axis=1), dtype=np.int64)

    def similarity(self, points: Floats) -> Floats:
        """e(q)'unit(u1 + 0.6 u2)."""
        near = (points @ self.atoms.T).astype(np.float32)
        both = np.repeat(near, self.neighbours.shape[1], axis=1)
        both += np.float32(_SECOND) * near[:, self.neighbours.ravel()]
        return both / self.norms

    def middle(self, cells: Ints) -> Floats:
        """The pairs' own directions."""
        first, rank = np.divmod(cells, self.neighbours.shape[1])
        second = self.atoms[self.neighbours[first, rank]]
        return unit_rows(self.atoms[first] + np.float32(_SECOND) * second)

    def likeness(self, cells: Ints) -> Floats:
        """As of the pairs' own directions."""
        return self.similarity(self.middle(cells))

    def coarse(self) -> tuple[Ints, int]:
        """The first atom: pairs are too many to estimate the share of each."""
        return np.repeat(np.arange(len(self.atoms)), self.neighbours.shape[1]), len(self.atoms)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Atoms and their neighbours."""
        return {"atoms": self.atoms, "neighbours": self.neighbours}


@dataclass(frozen=True, eq=False)
class ClassCells:
    """What a classifier of public labelled pictures answers: one of the classes, or one of k groups
    of answers.

    An answer gives every class its probability. With few classes a budget pays for groups of
    answers, which keep the doubt: "a cat, perhaps a dog" is another cell than "a cat".
    """

    kind: ClassVar[str] = "classes"
    coefficients: Floats  # (classes, d)
    intercept: Floats  # (classes,)
    groups: Floats | None = (
        None  # (k, classes) the mean answer of each group; None where the classes are the cells
    )

    def __post_init__(self) -> None:
        if self.coefficients.ndim != 2 or self.intercept.shape != self.coefficients.shape[:1]:
            raise HostileFile(
                "the classifier of a codebook has shapes that do not fit. Make it again."
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
        """The probability (n, classes) of each class."""
        z = self._scores(points)
        z = np.exp(z - z.max(axis=1, keepdims=True))
        return np.asarray(z / z.sum(axis=1, keepdims=True), dtype=np.float32)

    def assign(self, points: Floats) -> Ints:
        """The group with the nearest answer: the most likely class where the classes are the
        cells.
        """
        return self.nearest(self.answers(points))

    def nearest(self, answers: Floats) -> Ints:
        """The cell of each answer."""
        near = answers
        if self.groups is not None:
            near = answers @ self.groups.T - np.square(self.groups).sum(axis=1) / 2
        return np.asarray(near.argmax(axis=1), dtype=np.int64)

    def similarity(self, points: Floats) -> Floats:
        """How likely an image of the cell shares a label with q; see `likely`."""
        return self.likely(self.answers(points))

    def likely(self, answers: Floats) -> Floats:
        """The log-odds that an image of each cell shares a label with one of these answers.

        Where the classes are the cells, ln P of the class: odds would forget that not all images of
        a cell are of its class, which the answers of groups know.
        """
        shared = self.sharing(answers, self._middle)
        log = np.log(np.maximum(shared, np.float32(np.exp(_NEVER))))
        return np.asarray(
            log if self.groups is None else log - np.log(np.maximum(1 - shared, np.float32(_SURE)))
        )

    def sharing(self, first: Floats, second: Floats) -> Floats:
        """How likely (m, k) images with these answers share a label."""
        return first @ second.T

    def middle(self, cells: Ints) -> Floats:
        """The classes' own directions, mixed as the cells' answers are."""
        return unit_rows(self._middle[cells] @ self.coefficients)

    def likeness(self, cells: Ints) -> Floats:
        """As of the cells' own answers."""
        return self.likely(self._middle[cells])

    def often(self, prior: NDArray[Any]) -> float:
        """How often two images share a label, where so many (k,) are in each cell."""
        return float(prior @ self.sharing(self._middle, self._middle) @ prior)

    def coarse(self) -> tuple[Ints, int]:
        """Every cell by itself."""
        return np.arange(self.k), self.k

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The classifier and the groups of its answers."""
        groups = {} if self.groups is None else {"groups": self.groups}
        return {"coefficients": self.coefficients, "intercept": self.intercept, **groups}

    @property
    def _middle(self) -> Floats:
        return np.eye(len(self.intercept), dtype=np.float32) if self.groups is None else self.groups

    def _scores(self, points: Floats) -> Floats:
        return np.asarray(points @ self.coefficients.T + self.intercept)


class LabelCells(ClassCells):
    """The same where a picture has several labels: an answer says of each label how likely it is
    there.
    """

    kind: ClassVar[str] = "labels"

    def answers(self, points: Floats) -> Floats:
        """The probability (n, labels) of each label by itself."""
        return np.asarray(
            1 / (1 + np.exp(-np.clip(self._scores(points), _NEVER, -_NEVER))), dtype=np.float32
        )

    def sharing(self, first: Floats, second: Floats) -> Floats:
        """How likely at least one label is shared: labels are taken one by one."""
        none = np.ones((len(first), len(second)), dtype=np.float32)
        for first_label, second_label in zip(first.T, second.T, strict=True):
            none *= 1 - np.outer(first_label, second_label)
        return 1 - none


def ward_groups(points: Floats, k: int) -> Ints:
    """Ward's clustering into at most k groups, numbered 0, 1, ... in the order of their first
    member.
    """
    if k >= len(points):
        return np.arange(len(points))
    hierarchy = core_module("scipy.cluster.hierarchy")

    # Distances by one product of matrices: pair by pair, as scipy would have them, they take most
    # of the time.
    rows = points.astype(np.float64)
    squares = np.square(rows).sum(axis=1)
    a, b = np.triu_indices(len(rows), 1)
    apart = np.sqrt(np.maximum((squares[:, None] + squares - 2 * rows @ rows.T)[a, b], 0))
    clusters = hierarchy.fcluster(hierarchy.linkage(apart, method="ward"), k, criterion="maxclust")
    _, first, group = np.unique(clusters, return_index=True, return_inverse=True)
    if (
        len(first) == 1
    ):  # all points are equal; two cells are the least that a response can be about
        group[1:], first = 1, np.array([0, 1])
    return np.argsort(np.argsort(first))[group].astype(np.int64)
