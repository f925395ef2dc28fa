"""Biconnected blocks by Tarjan's depth-first search, compiled: O(V + E), without recursion.

Removing a node splits its component into as many parts as there are blocks that contain it, so the increase of the
number of components in Equation 15 is (blocks of the node) - 1, and one walk answers for all nodes at once. The paper
counts components anew for each node, which is O(V (V + E)).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.compiled import njit
from blindsight.metric.graph import PairGraph

__all__ = ["block_counts", "bridges", "worth"]


# What the walk knows of a node, side by side in one row: a node of a large graph is one cache miss, not six.
_FOUND, _LOW, _CURSOR, _END, _PARENT, _ENTRY, _BLOCKS = range(7)


@njit(cache=True)
def _walk(start: Any, neighbour: Any, edge: Any, allowed: Any) -> Any:
    """Blocks at each node and whether each edge is a bridge, in the subgraph of `allowed` edges (empty: all)."""
    n = len(start) - 1
    every = len(allowed) == 0
    node = np.zeros((n, 8), dtype=np.int32)
    for v in range(n):
        node[v, _CURSOR], node[v, _END] = start[v], start[v + 1]
        node[v, _PARENT] = node[v, _ENTRY] = -1  # _ENTRY: the edge we came by
    bridge = np.zeros(len(edge) // 2, dtype=np.bool_)
    stack = np.empty(n, dtype=np.int32)
    time = 0
    for root in range(n):
        if node[root, _FOUND]:
            continue
        time += 1
        node[root, _FOUND] = node[root, _LOW] = time
        stack[0] = root
        top = 1
        while top:
            v = stack[top - 1]
            at = node[v, _CURSOR]
            if at < node[v, _END]:
                node[v, _CURSOR] = at + 1
                e = edge[at]
                if e == node[v, _ENTRY] or not (every or allowed[e]):
                    continue
                w = neighbour[at]
                if node[w, _FOUND]:
                    node[v, _LOW] = min(node[v, _LOW], node[w, _FOUND])
                else:
                    time += 1
                    node[w, _FOUND] = node[w, _LOW] = time
                    node[w, _PARENT], node[w, _ENTRY] = v, e
                    stack[top] = w
                    top += 1
            else:
                top -= 1
                u = node[v, _PARENT]
                if u >= 0:
                    low = node[v, _LOW]
                    node[u, _LOW] = min(node[u, _LOW], low)
                    if low >= node[u, _FOUND]:
                        # Nothing below v reaches above u: u and v's subtree share a block that ends at u.
                        node[u, _BLOCKS] += 1
                        bridge[node[v, _ENTRY]] = low > node[u, _FOUND]
                    node[v, _BLOCKS] += 1  # the block that holds v and its parent
    return node[:, _BLOCKS].astype(np.int64), bridge


def block_counts(graph: PairGraph, allowed: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
    """How many biconnected blocks contain each node (0 for a node in no pair); only `allowed` edges count."""
    return _run(graph, allowed)[0]


def bridges(graph: PairGraph) -> NDArray[np.bool_]:
    """Which edges lie on no cycle."""
    return _run(graph, None)[1]


def worth(graph: PairGraph) -> NDArray[np.int64]:
    """De(s) - Co+(s) of Proposition 1 for every node: deg(s) - blocks(s) + 1, and 0 for a node in no pair."""
    degrees = graph.degrees
    return np.where(degrees > 0, degrees - block_counts(graph) + 1, 0)


def _run(graph: PairGraph, allowed: NDArray[np.bool_] | None) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    start, neighbour, edge = graph.adjacency()
    blocks, alone = _walk(start, neighbour, edge, np.empty(0, dtype=np.bool_) if allowed is None else allowed)
    return blocks, alone
