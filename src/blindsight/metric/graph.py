"""The pair graph (Section V), the choice of pairs, and checks for the owner of the pairs.

Records are nodes and labelled pairs are edges. The private part is on the edges: the difference of
the features, and whether the two records are similar. Which records were compared is the
*structure* of the graph. kappa is a function of the structure, so every use of kappa assumes that
the structure is public.

`select` leaves pairs out to lower the cost. Noise grows with the number of pairs that one unit can
change, and learning improves with the number of pairs. A spanning forest has kappa' = 1, and a
matching touches each record once. Every selection depends on the structure and on random numbers
only, never on a label or a feature, so it costs no privacy where the structure is public.

`check_pairs` is for the owner alone. Contradictions between labels, and labels of one kind only,
are facts about private data; a learner that refused such pairs would reveal them without a charge.
So `DPPMetric.fit` learns from whatever labels it is given, and the owner inspects them here first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks
from blindsight.core.arrays import Array, Bools, Integers, Ints
from blindsight.core.checks import njit
from blindsight.core.errors import InvalidData

__all__ = [
    "SELECTIONS",
    "PairGraph",
    "PairReport",
    "bounded_degree",
    "check_pairs",
    "connected",
    "matching",
    "pair_labels",
    "select",
    "spanning_forest",
]

# scikit-learn labels pairs 1 / 0, metric-learn +1 / -1; both mean similar / dissimilar here. The
# paper's y is the other way round (0 similar, 1 dissimilar), which is why the code below says
# `similar` and never `y`.
_LABELS = (-1, 0, 1)


def pair_labels(y: ArrayLike, *, private: bool = False) -> Bools:
    """Convert labels of pairs to booleans, True for similar.

    Parameters:
        y: True/False, 1/0, or metric-learn's +1/-1.
        private: whether the labels are protected; then any value but 1 counts as dissimilar,
            because an error would reveal that there is such a label.

    Raises:
        InvalidData: there is not one label for each pair, or a label that is not private has
            another value.

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
        similar: (m,) True where the two records are similar.
        transitive: whether similarity is transitive (same disease) or not (friendship); Appendix B.

    Use `from_pairs` to construct a graph; it checks its arguments.

    Examples:
        >>> PairGraph.from_pairs([[0, 1], [1, 2]], [1, 0])
        PairGraph(3 records, 2 pairs, transitive=True)
    """

    n_nodes: int
    edges: Ints
    similar: Bools
    transitive: bool = True
    _cache: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Show sizes only, because pairs and labels are secret."""
        return (
            f"PairGraph({self.n_nodes} records, {len(self.edges)} pairs, "
            f"transitive={self.transitive})"
        )

    @classmethod
    def from_pairs(
        cls,
        pairs: ArrayLike,
        y: ArrayLike,
        *,
        n_nodes: int | None = None,
        transitive: bool = True,
    ) -> PairGraph:
        """Build the graph from (m, 2) node numbers and labels.

        A repeated pair counts once, with its first label. Whether an error is raised depends on the
        structure, which is public, or on the domain of a single label, never on several labels
        together. The owner can look for contradictions with `check_pairs`; an error here would
        reveal something about private labels without a charge.
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
                f"{int((edges[:, 0] == edges[:, 1]).sum())} self-pairs found. Remove them."
            )
        first = _first_of_each(edges, n_nodes)
        return cls(
            n_nodes=n_nodes, edges=edges[first], similar=similar[first], transitive=transitive
        )

    def __len__(self) -> int:
        return len(self.edges)

    @property
    def degrees(self) -> Ints:
        """The number of pairs that contain each record."""
        return np.bincount(self.edges.ravel(), minlength=self.n_nodes).astype(np.int64)

    def components(self) -> Ints:
        """The connected component of each node."""
        if "components" not in self._cache:
            self._cache["components"] = connected(self.n_nodes, self.edges)
        return np.asarray(self._cache["components"])

    def adjacency(self) -> tuple[Ints, NDArray[np.int32]]:
        """Return the adjacency in compressed rows: `start` (n + 1) and `links` (2m, 2).

        Each link is a neighbour and the edge that leads to it.
        """
        if "adjacency" not in self._cache:
            # Allocated here rather than in compiled code, because numpy requests large memory
            # pages, which make random access faster.
            start, free = (
                np.zeros(self.n_nodes + 1, dtype=np.int64),
                np.empty(self.n_nodes, dtype=np.int64),
            )
            links = np.empty((2 * len(self.edges), 2), dtype=np.int32)
            _compress(self.edges, start, free, links)
            self._cache["adjacency"] = start, links
        start, links = self._cache["adjacency"]
        return start, links

    def subset(self, chosen: Array) -> PairGraph:
        """Return the graph of these edges only (a mask or edge numbers), on the same nodes."""
        return PairGraph(
            n_nodes=self.n_nodes,
            edges=self.edges[chosen],
            similar=self.similar[chosen],
            transitive=self.transitive,
        )

    def batches(self, size: int, *, rng: np.random.Generator) -> Iterator[Ints]:
        """Yield a random partition of the edges into batches of `size`, component by component.

        The last batch may be smaller. By the remark after Theorem 2, a mini-batch comes from a
        component of the graph rather than from the whole graph. Components are visited in random
        order and their edges are shuffled. Only the structure is used, never a label.
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


def _count(edges: Ints, n_nodes: int | None) -> int:
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


def _first_of_each(edges: Ints, n_nodes: int) -> Ints:
    """Return the row of the first occurrence of each pair, in ascending order."""
    return np.sort(np.unique(edges[:, 0] * n_nodes + edges[:, 1], return_index=True)[1])


@njit(cache=True)
def _compress(
    edges: Integers,
    start: Integers,
    free: Integers,
    links: Integers,
) -> None:
    """Fill the adjacency by counting, in two passes over the edges.

    Sorting takes ten times as long.
    """
    for e in range(len(edges)):
        start[edges[e, 0] + 1] += 1
        start[edges[e, 1] + 1] += 1
    for v in range(len(free)):
        start[v + 1] += start[v]
        free[v] = start[v]
    for e in range(len(edges)):
        for node, neighbour in ((edges[e, 0], edges[e, 1]), (edges[e, 1], edges[e, 0])):
            links[free[node], 0], links[free[node], 1] = neighbour, e
            free[node] += 1


def connected(n_nodes: int, edges: Ints) -> Ints:
    """The number of the connected component of each node."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ones = np.ones(len(edges), dtype=np.int8)
    matrix = coo_array((ones, (edges[:, 0], edges[:, 1])), shape=(n_nodes, n_nodes))
    return np.asarray(connected_components(matrix, directed=False)[1].astype(np.int64))


SELECTIONS = ("all", "forest", "matching")


@njit(cache=True)
def _root(parent: Integers, v: int) -> Any:
    while parent[v] != v:
        parent[v] = parent[parent[v]]
        v = parent[v]
    return v


@njit(cache=True)
def _forest(n_nodes: int, edges: Integers, order: Integers) -> Any:
    parent = np.arange(n_nodes)
    selected = np.zeros(len(edges), dtype=np.bool_)
    for e in order:
        a, b = _root(parent, edges[e, 0]), _root(parent, edges[e, 1])
        if a != b:
            parent[a] = b
            selected[e] = True
    return selected


@njit(cache=True)
def _bounded(n_nodes: int, edges: Integers, order: Integers, limit: int) -> Any:
    used = np.zeros(n_nodes, dtype=np.int64)
    selected = np.zeros(len(edges), dtype=np.bool_)
    for e in order:
        a, b = edges[e, 0], edges[e, 1]
        if used[a] < limit and used[b] < limit:
            used[a] += 1
            if a != b:  # two records of one person
                used[b] += 1
            selected[e] = True
    return selected


def spanning_forest(graph: PairGraph, *, rng: np.random.Generator) -> Bools:
    """Return the edges of a random spanning forest, which has no cycles, so that kappa' = 1."""
    return np.asarray(_forest(graph.n_nodes, graph.edges, rng.permutation(len(graph))))


def person_numbers(people: Any, pairs: ArrayLike, n_records: int) -> Ints:
    """Return the number of the person in each record.

    Parameters:
        people: a name for each record, or (m, 2) names if pairs are given as features.
        pairs: the pairs as they were given, which determine the expected form of the names.
        n_records: number of records.

    Returns:
        (n_records,) numbers from 0; equal names have equal numbers.

    Raises:
        InvalidData: if there is not one name for each record.
    """
    names = np.asarray(people)
    shape = (n_records,) if np.ndim(pairs) == 2 else np.shape(pairs)[:2]
    if names.shape != shape or names.dtype.kind not in "iuUS":
        raise InvalidData(
            f"people must be names (text or whole numbers) of shape {shape}, one for each record, "
            f"got shape {names.shape}, dtype {names.dtype}."
        )
    return np.unique(names.ravel(), return_inverse=True)[1].astype(np.int64)


def bounded_degree(
    graph: PairGraph,
    limit: int,
    *,
    rng: np.random.Generator,
    people: Ints | None = None,
) -> Bools:
    """Select a maximal set of edges with at most `limit` pairs per record, or per person.

    Edges between records of few pairs are considered first (ties at random), which selects more
    edges than a random order.
    """
    limit = checks.whole("limit", limit)
    edges = graph.edges if people is None else people[graph.edges]
    n_nodes = graph.n_nodes if people is None else int(people.max()) + 1
    degrees = np.bincount(edges.ravel(), minlength=n_nodes)
    crowd = degrees[edges].sum(axis=1) + rng.random(len(graph))
    return np.asarray(_bounded(n_nodes, edges, np.argsort(crowd), limit))


def matching(graph: PairGraph, *, rng: np.random.Generator, people: Ints | None = None) -> Bools:
    """Select a maximal matching, in which each record (or person) is in at most one pair.

    Privacy per pair is then privacy per record (or person).
    """
    return bounded_degree(graph, 1, rng=rng, people=people)


def select(graph: PairGraph, how: str | int, *, people: Ints | None = None) -> Bools:
    """Return a mask of the edges that are used.

    Ties are broken by a generator whose seed is the number of pairs, so that anybody can repeat the
    selection from the public structure.

    Parameters:
        graph: the pairs.
        how: "all", "forest", "matching", or the largest number of pairs for each record, or for
            each person if `people` is given.
        people: number of the person in each record.
    """
    rng = np.random.default_rng(len(graph))
    if not isinstance(how, str):
        return bounded_degree(graph, checks.whole("select", how), rng=rng, people=people)
    checks.one_of("select", how, SELECTIONS)
    if how == "forest":
        return spanning_forest(graph, rng=rng)
    if how == "matching":
        return matching(graph, rng=rng, people=people)
    return np.ones(len(graph), dtype=np.bool_)


@dataclass(frozen=True, kw_only=True)
class PairReport:
    """The result of `check_pairs`. Every number is private.

    Parameters:
        pairs: number of distinct pairs.
        repeated: number of repeated rows.
        similar: number of distinct pairs that are similar, by their first label.
        both_ways: number of pairs with both labels.
        chains: number of dissimilar pairs that are connected by a chain of similar pairs; None if
            the relation is not transitive.
        circles: number of components that do not fit two classes; None if the number of classes
            was not given as 2.

    Examples:
        >>> check_pairs([[0, 1], [1, 2]], [1, 0]).fine
        True
    """

    pairs: int
    repeated: int
    similar: int
    both_ways: int
    chains: int | None
    circles: int | None

    @property
    def fine(self) -> bool:
        """Whether nothing needs the owner's attention."""
        return not self.problems()

    def problems(self) -> list[str]:
        """Return one sentence for each problem."""
        messages = []
        if self.both_ways:
            messages.append(
                f"{self.both_ways} pairs are labelled both similar and dissimilar; the first label "
                "is used."
            )
        if self.chains:
            messages.append(
                f"{self.chains} pairs are labelled dissimilar although a chain of similar pairs "
                "joins them. Correct the labels, or state that similarity is not transitive."
            )
        if self.circles:
            messages.append(
                f"{self.circles} groups of connected records do not fit two classes: they contain "
                "a cycle with an odd number of dissimilar pairs."
            )
        if self.similar in (0, self.pairs):
            kind = "similar" if self.similar else "dissimilar"
            messages.append(
                f"all pairs are {kind}: add pairs of the other kind, or there is little to learn."
            )
        return messages


def check_pairs(
    pairs: ArrayLike, y: ArrayLike, *, transitive: bool = True, n_classes: int | None = None
) -> PairReport:
    """Count labels that contradict each other (the inference patterns of Section V-A).

    Parameters:
        pairs: (m, 2) record numbers.
        y: the labels, as for `pair_labels`.
        transitive: whether similarity is transitive.
        n_classes: the number of classes, if it is known; with 2, odd cycles are counted too.

    Returns:
        The numbers of contradictions. They are private.

    Examples:
        >>> check_pairs([[0, 1], [1, 2], [2, 0]], [1, 1, 0]).chains
        1
    """
    if n_classes is not None and checks.whole("n_classes", n_classes) < 2:
        raise InvalidData(f"n_classes must be at least 2, got {n_classes}.")
    numbers, labels = np.asarray(pairs), pair_labels(y)
    graph = PairGraph.from_pairs(numbers, labels)
    edges = np.sort(numbers.astype(np.int64), axis=1)
    _, number, counts = np.unique(edges, axis=0, return_inverse=True, return_counts=True)
    alike = np.bincount(number.ravel(), weights=labels)
    return PairReport(
        pairs=len(graph),
        repeated=len(numbers) - len(graph),
        similar=int(graph.similar.sum()),
        both_ways=int(((alike > 0) & (alike < counts)).sum()),
        chains=_chains(graph) if transitive else None,
        circles=_circles(graph) if transitive and n_classes == 2 else None,
    )


def _chains(graph: PairGraph) -> int:
    """Count the dissimilar pairs that a chain of similar pairs connects."""
    group = connected(graph.n_nodes, graph.edges[graph.similar])
    across: Ints = graph.edges[~graph.similar]
    return int((group[across[:, 0]] == group[across[:, 1]]).sum())


def _circles(graph: PairGraph) -> int:
    """Count the components in which some record would be of both classes.

    In the double cover with nodes (v, side), a similar pair connects equal sides and a dissimilar
    pair connects different sides. A record whose two nodes are connected would be of both classes.
    """
    n = graph.n_nodes
    shift = np.where(graph.similar, 0, n)
    a, b = graph.edges[:, 0], graph.edges[:, 1]
    cover = np.concatenate(
        [np.column_stack([a, b + shift]), np.column_stack([a + n, b + n - shift])]
    )
    side = connected(2 * n, cover)
    return len(np.unique(graph.components()[side[:n] == side[n:]]))
