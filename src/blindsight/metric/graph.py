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

    Example:
        >>> PairGraph.from_pairs([[0, 1], [1, 2]], [1, 0])
        PairGraph(3 records, 2 pairs, transitive=True)
    """

    n_nodes: int
    edges: Ints
    similar: Bools
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
        pairs: ArrayLike,
        y: ArrayLike,
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
        return len(self.edges)

    @property
    def degrees(self) -> Ints:
        """How many pairs each record is in."""
        return np.bincount(self.edges.ravel(), minlength=self.n_nodes).astype(np.int64)

    def components(self) -> Ints:
        """The connected component of each node."""
        if "components" not in self._cache:
            self._cache["components"] = connected(self.n_nodes, self.edges)
        return np.asarray(self._cache["components"])

    def adjacency(self) -> tuple[Ints, NDArray[np.int32]]:
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

    def subset(self, chosen: Array) -> PairGraph:
        """The graph of only these edges (a mask or edge numbers), on the same nodes."""
        return PairGraph(
            n_nodes=self.n_nodes,
            edges=self.edges[chosen],
            similar=self.similar[chosen],
            transitive=self.transitive,
        )

    def batches(self, size: int, *, rng: np.random.Generator) -> Iterator[Ints]:
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
    """Where each pair is given for the first time, in the order given."""
    return np.sort(np.unique(edges[:, 0] * n_nodes + edges[:, 1], return_index=True)[1])


@njit(cache=True)
def _compress(
    edges: Integers,
    start: Integers,
    free: Integers,
    links: Integers,
) -> None:
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
    kept = np.zeros(len(edges), dtype=np.bool_)
    for e in order:
        a, b = _root(parent, edges[e, 0]), _root(parent, edges[e, 1])
        if a != b:
            parent[a] = b
            kept[e] = True
    return kept


@njit(cache=True)
def _bounded(n_nodes: int, edges: Integers, order: Integers, limit: int) -> Any:
    used = np.zeros(n_nodes, dtype=np.int64)
    kept = np.zeros(len(edges), dtype=np.bool_)
    for e in order:
        a, b = edges[e, 0], edges[e, 1]
        if used[a] < limit and used[b] < limit:
            used[a] += 1
            if a != b:  # two records of one person
                used[b] += 1
            kept[e] = True
    return kept


def spanning_forest(graph: PairGraph, *, rng: np.random.Generator) -> Bools:
    """Which edges a random spanning forest keeps: no cycles, so kappa' = 1."""
    return np.asarray(_forest(graph.n_nodes, graph.edges, rng.permutation(len(graph))))


def person_numbers(people: Any, pairs: ArrayLike, n_records: int) -> Ints:
    """The number of the person behind each record.

    Parameters:
        people: a name for each record; or, beside features of pairs, (m, 2) names.
        pairs: the pairs as they were given, which say in which form names are expected.
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
    """Which edges to keep so that no record, or no person, is in more than `limit` pairs; nothing
    more could be added.

    Edges between records of few pairs come first (ties at random): that keeps more of them than
    chance order.
    """
    limit = checks.whole("limit", limit)
    edges = graph.edges if people is None else people[graph.edges]
    n_nodes = graph.n_nodes if people is None else int(people.max()) + 1
    degrees = np.bincount(edges.ravel(), minlength=n_nodes)
    crowd = degrees[edges].sum(axis=1) + rng.random(len(graph))
    return np.asarray(_bounded(n_nodes, edges, np.argsort(crowd), limit))


def matching(graph: PairGraph, *, rng: np.random.Generator, people: Ints | None = None) -> Bools:
    """A maximal matching: each record (or person) is in at most one pair, so privacy per pair is
    privacy per record (or person).
    """
    return bounded_degree(graph, 1, rng=rng, people=people)


def select(graph: PairGraph, how: str | int, *, people: Ints | None = None) -> Bools:
    """The mask of the edges that `how` keeps: "all", "forest", "matching", or at most so many pairs
    for each record, or for each person where people are given.

    Ties are broken by a generator of their own, the same for the same number of pairs: a choice
    that anybody could repeat from the public structure.
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
    """What was found among labelled pairs; every number is private.

    Parameters:
        pairs: number of distinct pairs.
        repeated: number of lines that name a pair again.
        similar: number of distinct pairs that are similar, by their first label.
        both_ways: number of pairs that carry both labels.
        chains: number of dissimilar pairs that a chain of similar pairs joins; None if the
            relation is not transitive.
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
        """One sentence for each finding."""
        found = []
        if self.both_ways:
            found.append(
                f"{self.both_ways} pairs are labelled both similar and dissimilar; the first label "
                "is used."
            )
        if self.chains:
            found.append(
                f"{self.chains} pairs are labelled dissimilar although a chain of similar pairs "
                "joins them. Correct "
                "the labels, or say that being similar does not carry over."
            )
        if self.circles:
            found.append(
                f"{self.circles} groups of joined records do not fit two classes: an odd number of "
                "dissimilar pairs "
                "closes a circle."
            )
        if self.similar in (0, self.pairs):
            kind = "similar" if self.similar else "dissimilar"
            found.append(
                f"all pairs are {kind}: add pairs of the other kind, or there is little to learn."
            )
        return found


def check_pairs(
    pairs: ArrayLike, y: ArrayLike, *, transitive: bool = True, n_classes: int | None = None
) -> PairReport:
    """Look for labels that cannot all hold (the inference patterns of Section V-A).

    Examples:
        >>> check_pairs([[0, 1], [1, 2], [2, 0]], [1, 1, 0]).chains
        1
    """
    if n_classes is not None and checks.whole("n_classes", n_classes) < 2:
        raise InvalidData(f"n_classes must be at least 2, got {n_classes}.")
    given, labels = np.asarray(pairs), pair_labels(y)
    graph = PairGraph.from_pairs(given, labels)
    edges = np.sort(given.astype(np.int64), axis=1)
    _, number, counts = np.unique(edges, axis=0, return_inverse=True, return_counts=True)
    alike = np.bincount(number.ravel(), weights=labels)
    return PairReport(
        pairs=len(graph),
        repeated=len(given) - len(graph),
        similar=int(graph.similar.sum()),
        both_ways=int(((alike > 0) & (alike < counts)).sum()),
        chains=_chains(graph) if transitive else None,
        circles=_circles(graph) if transitive and n_classes == 2 else None,
    )


def _chains(graph: PairGraph) -> int:
    """Dissimilar pairs inside one class of the similar ones."""
    group = connected(graph.n_nodes, graph.edges[graph.similar])
    across: Ints = graph.edges[~graph.similar]
    return int((group[across[:, 0]] == group[across[:, 1]]).sum())


def _circles(graph: PairGraph) -> int:
    """Components in which some record would be of both classes.

    Double cover (v, side): similar keeps the side, dissimilar changes it; nobody may be on both
    sides.
    """
    n = graph.n_nodes
    shift = np.where(graph.similar, 0, n)
    a, b = graph.edges[:, 0], graph.edges[:, 1]
    cover = np.concatenate(
        [np.column_stack([a, b + shift]), np.column_stack([a + n, b + n - shift])]
    )
    side = connected(2 * n, cover)
    return len(np.unique(graph.components()[side[:n] == side[n:]]))
