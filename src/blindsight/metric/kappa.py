"""kappa (Equation 5): how many pairs an attacker must at least miss, for the worst target.

For a target (s, t) the paper counts |P_st| + min(c_s, c_t): the edge-disjoint paths that would let the attacker infer
the label, and the further edges that keep s or t out of cycles, which would expose a feature. Three ways to get it:

`exact`   Equation 5 itself. Pairs are visited in falling order of their bound and the search stops once no bound is
          above the best found, so few maximum flows are needed even on large graphs.
`second`  the second-largest of De(s) - Co+(s) over all nodes. Proposition 1 bounds a pair by *either* end, so by the
          smaller; the largest of the smaller over all pairs is the second-largest value. O(V + E).
`bound`   kappa' of Equation 15, the largest. O(V + E) by blocks; the paper needs O(V (V + E)).
`node`, `edge`   node privacy (the largest degree) and edge privacy (1), for comparison.

edge <= exact <= second <= bound <= node wherever a graph has pairs. For an intransitive relation (Appendix B) only
features can be inferred, so no paths are counted beyond the pair itself.

kappa is an assumption about what the attacker knows, not a property of the mechanism: a star has kappa = 1, yet
someone who knows the classes of the leaves learns the hub's from all its pairs together. The unit "record" is proven.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter
from blindsight.metric.blocks import block_counts, bridges, worth
from blindsight.metric.flow import disjoint_paths
from blindsight.metric.graph import PairGraph

__all__ = ["KappaMethod", "kappa", "pair_kappa"]

KappaMethod = Literal["exact", "second", "bound", "node", "edge"]


def kappa(graph: PairGraph, method: KappaMethod = "second", *, max_flows: int = 20_000) -> int:
    """The number of pairs by which neighbouring graphs differ.

    Parameters:
        method: "exact", "second", "bound", "node" or "edge"; see the module's text.
        max_flows: how many targets "exact" may look at before it gives up and says so.

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
    """|P_st| + min(c_s, c_t) for one target; Appendix B's count where the relation is intransitive."""
    if s == t:
        raise InvalidParameter("a target is a pair of two different records, got the same one twice.")
    if graph.transitive:
        paths, on_path = disjoint_paths(graph, s, t)
    else:
        low, high = min(s, t), max(s, t)
        on_path = (graph.edges[:, 0] == low) & (graph.edges[:, 1] == high)
        paths = int(on_path.any())
    rest = ~on_path
    blocks = block_counts(graph, rest)
    degrees = np.bincount(graph.edges[rest].ravel(), minlength=graph.n_nodes)
    # s lies on no cycle once each part of G - s hangs on it by one edge: deg - blocks edges must go, and no other
    # choice of edges is cheaper, because removing one edge splits off at most one part.
    return paths + int(min(degrees[s] - blocks[s], degrees[t] - blocks[t]))


def _exact(graph: PairGraph, max_flows: int) -> int:
    best = 0
    for flows, (s, t, bound) in enumerate(_by_bound(worth(graph))):
        if bound <= best:
            break
        if flows == max_flows:
            raise InvalidParameter(
                f"the exact kappa of {len(graph):,} pairs needs more than {max_flows:,} maximum flows. "
                "Use method='second', which is at most a little larger, or raise max_flows."
            )
        best = max(best, pair_kappa(graph, s, t))
    return best


def _by_bound(values: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Pairs of nodes in falling order of min(value(s), value(t)): node j with each node before it."""
    order = np.argsort(-values, kind="stable")
    for j in range(1, len(order)):
        for i in range(j):
            yield int(order[i]), int(order[j]), int(values[order[j]])


def _intransitive_bound(graph: PairGraph, values: NDArray[np.int64], *, second: bool) -> int:
    """Appendix B. A pair joined by a bridge counts min(v(s), v(t)); any other pair at most one less (Equation 16)."""
    ends = values[graph.edges[bridges(graph)]]
    reduce = np.minimum if second else np.maximum
    over_bridges = int(reduce(ends[:, 0], ends[:, 1]).max()) if len(ends) else 0
    elsewhere = int(np.partition(values, -2)[-2]) if second else int(values.max())
    return max(over_bridges, elsewhere - 1)
