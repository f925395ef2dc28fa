"""kappa (Equation 5), its bounds, and the biconnected components behind them.

kappa is the smallest number of pairs that an attacker must not know, for the worst target pair. For
a target (s, t) the paper counts |P_st| + min(c_s, c_t): the edge-disjoint paths from which the
attacker could infer the label, and the further edges that keep s or t out of cycles, which would
reveal a feature. The methods are:

- `exact`: Equation 5 itself. Pairs are visited in decreasing order of their bound, and the search
  stops when no bound exceeds the best value, so few maximum flows are needed even on large graphs.
- `second`: the second-largest of De(s) - Co+(s) over all nodes. Proposition 1 bounds a pair by
  *either* end, so by the smaller one; the largest of the smaller values over all pairs is the
  second-largest value. O(V + E).
- `bound`: kappa' of Equation 15, the largest of these values. O(V + E) by biconnected components;
  the paper's method needs O(V (V + E)).
- `node`, `edge`: node privacy (the largest degree) and edge privacy (1), for comparison.

edge <= exact <= second <= bound <= node on every graph that has pairs. For an intransitive relation
(Appendix B) only features can be inferred, so no paths are counted beyond the pair itself.

kappa is an assumption about the attacker's knowledge, not a property of the mechanism: a star has
kappa = 1, yet an attacker who knows the classes of the leaves learns the class of the hub from all
its pairs together. The unit "record" is proven.

Biconnected components come from Tarjan's depth-first search, compiled, O(V + E), without recursion.
Removing a node splits its component into as many parts as there are biconnected components that
contain it, so the increase in Equation 15 is (components of the node) - 1, and one search answers
for all nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args

import numpy as np

from blindsight.core import checks
from blindsight.core.arrays import Array, Bools, Integers, Ints
from blindsight.core.checks import njit
from blindsight.core.errors import InvalidParameter
from blindsight.metric.graph import PairGraph

__all__ = [
    "KappaMethod",
    "block_counts",
    "bridges",
    "disjoint_paths",
    "kappa",
    "pair_kappa",
    "worth",
]

# Columns of the stack of the depth-first search, which has a row for each node between the root and
# the current node, so that backtracking reads adjacent memory. Of all other nodes the search needs
# only the discovery time.
_NODE, _DISCOVERY, _LOW, _CURSOR, _END, _ENTRY, _BLOCKS = range(7)


@njit(cache=True)
def _walk(
    start: Integers,
    links: Integers,
    allowed: Array,
    discovery: Integers,
    path: Integers,
    blocks: Integers,
    bridge: Array,
) -> None:
    """Count the blocks at each node and mark the edges that are bridges, by depth-first search.

    The search uses the subgraph of `allowed` edges (an empty array allows all).
    """
    every = len(allowed) == 0
    time = 0
    for root in range(len(discovery)):
        if discovery[root]:
            continue
        top, w, e = -1, root, -1
        while True:
            if w >= 0:  # a node that is discovered now, through the edge e
                time += 1
                top += 1
                frame = path[top]
                discovery[w] = frame[_DISCOVERY] = frame[_LOW] = time
                frame[_NODE], frame[_ENTRY], frame[_BLOCKS] = w, e, 0
                frame[_CURSOR], frame[_END] = start[w], start[w + 1]
                w = -1
            frame = path[top]
            at = frame[_CURSOR]
            if at < frame[_END]:
                frame[_CURSOR] = at + 1
                e = links[at, 1]
                if e == frame[_ENTRY] or not (every or allowed[e]):
                    continue
                w = links[at, 0]
                if discovery[w]:
                    frame[_LOW] = min(frame[_LOW], discovery[w])
                    w = -1
                continue
            # A node other than the root is also in the block that contains its parent.
            blocks[frame[_NODE]] = frame[_BLOCKS] + (top > 0)
            top -= 1
            if top < 0:
                break
            above, low = path[top], frame[_LOW]
            above[_LOW] = min(above[_LOW], low)
            if low >= above[_DISCOVERY]:
                # No edge of this subtree leads above the parent, so a block ends at the parent.
                above[_BLOCKS] += 1
                bridge[frame[_ENTRY]] = low > above[_DISCOVERY]


def block_counts(graph: PairGraph, allowed: Bools | None = None) -> Ints:
    """Count the biconnected blocks that contain each node, in the subgraph of `allowed` edges.

    The number is 0 for a node in no pair.
    """
    return _run(graph, allowed)[0]


def bridges(graph: PairGraph) -> Bools:
    """Return which edges are on no cycle."""
    return _run(graph, None)[1]


def worth(graph: PairGraph) -> Ints:
    """Return De(s) - Co+(s) of Proposition 1 for every node.

    It is deg(s) - blocks(s) + 1, and 0 for a node in no pair.
    """
    degrees = graph.degrees
    return np.where(degrees > 0, degrees - block_counts(graph) + 1, 0)


def _run(graph: PairGraph, allowed: Bools | None) -> tuple[Ints, Bools]:
    n = graph.n_nodes
    blocks, bridge = np.zeros(n, dtype=np.int64), np.zeros(len(graph), dtype=np.bool_)
    every = np.empty(0, dtype=np.bool_) if allowed is None else allowed
    discovery, path = np.zeros(n, dtype=np.int32), np.empty((n, 8), dtype=np.int32)
    _walk(*graph.adjacency(), every, discovery, path, blocks, bridge)
    return blocks, bridge


KappaMethod = Literal["exact", "second", "bound", "node", "edge"]


def kappa(graph: PairGraph, method: KappaMethod = "second", *, max_flows: int = 20_000) -> int:
    """Return the number of pairs by which neighbouring graphs differ.

    Parameters:
        graph: the pairs.
        method: "exact", "second", "bound", "node" or "edge"; the module's docstring explains them.
        max_flows: how many targets "exact" may examine before it raises an error.

    Raises:
        InvalidParameter: "exact" would need more maximum flows.

    Examples:
        >>> triangle = PairGraph.from_pairs([[0, 1], [1, 2], [0, 2]], [1, 1, 1])
        >>> kappa(triangle, "exact"), kappa(triangle, "bound"), kappa(triangle, "node")
        (2, 2, 2)
    """
    checks.one_of("kappa", method, get_args(KappaMethod))
    if len(graph) == 0:
        return 0
    if method == "edge":
        return 1
    if method == "node":
        return int(graph.degrees.max())
    if method == "exact":
        return _exact(graph, max_flows)
    values = worth(graph)
    if not graph.transitive:
        return _intransitive_bound(graph, values, second=method == "second")
    return int(np.partition(values, -2)[-2]) if method == "second" else int(values.max())


def pair_kappa(graph: PairGraph, s: int, t: int) -> int:
    """Return |P_st| + min(c_s, c_t) for one target.

    For an intransitive relation it is the count of Appendix B.
    """
    if s == t:
        raise InvalidParameter(
            "a target is a pair of two different records, got the same one twice."
        )
    if graph.transitive:
        paths, on_path = disjoint_paths(graph, s, t)
    else:
        low, high = min(s, t), max(s, t)
        on_path = (graph.edges[:, 0] == low) & (graph.edges[:, 1] == high)
        paths = int(on_path.any())
    rest = ~on_path
    blocks = block_counts(graph, rest)
    degrees = np.bincount(graph.edges[rest].ravel(), minlength=graph.n_nodes)
    # s is on no cycle once each part of G - s is connected to it by one edge only. For that,
    # deg - blocks edges must be removed. No other choice of edges is smaller, because removing one
    # edge separates at most one part.
    return paths + int(min(degrees[s] - blocks[s], degrees[t] - blocks[t]))


def _exact(graph: PairGraph, max_flows: int) -> int:
    best = 0
    for flows, (s, t, bound) in enumerate(_by_bound(worth(graph))):
        if bound <= best:
            break
        if flows == max_flows:
            raise InvalidParameter(
                f"the exact kappa of {len(graph):,} pairs needs more than {max_flows:,} maximum "
                "flows. Use method='second', which is at most a little larger, or raise max_flows."
            )
        best = max(best, pair_kappa(graph, s, t))
    return best


def _by_bound(values: Ints) -> Iterator[tuple[int, int, int]]:
    """Yield pairs of nodes in descending order of min(value(s), value(t))."""
    order = np.argsort(-values, kind="stable")
    for j in range(1, len(order)):
        for i in range(j):
            yield int(order[i]), int(order[j]), int(values[order[j]])


def _intransitive_bound(graph: PairGraph, values: Ints, *, second: bool) -> int:
    """Return the bound of Appendix B.

    A pair joined by a bridge counts min(v(s), v(t)), any other pair at most one less (Equation 16).
    """
    ends = values[graph.edges[bridges(graph)]]
    reduce = np.minimum if second else np.maximum
    over_bridges = int(reduce(ends[:, 0], ends[:, 1]).max()) if len(ends) else 0
    elsewhere = int(np.partition(values, -2)[-2]) if second else int(values.max())
    return max(over_bridges, elsewhere - 1)


@njit(cache=True)
def _cheapest_flow(
    start: Integers,
    links: Integers,
    first: Integers,
    s: int,
    t: int,
    limit: int,
) -> Any:
    """Compute a maximum flow of least cost, of value at most `limit`.

    Returns:
        The flow on each edge (+1 from the first to the second end, -1 in the other direction, 0 if
        unused) and its value.
    """
    n = len(start) - 1
    flow = np.zeros(len(first), dtype=np.int8)
    distance = np.empty(n, dtype=np.int64)
    came = np.empty(n, dtype=np.int64)
    origin = np.empty(n, dtype=np.int64)
    waiting = np.empty(n, dtype=np.bool_)
    queue = np.empty(n + 1, dtype=np.int64)
    far = np.int64(1) << 60
    value = 0
    while value < limit:
        distance[:] = far
        waiting[:] = False
        distance[s] = 0
        queue[0] = s
        head, tail = 0, 1
        # Bellman-Ford with a queue: cancelling an edge's flow costs -1, so a distance can still
        # decrease after a visit.
        while head != tail:
            v = queue[head]
            head = (head + 1) % (n + 1)
            waiting[v] = False
            for at in range(start[v], start[v + 1]):
                e = links[at, 1]
                along = flow[e] if first[e] == v else -flow[e]
                if along == 1:
                    continue
                step = distance[v] + (1 if along == 0 else -1)
                w = links[at, 0]
                if step < distance[w]:
                    distance[w] = step
                    came[w] = e
                    origin[w] = v
                    if not waiting[w]:
                        waiting[w] = True
                        queue[tail] = w
                        tail = (tail + 1) % (n + 1)
        if distance[t] == far:
            break
        v = t
        while v != s:
            e = came[v]
            u = origin[v]
            flow[e] += 1 if first[e] == u else -1
            v = u
        value += 1
    return flow, value


def disjoint_paths(graph: PairGraph, s: int, t: int) -> tuple[int, Bools]:
    """|P_st| and the edges on those paths, by maximum flow (Definition 1, Menger's theorem).

    Equation 5 does not say *which* maximum set of paths is removed before cycles are counted. This
    function takes the set with the fewest edges in total (a maximum flow of least cost, by
    successive shortest paths), which leaves the most cycles and so is the conservative choice. The
    bounds of `kappa` hold for every choice.
    """
    start, links = graph.adjacency()
    degrees = graph.degrees
    limit = int(min(degrees[s], degrees[t]))
    flow, value = _cheapest_flow(start, links, np.ascontiguousarray(graph.edges[:, 0]), s, t, limit)
    return int(value), flow != 0
