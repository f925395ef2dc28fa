"""Biconnected blocks by Tarjan's depth-first search, compiled: O(V + E), without recursion.

Removing a node splits its component into as many parts as there are blocks that contain it, so the
increase of the number of components in Equation 15 is (blocks of the node) - 1, and one walk
answers for all nodes at once. The paper counts components anew for each node, which is O(V (V +
E)).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.compiled import njit
from blindsight.metric.graph import PairGraph

__all__ = ["block_counts", "bridges", "worth"]


# What the walk knows of the nodes between the root and where it stands, in the order of the way
# there: coming back is then a step in memory, not a jump. Of all other nodes it needs only when
# they were found.
_NODE, _FOUND, _LOW, _CURSOR, _END, _ENTRY, _BLOCKS = range(7)


@njit(cache=True)
def _walk(
    start: Any, links: Any, allowed: Any, found: Any, way: Any, blocks: Any, bridge: Any
) -> None:
    """Blocks at each node and whether each edge is a bridge, in the subgraph of `allowed` edges
    (empty: all).
    """
    every = len(allowed) == 0
    time = 0
    for root in range(len(found)):
        if found[root]:
            continue
        top, w, e = -1, root, -1
        while True:
            if w >= 0:  # a node that was not found yet, by the edge e
                time += 1
                top += 1
                here = way[top]
                found[w] = here[_FOUND] = here[_LOW] = time
                here[_NODE], here[_ENTRY], here[_BLOCKS] = w, e, 0
                here[_CURSOR], here[_END] = start[w], start[w + 1]
                w = -1
            here = way[top]
            at = here[_CURSOR]
            if at < here[_END]:
                here[_CURSOR] = at + 1
                e = links[at, 1]
                if e == here[_ENTRY] or not (every or allowed[e]):
                    continue
                w = links[at, 0]
                if found[w]:
                    here[_LOW] = min(here[_LOW], found[w])
                    w = -1
                continue
            blocks[here[_NODE]] = here[_BLOCKS] + (
                top > 0
            )  # with the block that holds it and its parent
            top -= 1
            if top < 0:
                break
            above, low = way[top], here[_LOW]
            above[_LOW] = min(above[_LOW], low)
            if low >= above[_FOUND]:
                # Nothing below reaches above the parent: it shares with this subtree a block that
                # ends at it.
                above[_BLOCKS] += 1
                bridge[here[_ENTRY]] = low > above[_FOUND]


def block_counts(graph: PairGraph, allowed: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
    """How many biconnected blocks contain each node (0 for a node in no pair); only `allowed` edges
    count.
    """
    return _run(graph, allowed)[0]


def bridges(graph: PairGraph) -> NDArray[np.bool_]:
    """Which edges lie on no cycle."""
    return _run(graph, None)[1]


def worth(graph: PairGraph) -> NDArray[np.int64]:
    """De(s) - Co+(s) of Proposition 1 for every node: deg(s) - blocks(s) + 1, and 0 for a node in
    no pair.
    """
    degrees = graph.degrees
    return np.where(degrees > 0, degrees - block_counts(graph) + 1, 0)


def _run(
    graph: PairGraph, allowed: NDArray[np.bool_] | None
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    n = graph.n_nodes
    blocks, bridge = np.zeros(n, dtype=np.int64), np.zeros(len(graph), dtype=np.bool_)
    every = np.empty(0, dtype=np.bool_) if allowed is None else allowed
    found, way = np.zeros(n, dtype=np.int32), np.empty((n, 8), dtype=np.int32)
    _walk(*graph.adjacency(), every, found, way, blocks, bridge)
    return blocks, bridge
