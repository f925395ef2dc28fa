"""Biconnected blocks by Tarjan's depth-first search, compiled: O(V + E), without recursion.

Removing a node splits its component into as many parts as there are blocks that contain it, so the increase of the
number of components in Equation 15 is (blocks of the node) - 1, and one walk answers for all nodes at once. The paper
counts components anew for each node, which is O(V (V + E)).
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from blindsight.metric.graph import PairGraph

__all__ = ["block_counts", "bridges", "worth"]


@njit(cache=True)
def _walk(start, neighbour, edge, allowed):
    """Blocks at each node and whether each edge is a bridge, in the subgraph of the `allowed` edges."""
    n = len(start) - 1
    found = np.zeros(n, dtype=np.int64)  # time of discovery, 0 = not yet
    low = np.zeros(n, dtype=np.int64)
    cursor = start[:-1].copy()
    parent = np.full(n, -1, dtype=np.int64)
    entry = np.full(n, -1, dtype=np.int64)  # the edge we came by
    blocks = np.zeros(n, dtype=np.int64)
    bridge = np.zeros(len(allowed), dtype=np.bool_)
    stack = np.empty(n, dtype=np.int64)
    time = 0
    for root in range(n):
        if found[root]:
            continue
        time += 1
        found[root] = low[root] = time
        stack[0] = root
        top = 1
        while top:
            v = stack[top - 1]
            if cursor[v] < start[v + 1]:
                at = cursor[v]
                cursor[v] += 1
                e = edge[at]
                if not allowed[e] or e == entry[v]:
                    continue
                w = neighbour[at]
                if found[w]:
                    low[v] = min(low[v], found[w])
                else:
                    time += 1
                    found[w] = low[w] = time
                    parent[w] = v
                    entry[w] = e
                    stack[top] = w
                    top += 1
            else:
                top -= 1
                u = parent[v]
                if u >= 0:
                    low[u] = min(low[u], low[v])
                    if low[v] >= found[u]:
                        # Nothing below v reaches above u: u and v's subtree share a block that ends at u.
                        blocks[u] += 1
                        bridge[entry[v]] = low[v] > found[u]
                    blocks[v] += 1  # the block that holds v and its parent
    return blocks, bridge


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
    if allowed is None:
        allowed = np.ones(len(graph), dtype=np.bool_)
    return _walk(start, neighbour, edge, allowed)
