"""The pair graph (Section V): people are nodes, labelled pairs are edges.

What is private sits on the edges: the feature difference and whether the two are alike. Who was
compared with whom is the graph's *structure*; kappa is a function of it, so whoever uses kappa
assumes that the structure is public.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.compiled import njit
from blindsight.core.errors import InvalidData

__all__ = ["PairGraph", "connected", "pair_labels"]

# scikit-learn labels pairs 1 / 0, metric-learn +1 / -1; both mean similar / dissimilar here. The
# paper's y is the other way round (0 similar, 1 dissimilar), which is why the code below says
# `similar` and never `y`.
_LABELS = (-1, 0, 1)


def pair_labels(y: Any, *, private: bool = False) -> NDArray[np.bool_]:
    """Labels of pairs as booleans, True for similar: accepts True/False, 1/0 and metric-learn's
    +1/-1.

    Parameters:
        private: whether the labels are protected; then any value but 1 counts as dissimilar,
            because a refusal would tell that there is such a label.

    Examples:
        >>> pair_labels([1, -1, 1]).tolist()
        [True, False, True]
    """
    array = np.asarray(y)
    if array.ndim != 1:
        raise InvalidData(f"y must have one label a pair, got shape {array.shape}.")
    if array.dtype.kind == "b":
        return array.copy()
    if private:
        return np.asarray(checks.number_array("y", array) == 1)
    numbers = checks.finite_array("y", array)
    if not np.isin(numbers, _LABELS).all():
        raise InvalidData(
            "y must be 1 for similar pairs and 0 (or -1) for dissimilar ones; other values were "
            "found."
        )
    return np.asarray(numbers == 1)


@dataclass(frozen=True, eq=False, repr=False)
class PairGraph:
    """An undirected simple graph of labelled pairs.

    Parameters:
        n_nodes: how many records there are; a node in no pair is allowed.
        edges: (m, 2) node numbers, each pair once, smaller number first.
        similar: (m,) True where the two are alike.
        transitive: whether "alike" carries over (same disease) or not (being friends): Appendix B.

    Make one with `from_pairs`, which checks what it is given.
    """

    n_nodes: int
    edges: NDArray[np.int64]
    similar: NDArray[np.bool_]
    transitive: bool = True
    _cache: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Sizes only: pairs and labels are the secret."""
        return (
            f"PairGraph({self.n_nodes} records, {len(self.edges)} pairs, "
            f"transitive={self.transitive})"
        )

    @classmethod
    def from_pairs(
        cls,
        pairs: Any,
        y: Any,
        *,
        n_nodes: int | None = None,
        transitive: bool = True,
    ) -> PairGraph:
        """Build the graph from (m, 2) node numbers and labels; a pair given twice counts once, with
        its first label.

        What is refused depends on the structure, which is public, or on the domain of one label;
        never on what labels say together. Contradictions are the owner's to find
        (`checking.check_pairs`): a refusal here would be an answer about private labels that nobody
        paid for.
        """
        indices = np.asarray(pairs)
        if indices.ndim != 2 or indices.shape[1] != 2 or indices.dtype.kind not in "iu":
            raise InvalidData(
                f"pairs must be an (m, 2) array of whole numbers, got shape {indices.shape}, dtype "
                f"{indices.dtype}."
            )
        similar = pair_labels(y)
        if len(similar) != len(indices):
            raise InvalidData(
                f"y must have one label a pair: {len(indices)} pairs, {len(similar)} labels."
            )
        edges = np.sort(indices.astype(np.int64), axis=1)
        n_nodes = _count(edges, n_nodes)
        if (edges[:, 0] == edges[:, 1]).any():
            raise InvalidData(
                "a pair must join two different records: "
                f"{int((edges[:, 0] == edges[:, 1]).sum())} self-pairs found. "
                "Remove them."
            )
        first = _first_of_each(edges, n_nodes)
        return cls(
            n_nodes=n_nodes, edges=edges[first], similar=similar[first], transitive=transitive
        )

    def __len__(self) -> int:
        """The number of pairs."""
        return len(self.edges)

    @property
    def degrees(self) -> NDArray[np.int64]:
        """How many pairs each record is in."""
        return np.bincount(self.edges.ravel(), minlength=self.n_nodes).astype(np.int64)

    def components(self) -> NDArray[np.int64]:
        """The connected component of each node."""
        if "components" not in self._cache:
            self._cache["components"] = connected(self.n_nodes, self.edges)
        return np.asarray(self._cache["components"])

    def adjacency(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Compressed rows: `start` (n + 1), and `links` (2m, 2), each a neighbour and the edge that
        leads to it.
        """
        if "adjacency" not in self._cache:
            # Made here rather than in compiled code: numpy asks for large pages, which random jumps
            # are glad of.
            start, free = (
                np.zeros(self.n_nodes + 1, dtype=np.int64),
                np.empty(self.n_nodes, dtype=np.int64),
            )
            links = np.empty((2 * len(self.edges), 2), dtype=np.int32)
            _compress(self.edges, start, free, links)
            self._cache["adjacency"] = start, links
        start, links = self._cache["adjacency"]
        return start, links

    def subset(self, chosen: NDArray[Any]) -> PairGraph:
        """The graph of only these edges (a mask or edge numbers), on the same nodes."""
        return PairGraph(
            n_nodes=self.n_nodes,
            edges=self.edges[chosen],
            similar=self.similar[chosen],
            transitive=self.transitive,
        )

    def batches(self, size: int, *, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """A partition of the edges into batches of `size` (the last may be smaller), drawn
        component by component.

        The remark after Theorem 2: a mini-batch comes from a component of the graph rather than
        from all of it. Components are visited in random order and their edges shuffled; only the
        structure is used, never a label.
        """
        size = checks.whole("batch_size", size)
        component = (
            self.components()[self.edges[:, 0]] if len(self) else np.empty(0, dtype=np.int64)
        )
        rank = rng.permutation(int(component.max()) + 1 if len(self) else 0)
        shuffled = rng.permutation(len(self))
        order = shuffled[np.argsort(rank[component[shuffled]], kind="stable")]
        for first in range(0, len(order), size):
            yield order[first : first + size]


def _count(edges: NDArray[np.int64], n_nodes: int | None) -> int:
    if len(edges) == 0:
        raise InvalidData("pairs must not be empty: there is nothing to learn from.")
    if edges.min() < 0:
        raise InvalidData("pairs must hold record numbers of at least 0; negative ones were found.")
    needed = int(edges.max()) + 1
    if n_nodes is None:
        return needed
    if needed > checks.whole("n_nodes", n_nodes):
        unknown = int(np.unique(edges[edges >= n_nodes]).size)
        raise InvalidData(
            f"pairs name {unknown} unknown records: there are {n_nodes}, numbered from 0."
        )
    return n_nodes


def _first_of_each(edges: NDArray[np.int64], n_nodes: int) -> NDArray[np.int64]:
    """Where each pair is given for the first time, in the order given."""
    return np.sort(np.unique(edges[:, 0] * n_nodes + edges[:, 1], return_index=True)[1])


@njit(cache=True)
def _compress(edges: Any, start: Any, free: Any, links: Any) -> None:
    """Adjacency by counting, in two passes over the edges: a tenth of the time that sorting
    takes.
    """
    for e in range(len(edges)):
        start[edges[e, 0] + 1] += 1
        start[edges[e, 1] + 1] += 1
    for v in range(len(free)):
        start[v + 1] += start[v]
        free[v] = start[v]
    for e in range(len(edges)):
        for here, there in ((edges[e, 0], edges[e, 1]), (edges[e, 1], edges[e, 0])):
            links[free[here], 0], links[free[here], 1] = there, e
            free[here] += 1


def connected(n_nodes: int, edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of the connected component of each node."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ones = np.ones(len(edges), dtype=np.int8)
    matrix = coo_array((ones, (edges[:, 0], edges[:, 1])), shape=(n_nodes, n_nodes))
    return np.asarray(connected_components(matrix, directed=False)[1].astype(np.int64))
