"""Cells to put images in: groups of atoms, pairs of atoms, or classes. All of them are public.

An atom is a unit vector that stands for something a photo may show: a class of a public classifier, or a public
picture. `assign` gives an image's true cell (private, until a mechanism has answered for it); `similarity` says how
well a query, whose features are not private, fits every cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from blindsight.codebooks.embedding import unit_rows
from blindsight.core.errors import HostileFile

__all__ = ["Cells", "ClassCells", "GroupCells", "PairCells", "ward_groups"]

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

# Temperature of the soft maximum over the atoms of a group; the second atom's weight beside the first.
_ATOMS, _SECOND = 0.1, 0.6
_NEVER = -30.0  # ln of a probability not worth telling from 0


class Cells(Protocol):
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
        """A point in the middle of each of these cells (m, d): what a cell alone says of an image."""

    def likeness(self, cells: Ints) -> Floats:
        """How well something that lies in the middle of these cells fits each cell (m, k)."""

    def coarse(self) -> tuple[Ints, int]:
        """For each cell the group whose share of the stored images can be told apart, and how many groups."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What rebuilds them."""


@dataclass(frozen=True, eq=False)
class GroupCells:
    """Atoms in groups; an image is in the group with the nearest centre."""

    kind: ClassVar[str] = "groups"
    atoms: Floats  # (a, m)
    group: Ints  # (a,) the group of each atom

    def __post_init__(self) -> None:
        if self.group.shape != self.atoms.shape[:1] or set(np.unique(self.group)) != set(range(self.k)):
            raise HostileFile("the groups of a codebook do not fit its atoms. Make it again.")
        sums = np.zeros((self.k, self.atoms.shape[1]), dtype=np.float64)
        np.add.at(sums, self.group, self.atoms)
        object.__setattr__(self, "centres", unit_rows(sums))

    centres: Floats = None  # type: ignore[assignment]  # set at birth from the two above

    @property
    def k(self) -> int:
        """How many groups."""
        return int(self.group.max(initial=-1)) + 1

    def assign(self, points: Floats) -> Ints:
        """The group with the nearest centre."""
        return np.asarray((points @ self.centres.T).argmax(axis=1), dtype=np.int64)

    def similarity(self, points: Floats) -> Floats:
        """0.1 ln of the mean, over a group's atoms, of exp(e(q)'u / 0.1): its best atoms speak for it."""
        order = np.argsort(self.group, kind="stable")
        starts = np.searchsorted(self.group[order], np.arange(self.k))
        weight = np.exp((points @ self.atoms[order].T) / np.float32(_ATOMS))
        sums = np.add.reduceat(weight, starts, axis=1)
        size = np.bincount(self.group, minlength=self.k).astype(np.float32)
        return np.float32(_ATOMS) * np.log(sums / size)

    def middle(self, cells: Ints) -> Floats:
        """The groups' centres."""
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
    """The nearest atom, and which of its neighbours matches best what is left: for budgets that can afford it.

    Cell c1 * m + j is the pair of atom c1 and its j-th neighbour.
    """

    kind: ClassVar[str] = "pairs"
    atoms: Floats  # (a, d)
    neighbours: Ints  # (a, m)

    def __post_init__(self) -> None:
        fits = self.neighbours.ndim == 2 and len(self.neighbours) == len(self.atoms)
        if not fits or ((self.neighbours < 0) | (self.neighbours >= len(self.atoms))).any():
            raise HostileFile("the pairs of a codebook do not fit its atoms. Make it again.")
        gram = np.einsum("ad,amd->am", self.atoms, self.atoms[self.neighbours], optimize=True)
        object.__setattr__(self, "norms", np.sqrt(1 + _SECOND**2 + 2 * _SECOND * gram).ravel().astype(np.float32))

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
        first, place = np.divmod(cells, self.neighbours.shape[1])
        second = self.atoms[self.neighbours[first, place]]
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
    """The most likely class of a public labelled folder.

    Where pictures have several labels each, a class is a group of label sets, and `shared` (k, k) says how often
    pictures of two groups share a label; without it, classes share nothing.
    """

    kind: ClassVar[str] = "classes"
    coefficients: Floats  # (classes, d)
    intercept: Floats  # (classes,)
    shared: Floats | None = None

    def __post_init__(self) -> None:
        if self.coefficients.ndim != 2 or self.intercept.shape != self.coefficients.shape[:1]:
            raise HostileFile("the classifier of a codebook has shapes that do not fit. Make it again.")
        if self.shared is not None and (self.shared.shape != (self.k, self.k) or self.shared.min() < 0):
            raise HostileFile("the shared labels of a codebook do not fit its classes. Make it again.")

    @property
    def k(self) -> int:
        """How many classes."""
        return len(self.coefficients)

    def assign(self, points: Floats) -> Ints:
        """The most likely class."""
        return np.asarray((points @ self.coefficients.T + self.intercept).argmax(axis=1), dtype=np.int64)

    def similarity(self, points: Floats) -> Floats:
        """ln P(class | q); of a label shared, where `shared` says how often."""
        z = points @ self.coefficients.T + self.intercept
        z -= z.max(axis=1, keepdims=True)
        z = np.asarray(z - np.log(np.exp(z).sum(axis=1, keepdims=True)), dtype=np.float32)
        if self.shared is None:
            return z
        return np.asarray(np.log(np.maximum(np.exp(z) @ self.shared, np.float32(np.exp(_NEVER)))))

    def middle(self, cells: Ints) -> Floats:
        """The classes' own directions."""
        return unit_rows(self.coefficients[cells])

    def likeness(self, cells: Ints) -> Floats:
        """Certainly of that class."""
        return np.where(np.arange(self.k) == cells[:, None], 0.0, _NEVER).astype(np.float32)

    def coarse(self) -> tuple[Ints, int]:
        """Every class by itself."""
        return np.arange(self.k), self.k

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The classifier."""
        shared = {} if self.shared is None else {"shared": self.shared}
        return {"coefficients": self.coefficients, "intercept": self.intercept, **shared}


def ward_groups(points: Floats, k: int) -> Ints:
    """Ward's clustering into at most k groups, numbered 0, 1, ... in the order of their first member."""
    if k >= len(points):
        return np.arange(len(points))
    from scipy.cluster.hierarchy import fcluster, linkage

    # Distances by one product of matrices: pair by pair, as scipy would have them, they take most of the time.
    rows = points.astype(np.float64)
    squares = np.square(rows).sum(axis=1)
    left, right = np.triu_indices(len(rows), 1)
    apart = np.sqrt(np.maximum((squares[:, None] + squares - 2 * rows @ rows.T)[left, right], 0))
    found = fcluster(linkage(apart, method="ward"), k, criterion="maxclust")
    _, first, group = np.unique(found, return_index=True, return_inverse=True)
    if len(first) == 1:  # all points are equal; two cells are the least that a response can be about
        group[1:], first = 1, np.array([0, 1])
    return np.argsort(np.argsort(first))[group].astype(np.int64)
