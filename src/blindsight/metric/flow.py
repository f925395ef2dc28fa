"""Edge-disjoint paths between two nodes by maximum flow (Definition 1, Menger's theorem), compiled.

Equation 5 does not say *which* maximum set of paths is removed before cycles are counted. We take the set with the
fewest edges in all (a maximum flow of least cost, by successive shortest paths): it leaves the most cycles standing,
the cautious reading. Whichever set is taken, the bounds of `kappa` hold.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.compiled import njit
from blindsight.metric.graph import PairGraph

__all__ = ["disjoint_paths"]


@njit(cache=True)
def _cheapest_flow(start: Any, links: Any, first: Any, s: Any, t: Any, limit: Any) -> Any:
    """Flow on each edge (+1 along first -> second end, -1 against, 0 unused) and its value, at most `limit`."""
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
        # Bellman-Ford with a queue: undoing an edge's flow costs -1, so labels can still fall after a visit.
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


def disjoint_paths(graph: PairGraph, s: int, t: int) -> tuple[int, NDArray[np.bool_]]:
    """|P_st| and the edges on those paths."""
    start, links = graph.adjacency()
    degrees = graph.degrees
    limit = int(min(degrees[s], degrees[t]))
    flow, value = _cheapest_flow(start, links, np.ascontiguousarray(graph.edges[:, 0]), s, t, limit)
    return int(value), flow != 0
